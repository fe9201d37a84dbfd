# Scores from maps and drops alone, and the tables; no network runs from here on.
rule score:
    input:
        lambda w: plan.score_inputs(w.dataset, w.model, w.weights, w.metric),
    output:
        paths.SCORES,
        paths.SCORES_MANIFEST,
    log:
        "results/logs/score/{dataset}/{model}/{weights}/{metric}.log",
    conda:
        ENVIRONMENT
    threads: THREADS
    resources:
        mem_mb=lambda w, attempt: 2000 * attempt,
        runtime=lambda w, attempt: 30 * attempt,
    params:
        spec=lambda w: spec(plan.score_spec(w.dataset, w.model, w.weights, w.metric)),
    message:
        "{wildcards.metric} of {wildcards.model} ({wildcards.weights}) on {wildcards.dataset}"
    shell:
        stage("score")


rule tables:
    input:
        plan.score_files(),
        plan.table_drop_files(),
    output:
        report(
            paths.IDSDS_TABLE,
            caption="../report/idsds_table.rst",
            category="Scores",
            labels={"what": "every method on every model", "kind": "table"},
        ),
        report(
            paths.META_RANK,
            caption="../report/meta_rank.rst",
            category="Ranking",
            labels={"what": "Meta-Rank over all test cases", "kind": "table"},
        ),
        report(
            paths.ACCURACY,
            caption="../report/accuracy.rst",
            category="Models",
            labels={"what": "accuracy before and after finetuning", "kind": "table"},
        ),
        report(
            paths.APPLICABILITY,
            caption="../report/applicability.rst",
            category="Models",
            labels={"what": "which explainer applies to which model", "kind": "table"},
        ),
        paths.TABLES_MANIFEST,
    log:
        "results/logs/tables.log",
    conda:
        ENVIRONMENT
    threads: THREADS
    resources:
        mem_mb=lambda w, attempt: 2000 * attempt,
        runtime=lambda w, attempt: 30 * attempt,
    params:
        spec=spec(plan.table_spec()),
    message:
        "Tables: scores, Meta-Rank, accuracy, applicability"
    shell:
        stage("tables")


rule all_scores:
    input:
        plan.score_files(plan.all_cases()),
    output:
        report(
            paths.SCORES_TABLE,
            caption="../report/scores.rst",
            category="Scores",
            labels={
                "what": "every metric, every method, every model",
                "kind": "table",
            },
        ),
        paths.SCORES_TABLE_MANIFEST,
    log:
        "results/logs/scores.log",
    conda:
        ENVIRONMENT
    threads: THREADS
    resources:
        mem_mb=lambda w, attempt: 4000 * attempt,
        runtime=lambda w, attempt: 60 * attempt,
    params:
        # A function, as Snakemake would take the pattern in a plain text for its own.
        spec=lambda w: spec(plan.scores_table_spec()),
    message:
        "Table of all metrics"
    shell:
        stage("all_scores")
