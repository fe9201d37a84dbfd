# Training where there are no weights, from scratch or from published ones, and in-domain finetuning.
TUNED = {**results.weights, "kept": results.kept}
TRAINED = TUNED if plan.keep(paths.PRETRAINED) else results.weights


use rule prepare as pretrain with:
    input:
        reads("pretrain"),
    output:
        updates(paths.all_at(TRAINED, weights=paths.PRETRAINED, model=plan.trained())),
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
        "training"


use rule pretrain as finetune with:
    input:
        reads("finetune"),
    output:
        updates(paths.all_at(TUNED, weights=plan.finetuned())),
    log:
        "results/logs/finetune/{dataset}/{model}/{weights}.log",
    benchmark:
        measured("finetune", *NETWORK)
    message:
        "finetuning"


use rule prepare as keep_epoch with:
    input:
        reads("keep_epoch"),
    output:
        paths.all_at(results.weights, weights=plan.kept),
    log:
        "results/logs/keep_epoch/{dataset}/{model}/{weights}.log",
    benchmark:
        measured("keep_epoch", *NETWORK)
    message:
        "weights of one epoch"
