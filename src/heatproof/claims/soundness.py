"""Claims of the paper on soundness and completeness."""

from __future__ import annotations

from heatproof.claims.evidence import Evidence
from heatproof.claims.registry import Measured, claim

PAPER = "soundness"
ENSEMBLES = ("integrated_gradients_smoothgrad", "integrated_gradients_smoothgrad_sq", "integrated_gradients_vargrad")
LESS_IG = "mean difference of {}, ensemble less IG"


def _ensembles(e: Evidence, kind: str) -> Measured:
    plain = e.named("integrated_gradients", "abs")
    pairs = []
    for name in ENSEMBLES:
        # Both metrics read absolute values; squares and variances have no sign.
        transform = "abs" if name.endswith("smoothgrad") else "raw"
        pairs.append((e.named("noise_integrated_gradients", transform, map=name), plain))
    return e.difference(e.out_of_domain(kind), pairs)


@claim(PAPER, "section 5.3, figure 8 a", LESS_IG.format("soundness"), above=0)
def ensembles_gain_soundness(e: Evidence) -> Measured:
    """Ensembles of IG (SmoothGrad, its square, VarGrad) gain soundness."""
    return _ensembles(e, "soundness")


@claim(PAPER, "section 5.3, figure 8 b", LESS_IG.format("completeness"), below=0.02)
def ensembles_do_not_gain_completeness(e: Evidence) -> Measured:
    """Ensembles of IG do not gain completeness."""
    return _ensembles(e, "completeness")


@claim(PAPER, "section 5.3, figures 8 and 15", LESS_IG.format("ROAD (MoRF)") + ", higher is better", below=0.02)
def road_shows_no_gain_of_ensembles(e: Evidence) -> Measured:
    """ROAD in MoRF order shows no advantage of the ensembles."""
    return _ensembles(e, "road_morf")


@claim(
    PAPER,
    "section 4, figure 5",
    "mean Spearman correlation of the methods' scores, soundness against completeness",
    below=0.8,
)
def soundness_and_completeness_differ(e: Evidence) -> Measured:
    """Soundness and completeness tell different things: they do not rank methods alike."""
    return e.agreement(e.pairs_of_metrics("soundness", "completeness"))
