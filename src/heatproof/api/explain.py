"""`heatproof.explain`: attribution maps of any torch network, by explainers of heatproof or of other libraries."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from heatproof.api.named_methods import check_names, select_methods
from heatproof.attribution.registry import ExplainContext
from heatproof.base.methods import Method
from heatproof.base.options import BatchSize, DefaultCount, check_arguments
from heatproof.base.provenance import code_digest, digest
from heatproof.errors import HeatproofError, NotApplicable
from heatproof.inputs.identity import identity_of

if TYPE_CHECKING:
    import torch
    import xarray

    from heatproof.api.cache import Cache, CachedArrays, MethodKeys
    from heatproof.inputs.source import ImageSource
    from heatproof.inputs.targets import TargetSpec
    from heatproof.models.adapter import Network


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
        For a folder, a function from a PIL image to a tensor (C, H, W); by default that of a timm model.
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
    from heatproof.api.cache import locked_cache
    from heatproof.attribution.explaining import called_explainer
    from heatproof.attribution.other_libraries import check_network_of
    from heatproof.base.batches import show_progress
    from heatproof.inputs.arrays import check_finite, check_images, warn_of_range
    from heatproof.inputs.read import read_inputs
    from heatproof.inputs.targets import TargetSpec
    from heatproof.models.adapter import prepare_network, require_module
    from heatproof.models.first_images import check_first_images

    require_module(model)
    layer = layer_name(model, layer)
    check_arguments(explain, locals(), "task", "target", "image_ids", "background", "classes", "transform", "cache")
    selected = select_methods(methods)
    check_names(selected)
    for method in selected:
        check_network_of(method.name, called_explainer(method).wraps, model)
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
        run = ExplainRun(network, source, source.digests, seed, batch_size, layer, background)
        probes = source.read(run.first)
        warn_of_range(source.images if source.is_checked else probes, model)
        check_first_images(network, probes, source, with_gradients=root is not None, probabilities="warn")
        run.cache = run.open_cache(root, target_spec)
        return run.dataset(selected)


def layer_name(model: torch.nn.Module, layer: str | torch.nn.Module | None) -> str | None:
    """Return the name of a layer that is given as a module; a name or None unchanged.

    Raises
    ------
    HeatproofError
        If the module is not a part of the model.
    """
    import torch

    if not isinstance(layer, torch.nn.Module):
        return layer
    name = next((name for name, module in model.named_modules() if module is layer), "")
    if not name:
        raise HeatproofError(
            f"The layer is a {type(layer).__name__} that is not a part of the model: pass a submodule of the model, "
            "or its name."
        )
    return name


@dataclass
class ExplainRun:
    """A network, images, and the settings that all methods share.

    Attributes
    ----------
    network
        The checked network.
    source
        N images with names and classes.
    digests
        Digest of the content of each image.
    seed, batch_size, layer, background
        As in `explain`.
    cache
        Cache of the maps; by default in memory.
    """

    network: Network
    source: ImageSource
    digests: Sequence[str]
    seed: int
    batch_size: int | str
    layer: str | None
    background: torch.Tensor | None
    cache: Cache = field(default_factory=lambda: _memory_cache())

    @property
    def ids(self) -> list[str]:
        """N names."""
        return self.source.ids

    @property
    def labels(self) -> torch.Tensor:
        """(N,) classes that are explained."""
        assert self.source.targets is not None, "read_inputs found them"
        return self.source.targets

    @cached_property
    def first(self) -> list[int]:
        """Rows of the few images that decide whether a method is applicable."""
        from heatproof.data.probe_images import is_blank, probe_rows

        return probe_rows(self.digests, lambda row: is_blank(self.source.read([row])[0]))

    @cached_property
    def keys(self) -> list[str]:
        """For each image a digest of its content, its name, which seeds random numbers, and its target."""
        digests, probe = self.digests, self.source.read([0])
        if probe.element_size() > 4:
            # Digests of images are computed from float32, which would confuse images of higher precision.
            digests = [identity_of(one) for _, part in self.source.batches() for one in part]
        targets = self.source.explained if self.source.kind else self.labels.tolist()
        identities = zip(digests, self.ids, targets, strict=True)
        return [digest([str(probe.dtype), *one]) for one in identities]

    @cached_property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        height, width = self.source.read([0]).shape[2:]
        return height, width

    @cached_property
    def images_at_once(self) -> int:
        """Number of images in one network pass."""
        from heatproof.models.adaptive_batch_size import batch_size_of

        return batch_size_of(self.batch_size, self.network.device)

    def open_cache(self, root: Path | None, target_spec: TargetSpec) -> Cache:
        """Return the cache of the checked network and of the task or target function."""
        from heatproof.api.cache import network_cache

        if root is None:
            return network_cache(None, self.network, self.source.read([0]), [])
        probes, digests = self.source.read(self.first), [self.digests[row] for row in self.first]
        targets = None
        if target_spec.target is not None:
            targets = self.labels[self.first].to(self.network.device)
            target_digests = self.source.target_digests or []
            digests = [digest([one, target_digests[row]]) for one, row in zip(digests, self.first, strict=True)]
        return network_cache(root, self.network, probes, digests, target_spec.identity(self.network.module), targets)

    def select_images(self, rows: torch.Tensor) -> ExplainRun:
        """Return the same run for a subset of the images."""
        chosen = rows.tolist()
        return replace(self, source=self.source.take(chosen), digests=[self.digests[row] for row in chosen])

    def dataset(self, methods: Sequence[Method], stops: bool = True) -> xarray.Dataset:
        """Return the maps of all methods and the properties of each, as `explain` does.

        Parameters
        ----------
        methods
            The methods.
        stops
            Whether a keyboard interrupt ends the work and the maps so far are returned; otherwise it is raised.
        """
        import xarray

        from heatproof.attribution.explaining import called_explainer
        from heatproof.base.batches import track
        from heatproof.inputs.labels import IMAGE_DIGEST, TARGET_DIGEST, TASK
        from heatproof.inputs.targets import reported_targets

        keys = [self.key_of(method) for method in methods]
        names = [name for method in methods for name in method.map_names]
        is_stored = self.cache.folder is not None
        memory = {
            name: np.full((len(names), len(self.ids), *shape[1:]), np.nan, dtype)
            for name, (dtype, shape) in ({} if is_stored else self._arrays(1)).items()
        }
        sources: list[tuple[Any, int] | None] = []
        facts: list[dict[str, Any]] = []
        interrupted = False
        try:
            for method, key in zip(track(methods, "maps", unit="method"), keys, strict=True):
                explainer = called_explainer(method)
                cached, reason, seconds, passes = None, "interrupted", float("nan"), 0.0
                if not interrupted:
                    try:
                        cached, reason = self.maps_of(method, key)
                    except KeyboardInterrupt:
                        if not stops:
                            raise
                        # The maps so far are returned, so that one slow method does not cost an hour of maps.
                        rest = "; the same call resumes the others from the cache" if is_stored else ""
                        message = f"Interrupted in {method.name}: the maps so far are returned{rest}."
                        warnings.warn(message, stacklevel=3)
                        interrupted = True
                if cached is not None:
                    seconds, passes = cached.cost(self.keys)
                    for name, values in memory.items():
                        rows = slice(len(facts), len(facts) + len(explainer.maps))
                        values[rows] = cached.read(self.keys)[name].swapaxes(0, 1)
                method_facts = {"reason": reason, "seconds": seconds, "passes": round(passes)}
                # Whether a custom function is signed is read off its maps.
                signs = explainer.maps.values() if explainer.wraps is None else [self._is_signed(cached)]
                for index, signed in enumerate(signs):
                    options = json.dumps(_plain(method.options))
                    facts.append({**method_facts, "options": options, "signed": bool(signed)})
                    sources.append(None if cached is None else (cached, index))
        finally:
            if is_stored:
                self.method_keys.remember()
        # Before the layer is looked for, which may take a pass that no map needed.
        check_passes = self.network.check_passes
        applies = {name for name, one in zip(names, facts, strict=True) if not one["reason"]}
        method_variables = {key: ("method", [one[key] for one in facts]) for key in facts[0]}
        target_coordinates: dict[str, Any] = {TASK: self.source.kind} if self.source.kind else {}
        if self.source.target_digests is not None:
            target_coordinates[TARGET_DIGEST] = ("image", list(self.source.target_digests))
        arrays = {name: memory.get(name, None if memory else self._lazily(name, sources)) for name in self._arrays(1)}
        return xarray.Dataset(
            {
                "attribution": (("method", "image", "y", "x"), arrays["maps"]),
                "convergence_delta": (("method", "image"), arrays["convergence_delta"]),
                **method_variables,
            },
            coords={
                "method": names,
                "image": self.ids,
                "target": ("image", reported_targets(self.source)),
                IMAGE_DIGEST: ("image", list(self.digests)),
                **target_coordinates,
            },
            attrs={
                "seed": self.seed,
                "batch_size": self.batch_size,
                "layer": self._layer_of([method for method in methods if method.map_names[0] in applies]),
                "task": self.network.task,
                "check_passes": check_passes,
            },
        )

    def _arrays(self, maps: int) -> dict[str, tuple[str, list[int]]]:
        """Return the dtype and shape of each array of an image: its maps, and their convergence deltas."""
        return {"maps": ("float32", [maps, *self.size]), "convergence_delta": ("float64", [maps])}

    def _lazily(self, name: str, sources: Sequence[tuple[Any, int] | None]) -> Any:
        from heatproof.api.lazy_maps import LazyMaps, as_variable

        dtype, shape = self._arrays(1)[name]
        return as_variable(LazyMaps(name, sources, self.keys, shape[1:], dtype))

    def _is_signed(self, cached: CachedArrays | None) -> bool:
        """Tell whether any of the maps has a negative value."""
        size = self.images_at_once
        parts = [self.keys[low : low + size] for low in range(0, len(self.keys), size)]
        return cached is None or any(bool((cached.read(part)["maps"] < 0).any()) for part in parts)

    def _layer_of(self, methods: Sequence[Method]) -> str:
        """Return the name of the layer that class activation maps of the methods read; "" if no method reads one."""
        from heatproof.attribution._batches import pad_single_image
        from heatproof.attribution._layers import find_layout
        from heatproof.attribution.explaining import called_explainer

        if self.layer or not any("cam_layer" in called_explainer(method).needs for method in methods):
            return self.layer or ""
        context = pad_single_image(self.context(self.first, len(self.first)))
        layout = find_layout(self.network.module, context.images)
        return "" if layout is None else layout.name

    def context(self, rows: Sequence[int], batch_size: int) -> ExplainContext:
        """Return the input of an explainer for a subset of the images."""
        from heatproof.models.registry import InputFacts

        network = self.network
        return ExplainContext(
            network=network.module,
            output=network.module,
            facts=InputFacts(cam_layer=self.layer),
            images=network.copy_to_device(self.source.read(rows)),
            targets=self.labels[rows].to(network.device),
            image_ids=tuple(self.ids[row] for row in rows),
            seed=self.seed,
            batch_size=batch_size,
            background=None if self.background is None else partial(_first, network.copy_to_device(self.background)),
            sums={},
        )

    @cached_property
    def method_keys(self) -> MethodKeys:
        """Digests that identify the methods."""
        from heatproof.api.cache import MethodKeys

        return MethodKeys(self.network.module)

    def key_of(self, method: Method) -> str:
        """Return a digest of what determines the maps of a method except the images; without a cache its name."""
        from heatproof.attribution.explaining import called_explainer

        if self.cache.folder is None:
            return method.name
        explainer = called_explainer(method)
        is_ours = explainer.wraps is None
        module = explainer.function.__module__ if is_ours else "heatproof.attribution.other_libraries"
        code = code_digest([module, "heatproof.attribution.explaining"])
        # Foreign code may depend on the other images of the batch, and so on its size.
        size = None if is_ours else self.images_at_once
        identified = [explainer.name, method.options] if is_ours else explainer.wraps
        return self.method_keys.of(method.name, identified, code, self.seed, self.layer, self.background, size)

    def maps_of(self, method: Method, key: str) -> tuple[CachedArrays | None, str]:
        """Compute the maps of a method that are not cached yet.

        Returns
        -------
        cached
            The cached arrays: ``maps`` (M, H, W) of each image, and their ``convergence_delta`` (M,); None if the
            method is not applicable.
        reason
            Why the method is not applicable; otherwise empty.
        """
        from heatproof.attribution.explaining import (
            ExplainerFailed,
            called_explainer,
            check_applicability,
            convergence_delta,
            explain_batch,
        )
        from heatproof.models.adaptive_batch_size import AdaptiveBatchSize
        from heatproof.models.state import preserve_random_states

        explainer = called_explainer(method)
        cached = self.cache.arrays("maps", key, self.keys, self._arrays(len(explainer.maps)))
        applicability = self.cache.applicability(key)
        first_keys = [self.keys[row] for row in self.first]
        recorded = applicability.find(self.keys, first_keys)
        reason, failed = recorded or ("", False)
        missing = set() if reason else set(cached.missing(self.keys))
        adaptive_size = AdaptiveBatchSize(method.name, device=self.network.device)
        counter = CountPasses(self.network.network)
        try:
            for rows in () if reason else self._batches(missing, explainer.wraps is None and recorded is None):
                began, before = time.perf_counter(), counter.images
                is_first = rows == self.first
                new = [place for place, row in enumerate(rows) if row in missing]
                size = min(self.images_at_once, adaptive_size.batch_size or self.images_at_once)
                # Foreign code draws from the global random states; a resumed call has to draw the same for this batch.
                seed = int(digest([self.seed, *(self.keys[row] for row in rows)])[:8], 16)
                with preserve_random_states(seed):
                    make = check_applicability if is_first and explainer.wraps is None else explain_batch
                    context = self.context(rows, size)
                    maps = make(method, context, adaptive_size)
                deltas = convergence_delta(method, maps, context.sums or {})
                arrays = {"maps": maps, "convergence_delta": deltas}
                share = len(new) / len(rows)
                all_passes, seconds = self.network.passes - before, (time.perf_counter() - began) * share
                passes = round(all_passes * share)
                # Passes for images whose maps are cached already only check the method.
                self.network.count_as_check(all_passes - passes)
                if new:
                    cached.add(
                        [self.keys[rows[place]] for place in new],
                        {name: values[new] for name, values in arrays.items()},
                        seconds,
                        passes,
                    )
                if is_first and recorded is None:
                    applicability.add(first_keys, first=True)
        except NotApplicable as error:
            reason, failed = str(error), isinstance(error, ExplainerFailed)
            applicability.add([self.keys[row] for row in rows], rows == self.first, error, failed)
        if failed:
            warnings.warn(f"The method {method.name!r} is left out: {reason}.", stacklevel=4)
        return (None if reason else cached), reason

    def _batches(self, missing: set[int], checks: bool) -> Iterator[list[int]]:
        """Yield the rows of one batch after another: first those that are checked, then those that are missing."""
        # The images that decide whether a method is applicable come first, so that none is explained twice.
        probes = self.first if checks else [row for row in self.first if row in missing]
        if probes:
            yield probes
        rest = [row for row in sorted(missing) if row not in set(self.first)]
        for low in range(0, len(rest), self.images_at_once):
            yield rest[low : low + self.images_at_once]


def _memory_cache() -> Cache:
    from heatproof.api.cache import Cache

    return Cache()


def _first(background: torch.Tensor, count: int) -> torch.Tensor:
    """Return the first `count` background images, for use as baselines."""
    if count > len(background) and not isinstance(count, DefaultCount):
        raise HeatproofError(f"{count} background images are asked for and {len(background)} given: give more.")
    return background[:count]


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value if isinstance(value, bool | int | float | str | None) else str(value)
        for name, value in options.items()
    }
