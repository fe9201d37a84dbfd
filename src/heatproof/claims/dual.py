"""Claims of the paper on soundness and completeness."""

from __future__ import annotations

from heatproof.claims.evidence import Evidence
from heatproof.claims.registry import Measured, claim

PAPER = "soundness"
ENSEMBLES = ("integrated_gradients_smoothgrad", "integrated_gradients_smoothgrad_sq", "integrated_gradients_vargrad")


def _ensembles(e: Evidence, kind: str) -> Measured:
    plain = e.named("integrated_gradients", "abs")
    pairs = []
    for name in ENSEMBLES:
        # Both metrics read absolute values; squares and variances have no sign.
        transform = "abs" if name.endswith("smoothgrad") else "raw"
        pairs.append((e.named("noise_integrated_gradients", transform, map=name), plain))
    draws, basis = e.difference(e.out_of_domain(kind), pairs)
    return Measured(draws, above=0, basis=basis)


@claim(
    PAPER,
    "section 5.3, figure 8 a",
    "mean difference of soundness, ensemble less IG",
)
def ensembles_gain_soundness(e: Evidence) -> Measured:
    """Ensembles of IG (SmoothGrad, its square, VarGrad) gain soundness."""
    return _ensembles(e, "soundness")


@claim(
    PAPER,
    "section 5.3, figure 8 b",
    "mean difference of completeness, ensemble less IG",
)
def ensembles_do_not_gain_completeness(e: Evidence) -> Measured:
    """Ensembles of IG do not gain completeness."""
    gained = _ensembles(e, "completeness")
    return Measured(gained.draws, below=0.02, basis=gained.basis)


@claim(
    PAPER,
    "section 5.3, figures 8 and 15",
    "mean difference of ROAD (MoRF), ensemble less IG, higher is better",
)
def road_shows_no_gain_of_ensembles(e: Evidence) -> Measured:
    """ROAD in MoRF order shows no advantage of the ensembles."""
    gained = _ensembles(e, "road_morf")
    return Measured(gained.draws, below=0.02, basis=gained.basis)


@claim(
    PAPER,
    "section 4, figure 5",
    "mean Spearman correlation of the methods' scores, soundness against completeness",
)
def soundness_and_completeness_differ(e: Evidence) -> Measured:
    """Soundness and completeness tell different things: they do not rank methods alike."""
    pairs = [
        (a, b)
        for a in e.out_of_domain("soundness")
        for b in e.out_of_domain("completeness")
        if e.cases[a].network == e.cases[b].network
    ]
    draws, basis = e.agreement(pairs)
    return Measured(draws, below=0.8, basis=basis)
