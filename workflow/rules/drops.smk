# Patch drops, once for each network, grid and baseline. They do not depend on attribution maps.
use rule prepare as drops with:
    input:
        inputs_of("drops"),
    output:
        outputs_of("drops"),
    log:
        "results/logs/drops/{dataset}/{model}/{weights}/g{grid}_{baseline}.{shard}.log",
    benchmark:
        benchmark_file("drops", *NETWORK, "grid", "baseline", "shard")
    threads: THREADS
    resources:
        gpu=1,
        mem_mb=per_attempt(6000),
        runtime=per_attempt(120),
    message:
        message_of("drops")


# The precision guard: the effect of a lower precision on scores, on a few images, before the precision is used.
if graph.has("guard"):

    use rule drops as guard with:
        input:
            inputs_of("guard"),
        output:
            outputs_of("guard"),
        log:
            "results/logs/precision/{dataset}/{model}/{weights}.log",
        benchmark:
            benchmark_file("guard", *NETWORK)
        message:
            message_of("guard")

    use rule prepare as precision with:
        input:
            inputs_of("precision"),
        output:
            outputs_of("precision"),
        log:
            "results/logs/precision.log",
        benchmark:
            benchmark_file("precision")
        message:
            message_of("precision")
