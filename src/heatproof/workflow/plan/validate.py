"""Build the plan of a config, and check the config against everything that it names before any job starts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from heatproof.core.grids import divides, format_grid, grid_remedy, grid_sort_key, square_grids
from heatproof.core.options import height_and_width
from heatproof.core.perturb.baselines import BASELINES, register_baselines
from heatproof.core.registry import import_callable, is_reference, load_plugins, look_up, suggest_name
from heatproof.core.specs import PRETRAINED
from heatproof.core.tasks import EXCLUSIVE, LOSSES, TASK_NAMES, task_provides
from heatproof.datasets.registry import DATASETS
from heatproof.datasets.rows import as_rows
from heatproof.errors import HeatproofError
from heatproof.models.registry import ARCHITECTURES
from heatproof.workflow.config.files import unset_counts
from heatproof.workflow.config.schema import normalise, shorten_baseline_names
from heatproof.workflow.plan.plan import Plan
from heatproof.workflow.plan.resolve import ModelChoice


def make_plan(config: Mapping[str, Any]) -> Plan:
    """Check a config, and return its plan.

    Raises
    ------
    HeatproofError
        A sentence about the first error.
    """
    custom_baselines: dict[str, None] = {}
    checked = shorten_baseline_names(normalise(config), custom_baselines)
    plan = Plan({**checked, "plugins": load_plugins(checked["plugins"]), "own_baselines": list(custom_baselines)})
    register_baselines(custom_baselines)
    _ = plan.explainers, plan.methods, plan.metrics
    for name, settings in plan.config["weights"].items():
        if name == PRETRAINED and settings:
            raise HeatproofError("The weights 'pretrained' take no settings: `pretraining` says how they are made.")
        if name != PRETRAINED and not settings and get_close_matches(name, [PRETRAINED], cutoff=0.7):
            raise HeatproofError(
                f"The weights {name!r} would be finetuned like `finetuned`: did you mean {PRETRAINED!r}? Any other "
                "name is a custom one."
            )
    for entry in plan.models.values():
        _check_preprocessing(entry)
    finetunings = [plan.finetuning(model, weights) or {} for model in plan.models for weights in plan.weights]
    for name in [*plan.baselines, *(settings["baseline"] for settings in finetunings if settings)]:
        look_up(BASELINES, name, "baseline")
    _check_tasks(plan)
    _check_saved_epochs(plan)
    _check_devices(plan)
    _check_patch_sums(plan)
    for dataset, model in plan.pairs():
        _check_grids(plan, dataset, model)
    for dataset in plan.datasets:
        if not plan.models_of(dataset):
            raise HeatproofError(f"No model is for the dataset {dataset!r}: name it in a model's `datasets`.")
        _check_trained(plan, dataset)
        _check_parts(plan, dataset)
    _check_leaderboard(plan)
    return _with_counts(plan, unset_counts(config))


def _check_leaderboard(plan: Plan) -> None:
    """Raise an error if the leaderboard names metrics or methods that the config does not have."""
    leaderboard = plan.config["leaderboard"]
    if not leaderboard["metrics"]:
        return
    for key, allowed in (("metrics", plan.metric_names()), ("methods", plan.methods)):
        for name in leaderboard[key]:
            if name not in allowed:
                raise HeatproofError(
                    f"leaderboard.{key} names {name!r}, and the config has no such {key.removesuffix('s')}: "
                    f"{suggest_name(name, allowed)}"
                )
    if len(leaderboard["methods"]) == 1:
        raise HeatproofError(
            f"leaderboard.methods names {leaderboard['methods'][0]!r} alone: name two methods or more."
        )


def _check_preprocessing(model: ModelChoice) -> None:
    """Raise an error if a user's architecture has published weights without the preprocessing of their training."""
    ready = model.checkpoint or not model.pretraining["epochs"]
    missing = [key for key in ("mean", "std") if key not in model.stated]
    if is_reference(model.architecture) and ready and missing:
        raise HeatproofError(
            f"The model {model.name!r} brings weights and does not say {' and '.join(missing)}: give the channel means "
            "and deviations with which they were trained, for images in [0, 1], such as mean: [0.485, 0.456, 0.406] "
            "and std: [0.229, 0.224, 0.225] of ImageNet."
        )


def _check_trained(plan: Plan, dataset: str) -> None:
    """Raise an error if a model is to be trained on a dataset whose images are all for evaluation."""
    trained = [model for model, _ in plan.trainings() if model in plan.models_of(dataset)]
    if trained and plan.datasets[dataset]["options"].get("evaluation") == 1:
        raise HeatproofError(
            f"All images of the dataset {dataset!r} are for evaluation, and the model {trained[0]!r} is to be "
            "trained or finetuned on it: lower its share `evaluation`, or give the model a checkpoint and leave all "
            "`weights` but pretrained out."
        )


def _check_tasks(plan: Plan) -> None:
    """Raise an error for settings that need classes on a task without them, and for losses of another task."""
    for dataset in plan.datasets:
        task = plan.task_of(dataset)
        if not task_provides(task, "decision"):
            for key, value in _keys_for_classes(plan, dataset):
                why = f"and {TASK_NAMES[task]} gives a number alone"
                raise HeatproofError(
                    f"{key} is {value}, which needs classes, {why}"
                    f"{'' if plan.target_function else f' (the task of {dataset!r})'}: leave it out."
                )
        for model, weights in plan.trainings():
            if model not in plan.models_of(dataset):
                continue
            settings, training_task = plan.training(model, weights), plan.training_task(dataset, model, weights)
            loss = settings["loss"]
            if loss not in ("auto", *LOSSES[training_task]):
                raise HeatproofError(
                    f"The {weights} weights of {model!r} are trained with loss: {loss} on {dataset!r}, and what is "
                    f"learnt is {TASK_NAMES[training_task]}: leave loss out, or set it to "
                    f"{' or '.join(LOSSES[training_task])}."
                )
            if settings["label_smoothing"] and not task_provides(training_task, "decision"):
                raise HeatproofError(
                    f"The {weights} weights of {model!r} are trained with label_smoothing on {dataset!r}, and numbers "
                    "are learnt: leave it out."
                )


def _keys_for_classes(plan: Plan, dataset: str) -> Iterator[tuple[str, Any]]:
    """Yield the keys of a config, with their values, that need classes."""
    config = plan.config
    for key in ("only_correct", "balanced"):
        if config["evaluation"][key]:
            yield f"evaluation.{key}", "true"
    if config["target"] == "predicted":
        yield "target", "predicted"
    if config["attribution"]["output"] == "probability":
        yield "attribution.output", "probability"
    if "probability" in config["drops"]["outputs"]:
        yield "drops.outputs", config["drops"]["outputs"]
    for model in plan.models_of(dataset):
        if (expected := plan.models[model].expected_accuracy) is not None:
            yield f"expected_accuracy of the model {model!r}", expected


def _check_saved_epochs(plan: Plan) -> None:
    if plan.config["pretraining"]["keep"] and PRETRAINED not in plan.config["weights"]:
        raise HeatproofError(
            "pretraining.keep names epochs, and `pretrained` is not among the weights that are scored: add it there, "
            "or leave `keep` out."
        )
    for weights, (entry, epoch) in plan.saved_epochs.items():
        for model in plan.models:
            if entry == PRETRAINED and model in plan.fetched_models():
                raise HeatproofError(
                    f"pretraining.keep names epoch {epoch}, and the model {model!r} has a checkpoint and is not "
                    "trained here: leave `keep` out, or give this model a config of its own."
                )
            subject, trained = f"The weights {entry!r} keep", "finetuned"
            if entry == PRETRAINED:
                subject, trained = "pretraining.keep names", "trained"
            if epoch > (epochs := plan.training(model, weights)["epochs"]):
                raise HeatproofError(
                    f"{subject} epoch {epoch}, and the model {model!r} is {trained} for {epochs}: keep earlier ones, "
                    "or raise the epochs."
                )


def _check_devices(plan: Plan) -> None:
    for model, weights in plan.trainings():
        settings = plan.training(model, weights)
        if settings["devices"] > 1 and settings["batch_size"] < 2 * settings["devices"]:
            raise HeatproofError(
                f"The {weights} weights of {model!r} are trained on devices: {settings['devices']} with batch_size: "
                f"{settings['batch_size']}, and each device needs two images: raise the batch_size, or lower devices."
            )


def _check_patch_sums(plan: Plan) -> None:
    """Raise an error if something reads maps of pixels, and stores have only sums over patches."""
    if plan.config["attribution"]["stored_as"] != "patch_sums":
        return
    if len(plan.config["drops"]["grids"]) > 1:
        raise HeatproofError(
            f"attribution.stored_as is patch_sums, and drops has the grids {plan.config['drops']['grids']}: name one "
            "grid, or store the maps as float32 or float16."
        )
    for name, entry in plan.metrics.items():
        if "maps" in entry.metric.inputs or any(response.needs_maps for response in entry.responses.values()):
            raise HeatproofError(
                f"attribution.stored_as is patch_sums, and the metric {name!r} reads maps of pixels: leave it out, or "
                "store the maps as float32 or float16."
            )


def require_size(plan: Plan, dataset: str, model: str) -> None:
    """Check that a network of heatproof is built for the size of a dataset's images.

    Raises
    ------
    HeatproofError
        If both sizes are known and differ.
    """
    entry, image_size = plan.models[model], plan.datasets[dataset]["size"]
    architecture = ARCHITECTURES.get(entry.architecture)
    input_size = {**architecture.options, **entry.options}.get("size") if architecture else None
    if (
        input_size
        and image_size
        and entry.module.startswith("heatproof.")
        and height_and_width(input_size) != image_size
    ):
        raise _size_error(model, height_and_width(input_size), dataset, image_size)


def _size_error(model: str, input_size: Sequence[int], dataset: str, image_size: Sequence[int]) -> HeatproofError:
    return HeatproofError(
        f"The model {model!r} takes images of {input_size[0]}×{input_size[1]} pixels, and those of {dataset!r} have "
        f"{image_size[0]}×{image_size[1]}: set the size option of one of them, or name the datasets "
        "that the model is for."
    )


def _check_grids(plan: Plan, dataset: str, model: str) -> None:
    input_size, image_size = plan.models[model].facts.size, plan.datasets[dataset]["size"]
    if input_size and image_size and tuple(input_size) != tuple(image_size):
        raise _size_error(model, input_size, dataset, image_size)
    size = plan.size_of(dataset, model)
    if size is None:
        return
    tuned = filter(None, (plan.finetuning(model, weights) for weights in plan.weights))
    grids = {("drops", grid) for grid in plan.config["drops"]["grids"]}
    grids |= {("finetuning", finetuning["grid"]) for finetuning in tuned}
    for where, grid in sorted(grids, key=lambda pair: (pair[0], grid_sort_key(pair[1]))):
        if not divides(grid, *size):
            square = isinstance(grid, int) and size[0] == size[1]
            alternatives = f"take one of {', '.join(map(str, square_grids(*size)[1:]))}"
            raise HeatproofError(
                f"The grid {format_grid(grid)} in {where} does not divide the {size[0]}×{size[1]} images of "
                f"{dataset!r}: {alternatives if square else grid_remedy(grid, *size)}."
            )


def _with_counts(plan: Plan, unset: Collection[str]) -> Plan:
    """Return the plan with numbers of images that the config leaves open lowered to what each dataset has.

    Parameters
    ----------
    plan
        The plan.
    unset
        Keys of `evaluation` that the config leaves open.

    Raises
    ------
    HeatproofError
        If the config requests more images than a dataset has, or a dataset has fewer than two.
    """
    counts = {name: count for name in plan.datasets if (count := _count(plan, name, unset)) is not None}
    fewest = min(counts.values(), default=None)
    if fewest is None:
        return plan
    evaluation = plan.config["evaluation"]
    lowered = {key: min(evaluation[key], fewest) for key in unset}
    if lowered != {key: evaluation[key] for key in unset}:
        plan = replace(plan, config={**plan.config, "evaluation": {**evaluation, **lowered}})
    for dataset, available in counts.items():
        if available < 2:
            raise HeatproofError(
                f"The evaluation split of {dataset!r} has {available} image{'s' * (available != 1)}, and two at least "
                "are scored: add images, or raise the dataset's share `evaluation`."
            )
        if plan.drop_images > available:
            key = "images" if plan.images > available else "accuracy_images"
            raise HeatproofError(
                f"evaluation.{key} is {plan.drop_images}, and the evaluation split of {dataset!r} has {available} "
                "images: ask for that many at most."
            )
    return plan


def _count(plan: Plan, dataset: str, unset: Collection[str]) -> int | None:
    """Return the number of evaluation images of a dataset; None if it cannot be known before any job starts.

    A user's loader is called only if the number determines how many images are scored.
    """
    listed = plan.splits_from_results(dataset)
    if listed:
        return len(listed["evaluation"]["ids"])
    choice, spec = plan.datasets[dataset], plan.dataset_spec(dataset)
    entry = DATASETS.get(choice["kind"])
    if entry is not None and (choice["task"] in EXCLUSIVE or spec.rows != "label"):
        return entry.count(**choice["options"]) if entry.count else None
    if entry is None and not unset:
        return None
    load = entry.load if entry else import_callable(choice["kind"], "dataset")
    try:
        return len(as_rows(load(seed=plan.config["seed"], **choice["options"]), spec).splits["evaluation"])
    except Exception:
        if entry is not None:
            raise
        # A user's loader can raise any exception, which `trial` and the job that opens the dataset report.
        return None


def _check_parts(plan: Plan, dataset: str) -> None:
    """Raise an error if a metric needs parts, and a dataset of heatproof has none; a job checks a user's dataset."""
    entry = DATASETS.get(plan.datasets[dataset]["kind"])
    if plan.part_metrics and entry is not None and not entry.parts:
        with_parts = " or ".join(sorted(repr(name) for name, registered in DATASETS.items() if registered.parts))
        raise HeatproofError(
            f"The metric {plan.part_metrics[0]!r} needs a dataset whose parts are known, and {dataset!r} has none: "
            f"take {with_parts}, or leave the metric out."
        )
