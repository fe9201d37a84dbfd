"""`heatproof.explain`: attribution maps of any torch classifier, by heatproof's explainers or by other libraries'."""

from __future__ import annotations

import inspect
import json
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from heatproof.attribution.own import summed_over_channels
from heatproof.attribution.registry import EXPLAINERS, Explained, Explainer, Figure, require_library
from heatproof.errors import HeatproofError, NotApplicable, first_line, runs_out
from heatproof.options import BatchSize, check_arguments, check_options, short
from heatproof.registry import look_up

if TYPE_CHECKING:
    import torch
    import xarray


Method = Any
# Packages of which objects are methods, and where those keep the network that they were made for.
LIBRARIES = ("captum", "torchcam", "pytorch_grad_cam", "zennit")
HELD = ("forward_func", "model")


@dataclass
class Asked:
    """A method as the caller named it.

    Attributes
    ----------
    name
        In the result.
    entry
        heatproof's explainer; None for one of another library.
    options
        Of the explainer, all of them.
    foreign
        An object of another library, or a function.
    """

    name: str
    entry: Explainer | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    foreign: Any = None

    @property
    def ablates(self) -> bool:
        """Whether it deletes regions one by one; see `heatproof.attribution.registry.Explainer`."""
        if self.entry is not None:
            return self.entry.ablates
        # captum's Occlusion is one as well.
        return any(kind.__name__ == "FeatureAblation" for kind in type(self.foreign).__mro__)

    @property
    def maps(self) -> list[str]:
        """Names of its maps in the result."""
        if self.entry is None or list(self.entry.maps) == [self.entry.name]:
            return [self.name]
        if self.name == self.entry.name:
            return list(self.entry.maps)
        return [f"{self.name}_{map_name}" for map_name in self.entry.maps] if len(self.entry.maps) > 1 else [self.name]


def explain(
    model: torch.nn.Module,
    images: Any,
    targets: Any,
    methods: str | Sequence[Method] | Mapping[str, Method],
    *,
    seed: int = 0,
    batch_size: BatchSize = 64,
    image_ids: Sequence[str] | None = None,
    layer: str | torch.nn.Module | None = None,
    background: torch.Tensor | None = None,
    classes: Sequence[int | str] | None = None,
    transform: Callable[[Any], Any] | None = None,
    progress: bool | None = None,
) -> xarray.Dataset:
    """Make attribution maps of some images by one method or many.

    Parameters
    ----------
    model
        A classifier in eval mode: images (B, C, H, W) to logits (B, K), or an output with ``.logits``. It is left as it
        is; gradients of its parameters are off meanwhile.
    images
        (N, C, H, W), normalised as the model expects. Or a torch DataLoader or data set, whose images are read by
        number, in the order of the data set; any other iterable of batches, which is read once into memory; or a folder
        of pictures, with one folder a class or none. Batches are images, (images, labels) or a dict with usual keys.
    targets
        (N,) integers: the class of each image that is explained. None for the labels that come with the images, else
        the class that the network predicts.
    methods
        A method, a list of methods, or a mapping from names of your own to methods. A method is a name of
        `heatproof list explainers`; a mapping from such a name to options, as ``{"integrated_gradients": {"steps":
        50}}``; a captum ``Attribution``; an extractor of torch-cam or pytorch-grad-cam; a zennit composite; or a
        function of model, images and targets that returns maps (N, H, W) or (N, C, H, W).
    seed
        For methods that draw.
    batch_size
        Images in one network pass; ``"auto"`` is that of the device. Halved where memory runs out.
    image_ids
        N names, which seed random numbers; by default "0", "1", …, and of a folder the paths of its pictures.
    layer
        The layer whose grid class activation maps read, or its name; by default the last one with a spatial grid.
    background
        (B, C, H, W) other images, normalised, for methods that take some as baselines.
    classes
        Numbers of classes, or names of class folders: only images whose target is one of these are explained.
    transform
        Of a folder: a function from a PIL picture to a tensor (C, H, W); by default that of a model of timm.
    progress
        True to show how far it is also where output is a file, False to show nothing; by default where stderr is a
        terminal or a notebook.

    Returns
    -------
    xarray.Dataset
        ``attribution`` (method, image, y, x) float32, summed over channels, higher is more relevant; NaN where a method
        does not apply. ``reason`` (method), why it does not, else empty; ``seconds`` (method), of an image; ``passes``
        (method), images that went through the network for one map; ``options`` (method), as JSON; ``signed`` (method),
        whether maps can be negative. Coordinates ``target`` (image), the class, and ``image_digest`` (image), of the
        content of each image, by which `heatproof.evaluate` finds the map of an image. One method is selected by
        ``.sel({"method": "grad_cam"})``: xarray reads ``.sel(method=…)`` as a way to look up neighbours, and returns
        every method.

    Raises
    ------
    HeatproofError
        If a method or an option does not exist, or the inputs do not match.
    """
    import torch
    import xarray

    from heatproof.batches import track
    from heatproof.evaluation import predicted_classes
    from heatproof.inputs.arrays import check_finite, check_images, warn_of_range
    from heatproof.inputs.labels import DIGEST
    from heatproof.inputs.read import read_inputs
    from heatproof.models.registry import InputFacts

    if not isinstance(model, torch.nn.Module):
        raise HeatproofError(f"The model is {type(model).__name__}: give a torch.nn.Module, whose layers can be read.")
    layer = layer_name(model, layer)
    check_arguments(explain, locals(), "image_ids", "background", "classes", "transform")
    source = read_inputs(
        model, images, targets, image_ids,
        classes=classes, transform=transform, predict=partial(predicted_classes, model),
    )  # fmt: skip
    images, labels, ids = source.images, source.targets, source.ids
    assert labels is not None
    warn_of_range(images, model)
    if background is not None:
        background = check_images(background)
        check_finite(background, range(len(background)))
    asked = selected(methods)
    for one in asked:
        _check_network(one, model)
    check_fits(model, images, labels)
    names = [name for one in asked for name in one.maps]
    if repeated := sorted(name for name in names if names.count(name) > 1):
        raise HeatproofError(
            f"Two methods are called {repeated[0]!r}: give them names, as {{'short': {{...}}, 'long': {{...}}}}."
        )
    maps = np.full((len(names), len(ids), *images.shape[2:]), np.nan, np.float32)
    facts: list[dict[str, Any]] = []
    interrupted = False
    with _as_it_is(model) as device:
        explained = Explained(
            network=model,
            output=model,
            facts=InputFacts(cam_layer=layer),
            images=images,
            targets=labels.to(device),
            image_ids=tuple(ids),
            seed=seed,
            background=None if background is None else partial(_first, background),
        )
        for one in track(asked, "maps", unit="method", progress=progress):
            made, reason, seconds, passes = None, "interrupted", float("nan"), 0
            if not interrupted:
                try:
                    made, reason, seconds, passes = _maps_of(one, explained, batch_size, device)
                except KeyboardInterrupt:
                    # What is made is kept: an hour of maps is not lost to one method that takes too long.
                    warnings.warn(f"Interrupted in {one.name}: the maps that are made are returned.", stacklevel=2)
                    interrupted = True
            told = {"reason": reason, "seconds": seconds, "passes": passes, "options": json.dumps(_plain(one.options))}
            for index, signed in enumerate(one.entry.maps.values() if one.entry else [True]):
                if made is not None:
                    maps[len(facts)] = made[:, index]
                facts.append({**told, "signed": bool(signed)})
    of_methods = {key: ("method", [one[key] for one in facts]) for key in facts[0]}
    return xarray.Dataset(
        {"attribution": (("method", "image", "y", "x"), maps), **of_methods},
        coords={
            "method": names,
            "image": ids,
            "target": ("image", labels.cpu().numpy()),
            DIGEST: ("image", source.digests),
        },
        attrs={"seed": seed, "batch_size": batch_size, "layer": layer or ""},
    )


def check_fits(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> None:
    """Refuse images that a network's weights cannot be multiplied with, and targets that it has no output for.

    Probabilities are warned of.

    Raises
    ------
    HeatproofError
        With what to write.
    """
    import torch

    from heatproof.perturbation.batching import NEAR_ONE

    first = next((one for one in model.parameters() if one.is_floating_point()), None)
    if first is not None and first.dtype != images.dtype and not torch.is_autocast_enabled(first.device.type):
        raise HeatproofError(
            f"The images are {images.dtype} and the model's weights {first.dtype}: give images.to({first.dtype})."
        )
    device = images.device if first is None else first.device
    if any(module.training for module in model.modules()):
        # A pass would change running statistics.
        return
    try:
        with torch.no_grad():
            output = model(images[:4].to(device))
    except (RuntimeError, ValueError, AssertionError) as error:
        raise HeatproofError(
            f"The model fails on an image of {tuple(images.shape[1:])} ({first_line(error)}): give images that it "
            "takes."
        ) from error
    output = getattr(output, "logits", output)
    low, high = int(labels.min()), int(labels.max())
    if isinstance(output, torch.Tensor) and output.ndim == 2 and not 0 <= low <= high < output.shape[1]:
        bad = low if low < 0 else high
        raise HeatproofError(
            f"A target is {bad}, and the model has {output.shape[1]} outputs: give 0 to {output.shape[1] - 1}."
        )
    if isinstance(output, torch.Tensor) and output.ndim == 2 and output.shape[1] > 1:
        sums_to_one = (output >= 0).all() and ((output.sum(1) - 1).abs() < NEAR_ONE).all()
        # Logits of 0 and 1 are no probabilities yet, of which some image's are undecided.
        if sums_to_one and output.amax(1).min() < 1:
            warnings.warn(
                "The model returns probabilities, which sum to 1 for every image, where logits are read: leave its "
                "softmax out.",
                stacklevel=3,
            )


def layer_name(model: torch.nn.Module, layer: str | torch.nn.Module | None) -> str | None:
    """Return the name of a layer that is given by itself; anything else as it is.

    Raises
    ------
    HeatproofError
        If it is not a part of the model.
    """
    import torch

    if not isinstance(layer, torch.nn.Module):
        return layer
    name = next((name for name, module in model.named_modules() if module is layer), "")
    if not name:
        raise HeatproofError(
            f"The layer is a {type(layer).__name__} that is no part of the model: give one of the model's own, or its "
            "name."
        )
    return name


def selected(methods: str | Sequence[Method] | Mapping[str, Method]) -> list[Asked]:
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
        return [_one(name, method) for name, method in methods.items()]
    is_named = [isinstance(one, Mapping) and len(one) == 1 and isinstance(next(iter(one)), str) for one in methods]
    named = [next(iter(one.items())) if own else (None, one) for one, own in zip(methods, is_named, strict=True)]
    return [_one(name, method) for name, method in named]


def _one(name: str | None, method: Method) -> Asked:
    if isinstance(method, Asked):
        return method
    if isinstance(method, str):
        return _ours(name or method, method, {})
    if isinstance(method, Mapping):
        options = dict(method)
        if name is None:
            raise HeatproofError(
                f"A method is {short(method)}: give a name with its options, as {{'rise': {{'masks': 200}}}}."
            )
        inner = next(iter(options.items()), (None, None))
        if len(options) == 1 and name not in EXPLAINERS and isinstance(inner[1], Mapping):
            return _ours(name, str(inner[0]), dict(inner[1]))
        return _ours(name, str(options.pop("explainer", name)), options)
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
    if _library(method) is None and callable(method):
        _check_arguments_of(name, method)
    return Asked(name, foreign=method)


def _library(method: Any) -> str | None:
    packages = [kind.__module__.partition(".")[0] for kind in type(method).__mro__]
    return next((library for library in LIBRARIES if library in packages), None)


def _check_arguments_of(name: str, function: Any) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of code that is not Python
        return
    try:
        signature.bind("model", "images", "targets")
    except TypeError:
        raise HeatproofError(
            f"The method {name!r} takes {signature}: give a function of model, images and targets."
        ) from None


def _check_network(one: Asked, model: torch.nn.Module) -> None:
    """Refuse an object of another library that was made for another network, where that can be found."""
    from heatproof.perturbation.reachable import reachable_modules

    if _library(one.foreign) is None:
        return
    held = next((getattr(one.foreign, name) for name in HELD if getattr(one.foreign, name, None) is not None), None)
    theirs = {id(own) for _, module in reachable_modules(held) for own in module.parameters(recurse=False)}
    ours = set(map(id, model.parameters()))
    # A wrapper has the weights of what it wraps, and a part some of the whole's.
    if not (theirs <= ours or ours <= theirs):
        other = type(held).__name__
        raise HeatproofError(
            f"The method {one.name!r} was made for another network (a {other}) than the model (a "
            f"{type(model).__name__}): make it anew for this one."
        )


def _ours(name: str, kind: str, given: Mapping[str, Any]) -> Asked:
    entry = look_up(EXPLAINERS, kind, "explainer")
    require_library(entry)
    check_options(entry.function, dict(given), f"explainer {name!r}", positional=("explained",))
    return Asked(name, entry, {**entry.options, **given})


def _maps_of(
    one: Asked, explained: Explained, batch_size: int | str, device: torch.device
) -> tuple[np.ndarray | None, str, float, int]:
    """Return maps (N, maps, H, W) or the reason why there are none, seconds an image, and passes for one map."""
    from heatproof.attribution.applicability import IMAGES, check_limits
    from heatproof.attribution.make import CountPasses, stack_maps
    from heatproof.models.memory import WithinMemory, batch_size_of

    counter = CountPasses(explained.network)
    count = len(explained.image_ids)
    began = time.perf_counter()
    done: list[np.ndarray] = []
    within = WithinMemory(one.name, device=device)
    try:
        low = 0
        while low < count:
            # The first images tell whether it applies, as in a run.
            figures: dict[str, Figure] | None = {} if low == 0 and one.entry is not None else None
            for attempt in within.attempts(batch_size_of(batch_size, device)):
                with attempt as size:
                    rows = slice(low, low + (IMAGES if figures is not None else size))
                    part = replace(
                        explained,
                        images=explained.images[rows].to(device),
                        targets=explained.targets[rows],
                        image_ids=explained.image_ids[rows],
                        batch_size=size,
                        figures=figures,
                    )
                    made = one.entry.function(part, **one.options) if one.entry else _foreign(one, part)
            maps = stack_maps(made, one.name, one.maps, part)
            if figures is not None:
                check_limits(figures, maps)
            if not np.isfinite(maps).all():
                row = int(np.flatnonzero(~np.isfinite(maps).all((1, 2, 3)))[0])
                return None, f"its map of image {part.image_ids[row]!r} has a value that is not finite", float("nan"), 0
            done.append(maps)
            low += len(maps)
    except NotApplicable as reason:
        return None, str(reason), float("nan"), 0
    finally:
        counter.close()
    seconds = (time.perf_counter() - began) / count
    return np.concatenate(done), "", seconds, round(counter.images / count)


def _foreign(one: Asked, part: Explained) -> Mapping[str, torch.Tensor]:
    """Return the maps of an object of another library, summed over channels and enlarged to the image."""
    from torch.nn.functional import interpolate

    with _naming(one.name, part.network):
        maps = _call(one.foreign, part.network, part.images, part.targets)
        if isinstance(maps, list | tuple) and maps:
            maps = maps[0]
        maps = summed_over_channels(maps, one.name)
        if maps.ndim == 3 and len(maps) == len(part.images) and maps.shape[1:] != part.images.shape[2:]:
            size = tuple(part.images.shape[2:])
            maps = interpolate(maps[:, None], size, mode="bilinear", align_corners=False)[:, 0]
    return {one.name: maps}


@contextmanager
def _naming(name: str, model: torch.nn.Module) -> Iterator[None]:
    """Say in one sentence which method failed, which can do so in any way, and whether the model did within it."""
    try:
        yield
    except Exception as error:
        if isinstance(error, HeatproofError | NotApplicable) or runs_out(error):
            raise
        in_model = any(frame.f_locals.get("self") is model for frame, _ in traceback.walk_tb(error.__traceback__))
        what = f"The model fails in the method {name!r}" if in_model else f"The method {name!r} fails"
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise HeatproofError(
            f"{what} on these images ({type(error).__name__}: {first_line(error)[:200]}; "
            f"{Path(last.filename).name}, line {last.lineno})."
        ) from error


def _call(method: Any, model: Any, images: torch.Tensor, targets: torch.Tensor) -> Any:
    library = _library(method)
    if library == "captum":
        given = images.clone().requires_grad_()
        return method.attribute(given, target=targets)
    if library == "torchcam":
        given = images.clone().requires_grad_()
        scores = method.model(given) if hasattr(method, "model") else model(given)
        return method(class_idx=targets.tolist(), scores=scores, normalized=False)
    if library == "pytorch_grad_cam":
        from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

        return method(input_tensor=images, targets=[ClassifierOutputTarget(int(target)) for target in targets])
    if library == "zennit":
        import torch
        from zennit.attribution import Gradient

        def at_target(output: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.one_hot(targets, output.shape[1]).to(output)

        with Gradient(model, method) as attributor:
            return attributor(images.clone(), at_target)[1]
    if not callable(method):
        raise HeatproofError(f"A {type(method).__name__} is no method: give an object that explains images.")
    return method(model, images, targets)


@contextmanager
def _as_it_is(model: torch.nn.Module) -> Iterator[torch.device]:
    """Check a model, give its logits where its output has more, and leave it as it was; yields its device."""
    import torch

    from heatproof.evaluation import device_of
    from heatproof.perturbation.reachable import check_mode

    check_mode(model)
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with model.register_forward_hook(logits_of):
        for parameter in wanted:
            parameter.requires_grad_(False)
        try:
            yield device_of(model, torch.device("cpu"))
        finally:
            for parameter in wanted:
                parameter.requires_grad_()


def logits_of(module: torch.nn.Module, inputs: Any, output: Any) -> Any:
    """Return the logits of an output that has more, as a forward hook."""
    return output.logits if hasattr(output, "logits") else None


def _first(background: torch.Tensor, count: int) -> torch.Tensor:
    """Return the first so many background images, for use as baselines."""
    if count > len(background):
        raise HeatproofError(f"{count} background images are asked for and {len(background)} given: give more.")
    return background[:count]


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value if isinstance(value, bool | int | float | str | None) else str(value)
        for name, value in options.items()
    }
