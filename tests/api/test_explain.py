"""`heatproof.explain`: explainers of heatproof and of other libraries on a model in memory."""

import json
import re

import numpy as np
import pytest
import torch

import heatproof
from heatproof.explainers.registry import EXPLAINERS, ExplainContext


def test_maps_equal_those_of_the_explainer(network, images, targets):
    result = heatproof.explain(network, images, targets, ["saliency", {"integrated_gradients": {"steps": 6}}])
    context = ExplainContext(network, network, None, images, targets, tuple(map(str, range(12))), 0)
    for name, options in (("saliency", {}), ("integrated_gradients", {"steps": 6})):
        direct = EXPLAINERS[name].function(context, **options)[name]
        np.testing.assert_allclose(result["attribution"].sel({"method": name}), direct.detach(), rtol=1e-5, atol=1e-7)
    assert result["attribution"].dims == ("method", "image", "y", "x")
    assert json.loads(result["options"].values[1])["steps"] == 6
    assert result["passes"].values.tolist()[0] == 1
    assert result["signed"].all()
    assert (result["reason"] == "").all()


def test_a_method_that_is_not_applicable_has_a_reason_and_no_maps(network, images, targets):
    result = heatproof.explain(network, images, targets, ["attention_rollout", "random"])
    assert "attention" in result["reason"].values[0]
    assert np.isnan(result["attribution"].values[0]).all()
    assert np.isfinite(result["attribution"].values[1]).all()


def test_explain_leaves_the_model_unchanged(network, images, targets):
    wanted = [parameter.requires_grad for parameter in network.parameters()]
    heatproof.explain(network, images, targets, ["saliency", "guided_backprop", "deep_lift", "grad_cam"])
    assert [parameter.requires_grad for parameter in network.parameters()] == wanted
    assert not any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in network.modules())


def test_methods_with_options_have_names_and_each_map_has_a_row(network, images, targets):
    result = heatproof.explain(
        network,
        images,
        targets,
        {"short": {"integrated_gradients": {"steps": 2}}, "long": {"explainer": "integrated_gradients", "steps": 9}},
    )
    assert result["method"].values.tolist() == ["short", "long"]
    # The check on the first images takes one more pass.
    assert np.diff(result["passes"]) == [7]
    several = heatproof.explain(network, images, targets, "noise_input_x_gradient")
    assert several["method"].values.tolist() == list(EXPLAINERS["noise_input_x_gradient"].maps)


def test_methods_of_other_libraries_make_maps(network, images, targets):
    from captum.attr import InputXGradient, LayerGradCam
    from torchcam.methods import GradCAM

    extractor = GradCAM(network, target_layer="2", enable_hooks=True)
    theirs = {
        "captum": InputXGradient(network),
        "layer": LayerGradCam(network, network[2]),
        "torchcam": extractor,
        "function": lambda model, batch, wanted: batch * batch.sum(1, keepdim=True),
    }
    result = heatproof.explain(network, images, targets, theirs)
    extractor.remove_hooks()
    ours = heatproof.explain(network, images, targets, ["input_x_gradient", "grad_cam"], layer="2")
    expected = ours["attribution"].values
    np.testing.assert_allclose(result["attribution"].values[0], expected[0], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(result["attribution"].values[2], expected[1], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(result["attribution"].values[3], (images.sum(1) ** 2).numpy(), rtol=1e-4, atol=1e-6)
    assert (result["reason"] == "").all()


def test_a_zennit_composite_makes_maps(network, images, targets):
    composites = pytest.importorskip("zennit.composites")
    result = heatproof.explain(network, images, targets, {"epsilon": composites.EpsilonPlus()})
    assert np.isfinite(result["attribution"].values).all()
    assert np.abs(result["attribution"].values).max() > 0


def test_a_model_of_transformers_is_explained(images):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=16, patch_size=4
    )
    model = transformers.ViTForImageClassification(config).eval()
    result = heatproof.explain(model, images, [0] * 12, ["saliency", "grad_cam"])
    assert (result["reason"] == "").all()


def test_an_interrupt_returns_the_completed_maps(network, images, targets):
    def stopped(model, batch, wanted):
        raise KeyboardInterrupt

    with pytest.warns(UserWarning, match="Interrupted in stopped"):
        result = heatproof.explain(network, images, targets, ["saliency", stopped, "grad_cam"])
    assert result["reason"].values.tolist() == ["", "interrupted", "interrupted"]
    assert np.isfinite(result["attribution"].values[0]).all()


def test_batch_sizes_do_not_change_maps(network, images, targets):
    methods = ["saliency", {"rise": {"masks": 16}}, "random"]
    at_once = heatproof.explain(network, images, targets, methods, batch_size="auto")
    parts = heatproof.explain(network, images, targets, methods, batch_size=5)
    np.testing.assert_allclose(parts["attribution"], at_once["attribution"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"methods": "grad_camm"}, "grad_cam"),
        ({"methods": []}, "No method is given"),
        ({"methods": [{"integrated_gradients": {"step": 3}}]}, "steps"),
        ({"methods": [3]}, "A method is int"),
        ({"methods": ["saliency", "saliency"]}, "Two methods are called 'saliency'"),
        ({"model": lambda batch: batch}, "give a torch.nn.Module"),
        ({"targets": ["cat"] * 12}, "class names, as 'cat'"),
        ({"images": [[1.0]]}, "give a float tensor"),
        ({"images": torch.zeros(12, 16, 16, 3)}, r"give images.permute\(0, 3, 1, 2\)"),
        ({"layer": torch.nn.ReLU()}, "a ReLU that is not a part of the model"),
    ],
)
def test_invalid_arguments_are_refused_in_one_sentence(changes, sentence, network, images, targets):
    arguments = {"model": network, "images": images, "targets": targets, "methods": "saliency"} | changes
    with pytest.raises(heatproof.HeatproofError, match=sentence) as caught:
        heatproof.explain(**arguments)
    assert "\n" not in str(caught.value)


def test_a_model_in_training_mode_is_refused(network, images, targets):
    network.train()
    try:
        with pytest.raises(heatproof.HeatproofError, match="training mode"):
            heatproof.explain(network, images, targets, "saliency")
    finally:
        network.eval()


def test_a_layer_can_be_given_as_a_module(network, images, targets):
    by_name, by_module = (
        heatproof.explain(network, images, targets, "grad_cam", layer=layer) for layer in ("2", network[2])
    )
    np.testing.assert_array_equal(by_name["attribution"], by_module["attribution"])
    assert by_module.attrs["layer"] == "2"


def test_objects_made_for_another_network_are_refused(network, linear, images, targets):
    from captum.attr import DeepLift, LayerGradCam, NoiseTunnel, Saliency
    from torchcam.methods import GradCAM

    extractor = GradCAM(linear, target_layer="features")
    others = [Saliency(linear), Saliency(lambda batch: linear(batch)), DeepLift(linear), NoiseTunnel(Saliency(linear))]
    others += [LayerGradCam(linear, linear.features), Saliency(linear.forward), extractor]
    with pytest.raises(heatproof.HeatproofError, match="'theirs' was made for another network"):
        heatproof.explain(network, images, targets, {"theirs": others[0]})
    for other in others:
        with pytest.raises(heatproof.HeatproofError, match="was made for another network"):
            heatproof.explain(network, images, targets, other)
    extractor.remove_hooks()


def test_objects_of_pytorch_grad_cam_made_for_another_network_are_refused(network, linear, images, targets):
    library = pytest.importorskip("pytorch_grad_cam")
    with pytest.raises(heatproof.HeatproofError, match="was made for another network"):
        heatproof.explain(network, images, targets, library.GradCAM(linear, [linear.features]))


def test_objects_that_call_the_network_are_accepted(network, images, targets):
    from captum.attr import Saliency

    wrapper = torch.nn.Sequential(network).eval()
    theirs = {
        "same": Saliency(network),
        "wrapper": Saliency(wrapper),
        "function": Saliency(lambda batch: network(batch)),
    }
    result = heatproof.explain(network, images, targets, theirs)
    assert (result["reason"] == "").all()
    # An object made for a part of the model, or for its forward method, passes the hooks of the model by.
    for model, method in ((wrapper, theirs["same"]), (network, Saliency(network.forward))):
        with pytest.raises(heatproof.HeatproofError, match="was made for another network"):
            heatproof.explain(model, images, targets, {"theirs": method})


def test_a_failing_method_is_left_out_with_its_reason(network, images, targets):
    def mine(model, batch, wanted):
        return batch / (1 // 0)

    with pytest.warns(UserWarning, match="The method 'mine' is left out: it fails"):
        result = heatproof.explain(network, images, targets, {"mine": mine, "saliency": "saliency"})
    reason = str(result["reason"].sel({"method": "mine"}).values)
    assert re.fullmatch(r"it fails \(ZeroDivisionError: .*; test_explain.py, line \d+\)", reason)
    assert result["attribution"].sel({"method": "mine"}).isnull().all()
    assert result["attribution"].sel({"method": "saliency"}).notnull().all()


def test_a_failure_of_the_model_is_distinguished_from_one_of_the_method(images, targets):
    class FailsWithGradients(torch.nn.Sequential):
        def forward(self, batch):
            if batch.requires_grad:
                raise LookupError("not today")
            return super().forward(batch)

    def mine(model, batch, wanted):
        return model(batch.clone().requires_grad_()).sum()

    model = FailsWithGradients(torch.nn.Flatten(), torch.nn.Linear(768, 4)).eval()
    with pytest.warns(UserWarning, match="The method 'mine' is left out: the model fails in it .*LookupError"):
        heatproof.explain(model, images, targets, mine)


def test_invalid_methods_are_refused(network, images, targets):
    from captum.attr import Saliency

    with pytest.raises(heatproof.HeatproofError, match="'Saliency' is a class: give an object of it"):
        heatproof.explain(network, images, targets, Saliency)
    with pytest.raises(heatproof.HeatproofError, match=r"'mine' takes \(batch\): give a function of model, images and"):
        heatproof.explain(network, images, targets, {"mine": lambda batch: batch})


def test_probabilities_cause_a_warning(network, images, targets):
    sure = torch.nn.Sequential(network, torch.nn.Softmax(1)).eval()
    with pytest.warns(UserWarning, match="The model returns probabilities"):
        heatproof.explain(sure, images, targets, "saliency")


def test_images_without_normalisation_cause_a_warning(network, images, targets, recwarn):
    heatproof.explain(network, images, targets, "saliency")
    assert not [warning for warning in recwarn if "images reach" in str(warning.message)]
    far = images / images.abs().max() * 255
    with pytest.warns(UserWarning, match="The images reach 255: normalise them"):
        heatproof.explain(network, far, targets, "saliency")
    with pytest.warns(UserWarning, match="The images reach 255: normalise them"):
        heatproof.finetune(network, far, epochs=1)
    with pytest.warns(UserWarning, match="The images reach 255: normalise them"):
        heatproof.evaluate("idsds", network, far, targets, far.sum(1))


def test_a_method_is_selected_by_a_mapping(network, images, targets):
    maps = heatproof.explain(network, images, targets, ["saliency", "random"])
    assert maps["attribution"].sel({"method": "random"}).dims == ("image", "y", "x")
    assert '.sel({"method": "grad_cam"})' in heatproof.explain.__doc__
