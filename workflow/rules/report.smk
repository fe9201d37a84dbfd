# Figures and pages, from tables and cached maps.
use rule score as plot with:
    input:
        reads("plot"),
    output:
        shown("idsds_plot", paths.PLOT["svg"]),
        paths.PLOT["png"],
        paths.PLOT_MANIFEST,
    log:
        "results/logs/plot.log",
    benchmark:
        measured("plot")
    message:
        "Figure of the scores"


use rule score as pages with:
    input:
        reads("pages"),
    output:
        shown("idsds_table", paths.TABLE_PAGES["idsds_table"]),
        shown("meta_rank", paths.TABLE_PAGES["meta_rank"]),
        shown("accuracy", paths.TABLE_PAGES["accuracy"]),
        paths.PAGES_MANIFEST,
    log:
        "results/logs/pages.log",
    benchmark:
        measured("pages")
    message:
        "Pages of the tables"


if reports.shown_images(plan):

    use rule score as gallery with:
        input:
            reads("gallery"),
        output:
            shown("maps", paths.GALLERY),
            paths.GALLERY_MANIFEST,
        log:
            "results/logs/gallery.log",
        benchmark:
            measured("gallery")
        message:
            "Page of maps"
