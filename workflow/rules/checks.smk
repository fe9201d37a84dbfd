# Protocol checks: under which conventions the order of methods flips; and montages of maps with their scores.
# With memory and time of the table of all scores.
use rule all_scores as checks with:
    input:
        reads("checks"),
    output:
        shown("checks", *paths.CHECKS.values()),
        reports.chart_files(plan),
        paths.CHECKS_MANIFEST,
    log:
        "results/logs/checks.log",
    benchmark:
        measured("checks")
    params:
        spec=told("checks"),
    message:
        "Protocol checks"


if reports.shown_images(plan):

    use rule score as montage with:
        input:
            reads("montage"),
        output:
            shown("montage", *reports.montage_files(plan)),
            paths.MONTAGE_MANIFEST,
        log:
            "results/logs/montage.log",
        benchmark:
            measured("montage")
        resources:
            mem_mb=grows(4000),
            runtime=grows(30),
        params:
            spec=told("montage"),
        message:
            "Montages of maps"
