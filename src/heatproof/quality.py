"""Quality of metrics: sensitivity to corrupted maps, and dependence on conventions.

Everything here asks `heatproof.evaluate` about maps of several methods on one model. Tables are tidy, a row a
comparison; undefined scores are left out of means and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from heatproof.api._study import Study, compare, oriented, points_of, spearman, upwards
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
from heatproof.ranking.reliability import image_ranks, internal_consistency_reliability

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from heatproof.api.evaluate import Metrics

BASELINES = ("zeros", "random", "blur", "mean")


def image_scores(
    model: Any, images: torch.Tensor, targets: Any, maps: Mapping[str, Any], metrics: Metrics, **common: Any
) -> pd.DataFrame:
    """Score every method by every metric, image by image.

    Parameters
    ----------
    model, images, targets
        As in `heatproof.evaluate`.
    maps
        Method to its maps (N, H, W), or what `heatproof.explain` returns.
    metrics
        Names of metrics, or names with their options.
    **common
        ``seed``, ``batch_size``, ``device``, ``image_ids``, ``task`` and a ``target`` function, as in
        `heatproof.evaluate`.

    Returns
    -------
    pandas.DataFrame
        Columns ``metric, method, image, score, higher_is_better``, and ``target`` where an image has a row for each of
        its labels, whose scores are averaged before images are compared. They are what
        `heatproof.ranking.reliability.reliability_table` and
        `heatproof.report.tables.reliability.draw_critical_difference` take.

    Raises
    ------
    HeatproofError
        As in `heatproof.evaluate`; or if there are no maps or metrics.
    """
    import pandas as pd

    study = Study.of(model, images, targets, maps, metrics, common)
    parts = []
    for name, options in study.metrics.items():
        for method, values in study.maps.items():
            result = study.score(name, options, values)
            columns = {"metric": name, "method": method, "image": study.pictures, "score": result["score"].values}
            of_rows = {"target": result["target"].values} if study.pictures != study.ids else {}
            parts.append(pd.DataFrame({**columns, **of_rows, "higher_is_better": upwards(result)}))
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
    """Say how far every metric moves when a constant is added to all maps (Walker et al. 2024, section 5.1, table 1).

    An offset changes no order, so a metric of the order alone stays where it is.

    Parameters
    ----------
    model, images, targets, maps, metrics, **common
        As in `image_scores`.
    offsets
        Shares of each map's largest magnitude.

    Returns
    -------
    pandas.DataFrame
        A row a metric and offset: ``metric``, ``offset``; ``change``, the mean over methods of the absolute change of
        the mean score, in the metric's units; ``worse``, the same with its sign, positive where the metric calls the
        changed maps worse; ``share_of_spread``, `change` over the range of the methods' mean scores; ``curve_change``,
        the paper's figure: the area between the mean curves of the changed and the original maps over the area under
        the original's, mean over methods, NaN for a metric without a curve; ``spearman``, of the methods' mean scores
        with those of the original maps, in [-1, 1], NaN where all are equal; ``n_methods``; ``n_undefined``, scores of
        a method on an image that one of the two maps does not have, of ``n_scores``.

    Raises
    ------
    HeatproofError
        As in `image_scores`.
    """
    study = Study.of(model, images, targets, maps, metrics, common)
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
    """Say how far every metric moves when uniform noise is added to all maps (Walker et al. 2024, section 5.1).

    Parameters
    ----------
    model, images, targets, maps, metrics, **common
        As in `image_scores`.
    shares
        Upper ends of the noise, as shares of each map's largest magnitude.

    Returns
    -------
    pandas.DataFrame
        As from `offset_sensitivity`, with ``noise`` in the place of ``offset``.

    Raises
    ------
    HeatproofError
        As in `image_scores`.
    """
    study = Study.of(model, images, targets, maps, metrics, common)
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
    """Say how much of a metric's ranking stays when its baseline is another (Walker et al. 2024, section 5.3, table 3).

    Parameters
    ----------
    model, images, targets, maps, metrics, **common
        As in `image_scores`; metrics that fill with a baseline.
    baselines
        Names of baselines, or names with their options. The colour of ``mean`` is that of `images` where it is left
        out. A metric whose own choice is none of them is compared under it too, as ``default``.

    Returns
    -------
    pandas.DataFrame
        A row a metric and pair of baselines: ``metric``, ``baseline``, ``other``; ``consistency``, the mean over
        images of the Spearman correlation of both rankings, and ``consistency_published``, both from
        `heatproof.ranking.reliability.internal_consistency_reliability`; ``spearman``, of the methods' mean scores;
        all in [-1, 1], higher is more invariant; ``n_images``, on which every method has both scores, the only ones
        that count, and ``n_undefined``, all others.

    Raises
    ------
    HeatproofError
        As in `image_scores`, or if a metric has no baseline.
    """
    import pandas as pd

    study = Study.of(model, images, targets, maps, metrics, common)
    given = dict(baselines) if isinstance(baselines, Mapping) else {name: {} for name in baselines}
    if "mean" in given and "value" not in given["mean"]:
        given["mean"] = {**given["mean"], "value": study.images.mean(dim=(0, 2, 3)).tolist()}
    rows = []
    for name, options in study.metrics.items():
        under = {
            baseline: np.stack([oriented(study.score(name, chosen, maps)) for maps in study.maps.values()], axis=1)
            for baseline, chosen in _choices(name, options, given)
        }
        for baseline, other in combinations(under, 2):
            complete = ~np.isnan(under[baseline] + under[other]).any(axis=1)
            first, second = under[baseline][complete], under[other][complete]
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
    """Say whether a metric tells maps from those with attribution introduced or removed (Li et al. 2024, section 5.2).

    The curves are means over images. Soundness stands over the accuracy, completeness over the threshold, deletions
    over the share removed, as in the paper's figure 7; a metric of two curves has the mean of their distances.

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
        A row a metric, method and scheme: ``metric``, ``method``, ``scheme``; the distances ``original_introduce``,
        ``original_remove`` and ``introduce_remove``, and ``minimal``, the least of them (the paper's table 1): near 0
        where the metric does not tell two of the three apart. NaN for a metric without a curve.

    Raises
    ------
    HeatproofError
        As in `image_scores`, or if there is no such scheme or kind.
    """
    import pandas as pd

    study = Study.of(model, images, targets, maps, metrics, common)
    seed = study.common.get("seed", 0)
    rows = []
    for method, values in study.maps.items():
        for scheme in schemes:
            changed = {"original": scale_magnitudes(values)} | {
                direction: introduce_or_remove(values, direction, scheme, study.ids, seed, clip=clip)
                for direction in ("introduce", "remove")
            }
            for name, options in study.metrics.items():
                # The maps were scaled before they were changed, and completeness would undo part of the change.
                kept = {"rescale": False} if "rescale" in METRICS[name].options else {}
                points = {key: points_of(study, name, {**kept, **options}, one) for key, one in changed.items()}
                of_modified = [
                    pairwise_distances({key: one[index] for key, one in points.items()}, kind=kind)
                    for index in range(len(points["original"]))
                ]
                row = {
                    f"{a}_{b}": float(np.mean([one[a, b] for one in of_modified])) if of_modified else float("nan")
                    for a, b in combinations(changed, 2)
                }
                least = float(np.min(list(row.values())))
                rows.append({"metric": name, "method": method, "scheme": scheme, **row, "minimal": least})
    return pd.DataFrame(rows).sort_values(["metric", "method", "scheme"], ignore_index=True, kind="stable")


def _sensitivity(
    study: Study, column: str, shares: Sequence[float], change: Callable[[np.ndarray, float], np.ndarray]
) -> pd.DataFrame:
    import pandas as pd

    rows = []
    for name, options in study.metrics.items():
        # In the type of the changed maps, so that a share of 0 changes nothing.
        original = {m: study.score(name, options, values.astype(np.float64)) for m, values in study.maps.items()}
        for share in shares:
            compared = [
                compare(original[method], study.score(name, options, change(values, share)))
                for method, values in study.maps.items()
            ]
            before, after = (np.array([one[key] for one in compared]) for key in ("before", "after"))
            moved = np.abs(after - before).mean()
            spread = np.ptp(before)
            rows.append(
                {
                    "metric": name,
                    column: share,
                    "change": moved,
                    "worse": (before - after).mean(),
                    "share_of_spread": moved / spread if spread > 0 else float("nan"),
                    "curve_change": float(np.mean([one["curve"] for one in compared])),
                    "spearman": spearman(before, after),
                    "n_methods": len(compared),
                    "n_undefined": sum(one["undefined"] for one in compared),
                    "n_scores": len(compared) * len(study.ids),
                }
            )
    return pd.DataFrame(rows)


def _choices(
    name: str, options: Mapping[str, Any], baselines: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the options of a metric under every baseline, and under its own where that is another."""
    entry = METRICS[name]
    plain = {key: value for key, value in options.items() if key not in ("baseline", "baseline_options")}
    filled = {**entry.options, **plain}
    if "baseline" not in filled or filled.get("imputation") == "road":
        raise HeatproofError(f"The metric {name!r} has no baseline to vary: leave it out of the comparison.")
    under = {
        baseline: {**plain, "baseline": baseline, **({"baseline_options": dict(given)} if given else {})}
        for baseline, given in baselines.items()
    }

    def responses(chosen: Mapping[str, Any]) -> Mapping[str, Any]:
        return entry.responses(entry.reads.complete(entry.complete_options(chosen)))

    # A kind without options of its own leaves it to the metric what fills.
    if entry.reads.options is None and all(responses(chosen) != responses(plain) for chosen in under.values()):
        yield "default", plain
    yield from under.items()
