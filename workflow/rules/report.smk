# Figures and pages, from tables and cached maps.
use rule score as figure with:
    input:
        reads("figure"),
    output:
        leaves("figure"),
    log:
        "results/logs/figure/{figure}.log",
    benchmark:
        measured("figure", "figure")
    message:
        says("figure")


# The index page: tables, maps, curves and where each number is from, in one file; and all maps beside each other.
use rule overview as report_page with:
    input:
        reads("report_page"),
    output:
        leaves("report_page"),
    log:
        "results/logs/report_page.log",
    benchmark:
        measured("report_page")
    message:
        says("report_page")
