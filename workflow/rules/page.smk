# The index page: tables, maps, curves and where each number is from, in one file.
rule report_page:
    input:
        figures.page_inputs(plan),
    output:
        report(
            page.PAGE,
            caption="../report/index.rst",
            category="Report",
            labels={
                "what": "everything in one page that opens from disk",
                "kind": "page",
            },
        ),
        page.PAGE_MANIFEST,
    log:
        "results/logs/report_page.log",
    conda:
        ENVIRONMENT
    threads: THREADS
    resources:
        mem_mb=lambda w, attempt: 4000 * attempt,
        runtime=lambda w, attempt: 30 * attempt,
    params:
        # A function, as Snakemake would take the patterns in a plain text for its own.
        spec=lambda w: spec(figures.page_spec(plan)),
    message:
        "The index page"
    shell:
        stage("report_page")
