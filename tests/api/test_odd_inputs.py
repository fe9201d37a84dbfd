"""Common inputs other than float tensors and integers are accepted, or refused with a line of code to copy."""

import re
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
import xarray
from PIL import Image

import heatproof
from heatproof.api.inputs.read import read_inputs
from heatproof.errors import HeatproofError

PIL_IMAGES = [Image.new("RGB", (16, 16), (number * 20, 50, 9)) for number in range(12)]


def bytes_of(images):
    return (images.sigmoid() * 255).to(torch.uint8)


IMAGES = {
    "bytes": (bytes_of, r"give \(images.float\(\).div\(255\) - mean\) / std"),
    "bytes with channels last": (
        lambda x: bytes_of(x).permute(0, 2, 3, 1),
        r"give \(images.permute\(0, 3, 1, 2\).float\(\).div\(255\) - mean\) / std",
    ),
    "an array of bytes with channels last": (
        lambda x: bytes_of(x).permute(0, 2, 3, 1).numpy(),
        r"give \(torch.from_numpy\(images\).permute\(0, 3, 1, 2\).float\(\).div\(255\) - mean\) / std",
    ),
    "whole numbers": (lambda x: (x * 100).long(), "whole numbers"),
    "truths": (lambda x: x > 0, "torch.bool .*give a float tensor"),
    "complex numbers": (lambda x: x.to(torch.complex64), "give a float tensor"),
    "channels last": (lambda x: x.permute(0, 2, 3, 1), r"give images.permute\(0, 3, 1, 2\)"),
    "four channels last": (
        lambda x: torch.cat([x, x[:, :1]], 1).permute(0, 2, 3, 1),
        r"give images.permute\(0, 3, 1, 2\)",
    ),
    "one channel last": (lambda x: x[:, :1].permute(0, 2, 3, 1), r"give images.permute\(0, 3, 1, 2\)"),
    "an array with channels last": (lambda x: x.permute(0, 2, 3, 1).numpy(), r"give images.transpose\(0, 3, 1, 2\)"),
    "one image": (lambda x: x[0], r"give images\[None\] for one image"),
    "one image with channels last": (lambda x: x[0].permute(1, 2, 0), r"give images.permute\(2, 0, 1\)\[None\]"),
    "one array": (lambda x: x[0].numpy(), r"give torch.from_numpy\(images\)\[None\]"),
    "grey images without channels": (lambda x: x[:, 0], r"or images\[:, None\] for images of one channel"),
    "a picture": (
        lambda x: PIL_IMAGES[0],
        r"a PIL image: give torchvision.transforms.functional.to_tensor\(images\)",
    ),
    "a list of pictures": (
        lambda x: PIL_IMAGES,
        r"list of PIL images: give torch.stack\(\[.*to_tensor\(image\) for image in",
    ),
    "a list of tensors": (list, r"give torch.stack\(images\)"),
    "a tuple of tensors": (tuple, r"give torch.stack\(images\)"),
    "a list of arrays": (lambda x: list(x.numpy()), r"give torch.from_numpy\(np.stack\(images\)\)"),
    "a list of batches of arrays": (lambda x: [x.numpy()], r"give torch.from_numpy\(np.concatenate\(images\)\)"),
    "tensors of two sizes": (
        lambda x: [x[0], x[1, :, :8]],
        r"shapes differ, as \(3, 16, 16\) and \(3, 8, 16\); resize",
    ),
    "a list of numbers": (lambda x: x.tolist(), "give a float tensor"),
    "an empty list": (lambda x: [], "give at least one image"),
    "a set": (lambda x: {1, 2}, "give a float tensor"),
    "a dict": (lambda x: {"images": x}, r"give images\['images'\]"),
    "what a processor of transformers returns": (lambda x: {"pixel_values": x}, r"give images\['pixel_values'\]"),
    "a dict of something else": (lambda x: {"a": x}, "give a float tensor"),
    "a list of paths": (lambda x: ["a.png", "b.png"], r"give the folder of these images, or torch.stack"),
    "nothing": (lambda x: None, "give a float tensor"),
    "a number": (lambda x: 3, "give a float tensor"),
    "a table": (lambda x: pd.DataFrame(x[0, 0].numpy()), "give a float tensor"),
    "an array of texts": (lambda x: np.array([["a"]]), "give a float tensor"),
    "a data set of xarray": (lambda x: xarray.Dataset({"a": ("image", np.zeros(3))}), r"give one of its arrays \(a\)"),
    "no images": (lambda x: x[:0], "batch of images is empty"),
    "no pixels": (lambda x: x[..., :0], "without pixels"),
    "films": (lambda x: x[:, :, None], "give a float tensor"),
    "a sparse tensor": (lambda x: x.to_sparse(), r"give images.to_dense\(\)"),
    "a path that is not there": (lambda x: "photos/nowhere", "There is no folder photos/nowhere"),
    "an empty path": (lambda x: "", "There is no folder|has no images|declares no transform"),
    "a value that is not finite": (
        lambda x: torch.cat([x[:7], x[7:] * float("inf")]),
        "Image '7' has a value that is not finite",
    ),
}

FUNCTIONS = {
    "explain": lambda model, images, targets: heatproof.explain(model, images, targets, ["saliency"]),
    "evaluate": lambda model, images, targets: heatproof.evaluate(
        "sds", model, images, targets, np.ones((12, 16, 16)) * np.arange(16)
    ),
    "choose": lambda model, images, targets: heatproof.choose(model, images, targets, ["saliency"]),
    "finetune": lambda model, images, targets: heatproof.finetune(model, images, targets, epochs=1),
    "image_scores": lambda model, images, targets: heatproof.quality.image_scores(
        model, images, targets, {"a": np.ones((12, 16, 16))}, ["sds"]
    ),
}


def refused(function, sentence, *converted):
    with pytest.raises(HeatproofError, match=sentence) as raised:
        FUNCTIONS[function](*converted)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("case", IMAGES)
def test_images_in_other_forms_are_refused_with_a_line_to_copy(case, function, network, images, targets, tmp_path):
    change, sentence = IMAGES[case]
    refused(function, sentence, network, change(images), targets)


# Every remedy that is a line of code for `images` produces an input that the network accepts.
LINES = [
    ("bytes", "(images.float().div(255) - mean) / std"),
    ("bytes with channels last", "(images.permute(0, 3, 1, 2).float().div(255) - mean) / std"),
    (
        "an array of bytes with channels last",
        "(torch.from_numpy(images).permute(0, 3, 1, 2).float().div(255) - mean) / std",
    ),
    ("channels last", "images.permute(0, 3, 1, 2)"),
    ("an array with channels last", "images.transpose(0, 3, 1, 2)"),
    ("one image", "images[None]"),
    ("one image with channels last", "images.permute(2, 0, 1)[None]"),
    ("one array", "torch.from_numpy(images)[None]"),
    ("a list of tensors", "torch.stack(images)"),
    ("a list of arrays", "torch.from_numpy(np.stack(images))"),
    ("a list of batches of arrays", "torch.from_numpy(np.concatenate(images))"),
    ("a sparse tensor", "images.to_dense()"),
]


@pytest.mark.parametrize(("case", "line"), LINES)
def test_the_suggested_line_produces_an_accepted_input(case, line, images):
    converted = IMAGES[case][0](images)
    with pytest.raises(HeatproofError) as raised:
        read_inputs(None, converted)
    assert line in str(raised.value)
    remedied = eval(line, {"images": converted, "torch": torch, "np": np, "mean": 0.0, "std": 1.0})
    wanted = bytes_of(images).float() / 255 if "bytes" in case else images[:1] if "one" in case else images
    torch.testing.assert_close(read_inputs(None, remedied).images, wanted)


VALID = {
    "float64": lambda x: x.double(),
    "half": lambda x: x.half(),
    "bfloat16": lambda x: x.bfloat16(),
    "an array": lambda x: x.numpy(),
    "an array that is no view": lambda x: x.numpy()[:, ::-1],
    "one image": lambda x: x[:1],
    "with a gradient": lambda x: x.clone().requires_grad_(),
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "thirteen channels": lambda x: x.repeat(1, 5, 1, 1)[:, :13],
    "signals that are one pixel wide": lambda x: x[..., :1],
    "signals of twelve channels": lambda x: x.reshape(12, 3, 256, 1).repeat(1, 4, 1, 1),
}


@pytest.mark.parametrize("case", VALID)
def test_valid_images_are_read_unchanged(case, images):
    converted = VALID[case](images)
    images_read = read_inputs(None, converted).images
    wanted = (
        torch.from_numpy(np.ascontiguousarray(converted)) if isinstance(converted, np.ndarray) else converted.detach()
    )
    assert images_read.dtype == wanted.dtype
    assert images_read.stride() == wanted.stride()
    assert torch.equal(images_read, wanted)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("function", ["explain", "evaluate", "choose", "finetune"])
def test_images_of_another_precision_than_the_model_are_refused(function, dtype, network, images, targets):
    converted = images.repeat(2, 1, 1, 1) if function == "choose" else images
    classes = targets.repeat(2) if function == "choose" else targets
    refused(
        function, f"images are {dtype} and the model's weights torch.float32", network, converted.to(dtype), classes
    )


@pytest.mark.filterwarnings("ignore")
def test_one_image_is_explained_and_scored(network, images, targets):
    maps = heatproof.explain(network, images[:1], targets[:1], ["saliency", "grad_cam"])
    expected = heatproof.explain(network, images, targets, ["saliency", "grad_cam"])
    np.testing.assert_allclose(maps["attribution"], expected["attribution"][:, :1], atol=1e-6)
    assert heatproof.evaluate("sds", network, images[:1], targets[:1], maps)["score"].shape == (2, 1)


TARGETS = {
    "class names": (lambda y: ["cat", "dog"] * 6, "class names, as 'cat': give their numbers"),
    "an array of class names": (lambda y: np.array(["cat", "dog"] * 6), "class names, as 'cat'"),
    "an array of objects": (lambda y: np.array(["cat", "dog"] * 6, dtype=object), "class names"),
    "a series of class names": (lambda y: pd.Series(["cat", "dog"] * 6), "class names"),
    "categories": (lambda y: pd.Series(["cat", "dog"] * 6, dtype="category"), "class names"),
    "bytes": (lambda y: np.array([b"cat"] * 12), "class names"),
    "whole numbers as floats": (lambda y: y.float(), r"here targets.long\(\)"),
    "floats": (lambda y: y + 0.5, "a class is a whole number"),
    "a series with a gap": (lambda y: pd.Series([None, *y.tolist()[1:]]), "a class is a whole number"),
    "a nullable series with a gap": (lambda y: pd.Series([None, *y.tolist()[1:]], dtype="Int64"), "one class number"),
    "truths": (lambda y: y > 0, r"class 1, as targets.long\(\)"),
    "one column a class": (lambda y: torch.nn.functional.one_hot(y, 4), r"give targets.argmax\(1\)"),
    "one column a class, floats": (lambda y: torch.nn.functional.one_hot(y, 4).double(), r"give targets.argmax\(1\)"),
    "one column a class, an array": (lambda y: np.eye(4)[y], r"give targets.argmax\(1\)"),
    "several classes": (lambda y: torch.ones(12, 4, dtype=torch.int64), "several classes of an image"),
    "probabilities": (lambda y: torch.full((12, 4), 0.25), "several classes of an image"),
    "a column": (lambda y: y[:, None], r"as targets\[:, 0\]"),
    "one number": (lambda y: 2, r"as torch.full\(\(12,\), 2\)"),
    "too few": (lambda y: y[:5], "one class number for each of the 12"),
    "too many": (lambda y: y.repeat(2), "one class number for each of the 12"),
    "none": (lambda y: y[:0], "one class number for each of the 12"),
    "masks": (lambda y: torch.zeros(12, 16, 16, dtype=torch.int64), "one class number for each of the 12"),
    "a dict": (lambda y: {"a": 1}, "The targets are dict"),
    "a text": (lambda y: "cat", "one class number|class names"),
    "lists of two lengths": (lambda y: [[1], [1, 2]] * 6, "one class number for each of the 12"),
    "complex numbers": (lambda y: y.to(torch.complex64), "one class number for each of the 12"),
}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("case", TARGETS)
def test_targets_in_other_forms_are_refused_with_a_line_to_copy(case, function, network, images, targets):
    change, sentence = TARGETS[case]
    refused(function, sentence, network, images, change(targets))


GOOD = {
    "a list": lambda y: y.tolist(),
    "a tuple": lambda y: tuple(y.tolist()),
    "a list of tensors": list,
    "an array": lambda y: y.numpy(),
    "bytes": lambda y: y.to(torch.uint8),
    "an array of 16 bits": lambda y: y.numpy().astype(np.uint16),
    "an array of objects": lambda y: y.numpy().astype(object),
    "a series": lambda y: pd.Series(y.numpy()),
    "a nullable series": lambda y: pd.Series(y.numpy(), dtype="Int64"),
    "a sparse tensor": lambda y: y.to_sparse(),
    "categories that are numbers": lambda y: pd.Series(y.numpy(), dtype="category"),
}


@pytest.mark.parametrize("case", GOOD)
def test_integer_targets_are_accepted_in_any_form(case, images, targets):
    inputs = read_inputs(None, images, GOOD[case](targets))
    assert inputs.targets.dtype == torch.int64
    assert torch.equal(inputs.targets, targets)


@pytest.mark.parametrize(
    ("ids", "sentence"),
    [
        ("abcdefghijkl", "image_ids is str: give a list"),
        (set("abcdefghijkl"), "image_ids is set: give a list"),
        (dict.fromkeys("abcdefghijkl"), "image_ids is dict: give a list"),
        (3, "image_ids is int"),
        (list("abc"), "a unique id for each of the 12"),
        (list("aabcdefghijk"), "a unique id for each of the 12"),
        (np.zeros((12, 2)), "image_ids is ndarray"),
    ],
)
def test_invalid_image_ids_are_refused(ids, sentence, network, images, targets):
    with pytest.raises(HeatproofError, match=sentence):
        heatproof.explain(network, images, targets, ["saliency"], image_ids=ids)


class NetworkWithConfig(torch.nn.Sequential):
    """A network that, like models of timm, records what it was trained on."""

    def __init__(self, inner, **facts):
        super().__init__(inner)
        self.pretrained_cfg = facts


NORMALISED = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.2, 0.2)}
RANGES = {
    "between 0 and 1": (NORMALISED, lambda x: x.sigmoid(), "between 0 and 1.*mean .0.5, 0.4, 0.3"),
    "normalised": (NORMALISED, lambda x: x, None),
    "one grey image": (NORMALISED, lambda x: torch.full_like(x, 0.3), None),
    "a model that takes them so": ({"mean": (0, 0, 0), "std": (1, 1, 1)}, lambda x: x.sigmoid(), None),
    "a model that does not say it": ({}, lambda x: x.sigmoid(), None),
    "bytes as floats": ({}, lambda x: x.sigmoid() * 255, "reach 2.*normalise"),
}


@pytest.mark.parametrize("case", RANGES)
@pytest.mark.parametrize("function", ["explain", "evaluate", "choose", "finetune"])
def test_images_without_normalisation_cause_a_warning_if_it_is_known(case, function, network, images, targets):
    facts, change, sentence = RANGES[case]
    if function == "choose" and "one" in case:
        pytest.skip("copies of one image are refused")
    model = NetworkWithConfig(network, **facts).eval()
    converted = change(torch.cat([images, images.flip(-1)]) if function == "choose" else images)
    classes = targets.repeat(2) if function == "choose" else targets
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        FUNCTIONS[function](model, converted, classes)
    messages = [str(warning.message) for warning in caught if str(warning.message).startswith("The images")]
    assert len(messages) == (sentence is not None)
    if sentence is not None:
        assert re.search(sentence, messages[0])
