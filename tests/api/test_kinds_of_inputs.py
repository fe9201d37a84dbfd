"""Every kind of input gives the result of plain tensors or one sentence, the same in all functions."""

import warnings

import numpy as np
import pytest
import torch
import xarray
from PIL import Image
from torch.utils.data import BatchSampler, DataLoader, Dataset, SubsetRandomSampler, TensorDataset
from torchvision.transforms.functional import to_tensor

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


class Arrays(Dataset):
    """A data set of arrays and labels, which torch's `collate_fn` stacks."""

    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def __getitem__(self, number):
        return self.images[number], int(TARGETS[number])


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
    "a data set of masked arrays": (
        lambda x: Arrays(masked(x)),
        "Image '3' has a value that is not finite",
    ),
    "a data set of big-endian arrays": (lambda x: Arrays(big_endian(x)), None),
    "floats of eight bits": (lambda x: x.to(torch.float8_e4m3fn), "torch.float8_e4m3fn .*: give a float tensor"),
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
    "a masked array of whole numbers": (
        lambda m: masked((m * 9).int()),
        "map of image '3' has a value that is not finite",
    ),
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


# A list that a function returns holds its maps first, as a pair of maps and deltas does.
RETURNED = {kind: case for kind, case in MAP_KINDS.items() if not kind.startswith("a list")}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", RETURNED)
def test_maps_of_any_kind_that_a_function_returns(kind):
    convert, sentence = RETURNED[kind]

    def method(model, images, targets):
        return convert(images.abs().sum(1).detach())

    maps = heatproof.explain(MODEL, IMAGES, TARGETS, [method, "saliency"])
    reason = str(maps["reason"].values[0])
    if sentence is None:
        assert not reason
        np.testing.assert_allclose(maps["attribution"][0], IMAGES.abs().sum(1), rtol=1e-4, atol=1e-5)
    else:
        # The same sentence, which names the image or the method.
        words = sentence.removeprefix("map of image '3' ").removeprefix("The maps ")
        assert words in reason


PICTURES = [Image.fromarray((image.sigmoid() * 255).byte().permute(1, 2, 0).numpy()) for image in IMAGES]
FUNCTIONS_WITH_TRANSFORM = {
    "explain": lambda images, **options: (
        heatproof.explain(MODEL, images, TARGETS, ["saliency"], **options)["attribution"].values
    ),
    "choose": lambda images, **options: (
        heatproof.choose(
            MODEL, images, TARGETS, ["saliency"], measures={"sds": {"grid": 2, "baseline": "zeros"}}, **options
        )
        .table["sds"]
        .values
    ),
    "evaluate": lambda images, **options: (
        heatproof.evaluate("sds", MODEL, images, TARGETS, MAPS, grid=4, **options)["score"].values
    ),
    "finetune": lambda images, **options: weights_of(
        heatproof.finetune(MODEL, images, TARGETS, grid=4, epochs=1, **options)
    ),
    "image_scores": lambda images, **options: heatproof.quality.image_scores(
        MODEL, images, TARGETS, {"maps": MAPS}, {"sds": {"grid": 4}}, **options
    )["score"].to_numpy(),
}


def weights_of(network):
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()]).numpy()


def saved(pictures, folder):
    paths = [folder / f"{number:02}.png" for number in range(len(pictures))]
    for picture, path in zip(pictures, paths, strict=True):
        picture.save(path)
    return paths


PICTURE_KINDS = {
    "PIL images": lambda pictures, folder: pictures,
    "a tuple": lambda pictures, folder: tuple(pictures),
    "arrays": lambda pictures, folder: [np.asarray(picture) for picture in pictures],
    "paths": saved,
    "paths as texts": lambda pictures, folder: [str(path) for path in saved(pictures, folder)],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("function", FUNCTIONS_WITH_TRANSFORM)
@pytest.mark.parametrize("kind", PICTURE_KINDS)
def test_a_list_of_pictures_is_read_with_a_transform(kind, function, tmp_path):
    call = FUNCTIONS_WITH_TRANSFORM[function]
    pictures = PICTURE_KINDS[kind](PICTURES, tmp_path)
    images = torch.stack([to_tensor(picture) for picture in PICTURES])
    np.testing.assert_allclose(call(pictures, transform=to_tensor), call(images), rtol=1e-5, atol=1e-6)
    with pytest.raises(HeatproofError, match=r"`transform` fails on the image '.*0"):
        call(pictures, transform=lambda picture: 1 / 0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("function", FUNCTIONS_WITH_TRANSFORM)
def test_one_picture_or_none_is_refused(function):
    call = FUNCTIONS_WITH_TRANSFORM[function]
    with pytest.raises(HeatproofError, match=r"are a PIL image: give \[images\], a list of pictures, with the `trans"):
        call(PICTURES[0], transform=to_tensor)
    with pytest.raises(HeatproofError, match="The list of images is empty: give at least one image"):
        call([], transform=to_tensor)


def test_pictures_are_named_by_their_paths(tmp_path):
    paths = saved(PICTURES, tmp_path)
    maps = heatproof.explain(MODEL, paths, TARGETS, ["saliency"], transform=to_tensor)
    assert maps["image"].values.tolist() == [str(path) for path in paths]
    with pytest.raises(HeatproofError, match="unique id"):
        heatproof.explain(MODEL, [paths[0]] * 3, None, ["saliency"], transform=to_tensor)


@pytest.mark.parametrize("has_batches_of_its_own", [False, True])
def test_a_sampler_keeps_the_numbers_of_the_data_set(has_batches_of_its_own):
    rows = [9, 3, 7]
    sampler, dataset = SubsetRandomSampler(rows), TensorDataset(IMAGES, TARGETS)
    loader = DataLoader(dataset, 2, sampler=sampler)
    if has_batches_of_its_own:
        loader = DataLoader(dataset, batch_sampler=BatchSampler(sampler, 2, drop_last=False))
    maps = heatproof.explain(MODEL, loader, None, ["random"])
    assert maps["image"].values.tolist() == ["3", "7", "9"]
    # Names seed random numbers, so an image has the map that it has among all.
    expected = heatproof.explain(MODEL, IMAGES, TARGETS, ["random"])["attribution"][:, sorted(rows)]
    np.testing.assert_array_equal(maps["attribution"], expected)


@pytest.mark.parametrize(
    "targets",
    [["grad_cam"], ["grad_cam", "saliency"], "grad_cam", {"rise": {"masks": 8}}, np.array(["grad_cam"] * COUNT)],
    ids=["one name", "names", "a text", "options", "an array of names"],
)
def test_methods_in_the_place_of_targets_are_named(targets):
    with pytest.raises(HeatproofError, match=r"The targets are names of methods: did you mean methods=\['"):
        heatproof.choose(MODEL, IMAGES, targets)


@pytest.mark.parametrize(
    "targets",
    [[{"rise": {"masks": 8}}], [to_tensor], to_tensor, ["grad_cam", to_tensor]],
    ids=["options", "functions", "a function", "a name and a function"],
)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_methods_of_other_kinds_in_the_place_of_targets_are_called_so(function, targets):
    with pytest.raises(HeatproofError, match=r"The targets are methods, which come after the targets: did you mean"):
        FUNCTIONS[function](IMAGES, targets)


class OneLogit(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3 * SIDE * SIDE, 1)

    def forward(self, images):
        return self.linear(images.flatten(1))


def test_labels_of_two_classes_may_be_floats():
    network = OneLogit().eval()
    labels = (torch.arange(COUNT) % 2).float()
    maps = heatproof.explain(network, IMAGES, labels, ["saliency"])
    expected = heatproof.explain(network, IMAGES, labels.long(), ["saliency"])
    assert maps.drop_vars("seconds").identical(expected.drop_vars("seconds"))
    assert maps["target"].values.tolist() == labels.tolist()


REGRESSION = {
    "explain": lambda network, values: heatproof.explain(network, IMAGES, values, ["saliency"], task="regression"),
    "evaluate": lambda network, values: heatproof.evaluate(
        "sds", network, IMAGES, values, MAPS, task="regression", grid=4
    ),
}


@pytest.mark.parametrize("function", REGRESSION)
def test_targets_that_a_regression_ignores_cause_a_warning(function):
    network, values = OneLogit().eval(), torch.linspace(0, 1, COUNT)
    with pytest.warns(UserWarning, match="The targets are not used, because the number itself"):
        REGRESSION[function](network, values)


def messages_of(function, images, targets):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        FUNCTIONS[function](images, targets)
    return [(str(warning.message), warning.filename) for warning in caught]


class LargestChannel(torch.nn.Module):
    """Predicts the channel with the largest mean, so that labels and predictions are known."""

    def forward(self, images):
        return 9 * images.mean((2, 3))


@pytest.mark.parametrize("function", ["explain", "evaluate", "choose"])
@pytest.mark.parametrize(
    ("shift", "pixels", "sentence"),
    [
        (0, False, None),
        (1, False, "would be right on 16 if labels were exchanged one to one, 0 as 2"),
        (1, True, "exchanged one to one"),
        (None, False, None),
        (None, True, "the images lie between 0 and 1, so if it was trained on images that were normalised"),
    ],
)
def test_labels_that_the_network_seldom_predicts_cause_one_warning(shift, pixels, sentence, function, monkeypatch):
    monkeypatch.setitem(globals(), "MODEL", LargestChannel().eval())
    labels = torch.arange(COUNT) % 3
    images = torch.rand(COUNT, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1)) * 0.5
    images[torch.arange(COUNT), labels] += 0.5
    images = images if pixels else (images - 0.5) / 0.2
    # Without a shift, the labels answer another question: no exchange helps.
    targets = (labels + shift) % 3 if shift is not None else (torch.arange(COUNT) // 3) % 3
    messages = [message for message in messages_of(function, images, targets) if "predicts the target" in message[0]]
    if sentence is None:
        # `choose` also warns without a cause, because its verdict is about these labels.
        assert function == "choose" or not messages
        assert not any("exchanged" in message or "between 0 and 1" in message for message, _ in messages)
        return
    ((message, file),) = messages
    assert sentence in message
    assert file == __file__


class WithText(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3 * SIDE * SIDE, 4)

    def forward(self, images, text=None):
        return self.linear(images.flatten(1)) @ text.T


class WithCaptions(WithText):
    def forward(self, images, captions, scale=1):
        return super().forward(images, captions)


@pytest.mark.parametrize(("network", "name"), [(WithText, "text"), (WithCaptions, "captions")])
def test_a_network_that_needs_more_than_images_is_named(network, name):
    with pytest.raises(HeatproofError, match=f"it takes {name} beside images, so give a module whose forward"):
        heatproof.explain(network().eval(), IMAGES, None, ["saliency"])


def test_callable_as_a_task_is_explained():
    with pytest.raises(HeatproofError, match="give the function as `target`, and no task"):
        heatproof.explain(MODEL, IMAGES, None, ["saliency"], task="callable")
