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
