# Training where there are no weights, from scratch or from published ones, and in-domain finetuning.
use rule prepare as pretrain with:
    input:
        reads("pretrain"),
    output:
        leaves("pretrain"),
    log:
        "results/logs/pretrain/{dataset}/{model}.log",
    benchmark:
        measured("pretrain", "dataset", "model")
    threads: lambda w: max(THREADS, training_gpus(w))
    resources:
        gpu=training_gpus,
        nodes=1,
        mem_mb=lambda w, attempt: 8000 * attempt * training_gpus(w),
        runtime=grows(240),
    message:
        says("pretrain")


use rule pretrain as finetune with:
    input:
        reads("finetune"),
    output:
        leaves("finetune"),
    log:
        "results/logs/finetune/{dataset}/{model}/{weights}.log",
    benchmark:
        measured("finetune", *NETWORK)
    message:
        says("finetune")


use rule prepare as keep_epoch with:
    input:
        reads("keep_epoch"),
    output:
        leaves("keep_epoch"),
    log:
        "results/logs/keep_epoch/{dataset}/{model}/{weights}.log",
    benchmark:
        measured("keep_epoch", *NETWORK)
    message:
        says("keep_epoch")
