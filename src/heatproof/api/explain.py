"""`heatproof.explain`: attribution maps of any torch classifier, by heatproof's explainers or by other libraries'."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from heatproof.attribution.registry import EXPLAINERS, Explained, Explainer, require_library
from heatproof.errors import HeatproofError, NotApplicable
from heatproof.options import BatchSize, check_arguments, check_options, short
from heatproof.registry import look_up

if TYPE_CHECKING:
    import torch
    import xarray

    from heatproof.attribution.explaining import MapMaker
    from heatproof.models.adapter import Adapted


Method = Any


@dataclass
class NamedMethod:
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
        from heatproof.attribution.foreign import deletes_regions

        return self.entry.ablates if self.entry is not None else deletes_regions(self.foreign)

    @property
    def maps(self) -> list[str]:
        """Names of its maps in the result."""
        if self.entry is None or list(self.entry.maps) == [self.entry.name]:
            return [self.name]
        if self.name == self.entry.name:
            return list(self.entry.maps)
        return [f"{self.name}_{map_name}" for map_name in self.entry.maps] if len(self.entry.maps) > 1 else [self.name]

    @property
    def maker(self) -> MapMaker:
        """What is called for its maps."""
        from heatproof.attribution.explaining import MapMaker
        from heatproof.attribution.foreign import as_function

        if self.entry is None:
            return MapMaker(self.name, as_function(self.name, self.foreign), {}, {self.name: True})
        return MapMaker(self.name, self.entry.function, self.options, self.entry.maps)


def explain(
    model: torch.nn.Module,
    images: torch.Tensor,
    targets: Any,
    methods: str | Sequence[Method] | Mapping[str, Method],
    *,
    seed: int = 0,
    batch_size: BatchSize = 64,
    image_ids: Sequence[str] | None = None,
    layer: str | torch.nn.Module | None = None,
    background: torch.Tensor | None = None,
) -> xarray.Dataset:
    """Make attribution maps of some images by one method or many.

    Parameters
    ----------
    model
        A classifier in eval mode: images (B, C, H, W) to logits (B, K), or an output with ``.logits``. It is left as it
        is; gradients of its parameters are off meanwhile.
    images
        (N, C, H, W), normalised as the model expects.
    targets
        (N,) integers: the class of each image that is explained.
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
        N names, which seed random numbers; by default "0", "1", ….
    layer
        The layer whose grid class activation maps read, or its name; by default the last one with a spatial grid.
    background
        (B, C, H, W) other images, normalised, for methods that take some as baselines.

    Returns
    -------
    xarray.Dataset
        ``attribution`` (method, image, y, x) float32, summed over channels, higher is more relevant; NaN where a method
        does not apply. ``reason`` (method), why it does not, else empty; ``seconds`` (method), of an image; ``passes``
        (method), images that went through the network for one map; ``options`` (method), as JSON; ``signed`` (method),
        whether maps can be negative. What `heatproof.evaluate` takes as maps. One method is selected by
        ``.sel({"method": "grad_cam"})``: xarray reads ``.sel(method=…)`` as a way to look up neighbours, and returns
        every method.

    Raises
    ------
    HeatproofError
        If a method or an option does not exist, or the inputs do not match.
    """
    import torch

    from heatproof.attribution.foreign import check_network_of
    from heatproof.evaluation import check_batch, check_finite, check_images, warn_of_range
    from heatproof.models.adapter import adapted, check_network, predicted, warn_of_probabilities

    if not isinstance(model, torch.nn.Module):
        raise HeatproofError(f"The model is {type(model).__name__}: give a torch.nn.Module, whose layers can be read.")
    layer = layer_name(model, layer)
    check_arguments(explain, locals(), "image_ids", "background")
    asked = selected(methods)
    _check_names(asked)
    for one in asked:
        check_network_of(one.name, one.foreign, model)
    images = check_images(images)
    warn_of_range(images)
    if background is not None:
        background = check_images(background)
        check_finite(background, range(len(background)))
    with adapted(model, images, seed) as network:
        network.check_precision(images)
        run = Explaining(network, images, seed, batch_size, layer, background)
        check_network(network, images[run.first])
        given = predicted(network, images) if targets is None else targets
        images, run.labels, run.ids = check_batch(images, given, image_ids)
        network.check_targets(run.labels, run.ids)
        warn_of_probabilities(network)
        return run.dataset(asked)


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


def selected(methods: str | Sequence[Method] | Mapping[str, Method]) -> list[NamedMethod]:
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


def _one(name: str | None, method: Method) -> NamedMethod:
    if isinstance(method, NamedMethod):
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
    from heatproof.attribution.foreign import check_arguments_of, library_of

    if library_of(method) is None and callable(method):
        check_arguments_of(name, method)
    return NamedMethod(name, foreign=method)


def _ours(name: str, kind: str, given: Mapping[str, Any]) -> NamedMethod:
    entry = look_up(EXPLAINERS, kind, "explainer")
    require_library(entry)
    check_options(entry.function, dict(given), f"explainer {name!r}", positional=("explained",))
    return NamedMethod(name, entry, {**entry.options, **given})


def _check_names(asked: Sequence[NamedMethod]) -> None:
    names = [name for one in asked for name in one.maps]
    if repeated := sorted(name for name in names if names.count(name) > 1):
        raise HeatproofError(
            f"Two methods are called {repeated[0]!r}: give them names, as {{'short': {{...}}, 'long': {{...}}}}."
        )


@dataclass
class Explaining:
    """A network, images, and what all methods share.

    Attributes
    ----------
    network
        Checked.
    images
        (N, C, H, W).
    seed, batch_size, layer, background
        As in `explain`.
    labels, ids
        (N,) classes that are explained, and N names.
    """

    network: Adapted
    images: torch.Tensor
    seed: int
    batch_size: int | str
    layer: str | None
    background: torch.Tensor | None
    labels: torch.Tensor = field(init=False)
    ids: list[str] = field(init=False)

    @cached_property
    def first(self) -> list[int]:
        """Rows of the few images that tell whether a method applies."""
        from heatproof.evaluation import few_rows

        return few_rows(self.images)

    def part(self, rows: torch.Tensor) -> Explaining:
        """Return the same for some of the images."""
        made = replace(self, images=self.images[rows])
        made.labels, made.ids = self.labels[rows], [self.ids[row] for row in rows.tolist()]
        return made

    def dataset(self, asked: Sequence[NamedMethod]) -> xarray.Dataset:
        """Return the maps of all methods, and what is known of each, as `explain` does."""
        import xarray

        from heatproof.batches import track

        names = [name for one in asked for name in one.maps]
        maps = np.full((len(names), len(self.ids), *self.images.shape[2:]), np.nan, np.float32)
        facts: list[dict[str, Any]] = []
        interrupted = False
        for one in track(asked, "maps", unit="method"):
            made, reason, seconds, passes = None, "interrupted", float("nan"), 0
            if not interrupted:
                try:
                    made, reason, seconds, passes = self.maps_of(one)
                except KeyboardInterrupt:
                    # What is made is kept: an hour of maps is not lost to one method that takes too long.
                    warnings.warn(f"Interrupted in {one.name}: the maps that are made are returned.", stacklevel=3)
                    interrupted = True
            found = {"reason": reason, "seconds": seconds, "passes": passes, "options": json.dumps(_plain(one.options))}
            for index, signed in enumerate(one.entry.maps.values() if one.entry else [True]):
                if made is not None:
                    maps[len(facts)] = made[:, index]
                facts.append({**found, "signed": bool(signed)})
        of_methods = {key: ("method", [one[key] for one in facts]) for key in facts[0]}
        return xarray.Dataset(
            {"attribution": (("method", "image", "y", "x"), maps), **of_methods},
            coords={"method": names, "image": self.ids, "target": ("image", self.labels.cpu().numpy())},
            attrs={
                "seed": self.seed,
                "batch_size": self.batch_size,
                "layer": self.layer or "",
                "task": self.network.task,
                "check_passes": self.network.check_passes,
            },
        )

    def explained(self, rows: Sequence[int], batch_size: int, figures: Any = None) -> Explained:
        """Return the input of an explainer for some of the images."""
        from heatproof.models.registry import InputFacts

        network = self.network
        return Explained(
            network=network.network,
            output=network.network,
            facts=InputFacts(cam_layer=self.layer),
            images=network.taken(self.images[rows]),
            targets=self.labels[rows].to(network.device),
            image_ids=tuple(self.ids[row] for row in rows),
            seed=self.seed,
            batch_size=batch_size,
            background=None if self.background is None else partial(_first, network.taken(self.background)),
            figures=figures,
        )

    def maps_of(self, one: NamedMethod) -> tuple[np.ndarray | None, str, float, int]:
        """Return maps (N, maps, H, W) or the reason why there are none, seconds an image, and passes for one map."""
        from heatproof.attribution.explaining import Failed, check_applies, explain_batch
        from heatproof.models.adapter import CountPasses
        from heatproof.models.memory import WithinMemory, batch_size_of

        device, count = self.network.device, len(self.ids)
        counter = CountPasses(self.network.network)
        within = WithinMemory(one.name, device=device)
        wanted = batch_size_of(self.batch_size, device)
        began = time.perf_counter()
        made: np.ndarray | None = None
        # The images that tell whether it applies come first, so that none is explained twice.
        order = [*self.first, *(row for row in range(count) if row not in set(self.first))]
        try:
            low = 0
            while low < count:
                is_first = low == 0
                size = min(wanted, within.batch_size or wanted)
                rows = order[low : low + (len(self.first) if is_first else size)]
                part = self.explained(rows, size)
                maps = (check_applies if is_first and one.entry else explain_batch)(one.maker, part, within)
                made = np.empty((count, *maps.shape[1:]), np.float32) if made is None else made
                made[rows] = maps
                low += len(rows)
        except NotApplicable as reason:
            if isinstance(reason, Failed):
                warnings.warn(f"The method {one.name!r} is left out: {reason}.", stacklevel=4)
            return None, str(reason), float("nan"), 0
        finally:
            counter.close()
        seconds = (time.perf_counter() - began) / count
        return made, "", seconds, round(counter.images / count)


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
