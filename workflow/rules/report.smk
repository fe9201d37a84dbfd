# Figures and pages, from tables and cached maps.
use rule score as figure with:
    input:
        reads("figure"),
    output:
        shown("figure", paths.FIGURE_FILES["svg"]),
        paths.FIGURE_FILES["png"],
        paths.FIGURE_MANIFEST,
    log:
        "results/logs/figure/{figure}.log",
    benchmark:
        measured("figure", "figure")
    message:
        "figure"


# The index page: tables, maps, curves and where each number is from, in one file; and all maps beside each other.
use rule overview as report_page with:
    input:
        reads("report_page"),
    output:
        shown("index", paths.PAGE),
        shown("maps", *reports.page_files(plan)[1:]),
        paths.PAGE_MANIFEST,
    log:
        "results/logs/report_page.log",
    benchmark:
        measured("report_page")
    message:
        "index page"
