# Scores from maps and drops alone, and the tables; no network runs from here on.
use rule prepare as score with:
    input:
        reads("score"),
    output:
        leaves("score"),
    log:
        "results/logs/score/{dataset}/{model}/{weights}/{metric}.log",
    benchmark:
        measured("score", *NETWORK, "metric")
    threads: THREADS
    resources:
        mem_mb=grows(2000),
        runtime=grows(30),
    message:
        says("score")


use rule score as tables with:
    input:
        reads("tables"),
    output:
        leaves("tables"),
    log:
        "results/logs/tables.log",
    benchmark:
        measured("tables")
    message:
        says("tables")


use rule score as all_scores with:
    input:
        reads("all_scores"),
    output:
        leaves("all_scores"),
    log:
        "results/logs/scores.log",
    benchmark:
        measured("all_scores")
    resources:
        mem_mb=grows(4000),
        runtime=grows(60),
    message:
        says("all_scores")


use rule all_scores as costs with:
    input:
        reads("costs"),
    output:
        leaves("costs"),
    log:
        "results/logs/costs.log",
    benchmark:
        measured("costs")
    message:
        says("costs")


if graph.has("baselines"):

    use rule all_scores as baselines with:
        input:
            reads("baselines"),
        output:
            leaves("baselines"),
        log:
            "results/logs/baselines.log",
        benchmark:
            measured("baselines")
        message:
            says("baselines")
