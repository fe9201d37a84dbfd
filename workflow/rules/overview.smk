# All metrics in one picture, from the table of all scores.
rule overview:
    input:
        paths.SCORES_TABLE,
        paths.SCORES_TABLE_MANIFEST,
    output:
        [
            report(
                file,
                caption="../report/overview.rst",
                category="Metrics",
                labels={"what": "all metrics in one picture"},
            )
            for file in pictures.OVERVIEW_FILES
        ],
        pictures.OVERVIEW_MANIFEST,
    log:
        "results/logs/overview.log",
    conda:
        ENVIRONMENT
    threads: THREADS
    resources:
        mem_mb=lambda w, attempt: 4000 * attempt,
        runtime=lambda w, attempt: 30 * attempt,
    params:
        # A function, as Snakemake would take the braces in a plain text for its own.
        spec=lambda w: spec(pictures.overview_spec(plan)),
    message:
        "All metrics in one picture"
    shell:
        stage("overview")
