# What the scores come to: the papers' claims on this run, and how far the ranking can be believed.
use rule all_scores as claims with:
    input:
        reads("claims"),
    output:
        shown("claims", paths.CLAIMS, *paths.PUBLISHED.values(), paths.CLAIMS_MANIFEST),
    log:
        "results/logs/claims.log",
    benchmark:
        measured("claims")
    message:
        "claims"


use rule all_scores as reliability with:
    input:
        reads("reliability"),
    output:
        shown("belief", *paths.RELIABILITY.values(), *paths.RELIABILITY_PNG.values()),
        paths.RELIABILITY_MANIFEST,
    log:
        "results/logs/reliability.log",
    benchmark:
        measured("reliability")
    message:
        "consistency, stability, reliability and significance of the ranking"
