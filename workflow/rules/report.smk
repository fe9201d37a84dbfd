# Figures and pages, from tables and cached maps.
use rule score as figure with:
    input:
        inputs_of("figure"),
    output:
        outputs_of("figure"),
    log:
        "results/logs/figure/{figure}.log",
    benchmark:
        benchmark_file("figure", "figure")
    message:
        message_of("figure")


# The index page with tables, maps, curves and the provenance of each number in one file, and the page with all maps.
use rule overview as report_page with:
    input:
        inputs_of("report_page"),
    output:
        outputs_of("report_page"),
    log:
        "results/logs/report_page.log",
    benchmark:
        benchmark_file("report_page")
    message:
        message_of("report_page")
