"""Types of the values of a config: names, bounds, and lists of entries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError, PydanticKnownError, core_schema

from heatproof.core.grids import MAXIMUM_SIDE, as_grid, grid_shape
from heatproof.core.options import parse_duration
from heatproof.core.registry import fold_name, is_reference
from heatproof.errors import HeatproofError

# File systems allow 255 bytes; endings, numbers and the names of temporary files are added to a name.
MAXIMUM_NAME_BYTES = 150
MAXIMUM_ENTRIES = 1000
# Placeholder in the schema for the names in a table of heatproof.
NAMES = "names"


class Entries:
    """Annotation of a mapping from names to settings, which a config writes as a list of names or {name: settings}."""

    def __init__(self, kind: str, least: int = 1) -> None:
        self.kind, self.least = kind, least

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.with_info_before_validator_function(self._read, handler(source))

    def __get_pydantic_json_schema__(self, schema: core_schema.CoreSchema, handler: Any) -> dict[str, Any]:
        settings = handler(schema)["additionalProperties"]
        settings = {"anyOf": [{"type": "object"} if settings is True else settings, {"type": "null"}]}
        entry = {"type": "object", "minProperties": 1, "maxProperties": 1, "additionalProperties": settings}
        names = [{NAMES: self.kind}, {"type": "string"}]
        return {"type": "array", "minItems": self.least, "items": {"anyOf": [*names, entry]}}

    def _read(self, items: Any, info: Any) -> dict[str, Any]:
        key = info.field_name
        if isinstance(items, Mapping):  # read before
            return dict(items)
        if not isinstance(items, list) or len(items) < self.least:
            raise HeatproofError(f"{key!r} in the config must be a list of names or {{name: settings}}, not {items!r}.")
        if len(items) > MAXIMUM_ENTRIES:
            raise HeatproofError(f"{key!r} in the config has {len(items)} entries: name at most {MAXIMUM_ENTRIES}.")
        entries: dict[str, Any] = {}
        files: dict[str, str] = {}
        for index, item in enumerate(items):
            name, settings = next(iter(item.items()), (None, None)) if isinstance(item, Mapping) else (item, None)
            is_entry = isinstance(item, str) or (isinstance(item, Mapping) and len(item) == 1)
            if not is_entry or not isinstance(settings, Mapping | None):
                indent = isinstance(item, Mapping) and None in item.values()
                hint = ": indent the settings further than the name" if indent else ""
                raise HeatproofError(
                    f"'{key}.{index}' in the config must be a name or {{name: settings}}, not {item!r}{hint}."
                )
            name = str(name)  # YAML reads 18 as a number
            if name in entries:
                raise HeatproofError(f"{key} names {name!r} twice: give the second entry another name.")
            is_plain = name.replace("_", "").replace("-", "").replace(".", "").isalnum()
            if not is_plain or name.startswith(".") or len(name.encode()) > MAXIMUM_NAME_BYTES:
                raise HeatproofError(
                    f"{name!r} in {key} cannot name a folder: use letters, digits, '_', '-' and '.', "
                    f"{MAXIMUM_NAME_BYTES} bytes at most; what it refers to goes into its settings."
                )
            if (colliding := files.setdefault(fold_name(name), name)) != name:
                raise HeatproofError(
                    f"{key} names {colliding!r} and {name!r}, which some file systems take for one name: rename one of "
                    "the two."
                )
            entries[name] = dict(settings or {})
            if not isinstance(entries[name].get(self.kind, ""), str):
                raise HeatproofError(
                    f"{self.kind!r} in {key}: {name} must be a name, not {entries[name][self.kind]!r}."
                )
        return entries


class NameOf:
    """Annotation of a name in a table of heatproof; the plan looks it up."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __get_pydantic_json_schema__(self, schema: core_schema.CoreSchema, handler: Any) -> dict[str, Any]:
        return {NAMES: self.kind}


def require_distinct(values: list[Any]) -> list[Any]:
    """Refuse a list that names a value twice or has too many entries; otherwise return it."""
    if len(values) > MAXIMUM_ENTRIES:
        context = {"count": len(values), "most": MAXIMUM_ENTRIES}
        raise PydanticCustomError("twice", "has {count} entries: name at most {most}", context)
    repeated = next((value for index, value in enumerate(values) if value in values[:index]), None)
    if repeated is not None:
        raise PydanticCustomError("twice", "names {value} twice", {"value": repr(repeated)})
    return values


def validate_target(value: Any) -> Any:
    """Refuse values other than ``label``, ``predicted``, the number of a class, or a reference to a function."""
    named = isinstance(value, str) and (value in ("label", "predicted") or is_reference(value))
    if not named and (type(value) is not int or not 0 <= value < MAXIMUM_IMAGES):
        raise PydanticCustomError(
            "target",
            "`label`, `predicted`, the number of a class, counted from 0, or a function of yours as "
            "`package.module:function`",
        )
    return value


def validate_grid(value: Any) -> Any:
    """Return a grid of at least two patches in the standard form of `heatproof.core.grids.as_grid`."""
    if type(value) is int and value < 2:
        raise PydanticKnownError("greater_than_equal", {"ge": 2})
    if type(value) is int and value > MAXIMUM_SIDE:
        raise PydanticKnownError("less_than_equal", {"le": MAXIMUM_SIDE})
    try:
        grid = as_grid(value)
    except HeatproofError:
        grid = 1
    if grid == 1 or max(grid_shape(grid)) > MAXIMUM_SIDE:
        expected = f"a whole number of at least 2 and at most {MAXIMUM_SIDE}, or [rows, columns]"
        raise PydanticCustomError("grid", expected)
    return grid


def validate_time(value: str) -> str:
    """Refuse values other than ``none`` and durations that `parse_duration` reads."""
    try:
        _ = value == "none" or parse_duration(value)
    except HeatproofError:
        raise PydanticCustomError("time", "a time such as 2h, 15min or 90s, or none") from None
    return value


# Upper bounds are far above any real run. A larger number is a typo, or belongs to a config that is meant to exhaust
# the machine.
Epochs = Annotated[int, Field(ge=1, le=100_000)]
MAXIMUM_IMAGES = 100_000_000
MAXIMUM_IN_BATCH = 1_000_000
Images = Annotated[int, Field(ge=2, le=MAXIMUM_IMAGES)]
# Name of a layer of the network, optionally with the number of one of its channels after a colon.
Layer = Annotated[str, Field(pattern=r"^[^:\s]+(:[0-9]{1,9})?$", max_length=MAXIMUM_NAME_BYTES)]
ImagesPerBatch = Annotated[int, Field(ge=1, le=MAXIMUM_IN_BATCH)]
# Tags of a value that is one for all, or several by name; messages leave them out.
ONE_VALUE, SEVERAL_VALUES = "one value", "several values"
OneOrSeveral = Discriminator(lambda value: ONE_VALUE if isinstance(value, int | float | str) else SEVERAL_VALUES)
NumberOrAuto = Discriminator(lambda value: SEVERAL_VALUES if value == "auto" else ONE_VALUE)
Precision = Literal["float32", "tf32", "bfloat16"]
Devices = Annotated[int, Field(ge=1, le=1024)]
Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, le=1000)]
Grid = Annotated[
    Any,
    BeforeValidator(validate_grid),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 2, "maximum": MAXIMUM_SIDE},
                {
                    "type": "array",
                    "items": {"type": "integer", "minimum": 1, "maximum": MAXIMUM_SIDE},
                    "minItems": 2,
                    "maxItems": 2,
                },
            ]
        }
    ),
]
Baseline = Annotated[str, NameOf("baseline")]
Time = Annotated[str, AfterValidator(validate_time)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{8,64}$")]
Distinct = AfterValidator(require_distinct)
ChannelNumbers = Field(min_length=1, max_length=1000)
