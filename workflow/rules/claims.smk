# The claims card: what published claims come to on this run's scores, from what is cached alone.


rule claims:
    input:
        claims.claims_inputs(plan),
    output:
        report(
            claims.CLAIMS,
            caption="../report/claims.rst",
            category="Claims",
            labels={"what": "which published claims held here", "kind": "table"},
        ),
        claims.CLAIMS_MANIFEST,
    log:
        "results/logs/claims.log",
    conda:
        ENVIRONMENT
    threads: THREADS
    resources:
        mem_mb=lambda w, attempt: 4000 * attempt,
        runtime=lambda w, attempt: 60 * attempt,
    params:
        # A function, as Snakemake would take the patterns in a plain text for its own.
        spec=lambda w: spec(claims.claims_spec(plan)),
    message:
        "Claims card"
    shell:
        stage("claims")


rule believed:
    input:
        plan.score_files(plan.all_cases()),
    output:
        [
            report(
                file,
                caption="../report/belief.rst",
                category="Ranking",
                labels={
                    "what": "how far the ranking can be believed",
                    "kind": "table",
                },
            )
            for file in belief.BELIEF_FILES
        ],
        belief.BELIEF_MANIFEST,
    log:
        "results/logs/believed.log",
    conda:
        ENVIRONMENT
    threads: THREADS
    resources:
        mem_mb=lambda w, attempt: 4000 * attempt,
        runtime=lambda w, attempt: 60 * attempt,
    params:
        spec=lambda w: spec(belief.belief_spec(plan)),
    message:
        "Consistency, stability, reliability, significance"
    shell:
        stage("believed")
