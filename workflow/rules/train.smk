# Training where there are no weights, from scratch or from published ones, and in-domain finetuning.
rule pretrain:
    input:
        reads("pretrain"),
    output:
        updates(
            paths.at(pattern, weights=paths.PRETRAINED, model=plan.trained())
            for pattern in paths.WEIGHTS_FILES.values()
        ),
    log:
        "results/logs/pretrain/{dataset}/{model}.log",
    benchmark:
        measured("pretrain", "dataset", "model")
    conda:
        ENVIRONMENT
    threads: training_threads
    resources:
        gpu=training_gpus,
        nodes=1,
        mem_mb=training_memory,
        runtime=grows(240),
    params:
        spec=told("pretrain"),
    message:
        "Training {wildcards.model} on {wildcards.dataset}"
    shell:
        RUN


use rule pretrain as finetune with:
    input:
        reads("finetune"),
    output:
        updates(
            paths.at(pattern, weights=plan.finetuned())
            for pattern in (*paths.WEIGHTS_FILES.values(), paths.KEPT)
        ),
    log:
        "results/logs/finetune/{dataset}/{model}/{weights}.log",
    benchmark:
        measured("finetune", *NETWORK)
    params:
        spec=told("finetune"),
    message:
        "Finetuning {wildcards.model} on {wildcards.dataset} ({wildcards.weights})"


use rule prepare as keep_epoch with:
    input:
        reads("keep_epoch"),
    output:
        [
            paths.at(pattern, weights=list(plan.kept))
            for pattern in paths.WEIGHTS_FILES.values()
        ],
    log:
        "results/logs/keep_epoch/{dataset}/{model}/{weights}.log",
    benchmark:
        measured("keep_epoch", *NETWORK)
    params:
        spec=told("keep_epoch"),
    message:
        "Taking {wildcards.weights} out of the finetuning of {wildcards.model} on {wildcards.dataset}"
