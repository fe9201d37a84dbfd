"""Turn attribution objects of other libraries, and functions of callers, into explainers."""

from __future__ import annotations

import inspect
from typing import Any

from heatproof.core.lazy import torch
from heatproof.errors import CallRefused, HeatproofError
from heatproof.explainers.plain_functions import as_explainer, split_delta, sum_over_channels
from heatproof.explainers.registry import ExplainFunction

# Packages whose objects are accepted as methods; those of zennit are composites, which hold no network.
LIBRARIES = ("captum", "torchcam", "pytorch_grad_cam", "zennit")
HOLDING_NETWORKS = LIBRARIES[:3]
# Classes of captum whose maps should sum to the output at the image minus the output at the zero baseline.
COMPLETE_METHODS = ("IntegratedGradients", "DeepLift")


def library_of(method: Any) -> str | None:
    """Return the package of `LIBRARIES` that defines an object's class or a base of it; None for any other object."""
    packages = [base.__module__.partition(".")[0] for base in type(method).__mro__]
    return next((library for library in LIBRARIES if library in packages), None)


def deletes_regions(method: Any) -> bool:
    """Return whether a method deletes regions one by one, as captum's FeatureAblation and Occlusion do."""
    return any(base.__name__ == "FeatureAblation" for base in type(method).__mro__)


def check_arguments_of(name: str, function: Any) -> None:
    """Require that a function can be called with a model, images and targets.

    Raises
    ------
    HeatproofError
        If its signature does not allow that.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a function that is not written in Python
        return
    try:
        signature.bind("model", "images", "targets")
    except TypeError:
        raise HeatproofError(
            f"The method {name!r} takes {signature}: give a function of model, images and targets."
        ) from None


def as_function(name: str, method: Any) -> ExplainFunction:
    """Return an explainer that calls an object of another library, or a function of model, images and targets.

    Maps are summed over channels. Maps of a library are enlarged to the size of the image; a function that returns
    smaller maps is not applicable, as in a run.

    An object that holds another network than the model passes no image through the model, and its call raises
    CallRefused.
    """

    def call(model: Any, images: torch.Tensor, targets: torch.Tensor) -> Any:

        passes = _passes_of(model)
        maps, delta = split_delta(_call(method, model, images, targets), len(images))
        if library_of(method) in HOLDING_NETWORKS and passes is not None and _passes_of(model) == passes:
            raise CallRefused(
                f"The method {name!r} was made for another network than the model, or calls the model's forward "
                "instead of the model: create it again with the model itself."
            )
        maps = sum_over_channels(maps, name)
        size = tuple(images.shape[2:])
        if library_of(method) and maps.ndim == 3 and len(maps) == len(images) and maps.shape[1:] != size:
            maps = torch.nn.functional.interpolate(maps[:, None], size, mode="bilinear", align_corners=False)[:, 0]
        return maps if delta is None else (maps, delta)

    return as_explainer(call, name)


def _passes_of(model: Any) -> int | None:
    """Return how many images went through a prepared network, for results and for checks; None for any other."""
    from heatproof.core.hooks import hooks_of

    hooks = hooks_of(model)
    return None if hooks is None else hooks.passes + hooks.check_passes


def _delta_of(method: Any, maps: torch.Tensor, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor | None:
    from heatproof.core.hooks import counted_as_check

    if not method.multiplies_by_inputs:
        return None
    with counted_as_check(), torch.no_grad():
        return method.compute_convergence_delta(maps, torch.zeros_like(images), images, target=targets)


def _call(method: Any, model: Any, images: torch.Tensor, targets: torch.Tensor) -> Any:
    library = library_of(method)
    if library == "captum":
        maps = method.attribute(images.requires_grad_(), target=targets)
        return (maps, _delta_of(method, maps, images, targets)) if type(method).__name__ in COMPLETE_METHODS else maps
    if library == "torchcam":
        images.requires_grad_()
        scores = method.model(images) if hasattr(method, "model") else model(images)
        return method(class_idx=targets.tolist(), scores=scores, normalized=False)
    if library == "pytorch_grad_cam":
        from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

        # The parameters need no gradients here, so without those of the images there would be no graph.
        images.requires_grad_()
        return method(input_tensor=images, targets=[ClassifierOutputTarget(int(target)) for target in targets])
    if library == "zennit":
        from zennit.attribution import Gradient

        def at_target(output: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.one_hot(targets, output.shape[1]).to(output)

        with Gradient(model, method) as attributor:
            return attributor(images, at_target)[1]
    if not callable(method):
        raise HeatproofError(f"A {type(method).__name__} is no method: give an object that explains images.")
    return method(model, images, targets)
