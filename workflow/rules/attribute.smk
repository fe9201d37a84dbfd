# Attribution maps: a job makes one shard, of all explainers together or of one apart from the others (config).
APART = plan.config["attribution_jobs"] == "apart"
WHOSE = "{explainer}" if APART else "all"


def map_outputs(pattern, explainers):
    if APART:
        return updates(paths.map_files(paths.at(pattern, explainer=explainers), "{shard}"))
    return [f for name in explainers for f in updates(paths.map_files(paths.at(pattern, explainer=name), "{shard}"))]


def attribute_spec(wildcards, explainers):
    w = {"model": None, "weights": None, **dict(wildcards)}
    chosen = [w["explainer"]] if APART else explainers
    return spec(plan.attribute_spec(w["dataset"], w["model"], w["weights"], chosen, int(w["shard"])))


if plan.model_explainers:

    rule attribute:
        input:
            paths.DATASET,
            paths.WEIGHTS,
        output:
            map_outputs(paths.MAPS, plan.model_explainers),
        log:
            f"results/logs/attribute/{{dataset}}/{{model}}/{{weights}}/{WHOSE}.{{shard}}.log",
        params:
            spec=lambda w: attribute_spec(w, plan.model_explainers),
        resources:
            gpu=1,
            mem_mb=lambda w, attempt: 8000 * attempt,
            runtime=lambda w, attempt: 240 * attempt,
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
        params:
            spec=lambda w: attribute_spec(w, plan.reference_explainers),
        resources:
            mem_mb=lambda w, attempt: 4000 * attempt,
            runtime=lambda w, attempt: 60 * attempt,
        message:
            "Reference maps of {wildcards.dataset}, which know no model"
        shell:
            stage("attribute")
