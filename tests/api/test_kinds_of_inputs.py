"""Every kind of input gives the result of plain tensors or one sentence, the same in all functions."""

import warnings

import numpy as np
import pytest
import torch
import xarray
from torch.utils.data import DataLoader, TensorDataset

import heatproof
from heatproof.errors import HeatproofError

COUNT, SIDE = 16, 8
torch.manual_seed(0)
IMAGES = torch.randn(COUNT, 3, SIDE, SIDE)
MODEL = torch.nn.Sequential(
    torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(4 * 36, 3)
).eval()
TARGETS = MODEL(IMAGES).argmax(1)
MAPS = torch.rand(COUNT, SIDE, SIDE)
FUNCTIONS = {
    "explain": lambda images, targets: heatproof.explain(MODEL, images, targets, ["saliency"])["attribution"].values,
    "evaluate": lambda images, targets: heatproof.evaluate("sds", MODEL, images, targets, MAPS, grid=4)["score"].values,
    "choose": lambda images, targets: (
        heatproof.choose(MODEL, images, targets, ["saliency"], measures={"sds": {"grid": 2, "baseline": "zeros"}})
        .table["sds"]
        .values
    ),
    "finetune": lambda images, targets: (
        heatproof.finetune(MODEL, images, targets, epochs=1, grid=2)[0].weight.detach().numpy()
    ),
}


def masked(values, row=3, missing=True):
    array = np.ma.array(values.numpy().copy(), mask=False)
    array[row] = np.ma.masked if missing else array[row]
    return array


def big_endian(values):
    return values.numpy().astype(values.numpy().dtype.newbyteorder(">"))


def quantised(values):
    return torch.quantize_per_tensor(values.float(), 2**-6, 0, torch.qint32)


# A sentence, or None where the result must be that of plain tensors.
IMAGE_KINDS = {
    "an array": (lambda x: x.numpy(), None),
    "a big-endian array": (big_endian, None),
    "a labelled big-endian array": (
        lambda x: xarray.DataArray(big_endian(x), dims=("image", "channel", "y", "x")),
        None,
    ),
    "a masked array without a masked value": (lambda x: masked(x, missing=False), None),
    "a masked array": (masked, "Image '3' has a value that is not finite: leave the image out"),
    "a masked array of bytes": (
        lambda x: masked((x.sigmoid() * 255).to(torch.uint8)),
        "Image '3' has a value that is not finite|images are torch.float64",
    ),
    "a data set": (lambda x: TensorDataset(x), None),
    "a loader": (lambda x: DataLoader(TensorDataset(x), 5), None),
    "a loader of masked arrays": (
        lambda x: DataLoader(list(masked(x)), 4, collate_fn=np.ma.stack),
        "Image '3' has a value that is not finite",
    ),
    "a generator": (lambda x: iter(x.split(5)), None),
    "a nested tensor": (
        lambda x: torch.nested.nested_tensor(list(x)),
        r"The images are a nested tensor.* give torch.stack\(list\(nested.unbind\(\)\)\)",
    ),
    "a jagged tensor": (
        lambda x: torch.nested.nested_tensor(list(x), layout=torch.jagged),
        "The images are a nested tensor",
    ),
    "a tensor without values": (lambda x: x.to("meta"), "images are a tensor on the device meta, which holds no"),
    "a sparse tensor": (lambda x: x.to_sparse(), r"give images.to_dense\(\)"),
}
TARGET_KINDS = {
    "an array": (lambda y: y.numpy(), None),
    "a big-endian array": (big_endian, None),
    "a masked array without a masked value": (lambda y: masked(y, missing=False), None),
    "a masked array": (masked, "a class is a whole number"),
    "a list of a masked array": (lambda y: list(masked(y)), "a class is a whole number"),
    "a nested tensor": (lambda y: torch.nested.nested_tensor([y[:3], y[3:]]), "The targets are a nested tensor"),
    "a tensor without values": (lambda y: y.to("meta"), "targets are a tensor on the device meta"),
    "a sparse tensor": (lambda y: y.to_sparse(), None),
    "a quantised tensor": (quantised, r"here targets.long\(\)"),
}
MAP_KINDS = {
    "an array": (lambda m: m.numpy(), None),
    "a big-endian array": (big_endian, None),
    "a masked array without a masked value": (lambda m: masked(m, missing=False), None),
    "a masked array": (masked, "map of image '3' has a value that is not finite"),
    "a masked array of whole numbers": (lambda m: masked((m * 9).int()), "map of image '3' has a value that is not"),
    "a list of masked arrays": (lambda m: list(masked(m)), "map of image '3' has a value that is not finite"),
    "a nested tensor": (lambda m: torch.nested.nested_tensor(list(m)), "The maps are a nested tensor"),
    "a tensor without values": (lambda m: m.to("meta"), "The maps are a tensor on the device meta"),
    "a sparse tensor": (lambda m: m.to_sparse(), None),
    "a quantised tensor": (lambda m: torch.quantize_per_tensor(m, 2**-20, 0, torch.qint32), None),
}


def agrees(compute, sentence, *plain):
    """Check that a call returns what plain tensors give, or raises the sentence."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if sentence is None:
            np.testing.assert_allclose(compute(), compute(*plain), rtol=1e-4, atol=1e-5)
            return
        with pytest.raises(HeatproofError, match=sentence) as raised:
            compute()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("kind", IMAGE_KINDS)
def test_images_of_any_kind(kind, function):
    convert, sentence = IMAGE_KINDS[kind]
    agrees(
        lambda images=None: FUNCTIONS[function](convert(IMAGES) if images is None else images, TARGETS),
        sentence,
        IMAGES,
    )


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("kind", TARGET_KINDS)
def test_targets_of_any_kind(kind, function):
    convert, sentence = TARGET_KINDS[kind]
    agrees(
        lambda targets=None: FUNCTIONS[function](IMAGES, convert(TARGETS) if targets is None else targets),
        sentence,
        TARGETS,
    )


@pytest.mark.parametrize("kind", MAP_KINDS)
def test_maps_of_any_kind(kind):
    convert, sentence = MAP_KINDS[kind]

    def scores(maps=None):
        maps = convert(MAPS) if maps is None else maps
        return heatproof.evaluate("sds", MODEL, IMAGES, TARGETS, maps, grid=4)["score"].values

    agrees(scores, sentence, MAPS)


@pytest.mark.parametrize("kind", MAP_KINDS)
def test_maps_of_any_kind_that_a_function_returns(kind):
    convert, sentence = MAP_KINDS[kind]

    def method(model, images, targets):
        return convert(images.abs().sum(1).detach())

    result = lambda: heatproof.explain(MODEL, IMAGES, TARGETS, [method, "saliency"])  # noqa: E731
    if sentence is None:
        np.testing.assert_allclose(result()["attribution"][0], IMAGES.abs().sum(1), rtol=1e-4, atol=1e-5)
    else:
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            reason = str(result()["reason"].values[0])
        assert ("not finite" in reason) == ("not finite" in sentence)
        assert reason
