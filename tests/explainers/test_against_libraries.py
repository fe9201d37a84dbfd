"""captum and torchcam, called directly on one image, give the same maps.

The tests use float64. In float32 a single image uses other convolution algorithms than a batch, and a ReLU that their
rounding switches would differ by more than the tolerance.
"""

import captum.attr
import pytest
import torch
import torchcam.methods
from applicable import LONG
from torch.nn.functional import interpolate

from heatproof.core.randomness import counter_normal
from heatproof.explainers._batches import draw_uniform_images
from heatproof.explainers.noise import _add_noise
from heatproof.explainers.registry import EXPLAINERS

ARCHITECTURES = ["cifar_resnet20", "cifar_vgg11_bn", "small_vit"]


def captum_saliency(context, image, target):
    return captum.attr.Saliency(context.output).attribute(image, target=target, abs=False)


def captum_input_x_gradient(context, image, target):
    return captum.attr.InputXGradient(context.output).attribute(image, target=target)


def captum_hires_cam(context, image, target):
    layer = context.network.get_submodule(context.facts.cam_layer)
    products = captum.attr.LayerGradientXActivation(context.output, layer).attribute(image, target=target)
    return interpolate(products, (32, 32), mode="bilinear", align_corners=False)


def captum_integrated_gradients(context, image, target):
    return captum.attr.IntegratedGradients(context.output).attribute(image, target=target, n_steps=50)


CAPTUM = {
    "saliency": captum_saliency,
    "input_x_gradient": captum_input_x_gradient,
    "integrated_gradients": captum_integrated_gradients,
    "hires_cam": captum_hires_cam,
}
TORCHCAM = {
    "grad_cam": torchcam.methods.GradCAM,
    "grad_cam_pp": torchcam.methods.GradCAMpp,
    "smooth_grad_cam_pp": torchcam.methods.SmoothGradCAMpp,
    "xgrad_cam": torchcam.methods.XGradCAM,
    "layer_cam": torchcam.methods.LayerCAM,
    "score_cam": torchcam.methods.ScoreCAM,
    "ss_cam": torchcam.methods.SSCAM,
    "is_cam": torchcam.methods.ISCAM,
}
# The defaults take 35 and 10 passes for each channel.
FEW_SAMPLES = {"ss_cam": 2, "is_cam": 2}


@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", CAPTUM)
def test_maps_equal_those_of_captum_on_one_image(name, architecture, softmax, explain_digits):
    context = explain_digits(architecture, batch_size=2, dtype=torch.float64, softmax=softmax)
    ours = EXPLAINERS[name].function(context)[name]
    for row, target in enumerate(context.targets.tolist()):
        image = context.images[row : row + 1].clone().requires_grad_()
        direct = CAPTUM[name](context, image, target).sum(1)[0]
        assert (ours[row] - direct).abs().max() < 1e-5 * direct.abs().max().clamp(max=1)


def test_maps_equal_those_of_captum_with_the_uniform_baseline(explain_digits):
    context = explain_digits(batch_size=2, dtype=torch.float64)
    ours = EXPLAINERS["integrated_gradients_uniform"].function(context, low=-0.5, high=2.0)
    baselines = draw_uniform_images(context, "integrated_gradients_uniform baseline", -0.5, 2.0)
    assert -0.5 <= baselines.min() < -0.49
    assert 1.99 < baselines.max() < 2
    for row, target in enumerate(context.targets.tolist()):
        direct = captum.attr.IntegratedGradients(context.output).attribute(
            context.images[row : row + 1], baselines[row : row + 1], target=target
        )
        assert (ours["integrated_gradients_uniform"][row] - direct.sum(1)[0]).abs().max() < 1e-5


def feed(distribution, context, purpose, image_id):
    """Let torchcam's normal distribution return the random numbers of one image, sample by sample."""
    drawn = 0

    def sample(size):
        nonlocal drawn
        start, drawn = drawn, drawn + size.numel()
        numbers = counter_normal(context.seed, purpose, [image_id], size[1:], start=start, dtype=torch.float64)
        return distribution.loc + distribution.scale * numbers

    distribution.sample = sample


@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in TORCHCAM])
def test_maps_equal_those_of_torchcam_on_one_image(name, architecture, softmax, explain_digits):
    context = explain_digits(architecture, batch_size=2, dtype=torch.float64, softmax=softmax)
    samples = FEW_SAMPLES.get(name)
    ours = EXPLAINERS[name].function(context, **({"samples": samples} if samples else {}))[name]
    layer = context.network.get_submodule(context.facts.cam_layer)
    for row, target in enumerate(context.targets.tolist()):
        image = context.images[row : row + 1].clone().requires_grad_()
        options = {"num_samples": samples} if samples else {}
        with TORCHCAM[name](context.output, layer, **options) as extractor:
            if hasattr(extractor, "_distrib"):
                feed(extractor._distrib, context, f"noise of {name}", context.image_ids[row])
            scores = context.output(image)
            (cam,) = extractor([target], scores, normalized=False)
        direct = interpolate(cam[None], (32, 32), mode="bilinear", align_corners=False)[0, 0]
        assert (ours[row] - direct).abs().max() <= 1e-5 * direct.abs().max().clamp(max=1)


@pytest.mark.parametrize("base", ["input_x_gradient", "integrated_gradients"])
def test_maps_equal_those_of_captums_noise_tunnel_with_the_same_noise(base, explain_digits, monkeypatch):
    context = explain_digits(batch_size=12, dtype=torch.float64)
    options = {"steps": 6} if base == "integrated_gradients" else {}
    maps = EXPLAINERS[f"noise_{base}"].function(context, samples=5, stdev=0.2, **options)
    noisy = _add_noise(context, f"noise of {base}", 5, 0.2, relative=True).images
    monkeypatch.setattr(captum.attr.NoiseTunnel, "_add_noise_to_input", staticmethod(lambda image, stdev, count: noisy))
    captum_class = {
        "input_x_gradient": captum.attr.InputXGradient,
        "integrated_gradients": captum.attr.IntegratedGradients,
    }[base]
    tunnel = captum.attr.NoiseTunnel(captum_class(context.output))
    arguments = {"n_steps": 6} if base == "integrated_gradients" else {}
    for kind in ("smoothgrad", "smoothgrad_sq", "vargrad"):
        direct = tunnel.attribute(context.images, kind, nt_samples=5, target=context.targets, **arguments).sum(1)
        assert (maps[f"{base}_{kind}"] - direct).abs().max() < 1e-5 * direct.abs().max().clamp(max=1)
