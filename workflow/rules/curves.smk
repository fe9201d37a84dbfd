# Responses of the networks to perturbed images, for all metrics but those of the patch drops; no score is made here.
CURVES = list(plan.explainers) if plan.method_responses else []

if CURVES:

    rule curves:
        input:
            paths.DATASET,
            paths.WEIGHTS,
            lambda w: plan.curve_inputs(
                (w.dataset, w.model, w.weights), w.get("explainer"), w.shard
            ),
        output:
            curve_outputs(CURVES),
        log:
            f"results/logs/curves/{{dataset}}/{{model}}/{{weights}}/{{response}}/{WHOSE}.{{shard}}.log",
        conda:
            ENVIRONMENT
        threads: THREADS
        resources:
            gpu=1,
            mem_mb=lambda w, attempt: 8000 * attempt,
            runtime=lambda w, attempt: 480 * attempt,
        params:
            spec=lambda w: spec(
                plan.curves_spec(
                    w.dataset,
                    w.model,
                    w.weights,
                    [w.explainer] if APART else CURVES,
                    w.response,
                    int(w.shard),
                )
            ),
        message:
            "Responses to {wildcards.response} of {wildcards.model} ({wildcards.weights}) on {wildcards.dataset}"
        shell:
            stage("curves")


if plan.model_responses:

    rule subsets:
        input:
            paths.DATASET,
            paths.WEIGHTS,
        output:
            updates(
                paths.subset_files(
                    paths.at(paths.SUBSETS, response=list(plan.model_responses)),
                    "{shard}",
                )
            ),
        log:
            "results/logs/subsets/{dataset}/{model}/{weights}/{response}.{shard}.log",
        conda:
            ENVIRONMENT
        threads: THREADS
        resources:
            gpu=1,
            mem_mb=lambda w, attempt: 6000 * attempt,
            runtime=lambda w, attempt: 240 * attempt,
        params:
            spec=lambda w: spec(
                plan.subsets_spec(
                    w.dataset, w.model, w.weights, w.response, int(w.shard)
                )
            ),
        message:
            "Random subsets for {wildcards.model} ({wildcards.weights}) on {wildcards.dataset}"
        shell:
            stage("subsets")


if plan.reads_parts:

    rule parts:
        input:
            paths.DATASET,
            paths.WEIGHTS,
        output:
            updates(paths.part_files(paths.PARTS, "{shard}")),
        log:
            "results/logs/parts/{dataset}/{model}/{weights}.{shard}.log",
        conda:
            ENVIRONMENT
        threads: THREADS
        resources:
            gpu=1,
            mem_mb=lambda w, attempt: 6000 * attempt,
            runtime=lambda w, attempt: 120 * attempt,
        params:
            spec=lambda w: spec(
                plan.parts_spec(w.dataset, w.model, w.weights, int(w.shard))
            ),
        message:
            "Images without a part for {wildcards.model} ({wildcards.weights}) on {wildcards.dataset}"
        shell:
            stage("parts")
