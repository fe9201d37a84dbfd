# Attribution maps: a job makes one shard, of all explainers together or of one apart from the others (config).
if plan.model_explainers:

    use rule drops as attribute with:
        input:
            reads("attribute"),
        output:
            leaves("attribute"),
        log:
            f"results/logs/attribute/{{dataset}}/{{model}}/{{weights}}/{WHOSE}.{{shard}}.log",
        benchmark:
            measured("attribute", *NETWORK, *WHO, "shard")
        resources:
            gpu=1,
            mem_mb=grows(8000),
            runtime=grows(240),
        message:
            says("attribute")


if plan.reference_explainers:

    use rule drops as attribute_reference with:
        input:
            reads("attribute_reference"),
        output:
            leaves("attribute_reference"),
        log:
            f"results/logs/attribute/{{dataset}}/reference/{WHOSE}.{{shard}}.log",
        benchmark:
            measured("attribute_reference", "dataset", *WHO, "shard")
        resources:
            mem_mb=grows(4000),
            runtime=grows(60),
        message:
            says("attribute_reference")
