# Attribution maps: a job makes one shard, of all explainers together or of one apart from the others (config).
if plan.model_explainers:

    rule attribute:
        input:
            paths.DATASET,
            paths.WEIGHTS,
        output:
            map_outputs(paths.MAPS, plan.model_explainers),
        log:
            f"results/logs/attribute/{{dataset}}/{{model}}/{{weights}}/{WHOSE}.{{shard}}.log",
        conda:
            ENVIRONMENT
        threads: THREADS
        resources:
            gpu=1,
            mem_mb=lambda w, attempt: 8000 * attempt,
            runtime=lambda w, attempt: 240 * attempt,
        params:
            spec=lambda w: attribute_spec(w, plan.model_explainers),
        message:
            "Attribution maps of {wildcards.model} ({wildcards.weights}) on {wildcards.dataset}"
        shell:
            stage("attribute")


if plan.reference_explainers:

    rule attribute_reference:
        input:
            paths.DATASET,
        output:
            map_outputs(paths.REFERENCE_MAPS, plan.reference_explainers),
        log:
            f"results/logs/attribute/{{dataset}}/reference/{WHOSE}.{{shard}}.log",
        conda:
            ENVIRONMENT
        threads: THREADS
        resources:
            mem_mb=lambda w, attempt: 4000 * attempt,
            runtime=lambda w, attempt: 60 * attempt,
        params:
            spec=lambda w: attribute_spec(w, plan.reference_explainers),
        message:
            "Reference maps of {wildcards.dataset}, which know no model"
        shell:
            stage("attribute")
