"""Weights on disk, devices, and the input of networks."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from heatproof.core.input_facts import InputFacts
from heatproof.core.normalise import normalise
from heatproof.core.specs import Runtime
from heatproof.errors import HeatproofError
from heatproof.models.network import build_network, configure_torch, load_network, load_weights, save_weights
from heatproof.models.registry import ARCHITECTURES, ModelSpec


def network_of(classes=3, width=4, seed=0):
    return build_network(ModelSpec("cifar_vgg11_bn", "heatproof.models.vgg", {"width": width}), classes, seed)


@pytest.fixture
def saved(tmp_path):
    network = network_of(seed=7)
    path = tmp_path / "deep/er/weights.safetensors"
    save_weights(network.state_dict(), path)
    return network, path


def test_saved_weights_are_loaded(saved):
    network, path = saved
    other = network_of(seed=8)
    load_weights(other, path)
    for name, value in network.state_dict().items():
        assert torch.equal(other.state_dict()[name], value), name
    assert [file.name for file in path.parent.iterdir()] == ["weights.safetensors"]


def test_equal_weights_have_equal_bytes(saved, tmp_path):
    network, path = saved
    save_weights(network.to(memory_format=torch.channels_last).state_dict(), tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()


def test_tied_weights_can_be_saved(tmp_path):
    """safetensors refuses tensors that share memory."""
    table = torch.arange(6.0).reshape(2, 3)
    save_weights({"a": table, "b": table, "c": table.T}, tmp_path / "w.safetensors")
    state = load_file(tmp_path / "w.safetensors")
    assert torch.equal(state["b"], table)
    assert torch.equal(state["c"], table.T)


def test_a_loaded_network_is_ready_to_be_explained(saved):
    network, path = saved
    spec = ModelSpec("cifar_vgg11_bn", "heatproof.models.vgg", {"width": 4})
    loaded = load_network(spec, 3, path, torch.device("cpu"))
    assert not loaded.training
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(loaded(images), network.eval()(images))


def missing(path):
    path.unlink()


def truncated(path):
    path.write_bytes(path.read_bytes()[:-100])


def empty(path):
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [missing, truncated, empty])
def test_unreadable_weights_are_refused(saved, damage):
    _, path = saved
    damage(path)
    with pytest.raises(HeatproofError, match="cannot be read") as caught:
        load_weights(network_of(), path)
    assert f"rm {path}" in str(caught.value)
    assert str(caught.value).endswith("run your snakemake command with this path as its target.")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("other", [{"classes": 4}, {"width": 8}])
def test_weights_of_another_network_are_refused(saved, other):
    _, path = saved
    with pytest.raises(HeatproofError, match="do not fit the network") as caught:
        load_weights(network_of(**other), path)
    assert "\n" not in str(caught.value)


def test_weights_with_too_few_entries_are_refused(saved, tmp_path):
    network, _ = saved
    state = dict(network.state_dict())
    state.pop("classifier.bias")
    save_weights(state, tmp_path / "few.safetensors")
    with pytest.raises(HeatproofError, match=r"classifier\.bias"):
        load_weights(network_of(), tmp_path / "few.safetensors")


# ---- the machine -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_a_missing_device_is_refused(device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(HeatproofError, match=f"device: {device}"):
        configure_torch(Runtime(threads=1, device=device))


@pytest.mark.parametrize(
    ("cuda", "mps", "expected"), [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")]
)
def test_auto_selects_an_available_device(cuda, mps, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert configure_torch(Runtime(threads=1, device="auto")) == torch.device(expected)


def test_the_config_fixes_threads_and_precision():
    configure_torch(Runtime(threads=2, device="cpu"))
    assert torch.get_num_threads() == 2
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cudnn.benchmark


# ---- the input -------------------------------------------------------------------------------------------------------


def test_normalisation_subtracts_the_mean_and_divides_by_the_deviation():
    images = np.random.default_rng(0).random((2, 3, 4, 4), dtype=np.float32)
    facts = InputFacts(mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 2.0))
    normalised = normalise(images, facts)
    assert normalised.dtype == torch.float32
    assert normalised.is_contiguous(memory_format=torch.channels_last)
    for channel, (mean, std) in enumerate(zip(facts.mean, facts.std, strict=True)):
        np.testing.assert_allclose(normalised[:, channel], (images[:, channel] - mean) / std, rtol=1e-6, atol=1e-6)


def test_an_image_of_the_mean_is_zero():
    """Therefore, the zero baseline is the mean colour."""
    facts = ARCHITECTURES["small_vit"].facts
    images = np.broadcast_to(np.float32(facts.mean)[None, :, None, None], (1, 3, 4, 4)).copy()
    assert normalise(images, facts).abs().max() == 0


def test_images_of_another_size_are_refused():
    facts = InputFacts(size=(32, 32))
    with pytest.raises(HeatproofError, match="expects 32×32 pixels, but the images have 16×8"):
        normalise(np.zeros((1, 3, 16, 8), np.float32), facts)
    assert normalise(np.zeros((1, 3, 32, 32), np.float32), facts).shape == (1, 3, 32, 32)
