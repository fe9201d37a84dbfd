# The index page: tables, maps, curves and where each number is from, in one file.
use rule score as report_page with:
    input:
        reads("report_page"),
    output:
        shown("index", paths.PAGE),
        paths.PAGE_MANIFEST,
    log:
        "results/logs/report_page.log",
    benchmark:
        measured("report_page")
    resources:
        mem_mb=grows(4000),
        runtime=grows(30),
    params:
        spec=told("report_page"),
    message:
        "index page"
