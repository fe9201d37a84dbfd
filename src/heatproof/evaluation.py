"""`heatproof.evaluate`: score attribution maps of any torch classifier without the workflow."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np

from heatproof.errors import HeatproofError, first_line, runs_out
from heatproof.finetuned import Domain, deletion_of, domain_of, warn_out_of_domain
from heatproof.grids import patch_sums
from heatproof.inputs.arrays import warn_of_range
from heatproof.inputs.labels import Scored, by_image, joined_options
from heatproof.inputs.maps import explained_classes, read_maps
from heatproof.inputs.read import read_inputs
from heatproof.metrics.registry import METRICS, Metric
from heatproof.metrics.single_deletion import family
from heatproof.named_axes import MAPS, in_order
from heatproof.options import BatchSize, check_plain, short
from heatproof.perturbation.baselines import BASELINES
from heatproof.registry import look_up, nearest
from heatproof.responses.base import Along, Batch, Method, Reading, Response, ScoredImages, Session, serving

if TYPE_CHECKING:
    import torch
    import xarray

    from heatproof.inputs.source import ImageSource

OUTPUTS = ("logit", "log_probability")
# Axes of what a metric reads of a response, after the images.
AXES = {
    "patches": ("patch",),
    "subsets": ("subset",),
    "parts": ("part",),
    "curves": ("step", "target"),
    "pictures": ("picture", "target"),
}
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
        channels_last) is kept. Or an xarray.DataArray with the dimensions image, channel, y, x, in any order; or a
        loader or a folder, as in `heatproof.explain`, which is read into memory.
    targets
        (N,) integers, the classes that the maps explain, and that are scored. None for the classes that maps of
        `heatproof.explain` say they explain, else the labels of a loader or a folder, else the predicted classes.
        Metrics with ``target="predicted"`` score the class predicted for the intact image instead, which has to be the
        one that the maps explain.
    maps
        (N, H, W), tensor or array, summed over channels; higher is more relevant. Or an xarray.DataArray with the
        dimensions image, y, x, in any order. Maps of several methods share all passes that do not follow a map: what
        `heatproof.explain` returns, a DataArray with a dimension ``method`` as well, or a mapping from names to maps;
        or the maps of a run that `heatproof.open` gives, several of one explainer as methods. What is labelled is
        joined by its labels, or refused: maps of `heatproof.explain` by the content of the images and by their class,
        and other labelled arrays by the names in `image_ids`.
    **options
        Options of the metric: ``grid``, ``baseline``, ``order``, ``steps``, ``step_size`` or ``fractions``,
        ``imputation``, ``target``, ``output`` and others. Options of every metric:

        - ``seed`` (0), for ties, noise and random baselines;
        - ``batch_size`` (64), images in one network pass; ``"auto"`` is 512 on an NVIDIA GPU;
        - ``device`` of the model (default: that of its parameters);
        - ``image_ids``, N names that seed random numbers per image (default: "0", "1", …), by which labelled maps,
          targets and rankings are joined;
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
    # Without targets, maps that say which class they explain are scored by it, and others by the predicted class.
    source = read_inputs(
        model, images, targets, common.get("image_ids"), maps=maps, predict=partial(predicted_classes, model)
    )
    warn_of_range(source.images, model)
    warn_out_of_domain([one.options for one in metrics.values() if one.is_renamed], domain)
    values, names, gaps = read_maps(maps, source, _scored(metrics, model, source, maps))
    known: dict[int, Any] = {}
    metrics = {name: one._replace(options=joined_options(one.options, source, known)) for name, one in metrics.items()}
    images, ids, labels = source.images, source.ids, source.targets
    assert labels is not None
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
        from heatproof.perturbation.reachable import check_mode

        check_mode(explain, "explainer")
    from heatproof.batches import track
    from heatproof.models.memory import WithinMemory, batch_size_of

    device = device_of(model, images.device) if common.get("device") is None else _device(common["device"])
    session = Session(
        open_network=lambda: model,
        device=device,
        batch_size=batch_size_of(common.get("batch_size", 64), device),
        seed=int(common.get("seed", 0)),
        explain=None if explain is None else lambda along, method, batch: partial(_explained, explain),
        given={"ranking": None if ranking is None else np.asarray(by_image("ranking", ranking, source))},
    )
    batch = Batch(images, labels, ids)
    along = Along(values, tuple(Method(name, index) for index, name in enumerate(names or ["map"])))
    for attempt in WithinMemory("evaluate").attempts(session.batch_size):
        with attempt as size:
            asking = _Asking(replace(session, batch_size=size), batch, along, metrics, bool(common.get("details")))
            scored = track(metrics.items(), "scores", unit="metric")
            results = {name: _joined(asking.score(one), names, gaps) for name, one in scored}
    return results[metric] if isinstance(metric, str) else results


class _Metric(NamedTuple):
    """A metric with all of its options, what it reads, and the name that fits what is done."""

    entry: Metric
    options: dict[str, Any]
    responses: dict[str, Response]
    told: str

    @property
    def is_renamed(self) -> bool:
        """Whether it was asked for as IDSDS and is SDS."""
        return self.entry.name == "idsds" != self.told


def selected_metrics(metrics: Metrics, common: Mapping[str, Any], domain: Domain) -> dict[str, _Metric]:
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
        selected[name] = _Metric(entry, options, entry.responses(options), told)
    return selected


@dataclass(frozen=True, eq=False)
class _Asking:
    """A model, images and maps, and the responses computed so far."""

    session: Session
    batch: Batch
    along: Along
    metrics: Mapping[str, _Metric]
    details: bool
    answers: dict[tuple[Any, ...], Mapping[str, np.ndarray]] = field(default_factory=dict)

    def score(self, one: _Metric) -> dict[str, xarray.Dataset]:
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


def _scored(metrics: Mapping[str, _Metric], model: Any, source: ImageSource, maps: Any) -> list[Scored]:
    """Return the classes that metrics score: the targets, those that the network predicts, or both."""
    assert source.targets is not None
    of_predicted = [one.options.get("target") == "predicted" for one in metrics.values()]
    scored = [] if all(of_predicted) else [Scored(source.targets.cpu().numpy())]
    # Only labelled maps say what they explain.
    if any(of_predicted) and explained_classes(maps, source) is not None:
        predicted = np.concatenate([predicted_classes(model, part).cpu().numpy() for _, part in source.batches()])
        remedy = "give maps that explain the predicted classes, or leave target='predicted' out"
        scored.append(Scored(predicted, "the network predicts", remedy))
    return scored


def _explained(explain: Callable[..., Any], images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the maps of a function of the caller's own as a tensor."""
    import torch

    maps = in_order(explain(images, targets), MAPS, "maps of the option 'explain'")
    try:
        return maps if isinstance(maps, torch.Tensor) else torch.as_tensor(np.asarray(maps, dtype=np.float64))
    except (TypeError, ValueError):
        raise HeatproofError(
            f"The function of the option 'explain' returned {type(maps).__name__}: return maps (images, height, width)."
        ) from None


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


def device_of(model: Any, otherwise: Any) -> Any:
    """Return the device of a model's parameters; another where it has none."""
    parameters = getattr(model, "parameters", None)
    first = next(parameters(), None) if callable(parameters) else None
    return otherwise if first is None else first.device


def predicted_classes(model: Any, images: torch.Tensor) -> torch.Tensor:
    """Return the class that a network predicts for each image, (N,) int64; of one logit 1 where it is positive.

    Raises
    ------
    HeatproofError
        If a part of it is in training mode, it fails, or it does not return logits.
    """
    import torch

    from heatproof.perturbation.reachable import check_mode

    check_mode(model, "model")
    device = device_of(model, images.device)
    try:
        with torch.no_grad():
            output = model(images.to(device))
    except (RuntimeError, ValueError, AssertionError) as error:
        if runs_out(error):
            raise
        raise HeatproofError(
            f"The model fails on an image of {tuple(images.shape[1:])} ({first_line(error)}): give images that it "
            "takes."
        ) from error
    logits = getattr(output, "logits", output)
    if not isinstance(logits, torch.Tensor) or logits.ndim != 2 or len(logits) != len(images):
        what = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise HeatproofError(
            f"The model returned {what}, of which no class is predicted: give targets, one class for each image, and a "
            "model that returns logits (images, classes)."
        )
    return (logits[:, 0] > 0).long() if logits.shape[1] == 1 else logits.argmax(1)


def _dataset(
    one: _Metric,
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


def _add_details(made: xarray.Dataset, one: _Metric, inputs: Mapping[str, Any], maps: np.ndarray) -> None:
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
