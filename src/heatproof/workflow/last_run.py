"""Record the config of the last run in a results folder; commands use it if the user names no config.

A results folder can come from an untrusted source. The record has values only, and a config that names code outside
heatproof is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from heatproof.core.registry import forbid_user_code
from heatproof.errors import HeatproofError
from heatproof.store.manifest import read_checksummed, write_checksummed
from heatproof.store.publishing import plain_addresses, public
from heatproof.store.reading import refuse_links
from heatproof.workflow.config.files import Config, read_config, workflow_folder
from heatproof.workflow.plan.paths import RESULTS
from heatproof.workflow.plan.validate import Plan, make_plan

RECORD = ".last_run.json"
# Environment variable with the names of the configs whose merged values Snakemake gets as one file, as a JSON list.
NAMES_VARIABLE = "HEATPROOF_NAMED"
FIELD_TYPES = {"named": list, "values": dict, "when": str}


def record_run(config: Mapping[str, Any], named: Sequence[str | Path], folder: str | Path = RESULTS) -> None:
    """Record the config of a run.

    Parameters
    ----------
    config
        All values, including those of the default config. Addresses are written without secrets.
    named
        Files and options that the config was read from; empty for the default config.
    folder
        The results folder.
    """
    when = datetime.now().astimezone().isoformat(sep=" ", timespec="minutes")
    record = {
        "named": [_name_of(config_name) for config_name in named],
        "values": plain_addresses(config),
        "when": when,
    }
    write_checksummed(refuse_links(Path(folder) / RECORD), record)


def _name_of(config: str | Path) -> str:
    """Return the name of a config for messages: the name of a shipped config, or a path without folders elsewhere."""
    path = Path(config)
    if path.parent == workflow_folder() / "config":
        return path.stem
    return str(public((path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path).as_posix()))


@dataclass(frozen=True)
class RunConfig:
    """The config of a command.

    Attributes
    ----------
    plan
        Its plan.
    config
        Its values, including those of the default config.
    named
        Its names, as arguments of a command; empty for the default config.
    note
        A sentence on the run that the config is from; "" if the user named the config.
    """

    plan: Plan
    config: Config
    named: list[str]
    note: str = ""


def load_named_or_last(configs: Sequence[str], folder: str | Path = RESULTS) -> RunConfig:
    """Return the config that the user names, or by default that of the last run.

    Parameters
    ----------
    configs
        Files, or names of shipped configs; empty for the config of the last run.
    folder
        The results folder.

    Raises
    ------
    HeatproofError
        If `configs` is empty, and no run is recorded, the record is damaged, or its config names code outside
        heatproof.
    """
    if configs:
        config = read_config(*configs)
        return RunConfig(make_plan(config), config, list(configs))
    path = refuse_links(Path(folder) / RECORD)
    recorded = _recorded(path)
    if recorded is None:
        why = f"{path} is damaged" if path.exists() else f"no run is recorded in {folder}"
        raise HeatproofError(f"No config is named, and {why}: name one, such as mine.yaml or quick.")
    config, named, when = recorded
    names = " with ".join(named) or "the default config"
    remedy = f"the config of the last run in {folder}, {names}, was not named explicitly: name it to run its code"
    with forbid_user_code(remedy):
        plan = make_plan(config)
    note = f"No config is named: this uses {names}, as the last run in {folder} did ({when})."
    return RunConfig(plan, config, named, note)


def _recorded(path: Path) -> tuple[Config, list[str], str] | None:
    """Return config, names and time of a record; None if `record_run` could not have written it."""
    record = read_checksummed(path) or {}
    if not all(isinstance(record.get(key), kind) for key, kind in FIELD_TYPES.items()):
        return None
    return record["values"], list(map(str, record["named"])), record["when"]
