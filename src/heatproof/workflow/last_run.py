"""The config of the last run in a results folder, which commands follow where none is named.

A results folder can come from anywhere. What it records are values: they are shown by the name that they had, and
followed only where they name no code but heatproof's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from heatproof.base.registry import forbid_user_code
from heatproof.config.files import Config, read_config, workflow_folder
from heatproof.errors import HeatproofError
from heatproof.files.publishing import plain_addresses, public
from heatproof.files.reading import refuse_links
from heatproof.plan.paths import RESULTS
from heatproof.plan.validate import Plan, make_plan
from heatproof.stores.manifest import read_checksummed, write_checksummed

RECORD = ".last_run.json"
# The environment variable with the names of a config whose values stand in another file, as a JSON list.
NAMES_VARIABLE = "HEATPROOF_NAMED"
KINDS = {"named": list, "values": dict, "when": str}


def record_run(config: Mapping[str, Any], named: Sequence[str | Path], folder: str | Path = RESULTS) -> None:
    """Write down which config a run has.

    Parameters
    ----------
    config
        All of its values, those of the default config included. Addresses are written without their secrets.
    named
        The files that it was read from, and options; none for the default config.
    folder
        The results folder.
    """
    when = datetime.now().astimezone().isoformat(sep=" ", timespec="minutes")
    record = {"named": [_name_of(one) for one in named], "values": plain_addresses(config), "when": when}
    write_checksummed(refuse_links(Path(folder) / RECORD), record)


def _name_of(given: str | Path) -> str:
    """Return how a config is shown: one that comes with heatproof as users name it, and no folder elsewhere."""
    path = Path(given)
    if path.parent == workflow_folder() / "config":
        return path.stem
    return str(public((path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path).as_posix()))


@dataclass(frozen=True)
class RunConfig:
    """The config that a command is about.

    Attributes
    ----------
    plan
        What it means.
    config
        Its values, those of the default config included.
    named
        How it is given to a command; empty for the default config.
    told
        A sentence on the run whose config it is; "" where the command was given one.
    """

    plan: Plan
    config: Config
    named: list[str]
    note: str = ""


def load_named_or_last(configs: Sequence[str], folder: str | Path = RESULTS) -> RunConfig:
    """Return the config that a command is given, or that of the last run where it is given none.

    Parameters
    ----------
    configs
        Files, or names of configs that come with heatproof.
    folder
        The results folder.

    Raises
    ------
    HeatproofError
        If none is given, and no run is recorded, the record is damaged, or its config names code that is not
        heatproof's.
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
    remedy = f"nobody named the config of the last run in {folder}, {names}: name it, and its code is run"
    with forbid_user_code(remedy):
        plan = make_plan(config)
    note = f"No config is named: this follows {names}, as the last run in {folder} had it ({when})."
    return RunConfig(plan, config, named, note)


def _recorded(path: Path) -> tuple[Config, list[str], str] | None:
    """Return config, names and time of a record, or None if it is not as `record_run` writes it."""
    record = read_checksummed(path) or {}
    if not all(isinstance(record.get(key), kind) for key, kind in KINDS.items()):
        return None
    return record["values"], list(map(str, record["named"])), record["when"]
