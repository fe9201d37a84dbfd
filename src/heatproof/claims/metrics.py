"""Claims of two papers on their own metrics: the consistency of MAS, and soundness and completeness."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from heatproof.claims.evidence import Evidence
from heatproof.claims.halves import AgreementShare
from heatproof.claims.idsds import AGREEMENT
from heatproof.claims.registry import Measurement, Untestable, claim, required
from heatproof.claims.verdicts import extreme_of

MAS_PAPER, SOUNDNESS_PAPER = "MAS", "soundness"
RISE = ("rise_insertion", "rise_deletion", "rise_difference")
MAS = ("mas_insertion", "mas_deletion", "mas_difference")
PIC = ("sic", "aic")
CONSISTENCY = "mean rank agreement between images (IRR)"
ENSEMBLES = ("smoothgrad", "smoothgrad_sq", "vargrad")
LESS_IG = "{} of {}, ensemble minus IG"
# MAS reads magnitudes (`Case.magnitudes`), and RISE and PIC do so in this paper (section 2.2): absolute maps count.


def _consistency_gain(e: Evidence, better: Sequence[str], worse: Sequence[str]) -> Measurement:
    """Return by how much some metrics are more consistent than others on the same network, over the same methods."""
    gains, owners = [], []
    too_few: list[Untestable] = []
    for kind in better:
        with suppress(Untestable):
            for a in e.out_of_domain_cases(kind):
                rivals = [b for b, case in enumerate(e.cases) if case.kind in worse]
                rivals = [
                    b for b in rivals if e.cases[b].network == e.cases[a].network and _have_same_baseline(e, a, b)
                ]
                if not rivals:
                    continue
                try:
                    others = [e.consistency(b, a) for b in rivals]
                    gains.append(e.consistency(a, *rivals) - np.mean(others, axis=0))
                    owners.append((a,))
                except Untestable as error:
                    too_few.append(error)
    # "Too few methods or images" is more informative than "no pair of metrics".
    if too_few and not gains:
        raise too_few[0]
    required(gains, "both kinds of metric must be scored on the same pretrained network")
    return e.pool(gains, owners, "test cases")


def _have_same_baseline(e: Evidence, a: int, b: int) -> bool:
    """Return whether two test cases have the same configured baseline; PIC matches all, as it has no such option."""
    return e.cases[a].options.get("baseline") == e.cases[b].options.get("baseline") or e.cases[b].kind in PIC


@claim(
    MAS_PAPER,
    "section 5.2, table 2",
    CONSISTENCY + ", MAS minus RISE on the same curves, of absolute maps",
    over="networks",
    above=0,
)
def mas_more_consistent_than_rise(e: Evidence) -> Measurement:
    """MAS ranks methods more consistently over images than RISE."""
    parts = []
    too_few: list[Untestable] = []
    scored = {case.kind for case in e.cases}
    for mas, rise in zip(MAS, RISE, strict=True):
        if {mas, rise} <= scored:
            try:
                parts.append(_consistency_gain(e, [mas], [rise]))
            except Untestable as error:
                too_few.append(error)
    required([*parts, *too_few], "MAS and RISE must be scored on the same pretrained network")
    if not parts:
        raise too_few[0]
    draws = np.mean([part.draws for part in parts], axis=0)
    return Measurement(draws, f"kinds of curve: {len(parts)}, {parts[0].basis}", min(part.networks for part in parts))


@claim(
    MAS_PAPER,
    "section 5.2, table 2",
    CONSISTENCY + ", MAS minus SIC and AIC, of absolute maps",
    over="networks",
    above=0,
)
def mas_more_consistent_than_pic(e: Evidence) -> Measurement:
    """MAS ranks methods more consistently over images than PIC."""
    return _consistency_gain(e, MAS, PIC)


def _agreement_between_baselines(e: Evidence, kinds: Sequence[str], compared_with: Sequence[str]) -> AgreementShare:
    pairs = []
    for kind in kinds:
        with suppress(Untestable):
            pairs += [
                (a, b)
                for a, b in e.pairs_differing(e.find_cases(kind), "metric")
                if e.cases[a].options.get("baseline") != e.cases[b].options.get("baseline")
            ]
    if e.published_values:
        # The paper prints only agreements with the default baseline.
        pairs = [pair for pair in pairs if pair in e.published_values]
    return e.share(
        required(
            pairs,
            "no metric is scored with two baselines: name one twice, such as mas_random: {metric: mas_insertion, "
            "baseline: random}",
        ),
        compared_with=[index for index, case in enumerate(e.cases) if case.kind in compared_with],
    )


@claim(
    MAS_PAPER,
    "section 5.3, table 3",
    AGREEMENT + ", between baselines (ICR), MAS minus RISE, of absolute maps",
    over="networks",
    above=0,
)
def mas_depends_less_on_the_baseline(e: Evidence) -> Measurement:
    """MAS depends less on the baseline than RISE."""
    return (
        _agreement_between_baselines(e, MAS, RISE)
        .minus(_agreement_between_baselines(e, RISE, MAS))
        .measured(over_networks=e.draws_networks)
    )


def _gains_over_ig(e: Evidence, kind: str, *ensembles: str) -> list[Measurement]:
    """Return the difference of each ensemble of IG from IG itself."""
    plain, cases = e.find_method("integrated_gradients", "abs"), e.out_of_domain_cases(kind)
    differences = []
    for name in ensembles:
        # Both metrics read absolute values; squared maps and variances are not negative.
        transform = "abs" if name == "smoothgrad" else "raw"
        ensemble = e.find_method("noise_integrated_gradients", transform, map=f"integrated_gradients_{name}")
        differences.append(e.difference(cases, [(ensemble, plain)]))
    return differences


@claim(SOUNDNESS_PAPER, "section 5.3, figure 8 a", LESS_IG.format("smallest difference", "soundness"), above=0)
def ensembles_gain_soundness(e: Evidence) -> Measurement:
    """All three ensembles of IG (SmoothGrad, its square, VarGrad) gain soundness."""
    return extreme_of(_gains_over_ig(e, "soundness", *ENSEMBLES), np.minimum)


@claim(
    SOUNDNESS_PAPER, "section 5.3, figure 8 b", LESS_IG.format("difference", "completeness") + ", SmoothGrad", above=0
)
def smoothgrad_gains_completeness(e: Evidence) -> Measurement:
    """SmoothGrad also gains completeness."""
    return _gains_over_ig(e, "completeness", "smoothgrad")[0]


@claim(
    SOUNDNESS_PAPER,
    "section 5.3, figure 8 b",
    LESS_IG.format("larger difference", "completeness") + ", squares and VarGrad",
    below=0.01,
)
def other_ensembles_do_not_gain_completeness(e: Evidence) -> Measurement:
    """The squared SmoothGrad and VarGrad gain no completeness."""
    return extreme_of(_gains_over_ig(e, "completeness", "smoothgrad_sq", "vargrad"), np.maximum)
