# Patch drops: once per model, weights, grid and baseline; no map is needed.
rule drops:
    input:
        paths.DATASET,
        paths.WEIGHTS,
    output:
        updates(paths.drop_files(paths.DROPS, "{shard}")),
    log:
        "results/logs/drops/{dataset}/{model}/{weights}/g{grid}_{baseline}.{shard}.log",
    conda:
        ENVIRONMENT
    threads: THREADS
    resources:
        gpu=1,
        mem_mb=lambda w, attempt: 6000 * attempt,
        runtime=lambda w, attempt: 120 * attempt,
    params:
        spec=lambda w: spec(
            plan.drops_spec(
                w.dataset, w.model, w.weights, int(w.grid), w.baseline, int(w.shard)
            )
        ),
    message:
        "Patch drops of {wildcards.model} ({wildcards.weights}) on {wildcards.dataset}, grid {wildcards.grid}, {wildcards.baseline}"
    shell:
        stage("drops")
