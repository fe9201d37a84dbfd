# Datasets and weights from elsewhere. Local rules: compute nodes often have no network.
rule prepare:
    output:
        paths.DATASET,
    log:
        "results/logs/prepare/{dataset}.log",
    benchmark:
        measured("prepare", "dataset")
    conda:
        ENVIRONMENT
    params:
        spec=told("prepare"),
    message:
        "Looking at the dataset {wildcards.dataset}"
    shell:
        RUN


use rule prepare as fetch_start with:
    input:
        reads("fetch_start"),
    output:
        [
            paths.at(pattern, model=plan.transferred())
            for pattern in paths.START_FILES.values()
        ],
    log:
        "results/logs/fetch_start/{model}.log",
    benchmark:
        measured("fetch_start", "model")
    params:
        spec=told("fetch_start"),
    message:
        "Fetching the weights that {wildcards.model} starts with"


use rule prepare as fetch with:
    input:
        reads("fetch"),
    output:
        [
            paths.at(pattern, weights=paths.PRETRAINED, model=plan.fetched())
            for pattern in paths.WEIGHTS_FILES.values()
        ],
    log:
        "results/logs/fetch/{dataset}/{model}.log",
    benchmark:
        measured("fetch", "dataset", "model")
    params:
        spec=told("fetch"),
    message:
        "Fetching the weights of {wildcards.model} for {wildcards.dataset}"
