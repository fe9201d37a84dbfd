"""Read the datasets, models and explainers of a config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypedDict

from heatproof.core.batch import SAME_AS_DROPS
from heatproof.core.input_facts import InputFacts
from heatproof.core.methods import MethodSpec
from heatproof.core.options import check_defaults, check_options, defining_module, normalise_grid_options, options_of
from heatproof.core.perturb.baselines import BASELINES
from heatproof.core.registry import import_callable, is_reference, look_up, suggest_name
from heatproof.core.tasks import TASKS
from heatproof.datasets.registry import DATASETS
from heatproof.errors import HeatproofError
from heatproof.explainers.plain_functions import positional_arguments_of
from heatproof.explainers.registry import EXPLAINERS, Explainer
from heatproof.models.packaged import is_packaged, look_up_packaged
from heatproof.models.published import look_up_architecture
from heatproof.models.registry import ARCHITECTURES, Design
from heatproof.store.publishing import without_secrets
from heatproof.workflow.config.files import Config

SCHEMES = ("https://", "http://", "file://")


class DatasetChoice(TypedDict):
    """A dataset of the config; ``size`` is height and width of its images, None if not known."""

    kind: str
    task: str
    options: dict[str, Any]
    module: str
    size: tuple[int, int] | None


# `LIBRARY:NAME` is short for the architecture `LIBRARY_model` with the option `name`.
LIBRARIES = ("timm", "torchvision", "transformers")


@dataclass(frozen=True)
class ModelChoice:
    """A model of the config.

    Attributes
    ----------
    name
        Name of the model; copies for other training seeds have their own.
    kind
        Name of the entry in the config, the same for its copies with other training seeds.
    architecture, options, module
        The architecture with its options, and the module of its code.
    facts
        Facts about its input, such as size, mean and deviation.
    design
        Facts about its design.
    datasets
        Names of the datasets that it is for.
    checkpoint, sha256
        Path or address of published weights, and their SHA-256.
    transfer
        Whether a training begins with the checkpoint.
    pretraining, finetuning
        Settings of its trainings.
    stated
        Names of the facts that the config itself gives.
    expected_accuracy
        Accuracy that the checkpoint must reach.
    """

    name: str
    kind: str
    architecture: str
    options: Mapping[str, Any]
    facts: InputFacts
    design: Design
    datasets: tuple[str, ...]
    checkpoint: str | None
    sha256: str | None
    transfer: bool
    pretraining: Mapping[str, Any]
    finetuning: Mapping[str, Any]
    module: str
    stated: frozenset[str] = frozenset()
    expected_accuracy: float | None = None


def _find(table: Mapping[str, Any], kind: str, what: str, name: str, settings: Mapping[str, Any]) -> Any:
    """Look up a name in a registry.

    If an entry with settings is not found, it may have a custom name and lack the key that says its kind; the error
    then mentions that key.
    """
    try:
        return look_up_architecture(kind) if what == "architecture" else look_up(table, kind, what)
    except HeatproofError as error:
        if kind != name or not settings:
            raise
        raise HeatproofError(
            f"{error} An entry with a custom name needs the key `{what}` among its settings."
        ) from None


def read_dataset(name: str, settings: dict[str, Any]) -> DatasetChoice:
    """Return a dataset of the config."""
    kind = settings.pop("dataset", name)
    entry = None if is_reference(kind) else _find(DATASETS, kind, "dataset", name, settings)
    load = entry.load if entry else import_callable(kind, "dataset")
    task, settings = _task_of(load, name, settings)
    check_options(load, settings, f"dataset {name!r}", keywords=("seed",))
    size = None if entry is None else entry.image_size(settings)
    return {"kind": kind, "task": task, "options": settings, "module": defining_module(load, kind), "size": size}


def _task_of(load: Callable[..., Any], name: str, settings: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the task of a dataset, and the options of its loader, with the task if the loader has that option.

    Without the key `task`, the task is the loader's default, or an attribute `task` of the loader, such as a class has.
    """
    options = dict(settings)
    try:
        loader_options = options_of(load)
    except (TypeError, ValueError):  # `check_options` raises the error
        loader_options = {}
    stated, default = options.pop("task", None), loader_options.get("task", getattr(load, "task", None))
    if stated is not None and stated not in TASKS:
        suggestion = suggest_name(str(stated), TASKS)
        raise HeatproofError(f"The task of the dataset {name!r} is {stated!r}: {suggestion}")
    if stated is not None and "task" in loader_options:
        options["task"] = stated
    return str(stated or (default if default in TASKS else "multiclass")), options


def read_explainer(name: str, settings: dict[str, Any]) -> MethodSpec:
    """Return an explainer of the config, with default options filled in."""
    kind = settings.pop("explainer", name)
    if is_reference(kind):
        function = import_callable(kind, "explainer")
        registered = next((explainer for explainer in EXPLAINERS.values() if explainer.function is function), None)
        entry = registered or Explainer(name, function, {name: True})
    else:
        entry = _find(EXPLAINERS, kind, "explainer", name, settings)
    defaults = check_options(
        entry.function, settings, f"explainer {name!r}", positional=positional_arguments_of(entry.function)
    )
    check_defaults(defaults, f"explainer {name!r}")
    settings = normalise_grid_options(settings, entry.function)
    if (baseline := settings.get("baseline")) not in (None, SAME_AS_DROPS):
        look_up({**BASELINES, SAME_AS_DROPS: None}, baseline, f"baseline of the explainer {name!r}")
    module, maps = defining_module(entry.function, kind), entry.maps_called(name)
    return MethodSpec(
        name, kind, module, {**defaults, **settings}, tuple(maps.items()), sorted(entry.needs), entry.uses_model
    )


def read_model(name: str, settings: Mapping[str, Any], config: Config) -> ModelChoice:
    """Return a model of the config: its settings override those of its architecture."""
    architecture = settings.get("architecture", name)
    options = dict(settings.get("options", {}))
    library, _, name_in_library = architecture.partition(":")
    if library in LIBRARIES:
        architecture, options = f"{library}_model", {"name": name_in_library, **options}
    entry = None if is_reference(architecture) else _find(ARCHITECTURES, architecture, "architecture", name, settings)
    build = entry.build if entry else import_callable(architecture, "architecture")
    check_options(build, options, f"model {name!r}", positional=("num_classes",))
    stated_facts = {key: settings[key] for key in ("mean", "std", "cam_layer") if key in settings}
    facts = entry.facts_for(options, stated_facts) if entry else InputFacts()
    design = entry.design_for(options) if entry else Design(architecture)
    overrides = {key: tuple(value) if isinstance(value, list) else value for key, value in stated_facts.items()}
    datasets = tuple(settings.get("datasets", config["datasets"]))
    for dataset in datasets:
        look_up(config["datasets"], dataset, "dataset in this config")
    checkpoint, sha256, transfer = settings.get("checkpoint"), settings.get("sha256"), settings.get("transfer", False)
    if checkpoint and is_packaged(checkpoint):
        sha256 = sha256 or look_up_packaged(checkpoint, name, architecture, options).sha256
    if checkpoint and "://" in checkpoint and not checkpoint.lower().startswith(SCHEMES):
        raise HeatproofError(
            f"The checkpoint {without_secrets(checkpoint, checkpoint)} of model {name!r} cannot be fetched: give a "
            f"path, or an address that begins with {', '.join(SCHEMES[:-1])} or {SCHEMES[-1]}."
        )
    if checkpoint and "://" in checkpoint and not sha256:
        raise HeatproofError(
            f"The checkpoint of model {name!r} is a URL: give its sha256 as well, to verify the download."
        )
    if sha256 and not checkpoint:
        raise HeatproofError(
            f"The model {name!r} has a sha256 and no checkpoint: give the checkpoint, or leave the sha256 out."
        )
    if transfer and not checkpoint:
        raise HeatproofError(
            f"The model {name!r} has transfer: true and no checkpoint to begin with: give the checkpoint, or leave "
            "transfer out."
        )
    expected = settings.get("expected_accuracy")
    if expected is not None and (transfer or not checkpoint):
        raise HeatproofError(
            f"The model {name!r} has an expected_accuracy and no checkpoint that is scored unchanged: leave it out."
        )
    return ModelChoice(
        name=name,
        kind=name,
        architecture=architecture,
        options=options,
        facts=replace(facts, **overrides),
        design=design,
        datasets=datasets,
        checkpoint=checkpoint,
        sha256=sha256,
        transfer=transfer,
        pretraining={**config["pretraining"], **settings.get("pretraining", {})},
        finetuning={**config["finetuning"], **settings.get("finetuning", {})},
        module=defining_module(build, architecture),
        stated=frozenset(stated_facts),
        expected_accuracy=expected,
    )
