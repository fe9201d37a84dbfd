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
