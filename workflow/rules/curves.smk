# Responses of the networks to perturbed images, for all metrics but those of the patch drops; no score is made here.
if plan.method_responses and plan.explainers:

    use rule drops as curves with:
        input:
            reads("curves"),
        output:
            leaves("curves"),
        log:
            f"results/logs/curves/{{dataset}}/{{model}}/{{weights}}/{{response}}/{WHOSE}.{{shard}}.log",
        benchmark:
            measured("curves", *NETWORK, *WHO, "response", "shard")
        resources:
            gpu=1,
            mem_mb=grows(8000),
            runtime=grows(480),
        message:
            says("curves")


if plan.model_responses:

    use rule drops as subsets with:
        input:
            reads("subsets"),
        output:
            leaves("subsets"),
        log:
            "results/logs/subsets/{dataset}/{model}/{weights}/{response}.{shard}.log",
        benchmark:
            measured("subsets", *NETWORK, "response", "shard")
        resources:
            gpu=1,
            mem_mb=grows(6000),
            runtime=grows(240),
        message:
            says("subsets")


if plan.reads_parts:

    use rule drops as parts with:
        input:
            reads("parts"),
        output:
            leaves("parts"),
        log:
            "results/logs/parts/{dataset}/{model}/{weights}.{shard}.log",
        benchmark:
            measured("parts", *NETWORK, "shard")
        message:
            says("parts")
