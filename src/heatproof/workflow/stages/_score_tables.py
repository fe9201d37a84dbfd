"""The tables of a test case: scores of images, what is known of methods, and the checks of explainers."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from heatproof.store.publishing import public
from heatproof.workflow.stages._stored_scores import Recorded, sum_costs

if TYPE_CHECKING:
    from heatproof.workflow.stages.score import Score

log = logging.getLogger(__name__)

# Numbers that every row of a table of methods has, and those that are missing where no maps were read.
METHOD_TYPES = {"share_wrong": "float64", "images": "Int64", "passes": "Int64", "check_passes": "Int64"}
METHOD_TYPES |= {"seconds": "float64", "drops_passes": "int64", "drops_seconds": "float64"}
METHOD_COLUMNS = ["dataset", "model", "weights", "metric", "method", "explainer", "gap", *METHOD_TYPES]
CHECK_TYPES = {"images": "int64", "value": "float64", "limit": "float64"}
CHECK_COLUMNS = ["dataset", "model", "weights", "explainer", "images", "figure", "value", "limit", "gap"]


def scores_table(spec: Score, scores: Mapping[str, np.ndarray], ids: np.ndarray, classes: Any) -> pd.DataFrame:
    """Return the tidy table of scores, with one row for each method and image."""
    values = np.concatenate(list(scores.values())) if scores else np.empty(0)
    table = pd.DataFrame(
        {
            **spec.case.network._asdict(),
            "method": np.repeat(np.array(list(scores), dtype=object), len(ids)),
            "metric": spec.case.metric,
            "image": np.tile(ids, len(scores)),
            "class": np.tile(classes, len(scores)),
            "score": values,
            "valid": ~np.isnan(values),
        }
    )
    for name, undefined in (~table["valid"]).groupby(table["method"], sort=False).sum().items():
        if undefined:
            log.info("%s: undefined on %d of %d images", name, undefined, len(ids))
    return table


def methods_table(
    spec: Score, recorded: Recorded, share_wrong: float | None, absolute_twins: Collection[str]
) -> pd.DataFrame:
    """Return the table of methods: why a method has no scores, and what its maps and the patch drops took.

    Parameters
    ----------
    spec
        The spec of the job.
    recorded
        What the manifests of its inputs record, with the reasons why methods have no scores.
    share_wrong
        The share of the intact images on which the network is wrong; None where that is undefined.
    absolute_twins
        Methods that equal the raw maps, and have no row.

    Returns
    -------
    pandas.DataFrame
        `METHOD_COLUMNS`: ``gap`` is "" for a method with scores; ``images``, ``passes``, ``check_passes`` and
        ``seconds`` are those of all maps of its explainer, and missing where no maps were read.
    """
    drops = sum_costs(recorded.drops)
    rows = []
    for explainer in spec.explainers:
        spent = recorded.costs.get(explainer.name, {})
        for method in explainer.methods:
            if method.name not in absolute_twins:
                row = {
                    **spec.case.where,
                    "method": method.name,
                    "explainer": explainer.name,
                    "gap": _published(recorded.unscored_reasons.get(method.name)),
                    "share_wrong": share_wrong,
                    "images": spent.get("images"),
                    "passes": spent.get("network_passes"),
                    "check_passes": spent.get("check_passes"),
                    "seconds": spent.get("seconds"),
                    "drops_passes": drops["network_passes"],
                    "drops_seconds": drops["seconds"],
                }
                rows.append(row)
    return pd.DataFrame(rows, columns=METHOD_COLUMNS).astype(METHOD_TYPES)


def checks_table(spec: Score, recorded: Recorded) -> pd.DataFrame:
    """Return the table of the applicability checks of explainers.

    Returns
    -------
    pandas.DataFrame
        `CHECK_COLUMNS`, with one row for each figure of a check, sorted by explainer and figure. An explainer that was
        refused before anything was measured has a row whose ``figure`` is "". ``gap`` is "" for an explainer that is
        applicable.
    """
    rows = [
        {
            **spec.case.network._asdict(),
            "explainer": explainer,
            "images": check["images"],
            "figure": figure,
            **measured,
            "gap": _published(check["gap"]),
        }
        for explainer, check in sorted(recorded.applicability.items())
        for figure, measured in sorted((check["figures"] or {"": {}}).items())
    ]
    return pd.DataFrame(rows, columns=CHECK_COLUMNS).astype(CHECK_TYPES)


def _published(reason: str | None) -> str:
    """Return a reason as it may be published, or ""; the name of a file in it may have bytes that are not UTF-8."""
    return str(public(reason or "")).encode("utf-8", "replace").decode()
