# Is a finetuned network still the one that was to be explained? What channels answer to, and the comparison.
use rule drops as channels with:
    input:
        reads("channels"),
    output:
        leaves("channels"),
    log:
        "results/logs/channels/{dataset}/{model}/{weights}.{shard}.log",
    benchmark:
        measured("channels", *NETWORK, "shard")
    resources:
        gpu=1,
        mem_mb=grows(6000),
        runtime=grows(60),
    message:
        says("channels")


use rule all_scores as similarity with:
    input:
        reads("similarity"),
    output:
        leaves("similarity"),
    log:
        "results/logs/similarity.log",
    benchmark:
        measured("similarity")
    message:
        says("similarity")
