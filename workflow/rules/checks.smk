# Protocol checks: under which conventions the order of methods flips; and montages of maps with their scores.
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
    message:
        "protocol checks"


if reports.shown_images(plan):

    use rule overview as montage with:
        input:
            reads("montage"),
        output:
            shown("montage", *reports.montage_files(plan), paths.MONTAGE_MANIFEST),
        log:
            "results/logs/montage.log",
        benchmark:
            measured("montage")
        message:
            "montages of maps"
