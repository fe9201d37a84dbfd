"""Config files: where they are, how they are read, and how one is merged over another."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from difflib import get_close_matches
from functools import reduce
from pathlib import Path
from typing import Any

from yaml.representer import SafeRepresenter

from heatproof.core.options import DefaultCount
from heatproof.core.registry import suggest_name
from heatproof.errors import HeatproofError
from heatproof.store import strict_yaml
from heatproof.store.reading import printable_path

Config = dict[str, Any]
PACKAGED_WORKFLOW = Path(__file__).parents[2] / "_workflow"
DEFAULT_CONFIG = "config/config.yaml"
# Numbers of images that are lowered if a dataset has fewer, unless a user's config sets them.
IMAGE_COUNTS = ("images", "accuracy_images")
# Snakemake treats a config with this key as a template, and runs the Python in it.
TEMPLATE_KEY = "__use_yte__"


# A default count is written to YAML as a plain integer.
SafeRepresenter.add_representer(DefaultCount, SafeRepresenter.represent_int)


def default_config(folder: str | Path | None = None) -> Config:
    """Return the embedded default config as written, without the defaults of the keys.

    Parameters
    ----------
    folder
        Folder of a workflow that may contain a default config; by default that of the package. The working folder is
        never searched: it may belong to someone else, and a config names code that is run.
    """
    candidates = [Path(folder) / DEFAULT_CONFIG] if folder is not None else []
    path = next((candidate for candidate in candidates if candidate.is_file()), workflow_folder() / DEFAULT_CONFIG)
    default = read_mapping(path)
    evaluation = default.get("evaluation")
    if isinstance(evaluation, dict):
        evaluation |= {key: DefaultCount(evaluation[key]) for key in IMAGE_COUNTS if type(evaluation.get(key)) is int}
    return default


def unset_counts(config: Mapping[str, Any]) -> list[str]:
    """Return the numbers of images under `evaluation` that no config sets, or only the embedded default."""
    evaluation = config.get("evaluation")
    section = evaluation if isinstance(evaluation, Mapping) else {}
    return [key for key in IMAGE_COUNTS if key not in section or isinstance(section[key], DefaultCount)]


def workflow_folder() -> Path:
    """Return the folder with the Snakefile: that of the installed package, or the repository.

    Raises
    ------
    HeatproofError
        If neither exists.
    """
    for folder in (PACKAGED_WORKFLOW, Path(__file__).parents[4]):
        if (folder / "Snakefile").is_file():
            return folder
    raise HeatproofError("The workflow is not installed with this package: install heatproof again with pip.")


def config_file(name_or_path: str | Path) -> Path:
    """Return the path of a config: a file, or the name of a config that comes with heatproof, such as ``quick``.

    A name of a config that comes with heatproof never refers to a file in the working folder: write ``./quick`` for a
    file ``quick``.

    Raises
    ------
    HeatproofError
        If neither exists.
    """
    shipped = workflow_folder() / "config"
    shipped_configs = {file.stem: file for file in shipped.glob("*.yaml")}
    if str(name_or_path) in shipped_configs:
        return shipped_configs[str(name_or_path)]
    if os.path.exists(name_or_path):
        return Path(name_or_path)
    folder, name = os.path.split(name_or_path)
    # Endings are left out, because they would make all names similar.
    similar = {file.stem: str(Path(folder) / file.name) for file in sorted(Path(folder or ".").glob("*.y*ml"))}
    is_path = bool(folder) or Path(name).suffix in (".yaml", ".yml")
    close = get_close_matches(Path(name).stem, similar, n=1)
    if is_path and close:
        hint = f"did you mean {printable_path(similar[close[0]])}?"
    elif is_path:
        hint = "check the path, or let `heatproof init PHOTOS --model MODEL` write one."
    else:
        hint = suggest_name(str(name_or_path), shipped_configs, "configs")
    raise HeatproofError(
        f"There is no config {printable_path(name_or_path)}, neither a file nor one that comes with heatproof: {hint}"
    )


def read_config(*configs: str | Path) -> Config:
    """Read configs as the workflow does.

    Each config is merged over the embedded default and those before it; lists are replaced.

    Parameters
    ----------
    configs
        As `config_file` takes them.

    Raises
    ------
    HeatproofError
        If a file is missing, or is not a mapping in strict YAML (`heatproof.store.strict_yaml`).
    """
    return reduce(merge, map(read_mapping, map(config_file, configs)), default_config())


def read_mapping(path: str | Path) -> Config:
    """Read a config as written, and refuse keys that only Snakemake interprets.

    Raises
    ------
    HeatproofError
        As `heatproof.store.strict_yaml.read_mapping` does.
    """
    config = strict_yaml.read_mapping(path)
    if TEMPLATE_KEY in config:
        raise HeatproofError(
            f"The config {printable_path(path)} has the key {TEMPLATE_KEY!r}, with which Snakemake runs the other keys "
            "as code: remove it."
        )
    return config


def read_snakemake_config(config: Mapping[str, Any], settings: Any, folder: str | None) -> Config:
    """Return the config of a Snakefile from the files that were passed to Snakemake, read as all commands read them.

    Parameters
    ----------
    config
        The config as Snakemake has it.
    settings
        Snakemake's settings: the config files, the values that override them, and the resulting config. If `config`
        differs from that config, another workflow that uses this one made it.
    folder
        As `default_config` takes it.

    Raises
    ------
    HeatproofError
        As `read_config` does.
    """
    default = default_config(folder)
    if config != settings.overwrite_config:
        return merge(default, config)
    return reduce(merge, [*map(read_mapping, settings.configfiles), settings.config], default)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Config:
    """Merge one mapping over another, key by key; values that are not mappings are replaced."""
    merged = dict(copy.deepcopy(base))
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else copy.deepcopy(value)
    return merged
