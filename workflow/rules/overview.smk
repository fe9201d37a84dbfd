# One figure of all metrics, from the table of all scores.
use rule score as overview with:
    input:
        inputs_of("overview"),
    output:
        outputs_of("overview"),
    log:
        "results/logs/overview.log",
    benchmark:
        benchmark_file("overview")
    resources:
        mem_mb=per_attempt(4000),
        runtime=per_attempt(30),
    message:
        message_of("overview")


# The response curves behind the scores of a network.
if graph.has("metric_curves"):

    use rule overview as metric_curves with:
        input:
            inputs_of("metric_curves"),
        output:
            outputs_of("metric_curves"),
        log:
            "results/logs/metric_curves/{dataset}/{model}/{weights}.log",
        benchmark:
            benchmark_file("metric_curves", *NETWORK)
        resources:
            mem_mb=per_attempt(8000),
            runtime=per_attempt(60),
        message:
            message_of("metric_curves")
