# Datasets and weights from elsewhere. Local rules: compute nodes often have no network.
rule prepare:
    output:
        paths.DATASET,
    log:
        "results/logs/prepare/{dataset}.log",
    conda:
        ENVIRONMENT
    params:
        spec=lambda w: spec(plan.dataset_spec(w.dataset)),
    message:
        "Looking at the dataset {wildcards.dataset}"
    shell:
        stage("prepare")


rule fetch_start:
    input:
        checkpoint=lambda w: plan.checkpoint_file(w.model),
    output:
        [paths.at(pattern, model=plan.transferred()) for pattern in paths.START_FILES],
    log:
        "results/logs/fetch_start/{model}.log",
    conda:
        ENVIRONMENT
    params:
        spec=lambda w: spec(plan.start_spec(w.model)),
    message:
        "Fetching the weights that {wildcards.model} starts with"
    shell:
        stage("fetch")


rule fetch:
    input:
        paths.DATASET,
        checkpoint=lambda w: plan.checkpoint_file(w.model),
    output:
        [
            paths.at(pattern, weights=paths.PRETRAINED, model=plan.fetched())
            for pattern in paths.WEIGHTS_FILES
        ],
    log:
        "results/logs/fetch/{dataset}/{model}.log",
    conda:
        ENVIRONMENT
    params:
        spec=lambda w: spec(plan.pretrain_spec(w.dataset, w.model)),
    message:
        "Fetching the weights of {wildcards.model} for {wildcards.dataset}"
    shell:
        stage("fetch")
