# Scores, computed from stored maps and responses, and the tables. No job from here on runs a network.
use rule prepare as score with:
    input:
        inputs_of("score"),
    output:
        outputs_of("score"),
    log:
        "results/logs/score/{dataset}/{model}/{weights}/{metric}.log",
    benchmark:
        benchmark_file("score", *NETWORK, "metric")
    threads: THREADS
    resources:
        mem_mb=per_attempt(2000),
        runtime=per_attempt(30),
    message:
        message_of("score")


use rule score as tables with:
    input:
        inputs_of("tables"),
    output:
        outputs_of("tables"),
    log:
        "results/logs/tables.log",
    benchmark:
        benchmark_file("tables")
    message:
        message_of("tables")


use rule score as all_scores with:
    input:
        inputs_of("all_scores"),
    output:
        outputs_of("all_scores"),
    log:
        "results/logs/scores.log",
    benchmark:
        benchmark_file("all_scores")
    resources:
        mem_mb=per_attempt(4000),
        runtime=per_attempt(60),
    message:
        message_of("all_scores")


use rule all_scores as costs with:
    input:
        inputs_of("costs"),
    output:
        outputs_of("costs"),
    log:
        "results/logs/costs.log",
    benchmark:
        benchmark_file("costs")
    message:
        message_of("costs")


if graph.has("baselines"):

    use rule all_scores as baselines with:
        input:
            inputs_of("baselines"),
        output:
            outputs_of("baselines"),
        log:
            "results/logs/baselines.log",
        benchmark:
            benchmark_file("baselines")
        message:
            message_of("baselines")
