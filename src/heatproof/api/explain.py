"""`heatproof.explain`: attribution maps of any torch network, by heatproof's explainers or by other libraries'."""

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

from heatproof.api.named_methods import Method, NamedMethod, check_names, select_methods
from heatproof.attribution.registry import ExplainContext
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
    from heatproof.models.adapter import AdaptedNetwork


def explain(
    model: torch.nn.Module,
    images: Any,
    targets: Any,
    methods: str | Sequence[Method] | Mapping[str, Method],
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
    """Make attribution maps of some images by one method or many.

    Parameters
    ----------
    model
        A network in eval mode: images (B, C, H, W) to logits (B, K), an output with ``.logits``, or anything that
        `target` takes. It is left as it is; gradients of its parameters are off meanwhile.
    images
        (N, C, H, W), normalised as the model expects. Or a torch DataLoader or data set, whose images are read by
        number, in the order of the data set; any other iterable of batches, which is read once into memory; or a folder
        of pictures, with one folder a class or none. Batches are images, (images, labels) or a dict with usual keys.
    targets
        What is explained of each image. For ``binary`` and ``multiclass``, (N,) integers, the classes. For
        ``multilabel``, (N,) integers, or (N, K) of 1 where an image has a label, 0 where it has not and -1 or NaN where
        that is not known: every label that an image has is explained, in a row of its own. For ``regression``, nothing
        or the labels (N,), as the number itself is explained; of several numbers, (N,) integers say which. For a
        `target` function, whatever it takes: a tensor or array (N, …), a list of N, or None. None is what comes with
        the images, else what the network answers: the predicted class, or the label with the largest logit.
    methods
        A method, a list of methods, or a mapping from names of your own to methods. A method is a name of
        `heatproof list explainers`; a mapping from such a name to options, as ``{"integrated_gradients": {"steps":
        50}}``; a captum ``Attribution``; an extractor of torch-cam or pytorch-grad-cam; a zennit composite; or a
        function of model, images and targets that returns maps (N, H, W) or (N, C, H, W).
    task
        What the network is for: ``binary`` (one logit, or two), ``multiclass``, ``multilabel`` (a logit for each label,
        of which an image can have several) or ``regression``. None for ``binary`` where the network has one output,
        else ``multiclass``.
    target
        A function, in the place of a task: ``target(output, targets)`` gets the network's whole output of a batch and
        the targets of its images, arrays as tensors, and returns the number (B,) that is explained of each image. A
        method of another library gets a network that returns one column for each distinct target.
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
    cache
        A folder that keeps the maps, and is made where there is none. An interrupt or a kill loses one batch at most,
        and the same call goes on; what was made before is made again only where the network, an image, its name or
        class, a method with its options, the seed, the layer, the background or a version changed. Maps are read from
        it when they are asked for, so that memory does not grow with the number of images. Methods of your own are
        told by their code and what they hold, not by files that they read.

    Returns
    -------
    xarray.Dataset
        ``attribution`` (method, image, y, x) float32, summed over channels, higher is more relevant; NaN where a method
        does not apply. ``convergence_delta`` (method, image) float64, by how much a map misses the sum that its method
        promises: what it sums to minus what it is to sum to, in units of the output; NaN where none is promised.
        ``reason`` (method), why it does not, else empty; ``seconds`` (method), of an image; ``passes``
        (method), images that went through the network for one map; ``options`` (method), as JSON; ``signed`` (method),
        whether maps can be negative, of a function of your own whether any is. Coordinates ``target`` (image), the
        class, label or output, of a target function its target where these are whole numbers or texts, else the number
        of the distinct target; and ``image_digest`` (image), of the content of each image, by which
        `heatproof.evaluate` finds the map of an image. Where no class is explained, ``task`` as well, and
        ``target_digest`` (image), which tells a target function and its target from others. As attributes ``layer``,
        the name of the layer that class activation maps read; ``task``, ``binary`` for a model of one logit where none
        is given, and ``callable`` for a target function; ``check_passes``, images that went through the model
        in this call to check it and what methods alter in a pass. What `heatproof.evaluate` takes as maps. One method
        is selected by
        ``.sel({"method": "grad_cam"})``: xarray reads ``.sel(method=…)`` as a way to look up neighbours, and returns
        every method.

    Raises
    ------
    HeatproofError
        If a method or an option does not exist, or the inputs do not match; if the cache is a folder of other files,
        another call uses it, or nothing tells whether a method is the same in another call.
    """
    from heatproof.api.cache import locked_cache
    from heatproof.attribution.foreign import check_network_of
    from heatproof.base.batches import show_progress
    from heatproof.inputs.arrays import check_finite, check_images, warn_of_range
    from heatproof.inputs.read import read_inputs
    from heatproof.inputs.targets import TargetSpec, check_columns
    from heatproof.models.adapter import adapt_network, check_network
    from heatproof.models.probabilities import warn_of_probabilities
    from heatproof.models.reachable import require_module

    require_module(model)
    layer = layer_name(model, layer)
    check_arguments(explain, locals(), "task", "target", "image_ids", "background", "classes", "transform", "cache")
    asked = select_methods(methods)
    check_names(asked)
    for one in asked:
        check_network_of(one.name, one.foreign, model)
    if background is not None:
        background = check_images(background)
        check_finite(background, range(len(background)))
    target_spec = TargetSpec(task, target)
    opened = adapt_network(model, images, seed, target_spec.reader())
    with locked_cache(cache) as root, opened as network, show_progress(progress):
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
        few = source.read(run.first)
        warn_of_range(source.images if source.is_checked else few, model)
        network.check_precision(few)
        check_network(network, few, with_gradients=root is not None)
        check_columns(network, source)
        warn_of_probabilities(network)
        run.cache = run.open_cache(root, target_spec)
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


@dataclass
class ExplainRun:
    """A network, images, and what all methods share.

    Attributes
    ----------
    network
        Checked.
    source
        N images with names and classes.
    digests
        Of the content of each image.
    seed, batch_size, layer, background
        As in `explain`.
    cache
        What keeps maps; by default memory.
    """

    network: AdaptedNetwork
    source: ImageSource
    digests: Sequence[str]
    seed: int
    batch_size: int | str
    layer: str | None
    background: torch.Tensor | None
    cache: Cache = field(default_factory=lambda: _in_memory())

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
        """Rows of the few images that tell whether a method applies."""
        from heatproof.data.few import is_blank, probe_rows

        return probe_rows(self.digests, lambda row: is_blank(self.source.read([row])[0]))

    @cached_property
    def keys(self) -> list[str]:
        """Of each image a digest of what decides its maps: its content, its name, which seeds draws, and its target."""
        digests, probe = self.digests, self.source.read([0])
        if probe.element_size() > 4:
            # Digests of images are of float32.
            digests = [identity_of(one) for _, part in self.source.batches() for one in part]
        targets = self.source.explained if self.source.kind else self.labels.tolist()
        told = zip(digests, self.ids, targets, strict=True)
        return [digest([str(probe.dtype), *one]) for one in told]

    @cached_property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        height, width = self.source.read([0]).shape[2:]
        return height, width

    @cached_property
    def images_at_once(self) -> int:
        """Number of images in one network pass."""
        from heatproof.models.memory import batch_size_of

        return batch_size_of(self.batch_size, self.network.device)

    def open_cache(self, root: Path | None, target_spec: TargetSpec) -> Cache:
        """Return what a folder keeps of the network, which is checked, and of what is asked of it."""
        from heatproof.api.cache import network_cache

        if root is None:
            return network_cache(None, self.network, self.source.read([0]), [])
        few, digests = self.source.read(self.first), [self.digests[row] for row in self.first]
        targets = None
        if target_spec.target is not None:
            targets = self.labels[self.first].to(self.network.device)
            told = self.source.target_digests or []
            digests = [digest([one, told[row]]) for one, row in zip(digests, self.first, strict=True)]
        return network_cache(root, self.network, few, digests, target_spec.identity(self.network.network), targets)

    def part(self, rows: torch.Tensor) -> ExplainRun:
        """Return the same for some of the images."""
        chosen = rows.tolist()
        return replace(self, source=self.source.take(chosen), digests=[self.digests[row] for row in chosen])

    def dataset(self, asked: Sequence[NamedMethod], stops: bool = True) -> xarray.Dataset:
        """Return the maps of all methods, and what is known of each, as `explain` does.

        Parameters
        ----------
        asked
            The methods.
        stops
            Whether an interrupt ends the work here, and what is made is returned.
        """
        import xarray

        from heatproof.base.batches import track
        from heatproof.inputs.labels import IMAGE_DIGEST, TARGET_DIGEST, TASK
        from heatproof.inputs.targets import reported_targets

        keys = [self.key_of(one) for one in asked]
        names = [name for one in asked for name in one.maps]
        is_kept = self.cache.folder is not None
        memory = {
            name: np.full((len(names), len(self.ids), *shape[1:]), np.nan, dtype)
            for name, (dtype, shape) in ({} if is_kept else self._arrays(1)).items()
        }
        sources: list[tuple[Any, int] | None] = []
        facts: list[dict[str, Any]] = []
        interrupted = False
        try:
            for one, key in zip(track(asked, "maps", unit="method"), keys, strict=True):
                kept, reason, seconds, passes = None, "interrupted", float("nan"), 0.0
                if not interrupted:
                    try:
                        kept, reason = self.maps_of(one, key)
                    except KeyboardInterrupt:
                        if not stops:
                            raise
                        # What is made is kept: an hour of maps is not lost to one method that takes too long.
                        rest = "; the same call goes on with what the cache has of the others" if is_kept else ""
                        warnings.warn(
                            f"Interrupted in {one.name}: the maps that are made are returned{rest}.", stacklevel=3
                        )
                        interrupted = True
                if kept is not None:
                    seconds, passes = kept.cost(self.keys)
                    for name, values in memory.items():
                        values[len(facts) : len(facts) + len(one.maps)] = kept.read(self.keys)[name].swapaxes(0, 1)
                found = {"reason": reason, "seconds": seconds, "passes": round(passes)}
                # Of a function of the caller's own, what its maps are says it.
                for index, signed in enumerate(one.entry.maps.values() if one.entry else [self._is_signed(kept)]):
                    facts.append({**found, "options": json.dumps(_plain(one.options)), "signed": bool(signed)})
                    sources.append(None if kept is None else (kept, index))
        finally:
            if is_kept:
                self.method_keys.remember()
        applies = {name for name, one in zip(names, facts, strict=True) if not one["reason"]}
        of_methods = {key: ("method", [one[key] for one in facts]) for key in facts[0]}
        of_targets: dict[str, Any] = {TASK: self.source.kind} if self.source.kind else {}
        if self.source.target_digests is not None:
            of_targets[TARGET_DIGEST] = ("image", list(self.source.target_digests))
        found_of = {name: memory.get(name, None if memory else self._lazily(name, sources)) for name in self._arrays(1)}
        return xarray.Dataset(
            {
                "attribution": (("method", "image", "y", "x"), found_of["maps"]),
                "convergence_delta": (("method", "image"), found_of["convergence_delta"]),
                **of_methods,
            },
            coords={
                "method": names,
                "image": self.ids,
                "target": ("image", reported_targets(self.source)),
                IMAGE_DIGEST: ("image", list(self.digests)),
                **of_targets,
            },
            attrs={
                "seed": self.seed,
                "batch_size": self.batch_size,
                "layer": self._layer_of([one for one in asked if one.maps[0] in applies]),
                "task": self.network.task,
                "check_passes": self.network.check_passes,
            },
        )

    def _arrays(self, maps: int) -> dict[str, tuple[str, list[int]]]:
        """Return what is kept of an image: dtype and shape of its maps, and of what these miss of their sums."""
        return {"maps": ("float32", [maps, *self.size]), "convergence_delta": ("float64", [maps])}

    def _lazily(self, name: str, sources: Sequence[tuple[Any, int] | None]) -> Any:
        from heatproof.api.lazy_maps import LazyMaps, as_variable

        dtype, shape = self._arrays(1)[name]
        return as_variable(LazyMaps(name, sources, self.keys, shape[1:], dtype))

    def _is_signed(self, kept: CachedArrays | None) -> bool:
        """Tell whether any of some maps has a negative value."""
        size = self.images_at_once
        parts = [self.keys[low : low + size] for low in range(0, len(self.keys), size)]
        return kept is None or any(bool((kept.read(part)["maps"] < 0).any()) for part in parts)

    def _layer_of(self, asked: Sequence[NamedMethod]) -> str:
        """Return the name of the layer that class activation maps of some methods read; "" where none does."""
        from heatproof.attribution._batches import pad_single_image
        from heatproof.attribution._layers import find_layout

        if self.layer or not any(one.entry and "cam_layer" in one.entry.needs for one in asked):
            return self.layer or ""
        few = pad_single_image(self.explained(self.first, len(self.first)))
        layout = find_layout(self.network.network, few.images)
        return "" if layout is None else layout.name

    def explained(self, rows: Sequence[int], batch_size: int) -> ExplainContext:
        """Return the input of an explainer for some of the images."""
        from heatproof.models.registry import InputFacts

        network = self.network
        return ExplainContext(
            network=network.network,
            output=network.network,
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
        """What tells methods from each other."""
        from heatproof.api.cache import MethodKeys

        return MethodKeys(self.network.network)

    def key_of(self, one: NamedMethod) -> str:
        """Return a digest of what decides the maps of a method, but for the images; its name where nothing is kept."""
        if self.cache.folder is None:
            return one.name
        module = one.entry.function.__module__ if one.entry else "heatproof.attribution.foreign"
        code = code_digest([module, "heatproof.attribution.explaining"])
        # Foreign code may look at the images beside one.
        size = None if one.entry else self.images_at_once
        method = [one.entry.name, one.options] if one.entry else one.foreign
        return self.method_keys.of(one.name, method, code, self.seed, self.layer, self.background, size)

    def maps_of(self, one: NamedMethod, key: str) -> tuple[CachedArrays | None, str]:
        """Make the maps of a method that are not kept yet.

        Returns
        -------
        kept
            What keeps them, as ``maps`` (M, H, W) of each image, and its ``convergence_delta`` (M,); None where the
            method does not apply.
        reason
            Why it does not; else empty.
        """
        from heatproof.attribution.explaining import (
            ExplainerFailed,
            check_applicability,
            convergence_delta,
            explain_batch,
        )
        from heatproof.models.adapter import CountPasses
        from heatproof.models.memory import AdaptiveBatchSize
        from heatproof.models.state import preserve_random_states

        kept = self.cache.kept("maps", key, self.keys, self._arrays(len(one.maps)))
        verdicts = self.cache.verdicts(key)
        first_keys = [self.keys[row] for row in self.first]
        known = verdicts.of(self.keys, first_keys)
        reason, failed = known or ("", False)
        missing = set() if reason else set(kept.missing(self.keys))
        adaptive_size = AdaptiveBatchSize(one.name, device=self.network.device)
        counter = CountPasses(self.network.network)
        try:
            for rows in () if reason else self._batches(missing, bool(one.entry) and known is None):
                began, before = time.perf_counter(), counter.images
                is_first = rows == self.first
                new = [place for place, row in enumerate(rows) if row in missing]
                size = min(self.images_at_once, adaptive_size.batch_size or self.images_at_once)
                # Foreign code draws from the global random states: the same in a call that goes on with this batch.
                seed = int(digest([self.seed, *(self.keys[row] for row in rows)])[:8], 16)
                with preserve_random_states(seed):
                    make = check_applicability if is_first and one.entry else explain_batch
                    explained = self.explained(rows, size)
                    maps = make(one.maker, explained, adaptive_size)
                made = {"maps": maps, "convergence_delta": convergence_delta(one.maker, maps, explained.sums or {})}
                share = len(new) / len(rows)
                passes, seconds = round((counter.images - before) * share), (time.perf_counter() - began) * share
                # What is known already is explained to check the method.
                self.network.check_passes += counter.images - before - passes
                if new:
                    kept.add(
                        [self.keys[rows[place]] for place in new],
                        {name: values[new] for name, values in made.items()},
                        seconds,
                        passes,
                    )
                if is_first and known is None:
                    verdicts.add(first_keys, first=True)
        except NotApplicable as error:
            reason, failed = str(error), isinstance(error, ExplainerFailed)
            verdicts.add([self.keys[row] for row in rows], rows == self.first, error, failed)
        finally:
            counter.close()
            self.network.check_passes += counter.check_images
        if failed:
            warnings.warn(f"The method {one.name!r} is left out: {reason}.", stacklevel=4)
        return (None if reason else kept), reason

    def _batches(self, missing: set[int], checks: bool) -> Iterator[list[int]]:
        """Yield the rows of one batch after another: of the images that are missing, after those that are checked."""
        # The images that tell whether a method applies come first, so that none is explained twice.
        few = self.first if checks else [row for row in self.first if row in missing]
        if few:
            yield few
        rest = [row for row in sorted(missing) if row not in set(self.first)]
        for low in range(0, len(rest), self.images_at_once):
            yield rest[low : low + self.images_at_once]


def _in_memory() -> Cache:
    from heatproof.api.cache import Cache

    return Cache()


def _first(background: torch.Tensor, count: int) -> torch.Tensor:
    """Return the first so many background images, for use as baselines."""
    if count > len(background) and not isinstance(count, DefaultCount):
        raise HeatproofError(f"{count} background images are asked for and {len(background)} given: give more.")
    return background[:count]


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value if isinstance(value, bool | int | float | str | None) else str(value)
        for name, value in options.items()
    }
