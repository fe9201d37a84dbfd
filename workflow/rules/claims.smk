# What the scores come to: the papers' claims on this run, and how far the ranking can be believed.
use rule score as claims with:
    input:
        reads("claims"),
    output:
        shown("claims", paths.CLAIMS),
        paths.CLAIMS_MANIFEST,
    log:
        "results/logs/claims.log",
    benchmark:
        measured("claims")
    resources:
        mem_mb=grows(4000),
        runtime=grows(60),
    params:
        spec=told("claims"),
    message:
        "claims"


use rule score as believed with:
    input:
        reads("believed"),
    output:
        shown("belief", *paths.RELIABILITY.values(), *paths.RELIABILITY_PNG.values()),
        paths.RELIABILITY_MANIFEST,
    log:
        "results/logs/believed.log",
    benchmark:
        measured("believed")
    resources:
        mem_mb=grows(4000),
        runtime=grows(60),
    params:
        spec=told("believed"),
    message:
        "consistency, stability, reliability and significance of the ranking"
