"""Quality of metrics: sensitivity to corrupted maps, and dependence on conventions.

All functions score maps of several methods on one model with `heatproof.evaluate`. They return tidy tables with one row
for each comparison. Undefined scores are excluded from means and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from heatproof.api._study import Study, compare_scores, curve_points, is_higher_better, oriented_scores, spearman
from heatproof.errors import HeatproofError
from heatproof.metrics.corruptions import (
    NOISE,
    OFFSETS,
    SCHEMES,
    introduce_or_remove,
    scale_magnitudes,
    with_noise,
    with_offset,
)
from heatproof.metrics.curve_distance import pairwise_distances
from heatproof.metrics.registry import METRICS
from heatproof.stats.reliability import image_ranks, internal_consistency_reliability

if TYPE_CHECKING:
    import torch

    from heatproof.api.selected_metrics import Metrics

BASELINES = ("zeros", "random", "blur", "mean")


def image_scores(
    model: Any, images: torch.Tensor, targets: Any, maps: Mapping[str, Any], metrics: Metrics, **common: Any
) -> pd.DataFrame:
    """Score every method by every metric on every image.

    Parameters
    ----------
    model, images, targets
        As in `heatproof.evaluate`.
    maps
        Method names to maps (N, H, W), or the result of `heatproof.explain`.
    metrics
        Names of metrics, or a mapping from names to options.
    **common
        ``seed``, ``batch_size``, ``device``, ``image_ids``, ``task``, ``transform`` and a ``target`` function, as in
        `heatproof.evaluate`.

    Returns
    -------
    pandas.DataFrame
        Columns ``metric, method, image, score, higher_is_better``. If an image has a row for each of its labels, there
        is a column ``target`` as well, and the scores of an image are averaged before images are compared. The table is
        the input of `heatproof.stats.reliability.reliability_table` and
        `heatproof.report.tables.reliability.draw_critical_difference`.

    Raises
    ------
    HeatproofError
        As in `heatproof.evaluate`; or if there are no maps or metrics.

    Examples
    --------
    >>> import torch, heatproof
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 4)).eval()
    >>> images, labels = torch.rand(5, 3, 8, 8), torch.tensor([0, 1, 2, 3, 0])
    >>> maps = {"first": torch.rand(5, 8, 8), "second": torch.rand(5, 8, 8)}
    >>> table = heatproof.quality.image_scores(model, images, labels, maps, ["rise_deletion"])
    >>> table.shape
    (10, 5)
    """
    study = Study.create(model, images, targets, maps, metrics, common)
    parts = []
    for name, options in study.metrics.items():
        for method, values in study.maps.items():
            result = study.score(name, options, values)
            columns = {"metric": name, "method": method, "image": study.image_names, "score": result["score"].values}
            target_column = {"target": result["target"].values} if study.image_names != study.ids else {}
            parts.append(pd.DataFrame({**columns, **target_column, "higher_is_better": is_higher_better(result)}))
    return pd.concat(parts, ignore_index=True)


def offset_sensitivity(
    model: Any,
    images: torch.Tensor,
    targets: Any,
    maps: Mapping[str, Any],
    metrics: Metrics,
    offsets: Sequence[float] = OFFSETS,
    **common: Any,
) -> pd.DataFrame:
    """Measure how much every metric changes when a constant is added to all maps.

    This follows Walker et al. 2024, section 5.1, table 1. An offset does not change the order of pixels, so a metric
    that only reads the order does not change.

    Parameters
    ----------
    model, images, targets, maps, metrics, **common
        As in `image_scores`.
    offsets
        Added constants, as shares of the largest magnitude of each map.

    Returns
    -------
    pandas.DataFrame
        One row for each metric and offset: ``metric``, ``offset``; ``change``, the absolute change of a method's mean
        score, averaged over methods, in units of the metric; ``worse``, the same with its sign, positive if the metric
        scores the changed maps as worse; ``share_of_spread``, `change` over the range of the methods' mean scores;
        ``curve_change``, the quantity of the paper: the area between the mean curves of the changed and the original
        maps over the area under the original curve, averaged over methods, NaN for a metric without curves;
        ``spearman``, the correlation of the methods' mean scores with those of the original maps, in [-1, 1], NaN if
        all are equal; ``n_methods``; and ``n_undefined``, the number of scores of a method on an image, out of
        ``n_scores``, that are undefined for the original or for the changed map.

    Raises
    ------
    HeatproofError
        As in `image_scores`.
    """
    study = Study.create(model, images, targets, maps, metrics, common)
    return _sensitivity(study, "offset", offsets, with_offset)


def noise_sensitivity(
    model: Any,
    images: torch.Tensor,
    targets: Any,
    maps: Mapping[str, Any],
    metrics: Metrics,
    shares: Sequence[float] = NOISE,
    **common: Any,
) -> pd.DataFrame:
    """Measure how much every metric changes when uniform noise is added to all maps.

    This follows Walker et al. 2024, section 5.1.

    Parameters
    ----------
    model, images, targets, maps, metrics, **common
        As in `image_scores`.
    shares
        Upper bounds of the noise, as shares of the largest magnitude of each map.

    Returns
    -------
    pandas.DataFrame
        As from `offset_sensitivity`, with ``noise`` in the place of ``offset``.

    Raises
    ------
    HeatproofError
        As in `image_scores`.
    """
    study = Study.create(model, images, targets, maps, metrics, common)
    return _sensitivity(
        study, "noise", shares, lambda values, share: with_noise(values, share, study.ids, study.common.get("seed", 0))
    )


def baseline_invariance(
    model: Any,
    images: torch.Tensor,
    targets: Any,
    maps: Mapping[str, Any],
    metrics: Metrics,
    baselines: Sequence[str] | Mapping[str, Mapping[str, Any]] = BASELINES,
    **common: Any,
) -> pd.DataFrame:
    """Measure how much the ranking by a metric depends on its baseline.

    This follows Walker et al. 2024, section 5.3, table 3.

    Parameters
    ----------
    model, images, targets, maps, metrics, **common
        As in `image_scores`; every metric must have a baseline.
    baselines
        Names of baselines, or a mapping from names to options. The colour of ``mean`` defaults to that of `images`. If
        the default baseline of a metric is none of them, it is compared as well, under the name ``default``.

    Returns
    -------
    pandas.DataFrame
        One row for each metric and pair of baselines: ``metric``, ``baseline``, ``other``; ``consistency``, the
        Spearman correlation of both rankings averaged over images, and ``consistency_published``, both computed by
        `heatproof.stats.reliability.internal_consistency_reliability`; ``spearman``, the correlation of the methods'
        mean scores; all in [-1, 1], higher is more invariant; ``n_images``, the number of images on which every method
        has both scores, which are the only ones that count, and ``n_undefined``, the number of all others.

    Raises
    ------
    HeatproofError
        As in `image_scores`, or if a metric has no baseline.
    """
    study = Study.create(model, images, targets, maps, metrics, common)
    options_by_baseline = dict(baselines) if isinstance(baselines, Mapping) else {name: {} for name in baselines}
    if "mean" in options_by_baseline and "value" not in options_by_baseline["mean"]:
        options_by_baseline["mean"] = {
            **options_by_baseline["mean"],
            "value": study.images.mean(dim=(0, 2, 3)).tolist(),
        }
    rows = []
    for name, options in study.metrics.items():
        scores = {
            baseline: np.stack(
                [oriented_scores(study.score(name, options_with_baseline, maps)) for maps in study.maps.values()],
                axis=1,
            )
            for baseline, options_with_baseline in _choices(name, options, options_by_baseline)
        }
        for baseline, other in combinations(scores, 2):
            complete = ~np.isnan(scores[baseline] + scores[other]).any(axis=1)
            first, second = scores[baseline][complete], scores[other][complete]
            row: dict[str, Any] = {"metric": name, "baseline": baseline, "other": other}
            for column, variant in (("consistency", "pairs"), ("consistency_published", "published")):
                ranks = image_ranks(first), image_ranks(second)
                row[column] = internal_consistency_reliability(*ranks, variant=variant) if len(first) else np.nan
            row["spearman"] = spearman(first.mean(axis=0), second.mean(axis=0)) if len(first) else np.nan
            rows.append({**row, "n_images": int(complete.sum()), "n_undefined": int((~complete).sum())})
    return pd.DataFrame(rows)


def modification_distances(
    model: Any,
    images: torch.Tensor,
    targets: Any,
    maps: Mapping[str, Any],
    metrics: Metrics,
    schemes: Sequence[str] = SCHEMES,
    *,
    kind: str = "hausdorff",
    clip: bool = False,
    **common: Any,
) -> pd.DataFrame:
    """Measure whether a metric separates maps from copies with introduced or removed attribution.

    This follows Li et al. 2024, section 5.2. The curves are means over images. Soundness is plotted over the accuracy,
    completeness over the threshold, and deletions over the removed share, as in the paper's figure 7. For a metric with
    two curves, the distances are averaged.

    Parameters
    ----------
    model, images, targets, maps, metrics, **common
        As in `image_scores`.
    schemes, clip
        As in `heatproof.metrics.corruptions.introduce_or_remove`, whose scaled magnitudes are the original here.
    kind
        As in `heatproof.metrics.curve_distance.hausdorff`.

    Returns
    -------
    pandas.DataFrame
        One row for each metric, method and scheme: ``metric``, ``method``, ``scheme``; the distances
        ``original_introduce``, ``original_remove`` and ``introduce_remove``; and ``minimal``, the smallest of them (the
        paper's table 1), which is near 0 if the metric does not separate two of the three. NaN for a metric without
        curves.

    Raises
    ------
    HeatproofError
        As in `image_scores`, or if a scheme or the kind does not exist.
    """
    study = Study.create(model, images, targets, maps, metrics, common)
    seed = study.common.get("seed", 0)
    rows = []
    for method, values in study.maps.items():
        for scheme in schemes:
            changed = {"original": scale_magnitudes(values)} | {
                direction: introduce_or_remove(values, direction, scheme, study.ids, seed, clip=clip)
                for direction in ("introduce", "remove")
            }
            for name, options in study.metrics.items():
                # The maps were scaled before they were changed; rescaling them again would undo a part of the change.
                unscaled = {"rescale": False} if "rescale" in METRICS[name].options else {}
                points = {
                    key: curve_points(study, name, {**unscaled, **options}, changed_maps)
                    for key, changed_maps in changed.items()
                }
                per_curve = [
                    pairwise_distances({key: curves[index] for key, curves in points.items()}, kind=kind)
                    for index in range(len(points["original"]))
                ]
                row = {
                    f"{a}_{b}": float(np.mean([distances[a, b] for distances in per_curve]))
                    if per_curve
                    else float("nan")
                    for a, b in combinations(changed, 2)
                }
                minimal = float(np.min(list(row.values())))
                rows.append({"metric": name, "method": method, "scheme": scheme, **row, "minimal": minimal})
    return pd.DataFrame(rows).sort_values(["metric", "method", "scheme"], ignore_index=True, kind="stable")


def _sensitivity(
    study: Study, column: str, shares: Sequence[float], change: Callable[[np.ndarray, float], np.ndarray]
) -> pd.DataFrame:
    rows = []
    for name, options in study.metrics.items():
        # In float64 like the changed maps, so that a share of 0 changes nothing.
        original = {m: study.score(name, options, values.astype(np.float64)) for m, values in study.maps.items()}
        for share in shares:
            compared = [
                compare_scores(original[method], study.score(name, options, change(values, share)))
                for method, values in study.maps.items()
            ]
            before, after = (np.array([comparison[key] for comparison in compared]) for key in ("before", "after"))
            moved = np.abs(after - before).mean()
            spread = np.ptp(before)
            rows.append(
                {
                    "metric": name,
                    column: share,
                    "change": moved,
                    "worse": (before - after).mean(),
                    "share_of_spread": moved / spread if spread > 0 else float("nan"),
                    "curve_change": float(np.mean([comparison["curve"] for comparison in compared])),
                    "spearman": spearman(before, after),
                    "n_methods": len(compared),
                    "n_undefined": sum(comparison["undefined"] for comparison in compared),
                    "n_scores": len(compared) * len(study.ids),
                }
            )
    return pd.DataFrame(rows)


def _choices(
    name: str, options: Mapping[str, Any], baselines: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the options of a metric with every baseline, and with its default baseline if that is none of them."""
    entry = METRICS[name]
    without_baseline = {key: value for key, value in options.items() if key not in ("baseline", "baseline_options")}
    complete = {**entry.options, **without_baseline}
    if "baseline" not in complete or complete.get("imputation") == "road":
        raise HeatproofError(f"The metric {name!r} has no baseline to vary: leave it out of the comparison.")
    with_baseline = {
        baseline: {
            **without_baseline,
            "baseline": baseline,
            **({"baseline_options": dict(baseline_options)} if baseline_options else {}),
        }
        for baseline, baseline_options in baselines.items()
    }

    def responses(changed: Mapping[str, Any]) -> Mapping[str, Any]:
        return entry.responses(entry.reads.complete(entry.complete_options(changed)))

    # If a kind of response has no options of its own, the metric defines the baseline.
    if entry.reads.options is None and all(
        responses(changed) != responses(without_baseline) for changed in with_baseline.values()
    ):
        yield "default", without_baseline
    yield from with_baseline.items()
