# Datasets and weights from elsewhere. Local rules: compute nodes often have no network. All other rules run a job in the
# same way as the first one, and take environment, params and shell command from it.
rule prepare:
    input:
        reads("prepare"),
    output:
        leaves("prepare"),
    log:
        "results/logs/prepare/{dataset}.log",
    benchmark:
        measured("prepare", "dataset")
    conda:
        ENVIRONMENT
    params:
        spec=told,
    message:
        says("prepare")
    shell:
        ours.RUN


use rule prepare as fetch_start with:
    input:
        reads("fetch_start"),
    output:
        leaves("fetch_start"),
    log:
        "results/logs/fetch_start/{model}.log",
    benchmark:
        measured("fetch_start", "model")
    message:
        says("fetch_start")


use rule prepare as fetch with:
    input:
        reads("fetch"),
    output:
        leaves("fetch"),
    log:
        "results/logs/fetch/{dataset}/{model}.log",
    benchmark:
        measured("fetch", "dataset", "model")
    message:
        says("fetch")
