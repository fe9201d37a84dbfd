import subprocess
import sys

import pytest
import torch
from applicable import INDEPENDENT_OF_OUTPUT, PAIRS, networks_of

from heatproof.errors import HeatproofError, NotApplicable
from heatproof.explainers.registry import EXPLAINERS, NETWORK_KINDS, explainer

FEW = {"steps": 3, "samples": 2, "masks": 20, "stride": 0.25, "grid": 2, "baselines": 2}
# Maps that are still constant after three steps.
FEW_OF = {
    "input_iba": {"steps": 3, "prior_steps": 2, "layer_steps": 3, "samples": 2, "baselines": 8},
    "extremal_perturbation": {"steps": 30, "areas": (0.1,), "spacing": 1 / 16, "learning_rate": 0.1},
}
NEED_RELUS = ["guided_backprop", "deconvolution", "guided_grad_cam"]
# Explainers that are not applicable to heatproof's own networks, with a part of the reason.
GAPS = {("small_vit", name): "calls no ReLU" for name in NEED_RELUS}
GAPS |= {("small_vit", name): "convergence delta" for name in ("deep_lift", "deep_shap")}
GAPS |= {("small_vit", "lrp"): "no rule covers"}
# Tables have these families and rank methods within them.
FAMILIES = {
    "adaptive": ["guided_ig", "agi"],
    "attention": ["raw_attention", "attention_rollout", "attention_grad", "chefer_attention", "transition_attention"],
    "backprop": ["guided_backprop", "deconvolution", "guided_grad_cam"],
    "bottleneck": ["iba", "input_iba"],
    "cam": [
        *["grad_cam", "grad_cam_pp", "xgrad_cam", "layer_cam", "smooth_grad_cam_pp"],
        *["score_cam", "ss_cam", "is_cam", "hires_cam"],
    ],
    "deep": ["deep_lift", "deep_shap"],
    "expected": ["expected_gradients", "gradient_shap"],
    "extremal": ["extremal_perturbation"],
    "gradient": ["saliency", "input_x_gradient"],
    "intrinsic": ["bagnet", "bcos"],
    "noise": ["noise_input_x_gradient", "noise_integrated_gradients"],
    "path": ["integrated_gradients", "integrated_gradients_uniform", "left_integrated_gradients"],
    "perturbation": ["rise", "rise_uniform", "rise_grid"],
    "reference": ["random", "edges", "randoms", "gaussians", "entropies", "edge_detectors", "frequencies"],
    "relevance": ["lrp", "attn_lrp"],
    "superpixels": ["occlusion", "feature_ablation", "lime", "kernel_shap"],
    "transformer_relevance": ["chefer_lrp"],
}


def few_options(entry):
    return FEW_OF.get(entry.name) or {name: FEW[name] for name in entry.options if name in FEW}


def test_the_registry_is_imported_without_torch():
    code = "import sys, heatproof.explainers.registry; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


def test_each_map_name_belongs_to_one_explainer():
    names = [name for entry in EXPLAINERS.values() for name in entry.maps]
    assert len(names) == len(set(names))


def test_explainers_have_their_families():
    listed = {name: family for family, names in FAMILIES.items() for name in names}
    families = {name: entry.family for name, entry in EXPLAINERS.items()}
    assert {name: families[name] for name in listed} == listed, (
        "tables rank by families that others have published with"
    )
    assert all(families.values()), "a new one says its family where it is registered"


def test_explainers_declare_known_kinds_of_networks():
    claimed = {name: entry.applies_to for name, entry in EXPLAINERS.items()}
    assert claimed["grad_cam"] == {"grid"}, "who needs a layer with a grid applies to networks that have one"
    assert claimed["saliency"] == {"any"}
    assert claimed["attention_rollout"] == {"attention"}
    assert set().union(*claimed.values()) <= set(NETWORK_KINDS)
    with pytest.raises(HeatproofError, match="'recurrent', which is not a kind of network: use one of any, "):
        explainer("odd", applies_to={"recurrent"})


@pytest.mark.parametrize(("name", "architecture"), PAIRS)
def test_maps_have_the_announced_names_shape_and_sign(name, architecture, explain_digits):
    entry = EXPLAINERS[name]
    if reason := GAPS.get((architecture, name)):
        with pytest.raises(NotApplicable, match=reason):
            entry.function(explain_digits(architecture), **few_options(entry))
        return
    maps = entry.function(explain_digits(architecture), **few_options(entry))
    assert list(maps) == list(entry.maps)
    for key, values in maps.items():
        assert values.shape == (3, 32, 32)
        assert values.dtype == torch.float32
        assert values.isfinite().all()
        assert values.std() > 0
        # Maps of LRP are negative only for a negative logit.
        assert bool((values < 0).any()) == entry.maps[key] or name == "lrp"


LOGITS_ONLY = ["deep_lift", "deep_shap", "lrp", "attn_lrp", "chefer_lrp", "bagnet", "bcos"]


@pytest.mark.parametrize("name", LOGITS_ONLY)
def test_explainers_of_logits_are_not_applicable_to_probabilities(name, explain_digits):
    with pytest.raises(NotApplicable, match="logit"):
        EXPLAINERS[name].function(explain_digits(networks_of(name)[0], softmax=True))


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, entry in EXPLAINERS.items()
        if entry.uses_model and name not in (*INDEPENDENT_OF_OUTPUT, *LOGITS_ONLY)
    ],
)
def test_attributing_probabilities_changes_the_map(name, explain_digits):
    entry = EXPLAINERS[name]
    network = networks_of(name)[0]
    of_logits = entry.function(explain_digits(network), **few_options(entry))
    of_probabilities = entry.function(explain_digits(network, softmax=True), **few_options(entry))
    for key in entry.maps:
        assert (of_logits[key] - of_probabilities[key]).abs().max() > 0.01 * of_logits[key].abs().max()


@pytest.mark.parametrize("name", EXPLAINERS)
def test_explainers_leave_network_images_and_random_state_unchanged(name, explain_digits):
    entry = EXPLAINERS[name]
    context = explain_digits(networks_of(name)[0])
    images = context.images.clone()
    state = torch.get_rng_state()
    maps = entry.function(context, **few_options(entry))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(context.images, images)
    assert not context.images.requires_grad
    for module in context.network.modules():
        assert not module.training
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert not module._backward_hooks
    assert not any(parameter.requires_grad for parameter in context.network.parameters())
    for values in maps.values():
        assert not values.requires_grad
        assert not values.is_inference()
