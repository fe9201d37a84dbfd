# Protocol checks: under which conventions the order of methods flips; and montages of maps with their scores.
use rule all_scores as checks with:
    input:
        reads("checks"),
    output:
        leaves("checks"),
    log:
        "results/logs/checks.log",
    benchmark:
        measured("checks")
    message:
        says("checks")


if graph.has("montage"):

    use rule overview as montage with:
        input:
            reads("montage"),
        output:
            leaves("montage"),
        log:
            "results/logs/montage.log",
        benchmark:
            measured("montage")
        message:
            says("montage")


# Made where it is named: one image's maps in the order of each metric.
if graph.has("sorting"):

    use rule overview as sorting with:
        input:
            reads("sorting"),
        output:
            leaves("sorting"),
        log:
            "results/logs/sorting.log",
        benchmark:
            measured("sorting")
        message:
            says("sorting")
