"""Claims of the paper on soundness and completeness."""

from __future__ import annotations

import numpy as np

from heatproof.claims.evidence import Evidence
from heatproof.claims.registry import Measured, claim
from heatproof.claims.verdicts import extreme

PAPER = "soundness"
LESS_IG = "{} of {}, ensemble less IG"
ENSEMBLES = ("smoothgrad", "smoothgrad_sq", "vargrad")


def _gains(e: Evidence, kind: str, *ensembles: str) -> list[Measured]:
    """Return the differences of a score between ensembles of IG and IG, one an ensemble."""
    plain, cases = e.named("integrated_gradients", "abs"), e.out_of_domain(kind)
    found = []
    for name in ensembles:
        # Both metrics read absolute values; squares and variances have no sign.
        transform = "abs" if name == "smoothgrad" else "raw"
        own = e.named("noise_integrated_gradients", transform, map=f"integrated_gradients_{name}")
        found.append(e.difference(cases, [(own, plain)]))
    return found


@claim(PAPER, "section 5.3, figure 8 a", LESS_IG.format("smallest difference", "soundness"), above=0)
def ensembles_gain_soundness(e: Evidence) -> Measured:
    """All three ensembles of IG (SmoothGrad, its square, VarGrad) gain soundness."""
    return extreme(_gains(e, "soundness", *ENSEMBLES), np.minimum)


@claim(PAPER, "section 5.3, figure 8 b", LESS_IG.format("difference", "completeness") + ", SmoothGrad", above=0)
def smoothgrad_gains_completeness(e: Evidence) -> Measured:
    """SmoothGrad gains completeness as well."""
    return _gains(e, "completeness", "smoothgrad")[0]


@claim(
    PAPER,
    "section 5.3, figure 8 b",
    LESS_IG.format("larger difference", "completeness") + ", squares and VarGrad",
    below=0.01,
)
def other_ensembles_do_not_gain_completeness(e: Evidence) -> Measured:
    """The squared SmoothGrad and VarGrad gain no completeness."""
    return extreme(_gains(e, "completeness", "smoothgrad_sq", "vargrad"), np.maximum)
