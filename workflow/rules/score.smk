# Scores from maps and drops alone, and the tables; no network runs from here on.
use rule prepare as score with:
    input:
        reads("score"),
    output:
        paths.SCORES,
        paths.SCORES_MANIFEST,
    log:
        "results/logs/score/{dataset}/{model}/{weights}/{metric}.log",
    benchmark:
        measured("score", *NETWORK, "metric")
    threads: THREADS
    resources:
        mem_mb=grows(2000),
        runtime=grows(30),
    message:
        "scores"


use rule score as tables with:
    input:
        reads("tables"),
    output:
        shown("verdict", paths.VERDICT),
        shown("idsds_table", paths.IDSDS_TABLE),
        shown("meta_rank", paths.META_RANK),
        shown("accuracy", paths.ACCURACY),
        shown("applicability", paths.APPLICABILITY),
        paths.TABLES_MANIFEST,
    log:
        "results/logs/tables.log",
    benchmark:
        measured("tables")
    message:
        "tables of scores, Meta-Rank, accuracy and applicability"


use rule score as all_scores with:
    input:
        reads("all_scores"),
    output:
        shown("scores", paths.SCORES_TABLE, paths.SCORES_TABLE_MANIFEST),
    log:
        "results/logs/scores.log",
    benchmark:
        measured("all_scores")
    resources:
        mem_mb=grows(4000),
        runtime=grows(60),
    message:
        "table of all metrics"


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


if reports.several_baselines(plan):

    use rule all_scores as baselines with:
        input:
            reads("baselines"),
        output:
            shown("baselines", *paths.BASELINES.values(), paths.BASELINES_MANIFEST),
        log:
            "results/logs/baselines.log",
        benchmark:
            measured("baselines")
        message:
            "comparison of baselines"
