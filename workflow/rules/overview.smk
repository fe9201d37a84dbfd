# All metrics in one picture, from the table of all scores.
use rule score as overview with:
    input:
        reads("overview"),
    output:
        leaves("overview"),
    log:
        "results/logs/overview.log",
    benchmark:
        measured("overview")
    resources:
        mem_mb=grows(4000),
        runtime=grows(30),
    message:
        says("overview")


# The curves behind the scores of a network, from cached responses.
if graph.has("metric_curves"):

    use rule overview as metric_curves with:
        input:
            reads("metric_curves"),
        output:
            leaves("metric_curves"),
        log:
            "results/logs/metric_curves/{dataset}/{model}/{weights}.log",
        benchmark:
            measured("metric_curves", *NETWORK)
        resources:
            mem_mb=grows(8000),
            runtime=grows(60),
        message:
            says("metric_curves")
