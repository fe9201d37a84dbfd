# Datasets and published weights. These are local rules, because compute nodes often have no access to the internet. All
# other rules inherit environment, params and shell command from the first one.
rule prepare:
    input:
        inputs_of("prepare"),
    output:
        outputs_of("prepare"),
    log:
        "results/logs/prepare/{dataset}.log",
    benchmark:
        benchmark_file("prepare", "dataset")
    conda:
        ENVIRONMENT
    params:
        spec=spec_file,
    message:
        message_of("prepare")
    shell:
        start.JOB_COMMAND


use rule prepare as fetch_start with:
    input:
        inputs_of("fetch_start"),
    output:
        outputs_of("fetch_start"),
    log:
        "results/logs/fetch_start/{model}.log",
    benchmark:
        benchmark_file("fetch_start", "model")
    message:
        message_of("fetch_start")


use rule prepare as fetch with:
    input:
        inputs_of("fetch"),
    output:
        outputs_of("fetch"),
    log:
        "results/logs/fetch/{dataset}/{model}.log",
    benchmark:
        benchmark_file("fetch", "dataset", "model")
    message:
        message_of("fetch")
