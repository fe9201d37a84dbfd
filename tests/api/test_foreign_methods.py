"""Objects of other libraries as methods: the maps are those that the library gives when it is called by hand."""

import captum.attr
import numpy as np
import pytest
import torch
import torchcam.methods
from torch.nn.functional import interpolate, one_hot

import heatproof
from heatproof.testing._side_effects import difference, network_state

# The layer that class activation maps read, whose maps are as large as the images.
LAYER = "2"


def captum_map(method, network, images, targets):
    return method.attribute(images.requires_grad_(), target=targets)


def torchcam_map(method, network, images, targets):
    maps = method(targets.tolist(), network(images.requires_grad_()), normalized=False)
    return maps[0]


def grad_cam_map(method, network, images, targets):
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    return torch.from_numpy(method(images, [ClassifierOutputTarget(target) for target in targets.tolist()]))


def map_of_function(function, network, images, targets):
    return function(network, images, targets)


def zennit_map(method, network, images, targets):
    from zennit.attribution import Gradient

    with Gradient(network, method) as attributor:
        return attributor(images.requires_grad_(), lambda output: one_hot(targets, output.shape[1]).to(output))[1]


def occlusion(network):
    """Return a function, because captum's object needs the size of its window in each call."""
    return lambda model, images, targets: captum.attr.Occlusion(model).attribute(images, (3, 4, 4), target=targets)


def torchcam_object(name, **options):
    return lambda network: getattr(torchcam.methods, name)(network, LAYER, input_shape=(3, 16, 16), **options)


def grad_cam_object(name):
    def make(network):
        library = pytest.importorskip("pytorch_grad_cam")
        return getattr(library, name)(network, [network.get_submodule(LAYER)])

    return make


def composite(name, **options):
    return lambda network: getattr(pytest.importorskip("zennit.composites"), name)(**options)


CAPTUM = {
    "Saliency": captum.attr.Saliency,
    "InputXGradient": captum.attr.InputXGradient,
    "IntegratedGradients": captum.attr.IntegratedGradients,
    "DeepLift": captum.attr.DeepLift,
    "GuidedBackprop": captum.attr.GuidedBackprop,
    "Deconvolution": captum.attr.Deconvolution,
    "LayerGradCam": lambda network: captum.attr.LayerGradCam(network, network.get_submodule(LAYER)),
    "GuidedGradCam": lambda network: captum.attr.GuidedGradCam(network, network.get_submodule(LAYER)),
    "FeatureAblation": captum.attr.FeatureAblation,
}
# With next to no noise, because heatproof seeds the random numbers of a method.
TORCHCAM = {
    **{name: torchcam_object(name) for name in ("GradCAM", "GradCAMpp", "XGradCAM", "LayerCAM", "ScoreCAM")},
    "SmoothGradCAMpp": torchcam_object("SmoothGradCAMpp", std=1e-7),
}
GRAD_CAM = (
    *("GradCAM", "HiResCAM", "GradCAMPlusPlus", "XGradCAM", "LayerCAM", "GradCAMElementWise", "FinerCAM", "ShapleyCAM"),
    *("EigenCAM", "EigenGradCAM", "KPCA_CAM", "ScoreCAM", "AblationCAM", "FullGrad"),
)
ZENNIT = {
    "EpsilonPlus": composite("EpsilonPlus"),
    "EpsilonPlusFlat": composite("EpsilonPlusFlat"),
    "EpsilonAlpha2Beta1": composite("EpsilonAlpha2Beta1"),
    "EpsilonGammaBox": composite("EpsilonGammaBox", low=-5.0, high=5.0),
    "GuidedBackprop": composite("GuidedBackprop"),
}
METHODS = {
    **{f"captum {name}": (make, captum_map) for name, make in CAPTUM.items()},
    "captum Occlusion": (occlusion, map_of_function),
    **{f"torchcam {name}": (make, torchcam_map) for name, make in TORCHCAM.items()},
    **{f"pytorch_grad_cam {name}": (grad_cam_object(name), grad_cam_map) for name in GRAD_CAM},
    **{f"zennit {name}": (make, zennit_map) for name, make in ZENNIT.items()},
}


def switches_of(method):
    """Return the plain values among the attributes of an object, and how many hooks it has on its network."""
    switches = {name: value for name, value in vars(method).items() if type(value) in (bool, int, float, str)}
    # What captum has found out about the network.
    switches.pop("_is_output_shape_valid", None)
    holder = getattr(method, "activations_and_grads", method)
    return switches, len(getattr(holder, "handles", getattr(holder, "hook_handles", ())))


@pytest.fixture
def used_network(network):
    """Give the network gradients and a frozen parameter, which a call must leave as they are."""
    network[0].bias.requires_grad_(False)
    for parameter in network[2].parameters():
        parameter.grad = torch.ones_like(parameter)
    yield network
    network.requires_grad_().zero_grad()


@pytest.mark.parametrize("name", METHODS)
def test_maps_of_foreign_objects_equal_those_of_their_libraries(name, used_network, images, targets):
    make, by_hand = METHODS[name]
    method = make(used_network)
    before, switches = network_state(used_network), switches_of(method)
    result = heatproof.explain(used_network, images, targets, {"theirs": method})
    assert result["reason"].item() == ""
    assert difference(before, network_state(used_network)) == []
    assert switches_of(method) == switches

    maps = by_hand(method, used_network, images.clone(), targets).detach().float()
    maps = maps.sum(1) if maps.ndim == 4 else maps
    expected = interpolate(maps[:, None], images.shape[2:], mode="bilinear", align_corners=False)[:, 0]
    assert np.ptp(expected.numpy()) > 0
    np.testing.assert_allclose(result["attribution"].values[0], expected, rtol=1e-4, atol=1e-6)
