# Are deleted patches in domain? Features of intact images and of images without a patch, and what a probe tells apart.
use rule drops as features with:
    input:
        reads("features"),
    output:
        leaves("features"),
    log:
        "results/logs/features/{dataset}/{model}/{weights}/g{grid}_{baseline}.{shard}.log",
    benchmark:
        measured("features", *NETWORK, "grid", "baseline", "shard")
    message:
        says("features")


use rule all_scores as in_domain with:
    input:
        reads("in_domain"),
    output:
        leaves("in_domain"),
    log:
        "results/logs/in_domain.log",
    benchmark:
        measured("in_domain")
    message:
        says("in_domain")
