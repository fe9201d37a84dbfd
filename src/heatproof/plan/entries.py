"""What a config names: datasets, models and explainers under the names that it gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from heatproof.attribution.catalogue import EXPLAINERS
from heatproof.attribution.registry import Explainer, options_of
from heatproof.config import Config
from heatproof.data.catalogue import DATASETS
from heatproof.errors import HeatproofError
from heatproof.models.catalogue import ARCHITECTURES
from heatproof.models.registry import InputFacts
from heatproof.registry import import_callable, is_reference, look_up, nearest


@dataclass(frozen=True)
class ExplainerEntry:
    """An explainer under the name that the config gives it."""

    name: str
    kind: str
    options: Mapping[str, Any]
    maps: Mapping[str, bool]
    needs: frozenset[str]
    uses_model: bool
    module: str

    @property
    def methods(self) -> dict[str, tuple[str, str]]:
        """Method name to (map, transform): every map raw, and a signed one absolute as well."""
        rows = {}
        for name, signed in self.maps.items():
            rows[name] = (name, "raw")
            if signed:
                rows[f"{name}_abs"] = (name, "abs")
        return rows


@dataclass(frozen=True)
class ModelEntry:
    """A model under the name that the config gives it."""

    name: str
    architecture: str
    options: Mapping[str, Any]
    facts: InputFacts
    datasets: tuple[str, ...]
    checkpoint: str | None
    sha256: str | None
    pretraining: Mapping[str, Any]
    finetuning: Mapping[str, Any]
    module: str


@dataclass(frozen=True)
class Record:
    """What one job leaves.

    Attributes
    ----------
    rank
        Jobs of a higher rank read what those of a lower rank made.
    manifest, spec_key
        The manifest's path, and what it must say to belong to this config and code.
    outputs
        All files that Snakemake knows the job by.
    images
        How far a shard must reach; None for what is no shard.
    """

    rank: int
    manifest: str
    spec_key: str
    outputs: list[str]
    images: int | None = None


def read_dataset(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return what the config says of a dataset: kind, options, module and image size (None if not known)."""
    kind = given.pop("dataset", name)
    if is_reference(kind):
        load = import_callable(kind, "dataset")
        return {"kind": kind, "options": given, "module": load.__module__, "size": None}
    entry = look_up(DATASETS, kind, "dataset")
    check_options(given, entry.options, f"dataset {name!r}")
    return {"kind": kind, "options": given, "module": entry.load.__module__, "size": entry.size}


def read_explainer(name: str, given: dict[str, Any]) -> ExplainerEntry:
    """Return what the config says of an explainer, options filled in."""
    kind = given.pop("explainer", name)
    if is_reference(kind):
        function = import_callable(kind, "explainer")
        found = next((known for known in EXPLAINERS.values() if known.function is function), None)
        entry = found or Explainer(name, function, {name: True}, options=options_of(function))
    else:
        entry = look_up(EXPLAINERS, kind, "explainer")
    check_options(given, entry.options, f"explainer {name!r}")
    if name == entry.name:
        maps = dict(entry.maps)
    elif len(entry.maps) == 1:
        maps = {name: next(iter(entry.maps.values()))}
    else:
        maps = {f"{name}_{label}": signed for label, signed in entry.maps.items()}
    options = {**entry.options, **given}
    return ExplainerEntry(name, kind, options, maps, entry.needs, entry.uses_model, entry.function.__module__)


def read_model(name: str, given: Mapping[str, Any], config: Config) -> ModelEntry:
    """Return what the config says of a model, laid over what its architecture says of itself."""
    architecture = given.get("architecture", name)
    options = dict(given.get("options", {}))
    if is_reference(architecture):
        build = import_callable(architecture, "architecture")
        facts, module = InputFacts(), build.__module__
    else:
        entry = look_up(ARCHITECTURES, architecture, "architecture")
        check_options(options, entry.options, f"model {name!r}")
        facts, module = entry.facts, entry.build.__module__
    overrides: dict[str, Any] = {key: tuple(given[key]) for key in ("mean", "std") if key in given}
    if "cam_layer" in given:
        overrides["cam_layer"] = given["cam_layer"]
    datasets = tuple(given.get("datasets", config["datasets"]))
    for dataset in datasets:
        look_up(config["datasets"], dataset, "dataset in this config")
    checkpoint, sha256 = given.get("checkpoint"), given.get("sha256")
    if checkpoint and "://" in checkpoint and not sha256:
        raise HeatproofError(
            f"The checkpoint of model {name!r} is a URL: give its sha256 beside it, so that what arrives is what "
            "you mean."
        )
    return ModelEntry(
        name=name,
        architecture=architecture,
        options=options,
        facts=replace(facts, **overrides),
        datasets=datasets,
        checkpoint=checkpoint,
        sha256=sha256,
        pretraining={**config["pretraining"], **given.get("pretraining", {})},
        finetuning={**config["finetuning"], **given.get("finetuning", {})},
        module=module,
    )


def check_options(given: Mapping[str, Any], known: Mapping[str, Any], what: str) -> None:
    """Refuse an option that is not known, with the nearest one that is."""
    for key in given:
        if key not in known:
            hint = nearest(key, known) if known else "it takes none."
            raise HeatproofError(f"The {what} has no option {key!r}: {hint}")
