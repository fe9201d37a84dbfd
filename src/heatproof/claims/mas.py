"""Claims of the MAS paper: what metrics make of a map's magnitudes, and how consistently they rank."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from heatproof.claims.evidence import Evidence, mean_known
from heatproof.claims.idsds import AGREEMENT
from heatproof.claims.registry import Measured, Untestable, claim, required

PAPER = "MAS"
RISE = ("rise_insertion", "rise_deletion", "rise_difference")
MAS = ("mas_insertion", "mas_deletion", "mas_difference")
PIC = ("sic", "aic")
OFFSET = "mean change of the score, its size, when 10 % of a map's maximum is added to it"
CONSISTENCY = "mean Spearman correlation between images' rankings of the methods"


def _offset(e: Evidence, kinds: Sequence[str]) -> Measured:
    changes = [np.abs(e.offsets[kind]) for kind in kinds if kind in e.offsets]
    required(changes, f"none of {', '.join(kinds)} was scored on maps without negative values")
    # One value an image, over methods, networks and metrics.
    values = mean_known(np.stack([mean_known(change) for change in changes]))
    return Measured(e.resample(values), f"methods on networks: {sum(len(change) for change in changes)}")


@claim(PAPER, "section 3.1, theorem 1; table 1", OFFSET, below=1e-6)
def rise_ignores_an_offset(e: Evidence) -> Measured:
    """RISE's metrics do not notice a constant offset."""
    return _offset(e, RISE)


@claim(PAPER, "section 4.3, theorem 2; table 1", OFFSET, above=0.01)
def mas_notices_an_offset(e: Evidence) -> Measured:
    """MAS notices a constant offset."""
    return _offset(e, MAS)


def _gain(e: Evidence, better: Sequence[str], worse: Sequence[str]) -> Measured:
    gains = []
    for kind in better:
        for a in e.out_of_domain(kind):
            rivals = [b for other in worse for b in e.out_of_domain(other) if e.cases[b].network == e.cases[a].network]
            if rivals:
                gains.append(e.consistency(a) - np.mean([e.consistency(b) for b in rivals], axis=0))
    required(gains, "both kinds of metric have to be scored on one network")
    return Measured(np.mean(gains, axis=0), f"test cases: {len(gains)}")


@claim(PAPER, "section 5.2, table 2", CONSISTENCY + ", MAS less RISE, like with like", above=0)
def mas_more_consistent_than_rise(e: Evidence) -> Measured:
    """MAS ranks methods more consistently over images than RISE."""
    parts = []
    for mas, rise in zip(MAS, RISE, strict=True):
        with suppress(Untestable):
            parts.append(_gain(e, [mas], [rise]).draws)
    required(parts, "MAS and RISE have to be scored on one network")
    return Measured(np.mean(parts, axis=0), f"kinds of curve: {len(parts)}")


@claim(PAPER, "section 5.2, table 2", CONSISTENCY + ", MAS less SIC and AIC", above=0)
def mas_more_consistent_than_pic(e: Evidence) -> Measured:
    """MAS ranks methods more consistently over images than PIC."""
    return _gain(e, MAS, PIC)


def _baselines(e: Evidence, kinds: Sequence[str]) -> np.ndarray:
    pairs = []
    for kind in kinds:
        with suppress(Untestable):
            pairs += [
                (a, b)
                for a, b in e.pairs_differing(e.find(kind), "metric")
                if e.cases[a].options.get("baseline") != e.cases[b].options.get("baseline")
            ]
    matches = required(
        pairs,
        "no metric is scored with two baselines: name one twice, such as mas_random: {metric: mas_insertion, "
        "baseline: random}",
    )
    return e.agreement(matches).draws


@claim(PAPER, "section 5.3, table 3", AGREEMENT + " between baselines, MAS less RISE", above=0)
def mas_depends_less_on_the_baseline(e: Evidence) -> Measured:
    """MAS depends less on the baseline than RISE."""
    return Measured(_baselines(e, MAS) - _baselines(e, RISE))
