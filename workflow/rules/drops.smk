# Patch drops: once per model, weights, grid and baseline; no map is needed.
use rule prepare as drops with:
    input:
        reads("drops"),
    output:
        leaves("drops"),
    log:
        "results/logs/drops/{dataset}/{model}/{weights}/g{grid}_{baseline}.{shard}.log",
    benchmark:
        measured("drops", *NETWORK, "grid", "baseline", "shard")
    threads: THREADS
    resources:
        gpu=1,
        mem_mb=grows(6000),
        runtime=grows(120),
    message:
        says("drops")


# What a lower precision does to scores, on a few images, before anything is made in it.
if graph.has("guard"):

    use rule drops as guard with:
        input:
            reads("guard"),
        output:
            leaves("guard"),
        log:
            "results/logs/precision/{dataset}/{model}/{weights}.log",
        benchmark:
            measured("guard", *NETWORK)
        message:
            says("guard")

    use rule prepare as precision with:
        input:
            reads("precision"),
        output:
            leaves("precision"),
        log:
            "results/logs/precision.log",
        benchmark:
            measured("precision")
        message:
            says("precision")
