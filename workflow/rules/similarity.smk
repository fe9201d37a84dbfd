# Whether a finetuned network is similar to the original one: activations of channels, and their comparison.
use rule drops as channels with:
    input:
        inputs_of("channels"),
    output:
        outputs_of("channels"),
    log:
        "results/logs/channels/{dataset}/{model}/{weights}.{shard}.log",
    benchmark:
        benchmark_file("channels", *NETWORK, "shard")
    resources:
        gpu=1,
        mem_mb=per_attempt(6000),
        runtime=per_attempt(60),
    message:
        message_of("channels")


use rule all_scores as similarity with:
    input:
        inputs_of("similarity"),
    output:
        outputs_of("similarity"),
    log:
        "results/logs/similarity.log",
    benchmark:
        benchmark_file("similarity")
    message:
        message_of("similarity")
