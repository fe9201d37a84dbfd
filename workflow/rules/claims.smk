# What the scores come to: the papers' claims on this run, and how far the ranking can be believed.
use rule all_scores as claims with:
    input:
        reads("claims"),
    output:
        leaves("claims"),
    log:
        "results/logs/claims.log",
    benchmark:
        measured("claims")
    message:
        says("claims")


use rule all_scores as reliability with:
    input:
        reads("reliability"),
    output:
        leaves("reliability"),
    log:
        "results/logs/reliability.log",
    benchmark:
        measured("reliability")
    message:
        says("reliability")


if graph.has("leaderboard"):

    use rule all_scores as leaderboard with:
        input:
            reads("leaderboard"),
        output:
            leaves("leaderboard"),
        log:
            "results/logs/leaderboard.log",
        benchmark:
            measured("leaderboard")
        message:
            says("leaderboard")
