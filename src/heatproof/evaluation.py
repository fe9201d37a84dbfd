"""`heatproof.evaluate`: score attribution maps of any torch classifier without the workflow."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np

from heatproof.errors import HeatproofError, first_line
from heatproof.finetuned import Domain, deletion_of, domain_of, image_digests, warn_out_of_domain
from heatproof.grids import patch_sums
from heatproof.metrics.registry import METRICS, Metric
from heatproof.metrics.single_deletion import family
from heatproof.options import BatchSize, check_plain, short
from heatproof.perturbation.baselines import BASELINES
from heatproof.registry import look_up, nearest
from heatproof.responses.base import Along, Batch, Explain, Method, Reading, Response, ScoredImages, Session, serving

if TYPE_CHECKING:
    import torch
    import xarray

OUTPUTS = ("logit", "log_probability")
# Axes of what a metric reads of a response, after the images.
AXES = {
    "patches": ("patch",),
    "subsets": ("subset",),
    "parts": ("part",),
    "curves": ("step", "target"),
    "pictures": ("picture", "target"),
}
# Normalised images reach 3 or so, and those of 8 bits 255.
FAR = 50
COMMON = ("seed", "batch_size", "device", "image_ids", "ranking", "explain", "details")
Metrics = Sequence[str] | Mapping[str, Mapping[str, Any]]


@overload
def evaluate(
    metric: str, model: Any, images: torch.Tensor, targets: Any, maps: Any, **options: Any
) -> xarray.Dataset: ...


@overload
def evaluate(
    metric: Metrics, model: Any, images: torch.Tensor, targets: Any, maps: Any, **options: Any
) -> dict[str, xarray.Dataset]: ...


def evaluate(
    metric: str | Metrics, model: Any, images: torch.Tensor, targets: Any, maps: Any, **options: Any
) -> xarray.Dataset | dict[str, xarray.Dataset]:
    """Score attribution maps with one metric, or with several that share the model's passes.

    Parameters
    ----------
    metric
        A name listed by `heatproof list metrics`, for example ``"mas_insertion"``; a list of names; or a mapping from
        names to options. In a mapping the names are free if the option ``metric`` names the metric.
    model
        A classifier in eval mode, with all of its parts: images (B, C, H, W) to logits (B, K). One logit z is that of
        class 1 of two, whose logits are [-z/2, z/2]. A float64 model is read in float64.
    images
        (N, C, H, W), any number of channels, normalised as the model expects. The memory format (for example
        channels_last) is kept. Or an xarray.DataArray with the dimensions image, channel, y, x, in any order.
    targets
        (N,) integers, the classes that the maps explain, and that are scored. Metrics with ``target="predicted"`` score
        the class predicted for the intact image instead, which has to be the one that the maps explain.
    maps
        (N, H, W), tensor or array, summed over channels; higher is more relevant. Or an xarray.DataArray with the
        dimensions image, y, x, in any order. Maps of several methods share all passes that do not follow a map: what
        `heatproof.explain` returns, a DataArray with a dimension ``method`` as well, or a mapping from names to maps;
        or the maps of a run that `heatproof.open` gives, several of one explainer as methods.
    **options
        Options of the metric: ``grid``, ``baseline``, ``order``, ``steps``, ``step_size`` or ``fractions``,
        ``imputation``, ``target``, ``output`` and others. Options of every metric:

        - ``seed`` (0), for ties, noise and random baselines;
        - ``batch_size`` (64), images in one network pass; ``"auto"`` is 512 on an NVIDIA GPU;
        - ``device`` of the model (default: that of its parameters);
        - ``image_ids``, N names that seed random numbers per image (default: "0", "1", …);
        - ``ranking`` (N, H × W), a permutation of the pixels of each image, from most to least relevant, instead of the
          map's order;
        - ``explain``, a function from images and targets to maps, for metrics that recompute maps;
        - ``details`` (False), whether what the metric read is returned as well: drops and sums of patches, outputs at
          each step or picture, entropies in bytes.

        ``part_deletion`` needs ``masks`` (N, K, H, W) bool, true where a part is visible, and either ``removed``
        (N, K, C, H, W), the normalised images without each part, or ``drops`` (N, K).

        With several metrics, each gets the options that it has; an option that none of them has is an error.

        A network that `heatproof.finetune` made gives metrics of patch drops its grid and its baseline, and
        ``baseline="mean"`` its colour, where these are left out.

    Returns
    -------
    xarray.Dataset
        ``score`` (image) float64, NaN where undefined; ``valid`` (image) bool; ``reason`` (image), why it is undefined,
        else empty; the metric's curves over (image, step) under their names, with the coordinate ``share``, the share
        of the pixels that is changed. As attributes the metric (``sds`` where ``idsds`` was asked for and the
        network was not finetuned with this grid and filling), its direction, source, all options, as JSON the complete
        settings of the responses that it read, and its range, but for logits where it is one of probabilities.
        ``task`` is ``binary`` for a model of one logit, else ``multiclass``; ``check_passes`` are the images that went
        through the model to find whether an image's answer depends on chance or on the rest of its batch.
        Each with a dimension ``method`` before the others where maps of several methods were given. For several
        metrics, a dict of such datasets by name. Metrics that read the same response share its passes: SIC and AIC, or
        insertion, deletion and their difference, cost the passes of one.

    Raises
    ------
    HeatproofError
        If a metric or option does not exist, inputs do not match, a value is not finite, a label is not a class of the
        model, or the model does not return logits, or is in training mode in any part that can be found: submodules,
        and what a function's closure or globals, an object's attributes or a partial application hold.

    Examples
    --------
    >>> import torch, heatproof
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 4)).eval()
    >>> images, labels = torch.rand(5, 3, 8, 8), torch.tensor([0, 1, 2, 3, 0])
    >>> scores = heatproof.evaluate("rise_deletion", model, images, labels, torch.rand(5, 8, 8), steps=8)
    >>> scores["score"].shape, scores["deletion"].dims
    ((5,), ('image', 'step'))
    >>> both = heatproof.evaluate(["sic", "aic"], model, images, labels, torch.rand(5, 8, 8))
    >>> list(both)
    ['sic', 'aic']
    """
    if callable(metric) or hasattr(metric, "shape"):
        raise HeatproofError(
            f"The metric is {type(metric).__name__}: the metric comes first, as in heatproof.evaluate('idsds', model, "
            "images, targets, maps)."
        )
    if not callable(model):
        raise HeatproofError(
            f"The model is {type(model).__name__}: give a function of images, for example a torch.nn.Module."
        )
    common = {key: options.pop(key) for key in COMMON if key in options}
    domain = domain_of(model)
    metrics = selected_metrics({metric: {}} if isinstance(metric, str) else metric, options, domain)
    images, labels, ids = check_batch(images, targets, common.get("image_ids"))
    warn_of_range(images)
    warn_out_of_domain([one.options for one in metrics.values() if one.is_renamed], domain)
    values, names, gaps = _cube(maps, images, ids)
    check_plain(_plain_options, common, "heatproof.evaluate")
    ranking, explain = common.get("ranking"), common.get("explain")
    read = [response for one in metrics.values() for response in one.responses.values()]
    for name, given, reads in (
        ("ranking", ranking, any(response.orders_pixels for response in read)),
        ("explain", explain, any(response.explains for response in read)),
    ):
        if given is not None and not reads:
            raise HeatproofError(f"None of the metrics reads {name!r}: leave it out, or name one that does.")
    if explain is not None:
        from heatproof.models.reachable import check_mode

        check_mode(explain, "explainer")
    from heatproof.models.adapter import HALF, adapted, check_network, warn_of_probabilities
    from heatproof.models.memory import batch_size_of

    seed = int(common.get("seed", 0))
    named = None if common.get("device") is None else _device(common["device"])
    with adapted(model, images if named is None else images[:1].to(named), seed) as network:
        network.check_precision(images)
        # One of an image's own precision has no half of it: sums are of float32.
        images = images.float() if images.dtype in HALF else images.clone() if images.is_inference() else images
        check_network(network, images[few_rows(images)])
        network.check_targets(labels, ids)
        if network.one_logit:
            warn_of_probabilities(network)
        session = Session(
            open_network=lambda: network.network,
            device=named or network.device,
            batch_size=batch_size_of(common.get("batch_size", 64), named or network.device),
            seed=seed,
            explain=None if explain is None else partial(_recomputed, explain, seed, network.network),
            given={"ranking": None if ranking is None else np.asarray(ranking)},
        )
        found = score_all(session, Batch(images, labels, ids), metrics, values, names, bool(common.get("details")))
    results = {name: _joined(scored, names, gaps) for name, scored in found.items()}
    for one in results.values():
        one.attrs |= {"task": network.task, "check_passes": network.check_passes}
    return results[metric] if isinstance(metric, str) else results


def score_all(
    session: Session,
    batch: Batch,
    metrics: Mapping[str, SelectedMetric],
    maps: np.ndarray,
    names: Sequence[str] | None,
    details: bool = False,
) -> dict[str, dict[str, xarray.Dataset]]:
    """Return each metric's scores of each method.

    Parameters
    ----------
    session
        A checked network, and the settings of its passes.
    batch
        N images with the classes that are scored.
    metrics
        As `selected_metrics` returns them.
    maps
        (N, methods, H, W).
    names
        Of the methods; None for one without a name.
    details
        Whether what the metrics read is returned as well.
    """
    from heatproof.batches import track
    from heatproof.models.memory import WithinMemory

    along = Along(maps, tuple(Method(name, index) for index, name in enumerate(names or ["map"])))
    found: dict[str, dict[str, xarray.Dataset]] = {}
    for attempt in WithinMemory("evaluate").attempts(session.batch_size):
        with attempt as size:
            asking = _Asking(replace(session, batch_size=size), batch, along, metrics, details)
            found = {name: asking.score(one) for name, one in track(metrics.items(), "scores", unit="metric")}
    return found


class SelectedMetric(NamedTuple):
    """A metric with all of its options, what it reads, and the name that fits what is done."""

    entry: Metric
    options: dict[str, Any]
    responses: dict[str, Response]
    told: str

    @property
    def is_renamed(self) -> bool:
        """Whether it was asked for as IDSDS and is SDS."""
        return self.entry.name == "idsds" != self.told


def selected_metrics(metrics: Metrics, common: Mapping[str, Any], domain: Domain) -> dict[str, SelectedMetric]:
    """Return the metrics, by name, with the options that each of them has."""
    mapping = isinstance(metrics, Mapping) and all(isinstance(own, Mapping) for own in metrics.values())
    if not (mapping or isinstance(metrics, list | tuple)) or not all(isinstance(name, str) for name in metrics):
        raise HeatproofError(
            f"The metrics are {short(metrics)}: give a name, a list of names, or a mapping from names to options."
        )
    named = metrics if isinstance(metrics, Mapping) else {name: {} for name in metrics}
    if not named:
        raise HeatproofError("No metric is given: name at least one.")
    entries = {name: look_up(METRICS, own.get("metric", name), "metric") for name, own in named.items()}
    known = {key for entry in entries.values() for key in entry.options}
    for key in common:
        if key not in known:
            # Of one metric, in its words.
            next(iter(entries.values())).fill_in({key: None} if len(entries) == 1 else {})
            raise HeatproofError(f"None of the metrics has an option {key!r}: {nearest(key, known)}")
    selected = {}
    for name, entry in entries.items():
        own = {key: value for key, value in named[name].items() if key != "metric"}
        given = {key: value for key, value in common.items() if key in entry.options} | own
        given = {key: value.item() if isinstance(value, np.generic) else value for key, value in given.items()}
        # Those that are plain values by their annotations, as those of a config.
        for function in filter(None, (entry.asks, entry.function, entry.reads.options)):
            check_plain(function, given, f"metric {entry.name!r}")
        options = domain.complete(entry.reads.complete(entry.fill_in(given), domain.reference))
        told = entry.name
        if told in ("idsds", "sds"):
            look_up(BASELINES, options["baseline"], "baseline")
            told = family(domain.finetuned, deletion_of(options)) if told == "idsds" else told
        selected[name] = SelectedMetric(entry, options, entry.responses(options), told)
    return selected


@dataclass(frozen=True, eq=False)
class _Asking:
    """A model, images and maps, and the responses computed so far."""

    session: Session
    batch: Batch
    along: Along
    metrics: Mapping[str, SelectedMetric]
    details: bool
    answers: dict[tuple[Any, ...], Mapping[str, np.ndarray]] = field(default_factory=dict)

    def score(self, one: SelectedMetric) -> dict[str, xarray.Dataset]:
        """Return a metric's scores of each method; a response that another one needs in finer steps serves it too."""
        # What only the caller can give of the responses.
        given = {key: one.options[key] for key in one.entry.reads.in_memory}
        session = replace(self.session, given={**self.session.given, **given})
        served = serving(response for other in self.metrics.values() for response in other.responses.values())
        size = self.along.maps.shape[2], self.along.maps.shape[3]
        images = ScoredImages(self.batch.ids, self.batch.labels.cpu().numpy(), size, session.seed)
        read = []
        for argument, needed in one.responses.items():
            response, points = served[needed]
            if lacking := response.lacks(session):
                raise HeatproofError(f"The metric {one.entry.name!r} needs {lacking}.")
            arrays = self._ask(response, session, given)
            read.append((Reading(argument, response, points, one.options.get("output", "logit")), arrays))
        options = one.options | {"seed": session.seed, "batch_size": session.batch_size}
        scored = {}
        for index, method in enumerate(self.along.methods):
            maps = self.along.maps[:, index]
            inputs: dict[str, Any] = {"maps": maps, "image_ids": self.batch.ids}
            for reading, arrays in read:
                inputs |= reading.inputs(arrays, images, index if reading.response.along_maps else 0)
            result = one.entry.score(inputs, one.options)
            scored[method.name] = _dataset(one, options, images, maps, result)
            if self.details:
                _add_details(scored[method.name], one, inputs, maps)
            shares = _shares(read[0][0], size) if read else None
            if shares is not None and scored[method.name].sizes.get("step") == len(shares):
                scored[method.name].coords["share"] = ("step", shares)
        return scored

    def _ask(self, response: Response, session: Session, given: Mapping[str, Any]) -> Mapping[str, np.ndarray]:
        """Return the arrays of a response, as a store would give them back."""
        key = (response, *(id(value) for value in given.values()))
        if key not in self.answers:
            batch = replace(self.batch, intact=self._intact) if response.needs_intact else self.batch
            arrays = response.run(session, batch, self.along)
            # As a store would give them back, but for the logits of a float64 network, of which drops are taken.
            exact = {name: arrays[name] for name in OUTPUTS if name in arrays and arrays[name].dtype == np.float64}
            self.answers[key] = {**response.cast(arrays), **exact}
        return self.answers[key]

    @cached_property
    def _intact(self) -> Mapping[str, np.ndarray]:
        """Outputs of the model for the intact images."""
        from heatproof.perturbation.batching import intact_responses

        return intact_responses(self.session.query(self.batch))


def check_images(images: Any) -> torch.Tensor:
    """Return images (N, C, H, W) as a tensor.

    Raises
    ------
    HeatproofError
        One sentence for the first thing that is wrong.
    """
    import torch

    images = _in_order(images, ("image", "channel", "y", "x"), "images")
    images = torch.from_numpy(np.ascontiguousarray(images)) if isinstance(images, np.ndarray) else images
    if not isinstance(images, torch.Tensor) or images.ndim != 4 or not images.is_floating_point():
        what = f"{images.dtype} {tuple(images.shape)}" if isinstance(images, torch.Tensor) else type(images).__name__
        raise HeatproofError(f"The images are {what}: give a float tensor (images, channels, height, width).")
    if images.shape[3] == 3 < min(images.shape[1:3]):
        raise HeatproofError(
            f"The images are {tuple(images.shape)}, with their channels last: give images.permute(0, 3, 1, 2)."
        )
    if images.layout != torch.strided:
        raise HeatproofError("The images are a sparse tensor: give images.to_dense().")
    if not len(images):
        raise HeatproofError("The batch of images is empty: give at least one image.")
    return images.detach()


def few_rows(images: torch.Tensor) -> list[int]:
    """Return the rows of the few of the images (N, C, H, W) that tell whether a network, or a method, can be used."""
    from heatproof.data.few import few_of, is_blank

    return few_of(image_digests(images), lambda row: is_blank(images[row]))


def check_batch(
    images: Any, targets: Any, image_ids: Sequence[str] | None = None
) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    """Return images (N, C, H, W), the class of each (N,) int64, and their names, as everything else takes them.

    Raises
    ------
    HeatproofError
        One sentence for the first thing that is wrong.
    """
    import torch

    images = check_images(images)
    if targets is None:
        raise HeatproofError(
            f"The targets are None: give one class number for each of the {len(images)} images; "
            "model(images).argmax(1) are the classes that it predicts."
        )
    try:
        labels = torch.as_tensor(_in_order(targets, ("image",), "targets"))
        labels = labels if labels.layout == torch.strided else labels.to_dense()
    except (TypeError, ValueError, RuntimeError):
        raise HeatproofError(
            f"The targets are {type(targets).__name__}: give one class number for each of the {len(images)} images."
        ) from None
    if labels.shape != (len(images),) or labels.is_floating_point() or labels.dtype == torch.bool:
        raise HeatproofError(
            f"The targets are {labels.dtype} {tuple(labels.shape)}: give one class number for each of the "
            f"{len(images)} images."
        )
    if isinstance(image_ids, str) or not isinstance(image_ids, Iterable | None) or getattr(image_ids, "ndim", 1) != 1:
        raise HeatproofError(f"image_ids is {type(image_ids).__name__}: give a list with an id for each image.")
    ids = [str(number) for number in range(len(images))] if image_ids is None else [str(name) for name in image_ids]
    if len(ids) != len(images) or len(set(ids)) != len(ids):
        raise HeatproofError(f"image_ids must have a unique id for each of the {len(images)} images.")
    check_finite(images, ids)
    return images, labels.long(), ids


def check_finite(images: torch.Tensor, ids: Sequence[Any]) -> None:
    """Refuse images with a value that is no number.

    Raises
    ------
    HeatproofError
        With the name of the first such image.
    """
    import torch

    bad = (~torch.isfinite(images.flatten(1))).any(1).nonzero().flatten().tolist()
    if bad:
        raise HeatproofError(f"Image {ids[bad[0]]!r} has a value that is not finite: leave the image out.")


def warn_of_range(images: torch.Tensor) -> None:
    """Warn the caller of the function that calls this one of images that nobody normalised."""
    largest = float(images.abs().max())
    if largest > FAR:
        warnings.warn(
            f"The images reach {largest:g}: normalise them as the model was trained (mean and std), unless it takes "
            "them so.",
            stacklevel=3,
        )


def _cube(maps: Any, images: Any, ids: list[str]) -> tuple[np.ndarray, list[str] | None, dict[str, str]]:
    """Return maps (N, M, H, W), the names of their methods, and the methods that have none, with the reason.

    The names are None where maps of one method without a name were given.
    """
    gaps: dict[str, str] = {}
    if hasattr(maps, "data_vars"):
        if "attribution" not in maps:
            raise HeatproofError(
                f"The maps are an xarray.Dataset with {', '.join(map(str, maps)) or 'nothing'}: give what "
                "heatproof.explain returns, or one of its arrays."
            )
        if "reason" in maps:
            gaps = {str(name): str(reason) for name, reason in maps["reason"].to_series().items() if reason}
        maps = maps["attribution"]
    if hasattr(maps, "dims") and "map" in maps.dims and "method" not in maps.dims:
        # Of a run: one explainer makes one map or several.
        maps = maps.squeeze("map", drop=True) if maps.sizes["map"] == 1 else maps.rename({"map": "method"})
    if hasattr(maps, "dims") and "method" in maps.dims:
        maps = {str(name): maps.sel({"method": name}, drop=True) for name in maps["method"].values.tolist()}
    if not isinstance(maps, Mapping):
        return _values(maps, images, ids)[:, None], None, gaps
    given = {str(name): values for name, values in maps.items() if str(name) not in gaps}
    if not given:
        raise HeatproofError(
            "There are no maps: "
            + (f"no method applies, {next(iter(gaps))} because {next(iter(gaps.values()))}." if gaps else "give some.")
        )
    return np.stack([_values(values, images, ids) for values in given.values()], axis=1), list(given), gaps


def _values(maps: Any, images: Any, ids: list[str]) -> np.ndarray:
    from heatproof.perturbation.curves import check_maps

    maps = _in_order(maps, ("image", "y", "x"), "maps")
    if hasattr(maps, "detach"):
        maps = maps.detach().to_dense().cpu() if maps.is_sparse else maps.detach().cpu()
        # NumPy has no bfloat16.
        maps = (maps.float() if maps.is_floating_point() and maps.itemsize < 4 else maps).numpy()
    try:
        values = np.asarray(maps)
    except (TypeError, ValueError):
        raise HeatproofError(
            f"The maps are {type(maps).__name__} that makes no array: give numbers (images, height, width)."
        ) from None
    check_maps(values, images, ids)
    # Whole numbers have no thirds, and unsigned ones no negatives.
    return values if np.issubdtype(values.dtype, np.floating) else values.astype(np.float64)


def _in_order(values: Any, names: tuple[str, ...], what: str) -> Any:
    """Return the array of an xarray.DataArray with its dimensions in our order; anything else as it is."""
    if not (hasattr(values, "dims") and hasattr(values, "transpose")):
        return values
    if sorted(map(str, values.dims)) != sorted(names):
        raise HeatproofError(
            f"The {what} have the dimensions {', '.join(map(str, values.dims))}: name them {', '.join(names)}, or give "
            "the array without names in this order."
        )
    return values.transpose(*names).values


def _recomputed(
    explain: Callable[..., Any], seed: int, network: Any, along: Along, method: Method, batch: Batch
) -> Explain:
    """Return what recomputes maps (k N, H, W) of k changed copies of the images of a batch."""
    import torch

    from heatproof.attribution.explaining import Failed, MapMaker, explain_batch
    from heatproof.attribution.own import as_explainer
    from heatproof.attribution.registry import Explained

    function = as_explainer(lambda model, images, targets: explain(images, targets), "explain")
    maker = MapMaker("explain", function, {}, {"explain": True})

    def make(images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        ids = tuple(one for one in batch.ids for _ in range(len(images) // len(batch.ids)))
        given = Explained(network, network, None, images, targets, ids, seed, batch_size=len(images))
        try:
            return torch.from_numpy(explain_batch(maker, given)[:, 0])
        except Failed as reason:
            raise HeatproofError(f"The function of the option 'explain' cannot be used: {reason}.") from reason

    return make


def _plain_options(*, seed: int = 0, batch_size: BatchSize = 64, details: bool = False) -> None:
    """Options of `evaluate` that are plain values, whatever the metric."""


def _device(named: Any) -> Any:
    """Return a device that the caller named.

    Raises
    ------
    HeatproofError
        If there is none of that name, here or anywhere.
    """
    import torch

    try:
        return torch.empty(0, device=named).device
    except (TypeError, RuntimeError, ValueError, AssertionError) as error:
        raise HeatproofError(
            f"The device {short(named)} cannot be used ({first_line(error)}): leave it out, or name another."
        ) from None


def _dataset(
    one: SelectedMetric,
    options: dict[str, Any],
    images: ScoredImages,
    maps: np.ndarray,
    result: tuple[np.ndarray, np.ndarray, Any],
) -> xarray.Dataset:
    import xarray

    (score, valid, curves), entry = result, one.entry
    variables: dict[str, Any] = {"score": ("image", score), "valid": ("image", valid)}
    variables["reason"] = (
        "image",
        [("" if fine else _why(map_, entry)) for fine, map_ in zip(valid, maps, strict=True)],
    )
    variables |= {name: (("image", "step")[-values.ndim :], values) for name, values in curves.items()}
    attributes = {
        "metric": one.told,
        "higher_is_better": int(entry.higher(options)),
        "source": entry.source,
        "undefined": int((~valid).sum()),
        # With what follows from options that are left out, such as the steps, for each argument of the metric.
        "responses": {name: dict(response.settings) for name, response in one.responses.items()},
        **{key: value for key, value in options.items() if value is not None},
    }
    # That of a metric over probabilities does not hold for logits.
    if options.get("output") != "logit" or entry.options["output"] == "logit":
        attributes["range"] = list(entry.range)
    attributes = {key: _attribute(value) for key, value in attributes.items()}
    made = xarray.Dataset(variables, coords={"image": list(images.ids)}, attrs=attributes)
    made["score"].attrs = {"long_name": entry.summary, "higher_is_better": attributes["higher_is_better"]}
    return made


def _add_details(made: xarray.Dataset, one: SelectedMetric, inputs: Mapping[str, Any], maps: np.ndarray) -> None:
    """Add the arrays that the metric read: outputs along its responses, and of patch drops the sums of the maps."""
    several = len(one.responses) > 1
    for argument, response in one.responses.items():
        value = inputs[argument]
        axes = AXES.get(response.kind, ())
        whole = {argument: value} if isinstance(value, np.ndarray) else getattr(value, "arrays", value)
        for part, array in whole.items():
            if not isinstance(array, np.ndarray) or array.ndim < 1 or len(array) != made.sizes["image"]:
                continue
            name = f"{argument}_{part}" if several else part
            own = [*axes, *(f"{name}_{number}" for number in range(len(axes) + 1, array.ndim))][: array.ndim - 1]
            own = [f"{name}_{axis}" if made.sizes.get(axis, n) != n else axis
                   for axis, n in zip(own, array.shape[1:], strict=True)]  # fmt: skip
            if name not in made:
                made[name] = (("image", *own), array)
        if response.kind == "patches":
            made[argument].attrs["units"] = one.options["output"]
            sums = patch_sums(maps, response.settings["grid"], truncate=one.options.get("truncate", False))
            made["patch_sums"] = (("image", "patch"), sums)


def _shares(reading: Reading, size: tuple[int, int]) -> np.ndarray | None:
    """Return the share of the pixels that is changed at each point of a curve; None where it differs between maps."""
    sequence = getattr(reading.response, "sequence", None)
    if sequence is None or sequence.thresholds is not None:
        return None
    units = size[0] * size[1] if sequence.grid is None else sequence.grid**2
    shares = np.asarray(sequence.counts(*size)) / units
    return shares if reading.points is None else shares[reading.points]


def _why(one: np.ndarray, entry: Metric) -> str:
    """Return why a map (H, W) has no score by a metric."""
    if one.min() == one.max():
        return "the map has one value everywhere"
    if one.max() <= 0:
        return "the map has no positive value"
    return entry.undefined or "the metric is not defined on what the network says of this image"


def _attribute(value: Any) -> Any:
    """Return an option in a form that files keep."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int | float | str):
        return value
    if isinstance(value, tuple | list) and all(isinstance(one, int | float | str) for one in value):
        return list(value)
    if isinstance(value, dict):
        return json.dumps(value, default=_attribute, sort_keys=True)
    return f"{type(value).__name__} {tuple(value.shape)}" if hasattr(value, "shape") else str(value)


def _joined(scored: dict[str, Any], names: Sequence[str] | None, gaps: Mapping[str, str]) -> xarray.Dataset:
    """Return the scores of one method, or of all of them along a dimension; those without maps come last."""
    import xarray

    if names is None:
        return next(iter(scored.values()))
    whole = xarray.concat(
        list(scored.values()), xarray.DataArray(list(scored), dims="method", name="method"), combine_attrs="override"
    )
    if gaps:
        whole = whole.reindex({"method": [*scored, *gaps]})
        whole["valid"] = whole["valid"].fillna(False).astype(bool)
        for name, reason in gaps.items():
            whole["reason"].loc[{"method": name}] = reason
    whole.attrs["undefined"] = int((~whole["valid"].values).sum())
    return whole
