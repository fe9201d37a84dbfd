"""`heatproof.explain`: attribution maps of any torch network, by explainers of heatproof or of other libraries."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray

from heatproof.api.cache import Cache, MethodKeys, locked_cache, network_cache
from heatproof.api.inputs.arrays import check_finite, check_images
from heatproof.api.inputs.explained_targets import TARGET_DIGEST, TASK
from heatproof.api.inputs.first_images import check_first_images, warn_of_labels
from heatproof.api.inputs.labels import IMAGE_DIGEST
from heatproof.api.inputs.read import read_inputs
from heatproof.api.inputs.source import READ_BATCH_SIZE
from heatproof.api.inputs.targets import TargetSpec, reported_targets
from heatproof.api.inputs.value_ranges import warn_of_range
from heatproof.api.lazy_maps import LazyMaps, as_variable
from heatproof.api.named_methods import check_names, select_methods
from heatproof.core.adaptive_batch_size import batch_size_of
from heatproof.core.batch import Batch
from heatproof.core.batches import count_done, count_images, count_words, show_progress
from heatproof.core.input_facts import InputFacts
from heatproof.core.methods import Method, have_signs
from heatproof.core.network import prepare_network, require_module
from heatproof.core.options import BatchSize, DefaultCount, check_arguments
from heatproof.core.provenance import code_digest, digest
from heatproof.errors import HeatproofError, NotApplicable
from heatproof.explainers._batches import pad_single_image
from heatproof.explainers._layers import find_layout
from heatproof.explainers.explaining import ExplainerFailed, explain_batches

if TYPE_CHECKING:
    from heatproof.api.cache import CachedArrays
    from heatproof.api.inputs.source import Inputs
    from heatproof.core.network import Network


def explain(
    model: torch.nn.Module,
    images: Any,
    targets: Any,
    methods: str | Sequence[Any] | Mapping[str, Any],
    *,
    task: str | None = None,
    target: Callable[[Any, Any], torch.Tensor] | None = None,
    seed: int = 0,
    batch_size: BatchSize = 64,
    image_ids: Sequence[str] | None = None,
    layer: str | torch.nn.Module | None = None,
    background: torch.Tensor | None = None,
    classes: Sequence[int | str] | None = None,
    transform: Callable[[Any], Any] | None = None,
    progress: bool | None = None,
    cache: str | Path | None = None,
) -> xarray.Dataset:
    """Compute attribution maps of images by one or several methods.

    Parameters
    ----------
    model
        A network in eval mode: images (B, C, H, W) to logits (B, K), to an output with ``.logits``, or to any output
        that `target` takes. It is not changed; gradients of its parameters are disabled during the call.
    images
        (N, C, H, W), normalised as the model expects. Or a torch DataLoader or dataset, whose images are read by index,
        in the order of the dataset; any other iterable of batches, which is read once into memory; or a folder of
        images, with or without one subfolder for each class. Batches are images, (images, labels), or a dict with
        common keys.
    targets
        The target that is explained for each image. For ``binary`` and ``multiclass``, (N,) integers, the classes. For
        ``multilabel``, (N,) integers, or (N, K) of 1 where an image has a label, 0 where it does not and -1 or NaN
        where that is unknown: every label that an image has is explained, in a separate row. For ``regression``, None
        or the labels (N,), because the number itself is explained; with several numbers, (N,) integers select one. For
        a `target` function, any input that it takes: a tensor or array (N, …), a list of N objects, or None. None takes
        the labels that come with the images, otherwise the prediction of the network: the predicted class, or the label
        with the largest logit.
    methods
        A method, a list of methods, or a mapping from your own names to methods. A method is a name listed by
        `heatproof list explainers`; a mapping from such a name to options, such as ``{"integrated_gradients": {"steps":
        50}}``; a captum ``Attribution``; an extractor of torch-cam or pytorch-grad-cam; a zennit composite; or a
        function of model, images and targets that returns maps (N, H, W) or (N, C, H, W).
    task
        The task of the network: ``binary`` (one logit, or two), ``multiclass``, ``multilabel`` (a logit for each label;
        an image can have several) or ``regression``. None is ``binary`` if the network has one output, otherwise
        ``multiclass``.
    target
        A function, instead of a task: ``target(output, targets)`` gets the complete output of the network for a batch
        and the targets of its images, arrays as tensors, and returns the number (B,) that is explained for each image.
        A method of another library gets a network that returns one column for each distinct target.
    seed
        Seed for methods that draw random numbers.
    batch_size
        Images in one network pass; ``"auto"`` depends on the device. It is halved if memory runs out.
    image_ids
        N names, which seed random numbers; by default "0", "1", …, and for a folder the paths of its files.
    layer
        The layer whose grid class activation maps read, or its name; by default the last layer with a spatial grid.
    background
        (B, C, H, W) other images, normalised, for methods that use some as baselines.
    classes
        Numbers of classes, or names of class folders: only images with one of these targets are explained.
    transform
        For a folder or a list of pictures, a function from a PIL image to a tensor (C, H, W); by default that of a timm
        model.
    progress
        True reports progress even if the output is a file, False reports nothing; by default progress is reported if
        stderr is a terminal or a notebook.
    cache
        A folder that stores the maps, created if it does not exist. An interrupted or killed call loses at most one
        batch, and the same call resumes. Maps are recomputed only if the network, an image, its name or class, a method
        or its options, the seed, the layer, the background or a version has changed. Maps are read from the cache when
        they are accessed, so that memory does not grow with the number of images. Custom methods are identified by
        their code and by the objects that they hold, not by files that they read.

    Returns
    -------
    xarray.Dataset
        Variables: ``attribution`` (method, image, y, x) float32, summed over channels, higher is more relevant, NaN if
        a method is not applicable. ``convergence_delta`` (method, image) float64, the sum of a map minus the sum that
        its method guarantees, in units of the output; NaN if the method guarantees none. ``reason`` (method), why a
        method is not applicable, otherwise empty; ``seconds`` (method), for one image; ``passes`` (method), images that
        went through the network for one map; ``options`` (method), as JSON; ``signed`` (method), whether maps can be
        negative, for a custom function whether any map is.

        Coordinates: ``target`` (image), the class, label or output; for a target function its target if these are
        integers or strings, otherwise the index of the distinct target. ``image_digest`` (image), a digest of the
        content of each image, by which `heatproof.evaluate` finds the map of an image. If no class is explained, also
        ``task``, and ``target_digest`` (image), which identifies a target function and its target.

        Attributes: ``layer``, the name of the layer that class activation maps read; ``task``, by default ``binary``
        for a model with one logit, and ``callable`` for a target function; ``check_passes``, images that went through
        the model in this call to check it and what methods alter in a pass.

        `heatproof.evaluate` takes the dataset as maps. Select one method with ``.sel({"method": "grad_cam"})``: xarray
        interprets ``.sel(method=…)`` as a way to look up neighbours, and returns every method.

    Raises
    ------
    HeatproofError
        If a method or an option does not exist, or the inputs do not match; if the cache is a folder of other files, or
        another call uses it; or if the content of a method cannot be identified, which a cache needs.

    Examples
    --------
    >>> import torch, heatproof
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 4)).eval()
    >>> images, labels = torch.rand(5, 3, 8, 8), torch.tensor([0, 1, 2, 3, 0])
    >>> maps = heatproof.explain(model, images, labels, ["saliency", {"integrated_gradients": {"steps": 8}}])
    >>> dict(maps["attribution"].sizes)
    {'method': 2, 'image': 5, 'y': 8, 'x': 8}
    """
    require_module(model)
    layer = layer_name(model, layer)
    check_arguments(explain, locals(), "task", "target", "image_ids", "background", "classes", "transform", "cache")
    named_methods = select_methods(methods)
    check_names(named_methods)
    if background is not None:
        background = check_images(background)
        check_finite(background, range(len(background)))
    target_spec = TargetSpec(task, target)
    prepared = prepare_network(model, images, seed, target_spec.reader())
    with locked_cache(cache) as root, prepared as network, show_progress(progress):
        source = read_inputs(
            model,
            images,
            targets,
            image_ids,
            classes=classes,
            transform=transform,
            network=network,
            target_spec=target_spec,
        )
        probes = source.read(source.probe_rows)
        warn_of_range(source.images if source.is_checked else probes, model)
        check_first_images(network, probes, source, with_gradients=root is not None, probabilities="warn")
        warn_of_labels(network, source)
        template = batch_template(network, seed, batch_size, layer, background)
        dataset = explain_inputs(named_methods, source, template, network_cache(root, source, network, target_spec))
        return dataset.assign_attrs(batch_size=batch_size)


def layer_name(model: torch.nn.Module, layer: str | torch.nn.Module | None) -> str | None:
    """Return the name of a layer that is given as a module; a name or None unchanged.

    Raises
    ------
    HeatproofError
        If the module is not a part of the model.
    """
    if not isinstance(layer, torch.nn.Module):
        return layer
    name = next((name for name, module in model.named_modules() if module is layer), "")
    if not name:
        raise HeatproofError(
            f"The layer is a {type(layer).__name__} that is not a part of the model: pass a submodule of the model, "
            "or its name."
        )
    return name


def batch_template(
    network: Network, seed: int, batch_size: int | str, layer: str | None, background: torch.Tensor | None
) -> Batch:
    """Return a batch without images: the checked network, and the settings that all methods share, as in `explain`."""
    nothing: Any = None
    return Batch(
        network=network.module,
        output=network.module,
        facts=InputFacts(cam_layer=layer),
        images=nothing,
        targets=nothing,
        image_ids=(),
        seed=seed,
        batch_size=batch_size_of(batch_size, network.device),
        background=None if background is None else CallerBackground(network.copy_to_device(background)),
    )


def explain_inputs(
    methods: Sequence[Method], inputs: Inputs, template: Batch, cache: Cache, stops: bool = True
) -> xarray.Dataset:
    """Return the maps of all methods and the properties of each, as `explain` does.

    Parameters
    ----------
    methods
        The methods.
    inputs
        The images.
    template
        The batch of these images without the images: the network, and the settings that all methods share.
    cache
        Cache of the maps.
    stops
        Whether a keyboard interrupt ends the work and the maps so far are returned; otherwise it is raised.
    """
    keys, names = MethodKeys(template.network), [name for method in methods for name in method.map_names]
    arrays = _Arrays(names, inputs, cache)
    facts: list[dict[str, Any]] = []
    interrupted = False
    try:
        method_keys = [key_of(method, template, cache, keys) for method in methods]
        with count_images(f"maps of {count_words(len(methods), 'method')}", len(methods) * len(inputs)) as counted:
            for number, (method, key) in enumerate(zip(methods, method_keys, strict=True), 1):
                maps = _MapsOfImages(method, inputs)
                try:
                    if not interrupted:
                        maps.compute(key, template, cache)
                except KeyboardInterrupt:
                    if not stops:
                        raise
                    # The maps so far are returned, so that one slow method does not cost an hour of maps.
                    rest = "; the same call resumes the others from the cache" if cache.folder else ""
                    warnings.warn(f"Interrupted in {method.name}: the maps so far are returned{rest}.", stacklevel=3)
                    maps, interrupted = _MapsOfImages(method, inputs), True
                facts += maps.facts()
                arrays.add(maps)
                # Images whose maps are cached, or to which the method is not applicable, are done as well.
                counted.reach(number * len(inputs))
    finally:
        if cache.folder is not None:
            keys.remember()
    # Before the layer is looked for, which may take a pass that no map needed.
    check_passes = template.adapted.check_passes
    reasons = dict(zip(names, (fact["reason"] for fact in facts), strict=True))
    applicable = [method for method in methods if not reasons[method.map_names[0]]]
    target_coordinates: dict[str, Any] = {TASK: inputs.kind} if inputs.kind else {}
    if inputs.target_digests is not None:
        target_coordinates[TARGET_DIGEST] = ("image", list(inputs.target_digests))
    return xarray.Dataset(
        {
            "attribution": (("method", "image", "y", "x"), arrays.joined("maps")),
            "convergence_delta": (("method", "image"), arrays.joined("convergence_delta")),
            **{key: ("method", [fact[key] for fact in facts]) for key in facts[0]},
        },
        coords={
            "method": names,
            "image": inputs.ids,
            "target": ("image", reported_targets(inputs)),
            IMAGE_DIGEST: ("image", list(inputs.digests)),
            **target_coordinates,
        },
        attrs={
            "seed": template.seed,
            "batch_size": template.batch_size,
            "layer": _layer_of(applicable, inputs, template),
            "task": template.task,
            "check_passes": check_passes,
        },
    )


def _arrays_of_image(inputs: Inputs, maps: int) -> dict[str, tuple[str, list[int]]]:
    """Return the dtype and shape of each array of an image: its maps, and their convergence deltas."""
    return {"maps": ("float32", [maps, *inputs.size]), "convergence_delta": ("float64", [maps])}


class _Arrays:
    """Arrays (method, image, …) of all maps: in memory, or read from a cache when they are accessed."""

    def __init__(self, names: Sequence[str], inputs: Inputs, cache: Cache) -> None:
        self._keys, self._shapes = inputs.keys, _arrays_of_image(inputs, 1)
        self._memory = None
        if cache.folder is None:
            self._memory = {
                name: np.full((len(names), len(inputs), *shape[1:]), np.nan, dtype)
                for name, (dtype, shape) in self._shapes.items()
            }
        self._sources: list[tuple[Any, int] | None] = []

    def add(self, maps: _MapsOfImages) -> None:
        """Add the maps of the next method."""
        start, count = len(self._sources), len(maps.method.map_names)
        if self._memory is None or maps.cached is None:
            self._sources += [None if maps.cached is None else (maps.cached, index) for index in range(count)]
            return
        for name, values in maps.cached.read(self._keys).items():
            self._memory[name][start : start + count] = values.swapaxes(0, 1)
        self._sources += [None] * count

    def joined(self, name: str) -> Any:
        """Return one of the arrays."""
        if self._memory is not None:
            return self._memory[name]
        dtype, shape = self._shapes[name]
        return as_variable(LazyMaps(name, self._sources, self._keys, shape[1:], dtype))


def _layer_of(methods: Sequence[Method], inputs: Inputs, template: Batch) -> str:
    """Return the name of the layer that class activation maps of the methods read; "" if no method reads one."""
    named = template.facts.cam_layer if template.facts else None
    if named or not any(method.explainer and "cam_layer" in method.explainer.needs for method in methods):
        return named or ""
    batch = pad_single_image(inputs.batch(template, inputs.probe_rows))
    layout = find_layout(template.network, batch.images)
    return "" if layout is None else layout.name


def key_of(method: Method, template: Batch, cache: Cache, keys: MethodKeys) -> str:
    """Return a digest of what determines the maps of a method except the images; without a cache its name."""
    if cache.folder is None:
        return method.name
    assert method.explainer is not None, "it makes maps"
    foreign = method.explainer.wraps
    module = "heatproof.explainers.other_libraries" if foreign is not None else method.explainer.function.__module__
    code = code_digest([module, "heatproof.explainers.explaining"])
    # Foreign code may depend on the other images of the batch, and so on its size.
    size = None if foreign is None else template.batch_size
    identity = [method.explainer.name, method.options] if foreign is None else foreign
    layer = template.facts.cam_layer if template.facts else None
    return keys.of(
        method.name, identity, code, template.seed, layer, getattr(template.background, "images", None), size
    )


@dataclass
class _MapsOfImages:
    """The maps of one method for all images, and what they cost.

    Attributes
    ----------
    method, inputs
        The method, and the images.
    cached
        ``maps`` (M, H, W) of each image, and their ``convergence_delta`` (M,); None if the method is not applicable.
    reason
        Why there are no maps; otherwise empty.
    """

    method: Method
    inputs: Inputs
    cached: CachedArrays | None = None
    reason: str = "interrupted"

    def facts(self) -> list[dict[str, Any]]:
        """Return the properties of each map of the method."""
        explainer = self.method.explainer
        assert explainer is not None, "it makes maps"
        seconds, passes = (float("nan"), 0.0) if self.cached is None else self.cached.cost(self.inputs.keys)
        shared = {"reason": self.reason, "seconds": seconds, "passes": round(passes)}
        shared["options"] = json.dumps(_plain(self.method.options))
        # Whether a custom function is signed is read off its maps.
        signed = list(explainer.maps.values()) if explainer.wraps is None else [self._is_signed()]
        return [{**shared, "signed": bool(is_signed)} for is_signed in signed]

    def _is_signed(self) -> bool:
        """Tell whether any of the maps has a negative value."""
        return self.cached is None or any(have_signs(maps) for maps in self._parts())

    def _is_constant(self) -> bool:
        """Tell whether each of the maps has the same value at every pixel."""
        return all(bool((maps == maps[..., :1, :1]).all()) for maps in self._parts())

    def _parts(self) -> Iterator[np.ndarray]:
        """Yield the maps (B, M, H, W) of some images at a time."""
        assert self.cached is not None, "the method is applicable"
        keys, size = self.inputs.keys, READ_BATCH_SIZE
        return (self.cached.read(keys[low : low + size])["maps"] for low in range(0, len(keys), size))

    def compute(self, key: str, template: Batch, cache: Cache) -> None:
        """Compute the maps of the method that are not cached yet."""
        inputs, keys, network = self.inputs, self.inputs.keys, template.adapted
        self.cached = cache.arrays("maps", key, keys, _arrays_of_image(inputs, len(self.method.map_names)))
        # Methods of callers and of other libraries are not checked.
        probes, is_own = inputs.probe_rows, self.method.explainer.wraps is None
        records = cache.applicability(key)
        recorded = records.find(keys, [keys[row] for row in probes])
        self.reason, failed = recorded or ("", False)
        missing = set() if self.reason else set(self.cached.missing(keys))
        # The images that decide whether a method is applicable come first, so that none is explained twice.
        first = [row for row in probes if row in missing or (is_own and recorded is None)]
        rest = [row for row in sorted(missing) if row not in set(probes)]
        size = template.batch_size
        parts = [part for part in (first, *(rest[low : low + size] for low in range(0, len(rest), size))) if part]
        in_turn: list[int] = []

        def batches() -> Iterator[Batch]:
            for rows in parts:
                in_turn[:] = rows
                # Foreign code draws from the global random states; a resumed call has to draw the same for this batch.
                seed = int(digest([template.seed, *(keys[row] for row in rows)])[:8], 16)
                yield replace(inputs.batch(template, rows), global_seed=seed, sums={})

        try:
            for maps in explain_batches(self.method, batches(), network, is_own and first == probes):
                new = [position for position, row in enumerate(in_turn) if row in missing]
                share = len(new) / len(in_turn)
                passes = round(maps.passes * share)
                # Passes for images whose maps are cached already only check the method.
                network.count_as_check(maps.passes - passes)
                if new:
                    arrays = {"maps": maps.values[new], "convergence_delta": maps.deltas[new]}
                    self.cached.add([keys[in_turn[position]] for position in new], arrays, maps.seconds * share, passes)
                count_done(len(new))
                if in_turn == probes and recorded is None:
                    records.add([keys[row] for row in probes], first=True)
        except NotApplicable as error:
            self.reason, failed = str(error), isinstance(error, ExplainerFailed)
            records.add([keys[row] for row in in_turn], in_turn == probes, error, failed)
        if not self.reason and not is_own and self._is_constant():
            self.reason, failed = "its map of every image has one value, which ranks no pixel", True
        if failed:
            warnings.warn(f"The method {self.method.name!r} is left out: {self.reason}.", stacklevel=4)
        if self.reason:
            self.cached = None


@dataclass(frozen=True)
class CallerBackground:
    """Images (B, C, H, W) of a caller, on the network's device, for use as baselines."""

    images: torch.Tensor

    def __call__(self, count: int) -> torch.Tensor:
        """Return the first `count` images; all of them if a `DefaultCount` exceeds their number."""
        if count > len(self.images) and not isinstance(count, DefaultCount):
            raise HeatproofError(f"{count} background images are asked for and {len(self.images)} given: give more.")
        return self.images[:count]


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value if isinstance(value, bool | int | float | str | None) else str(value)
        for name, value in options.items()
    }
