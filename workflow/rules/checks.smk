# Protocol checks (which conventions change the order of methods), and montages of maps with their scores.
use rule all_scores as checks with:
    input:
        inputs_of("checks"),
    output:
        outputs_of("checks"),
    log:
        "results/logs/checks.log",
    benchmark:
        benchmark_file("checks")
    message:
        message_of("checks")


if graph.has("montage"):

    use rule overview as montage with:
        input:
            inputs_of("montage"),
        output:
            outputs_of("montage"),
        log:
            "results/logs/montage.log",
        benchmark:
            benchmark_file("montage")
        message:
            message_of("montage")


# Made only if requested: the maps of one image in the order of each metric.
if graph.has("sorting"):

    use rule overview as sorting with:
        input:
            inputs_of("sorting"),
        output:
            outputs_of("sorting"),
        log:
            "results/logs/sorting.log",
        benchmark:
            benchmark_file("sorting")
        message:
            message_of("sorting")
