# Whether deleted patches are in the domain of a network: features of intact images and of images without a patch, and
# how well a probe distinguishes them.
use rule drops as features with:
    input:
        inputs_of("features"),
    output:
        outputs_of("features"),
    log:
        "results/logs/features/{dataset}/{model}/{weights}/g{grid}_{baseline}.{shard}.log",
    benchmark:
        benchmark_file("features", *NETWORK, "grid", "baseline", "shard")
    message:
        message_of("features")


use rule all_scores as in_domain with:
    input:
        inputs_of("in_domain"),
    output:
        outputs_of("in_domain"),
    log:
        "results/logs/in_domain.log",
    benchmark:
        benchmark_file("in_domain")
    message:
        message_of("in_domain")
