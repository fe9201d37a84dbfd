# Responses of networks to perturbed images, for all metrics except single deletion. Scores are computed from them
# later.
if plan.method_responses and plan.explainers:

    use rule drops as curves with:
        input:
            inputs_of("curves"),
        output:
            outputs_of("curves"),
        log:
            f"results/logs/curves/{{dataset}}/{{model}}/{{weights}}/{{response}}/{WHOSE}.{{shard}}.log",
        benchmark:
            benchmark_file("curves", *NETWORK, *WHO, "response", "shard")
        resources:
            gpu=1,
            mem_mb=per_attempt(8000),
            runtime=per_attempt(480),
        message:
            message_of("curves")


if plan.model_responses:

    use rule drops as subsets with:
        input:
            inputs_of("subsets"),
        output:
            outputs_of("subsets"),
        log:
            "results/logs/subsets/{dataset}/{model}/{weights}/{response}.{shard}.log",
        benchmark:
            benchmark_file("subsets", *NETWORK, "response", "shard")
        resources:
            gpu=1,
            mem_mb=per_attempt(6000),
            runtime=per_attempt(240),
        message:
            message_of("subsets")


if plan.part_metrics:

    use rule drops as parts with:
        input:
            inputs_of("parts"),
        output:
            outputs_of("parts"),
        log:
            "results/logs/parts/{dataset}/{model}/{weights}.{shard}.log",
        benchmark:
            benchmark_file("parts", *NETWORK, "shard")
        message:
            message_of("parts")
