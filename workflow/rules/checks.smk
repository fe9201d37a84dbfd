# Protocol checks: under which conventions the order of methods flips; and montages of maps with their scores.


rule checks:
    input:
        checks.check_inputs(plan),
    output:
        report(
            checks.CHECKS_PAGE,
            caption="../report/checks.rst",
            category="Protocol checks",
            labels={
                "what": "under which conventions the order flips",
                "kind": "page",
            },
        ),
        [
            report(
                file,
                caption="../report/checks.rst",
                category="Protocol checks",
                labels={
                    "what": "how every two levels of a convention rank",
                    "kind": "table",
                },
            )
            for file in (checks.SUMMARY, checks.METHODS, checks.CAPTIONS)
        ],
        checks.figure_files(plan),
        checks.CHECKS_MANIFEST,
    log:
        "results/logs/checks.log",
    conda:
        ENVIRONMENT
    threads: THREADS
    resources:
        mem_mb=lambda w, attempt: 4000 * attempt,
        runtime=lambda w, attempt: 60 * attempt,
    params:
        # A function, as Snakemake would take the patterns in a plain text for its own.
        spec=lambda w: spec(checks.checks_spec(plan)),
    message:
        "Protocol checks"
    shell:
        stage("checks")


if checks.montage_images(plan):

    rule montage:
        input:
            checks.montage_inputs(plan),
        output:
            [
                report(
                    file,
                    caption="../report/montage.rst",
                    category="Maps",
                    labels={
                        "what": "maps of every method, best first",
                        "kind": "figure",
                    },
                )
                for file in checks.montage_files(plan)
            ],
            checks.MONTAGE_MANIFEST,
        log:
            "results/logs/montage.log",
        conda:
            ENVIRONMENT
        threads: THREADS
        resources:
            mem_mb=lambda w, attempt: 4000 * attempt,
            runtime=lambda w, attempt: 30 * attempt,
        params:
            spec=lambda w: spec(checks.montage_spec(plan, figures.shown_methods(plan))),
        message:
            "Montages of maps"
        shell:
            stage("montage")
