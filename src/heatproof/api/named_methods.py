"""Methods as callers name them: heatproof's by name and options, objects of other libraries, and functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from heatproof.attribution.registry import EXPLAINERS, Explainer, require_library
from heatproof.base.options import check_options, normalise_grid_options, short_repr, to_python_numbers
from heatproof.base.registry import look_up
from heatproof.errors import HeatproofError

if TYPE_CHECKING:
    from heatproof.attribution.explaining import MapMaker


Method = Any


@dataclass
class NamedMethod:
    """A method as the caller named it.

    Attributes
    ----------
    name
        Name in the result.
    entry
        heatproof's explainer; None for a method of another library.
    options
        All options of the explainer.
    foreign
        An object of another library, or a function.
    """

    name: str
    entry: Explainer | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    foreign: Any = None

    @property
    def ablates(self) -> bool:
        """Whether the method deletes regions one by one; see `heatproof.attribution.registry.Explainer`."""
        from heatproof.attribution.other_libraries import deletes_regions

        return self.entry.ablates if self.entry is not None else deletes_regions(self.foreign)

    @property
    def maps(self) -> list[str]:
        """Names of the method's maps in the result."""
        if self.entry is None or list(self.entry.maps) == [self.entry.name]:
            return [self.name]
        if self.name == self.entry.name:
            return list(self.entry.maps)
        return [f"{self.name}_{map_name}" for map_name in self.entry.maps] if len(self.entry.maps) > 1 else [self.name]

    @property
    def maker(self) -> MapMaker:
        """The function that makes the maps, with its options."""
        from heatproof.attribution.explaining import MapMaker
        from heatproof.attribution.other_libraries import as_function

        if self.entry is None:
            return MapMaker(self.name, as_function(self.name, self.foreign), {}, {self.name: True})
        return MapMaker(self.name, self.entry.function, self.options, self.entry.maps)


def select_methods(methods: str | Sequence[Method] | Mapping[str, Method]) -> list[NamedMethod]:
    """Return the methods that the caller named, with complete options.

    Raises
    ------
    HeatproofError
        If there are none, or one is unknown.
    """
    if isinstance(methods, str) or not isinstance(methods, Mapping | Sequence):
        methods = [methods]
    if not methods:
        raise HeatproofError("No method is given: name at least one, as methods=['grad_cam', 'saliency'].")
    if isinstance(methods, Mapping):
        return [_named_method(name, method) for name, method in methods.items()]
    is_named = [isinstance(one, Mapping) and len(one) == 1 and isinstance(next(iter(one)), str) for one in methods]
    named = [
        next(iter(one.items())) if has_name else (None, one) for one, has_name in zip(methods, is_named, strict=True)
    ]
    return [_named_method(name, method) for name, method in named]


def _named_method(name: str | None, method: Method) -> NamedMethod:
    if isinstance(method, NamedMethod):
        return method
    if isinstance(method, str):
        return _named_explainer(name or method, method, {})
    if isinstance(method, Mapping):
        options = dict(method)
        if name is None:
            raise HeatproofError(
                f"A method is {short_repr(method)}: give a name with its options, as {{'rise': {{'masks': 200}}}}."
            )
        inner = next(iter(options.items()), (None, None))
        if len(options) == 1 and name not in EXPLAINERS and isinstance(inner[1], Mapping):
            return _named_explainer(name, str(inner[0]), dict(inner[1]))
        return _named_explainer(name, str(options.pop("explainer", name)), options)
    if not (callable(method) or hasattr(method, "attribute") or hasattr(method, "context")):
        raise HeatproofError(
            f"A method is {type(method).__name__}: give a name, a name with options, a function of model, images and "
            "targets, or an object of captum, torch-cam, pytorch-grad-cam or zennit."
        )
    name = name or str(getattr(method, "__name__", type(method).__name__))
    if isinstance(method, type):
        raise HeatproofError(
            f"The method {name!r} is a class: give an object of it, made as its library says, such as "
            "captum.attr.Saliency(model)."
        )
    from heatproof.attribution.other_libraries import check_arguments_of, library_of

    if library_of(method) is None and callable(method):
        check_arguments_of(name, method)
    return NamedMethod(name, foreign=method)


def _named_explainer(name: str, kind: str, options: Mapping[str, Any]) -> NamedMethod:
    entry = look_up(EXPLAINERS, kind, "explainer")
    require_library(entry)
    options = {key: to_python_numbers(value) for key, value in options.items()}
    check_options(entry.function, options, f"explainer {name!r}", positional=("context",))
    return NamedMethod(name, entry, {**entry.options, **normalise_grid_options(options, entry.function)})


def check_names(methods: Sequence[NamedMethod]) -> None:
    """Refuse two methods whose maps have the same name.

    Raises
    ------
    HeatproofError
        With the name.
    """
    names = [name for one in methods for name in one.maps]
    if repeated := sorted(name for name in names if names.count(name) > 1):
        raise HeatproofError(
            f"Two methods are called {repeated[0]!r}: give them names, as {{'short': {{...}}, 'long': {{...}}}}."
        )
