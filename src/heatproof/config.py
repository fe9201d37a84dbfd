"""The config: defaults, the schema, and one clear sentence for what is wrong in it."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from functools import cache, reduce
from pathlib import Path
from typing import Any

import yaml

from heatproof.errors import HeatproofError
from heatproof.registry import nearest

Config = dict[str, Any]

# File systems take 255 bytes; endings, numbers and the names of temporary files come on top.
LONGEST_NAME = 150


def _packaged(name: str, in_repository: str) -> Path:
    beside = Path(__file__).with_name(name)
    return beside if beside.is_file() else Path(__file__).parents[2] / in_repository


@cache
def schema() -> dict[str, Any]:
    """Return the schema of the config."""
    path = _packaged("config.schema.yaml", "workflow/schemas/config.schema.yaml")
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def default_config() -> Config:
    """Return the embedded default config as written, without the schema's defaults."""
    return yaml.safe_load(_packaged("default.yaml", "config/config.yaml").read_text(encoding="utf-8"))


def read_config(*paths: str | Path) -> Config:
    """Read configs as the workflow does: each laid over those before it and over the embedded default, lists replaced.

    Raises
    ------
    HeatproofError
        If a file is missing or is not a YAML mapping.
    """
    return reduce(merge, map(_read_mapping, paths), default_config())


def _read_mapping(path: str | Path) -> Config:
    try:
        given = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise HeatproofError(f"The config {path} cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError:
        raise HeatproofError(f"The config {path} is not text in UTF-8.") from None
    except yaml.YAMLError as error:
        raise HeatproofError(f"The config {path} is not valid YAML: {' '.join(str(error).split())}.") from None
    if not isinstance(given, dict):
        raise HeatproofError(f"The config {path} must be a mapping of keys to values.")
    return given


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Config:
    """Lay one mapping over another, key by key; anything but a mapping is replaced."""
    merged = dict(copy.deepcopy(base))
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else copy.deepcopy(value)
    return merged


def normalise(config: Mapping[str, Any]) -> Config:
    """Check a config against the schema, fill in defaults, and turn its lists of entries into mappings.

    Returns
    -------
    dict
        With ``datasets``, ``models``, ``weights``, ``explainers`` and ``metrics`` as {name: settings}, in the config's
        order.

    Raises
    ------
    HeatproofError
        One sentence for the first thing that is wrong.
    """
    filled = copy.deepcopy(dict(config))
    _validate(filled, schema(), "the config")
    _fill(filled, schema())
    for key in ("datasets", "models", "weights", "explainers", "metrics"):
        filled[key] = _entries(filled[key], key)
    for key, kind in (("datasets", "dataset"), ("explainers", "explainer"), ("metrics", "metric")):
        for name, settings in filled[key].items():
            if not isinstance(settings.get(kind, ""), str):
                raise HeatproofError(f"{kind!r} in {key}: {name} must be a name, not {settings[kind]!r}.")
    for name, settings in filled["models"].items():
        _validate(settings, _definition("model_settings"), f"models: {name}")
    for name, settings in filled["weights"].items():
        _validate(settings, _definition("weights_settings"), f"weights: {name}")
    return filled


def _definition(name: str) -> dict[str, Any]:
    return {**schema()["$defs"][name], "$defs": schema()["$defs"]}


def _entries(items: Iterable[Any], key: str) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    for item in items:
        name, settings = (item, {}) if isinstance(item, str) else next(iter(item.items()))
        name = str(name)  # YAML reads 18 as a number
        if name in entries:
            raise HeatproofError(f"{key} names {name!r} twice: give the second one a name of its own.")
        plain = name.replace("_", "").replace("-", "").replace(".", "").isalnum()
        if not plain or name.startswith(".") or len(name.encode()) > LONGEST_NAME:
            raise HeatproofError(
                f"{name!r} in {key} cannot name a folder: use letters, digits, '_', '-' and '.', {LONGEST_NAME} "
                f"bytes at most; what it refers to goes into its settings."
            )
        entries[name] = settings or {}
    return entries


def _resolved(node: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = node.get("$ref")
    return schema()["$defs"][reference.rpartition("/")[2]] if reference else node


def _fill(config: Config, node: Mapping[str, Any]) -> None:
    for key, child in _resolved(node).get("properties", {}).items():
        if key not in config and "default" in child:
            config[key] = copy.deepcopy(child["default"])
        if key in config and isinstance(config[key], dict):
            _fill(config[key], child)


def _validate(value: Any, node: dict[str, Any], where: str) -> None:
    import jsonschema

    error = jsonschema.exceptions.best_match(_validator()(node).iter_errors(value))
    if error is not None:
        raise HeatproofError(_sentence(error, where))


@cache
def _validator() -> Any:
    import jsonschema

    # To JSON Schema 64.0 is an integer; to range() it is not.
    types = jsonschema.Draft202012Validator.TYPE_CHECKER.redefine(
        "integer", lambda _, value: isinstance(value, int) and not isinstance(value, bool)
    )
    return jsonschema.validators.extend(jsonschema.Draft202012Validator, type_checker=types)


def _sentence(error: Any, where: str) -> str:
    path = ".".join(str(part) for part in error.absolute_path)
    place = f"{path!r} in {where}" if path else where
    if error.validator == "additionalProperties":
        known = error.schema.get("properties", {})
        unknown = next(key for key in error.instance if key not in known)
        inside = f" under {path!r}" if path else ""
        return f"There is no key {unknown!r}{inside} in {where}: {nearest(str(unknown), known)}"
    if error.validator == "enum":
        return f"{place} cannot be {error.instance!r}: {nearest(str(error.instance), map(str, error.validator_value))}"
    if error.validator == "anyOf":
        names = [name for option in error.validator_value for name in option.get("enum", ())]
        if names and isinstance(error.instance, str):
            return f"{place} cannot be {error.instance!r}: {nearest(error.instance, names)}"
        return f"{place} must be a name or {{name: settings}}, not {error.instance!r}."
    return f"{place} is not valid: {error.message}."
