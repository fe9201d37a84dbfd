# Conclusions from scores: the claims of the papers on this run, and the reliability of the ranking.
use rule all_scores as claims with:
    input:
        inputs_of("claims"),
    output:
        outputs_of("claims"),
    log:
        "results/logs/claims.log",
    benchmark:
        benchmark_file("claims")
    message:
        message_of("claims")


use rule all_scores as reliability with:
    input:
        inputs_of("reliability"),
    output:
        outputs_of("reliability"),
    log:
        "results/logs/reliability.log",
    benchmark:
        benchmark_file("reliability")
    message:
        message_of("reliability")


if graph.has("leaderboard"):

    use rule all_scores as leaderboard with:
        input:
            inputs_of("leaderboard"),
        output:
            outputs_of("leaderboard"),
        log:
            "results/logs/leaderboard.log",
        benchmark:
            benchmark_file("leaderboard")
        message:
            message_of("leaderboard")
