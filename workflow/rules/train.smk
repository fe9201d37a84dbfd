# Training from scratch where there are no weights, and in-domain finetuning.
rule pretrain:
    input:
        paths.DATASET,
    output:
        paths.at(paths.WEIGHTS, weights=paths.PRETRAINED, model=plan.trained()),
        paths.at(paths.HISTORY, weights=paths.PRETRAINED, model=plan.trained()),
    log:
        "results/logs/pretrain/{dataset}/{model}.log",
    params:
        spec=lambda w: spec(plan.pretrain_spec(w.dataset, w.model)),
    resources:
        gpu=1,
        mem_mb=lambda w, attempt: 8000 * attempt,
        runtime=lambda w, attempt: 240 * attempt,
    message:
        "Training {wildcards.model} on {wildcards.dataset}"
    shell:
        stage("pretrain")


rule finetune:
    input:
        paths.DATASET,
        paths.at(paths.WEIGHTS, weights=paths.PRETRAINED),
    output:
        paths.at(paths.WEIGHTS, weights=plan.finetuned()),
        paths.at(paths.HISTORY, weights=plan.finetuned()),
    log:
        "results/logs/finetune/{dataset}/{model}/{weights}.log",
    params:
        spec=lambda w: spec(plan.finetune_spec(w.dataset, w.model, w.weights)),
    resources:
        gpu=1,
        mem_mb=lambda w, attempt: 8000 * attempt,
        runtime=lambda w, attempt: 240 * attempt,
    message:
        "Finetuning {wildcards.model} on {wildcards.dataset} ({wildcards.weights})"
    shell:
        stage("finetune")
