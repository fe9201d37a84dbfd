# Patch drops: once per model, weights, grid and baseline; no map is needed.
use rule prepare as drops with:
    input:
        reads("drops"),
    output:
        updates(paths.drop_files(paths.DROPS, "{shard}")),
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
        "patch drops"
