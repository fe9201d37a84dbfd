# Figures and pages, from tables and cached maps.


rule plot:
    input:
        paths.IDSDS_TABLE,
    output:
        report(
            figures.PLOT_SVG,
            caption="../report/idsds_plot.rst",
            category="Scores",
            labels={"what": "every method on every model", "kind": "figure"},
        ),
        figures.PLOT_PNG,
        figures.PLOT_MANIFEST,
    log:
        "results/logs/plot.log",
    conda:
        ENVIRONMENT
    threads: THREADS
    resources:
        mem_mb=lambda w, attempt: 2000 * attempt,
        runtime=lambda w, attempt: 30 * attempt,
    params:
        spec=lambda w: spec(figures.plot_spec(plan)),
    message:
        "Figure of the scores"
    shell:
        stage("plot")


rule pages:
    input:
        plan.tables(),
    output:
        report(
            figures.SCORES_PAGE,
            caption="../report/idsds_table.rst",
            category="Scores",
            labels={"what": "every method on every model", "kind": "page"},
        ),
        report(
            figures.RANK_PAGE,
            caption="../report/meta_rank.rst",
            category="Ranking",
            labels={"what": "Meta-Rank over all test cases", "kind": "page"},
        ),
        report(
            figures.ACCURACY_PAGE,
            caption="../report/accuracy.rst",
            category="Models",
            labels={"what": "accuracy before and after finetuning", "kind": "page"},
        ),
        figures.PAGES_MANIFEST,
    log:
        "results/logs/pages.log",
    conda:
        ENVIRONMENT
    threads: THREADS
    resources:
        mem_mb=lambda w, attempt: 2000 * attempt,
        runtime=lambda w, attempt: 30 * attempt,
    params:
        spec=lambda w: spec(figures.pages_spec(plan)),
    message:
        "Pages of the tables"
    shell:
        stage("pages")


if figures.gallery_images(plan):

    rule gallery:
        input:
            figures.gallery_inputs(plan),
        output:
            report(
                figures.GALLERY,
                caption="../report/maps.rst",
                category="Maps",
                labels={"what": "the first images under every method", "kind": "page"},
            ),
            figures.GALLERY_MANIFEST,
        log:
            "results/logs/gallery.log",
        conda:
            ENVIRONMENT
        threads: THREADS
        resources:
            mem_mb=lambda w, attempt: 2000 * attempt,
            runtime=lambda w, attempt: 30 * attempt,
        params:
            spec=lambda w: spec(figures.gallery_spec(plan)),
        message:
            "Page of maps"
        shell:
            stage("gallery")
