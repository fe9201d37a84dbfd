# The index page: tables, maps, curves and where each number is from, in one file.
use rule overview as report_page with:
    input:
        reads("report_page"),
    output:
        shown("index", paths.PAGE),
        paths.PAGE_MANIFEST,
    log:
        "results/logs/report_page.log",
    benchmark:
        measured("report_page")
    message:
        "The index page"
