# All metrics in one picture, from the table of all scores.
use rule score as overview with:
    input:
        reads("overview"),
    output:
        leaves("overview"),
    log:
        "results/logs/overview.log",
    benchmark:
        measured("overview")
    resources:
        mem_mb=grows(4000),
        runtime=grows(30),
    message:
        says("overview")
