"""Options of explainers, datasets, metrics and architectures: bounds of their values, and checks before work starts.

The annotation of an argument defines which values an option takes; without an annotation, the type of its default does.
If an annotation cannot be evaluated (a name that is imported for type checking only) or is a user's class, the function
itself has to check the value.
"""

from __future__ import annotations

import functools
import inspect
import json
import math
import types
from collections import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import ge, gt, le, lt
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from heatproof.core.grids import MAXIMUM_SIDE, as_grid, normalise_grid_settings
from heatproof.core.registry import options_of, suggest_name
from heatproof.errors import HeatproofError

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, TypeAdapter
    from pydantic_core import CoreSchema

PLAIN = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", type(None): "null"}
LISTS = (list, tuple, set, frozenset, abc.Sequence, abc.Iterable, abc.Collection)
MAPPINGS = (dict, abc.Mapping)
# Largest magnitudes of numbers whose annotation has no upper bound: in options of heatproof's functions, and of users'
# functions. A larger number is a typo, or belongs to a config that is meant to exhaust the machine.
MAXIMUM_BUILT_IN = 1_000_000
MAXIMUM_CUSTOM = 2**63 - 1


def check_options(
    function: Callable[..., Any],
    options: Mapping[str, Any],
    label: str,
    *,
    positional: tuple[str, ...] = (),
    keywords: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Refuse unknown options and values that do not fit; return the defaults of the remaining options.

    Parameters
    ----------
    function
        The function that is called, heatproof's or a user's.
    options
        The options in the config.
    label
        What the config names, for error messages, such as ``explainer 'rise'``.
    positional, keywords
        Arguments that the workflow itself passes to the function.

    Returns
    -------
    dict
        Every option that the config does not set, with its default.

    Raises
    ------
    HeatproofError
        One sentence for the first problem.
    """
    try:
        signature = inspect.signature(function)
    except Exception as error:  # the code is the user's, and can fail in any way
        reason = " ".join(str(error).split())
        raise HeatproofError(
            f"The arguments of {label} cannot be read ({reason}): wrap it in a function of your own."
        ) from None
    parameters = list(signature.parameters.values())
    by_name = [p for p in parameters[len(positional) :] if p.kind is p.POSITIONAL_OR_KEYWORD]
    by_name += [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    accepted = {p.name: p for p in by_name if p.name not in keywords}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    for key in options:
        if key in keywords or not (key in accepted or (takes_any and isinstance(key, str))):
            hint = suggest_name(str(key), accepted) if accepted else "it takes none."
            raise HeatproofError(f"The {label} has no option {key!r}: {hint}")
    for key, parameter in accepted.items():
        if key not in options and parameter.default is parameter.empty:
            call = ", ".join([*positional, *(f"{name}=…" for name in keywords), "**options"])
            raise HeatproofError(
                f"The {label} needs the option {key!r}: give it a value in the config, or leave it out of the "
                f"function, which is called with ({call})."
            )
    try:
        signature.bind(*positional, **dict.fromkeys(keywords), **options)
    except TypeError as error:
        call = ", ".join([*positional, *(f"{key}=…" for key in [*keywords, *options])])
        raise HeatproofError(f"The {label} names a function that cannot be called with ({call}): {error}.") from None
    for key, value in options.items():
        _check_value(value, accepted.get(key), function, f"The option {key!r} of {label}")
    return {key: parameter.default for key, parameter in accepted.items() if key not in options}


def option_choices(function: Callable[..., Any]) -> dict[str, list[Any]]:
    """Return the keyword-only arguments of a function that take one of a few values, with these values."""
    named = inspect.signature(function).parameters
    expected = {name: _expected(named[name], function) for name in options_of(function)}
    values = {name: get_args(kind) if get_origin(kind) is Literal else () for name, kind in expected.items()}
    values |= {name: (True, False) for name, kind in expected.items() if kind is bool}
    return {name: list(several) for name, several in values.items() if several}


def check_defaults(defaults: Mapping[str, Any], label: str) -> None:
    """Refuse a default that cannot be written as JSON, as the spec of a job requires.

    Raises
    ------
    HeatproofError
        One sentence that names the option.
    """
    for key, default in defaults.items():
        try:
            json.dumps(default, sort_keys=True)
        except (TypeError, ValueError):
            raise HeatproofError(
                f"The option {key!r} of {label} has a default of type {type(default).__name__}, which cannot be stored "
                "with the results: use None, a number, a string, a list or a mapping."
            ) from None


def defining_module(function: Callable[..., Any], reference: str) -> str:
    """Return the module that holds the code behind a reference.

    For a function or a class this is the module that defines it. For any other object, such as a `functools.partial`,
    it is the module that creates it.
    """
    is_code = inspect.isroutine(function) or inspect.isclass(function)
    return (is_code and function.__module__) or reference.partition(":")[0]


def check_arguments(function: Callable[..., Any], arguments: Mapping[str, Any], *without: str) -> None:
    """Refuse values of keyword-only arguments of a public function that do not fit their annotations.

    Parameters
    ----------
    function
        A public function of heatproof.
    arguments
        Its arguments by name, such as its `locals()`; NumPy numbers count as numbers.
    without
        Arguments that are checked elsewhere: tensors, and arguments that another function reads.

    Raises
    ------
    HeatproofError
        One sentence for the first value that does not fit.
    """
    parameters = inspect.signature(function).parameters
    for name in options_of(function):
        if name not in without:
            label = f"{name!r} of heatproof.{function.__name__}"
            _check_value(to_python_numbers(arguments[name]), parameters[name], function, label)


def check_plain_values(function: Callable[..., Any], options: Mapping[str, Any], label: str) -> None:
    """Refuse values that do not fit where a function takes numbers, strings, booleans or lists of these.

    The function itself checks arrays.

    Raises
    ------
    HeatproofError
        One sentence for the first value that does not fit.
    """
    for name, parameter in inspect.signature(function).parameters.items():
        value = to_python_numbers(options.get(name))
        parts = value if isinstance(value, list | tuple) else [value]
        plain = all(isinstance(part, bool | int | float | str) for part in parts)
        if name in options and (plain or _is_plain(_expected(parameter, function))):
            _check_value(value, parameter, function, f"The option {name!r} of {label}")


def _is_plain(expected: Any) -> bool:
    origin, inner = get_origin(expected) or expected, get_args(expected)
    if origin is Annotated:
        return _is_grid(expected) or _is_plain(inner[0])
    if origin in (Union, types.UnionType):
        return all(map(_is_plain, inner))
    return origin in (int, float, bool, str, None, type(None), Literal)


def normalise_grid_options(options: Mapping[str, Any], *functions: Callable[..., Any]) -> dict[str, Any]:
    """Return options with every grid in the standard form of `heatproof.core.grids.as_grid`.

    Grids are the arguments that one of the functions annotates as `PatchGrid`, and those in ``baseline_options``.
    """
    normalised = dict(options)
    for function in functions:
        for name, parameter in inspect.signature(function).parameters.items():
            if normalised.get(name) is not None and _is_grid(_expected(parameter, function)):
                normalised[name] = as_grid(normalised[name], f"The option {name!r}")
    baseline_options = normalised.get("baseline_options")
    return (
        {**normalised, "baseline_options": normalise_grid_settings(baseline_options)}
        if isinstance(baseline_options, Mapping)
        else normalised
    )


def _is_grid(expected: Any) -> bool:
    return isinstance(expected, PatchGridBounds) or any(
        map(_is_grid, (*getattr(expected, "__metadata__", ()), *get_args(expected)))
    )


def to_python_numbers(value: Any) -> Any:
    """Convert a NumPy number to a Python number, also within lists and tuples."""
    if type(value) in (list, tuple):
        return type(value)(map(to_python_numbers, value))
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () else value


def _check_value(value: Any, parameter: inspect.Parameter | None, function: Callable[..., Any], label: str) -> None:
    for part in _nested_values(value):
        if isinstance(part, float) and not math.isfinite(part):
            raise HeatproofError(f"{label} must be finite, not {part}.")
        if not isinstance(part, str | int | float | list | tuple | dict | None):
            raise HeatproofError(
                f"{label} cannot hold {short_repr(part)}, a {type(part).__name__}: write it as a text or a number."
            )
        # Jobs get their options as JSON, whose keys are strings.
        for key in part if isinstance(part, dict) else ():
            if not isinstance(key, str):
                raise HeatproofError(f"{label} has the key {short_repr(key)}, which is no text: put it in quotes.")
    if parameter is None:
        return
    default, expected = parameter.default, _expected(parameter, function)
    if _fits(value, expected) or (type(value) is type(default) and value == default):
        _check_magnitude(value, expected, function, label)
        return
    number = isinstance(value, str) and any(_fits(number, expected) for number in _as_numbers(value))
    hint = " (a text: leave out quotes, and write 1e-3 as 1.0e-3)" if number else ""
    raise HeatproofError(
        f"{label} must be {_describe_type(_narrow_to_shape(value, expected))}, not {short_repr(value)}{hint}."
    )


def _is_number(expected: Any) -> bool:
    return expected in (int, float) or (get_origin(expected) is Annotated and get_args(expected)[0] in (int, float))


def _narrow_to_shape(value: Any, expected: Any) -> Any:
    """Return the part of a union that fits the shape of a value.

    These are its list types for a list, and its number types for a number.

    Return all expected types if the union does not have both.
    """
    inner = get_args(expected) if get_origin(expected) in (Union, types.UnionType) else ()
    lists = [kind for kind in inner if get_origin(kind) in LISTS]
    not_lists = [kind for kind in inner if kind not in lists]
    if not lists or isinstance(value, str | dict | None) or not any(map(_is_number, not_lists)):
        return expected
    chosen = lists if isinstance(value, list | tuple) else not_lists
    return Union[tuple(chosen)]  # noqa: UP007


def _check_magnitude(value: Any, expected: Any, function: Callable[..., Any], label: str) -> None:
    """Refuse excessively large numbers if the annotation has no upper bound."""
    if _is_bounded(expected):
        return
    maximum = MAXIMUM_BUILT_IN if str(_namespace(function).get("__name__")).startswith("heatproof.") else MAXIMUM_CUSTOM
    for part in _nested_values(value):
        if isinstance(part, int | float) and abs(part) > maximum:
            raise HeatproofError(f"{label} must be at most {maximum:,} in size, not {short_repr(part)}.")


def _is_bounded(expected: Any) -> bool:
    if isinstance(expected, Bounds):
        return expected.most is not None or expected.below is not None
    return any(map(_is_bounded, getattr(expected, "__metadata__", ()))) or any(map(_is_bounded, get_args(expected)))


def _nested_values(value: Any) -> Iterator[Any]:
    """Yield a value and all values inside it."""
    yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        yield from _nested_values(item)


def _as_numbers(text: str) -> Iterator[float]:
    for kind in (int, float):
        with suppress(ValueError):
            yield kind(text)


def short_repr(value: Any) -> str:
    """Return the repr of a value on one line, shortened to at most 60 characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def _expected(parameter: inspect.Parameter, function: Callable[..., Any]) -> Any:
    annotation = parameter.annotation
    if isinstance(annotation, str):
        try:
            alone = types.SimpleNamespace(__annotations__={parameter.name: annotation})
            annotation = get_type_hints(alone, _namespace(function), include_extras=True)[parameter.name]
        except Exception:  # see the module's docstring
            annotation = Any
    if annotation is not parameter.empty:
        return annotation
    kinds = (bool, int, float, str, list, tuple, dict)
    return next((kind for kind in kinds if isinstance(parameter.default, kind)), Any)


def _namespace(function: Any) -> dict[str, Any]:
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isclass(function):
        function = function.__init__
    elif not inspect.isroutine(function):
        function = type(function).__call__
    return getattr(inspect.unwrap(function), "__globals__", {})


def _fits(value: Any, expected: Any) -> bool:
    adapter = _adapter_of(expected)
    if adapter is None:
        return True
    try:
        # As JSON, in which configs and specs of jobs hold options: a list may stand for a tuple, nothing else differs.
        adapter.validate_json(json.dumps(value), strict=True)
    except ValueError:
        return False
    return True


@functools.cache
def _adapter_of(expected: Any) -> TypeAdapter[Any] | None:
    """Return the validator of an annotation; None if it holds a user's class, whose values the function checks."""
    # Jobs declare options and do not check them; the import would take a quarter of their start.
    from pydantic import TypeAdapter

    try:
        return TypeAdapter(expected)
    except Exception:  # see the module's docstring
        return None


def _describe_type(expected: Any) -> str:
    """Describe the accepted values in words."""
    origin, inner = get_origin(expected) or expected, get_args(expected)
    if origin is Annotated:
        for limit in inner[1:]:
            if isinstance(limit, PatchGridBounds):
                return str(limit)
        bounds = " and ".join(str(limit) for limit in inner[1:] if isinstance(limit, Bounds))
        return f"{_describe_type(inner[0])} {bounds}".strip()
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(_describe_type, inner)))
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin in LISTS:
        if len(inner) > 1 and inner[1] is not Ellipsis:
            return f"a list of {len(inner)} ({', '.join(map(_describe_type, inner))})"
        return f"a list (each {_describe_type(inner[0])})" if inner and inner[0] is not Any else "a list"
    if origin in MAPPINGS:
        return "a mapping"
    return PLAIN.get(type(None) if origin is None else origin, getattr(origin, "__name__", str(origin)))


def _checked(schema: CoreSchema, allows: Callable[[Any], bool]) -> CoreSchema:
    """Return pydantic's schema of an annotation whose values must also satisfy a condition."""
    from pydantic_core import core_schema

    def check(value: Any) -> Any:
        if not allows(value):
            raise ValueError
        return value

    return core_schema.no_info_after_validator_function(check, schema)


@dataclass(frozen=True)
class Bounds:
    """Bounds of a number, for use inside ``typing.Annotated``; None leaves a side open.

    Attributes
    ----------
    least, most
        Smallest and largest allowed value.
    above, below
        Limits that are not allowed themselves.

    Examples
    --------
    >>> from typing import Annotated
    >>> Probability = Annotated[float, Bounds(least=0, most=1)]
    """

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None

    def allows(self, value: float) -> bool:
        """Tell whether a number lies within the bounds."""
        limits = ((ge, self.least), (gt, self.above), (le, self.most), (lt, self.below))
        return all(limit is None or holds(value, limit) for holds, limit in limits)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        # Alternatives that are no numbers, such as null or a list, have no bounds.
        return _checked(handler(source), lambda value: not isinstance(value, int | float) or self.allows(value))

    def __str__(self) -> str:
        words = {"of at least": self.least, "above": self.above, "of at most": self.most, "below": self.below}
        return " and ".join(f"{word} {limit:g}" for word, limit in words.items() if limit is not None)


@dataclass(frozen=True)
class PatchGridBounds:
    """Annotation of a grid of patches, for use inside ``typing.Annotated``: an integer, or a list of rows and columns.

    Attributes
    ----------
    least
        Smallest allowed integer. If it is 2, one of rows and columns may still be 1.
    """

    least: int = 1

    def allows(self, value: Any) -> bool:
        """Tell whether a value is such a grid."""
        try:
            grid = as_grid(value)
        except HeatproofError:
            return False
        return grid >= self.least if isinstance(grid, int) else max(grid) <= MAXIMUM_SIDE

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return _checked(handler(source), self.allows)

    def __str__(self) -> str:
        return f"a whole number of at least {self.least} and of at most {MAXIMUM_SIDE} or [rows, columns]"


class DefaultCount(int):
    """A count that comes from a default and that no user set: it is lowered to the number that is available."""


Count = Annotated[int, Bounds(least=1)]
ImageCount = Annotated[int, Bounds(least=1, most=100_000_000)]
Side = Annotated[int, Bounds(least=1, most=8192)]
PatchGrid = Annotated[int | tuple[int, int], Bounds(least=1, most=MAXIMUM_SIDE), PatchGridBounds()]
# Side of a square, or height and width.
Size = Side | tuple[Side, Side]
Width = Annotated[int, Bounds(least=1, most=8192)]
Share = Annotated[float, Bounds(least=0, most=1)]
BatchSize = Count | Literal["auto"]


def height_and_width(size: int | Sequence[int]) -> tuple[int, int]:
    """Return the height and width of a size; a single number is the side of a square."""
    height, width = (size, size) if isinstance(size, int) else size
    return height, width


def as_size_option(sides: Sequence[int]) -> int | list[int]:
    """Return a height and width as a config writes them: one number for a square."""
    height, width = sides
    return height if height == width else [height, width]


UNITS = {"s": 1, "min": 60, "m": 60, "h": 3600}


def parse_duration(text: str) -> float:
    """Return the seconds of a duration such as ``2h``, ``15min`` or ``90s``.

    Raises
    ------
    HeatproofError
        If the string is not a duration.
    """
    number = text.rstrip("hmins")
    try:
        seconds = float(number) * UNITS[text[len(number) :]]
    except (ValueError, KeyError):
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise HeatproofError(f"The budget is {text}: give a time such as 2h, 15min or 90s.")
    return seconds
