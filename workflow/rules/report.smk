# Figures and pages, from tables and cached maps.
from heatproof import plan_report as report_plan


rule plot:
    input:
        paths.IDSDS_TABLE,
    output:
        report(
            report_plan.PLOT_SVG,
            caption="../report/idsds_plot.rst",
            category="Scores",
            labels={"what": "every method on every model", "kind": "figure"},
        ),
        report_plan.PLOT_PNG,
        report_plan.PLOT_MANIFEST,
    log:
        "results/logs/plot.log",
    resources:
        mem_mb=lambda w, attempt: 2000 * attempt,
        runtime=lambda w, attempt: 30 * attempt,
    params:
        spec=lambda w: spec(report_plan.plot_spec(plan)),
    message:
        "Figure of the scores"
    shell:
        stage("plot")


rule pages:
    input:
        plan.tables(),
    output:
        report(
            report_plan.SCORES_PAGE,
            caption="../report/idsds_table.rst",
            category="Scores",
            labels={"what": "every method on every model", "kind": "page"},
        ),
        report(
            report_plan.RANK_PAGE,
            caption="../report/meta_rank.rst",
            category="Ranking",
            labels={"what": "Meta-Rank over all test cases", "kind": "page"},
        ),
        report(
            report_plan.ACCURACY_PAGE,
            caption="../report/accuracy.rst",
            category="Models",
            labels={"what": "accuracy before and after finetuning", "kind": "page"},
        ),
        report_plan.PAGES_MANIFEST,
    log:
        "results/logs/pages.log",
    resources:
        mem_mb=lambda w, attempt: 2000 * attempt,
        runtime=lambda w, attempt: 30 * attempt,
    params:
        spec=lambda w: spec(report_plan.pages_spec(plan)),
    message:
        "Pages of the tables"
    shell:
        stage("pages")


if report_plan.gallery_images(plan):

    rule gallery:
        input:
            report_plan.gallery_inputs(plan),
        output:
            report(
                report_plan.GALLERY,
                caption="../report/maps.rst",
                category="Maps",
                labels={"what": "the first images under every method", "kind": "page"},
            ),
            report_plan.GALLERY_MANIFEST,
        log:
            "results/logs/gallery.log",
        resources:
            mem_mb=lambda w, attempt: 2000 * attempt,
            runtime=lambda w, attempt: 30 * attempt,
        params:
            spec=lambda w: spec(report_plan.gallery_spec(plan)),
        message:
            "Page of maps"
        shell:
            stage("gallery")
