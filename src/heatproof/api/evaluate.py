"""`heatproof.evaluate`: score attribution maps of any torch network without the workflow."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np

from heatproof.base.grids import patch_sums
from heatproof.base.methods import Method, methods_of
from heatproof.base.options import BatchSize, check_plain_values, short_repr, to_python_numbers
from heatproof.base.registry import look_up, suggest_name
from heatproof.base.tasks import describe_targets
from heatproof.errors import HeatproofError, first_line
from heatproof.inputs.arrays import warn_of_range
from heatproof.inputs.finetuned import Domain, deletion_of, domain_of, warn_out_of_domain
from heatproof.inputs.labels import ScoredTargets, align_options, align_to_images
from heatproof.inputs.maps import explained_classes, read_maps
from heatproof.inputs.read import read_inputs
from heatproof.inputs.targets import TargetSpec, check_columns, reported_targets
from heatproof.metrics.registry import METRICS, Metric
from heatproof.metrics.scoring import ExplainerMaps, MethodScores, score_batch
from heatproof.metrics.single_deletion import single_deletion_name
from heatproof.perturbation.baselines import BASELINES
from heatproof.responses.base import (
    Batch,
    Explain,
    MethodMaps,
    MetricInput,
    NetworkRun,
    Response,
    ScoredImages,
    shared_responses,
)

if TYPE_CHECKING:
    import torch
    import xarray

    from heatproof.inputs.source import ImageSource
    from heatproof.models.adapter import AdaptedNetwork

OUTPUTS = ("logit", "log_probability")
# Axes of what a metric reads of a response, after the images.
AXES = {
    "patches": ("patch",),
    "subsets": ("subset",),
    "parts": ("part",),
    "curves": ("step", "target"),
    "pictures": ("picture", "target"),
}
# Options of every metric; the first ones are those of studies of metrics too.
STUDY_OPTIONS = ("seed", "batch_size", "device", "image_ids", "task")
COMMON = (*STUDY_OPTIONS, "ranking", "explain", "details")
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
        A network in eval mode, with all of its parts: images (B, C, H, W) to logits (B, K), or to anything that a
        `target` function takes. One logit z is that of class 1 of two, whose logits are [-z/2, z/2]. A float64 model is
        read in float64.
    images
        (N, C, H, W), any number of channels, normalised as the model expects. The memory format (for example
        channels_last) is kept. Or an xarray.DataArray with the dimensions image, channel, y, x, in any order; or a
        loader or a folder, as in `heatproof.explain`, which is read into memory.
    targets
        What the maps explain, and what is scored, as in `heatproof.explain`: (N,) integers, the classes; for
        ``multilabel`` (N, K) of 0 and 1, of which every pair of an image and its label is a row of maps and of scores.
        None for the classes or labels that maps of `heatproof.explain` say they explain, else the labels of a loader or
        a folder, else the predicted classes. Metrics with ``target="predicted"`` score the class predicted for the
        intact image instead, which has to be the one that the maps explain.
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

        - ``task``, and ``target`` where it is a function of outputs and targets, as in `heatproof.explain`; a
          ``target`` that is a text is the option of metrics;
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

        A network that `heatproof.finetune` made gives metrics of patch drops its grid and its baseline with the
        options of that, and ``baseline="mean"`` its colour, where these are left out. ``baseline="black"`` needs
        ``baseline_options`` with the ``mean`` and ``std`` of the normalisation, which images do not show.

    Returns
    -------
    xarray.Dataset
        ``score`` (image) float64, NaN where undefined; ``valid`` (image) bool; ``reason`` (image), why it is undefined,
        else empty; the metric's curves over (image, step) under their names, with the coordinate ``share``, the share
        of the pixels that is changed. As attributes the metric (``sds`` where ``idsds`` was asked for and the
        network was not finetuned with this grid and filling), its direction, source, all options, as JSON the complete
        settings of the responses that it read, and its range, but for logits where it is one of probabilities.
        ``task`` is that which was given, else ``binary`` for a model of one logit and ``multiclass`` for others, or
        ``callable`` for a target function; ``check_passes`` are the images that went
        through the model to find whether an image's answer depends on chance or on the rest of its batch. A metric that
        reads a probability or a class decision has no scores where the task gives a number alone, and `reason` says so.
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
    import torch

    from heatproof.models.adapter import (
        HALF,
        adapt_network,
        check_network,
    )
    from heatproof.models.memory import batch_size_of
    from heatproof.models.probabilities import warn_of_probabilities
    from heatproof.models.reachable import require_module

    if isinstance(model, torch.export.ExportedProgram):
        require_module(model)
    common = {key: options.pop(key) for key in COMMON if key in options}
    check_plain_values(_plain_options, common, "heatproof.evaluate")
    # A text is the option of a metric.
    given = options.get("target")
    function = options.pop("target", None) if given is None or callable(given) else None
    target_spec = TargetSpec(common.get("task"), function)
    domain = domain_of(model, images, target_spec.kind)
    metrics = select_metrics({metric: {}} if isinstance(metric, str) else metric, options, domain)
    ranking, explain, seed = common.get("ranking"), common.get("explain"), int(common.get("seed", 0))
    read = [response for one in metrics.values() for response in one.responses.values()]
    for name, given, reads in (
        ("ranking", ranking, any(response.orders_pixels for response in read)),
        ("explain", explain, any(response.recomputes_maps for response in read)),
    ):
        if given is not None and not reads:
            raise HeatproofError(f"None of the metrics reads {name!r}: leave it out, or name one that does.")
    if explain is not None:
        from heatproof.models.reachable import check_eval_mode

        check_eval_mode(explain, "explainer")
    from heatproof.data.few import probe_rows_of_images

    seed = int(common.get("seed", 0))
    named = None if common.get("device") is None else _device(common["device"])
    # The device of a network without parameters.
    placed = torch.empty(0, device=named) if named else images
    with adapt_network(model, placed, seed, target_spec.reader()) as network:
        # Without targets, maps that say which class they explain are scored by it, and others by the predicted class.
        source = read_inputs(
            model, images, targets, common.get("image_ids"), maps=maps, network=network, target_spec=target_spec
        )
        warn_of_range(source.images, model)
        warn_out_of_domain([one.options for one in metrics.values() if one.is_renamed], domain)
        values, names, gaps = read_maps(maps, source, _scored(metrics, network, source, maps))
        known: dict[int, Any] = {}
        metrics = {key: one._replace(options=align_options(one.options, source, known)) for key, one in metrics.items()}
        images, labels = source.images, source.targets
        assert labels is not None
        network.check_precision(images)
        # One of an image's own precision has no half of it: sums are of float32.
        images = images.float() if images.dtype in HALF else images.clone() if images.is_inference() else images
        check_network(network, images[probe_rows_of_images(source.digests, images)])
        check_columns(network, source)
        if network.has_one_logit or network.task == "multilabel":
            warn_of_probabilities(network)
        lacks = {
            name: why
            for name, one in metrics.items()
            if (why := one.entry.unsupported_reason(network.task, one.options))
        }
        if lacks:
            told = "; ".join(f"{name!r} does not apply, as {why}" for name, why in lacks.items())
            warnings.warn(f"Some scores are missing: {told}.", stacklevel=2)
        network_run = NetworkRun(
            open_network=lambda: network.network,
            device=named or network.device,
            batch_size=batch_size_of(common.get("batch_size", 64), named or network.device),
            seed=seed,
            explain=None if explain is None else partial(_recomputed, explain, seed, network.network),
            caller_inputs={
                "ranking": None if ranking is None else np.asarray(align_to_images("ranking", ranking, source))
            },
        )
        batch = Batch(images, labels, source.ids)
        method_maps = MethodMaps(values, methods_of(dict.fromkeys(names or ["map"], False)))
        applying = {name: one for name, one in metrics.items() if name not in lacks}
        found = score_metrics(network_run, batch, applying, method_maps, bool(common.get("details")))
        scored = ScoredImages(source.ids, labels.cpu().numpy(), (values.shape[2], values.shape[3]), seed)
        missing = {
            name: {one.name: _missing(metrics[name], scored, why) for one in method_maps.methods}
            for name, why in lacks.items()
        }
        found = {name: {**missing, **found}[name] for name in metrics}
    results = {name: _joined(scored, names, gaps) for name, scored in found.items()}
    for one in results.values():
        one.attrs |= {"task": network.task, "check_passes": network.check_passes}
        if source.kind:
            one.coords["target"] = ("image", reported_targets(source))
    return results[metric] if isinstance(metric, str) else results


def score_metrics(
    network_run: NetworkRun,
    batch: Batch,
    metrics: Mapping[str, SelectedMetric],
    method_maps: MethodMaps,
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
        As `select_metrics` returns them.
    along
        The maps, and the methods that are scored.
    details
        Whether what the metrics read is returned as well.
    """
    from heatproof.base.batches import track
    from heatproof.models.memory import AdaptiveBatchSize

    found: dict[str, dict[str, xarray.Dataset]] = {}
    for attempt in AdaptiveBatchSize("evaluate").attempts(network_run.batch_size):
        with attempt as size:
            asking = _Asking(replace(network_run, batch_size=size), batch, method_maps, metrics, details)
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


def select_metrics(metrics: Metrics, common: Mapping[str, Any], domain: Domain) -> dict[str, SelectedMetric]:
    """Return the metrics, by name, with the options that each of them has."""
    mapping = isinstance(metrics, Mapping) and all(isinstance(own, Mapping) for own in metrics.values())
    if not (mapping or isinstance(metrics, list | tuple)) or not all(isinstance(name, str) for name in metrics):
        raise HeatproofError(
            f"The metrics are {short_repr(metrics)}: give a name, a list of names, or a mapping from names to options."
        )
    named = metrics if isinstance(metrics, Mapping) else {name: {} for name in metrics}
    if not named:
        raise HeatproofError("No metric is given: name at least one.")
    entries = {name: look_up(METRICS, own.get("metric", name), "metric") for name, own in named.items()}
    known = {key for entry in entries.values() for key in entry.options}
    for key in common:
        if key not in known:
            # Of one metric, in its words.
            next(iter(entries.values())).complete_options({key: None} if len(entries) == 1 else {})
            raise HeatproofError(f"None of the metrics has an option {key!r}: {suggest_name(key, known)}")
    selected = {}
    for name, entry in entries.items():
        own = {key: value for key, value in named[name].items() if key != "metric"}
        given = {key: value for key, value in common.items() if key in entry.options} | own
        given = {key: to_python_numbers(value) for key, value in given.items()}
        # Those that are plain values by their annotations, as those of a config.
        for function in filter(None, (entry.options_function, entry.function, entry.reads.options)):
            check_plain_values(function, given, f"metric {entry.name!r}")
        options = domain.complete(entry.reads.complete(entry.complete_options(given), domain.reference))
        told = entry.name
        if told in ("idsds", "sds"):
            look_up(BASELINES, options["baseline"], "baseline")
            told = single_deletion_name(domain.finetuned, deletion_of(options)) if told == "idsds" else told
        selected[name] = SelectedMetric(entry, options, entry.responses(options), told)
    return selected


def metric_inputs(
    one: SelectedMetric, metrics: Mapping[str, SelectedMetric], network_run: NetworkRun
) -> list[MetricInput]:
    """Return what a metric reads; a response that another of the metrics needs in finer steps serves it too.

    Raises
    ------
    HeatproofError
        If the session lacks something that a response needs.
    """
    served = shared_responses(response for other in metrics.values() for response in other.responses.values())
    readings = []
    for argument, needed in one.responses.items():
        response, points = served[needed]
        if unsupported_reason := response.missing_inputs(network_run):
            raise HeatproofError(f"The metric {one.entry.name!r} needs {unsupported_reason}.")
        readings.append(MetricInput(argument, response, points, one.options.get("output", "logit")))
    return readings


@dataclass(frozen=True, eq=False)
class _Asking:
    """A model, images and maps, and the responses computed so far."""

    network_run: NetworkRun
    batch: Batch
    method_maps: MethodMaps
    metrics: Mapping[str, SelectedMetric]
    details: bool
    answers: dict[tuple[Any, ...], Mapping[str, np.ndarray]] = field(default_factory=dict)

    def score(self, one: SelectedMetric) -> dict[str, xarray.Dataset]:
        """Return a metric's scores of each method."""
        # What only the caller can give of the responses.
        given = {key: one.options[key] for key in one.entry.reads.evaluate_only_options}
        network_run = replace(self.network_run, caller_inputs={**self.network_run.caller_inputs, **given})
        size = self.method_maps.maps.shape[2], self.method_maps.maps.shape[3]
        labels = self.batch.labels.cpu().numpy()
        images = ScoredImages(self.batch.ids, labels, size, network_run.seed, task_of(network_run))
        read = metric_inputs(one, self.metrics, network_run)
        arrays = {metric_input.argument: self._ask(metric_input.response, network_run, given) for metric_input in read}
        options = one.options | {"seed": network_run.seed, "batch_size": network_run.batch_size}
        shares = _shares(read[0], size) if read else None
        explained = [ExplainerMaps(self.method_maps.methods, self.method_maps.maps, arrays)]
        made = {}
        for scored in score_batch(one.entry, one.options, images, read, arrays, explained):
            made[scored.method] = _dataset(one, options, images, scored)
            if self.details:
                _add_details(made[scored.method], one, scored.inputs)
            if shares is not None and made[scored.method].sizes.get("step") == len(shares):
                made[scored.method].coords["share"] = ("step", shares)
        return made

    def _ask(self, response: Response, network_run: NetworkRun, given: Mapping[str, Any]) -> Mapping[str, np.ndarray]:
        """Return the arrays of a response, as a store would give them back."""
        key = (response, *(id(value) for value in given.values()))
        if key not in self.answers:
            batch = replace(self.batch, intact=self._intact) if response.needs_intact else self.batch
            arrays = response.run(network_run, batch, self.method_maps)
            self.answers[key] = stored_arrays(response, arrays)
        return self.answers[key]

    @cached_property
    def _intact(self) -> Mapping[str, np.ndarray]:
        """Outputs of the model for the intact images."""
        from heatproof.perturbation.batching import intact_responses

        return intact_responses(self.network_run.query(self.batch))


def _scored(
    metrics: Mapping[str, SelectedMetric], network: AdaptedNetwork, source: ImageSource, maps: Any
) -> list[ScoredTargets]:
    """Return what metrics score: the targets, what the network predicts, or both."""
    from heatproof.models.adapter import predict_classes

    of_predicted = [one.options.get("target") == "predicted" for one in metrics.values()]
    scored = [] if all(of_predicted) and source.kind in ("", "multilabel") else [ScoredTargets(source.explained)]
    # Only labelled maps say what they explain.
    if any(of_predicted) and source.kind in ("", "multilabel") and explained_classes(maps, source) is not None:
        answers = [one for _, part in source.batches() for one in predict_classes(network, part).tolist()]
        remedy = "give maps that explain the predicted classes, or leave target='predicted' out"
        scored.append(ScoredTargets(describe_targets(source.kind, answers, None), "the network predicts", remedy))
    return scored


def task_of(network_run: NetworkRun) -> str:
    """Return what a network is for; classes where nobody says it."""
    from heatproof.models.adapter import reader_of

    reader = reader_of(network_run.network)
    return "multiclass" if reader is None else reader.task


def _missing(one: SelectedMetric, images: ScoredImages, why: str) -> xarray.Dataset:
    """Return the scores of a metric that does not apply: none, with the reason."""
    count = len(images.ids)
    nothing = MethodScores("", np.full(count, np.nan), np.zeros(count, bool), {}, {"maps": np.zeros((count, 1, 1))})
    made = _dataset(one, one.options, images, nothing)
    made["reason"] = ("image", [why] * count)
    return made


def _recomputed(
    explain: Callable[..., Any], seed: int, network: Any, method_maps: MethodMaps, method: Method, batch: Batch
) -> Explain:
    """Return what recomputes maps (k N, H, W) of k changed copies of the images of a batch."""
    import torch

    from heatproof.attribution.explaining import ExplainerFailed, MapMaker, explain_batch
    from heatproof.attribution.own import as_explainer
    from heatproof.attribution.registry import ExplainContext

    function = as_explainer(lambda model, images, targets: explain(images, targets), "explain")
    maker = MapMaker("explain", function, {}, {"explain": True})

    def make(images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        ids = tuple(one for one in batch.ids for _ in range(len(images) // len(batch.ids)))
        given = ExplainContext(network, network, None, images, targets, ids, seed, batch_size=len(images))
        try:
            return torch.from_numpy(explain_batch(maker, given)[:, 0])
        except ExplainerFailed as reason:
            raise HeatproofError(f"The function of the option 'explain' cannot be used: {reason}.") from reason

    return make


def _plain_options(
    *, seed: int = 0, batch_size: BatchSize = 64, details: bool = False, task: str | None = None
) -> None:
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
            f"The device {short_repr(named)} cannot be used ({first_line(error)}): leave it out, or name another."
        ) from None


def _dataset(
    one: SelectedMetric, options: dict[str, Any], images: ScoredImages, scored: MethodScores
) -> xarray.Dataset:
    import xarray

    entry, valid = one.entry, scored.valid
    reasons = [
        "" if fine else undefined_reason(own, entry) for fine, own in zip(valid, scored.inputs["maps"], strict=True)
    ]
    variables: dict[str, Any] = {
        name: ("image", values) for name, values in (("score", scored.score), ("valid", valid), ("reason", reasons))
    }
    variables |= {name: (("image", "step")[-values.ndim :], values) for name, values in scored.curves.items()}
    attributes = {
        "metric": one.told,
        "higher_is_better": int(entry.is_higher_better(options)),
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


def _add_details(made: xarray.Dataset, one: SelectedMetric, inputs: Mapping[str, Any]) -> None:
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
            sums = patch_sums(inputs["maps"], response.settings["grid"], truncate=one.options.get("truncate", False))
            made["patch_sums"] = (("image", "patch"), sums)


def _shares(metric_input: MetricInput, size: tuple[int, int]) -> np.ndarray | None:
    """Return the share of the pixels that is changed at each point of a curve; None where it differs between maps."""
    sequence = getattr(metric_input.response, "sequence", None)
    if sequence is None or sequence.thresholds is not None:
        return None
    shares = np.asarray(sequence.counts(*size)) / sequence.units(*size)
    return shares if metric_input.points is None else shares[metric_input.points]


def stored_arrays(response: Response, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return arrays of a response as a store gives them back, but for logits of a float64 network, exact for drops."""
    exact = {name: arrays[name] for name in OUTPUTS if name in arrays and arrays[name].dtype == np.float64}
    return {**response.cast(arrays), **exact}


def undefined_reason(one: np.ndarray, entry: Metric) -> str:
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
