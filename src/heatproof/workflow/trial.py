"""Try user code, checkpoint files and the device on a few images before any job starts.

Modules that import torch are imported only if a config has something to try, because that takes seconds.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np

from heatproof.core.batch import Batch
from heatproof.core.dataset import Dataset
from heatproof.core.lazy import torch
from heatproof.core.methods import MethodSpec, methods_of
from heatproof.core.options import as_size_option
from heatproof.core.tasks import EXCLUSIVE
from heatproof.datasets.checks import check_dataset, check_image_files, check_target, describe_rows, open_dataset
from heatproof.datasets.image_files import ImageReader
from heatproof.datasets.probe_images import probe_rows_of_split, read_rows
from heatproof.datasets.rows import unwrap_rows
from heatproof.errors import HeatproofError, NotApplicable
from heatproof.metrics.responses.base import respond
from heatproof.metrics.scoring import score_batches
from heatproof.models.preprocessing import preprocessing_differences
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.metrics import MetricChoice
from heatproof.workflow.plan.resolve import ModelChoice
from heatproof.workflow.plan.validate import Plan, require_size

# Largest number of image files whose headers are read; this takes ten seconds for local files.
LOOKED_AT = 100_000
# The dataset whose split depends on the config, so that it can have few training images.
FOLDERS = "heatproof.datasets.image_folder"


@dataclass
class Trial:
    """What a trial shows.

    Attributes
    ----------
    warnings
        Warnings about checkpoints, and numbers of rows of datasets, one line each.
    unusable
        A sentence for each explainer and metric of the user that fails on a network, and is therefore not applicable in
        a run.
    """

    warnings: list[str] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)


def run_trial(plan: Plan, device: bool = True) -> Trial:
    """Try the device and all user code of a config on a few images of each dataset.

    Parameters
    ----------
    plan
        The plan.
    device
        Whether jobs run on this machine, so that the device is tried.

    Raises
    ------
    HeatproofError
        A sentence about the first error that would end a run.
    """
    if device and plan.config["device"] not in ("auto", "cpu"):
        from heatproof.models.network import configure_torch

        configure_torch(plan.runtime())
    trial = Trial()
    for name in plan.datasets:
        # A callable target is tried on every network.
        models = [model for model in plan.models_of(name) if plan.target_function or _is_tried(plan, model)]
        explainers = [entry for entry in plan.explainers.values() if _is_user_code(entry.module)]
        metrics = [
            choice
            for choice in plan.metrics.values()
            if choice.metric.is_custom and not plan.unsupported_reason(name, choice.name)
        ]
        module = plan.datasets[name]["module"]
        has_user_code = models or explainers or metrics or _is_user_code(module) or module == FOLDERS
        target = plan.config["target"]
        if not (has_user_code or isinstance(target, int)) or plan.splits_from_results(name):
            continue

        with _trying(f"dataset {name!r}"):
            dataset = open_dataset(plan.dataset_spec(name))
            check_dataset(dataset, name, plan.datasets[name]["task"])
            # Checked here, because the first job that would fail comes after all trainings.
            check_target(target, dataset)
            if not has_user_code:
                continue
            trial.warnings += describe_rows(dataset, name)
            _count_training_images(plan, name, dataset)
            channels, height, width = dataset.images("evaluation", 0, 1).shape[1:]
        if channels != 3 or height != width:
            # Published networks expect three channels, and often squares, so every model is tried on other images.
            models = plan.models_of(name)
        for model in models or plan.models_of(name)[:1]:
            tried = f"model {model!r}" + (f" with target {plan.target_function}" if plan.target_function else "")
            with _trying(tried):
                network = _network(plan, model, name, dataset, trial.warnings)
            for entry in explainers:
                with _trying(f"explainer {entry.name!r} on {model!r}", trial.unusable):
                    _explain(plan, entry, model, network, dataset)
            for scored in metrics:
                with _trying(f"metric {scored.name!r} on {model!r}", trial.unusable):
                    _score(plan, scored, model, network, dataset, name)
    return trial


def inspect_image_files(plan: Plan) -> list[str]:
    """Check the image files of datasets, and return lines on how they are read and what networks expect.

    There is also a line for splits with fewer than two images for each class.

    Raises
    ------
    HeatproofError
        If image files cannot be read; the message has their number, the first names, and the remedy.
    """
    lines = []
    here = [name for name in plan.datasets if not plan.splits_from_results(name)]
    for name in [name for name in here if "root" in plan.datasets[name]["options"]]:
        dataset = open_dataset(plan.dataset_spec(name))
        lines += check_image_files(dataset, name, LOOKED_AT)
        lines += _few_images(name, dataset) if plan.datasets[name]["task"] in EXCLUSIVE else []
        for model in plan.models_of(name):
            lines += (
                _preprocessing_differences(plan.models[model], name, dataset) if plan.models[model].checkpoint else []
            )
    return lines


def _few_images(name: str, dataset: Dataset) -> list[str]:
    splits = {
        split: dataset.splits[split].labels.tolist() for split in ("train", "validation") if split in dataset.splits
    }
    all_splits = unwrap_rows(dataset).splits
    classes = len({label for split in all_splits.values() for label in split.labels.tolist()})
    small_splits = [f"{len(labels)} {split}" for split, labels in splits.items() if 0 < len(labels) < 2 * classes]
    spec = f"{name}: warning: {' and '.join(small_splits)} images for {classes} classes, fewer than two per class"
    return (
        [f"{spec}: a network trained on them cannot be judged reliably, so add images or use fewer classes"]
        if small_splits
        else []
    )


def _preprocessing_differences(model: ModelChoice, name: str, dataset: Dataset) -> list[str]:
    reader = getattr(dataset, "reader", None)
    # By default, images that are no larger than the input are not resized, whatever the weights were trained with.
    if not isinstance(reader, ImageReader) or (reader.is_default_box and reader.box == reader.size):
        return []
    sides = {"size": as_size_option(reader.size), "resize": as_size_option(reader.box)}
    read = {**sides, "interpolation": reader.interpolation}
    others = preprocessing_differences(model.architecture, model.options, read)
    spec = f"{name}: the weights of {model.name} were published with {', '.join(others)}"
    return [f"{spec}; set these options of the dataset to read images in the same way"] if others else []


def _is_user_code(module: str) -> bool:
    return not module.startswith("heatproof.")


def _is_tried(plan: Plan, model: str) -> bool:
    entry = plan.models[model]
    return _is_user_code(entry.module) or bool(plan.checkpoint_file(model)) or "channels" in entry.options


@contextmanager
def _trying(what: str, unusable: list[str] | None = None) -> Iterator[None]:
    """Convert any exception of user code into an error of one sentence; unusable components are added to `unusable`."""
    try:
        yield
    except _Unusable as error:
        assert unusable is not None, "datasets and models are always needed"
        unusable.append(str(error))
    except HeatproofError:
        raise
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        reason = " ".join(str(error).split())[:200]
        raise HeatproofError(
            f"The {what} fails on one image ({type(error).__name__}: {reason}; {Path(frame.filename).name}, line "
            f"{frame.lineno}): fix it, or leave it out of the config."
        ) from error


def _image(plan: Plan, model: str, dataset: Dataset) -> torch.Tensor:
    from heatproof.core.normalise import normalise

    return normalise(dataset.images("evaluation", 0, 1), plan.models[model].facts)


def _network(plan: Plan, model: str, name: str, dataset: Dataset, warnings: list[str]) -> torch.nn.Module:
    from heatproof.core.first_images import check_attached
    from heatproof.core.probabilities import check_no_probabilities
    from heatproof.datasets.reader import reader_of_dataset
    from heatproof.models.network import build_network

    entry = plan.models[model]
    require_size(plan, name, model)
    reader = reader_of_dataset(plan.dataset_spec(name), dataset, plan.config["target"])
    assert reader.classes is not None, "a dataset says how many outputs there are"
    network = build_network(plan.model_spec(model), reader.classes, reader=reader).eval()
    _require_trainable(plan, model, network)
    if plan.checkpoint_file(model):
        fetched = {"stage": "fetch_start"} if entry.transfer else {"stage": "fetch", "dataset": name}
        if warning := Graph(plan).spec(**fetched, model=model).check():
            warnings.append(f"{name}: warning: {warning}")
    try:
        image = _image(plan, model, dataset)
        with _naming_channels(network, image):
            checked_network = check_attached(network, image)
        logits = checked_network.logits
        assert logits is not None, "a check has logits"
        if logits.shape[1] != dataset.num_classes:
            raise HeatproofError(
                f"The model returns {logits.shape[1]} logits for one image, and there are {dataset.num_classes} "
                "classes: it must return one logit per class."
            )
        check_no_probabilities(checked_network)
    except HeatproofError as error:
        message = str(error)
        raise HeatproofError(
            f"The model {model!r} cannot be used on {name!r}: {message[0].lower()}{message[1:]}"
        ) from error
    return network


@contextmanager
def _naming_channels(network: torch.nn.Module, image: torch.Tensor) -> Iterator[None]:
    """If a network fails on an image, and its first convolution has other channels than the image, say so."""
    try:
        yield
    except Exception as error:  # a network can raise any exception
        first = next((layer for layer in network.modules() if hasattr(layer, "in_channels")), None)
        if first is None or first.in_channels == image.shape[1]:
            raise
        raise HeatproofError(
            f"Its first convolution takes {first.in_channels} channels, and the images have {image.shape[1]}: set the "
            "option `channels` of the dataset or of the architecture, where it has one, or take another network."
        ) from error


def _require_trainable(plan: Plan, model: str, network: torch.nn.Module) -> None:
    """Raise an error if a model with parameters of half precision is to be trained."""
    halves = {
        str(parameter.dtype).removeprefix("torch.")
        for parameter in network.parameters()
        if parameter.is_floating_point()
    }
    halves &= {"float16", "bfloat16"}
    if halves and any(model == trained for trained, _ in plan.trainings()):
        raise HeatproofError(
            f"The model {model!r} has parameters of {halves.pop()}, which small steps of a training do not change: "
            "build it in float32 (precision: bfloat16 saves time and memory of a training), or give it a checkpoint "
            "and leave all `weights` but pretrained out."
        )


def _count_training_images(plan: Plan, name: str, dataset: Dataset) -> None:
    """Raise an error if a dataset has fewer training images than the config needs."""
    available = len(dataset.splits.get("train", ()))
    trained = [model for model, _ in plan.trainings() if model in plan.models_of(name)]
    if not available and trained:
        also = ", and the baseline `mean` is their mean colour" if "mean" in plan.baselines else ""
        raise HeatproofError(
            f"The dataset {name!r} has no training images{also}, and the model {trained[0]!r} is to be trained or "
            "finetuned on it: lower its `evaluation`, or give the model a checkpoint and leave all `weights` but "
            "pretrained out."
        )
    for explainer in plan.explainers:
        requested = plan.explainer_options(explainer).get("baselines")
        if isinstance(requested, int) and 0 < available < requested:
            raise HeatproofError(
                f"The explainer {explainer!r} asks for {requested} training images of {name!r} as baselines, and there "
                f"are {available}: lower its option `baselines`."
            )


def _explain(plan: Plan, entry: MethodSpec, model: str, network: torch.nn.Module, dataset: Dataset) -> None:
    from heatproof.explainers import explaining
    from heatproof.explainers.explaining import ExplainerFailed, check_limits, explain_batches
    from heatproof.workflow.stages._explaining import open_method, with_baselines

    several = with_baselines(_few(plan, model, network, dataset), plan.config["finetuning"]["grid"])
    if not entry.uses_model:
        several = replace(several, network=None, output=None, facts=None)
    method = open_method(replace(entry, options=plan.explainer_options(entry.name)))
    try:
        # A single image comes first, because its errors say more about shapes.
        for explained in explain_batches(method, [several.take(slice(0, 1)), several]):
            if len(explained.values) > 1:
                check_limits({}, explained.values)
    except NotApplicable as reason:
        # If the explainer itself raised it, it is not applicable, and the tables have a row with the reason.
        raised_by = traceback.extract_tb(reason.__traceback__)[-1].filename
        if isinstance(reason, ExplainerFailed) or raised_by == explaining.__file__:
            raise _unusable("explainer", entry.name, model, str(reason)) from reason


def _score(plan: Plan, entry: MetricChoice, model: str, network: torch.nn.Module, dataset: Dataset, name: str) -> None:
    """Score random maps with a user's metric, on responses of a network whose weights may be random."""
    from heatproof.core.perturb.dataset_mean import needs_dataset

    batch = _few(plan, model, network, dataset)
    height, width = batch.images.shape[2:]
    shape = len(batch.image_ids), 1, height, width
    maps = np.random.default_rng(batch.seed).standard_normal(shape).astype(np.float32)
    task = plan.task_of(name)
    batch = replace(batch, dataset=None, maps=maps, methods=methods_of({"map": True}), size=(height, width))
    responses, arrays = {}, dict[str, Any]()
    for argument, response in entry.responses.items():
        settings = response.settings
        if needs_dataset(settings.get("baseline"), settings.get("baseline_options")):
            # Any colour will do.
            black = {"value": [0.0] * batch.images.shape[1]}
            response = replace(response, settings={**settings, "baseline_options": black})
        if response.recomputes_maps or response.rule == "parts" or response.missing_inputs(batch):
            return
        responses[argument] = response, None
        arrays[argument] = respond(response, batch)
    returned: list[Any] = []

    @wraps(entry.metric.function)
    def recorded(*inputs: Any, **options: Any) -> Any:
        returned.append(entry.metric.function(*inputs, **options))
        return returned[-1]

    scored_batch, failed = replace(batch, network=None, output=None, stated_task=task), dict[str, str]()
    options, metric = {**entry.options, "output": entry.output}, replace(entry.metric, function=recorded)
    chunks = [(scored_batch, arrays, [(scored_batch, arrays)])]
    scored = list(score_batches(metric, options, responses, chunks, failed))
    if failed:
        raise _unusable("metric", entry.name, model, next(iter(failed.values())))
    # A score that the metric itself calls undefined may be defined for a trained network.
    if not any(scores.valid.any() for scores in scored) and all(np.asarray(result[1]).all() for result in returned):
        raise _unusable("metric", entry.name, model, "it calls its scores defined, and none is finite")


def _few(plan: Plan, model: str, network: torch.nn.Module, dataset: Dataset) -> Batch:
    """Return the few images that tell whether an explainer applies, as a run checks it."""
    from heatproof.core.normalise import normalise

    rows, split, facts = probe_rows_of_split(dataset), dataset.splits["evaluation"], plan.models[model].facts
    return Batch(
        network=network,
        output=network,
        facts=facts,
        images=normalise(read_rows(dataset, rows), facts),
        targets=torch.from_numpy(split.labels[rows]),
        image_ids=tuple(split.ids[row] for row in rows),
        seed=plan.config["seed"],
        batch_size=len(rows),
        dataset=dataset,
    )


class _Unusable(HeatproofError):
    """Raised if a user's explainer or metric cannot be used; the run continues without it."""


def _unusable(kind: str, name: str, model: str, reason: str) -> _Unusable:
    return _Unusable(
        f"The {kind} {name!r} cannot be used on {model!r}: {reason}. Mend it, or leave it out of the config."
    )
