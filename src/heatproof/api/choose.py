"""`heatproof.choose`: find the most faithful attribution methods for a network and its images."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pandas as pd
import torch

from heatproof.api.cache import MethodKeys, locked_cache, network_cache
from heatproof.api.choice import BY_LABEL, Choice, typed_table
from heatproof.api.explain import batch_template, explain_inputs, key_of, layer_name
from heatproof.api.inputs.array_options import align_options, select_option_rows
from heatproof.api.inputs.finetuned import domain_of, warn_out_of_domain
from heatproof.api.inputs.first_images import (
    CHECK_NUMBERS,
    check_first_images,
    predict_classes,
    warn_of_low_accuracy,
)
from heatproof.api.inputs.read import read_inputs
from heatproof.api.inputs.targets import TargetSpec
from heatproof.api.inputs.value_ranges import warn_of_range
from heatproof.api.measures import check_needs, default_measures, describe_measures, select_measures
from heatproof.api.named_methods import select_methods
from heatproof.api.scores import Scoring
from heatproof.core.batches import is_silent, report_progress, show_progress
from heatproof.core.class_order import MOSTLY_RIGHT
from heatproof.core.first_images import pass_as_check
from heatproof.core.methods import Method, methods_of
from heatproof.core.network import prepare_network, require_module
from heatproof.core.options import BatchSize, Bounds, check_arguments
from heatproof.core.tasks import task_provides
from heatproof.errors import HeatproofError
from heatproof.metrics.bootstrap import summarise
from heatproof.stats.best import images_to_distinguish
from heatproof.stats.verdict import FOUND, TOO_FEW, Verdict, describe_low_accuracy, judge

if TYPE_CHECKING:
    from heatproof.api.cache import Cache
    from heatproof.api.inputs.finetuned import Domain
    from heatproof.api.inputs.source import Inputs
    from heatproof.api.selected_metrics import SelectedMetric
    from heatproof.core.batch import Batch
    from heatproof.core.network import Network

REFERENCES = ("random", "edges")
# Cheap methods of every family, except methods that delete regions themselves, with several values of the options that
# affect cost and scores most. Methods that are not applicable are reported as such.
DEFAULT_METHODS: tuple[Any, ...] = (
    "saliency",
    "input_x_gradient",
    {"integrated_gradients_8": {"explainer": "integrated_gradients", "steps": 8}},
    {"integrated_gradients_32": {"explainer": "integrated_gradients", "steps": 32}},
    "guided_backprop",
    "grad_cam",
    "hires_cam",
    "layer_cam",
    {"rise_64": {"explainer": "rise", "masks": 64}},
    "attn_lrp",
    "attention_rollout",
    "bcos",
)
# With fewer images, neither half is conclusive.
MINIMUM_IMAGES = 16
ABLATION_REASON = "deletes regions itself, nearly as measures of deletion do: scored for comparison, but excluded"


def choose(
    model: torch.nn.Module,
    images: Any,
    targets: Any = None,
    methods: Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    task: str | None = None,
    target: Callable[[Any, Any], torch.Tensor] | None = None,
    measures: Mapping[str, Mapping[str, Any]] | None = None,
    seed: int = 0,
    level: Annotated[float, Bounds(above=0, below=1)] = 0.95,
    batch_size: BatchSize = 64,
    layer: str | torch.nn.Module | None = None,
    background: torch.Tensor | None = None,
    classes: Sequence[int | str] | None = None,
    transform: Callable[[Any], Any] | None = None,
    progress: bool | None = None,
    cache: str | Path | None = None,
) -> Choice:
    """Find the methods that cannot be distinguished from the best one, for a network and its images.

    Half of the images select, for each explainer, the best-scoring options and either the signed map or its absolute
    values. The results are reported on the other half, so that the selection does not bias them. A method is left out
    of a measure's set only if another method is significantly better (`heatproof.stats.best.best_set`). The result is
    every method in the set of at least one measure; so the result is larger if measures disagree. The verdict is open
    if a set contains a reference map, which does not use the network, or if there are too few images. With the default
    methods and measures, about 150 images go through the network for each image; half of that is RISE, which a custom
    list of `methods` can leave out.

    Parameters
    ----------
    model
        A network in eval mode. For in-domain scores (IDSDS), the result of `heatproof.finetune`: the first measure then
        has the grid and the baseline of the finetuning.
    images
        As in `heatproof.explain`, at least 16; the number that is needed is printed before scoring. Use other images
        than for the finetuning.
    targets
        As in `heatproof.explain`; by default the labels that come with the images, otherwise the predictions of the
        network. If images have several labels, or a target function has several targets, every pair of an image and a
        target is explained and scored. The scores of an image are averaged before any test, so that more labels for
        each image do not make intervals narrower, and all pairs of an image are in the same half.
    methods
        As in `heatproof.explain`; by default cheap methods of every family. Methods of the same explainer count as its
        options. The maps ``random`` and ``edges``, which do not use the network, are always added. Methods that delete
        regions themselves, such as ``occlusion`` and ``feature_ablation``, do nearly the same as the default measures:
        they are reported, but are not contenders.
    task, target
        As in `heatproof.explain`.
    measures
        A mapping from names to a metric with options, as `heatproof.evaluate` takes them; higher must be better. The
        default is the single-deletion score with two baselines: that of the finetuning, or else the mean colour, and
        blur. These two are not independent evidence, because both delete the same patches.
    seed, level
        Seed of the split and of the resamples, and the probability with which all methods that are the best are in a
        set.
    batch_size, layer, background, classes, transform, progress, cache
        As in `heatproof.explain`; the cache also holds the responses that scores are computed from.

    Returns
    -------
    Choice
        Prints, displays itself in a notebook, and saves a self-contained page.

    Raises
    ------
    HeatproofError
        If there are too few images, lower is better for a measure, or as in `heatproof.explain` and
        `heatproof.evaluate`.

    Warns
    -----
    UserWarning
        If images were used for the finetuning, if the network seldom predicts the targets, or if scores that were
        requested as IDSDS are SDS.

    Examples
    --------
    >>> import heatproof
    >>> choice = heatproof.choose(model, images, labels, ["saliency", "grad_cam", "layer_cam"])  # doctest: +SKIP
    >>> print(choice.sentence)  # doctest: +SKIP
    """
    require_module(model)
    layer = layer_name(model, layer)
    check_arguments(choose, locals(), "task", "target", "measures", "background", "classes", "transform", "cache")
    named_methods = {method.name: method for method in select_methods(DEFAULT_METHODS if methods is None else methods)}
    named_methods |= {name: select_methods(name)[0] for name in REFERENCES if name not in named_methods}
    target_spec = TargetSpec(task, target)
    domain = domain_of(model, images, target_spec.kind)
    metrics = select_measures(measures, domain) if measures else {}
    if measures:
        warn_out_of_domain([metric.options for metric in metrics.values() if metric.is_renamed], domain)
    prepared = prepare_network(model, images, seed, target_spec.reader())
    with locked_cache(cache) as root, prepared as network, show_progress(progress):
        inputs = read_inputs(
            model, images, targets, classes=classes, transform=transform, network=network, target_spec=target_spec
        )
        image_digests = list(dict.fromkeys(inputs.digests)) if inputs.has_label_rows else inputs.digests
        if len(image_digests) < MINIMUM_IMAGES:
            raise HeatproofError(
                f"{len(image_digests)} images are too few to compare methods: pass at least {MINIMUM_IMAGES}, better "
                "100."
            )
        _warn_of_trained_on(image_digests, domain)
        network.check_precision(inputs.read([0]))
        assert inputs.targets is not None, "read_inputs found them"
        explained = inputs.explained if inputs.has_label_rows else inputs.targets.tolist()
        _check_distinct(list(zip(inputs.digests, explained, strict=True)) if inputs.has_label_rows else image_digests)
        # Sorted by digest and target, so that the caller's order of the images does not affect the result.
        order = sorted(range(len(inputs)), key=lambda row: (inputs.digests[row], explained[row]))
        source = inputs.take(order)
        source = source.renamed(_unique(source.digests))
        probes = source.read(source.probe_rows)
        warn_of_range(inputs.images if inputs.is_checked else probes, model)
        check_first_images(network, probes, inputs, with_gradients=root is not None, probabilities="refuse")
        right = _predicts_targets(network, source) if inputs.is_labelled else None
        metrics = metrics or select_measures(default_measures(source, domain), domain)
        check_needs(metrics, network.task)
        aligned: dict[int, Any] = {}
        joined = {key: align_options(metric.options, inputs, aligned) for key, metric in metrics.items()}
        metrics = {
            key: metric._replace(options=select_option_rows(joined[key], order, len(inputs)))
            for key, metric in metrics.items()
        }
        template = batch_template(network, seed, batch_size, layer, background)
        cached = network_cache(root, source, network, target_spec)
        return _choose(_Judge(source, template, cached, named_methods, metrics, level), domain, right)


def _predicts_targets(network: Network, source: Inputs) -> torch.Tensor | None:
    """Return whether a checked network predicts the target of each row (N,); None if it provides only a number.

    Warn the caller of `choose` if the network seldom does.
    """
    assert source.targets is not None, "read_inputs found them"
    assert network.logits is not None, "the network is checked"
    targets = source.targets.cpu()
    if not task_provides(network.task, "decision"):
        return None
    if source.kind:
        logits = torch.cat([pass_as_check(network, part).cpu() for _, part in source.batches()])
        right = logits.gather(1, targets[:, None])[:, 0] > 0
        if int(right.sum()) < MOSTLY_RIGHT * len(right):
            warnings.warn(
                f"The network finds {int(right.sum())} of {len(right)} labels (a logit above 0): check that the "
                "columns of the targets are in the order of its outputs.",
                stacklevel=3,
            )
        return right
    predictions = predict_classes(network, source)
    # A choice is worth less if the network is seldom right, whatever the reason.
    warn_of_low_accuracy(
        predictions.numpy(),
        targets.numpy(),
        network.logits.shape[1],
        source.read(source.probe_rows),
        without_reason=CHECK_NUMBERS,
        stacklevel=4,
    )
    return targets == predictions


def _choose(judging: _Judge, domain: Domain, right: torch.Tensor | None) -> Choice:
    """Return the choice for a checked network; `right` (N,) holds whether the network predicts the target."""
    source, named_methods, level = judging.source, judging.named_methods, judging.level
    seed = judging.template.seed
    scorers, words = describe_measures(judging.metrics)
    # All rows of an image are in the same half.
    image_numbers = _image_numbers(source)
    count = int(image_numbers.max()) + 1
    shuffled = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    halves = [rows.sort().values for rows in (shuffled[: count // 2], shuffled[count // 2 :])]
    first, second = (torch.isin(image_numbers, half).nonzero().flatten() for half in halves)
    images = len(halves[0]), len(halves[1])
    kinds = {method.kind for method in named_methods.values() if not method.ablates}
    planned = _planned(len(kinds), images[1], level)
    if not is_silent():
        print(planned)
    report_progress(f"First half: selecting options of {len(named_methods)} methods on {images[0]} images.")
    first_half = judging.scored(first, named_methods)
    # For each explainer, the method with the highest mean score, over all options, signed or absolute.
    means = np.mean([np.nan_to_num(values).mean(1) for values in first_half.scores.values()], axis=0)
    best: dict[str, str] = {}
    for position in np.argsort(-means, kind="stable"):
        row = first_half.rows[position]
        if row not in first_half.undefined:
            best.setdefault(named_methods[first_half.parent[row]].kind, row)
    parents = {first_half.parent[row] for row in best.values()}
    report_progress(f"Second half: scoring {len(parents)} methods on {images[1]} images.")
    picked = {name: method for name, method in named_methods.items() if name in parents}
    second_half = judging.scored(second, picked, set(best.values()))
    rows = second_half.rows
    ablating = [row for row in rows if named_methods[first_half.parent[row]].ablates]
    weights_note = f"on the {'finetuned' if domain.finetuned else 'given'} weights"
    is_per_image = right is not None and not source.kind
    conclusion = judge(
        {words[name]: table.loc[rows] for name, table in second_half.tables.items()},
        REFERENCES,
        weights_note,
        level=level,
        ablating=ablating,
        right=int(right[second].sum()) if right is not None and is_per_image else None,
    )
    if right is not None and not is_per_image and conclusion.verdict == FOUND:
        warning = describe_low_accuracy(int(right[second].sum()), len(second), of_labels=True)
        conclusion = replace(conclusion, sentence=conclusion.sentence + warning)
    table = _table(second_half, rows, ablating, conclusion, seed, level)
    unscored = {
        name: reason
        for name, reason in first_half.undefined.items()
        if named_methods[first_half.parent[name]].kind not in best
    }
    raw = {method.name for method in first_half.methods if method.transform == "raw"}
    missing = {
        **first_half.not_applicable,
        **{name: reason for name, reason in unscored.items() if name in raw},
        **second_half.not_applicable,
    }
    not_applicable = pd.DataFrame({"method": list(missing), "reason": list(missing.values()), "in_set": False})
    return Choice(
        typed_table(pd.concat([table, not_applicable] if len(not_applicable) else [table], ignore_index=True)),
        conclusion,
        [row for row in first_half.rows if row not in best.values() and row not in unscored],
        scorers,
        words,
        images,
        planned,
        level,
        judging.template.adapted.check_passes,
        _by_label(source, second, second_half, words, weights_note, ablating, level)
        if source.kind == "multilabel"
        else None,
    )


def _image_numbers(source: Inputs) -> torch.Tensor:
    """Return the index of the image of each row (N,), from 0; the rows of an image's labels share it."""
    if not source.has_label_rows:
        return torch.arange(len(source))
    numbers = {digest: number for number, digest in enumerate(dict.fromkeys(source.digests))}
    return torch.tensor([numbers[digest] for digest in source.digests])


def _mean_by_image(values: np.ndarray, image_numbers: np.ndarray) -> np.ndarray:
    """Return values (M, N) averaged over the rows of each image, (M, P); NaN if none of them is defined."""
    count = int(image_numbers.max()) + 1
    if count == len(image_numbers):
        return values
    defined = ~np.isnan(values)
    sums, counts = np.zeros((2, len(values), count))
    for row, image_number in enumerate(image_numbers):
        sums[:, image_number] += np.where(defined[:, row], values[:, row], 0)
        counts[:, image_number] += defined[:, row]
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _by_label(
    source: Inputs,
    second: torch.Tensor,
    reported: _Scored,
    words: Mapping[str, str],
    weights_note: str,
    ablating: Sequence[str],
    level: float,
) -> pd.DataFrame:
    """Return the verdict on the reported images with each label, one row for each label."""
    columns = source.explained_targets[second].cpu().numpy()
    names = source.class_names
    image_digests = np.array(source.digests)[second.numpy()]
    rows = []
    for label in sorted(set(columns.tolist())):
        has_label = columns == label
        # Copies of an image count once here too.
        numbers = np.unique(image_digests[has_label], return_inverse=True)[1]
        count, best, verdict = len(set(numbers.tolist())), "", TOO_FEW
        if count >= MINIMUM_IMAGES:
            tables = {
                words[name]: pd.DataFrame(_mean_by_image(values[:, has_label], numbers), reported.rows)
                for name, values in reported.row_scores.items()
            }
            judged = judge(tables, REFERENCES, weights_note, level=level, ablating=ablating)
            verdict = judged.verdict
            best = ", ".join(judged.best) if verdict == FOUND else ""
        rows.append([names[label] if names else str(label), count, best, verdict])
    return pd.DataFrame(rows, columns=list(BY_LABEL))


@dataclass(frozen=True)
class _Scored:
    """Methods with maps of a part of the images, their properties, and their scores.

    Attributes
    ----------
    methods
        M methods, signed and absolute.
    parent
        Mapping from methods to the name of the caller's method that made their maps.
    facts
        ``passes``, ``seconds`` and ``options`` of each method.
    scores
        Mapping from measures to scores (M, P) of images, NaN where undefined.
    row_scores
        The same scores (M, N) for rows; an image has a row for each of its labels.
    not_applicable
        Mapping from names of maps to the reason why the method is not applicable.
    undefined
        Mapping from methods to the reason why they have no score on any image by any measure.
    """

    methods: Sequence[Method]
    parent: Mapping[str, str]
    facts: Mapping[str, list[Any]]
    scores: Mapping[str, np.ndarray]
    row_scores: Mapping[str, np.ndarray]
    not_applicable: Mapping[str, str]
    undefined: Mapping[str, str]

    @property
    def rows(self) -> list[str]:
        """Names of the M methods that have maps."""
        return [method.name for method in self.methods]

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """Mapping from measures to scores, with one row for each method and one column for each image."""
        return {name: pd.DataFrame(values, self.rows) for name, values in self.scores.items()}


@dataclass(frozen=True)
class _Judge:
    """Images of a checked network, the methods, and the metrics that score their maps."""

    source: Inputs
    template: Batch
    cache: Cache
    named_methods: Mapping[str, Method]
    metrics: Mapping[str, SelectedMetric]
    level: float

    def scored(
        self, rows: torch.Tensor, named_methods: Mapping[str, Method], picked: Collection[str] | None = None
    ) -> _Scored:
        """Return the scores of methods on a part of the images; of all methods, or only of those in `picked`."""
        source, keys = self.source.take(rows.tolist()), MethodKeys(self.template.network)
        dataset = explain_inputs(list(named_methods.values()), source, self.template, self.cache, stops=False)
        parents = {name: method.name for method in named_methods.values() for name in method.map_names}
        is_applicable = dataset["reason"].values == ""
        names = dataset["method"].values[is_applicable]
        with_maps, missing = dataset.isel(method=is_applicable), dataset["reason"][~is_applicable]
        not_applicable = dict(zip(missing["method"].values.tolist(), missing.values.tolist(), strict=True))
        # The first half decides whether a function's maps are signed, and the second half keeps this.
        signed = {
            name: name not in REFERENCES and (picked is not None or has_signs)
            for name, has_signs in zip(names.tolist(), with_maps["signed"].values.tolist(), strict=True)
        }
        methods = [method for method in methods_of(signed) if picked is None or method.name in picked]
        places = [method.index for method in methods]
        map_keys = {
            name: key_of(method, self.template, self.cache, keys)
            for method in named_methods.values()
            for name in method.map_names
        }
        metrics = {
            key: metric._replace(options=select_option_rows(metric.options, rows.tolist(), len(self.source)))
            for key, metric in self.metrics.items()
        }
        scores_by_metric = Scoring(
            source,
            # Maps have the facts of the layer that CAMs read; responses have none.
            replace(self.template, facts=None),
            self.cache,
            with_maps["attribution"],
            methods,
            [map_keys[name] for name in names],
            metrics,
        ).scores()
        row_scores = {
            name: np.stack([scored[method.name].score for method in methods])
            for name, scored in scores_by_metric.items()
        }
        image_numbers = _image_numbers(source).numpy()
        return _Scored(
            methods,
            dict(zip([method.name for method in methods], (parents[name] for name in names[places]), strict=True)),
            {key: with_maps[key].values[places].tolist() for key in ("passes", "seconds", "options")},
            {name: _mean_by_image(values, image_numbers) for name, values in row_scores.items()},
            row_scores,
            not_applicable,
            {
                method.name: f"no score on any image: {next(iter(scores_by_metric.values()))[method.name].reason}"
                for method in methods
                if method.name not in REFERENCES
                and not any(np.isfinite(scored[method.name].score).any() for scored in scores_by_metric.values())
            },
        )


def _planned(methods: int, reported: int, level: float) -> str:
    """Return how many images it takes to distinguish this number of methods, and whether there are enough."""
    needed = images_to_distinguish(methods, level=level)
    enough = "" if reported >= needed else " With fewer, the result is often open."
    return (
        f"The result is from {reported} images, and the other half selects options. To distinguish, with a probability "
        f"of 0.8, two of {methods} methods and reference maps whose paired difference is half its standard deviation "
        f"(d = 0.5), the result needs {needed} images, {2 * needed} in all.{enough}"
    )


def _warn_of_trained_on(digests: Sequence[str], domain: Domain) -> None:
    """Warn the caller of `choose` if images were used for the finetuning of the network."""
    trained_on = set(domain.record.get("images", ()))
    overlap = sum(image_digest in trained_on for image_digest in digests)
    if overlap:
        warnings.warn(
            f"The network was finetuned on {overlap} of the {len(digests)} images, which may favour some methods: "
            "pass other images.",
            stacklevel=3,
        )


def _check_distinct(digests: Sequence[Any]) -> None:
    """Refuse too few distinct images, and warn the caller of `choose` of copies.

    Images with several targets are identified by digest and target.

    Raises
    ------
    HeatproofError
        If fewer than `MINIMUM_IMAGES` are distinct.
    """
    count, distinct = len(digests), len(set(digests))
    if distinct < MINIMUM_IMAGES:
        raise HeatproofError(
            f"{distinct} of the {count} images {'is' if distinct == 1 else 'are'} distinct, which is too few to "
            f"compare methods: pass at least {MINIMUM_IMAGES} distinct images, better 100."
        )
    if distinct < count:
        warnings.warn(
            f"{count - distinct} of the {count} images are copies of others, which makes intervals too narrow: remove "
            "the copies.",
            stacklevel=3,
        )


def _unique(names: Sequence[str]) -> list[str]:
    """Return the names with a number appended to each repeated one."""
    counts: Counter[str] = Counter()
    unique = []
    for name in names:
        unique.append(f"{name}-{counts[name]}" if counts[name] else name)
        counts[name] += 1
    return unique


def _table(
    scored: _Scored, rows: list[str], ablating: Sequence[str], verdict: Verdict, seed: int, level: float
) -> pd.DataFrame:
    """Return the table of the selected methods, the best first and those that are not contenders last."""
    columns: dict[str, Any] = {"method": list(rows)}
    abstains = any(measure.reason for measure in verdict.measures.values())
    columns["in_set"] = pd.array([pd.NA if abstains else row in verdict.best for row in rows], dtype="boolean")
    is_contender = np.array([row not in ablating for row in rows])
    means = []
    for name, table in scored.tables.items():
        summary = summarise(table.loc[rows].to_numpy(), seed, level=level)
        columns |= {name: summary["mean"], f"{name}, low": summary["ci_low"], f"{name}, high": summary["ci_high"]}
        means.append(summary["mean"])
    columns |= scored.facts
    mean = pd.DataFrame(means).mean().to_numpy()
    result = pd.DataFrame(columns).astype({"passes": "Int64"})
    result["reason"] = np.where(is_contender, "", ABLATION_REASON)
    is_best = np.array([row in verdict.best for row in rows])
    return result.iloc[np.lexsort((-mean, ~is_best, ~is_contender))]
