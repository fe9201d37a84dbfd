"""Three planted cases of every claim: one function per claim, called with 1, -1 and 0.

It returns evidence in which the claim's quantity lies on the claim's side of the limit (1), on the other side (-1), or
at the limit (0).
"""

from collections.abc import Callable

import numpy as np
import pandas as pd
from planting import METHODS, NETWORKS, plant, trainings

from heatproof.claims.evidence import Evidence, Model
from heatproof.claims.idsds_design import LARGEST_LOSS

PLANTED: dict[str, Callable[[int], Evidence]] = {}
IG, IGU = "integrated_gradients", "integrated_gradients_uniform"
IXG_SG = "noise_input_x_gradient/input_x_gradient_smoothgrad"
IG_SG, IG_SQ, IG_VAR = (f"noise_{IG}/{IG}_{name}" for name in ("smoothgrad", "smoothgrad_sq", "vargrad"))
EDGES = ("edges", "edge_detectors/image_gradient")
DELETION, ROAD = ("deletion_morf", "deletion_lerf"), ("road_morf", "road_lerf")
PRETRAINED = {"weights": ("pretrained",)}


MANY = {f"net_{i}": Model(f"net_{i}", "resnet", 20, 1.0, True, True, f"net_{i}") for i in range(8)}


def planted(*names):
    def enter(function):
        PLANTED.update({name: lambda sign, name=name: function(name, sign) for name in names})
        return function

    return enter


def among(first, second, sign, by=0.1, **more):
    """Return evidence in which some methods score higher than others by `sign` times `by`."""
    higher = set(first)
    return plant(lambda case, m: 0.3 + by * sign * (m.name in higher), methods=[*first, *second], **more)


ABS = [f"{name}_abs" for name in ("input_x_gradient", IG, IGU)]
RAW = ["input_x_gradient", IG, IGU]
LEADS = {
    "ig_leads_in_domain": ([IG, IGU], ["grad_cam", "rise"]),
    "absolute_values_hurt_ig": ([IG, IGU], [f"{IG}_abs", f"{IGU}_abs"]),
    "uniform_baseline_beats_zeros_for_ig": ([IGU], [IG]),
    "zeros_beat_uniform_baseline_for_rise": (["rise"], ["rise_uniform"]),
    "smoothgrad_lowers_all": (["input_x_gradient", IG, "grad_cam_pp"], [IXG_SG, IG_SG, "smooth_grad_cam_pp"]),
    "grad_cam_and_xgrad_cam_lead_the_cams": (["grad_cam", "xgrad_cam"], ["layer_cam"]),
}


@planted(*LEADS)
def _(name, sign):
    # The best of two equal methods lies above each, so that "no difference" needs one of each kind.
    first, second = LEADS[name]
    if sign == 0 and name == "ig_leads_in_domain":
        first, second = [IG], ["grad_cam"]
    return among(first, second, sign)


@planted("absolute_beats_raw_under_fixed_ids", "raw_beats_absolute_under_updated_ids")
def _(name, sign):
    updated = "updated" in name
    first, second = (RAW, ABS) if updated else (ABS, RAW)
    if sign == 0:
        first, second = first[1:2], second[1:2]
    return among(first, second, sign, metrics={"ids": {"options": {"update": updated}}}, **PRETRAINED)


@planted("cams_lead_under_ids", "cams_lead_under_sds")
def _(name, sign):
    kind = name.rpartition("_")[2]
    fields = {"options": {"update": False}} if kind == "ids" else {}
    return among(["grad_cam"], [IG], sign, metrics={kind: fields}, **PRETRAINED)


def ordered(turned, noise=0.02, **more):
    """Return evidence in which methods have one order, and the reverse order if `turned` returns True."""
    rank_of = {name: i for i, name in enumerate(METHODS)}
    return plant(lambda case, m: 0.1 * rank_of[m.name] * (-1 if turned(case) else 1), noise=noise, **more)


def between_models(sign, **more):
    """Return evidence in which networks rank methods alike, each in a different order, or half of them alike."""
    rank_of = {name: i for i, name in enumerate(METHODS)}
    orders = np.random.default_rng(0).permuted(np.tile(np.arange(len(METHODS)), (8, 1)), axis=1)
    alike = {1: 8, -1: 0, 0: 7}[sign]

    def level(case, m):
        network = int(case.model[-1])
        return 0.1 * (rank_of[m.name] if network < alike else orders[network, rank_of[m.name]])

    return plant(level, noise=0.02, models=MANY, **more)


def differing(sign, second, **more):
    """Return evidence in which a second condition reverses the order (1), keeps it (-1), or keeps it in much noise."""
    return ordered(lambda case: sign == 1 and second(case), noise=0.02 if sign else NOISY, **more)


# Rankings by 30 images correlate at about 0.7 with themselves on other images.
NOISY = 0.5


@planted("ranks_agree_between_models")
def _(name, sign):
    return between_models(sign)


@planted("ranks_differ_between_models", "road_ranks_differ_between_models")
def _(name, sign):
    metrics = ROAD if "road" in name else DELETION
    if sign == 0:
        return differing(0, None, metrics=metrics, **PRETRAINED)
    return between_models(-sign, metrics=metrics, **PRETRAINED)


@planted("morf_and_lerf_disagree", "road_orders_disagree")
def _(name, sign):
    kinds = ROAD if "road" in name else DELETION
    return differing(sign, lambda case: case.kind == kinds[1], metrics=kinds, **PRETRAINED)


@planted("ranks_differ_between_datasets")
def _(name, sign):
    return differing(
        sign, lambda case: case.dataset == "other", datasets=("toy", "other"), metrics=DELETION, **PRETRAINED
    )


BY_CATEGORY = {
    "gradient": ["saliency", "saliency_abs", "input_x_gradient", "input_x_gradient_abs"],
    "IG": [IG, f"{IG}_abs", IGU],
    "CAM": ["grad_cam", "layer_cam", "xgrad_cam"],
}


@planted("idsds_ranks_differ_between_datasets", "idsds_ranks_agree_within_categories")
def _(name, sign):
    """Return evidence in which the other dataset reverses the order of the categories, or that within each of them."""
    within = "within" in name
    category = {method: i for i, methods in enumerate(BY_CATEGORY.values()) for method in methods}
    rank_of = {method: i for methods in BY_CATEGORY.values() for i, method in enumerate(methods)}
    reverses = {1: "categories", -1: "methods", 0: "methods" if within else ""}[sign]

    def level(case, m):
        # For the case at the limit, only half of the networks.
        reversed_here = reverses if case.dataset == "other" and (sign or case.model > "net_b") else ""
        first = category[m.name] * (-1 if reversed_here == "categories" else 1)
        return first + 0.1 * rank_of[m.name] * (-1 if reversed_here == "methods" else 1)

    return plant(level, methods=list(rank_of), datasets=("toy", "other"), noise=0.02 if sign or within else 5 * NOISY)


@planted("ranks_agree_between_checkpoints")
def _(name, sign):
    def turned(case):
        last = case.weights == "pretrained_epoch2"
        return last and {1: False, -1: True, 0: case.model == "net_d"}[sign]

    saved_epochs = {kind: {"saved_epoch_of": "pretrained"} for kind in DELETION}
    return ordered(turned, metrics=saved_epochs, weights=("pretrained_epoch1", "pretrained_epoch2"))


@planted("sds_agrees_with_idsds")
def _(name, sign):
    def scored(case):
        return case.weights == ("pretrained" if case.kind == "sds" else "finetuned")

    return blurred(
        sign,
        lambda case: case.kind == "sds",
        0.7,
        metrics=("idsds", "sds"),
        weights=("pretrained", "finetuned"),
        scored=scored,
    )


@planted("ranks_agree_between_grids", "ranks_agree_between_baselines", "probabilities_rank_like_logits")
def _(name, sign):
    field, value = {"grids": ("grid", 8), "baselines": ("baseline", "blur")}.get(
        name.rpartition("_")[2], ("output", "probability")
    )
    metrics = {"idsds": {}, "other": {"kind": "idsds", field: value}}
    return blurred(sign, lambda case: case.metric == "other", 0.9, metrics=metrics)


@planted("ranks_agree_between_seeds")
def _(name, sign):
    return blurred(sign, lambda case: case.weights == "again", 0.95, weights=("finetuned", "again"))


def blurred(sign, second, limit, *, scored=lambda case: True, **more):
    """Return evidence with orders that agree, are reversed, or correlate at about the limit with some noise."""
    rank_of = {name: i for i, name in enumerate(METHODS)}
    near = dict(zip(METHODS, NEAR[limit], strict=True))

    def level(case, m):
        if not scored(case):
            return None
        if not second(case) or sign == 1:
            return 0.1 * rank_of[m.name]
        return -0.1 * rank_of[m.name] if sign == -1 else 0.1 * near[m.name]

    return plant(level, noise=0.02 if sign else NOISY / 2, **more)


# Orders whose ρ with the order 0 to 5 is 0.71, 0.89 and 0.94.
NEAR = {0.7: (2, 0, 1, 4, 5, 3), 0.9: (1, 0, 2, 3, 5, 4), 0.95: (1, 0, 2, 3, 4, 5)}


@planted("input_x_gradient_leads", "deconvolution_trails")
def _(name, sign):
    paper_methods = ["saliency", "input_x_gradient", IG, "deconvolution"]
    claimed_method = "input_x_gradient" if "leads" in name else "deconvolution"
    way = 1 if "leads" in name else -1

    def level(case, m):
        other = 0.05 * paper_methods.index(m.name)
        if sign == 0:
            # First on two networks, but not on the others.
            return 0.5 + (way * (0.3 if case.model < "net_c" else -0.02) if m.name == claimed_method else 0)
        return 0.5 + way * sign * 0.3 if m.name == claimed_method else 0.5 - 0.01 * other

    return plant(level, methods=paper_methods, metrics=DELETION, noise=0.01, **PRETRAINED)


@planted("ensembles_gain_soundness", "smoothgrad_gains_completeness", "other_ensembles_do_not_gain_completeness")
def _(name, sign):
    kind = "soundness" if "soundness" in name else "completeness"
    ensembles = [f"{IG_SG}_abs", IG_SQ, IG_VAR]
    if sign == 0 and kind == "soundness":
        # The least of three equal methods lies below each.
        return plant(
            lambda case, m: 0.3 + 0.1 * (m.name in ensembles[:2]),
            methods=[f"{IG}_abs", *ensembles],
            metrics=(kind,),
            **PRETRAINED,
        )
    if name.startswith("other"):
        gain = {1: -0.1, -1: 0.1, 0: 0.01}[sign]
        quiet = ensembles[:2] if sign == 0 else ensembles[:1]
        return plant(
            lambda case, m: 0.3 + gain * (m.name in ensembles and m.name not in quiet),
            methods=[f"{IG}_abs", *ensembles],
            metrics=(kind,),
            **PRETRAINED,
        )
    return among(ensembles, [f"{IG}_abs"], sign, metrics=(kind,), **PRETRAINED)


# ---- MAS -------------------------------------------------------------------------------------------------------------


@planted("mas_more_consistent_than_rise", "mas_more_consistent_than_pic")
def _(name, sign):
    rank_of = {method: i for i, method in enumerate(METHODS)}
    rival = "rise_insertion" if "rise" in name else "sic"
    spread = {"mas_insertion": 0.1 + 0.09 * sign, rival: 0.1 - 0.09 * sign}
    return plant(
        lambda case, m: spread[case.kind] * rank_of[m.name], metrics=("mas_insertion", rival), noise=0.2, **PRETRAINED
    )


@planted("mas_depends_less_on_the_baseline")
def _(name, sign):
    metrics = {
        f"{kind}_{baseline}": {"kind": kind, "options": {"baseline": baseline}}
        for kind in ("mas_deletion", "rise_deletion")
        for baseline in ("zeros", "random")
    }
    sensitive = {1: "rise_deletion", -1: "mas_deletion", 0: ""}[sign]

    def turned(case):
        if case.options["baseline"] == "zeros":
            return 0
        if sign == 0:
            return 1 if (case.model < "net_c") == (case.kind == "mas_deletion") else 0
        return 1 if case.kind == sensitive else 0

    return ordered(turned, metrics=metrics, **PRETRAINED)


# ---- design: five trainings per side ---------------------------------------------------------------------------------

RESNET = Model("resnet", "resnet", 20, 1.0, True, True)
PLAIN = Model("plain", "resnet", 20, 1.0, False, True)
VGG = Model("vgg", "vgg", 11, 1.0, True, True)
SIDES = {
    "vgg_above_resnet": (VGG, RESNET),
    "resnet_above_vit": (RESNET, Model("vit", "vit", None, 1.0, False, True)),
    "depth_lowers": (RESNET, Model("deep", "resnet", 56, 1.0, True, True)),
    "width_lowers": (RESNET, Model("wide", "resnet", 20, 2.0, True, True)),
    "batch_norm_lowers": (PLAIN, RESNET),
    "bias_lowers": (Model("nobias", "resnet", 20, 1.0, False, False), PLAIN),
    "cams_collapse_on_vgg": (RESNET, VGG),
}


def by_seed(case):
    """Return the effect of the training seed, which is the larger part of the differences between networks."""
    return 0.02 * (int(case.model[-1]) - 2)


@planted(*SIDES)
def _(name, sign):
    higher, lower = SIDES[name]

    def level(case, m):
        return 0.4 + by_seed(case) + 0.1 * sign * case.model.startswith(f"{higher.name}_")

    return plant(level, models=trainings([higher, lower]), images=8, repetitions=50)


@planted("logits_beat_probabilities")
def _(name, sign):
    metrics = {output: {"kind": "idsds", "explains": output} for output in ("logit", "probability")}

    def level(case, m):
        more = sign * 0.1 if sign else 0.05 * (int(case.model[-1]) - 2)
        return 0.4 + by_seed(case) + more * (case.explains == "logit")

    return plant(level, models=trainings([RESNET]), metrics=metrics, images=8, repetitions=50)


@planted("bagnet_beats_post_hoc_methods", "bcos_beats_post_hoc_methods")
def _(name, sign):
    claimed_method = name.partition("_")[0]

    def level(case, m):
        if case.model.startswith("ours"):
            return 0.4 + by_seed(case) + 0.2 * sign if m.name == claimed_method else None
        return None if m.name == claimed_method else 0.4 + by_seed(case)

    ours = Model("ours", claimed_method, None, 1.0, True, True)
    return plant(
        level, models=trainings([ours, RESNET]), methods=(claimed_method, "saliency"), images=8, repetitions=50
    )


# ---- networks --------------------------------------------------------------------------------------------------------


def accuracies(before, after):
    rows = []
    for weights, of in (("pretrained", before), ("finetuned", after)):
        for name in MANY:
            values = {"top1_clean": of(int(name[-1])), "top1_worst_patch": of(int(name[-1]))}
            where = {"dataset": "toy", "model": name, "weights": weights, "grid": 4, "baseline": "zeros"}
            rows.append({**where, "in_domain": weights == "finetuned", **values})
    return pd.DataFrame(rows)


@planted("accuracy_trades_off")
def _(name, sign):
    best = {1: lambda i: -0.1 * i, -1: lambda i: 0.1 * i, 0: lambda i: (0.1, -0.1, 0, 0.2, -0.2, 0.05, 0, -0.05)[i]}[
        sign
    ]
    accuracy = accuracies(lambda i: 0.5, lambda i: 0.5 + 0.05 * i)
    return plant(lambda case, m: best(int(case.model[-1])), models=MANY, accuracy=accuracy, noise=0.01)


@planted("finetuning_keeps_accuracy", "finetuning_raises_worst_patch_accuracy")
def _(name, sign):
    limit = LARGEST_LOSS / 100 if "keeps" in name else 0
    gain = limit + 0.03 * sign
    accuracy = accuracies(lambda i: 0.5, lambda i: 0.5 + gain + 0.01 * (-1) ** i)
    return plant(lambda case, m: 0.3, models=MANY, accuracy=accuracy, methods=("saliency",))


VGGS = {name: Model(name, "vgg", 11, 1.0, True, True, name) for name in NETWORKS}


@planted("edges_beat_smoothed_ig_on_vgg")
def _(name, sign):
    if sign:
        return among(EDGES, [IG_SG], sign, models=VGGS)
    # The lesser of two equal methods lies below each.
    return plant(lambda case, m: 0.4 if m.name == EDGES[0] else 0.3, methods=[*EDGES, IG_SG], models=VGGS)


@planted("smoothed_ig_scores_around_zero")
def _(name, sign):
    return plant(lambda case, m: 0.1 - 0.08 * sign, methods=[IG_SG])


@planted("probability_drops_raise_resnets", "probability_drops_lower_vggs")
def _(name, sign):
    metrics = {"idsds": {}, "other": {"kind": "idsds", "output": "probability"}}
    way = 0.1 * sign * (1 if "raise" in name else -1)
    models = VGGS if "vggs" in name else NETWORKS
    return plant(lambda case, m: 0.3 + way * (case.metric == "other"), metrics=metrics, models=models)
