# Is a finetuned network still the one that was to be explained? What channels answer to, and the comparison.
rule channels:
    input:
        paths.DATASET,
        paths.WEIGHTS,
    output:
        updates(paths.channel_files(paths.CHANNELS, "{shard}")),
    log:
        "results/logs/channels/{dataset}/{model}/{weights}.{shard}.log",
    conda:
        ENVIRONMENT
    threads: THREADS
    resources:
        gpu=1,
        mem_mb=lambda w, attempt: 6000 * attempt,
        runtime=lambda w, attempt: 60 * attempt,
    params:
        spec=lambda w: spec(
            alike.channels_spec(plan, w.dataset, w.model, w.weights, int(w.shard))
        ),
    message:
        "Channels of {wildcards.model} ({wildcards.weights}) on {wildcards.dataset}"
    shell:
        stage("channels")


rule similarity:
    input:
        alike.similarity_inputs(plan),
    output:
        [
            report(
                file,
                caption="../report/similarity.rst",
                category="Networks",
                labels={"what": "networks before and after finetuning"},
            )
            for file in alike.SIMILARITY_FILES
        ],
        alike.SIMILARITY_MANIFEST,
    log:
        "results/logs/similarity.log",
    conda:
        ENVIRONMENT
    threads: THREADS
    resources:
        mem_mb=lambda w, attempt: 4000 * attempt,
        runtime=lambda w, attempt: 60 * attempt,
    params:
        # A function, as Snakemake would take the patterns in a plain text for its own.
        spec=lambda w: spec(alike.similarity_spec(plan)),
    message:
        "Networks before and after finetuning"
    shell:
        stage("similarity")
