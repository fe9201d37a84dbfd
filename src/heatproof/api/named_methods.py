"""Methods as callers name them: heatproof's by name and options, objects of other libraries, and functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from heatproof.core.methods import Method
from heatproof.core.options import check_options, normalise_grid_options, short_repr, to_python_numbers
from heatproof.core.registry import look_up
from heatproof.errors import HeatproofError
from heatproof.explainers.other_libraries import as_function, check_arguments_of, deletes_regions, library_of
from heatproof.explainers.registry import EXPLAINERS, Explainer, require_library


def select_methods(methods: str | Sequence[Any] | Mapping[str, Any]) -> list[Method]:
    """Return the methods that the caller named, with their explainers and complete options.

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
        return [_select_method(name, method) for name, method in methods.items()]
    named = [
        next(iter(method.items()))
        if isinstance(method, Mapping) and len(method) == 1 and isinstance(next(iter(method)), str)
        else (None, method)
        for method in methods
    ]
    return [_select_method(name, method) for name, method in named]


def _select_method(name: str | None, method: Any) -> Method:
    if isinstance(method, Method) and isinstance(method.explainer, Explainer):
        return method
    if isinstance(method, str):
        return _explainer_method(name or method, method, {})
    if isinstance(method, Mapping):
        options = dict(method)
        if name is None:
            raise HeatproofError(
                f"A method is {short_repr(method)}: give a name with its options, as {{'rise': {{'masks': 200}}}}."
            )
        inner = next(iter(options.items()), (None, None))
        if len(options) == 1 and name not in EXPLAINERS and isinstance(inner[1], Mapping):
            return _explainer_method(name, str(inner[0]), dict(inner[1]))
        return _explainer_method(name, str(options.pop("explainer", name)), options)
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
    if library_of(method) is None and callable(method):
        check_arguments_of(name, method)
    return method_wrapping(name, method)


def method_wrapping(name: str, wrapped: Any) -> Method:
    """Return the method of an object of another library, or of a function of model, images and targets."""
    function, ablates = as_function(name, wrapped), deletes_regions(wrapped)
    return Method(name, Explainer(name, function, {name: True}, ablates=ablates, wraps=wrapped))


def _explainer_method(name: str, kind: str, options: Mapping[str, Any]) -> Method:
    entry = look_up(EXPLAINERS, kind, "explainer")
    require_library(entry)
    options = {key: to_python_numbers(value) for key, value in options.items()}
    if "layer" in options and "layer" not in entry.options and "cam_layer" in entry.needs:
        raise HeatproofError(
            f"The explainer {name!r} has no option 'layer': all methods of a call read one layer, so give it to "
            f"the call, as layer={short_repr(options['layer'])} beside methods."
        )
    check_options(entry.function, options, f"explainer {name!r}", positional=("context",))
    return Method(name, entry, {**entry.options, **normalise_grid_options(options, entry.function)})


def check_names(methods: Sequence[Method]) -> None:
    """Refuse two methods whose maps have the same name.

    Raises
    ------
    HeatproofError
        With the name.
    """
    names = [name for method in methods for name in method.map_names]
    if repeated := sorted(name for name in names if names.count(name) > 1):
        raise HeatproofError(
            f"Two methods are called {repeated[0]!r}: give them names, as {{'short': {{...}}, 'long': {{...}}}}."
        )
