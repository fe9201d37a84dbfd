# Datasets and weights from elsewhere. Local rules: compute nodes often have no network. All other rules run a job in the
# same way as the first one, and take environment, params and shell command from it.
rule prepare:
    input:
        reads("prepare"),
    output:
        results.dataset,
    log:
        "results/logs/prepare/{dataset}.log",
    benchmark:
        measured("prepare", "dataset")
    conda:
        ENVIRONMENT
    params:
        spec=told,
    message:
        "data"
    shell:
        ours.RUN


use rule prepare as fetch_start with:
    input:
        reads("fetch_start"),
    output:
        paths.all_at(results.start, model=plan.transferred()),
    log:
        "results/logs/fetch_start/{model}.log",
    benchmark:
        measured("fetch_start", "model")
    message:
        "weights to begin with"


use rule prepare as fetch with:
    input:
        reads("fetch"),
    output:
        paths.all_at(results.weights, weights=paths.PRETRAINED, model=plan.fetched()),
    log:
        "results/logs/fetch/{dataset}/{model}.log",
    benchmark:
        measured("fetch", "dataset", "model")
    message:
        "published weights"
