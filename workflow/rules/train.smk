# Training where there are no weights, from scratch or from published ones, and in-domain finetuning.
rule pretrain:
    input:
        paths.DATASET,
        start=lambda w: plan.start_file(w.model),
    output:
        updates(
            paths.at(pattern, weights=paths.PRETRAINED, model=plan.trained())
            for pattern in paths.WEIGHTS_FILES
        ),
    log:
        "results/logs/pretrain/{dataset}/{model}.log",
    conda:
        ENVIRONMENT
    threads: lambda w: max(THREADS, plan.training_devices(w.model, paths.PRETRAINED))
    resources:
        gpu=lambda w: plan.training_devices(w.model, paths.PRETRAINED),
        nodes=1,
        mem_mb=lambda w, attempt: 8000
        * attempt
        * plan.training_devices(w.model, paths.PRETRAINED),
        runtime=lambda w, attempt: 240 * attempt,
    params:
        spec=lambda w: spec(plan.pretrain_spec(w.dataset, w.model)),
    message:
        "Training {wildcards.model} on {wildcards.dataset}"
    shell:
        stage("pretrain")


rule finetune:
    input:
        paths.DATASET,
        paths.at(paths.WEIGHTS, weights=paths.PRETRAINED),
    output:
        updates(
            paths.at(pattern, weights=plan.finetuned())
            for pattern in (*paths.WEIGHTS_FILES, paths.KEPT)
        ),
    log:
        "results/logs/finetune/{dataset}/{model}/{weights}.log",
    conda:
        ENVIRONMENT
    threads: lambda w: max(THREADS, plan.training_devices(w.model, w.weights))
    resources:
        gpu=lambda w: plan.training_devices(w.model, w.weights),
        nodes=1,
        mem_mb=lambda w, attempt: 8000
        * attempt
        * plan.training_devices(w.model, w.weights),
        runtime=lambda w, attempt: 240 * attempt,
    params:
        spec=lambda w: spec(plan.finetune_spec(w.dataset, w.model, w.weights)),
    message:
        "Finetuning {wildcards.model} on {wildcards.dataset} ({wildcards.weights})"
    shell:
        stage("finetune")


rule keep_epoch:
    input:
        lambda w: plan.kept_inputs(w.dataset, w.model, w.weights),
    output:
        [paths.at(pattern, weights=list(plan.kept)) for pattern in paths.WEIGHTS_FILES],
    log:
        "results/logs/keep_epoch/{dataset}/{model}/{weights}.log",
    conda:
        ENVIRONMENT
    params:
        spec=lambda w: spec(plan.kept_spec(w.dataset, w.model, w.weights)),
    message:
        "Taking {wildcards.weights} out of the finetuning of {wildcards.model} on {wildcards.dataset}"
    shell:
        stage("keep_epoch")
