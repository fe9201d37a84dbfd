"""Claims of the IDSDS paper on methods: which score well."""

from __future__ import annotations

import numpy as np

from heatproof.claims.evidence import Evidence
from heatproof.claims.registry import Measured, Untestable, claim

PAPER = "IDSDS"
IG = ("integrated_gradients", "integrated_gradients_uniform")
CAMS = ("grad_cam", "grad_cam_pp", "xgrad_cam", "layer_cam", "smooth_grad_cam_pp", "score_cam", "ss_cam", "is_cam")
OTHERS = "mean difference of the score, {} less {}"
AGREEMENT = "mean Spearman correlation of the methods' scores"


def in_domain(e: Evidence) -> list[int]:
    """Return the test cases of IDSDS on the grid and baseline of the config's finetuning."""
    return e.find("idsds", metric="idsds")


def transforms(e: Evidence, kinds: tuple[str, ...]) -> list[tuple[int, int]]:
    """Return raw and absolute rows of some explainers."""
    pairs = []
    for kind in kinds:
        try:
            pairs.append((e.named(kind), e.named(kind, "abs")))
        except Untestable:
            continue
    if not pairs:
        raise Untestable(f"the config has none of {', '.join(kinds)}, raw and absolute")
    return pairs


@claim(PAPER, "section 4.2, figure 2 a", OTHERS.format("raw", "absolute"))
def raw_beats_absolute_ig(e: Evidence) -> Measured:
    """Raw integrated gradients beat absolute ones."""
    draws, basis = e.difference(in_domain(e), transforms(e, IG))
    return Measured(draws, above=0, basis=basis)


@claim(PAPER, "section 4.2, figure 2 a", OTHERS.format("raw", "absolute"))
def raw_beats_absolute_input_x_gradient(e: Evidence) -> Measured:
    """Raw input × gradient beats its absolute value."""
    draws, basis = e.difference(in_domain(e), transforms(e, ("input_x_gradient",)))
    return Measured(draws, above=0, basis=basis)


@claim(
    PAPER,
    "section 4.2, figure 2 b",
    OTHERS.format("absolute", "raw") + " (IDS, fixed)",
)
def absolute_beats_raw_under_fixed_ids(e: Evidence) -> Measured:
    """Under incremental deletion with a fixed attribution, absolute values beat raw ones."""
    pairs = [(absolute, raw) for raw, absolute in transforms(e, ("input_x_gradient", *IG))]
    draws, basis = e.difference(e.out_of_domain("ids", options={"update": False}), pairs)
    return Measured(draws, above=0, basis=basis)


@claim(
    PAPER,
    "section 4.2, figure 2 b",
    OTHERS.format("raw", "absolute") + " (IDS, updated)",
)
def raw_beats_absolute_under_updated_ids(e: Evidence) -> Measured:
    """With the attribution updated at every step, raw values beat absolute ones."""
    cases = e.out_of_domain("ids", options={"update": True})
    draws, basis = e.difference(cases, transforms(e, ("input_x_gradient", *IG)))
    return Measured(draws, above=0, basis=basis)


@claim(
    PAPER,
    "section 4.2, figure 2 a",
    OTHERS.format("uniform", "zero"),
)
def uniform_baseline_beats_zeros_for_ig(e: Evidence) -> Measured:
    """IG with a uniform baseline beats IG with zeros."""
    draws, basis = e.difference(in_domain(e), [(e.named(IG[1]), e.named(IG[0]))])
    return Measured(draws, above=0, basis=basis)


@claim(
    PAPER,
    "section 4.2, figure 2 a",
    OTHERS.format("zero", "uniform"),
)
def zeros_beat_uniform_baseline_for_rise(e: Evidence) -> Measured:
    """RISE with zeros beats RISE with a uniform baseline."""
    draws, basis = e.difference(in_domain(e), [(e.named("rise"), e.named("rise_uniform"))])
    return Measured(draws, above=0, basis=basis)


@claim(PAPER, "section 4.2, figure 2 a", OTHERS.format("with", "without"))
def smoothgrad_lowers_input_x_gradient(e: Evidence) -> Measured:
    """SmoothGrad lowers input × gradient."""
    smooth = e.named("noise_input_x_gradient", map="input_x_gradient_smoothgrad")
    draws, basis = e.difference(in_domain(e), [(smooth, e.named("input_x_gradient"))])
    return Measured(draws, below=0, basis=basis)


@claim(PAPER, "section 4.2, figure 2 a", OTHERS.format("with", "without"))
def smoothgrad_lowers_ig(e: Evidence) -> Measured:
    """SmoothGrad lowers integrated gradients."""
    smooth = e.named("noise_integrated_gradients", map="integrated_gradients_smoothgrad")
    draws, basis = e.difference(in_domain(e), [(smooth, e.named(IG[0]))])
    return Measured(draws, below=0, basis=basis)


@claim(PAPER, "section 4.2, figure 2 a", OTHERS.format("with", "without"))
def smoothgrad_lowers_grad_cam_pp(e: Evidence) -> Measured:
    """SmoothGrad lowers Grad-CAM++."""
    draws, basis = e.difference(in_domain(e), [(e.named("smooth_grad_cam_pp"), e.named("grad_cam_pp"))])
    return Measured(draws, below=0, basis=basis)


@claim(
    PAPER,
    "section 4.2, figure 2 a",
    "mean difference of the score, these two less the other CAMs",
)
def grad_cam_and_xgrad_cam_lead_the_cams(e: Evidence) -> Measured:
    """Grad-CAM and XGrad-CAM are the best CAMs."""
    best = [e.named("grad_cam"), e.named("xgrad_cam")]
    others = [place for place in e.any_of(CAMS) if place not in best]
    draws, basis = e.difference(in_domain(e), [(one, other) for one in best for other in others])
    return Measured(draws, above=0, basis=basis)


def _intrinsic(e: Evidence, kind: str) -> Measured:
    own = e.named(kind)
    made = [c for c in in_domain(e) if not np.isnan(e.means[0, c, own])]
    if not made:
        raise Untestable(f"no model of this config is a {kind} network")
    kinds = {e.methods[place].kind for place in e.explaining()} - {"bagnet", "bcos"}
    rivals = [place for place in e.explaining() if e.methods[place].kind in kinds]
    # Against the best method of any other network: on the network itself others may be the same map.
    elsewhere = [c for c in in_domain(e) if e.models[e.cases[c].model].family not in ("bagnet", "bcos")]
    if not elsewhere:
        raise Untestable("the config has no other network to compare with")
    best = e.best(elsewhere, rivals).max(axis=1)
    return Measured(
        e.means[:, made, own].mean(1) - best, above=0, basis=f"networks: {len(made)} against {len(elsewhere)}"
    )


@claim(
    PAPER,
    "section 4.2, figure 2 a",
    "its IDSDS less the best of theirs",
)
def bagnet_beats_post_hoc_methods(e: Evidence) -> Measured:
    """BagNet's own map beats every post-hoc method on standard networks."""
    return _intrinsic(e, "bagnet")


@claim(
    PAPER,
    "section 4.2, figure 2 a",
    "its IDSDS less the best of theirs",
)
def bcos_beats_post_hoc_methods(e: Evidence) -> Measured:
    """B-cos networks' own map beats every post-hoc method on standard networks."""
    return _intrinsic(e, "bcos")


def _against(e: Evidence, other: list[int]) -> list[tuple[int, int]]:
    return [
        (a, b)
        for a in in_domain(e)
        for b in other
        if (e.cases[a].dataset, e.cases[a].model) == (e.cases[b].dataset, e.cases[b].model)
    ]


@claim(PAPER, "section 4.2, figure 2 c", AGREEMENT + ", SDS against IDSDS")
def sds_agrees_with_idsds(e: Evidence) -> Measured:
    """SDS and IDSDS rank methods much alike."""
    draws, basis = e.agreement(_against(e, e.find("sds", metric="sds")))
    return Measured(draws, above=0.7, basis=basis)


@claim(
    PAPER,
    "section 4.2, figure 2 c",
    "mean difference of the score, Grad-CAM less raw IG",
)
def cams_beat_ig_under_ids(e: Evidence) -> Measured:
    """CAMs beat IG where images are out of domain (IDS)."""
    cases = e.out_of_domain("ids", options={"update": False})
    draws, basis = e.difference(cases, [(e.named("grad_cam"), e.named(kind)) for kind in IG[:1]])
    return Measured(draws, above=0, basis=basis)


@claim(
    PAPER,
    "section 4.2, figure 2 c",
    "mean difference of the score, raw IG less Grad-CAM",
)
def ig_beats_cams_in_domain(e: Evidence) -> Measured:
    """IG beats CAMs where train and test domain agree (IDSDS)."""
    draws, basis = e.difference(in_domain(e), [(e.named(kind), e.named("grad_cam")) for kind in IG])
    return Measured(draws, above=0, basis=basis)
