"""Claims of the IDSDS paper on methods: which score well, and under which protocol."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from heatproof.claims.evidence import Evidence
from heatproof.claims.registry import Measurement, Untestable, claim, required
from heatproof.claims.verdicts import extreme_of

PAPER = "IDSDS"
IG = ("integrated_gradients", "integrated_gradients_uniform")
CAMS = ("grad_cam", "grad_cam_pp", "xgrad_cam", "layer_cam", "smooth_grad_cam_pp", "score_cam", "ss_cam", "is_cam")
INTRINSIC = ("bagnet", "bcos")
MEAN_DIFFERENCE = "mean difference of the score, {} minus {}"
# All claims that rankings agree or differ use this quantity, see `heatproof.claims.halves`.
AGREEMENT = "rank correlation as a share of its ceiling"


def raw_absolute_pairs(e: Evidence, kinds: tuple[str, ...]) -> list[tuple[int, int]]:
    """Return pairs of raw and absolute methods of some explainers, named by the explainer or by its map."""
    pairs = []
    for kind in kinds:
        rows = {m.transform: i for i, m in enumerate(e.methods) if kind in (m.kind, m.map)}
        if {"raw", "abs"} <= rows.keys():
            pairs.append((rows["raw"], rows["abs"]))
    return required(pairs, f"the config has no method of {', '.join(kinds)} both raw and absolute")


def smoothgrad_pairs(e: Evidence) -> list[tuple[int, int]]:
    """Return pairs of a method with SmoothGrad and the same without, as far as the config has those of the paper."""
    pairs = []
    for plain in ("input_x_gradient", IG[0]):
        with suppress(Untestable):
            pairs.append((e.find_method(f"noise_{plain}", map=f"{plain}_smoothgrad"), e.find_method(plain)))
    with suppress(Untestable):
        pairs.append((e.find_method("smooth_grad_cam_pp"), e.find_method("grad_cam_pp")))
    return required(pairs, "the config has no method both with and without SmoothGrad")


def lead_over(e: Evidence, cases: list[int], first: list[int], others: list[int]) -> Measurement:
    """Return by how much the best of some methods exceeds the best of others, over test cases with scores of both."""
    lead = e.mean_over_cases(cases, lambda case: e.best_score(case, first) - e.best_score(case, others))
    return lead._replace(choices=max(len(first), len(others)))


def post_hoc_methods(e: Evidence) -> list[int]:
    """Return the indices of the methods that explain a model without being part of it."""
    return [index for index in e.methods_using_model() if e.methods[index].kind not in INTRINSIC]


def _without(chosen: list[int], left_out: list[int], what: str) -> list[int]:
    return required([index for index in chosen if index not in left_out], what)


@claim(PAPER, "section 4.2, figure 2 a and c; section 5", "better of IG and IG-U minus the best other method", above=0)
def ig_leads_in_domain(e: Evidence) -> Measurement:
    """In domain, integrated gradients score higher than CAMs and methods that perturb the image."""
    integrated = e.find_methods(IG)
    others = _without(post_hoc_methods(e), integrated, "the config has no method beside IG")
    return lead_over(e, e.in_domain_cases(), integrated, others)


@claim(PAPER, "section 4.2, figure 2 a, table 4", MEAN_DIFFERENCE.format("raw", "absolute") + ", IG and IG-U", above=0)
def absolute_values_hurt_ig(e: Evidence) -> Measurement:
    """Absolute values lower the scores of the better gradient methods, IG with either baseline."""
    return e.difference(e.in_domain_cases(), raw_absolute_pairs(e, IG))


@claim(PAPER, "section 4.2, figure 2 a, table 4", MEAN_DIFFERENCE.format("uniform", "zero"), above=0)
def uniform_baseline_beats_zeros_for_ig(e: Evidence) -> Measurement:
    """IG with a uniform baseline beats IG with zeros, although deleted patches are replaced with zeros."""
    return e.difference(e.in_domain_cases(), [(e.find_method(IG[1]), e.find_method(IG[0]))])


@claim(PAPER, "section 4.2, figure 2 a, table 4", MEAN_DIFFERENCE.format("zero", "uniform"), above=0)
def zeros_beat_uniform_baseline_for_rise(e: Evidence) -> Measurement:
    """RISE with zeros beats RISE with a uniform baseline."""
    return e.difference(e.in_domain_cases(), [(e.find_method("rise"), e.find_method("rise_uniform"))])


@claim(PAPER, "section 4.2, figure 2 a, table 4", "largest change by SmoothGrad (I×G, IG, Grad-CAM++)", below=0)
def smoothgrad_lowers_all(e: Evidence) -> Measurement:
    """SmoothGrad lowers the score of every method to which it is applied."""
    changes = [e.difference(e.in_domain_cases(), [pair]) for pair in smoothgrad_pairs(e)]
    return extreme_of(changes, np.maximum)


@claim(PAPER, "section 4.2, figure 2 a, table 4", "worse of the two minus the best of the other CAMs", above=0)
def grad_cam_and_xgrad_cam_lead_the_cams(e: Evidence) -> Measurement:
    """Grad-CAM and XGrad-CAM are the two best CAMs."""
    two = [e.find_method("grad_cam"), e.find_method("xgrad_cam")]
    others = _without(e.find_methods(CAMS), two, "the config has no other CAM")
    lead = e.mean_over_cases(
        e.in_domain_cases(), lambda case: e.means[:, case, two].min(axis=1) - e.best_score(case, others)
    )
    return lead._replace(choices=max(len(two), len(others)))


@claim(PAPER, "section 4.2, figure 2 b and c, table 5", "smallest difference, absolute minus raw (IDS, fixed)", above=0)
def absolute_beats_raw_under_fixed_ids(e: Evidence) -> Measurement:
    """Under incremental deletion with a fixed attribution, absolute values score higher for every method."""
    noisy = ("input_x_gradient_smoothgrad", "integrated_gradients_smoothgrad")
    pairs = raw_absolute_pairs(e, ("input_x_gradient", *IG, *noisy))
    cases = e.out_of_domain_cases("ids", options={"update": False})
    gains = [e.difference(cases, [(absolute, raw)]) for raw, absolute in pairs]
    return extreme_of(gains, np.minimum)


@claim(PAPER, "section 4.2, figure 2 b", MEAN_DIFFERENCE.format("raw", "absolute") + " (IDS, updated)", above=0)
def raw_beats_absolute_under_updated_ids(e: Evidence) -> Measurement:
    """If the attribution is updated at every step of the deletion, raw values beat absolute ones."""
    cases = e.out_of_domain_cases("ids", options={"update": True})
    return e.difference(cases, raw_absolute_pairs(e, ("input_x_gradient", *IG)))


@claim(PAPER, "section 4.2, figure 2 c, table 5", "best CAM minus the best other method (IDS)", above=0)
def cams_lead_under_ids(e: Evidence) -> Measurement:
    """CAMs outperform all other methods out of domain, under incremental deletion."""
    return _cams_lead(e, e.out_of_domain_cases("ids", options={"update": False}))


@claim(PAPER, "section 4.2, figure 2 c, table 6", "best CAM minus the best other method (SDS)", above=0)
def cams_lead_under_sds(e: Evidence) -> Measurement:
    """CAMs outperform all other methods out of domain, under single deletion."""
    cases = e.cases_varying("sds", weights="pretrained")
    return _cams_lead(e, cases)


def _cams_lead(e: Evidence, cases: list[int]) -> Measurement:
    cams = e.find_methods(CAMS)
    return lead_over(e, cases, cams, _without(post_hoc_methods(e), cams, "the config has no method beside CAMs"))


@claim(PAPER, "section 4.2, figure 2 c, tables 4 and 6", AGREEMENT + ", SDS against IDSDS", above=0.7)
def sds_agrees_with_idsds(e: Evidence) -> Measurement:
    """Single deletion ranks methods similarly before and after finetuning."""
    before = e.cases_varying("sds", weights="pretrained")
    return e.agreement(e.pairs_sharing(e.in_domain_cases(), before, "dataset", "model"))
