"""`heatproof.evaluate`: score attribution maps of any torch network without the workflow."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch

from heatproof.api.inputs.array_options import align_options, align_to_images
from heatproof.api.inputs.explained_targets import ScoredTargets
from heatproof.api.inputs.finetuned import domain_of, warn_out_of_domain
from heatproof.api.inputs.first_images import check_first_images, predict_classes, warn_of_labels
from heatproof.api.inputs.identity import identity_of
from heatproof.api.inputs.maps import explained_classes, read_maps
from heatproof.api.inputs.read import read_inputs
from heatproof.api.inputs.targets import TargetSpec, reported_targets
from heatproof.api.inputs.value_ranges import warn_of_range
from heatproof.api.score_datasets import add_details, changed_shares, concatenate_methods, score_dataset
from heatproof.api.selected_metrics import Metrics, SelectedMetric, select_metrics, with_responses
from heatproof.core.adaptive_batch_size import batch_size_of
from heatproof.core.batch import Batch
from heatproof.core.batches import count_images, count_words, show_progress
from heatproof.core.callables import check_eval_mode
from heatproof.core.first_images import described_failures
from heatproof.core.methods import methods_of
from heatproof.core.network import HALF, prepare_network, require_module
from heatproof.core.options import BatchSize, check_plain_values, short_repr
from heatproof.core.tasks import describe_targets
from heatproof.errors import HeatproofError, NotApplicable, first_line
from heatproof.explainers.explaining import ExplainerFailed
from heatproof.explainers.plain_functions import split_delta, sum_over_channels
from heatproof.explainers.registry import Explainer
from heatproof.metrics.responses.base import IntactOutputs, Response, respond
from heatproof.metrics.responses.patches import Patches
from heatproof.metrics.scoring import MethodScores, score_batches

if TYPE_CHECKING:
    import xarray

    from heatproof.api.inputs.source import Inputs
    from heatproof.core.network import Network

# Options of every metric; studies of metrics take the first ones as well.
STUDY_OPTIONS = ("seed", "batch_size", "device", "image_ids", "task", "transform")
COMMON_OPTIONS = (*STUDY_OPTIONS, "ranking", "explain", "details", "progress")


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
    """Score attribution maps with one metric, or with several metrics that share the network's passes.

    Parameters
    ----------
    metric
        A name listed by `heatproof list metrics`, for example ``"mas_insertion"``; a list of names; or a mapping from
        names to options. The keys of a mapping may be any names if the option ``metric`` names the metric.
    model
        A network in eval mode, including all of its submodules: images (B, C, H, W) to logits (B, K), or to any output
        that a `target` function takes. One logit z is that of class 1 of two classes, whose logits are [-z/2, z/2]. The
        outputs of a float64 network are read in float64.
    images
        (N, C, H, W), any number of channels, normalised as the model expects. The memory format (for example
        channels_last) is preserved. An xarray.DataArray needs the dimensions image, channel, y and x, in any order. A
        loader or a folder, as in `heatproof.explain`, is read into memory.
    targets
        What the maps explain and what is scored, as in `heatproof.explain`: (N,) integers, the classes; for
        ``multilabel`` (N, K) of 0 and 1, where each pair of an image and one of its labels is a row of the maps and of
        the scores. None takes the classes or labels that maps of `heatproof.explain` record; otherwise the labels of a
        loader or a folder; otherwise the predicted classes. Metrics with ``target="predicted"`` score the class
        predicted for the intact image instead, and the maps must explain that class.
    maps
        (N, H, W), a tensor or an array, summed over channels; higher is more relevant. An xarray.DataArray needs the
        dimensions image, y and x, in any order. Maps of several methods share all passes that do not depend on a map.
        They are the result of `heatproof.explain`, a DataArray with an additional dimension ``method``, a mapping from
        method names to maps, or the maps of a run opened by `heatproof.open`, where the maps of one explainer count as
        several methods. Labelled maps are aligned by their labels or refused: maps of `heatproof.explain` by the
        content of the images and by the class, other labelled arrays by the names in `image_ids`.
    **options
        Options of the metric: ``grid``, ``baseline``, ``order``, ``steps``, ``step_size`` or ``fractions``,
        ``imputation``, ``target``, ``output`` and others. Every metric has the options

        - ``task``, and ``target`` if it is a function of outputs and targets, as in `heatproof.explain`; a ``target``
          that is a string is the option of the metric;
        - ``seed`` (0), for ties, noise and random baselines;
        - ``batch_size`` (64), images in one network pass; ``"auto"`` is 512 on an NVIDIA GPU;
        - ``device`` of the model (default: that of its parameters);
        - ``image_ids``, N names that seed random numbers per image (default: "0", "1", …), and by which labelled maps,
          targets and rankings are aligned;
        - ``ranking`` (N, H × W), a permutation of the pixels of each image, from most to least relevant, which replaces
          the order of the map;
        - ``explain``, a function from images and targets to maps, for metrics that recompute maps;
        - ``progress`` (None), and ``transform`` for a folder or a list of pictures, as in `heatproof.explain`;
        - ``details`` (False), whether the result includes the inputs of the metric: drops and sums of patches, outputs
          at each step or image, entropies in bytes.

        ``part_deletion`` needs ``masks`` (N, K, H, W) bool, true where a part is visible, and either ``removed``
        (N, K, C, H, W), the normalised images without each part, or ``drops`` (N, K).

        With several metrics, each gets the options that it has; an option that none of them has is an error.

        If the model was made by `heatproof.finetune`, metrics of patch drops default to the grid and the baseline of
        that finetuning with its options, and ``baseline="mean"`` defaults to its colour. ``baseline="black"`` needs
        ``baseline_options`` with the ``mean`` and ``std`` of the normalisation, which cannot be inferred from the
        images.

    Returns
    -------
    xarray.Dataset
        For several metrics, a dict of such datasets by metric name.

        Variables: ``score`` (image) float64, NaN where undefined; ``valid`` (image) bool; ``reason`` (image), why the
        score is undefined, otherwise empty; and the curves of the metric (image, step) under their names, with the
        coordinate ``share``, the share of the pixels that is changed. If maps of several methods were passed, each
        variable has a leading dimension ``method``. A metric that reads a probability or a class decision has no scores
        for a task that provides only a number, and `reason` says so.

        Attributes: ``metric`` (``sds`` if ``idsds`` was requested and the network was not finetuned with this grid and
        baseline), its direction, its source, all options, the complete settings of the responses that it read as JSON,
        and its range, unless that is a range of probabilities and logits were scored. ``task`` is the requested task,
        otherwise ``binary`` for a model with one logit and ``multiclass`` for other models, or ``callable`` for a
        target function. ``check_passes`` is the number of images that were passed through the model to find out whether
        its output for an image depends on chance or on the other images of the batch.

        Metrics that read the same response share its passes: SIC and AIC, or insertion, deletion and their difference,
        cost the passes of one.

    Raises
    ------
    HeatproofError
        If a metric or an option does not exist, the inputs do not match, a value is not finite, a label is not a class
        of the model, the model does not return logits, or a part of the model is in training mode. The parts of a model
        that is a function are the modules that it names itself: in its closure, its globals and its defaults, as the
        object of a method or the attributes of an object, or in a partial application. A function without one is
        refused, and so is a model that runs a module that is not registered.

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
    if isinstance(model, torch.export.ExportedProgram):
        require_module(model)
    common = {key: options.pop(key) for key in COMMON_OPTIONS if key in options}
    check_plain_values(_plain_options, common, "heatproof.evaluate")
    # A string is an option of the metric, and a function defines the target.
    option = options.get("target")
    function = options.pop("target", None) if option is None or callable(option) else None
    target_spec = TargetSpec(common.get("task"), function)
    domain = domain_of(model, images, target_spec.kind)
    metrics = select_metrics({metric: {}} if isinstance(metric, str) else metric, options, domain)
    ranking, explain, seed = common.get("ranking"), common.get("explain"), int(common.get("seed", 0))
    responses = [response for selected in metrics.values() for response in selected.responses.values()]
    for name, option, reads in (
        ("ranking", ranking, any(response.orders_pixels for response in responses)),
        ("explain", explain, any(response.recomputes_maps for response in responses)),
    ):
        if option is not None and not reads:
            raise HeatproofError(f"None of the metrics reads {name!r}: leave it out, or name one that does.")
    if explain is not None:
        check_eval_mode(explain, "explainer")
    named_device = None if common.get("device") is None else _device(common["device"])
    # The device counts for a network without parameters.
    device_reference = torch.empty(0, device=named_device) if named_device else images
    prepared = prepare_network(model, device_reference, seed, target_spec.reader())
    with prepared as network, show_progress(common.get("progress")):
        # Without targets, labelled maps are scored by the class that they explain, and others by the predicted class.
        source = read_inputs(
            model,
            images,
            targets,
            common.get("image_ids"),
            transform=common.get("transform"),
            maps=maps,
            network=network,
            target_spec=target_spec,
        )
        images, labels = source.images, source.targets
        assert labels is not None
        check_first_images(network, source.read(source.probe_rows), source, probabilities="refuse")
        warn_of_range(images, model)
        warn_out_of_domain([selected.options for selected in metrics.values() if selected.is_renamed], domain)
        values, names, missing_methods = read_maps(maps, source, _scored_targets(metrics, network, source, maps))
        aligned: dict[int, Any] = {}
        metrics = {
            key: selected._replace(options=align_options(selected.options, source, aligned))
            for key, selected in metrics.items()
        }
        # Half precision would lose digits in sums, which are computed in float32.
        images = images.float() if images.dtype in HALF else images.clone() if images.is_inference() else images
        not_applicable = {
            name: why
            for name, selected in metrics.items()
            if (why := selected.entry.unsupported_reason(network.task, selected.options))
        }
        if not_applicable:
            reasons = "; ".join(f"{name!r} is not applicable, because {why}" for name, why in not_applicable.items())
            warnings.warn(f"Some scores are missing: {reasons}.", stacklevel=2)
        if named_device is not None:
            network.device = named_device
        methods = methods_of(dict.fromkeys(names or ["map"], False))
        if explain is not None:
            methods = [replace(method, explainer=recomputing(explain)) for method in methods]
        batch = Batch(
            network=network.module,
            output=network.module,
            facts=None,
            images=images,
            targets=labels,
            image_ids=source.ids,
            seed=seed,
            batch_size=batch_size_of(common.get("batch_size", 64), network.device),
            maps=values,
            methods=methods,
            inputs={"ranking": None if ranking is None else np.asarray(align_to_images("ranking", ranking, source))},
            size=(values.shape[2], values.shape[3]),
        )
        # Those of this call, and not of others that an explainer may make.
        check_passes = network.check_passes
        applicable = {name: metric for name, metric in metrics.items() if name not in not_applicable}
        by_method, predictions = score_metrics(batch, applicable, bool(common.get("details")))
        if predictions is not None:
            warn_of_labels(network, source, predictions)
        missing = {
            name: {method.name: _without_scores(metrics[name], source.ids, why) for method in methods}
            for name, why in not_applicable.items()
        }
        by_method = {name: {**missing, **by_method}[name] for name in metrics}
    results = {name: concatenate_methods(scored, names, missing_methods) for name, scored in by_method.items()}
    for result in results.values():
        result.attrs |= {"task": network.task, "check_passes": check_passes}
        if source.kind:
            result.coords["target"] = ("image", reported_targets(source))
    return results[metric] if isinstance(metric, str) else results


def score_metrics(
    batch: Batch, metrics: Mapping[str, SelectedMetric], details: bool = False
) -> tuple[dict[str, dict[str, xarray.Dataset]], np.ndarray | None]:
    """Return the scores of each method by each metric, and the predicted class of each image if a response has it.

    Parameters
    ----------
    batch
        N images with a checked network, the classes that are scored, maps and methods.
    metrics
        As `select_metrics` returns them.
    details
        Whether the results include the inputs of the metrics.
    """
    if any(response.needs_intact for metric in metrics.values() for response in metric.responses.values()):
        batch = replace(batch, intact=_respond(IntactOutputs(), batch))
    selected = {name: with_responses(metric, metrics, batch) for name, metric in metrics.items()}
    # Metrics share the arrays of equal responses with equal inputs of the caller.
    keys = {
        name: {argument: _response_key(metric, response) for argument, (response, _) in selected[name][1].items()}
        for name, metric in metrics.items()
    }
    computed = _respond_to_all(
        {
            keys[name][argument]: (response, own_batch)
            for name, (own_batch, responses) in selected.items()
            for argument, (response, _) in responses.items()
        },
        count_words(len(metrics), "metric"),
    )
    results: dict[str, dict[str, xarray.Dataset]] = {}
    for name, metric in metrics.items():
        own_batch, responses = selected[name]
        arrays = {argument: computed[key] for argument, key in keys[name].items()}
        options = metric.options | {
            "seed": batch.seed,
            "batch_size": batch.adapted.fitting_size("responses", batch.batch_size),
        }
        shares = next((changed_shares(*read, batch.size) for read in responses.values()), None)
        results[name] = {}
        chunk = own_batch, arrays, [(own_batch, arrays)]
        for scored in score_batches(metric.entry, metric.options, responses, [chunk]):
            result = results[name][scored.method] = score_dataset(metric, options, batch.image_ids, scored)
            if details:
                add_details(result, metric, scored.inputs)
            if shares is not None and result.sizes.get("step") == len(shares):
                result.coords["share"] = ("step", shares)
    return results, _predictions(batch, computed)


def _predictions(batch: Batch, computed: Mapping[Any, dict[str, np.ndarray]]) -> np.ndarray | None:
    """Return the class (N,) predicted for each intact image, if a response holds it."""
    if batch.intact is not None:
        return batch.intact["predicted"]
    # The first variant of an image is the intact one.
    variants = (arrays["predicted"] for (response, *_), arrays in computed.items() if response.rule == Patches.rule)
    return next((predicted[:, 0] for predicted in variants), None)


def _respond_to_all(needed: Mapping[Any, tuple[Response, Batch]], metrics: str) -> dict[Any, dict[str, np.ndarray]]:
    """Return the arrays of each response, by the keys of `needed`."""
    counts = {
        key: len(batch.image_ids) * (len(batch.methods) if response.needs_maps else 1)
        for key, (response, batch) in needed.items()
    }
    computed = {}
    with count_images(f"scores by {metrics}", sum(counts.values())) as counted:
        for key, (response, batch) in needed.items():
            counted.begin(counts[key])
            computed[key] = _respond(response, batch)
            counted.add(counts[key])
    return computed


def _respond(response: Response, batch: Batch) -> dict[str, np.ndarray]:
    """Respond to a batch, and name the option `explain` or the model if its function fails."""
    try:
        with described_failures(batch.images, batch.network, from_elsewhere=False):
            return respond(response, batch)
    except NotApplicable as reason:
        if isinstance(reason, ExplainerFailed):
            raise HeatproofError(f"The function of the option 'explain' cannot be used: {reason}.") from reason
        raise


def _response_key(metric: SelectedMetric, response: Response) -> tuple[Any, ...]:
    """Return a key that is equal for equal responses with equal inputs of the caller."""
    return response, *(_content_key(metric.options[key]) for key in metric.entry.reads.evaluate_only_options)


def _content_key(value: Any) -> str | int:
    """Return a key that is equal for equal values, such as each metric's own copy of a list."""
    try:
        return "" if value is None else identity_of(value)
    except HeatproofError:
        # An object whose state cannot be read equals only itself.
        return id(value)


def _scored_targets(
    metrics: Mapping[str, SelectedMetric], network: Network, source: Inputs, maps: Any
) -> list[ScoredTargets]:
    """Return what the metrics score: the targets, the predictions of the network, or both."""
    scores_prediction = [selected.options.get("target") == "predicted" for selected in metrics.values()]
    scored = [] if all(scores_prediction) and source.kind in ("", "multilabel") else [ScoredTargets(source.explained)]
    # Only labelled maps record what they explain.
    if any(scores_prediction) and source.kind in ("", "multilabel") and explained_classes(maps, source) is not None:
        predictions = predict_classes(network, source).tolist()
        remedy = "give maps that explain the predicted classes, or leave target='predicted' out"
        scored.append(ScoredTargets(describe_targets(source.kind, predictions, None), "the network predicts", remedy))
    return scored


def _without_scores(metric: SelectedMetric, image_ids: Sequence[str], reason: str) -> xarray.Dataset:
    """Return the result of a metric that is not applicable: no scores, and the reason."""
    count = len(image_ids)
    undefined = MethodScores("", np.full(count, np.nan), np.zeros(count, bool), {}, {"maps": np.zeros((count, 1, 1))})
    result = score_dataset(metric, metric.options, image_ids, undefined)
    result["reason"] = ("image", [reason] * count)
    return result


def recomputing(explain: Callable[..., Any]) -> Explainer:
    """Return an explainer that calls the function of the option `explain` with all images at once."""

    def function(batch: Batch) -> dict[str, Any]:
        maps, _ = split_delta(explain(batch.images, batch.targets), len(batch.image_ids))
        return {"explain": sum_over_channels(maps, "explain")}

    return Explainer("explain", function, {"explain": True})


def _plain_options(
    *,
    seed: int = 0,
    batch_size: BatchSize = 64,
    details: bool = False,
    task: str | None = None,
    progress: bool | None = None,
) -> None:
    """Declare the types of the options of `evaluate` that are plain values and that every metric has."""


def _device(name: Any) -> Any:
    """Return the device that the caller named.

    Raises
    ------
    HeatproofError
        If the name is unknown or this machine has no such device.
    """
    try:
        return torch.empty(0, device=name).device
    except (TypeError, RuntimeError, ValueError, AssertionError) as error:
        raise HeatproofError(
            f"The device {short_repr(name)} cannot be used ({first_line(error)}): leave it out, or name another."
        ) from None
