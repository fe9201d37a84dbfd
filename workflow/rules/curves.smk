# Responses of the networks to perturbed images, for all metrics but those of the patch drops; no score is made here.
if plan.method_responses and plan.explainers:

    use rule drops as curves with:
        input:
            reads("curves"),
        output:
            of_explainers(
                paths.at(results.store("curves"), response=plan.method_responses),
                paths.curve_files,
                plan.explainers,
            ),
        log:
            f"results/logs/curves/{{dataset}}/{{model}}/{{weights}}/{{response}}/{WHOSE}.{{shard}}.log",
        benchmark:
            measured("curves", *NETWORK, *WHO, "response", "shard")
        resources:
            gpu=1,
            mem_mb=grows(8000),
            runtime=grows(480),
        message:
            "response curves"


if plan.model_responses:

    use rule drops as subsets with:
        input:
            reads("subsets"),
        output:
            updates(
                paths.subset_files(
                    paths.at(results.store("subsets"), response=plan.model_responses),
                    "{shard}",
                )
            ),
        log:
            "results/logs/subsets/{dataset}/{model}/{weights}/{response}.{shard}.log",
        benchmark:
            measured("subsets", *NETWORK, "response", "shard")
        resources:
            gpu=1,
            mem_mb=grows(6000),
            runtime=grows(240),
        message:
            "responses that need no map"


if plan.reads_parts:

    use rule drops as parts with:
        input:
            reads("parts"),
        output:
            updates(paths.part_files(results.store("parts"), "{shard}")),
        log:
            "results/logs/parts/{dataset}/{model}/{weights}.{shard}.log",
        benchmark:
            measured("parts", *NETWORK, "shard")
        message:
            "responses without each part"
