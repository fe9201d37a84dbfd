# Trainings from scratch or from published weights, and in-domain finetuning.
use rule prepare as pretrain with:
    input:
        inputs_of("pretrain"),
    output:
        outputs_of("pretrain"),
    log:
        "results/logs/pretrain/{dataset}/{model}.log",
    benchmark:
        benchmark_file("pretrain", "dataset", "model")
    threads: lambda w: max(THREADS, training_gpus(w))
    resources:
        gpu=training_gpus,
        nodes=1,
        mem_mb=lambda w, attempt: 8000 * attempt * training_gpus(w),
        runtime=per_attempt(240),
    message:
        message_of("pretrain")


use rule pretrain as finetune with:
    input:
        inputs_of("finetune"),
    output:
        outputs_of("finetune"),
    log:
        "results/logs/finetune/{dataset}/{model}/{weights}.log",
    benchmark:
        benchmark_file("finetune", *NETWORK)
    message:
        message_of("finetune")


use rule prepare as keep_epoch with:
    input:
        inputs_of("keep_epoch"),
    output:
        outputs_of("keep_epoch"),
    log:
        "results/logs/keep_epoch/{dataset}/{model}/{weights}.log",
    benchmark:
        benchmark_file("keep_epoch", *NETWORK)
    message:
        message_of("keep_epoch")
