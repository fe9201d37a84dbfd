"""Configs as files: where they are, how they are read, and how one is laid over another."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from difflib import get_close_matches
from functools import reduce
from pathlib import Path
from typing import Any

from yaml.representer import SafeRepresenter

from heatproof.base.options import DefaultCount
from heatproof.base.registry import suggest_name
from heatproof.errors import HeatproofError
from heatproof.files import strict_yaml
from heatproof.files.reading import printable_path

Config = dict[str, Any]
PACKAGED = Path(__file__).parents[1] / "_workflow"
DEFAULT = "config/config.yaml"
# Numbers of the embedded default that are lowered where a dataset has fewer images.
COUNTS = ("images", "accuracy_images")
# Snakemake takes a config that has this key for a template, and runs the Python in it.
TEMPLATE = "__use_yte__"


# Written as the number that it is.
SafeRepresenter.add_representer(DefaultCount, SafeRepresenter.represent_int)


def default_config(folder: str | Path | None = None) -> Config:
    """Return the embedded default config as written, without the defaults of the keys.

    Parameters
    ----------
    folder
        That of a Snakefile, beside which a default may stand; left out, that of the package. A working folder never
        has the default: it may be somebody else's, and a config names code that is run.
    """
    beside = [Path(folder) / DEFAULT] if folder is not None else []
    path = next((one for one in beside if one.is_file()), workflow_folder() / DEFAULT)
    default = read_mapping(path)
    evaluation = default.get("evaluation")
    if isinstance(evaluation, dict):
        evaluation |= {key: DefaultCount(evaluation[key]) for key in COUNTS if type(evaluation.get(key)) is int}
    return default


def unset_counts(config: Mapping[str, Any]) -> list[str]:
    """Return the numbers of images under `evaluation` that are those of the embedded default, or of no config."""
    evaluation = config.get("evaluation")
    given = evaluation if isinstance(evaluation, Mapping) else {}
    return [key for key in COUNTS if key not in given or isinstance(given[key], DefaultCount)]


def workflow_folder() -> Path:
    """Return the folder with the Snakefile: that of the installed package, or the repository.

    Raises
    ------
    HeatproofError
        If there is neither.
    """
    for folder in (PACKAGED, Path(__file__).parents[3]):
        if (folder / "Snakefile").is_file():
            return folder
    raise HeatproofError("The workflow is not installed with this package: install heatproof again with pip.")


def config_file(given: str | Path) -> Path:
    """Return the path of a config: a file, or the name of one that comes with heatproof, such as ``quick``.

    The name of one that comes with heatproof is never that of a file: a file ``quick`` is written ``./quick``.

    Raises
    ------
    HeatproofError
        If there is neither.
    """
    shipped = workflow_folder() / "config"
    known = {one.stem: one for one in shipped.glob("*.yaml")}
    if str(given) in known:
        return known[str(given)]
    if os.path.exists(given):
        return Path(given)
    where, name = os.path.split(given)
    # Endings make all of them alike.
    beside = {one.stem: str(Path(where) / one.name) for one in sorted(Path(where or ".").glob("*.y*ml"))}
    is_path = bool(where) or Path(name).suffix in (".yaml", ".yml")
    close = get_close_matches(Path(name).stem, beside, n=1)
    if is_path and close:
        hint = f"did you mean {printable_path(beside[close[0]])}?"
    elif is_path:
        hint = "check the path, or let `heatproof init PHOTOS --model MODEL` write one."
    else:
        hint = suggest_name(str(given), known, "configs")
    raise HeatproofError(
        f"There is no config {printable_path(given)}, neither a file nor one that comes with heatproof: {hint}"
    )


def read_config(*configs: str | Path) -> Config:
    """Read configs as the workflow does: each laid over those before it and over the embedded default, lists replaced.

    Parameters
    ----------
    configs
        As `config_file` takes them.

    Raises
    ------
    HeatproofError
        If a file is missing, or is not a mapping of strict YAML (`heatproof.files.strict_yaml`).
    """
    return reduce(merge, map(read_mapping, map(config_file, configs)), default_config())


def read_mapping(path: str | Path) -> Config:
    """Read a config as it is written, with what nothing but Snakemake would understand refused.

    Raises
    ------
    HeatproofError
        As `heatproof.files.strict_yaml.read_mapping` does.
    """
    given = strict_yaml.read_mapping(path)
    if TEMPLATE in given:
        raise HeatproofError(
            f"The config {printable_path(path)} has the key {TEMPLATE!r}, with which Snakemake runs what stands in the other "
            "keys: remove it."
        )
    return given


def read_snakemake_config(given: Mapping[str, Any], settings: Any, folder: str | None) -> Config:
    """Return the config of a Snakefile: the files that Snakemake was given, as all commands read them.

    Parameters
    ----------
    given
        The config as Snakemake has it.
    settings
        Snakemake's own: the files, the values that are laid over them, and what Snakemake made of both. Where it has
        something else, another workflow made it, which uses this one.
    folder
        As `default_config` takes it.

    Raises
    ------
    HeatproofError
        As `read_config` does.
    """
    default = default_config(folder)
    if given != settings.overwrite_config:
        return merge(default, given)
    return reduce(merge, [*map(read_mapping, settings.configfiles), settings.config], default)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Config:
    """Lay one mapping over another, key by key; anything but a mapping is replaced."""
    merged = dict(copy.deepcopy(base))
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else copy.deepcopy(value)
    return merged
