"""Claims of the IDSDS paper on methods: which score well."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from heatproof.claims.evidence import Evidence
from heatproof.claims.registry import Measured, Untestable, claim, required

PAPER = "IDSDS"
IG = ("integrated_gradients", "integrated_gradients_uniform")
CAMS = ("grad_cam", "grad_cam_pp", "xgrad_cam", "layer_cam", "smooth_grad_cam_pp", "score_cam", "ss_cam", "is_cam")
INTRINSIC = ("bagnet", "bcos")
OTHERS = "mean difference of the score, {} less {}"
AGREEMENT = "mean Spearman correlation of the methods' scores"


def in_domain(e: Evidence) -> list[int]:
    """Return the test cases of IDSDS on the grid and baseline of the config's finetuning."""
    return e.find("idsds", metric="idsds")


def transforms(e: Evidence, kinds: tuple[str, ...]) -> list[tuple[int, int]]:
    """Return raw and absolute rows of some explainers."""
    pairs = []
    for kind in kinds:
        with suppress(Untestable):
            pairs.append((e.named(kind), e.named(kind, "abs")))
    return required(pairs, f"the config has none of {', '.join(kinds)}, raw and absolute")


@claim(PAPER, "section 4.2, figure 2 a", OTHERS.format("raw", "absolute"), above=0)
def raw_beats_absolute_ig(e: Evidence) -> Measured:
    """Raw integrated gradients beat absolute ones."""
    return e.difference(in_domain(e), transforms(e, IG))


@claim(PAPER, "section 4.2, figure 2 a", OTHERS.format("raw", "absolute"), above=0)
def raw_beats_absolute_input_x_gradient(e: Evidence) -> Measured:
    """Raw input × gradient beats its absolute value."""
    return e.difference(in_domain(e), transforms(e, ("input_x_gradient",)))


@claim(PAPER, "section 4.2, figure 2 b", OTHERS.format("absolute", "raw") + " (IDS, fixed)", above=0)
def absolute_beats_raw_under_fixed_ids(e: Evidence) -> Measured:
    """Under incremental deletion with a fixed attribution, absolute values beat raw ones."""
    pairs = [(absolute, raw) for raw, absolute in transforms(e, ("input_x_gradient", *IG))]
    return e.difference(e.out_of_domain("ids", options={"update": False}), pairs)


@claim(PAPER, "section 4.2, figure 2 b", OTHERS.format("raw", "absolute") + " (IDS, updated)", above=0)
def raw_beats_absolute_under_updated_ids(e: Evidence) -> Measured:
    """With the attribution updated at every step, raw values beat absolute ones."""
    cases = e.out_of_domain("ids", options={"update": True})
    return e.difference(cases, transforms(e, ("input_x_gradient", *IG)))


@claim(PAPER, "section 4.2, figure 2 a", OTHERS.format("uniform", "zero"), above=0)
def uniform_baseline_beats_zeros_for_ig(e: Evidence) -> Measured:
    """IG with a uniform baseline beats IG with zeros."""
    return e.difference(in_domain(e), [(e.named(IG[1]), e.named(IG[0]))])


@claim(PAPER, "section 4.2, figure 2 a", OTHERS.format("zero", "uniform"), above=0)
def zeros_beat_uniform_baseline_for_rise(e: Evidence) -> Measured:
    """RISE with zeros beats RISE with a uniform baseline."""
    return e.difference(in_domain(e), [(e.named("rise"), e.named("rise_uniform"))])


@claim(PAPER, "section 4.2, figure 2 a", OTHERS.format("with", "without"), below=0)
def smoothgrad_lowers_input_x_gradient(e: Evidence) -> Measured:
    """SmoothGrad lowers input × gradient."""
    smooth = e.named("noise_input_x_gradient", map="input_x_gradient_smoothgrad")
    return e.difference(in_domain(e), [(smooth, e.named("input_x_gradient"))])


@claim(PAPER, "section 4.2, figure 2 a", OTHERS.format("with", "without"), below=0)
def smoothgrad_lowers_ig(e: Evidence) -> Measured:
    """SmoothGrad lowers integrated gradients."""
    smooth = e.named("noise_integrated_gradients", map="integrated_gradients_smoothgrad")
    return e.difference(in_domain(e), [(smooth, e.named(IG[0]))])


@claim(PAPER, "section 4.2, figure 2 a", OTHERS.format("with", "without"), below=0)
def smoothgrad_lowers_grad_cam_pp(e: Evidence) -> Measured:
    """SmoothGrad lowers Grad-CAM++."""
    return e.difference(in_domain(e), [(e.named("smooth_grad_cam_pp"), e.named("grad_cam_pp"))])


@claim(PAPER, "section 4.2, figure 2 a", "mean difference of the score, these two less the other CAMs", above=0)
def grad_cam_and_xgrad_cam_lead_the_cams(e: Evidence) -> Measured:
    """Grad-CAM and XGrad-CAM are the best CAMs."""
    best = [e.named("grad_cam"), e.named("xgrad_cam")]
    others = [index for index in e.any_of(CAMS) if index not in best]
    return e.difference(in_domain(e), [(one, other) for one in best for other in others])


def _intrinsic(e: Evidence, kind: str) -> Measured:
    own = e.named(kind)
    cases = [c for c in in_domain(e) if not np.isnan(e.means[0, c, own])]
    required(cases, f"no model of this config is a {kind} network")
    intrinsic = [index for index in e.explaining() if e.methods[index].kind in INTRINSIC]
    rivals = [index for index in e.explaining() if index not in intrinsic]
    # Against the best method of any other network: on the network itself others may be the same map. A network of
    # one's own, which no architecture describes, is told by the map that it has.
    unknown = np.isnan(e.means[0][:, intrinsic]).all(axis=1)
    elsewhere = [c for c in in_domain(e) if unknown[c] and e.model_of(c).family not in INTRINSIC]
    best = e.best(required(elsewhere, "the config has no other network to compare with"), rivals).max(axis=1)
    return Measured(e.means[:, cases, own].mean(1) - best, f"networks: {len(cases)} against {len(elsewhere)}")


@claim(PAPER, "section 4.2, figure 2 a", "its IDSDS less the best of theirs", above=0)
def bagnet_beats_post_hoc_methods(e: Evidence) -> Measured:
    """BagNet's own map beats every post-hoc method on standard networks."""
    return _intrinsic(e, "bagnet")


@claim(PAPER, "section 4.2, figure 2 a", "its IDSDS less the best of theirs", above=0)
def bcos_beats_post_hoc_methods(e: Evidence) -> Measured:
    """B-cos networks' own map beats every post-hoc method on standard networks."""
    return _intrinsic(e, "bcos")


@claim(PAPER, "section 4.2, figure 2 c", AGREEMENT + ", SDS against IDSDS", above=0.7)
def sds_agrees_with_idsds(e: Evidence) -> Measured:
    """SDS and IDSDS rank methods much alike."""
    single = e.find("sds", metric="sds")
    return e.agreement(e.pairs_sharing(in_domain(e), single, "dataset", "model"))


@claim(PAPER, "section 4.2, figure 2 c", "mean difference of the score, Grad-CAM less raw IG", above=0)
def cams_beat_ig_under_ids(e: Evidence) -> Measured:
    """CAMs beat IG where images are out of domain (IDS)."""
    cases = e.out_of_domain("ids", options={"update": False})
    return e.difference(cases, [(e.named("grad_cam"), e.named(IG[0]))])


@claim(PAPER, "section 4.2, figure 2 c", "mean difference of the score, raw IG less Grad-CAM", above=0)
def ig_beats_cams_in_domain(e: Evidence) -> Measured:
    """IG beats CAMs where train and test domain agree (IDSDS)."""
    return e.difference(in_domain(e), [(e.named(kind), e.named("grad_cam")) for kind in IG])
