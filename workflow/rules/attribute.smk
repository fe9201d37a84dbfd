# Attribution maps. A job makes one shard, of all explainers or of one (attribution_jobs in the config).
if plan.model_explainers:

    use rule drops as attribute with:
        input:
            inputs_of("attribute"),
        output:
            outputs_of("attribute"),
        log:
            f"results/logs/attribute/{{dataset}}/{{model}}/{{weights}}/{WHOSE}.{{shard}}.log",
        benchmark:
            benchmark_file("attribute", *NETWORK, *WHO, "shard")
        resources:
            gpu=1,
            mem_mb=per_attempt(8000),
            runtime=per_attempt(240),
        message:
            message_of("attribute")


if plan.reference_explainers:

    use rule drops as attribute_reference with:
        input:
            inputs_of("attribute_reference"),
        output:
            outputs_of("attribute_reference"),
        log:
            f"results/logs/attribute/{{dataset}}/reference/{WHOSE}.{{shard}}.log",
        benchmark:
            benchmark_file("attribute_reference", "dataset", *WHO, "shard")
        resources:
            mem_mb=per_attempt(4000),
            runtime=per_attempt(60),
        message:
            message_of("attribute_reference")
