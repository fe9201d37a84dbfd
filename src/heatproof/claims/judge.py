"""Judge every registered claim on scores, and on published numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from heatproof.claims.evidence import Evidence
from heatproof.claims.published_numbers import NOT_AVAILABLE, published_evidence
from heatproof.claims.registry import CLAIMS, PAPERS, Claim, Untestable
from heatproof.claims.verdicts import (
    MINIMUM_NETWORKS,
    OPEN,
    UNTESTED,
    Estimate,
    adjusted_p_values,
    estimate,
    verdict_of,
)

if TYPE_CHECKING:
    pass


COLUMNS = ["claim", "paper", "place", "sentence", "verdict"]
COLUMNS += ["quantity", "value", "ci_low", "ci_high", "p", "q", "seeds", "rule", "basis", "reason"]
PUBLISHED = ["value", "low", "high", "verdict", "basis", "reason"]
COLUMNS += [f"published_{name}" for name in PUBLISHED]


def claims_table(evidence: Evidence, level: float = 0.95) -> pd.DataFrame:
    """Judge every registered claim on a run, and on published numbers.

    Returns
    -------
    pandas.DataFrame
        `COLUMNS`: those of `run_table`, then those of `published_table`.
    """
    return run_table(evidence, level).merge(published_table(level), on="claim", how="left")[COLUMNS]


def run_table(evidence: Evidence, level: float = 0.95) -> pd.DataFrame:
    """Judge every registered claim on the scores of a run.

    Parameters
    ----------
    evidence
        The scores.
    level
        Coverage of the intervals.

    Returns
    -------
    pandas.DataFrame
        One row per claim, in the order of the papers. A claim is ``reproduced`` if its complete interval satisfies its
        rule, and ``contradicted`` if the complete interval lies on the other side, both only where q, over all claims
        that the run can test, is at most 1 - level; otherwise it is ``open``. Where it is ``not testable here``,
        ``reason`` is the reason.
    """
    entries = ordered_claims()
    rows = [_row(entry, evidence, level) for entry in entries]
    for row, q in zip(rows, adjusted_p_values([row.get("p", np.nan) for row in rows]), strict=True):
        row["q"] = q
        if row["verdict"] not in (OPEN, UNTESTED) and q > 1 - level:
            row |= {"verdict": OPEN, "reason": f"over all claims that were tested q is {q:.2g}, above {1 - level:.2g}"}
    return pd.DataFrame(rows, columns=COLUMNS[: -len(PUBLISHED)]).astype({"seeds": "Int64"})


def published_table(level: float = 0.95) -> pd.DataFrame:
    """Judge every registered claim on the numbers that papers published, by the same functions.

    Published scores have no images, so that intervals are over networks.
    """
    rows = []
    for entry in ordered_claims():
        row: dict[str, Any] = {"verdict": UNTESTED, "value": np.nan, "low": np.nan, "high": np.nan}
        evidence = published_evidence(entry.paper)
        if evidence is None:
            row["reason"] = f"because {NOT_AVAILABLE.get(entry.paper, 'no numbers of this paper are stored')}"
        else:
            row |= _published_row(entry, evidence, level)
        rows.append({"claim": entry.name, **{f"published_{name}": row.get(name, "") for name in PUBLISHED}})
    return pd.DataFrame(rows)


def _published_row(entry: Claim, evidence: Evidence, level: float) -> dict[str, Any]:
    try:
        measured = entry.test(evidence.over_networks())
    except Untestable as untestable:
        if np.isnan(untestable.value):
            return {"reason": "because the paper gives these results only in a figure or in words"}
        # The claim needs several trainings of a network, and the tables have one.
        return {"value": untestable.value, "reason": f"because {untestable}"}
    limit = entry.decisive_limit(measured.draws[0])
    estimated = estimate(measured, limit, level, measured.networks)
    row = {"value": estimated.value, "basis": measured.basis}
    if measured.networks < MINIMUM_NETWORKS:
        met = estimated.value > entry.limit if entry.side == "above" else estimated.value < entry.limit
        outcome = "satisfies the rule" if met else "does not satisfy the rule"
        return {**row, "reason": f"because {_describe_networks(measured.networks)} no interval; the value {outcome}"}
    verdict = verdict_of(estimated, entry.side, limit)
    reason = f"the interval includes {limit:g}" if verdict == OPEN else ""
    return {**row, "low": estimated.low, "high": estimated.high, "verdict": verdict, "reason": reason}


def _describe_networks(networks: int) -> str:
    return f"{networks} published network{'s have' if networks > 1 else ' has'}"


def ordered_claims() -> list[Claim]:
    """Return all claims in the order of the papers; claims of other papers come last."""
    papers = list(PAPERS)
    return sorted(CLAIMS.values(), key=lambda entry: (*papers, entry.paper).index(entry.paper))


def _row(entry: Claim, evidence: Evidence, level: float) -> dict[str, Any]:
    row: dict[str, Any] = {"claim": entry.name, "verdict": UNTESTED, "rule": entry.rule}
    row |= {key: getattr(entry, key) for key in ("paper", "place", "sentence", "quantity")}
    networks = entry.over == "networks"
    try:
        measured = entry.test(evidence.over_networks() if networks else evidence)
    except Untestable as untestable:
        return {**row, "reason": f"because {untestable}"}
    row["basis"] = measured.basis
    over_networks = networks and not measured.seeds
    if over_networks and measured.networks < MINIMUM_NETWORKS:
        few = f"an interval over networks needs {MINIMUM_NETWORKS}, and images of one say nothing of others"
        return {**row, "reason": f"because {few}: the run has {measured.networks}"}
    cases = measured.networks if over_networks else evidence.images
    limit = entry.decisive_limit(measured.draws[0])
    estimated: Estimate = estimate(measured, limit, level, cases)
    if np.isnan([estimated.value, estimated.low, estimated.high, estimated.p]).any():
        return {**row, "reason": "because the quantity is undefined on these images"}
    row |= {"value": estimated.value, "ci_low": estimated.low, "ci_high": estimated.high, "p": estimated.p}
    if measured.seeds:
        row["seeds"] = measured.seeds
    verdict = verdict_of(estimated, entry.side, limit)
    return {**row, "verdict": verdict, "reason": f"the interval includes {limit:g}" if verdict == OPEN else ""}
