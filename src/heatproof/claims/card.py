"""Stage `claims`: test every registered claim on the scores of a run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from heatproof.claims.evidence import Case, Draws, Evidence, Method, Model
from heatproof.claims.offsets import offset_changes
from heatproof.claims.registry import CLAIMS, PAPERS, Claim, Untestable
from heatproof.files import write_table
from heatproof.manifest import publish_tables, verified
from heatproof.metrics.bootstrap import interval
from heatproof.ranking.per_image import read_scores

log = logging.getLogger(__name__)

COLUMNS = ["claim", "paper", "place", "sentence", "verdict"]
COLUMNS += ["quantity", "value", "ci_low", "ci_high", "rule", "basis", "reason"]
METHOD = ("name", "kind", "map", "transform", "uses_model")
HOLDS, FAILS, UNTESTED = "holds", "does not hold", "cannot be tested here"


def claims(spec: Mapping[str, Any], runtime: Mapping[str, Any]) -> None:
    """Write claims.csv, the verdict on each claim for the scores of a run."""
    cells, files, scores = read_scores(spec)
    facts = spec["metrics"]
    cases = [Case(*cell, **facts[cell[3]], kept_by=spec["kept"].get(cell[2], "")) for cell in cells]
    evidence = Evidence(
        scores,
        cases,
        [Method(**{key: method[key] for key in METHOD}) for method in spec["methods"]],
        {name: Model(name, **model) for name, model in spec["models"].items()},
        pd.read_csv(verified(spec["accuracy"])),
        offset_changes(spec["offsets"], spec["methods"]),
        Draws(spec["seed"], spec["bootstrap"]),
    )
    table = claims_table(evidence, spec["level"])
    log.info("%s", table["verdict"].value_counts().to_dict())
    write_table(table, spec["output"])
    publish_tables(spec, [spec["output"]], [*files, spec["accuracy"]])


def claims_table(evidence: Evidence, level: float = 0.95) -> pd.DataFrame:
    """Test every claim of the registry.

    Parameters
    ----------
    evidence
        The scores.
    level
        Coverage of the percentile bootstrap intervals over images.

    Returns
    -------
    pandas.DataFrame
        `COLUMNS`, one row a claim, in the order of the papers. A claim ``holds`` if its whole interval satisfies its
        rule, else it ``does not hold``, and ``reason`` tells an interval that straddles the limit from one on the other
        side; where a claim ``cannot be tested here``, ``reason`` says why.
    """
    return pd.DataFrame([_row(entry, evidence, level) for entry in ordered_claims()], columns=COLUMNS)


def ordered_claims() -> list[Claim]:
    """Return all claims, paper by paper; those of other papers come last."""
    papers = list(PAPERS)
    return sorted(CLAIMS.values(), key=lambda entry: (*papers, entry.paper).index(entry.paper))


def _row(entry: Claim, evidence: Evidence, level: float) -> dict[str, Any]:
    row: dict[str, Any] = {"claim": entry.name, "verdict": UNTESTED}
    row |= {key: getattr(entry, key) for key in ("paper", "place", "sentence", "quantity")}
    try:
        draws, basis = entry.test(evidence)
    except Untestable as untestable:
        return {**row, "reason": f"because {untestable}"}
    (low,), (high,) = interval(draws[None, 1:], level)
    row |= {"value": draws[0], "ci_low": low, "ci_high": high, "rule": entry.rule, "basis": basis}
    limit = entry.limit
    if np.isnan([draws[0], low, high]).any():
        return {**row, "reason": "because the quantity is undefined on these images"}
    if low == high == limit:
        return {**row, "reason": f"because it is {limit:g} on every draw of images: no difference"}
    if low > limit if entry.side == "above" else high < limit:
        return {**row, "verdict": HOLDS, "reason": ""}
    straddles = low <= limit <= high
    return {
        **row,
        "verdict": FAILS,
        "reason": f"the interval includes {limit:g}" if straddles else "it is the other way round",
    }
