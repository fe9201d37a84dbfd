"""Images from tensors, loaders and folders give the same maps, names and classes; a subset of classes; and progress."""

import io
import random
import re

import numpy as np
import pytest
import torch
import xarray
from PIL import Image
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    default_collate,
)

import heatproof
from heatproof.api.inputs.read import read_inputs
from heatproof.core import batches
from heatproof.errors import HeatproofError


class Samples(Dataset):
    """A dataset whose samples a function builds from image and label; it counts the samples that are read."""

    def __init__(self, images, labels, form=lambda image, label: (image, label)):
        self.images, self.labels, self.form, self.read = images, labels, form, 0

    def __len__(self):
        return len(self.images)

    def __getitem__(self, number):
        self.read += 1
        return self.form(self.images[number], int(self.labels[number]))


class Stream(IterableDataset):
    def __init__(self, images, labels):
        self.pairs = list(zip(images, labels.tolist(), strict=True))

    def __iter__(self):
        return iter(self.pairs)


def pairs(images, labels, size=5):
    return list(zip(images.split(size), labels.split(size), strict=True))


def refilled(x, y):
    images, labels = torch.empty_like(x[:4]), torch.empty_like(y[:4])
    for low in range(0, len(x), 4):
        yield images.copy_(x[low : low + 4]), labels.copy_(y[low : low + 4])


LABELLED = {
    "a loader": lambda x, y: DataLoader(TensorDataset(x, y), 5),
    "a loader that shuffles": lambda x, y: DataLoader(TensorDataset(x, y), 5, shuffle=True),
    "a loader that drops its last batch": lambda x, y: DataLoader(TensorDataset(x, y), 5, drop_last=True),
    "a loader with batches of its own": lambda x, y: DataLoader(
        TensorDataset(x, y), batch_sampler=BatchSampler(SequentialSampler(range(12)), 5, False)
    ),
    "a loader that collates itself": lambda x, y: DataLoader(
        Samples(x, y),
        5,
        collate_fn=lambda batch: {"pixel_values": torch.stack([a for a, _ in batch]), "labels": [b for _, b in batch]},
    ),
    "a loader of dicts": lambda x, y: DataLoader(Samples(x, y, lambda a, b: {"image": a, "label": b}), 5),
    "a loader of arrays": lambda x, y: DataLoader(Samples(x.numpy(), y), 5),
    "a loader of three": lambda x, y: DataLoader(Samples(x, y, lambda a, b: (a, b, "path")), 5),
    "a loader of a part": lambda x, y: DataLoader(
        Subset(TensorDataset(torch.cat([x, x]), torch.cat([y + 9, y])), range(12, 24)), 5
    ),
    "a loader without batches": lambda x, y: DataLoader(pairs(x, y), batch_size=None),
    "a loader of a stream": lambda x, y: DataLoader(Stream(x, y), 5),
    "a data set": lambda x, y: TensorDataset(x, y),
    "a list of samples": lambda x, y: list(zip(x, y, strict=True)),
    "a list of batches": pairs,
    "a list of dicts": lambda x, y: [{"images": a, "targets": b} for a, b in pairs(x, y)],
    "a generator": lambda x, y: (pair for pair in pairs(x, y)),
    "a generator that fills one tensor again and again": refilled,
    "a generator of samples": lambda x, y: zip(x, y.tolist(), strict=True),
    "a stream of samples": lambda x, y: DataLoader(Stream(x, y), batch_size=None),
    "samples without batches": lambda x, y: DataLoader(TensorDataset(x, y), batch_size=None),
    "labels under a name of their own": lambda x, y: Samples(x, y, lambda a, b: {"img": a, "fine_label": b}),
}


@pytest.mark.parametrize("form", LABELLED)
def test_a_loader_gives_images_and_their_labels(form, network, images, targets):
    labels = (targets + 1) % 4
    explained = heatproof.explain(network, LABELLED[form](images, labels), None, ["saliency"])
    right = heatproof.explain(network, images, labels, ["saliency"])
    xarray.testing.assert_identical(explained.drop_vars("seconds"), right.drop_vars("seconds"))


UNLABELLED = {
    "a loader": lambda x: DataLoader(list(x), 5),
    "a list of batches": lambda x: list(x.split(5)),
    "an array": lambda x: x.numpy(),
    "a labelled array": lambda x: xarray.DataArray(x.numpy(), dims=("image", "channel", "y", "x")).T,
    "a list of dicts": lambda x: [{"x": batch} for batch in x.split(5)],
}


@pytest.mark.parametrize("form", UNLABELLED)
@pytest.mark.parametrize("has_targets", [False, True])
def test_images_without_labels_get_targets_or_the_predicted_class(form, has_targets, network, images, targets):
    labels = (targets + 1) % 4 if has_targets else None
    explained = heatproof.explain(network, UNLABELLED[form](images), labels, ["saliency"])
    right = heatproof.explain(network, images, labels if has_targets else targets, ["saliency"])
    # Predicting the classes takes one pass of each image.
    assert explained.attrs.pop("check_passes") - right.attrs.pop("check_passes") == (0 if has_targets else len(images))
    xarray.testing.assert_identical(explained.drop_vars("seconds"), right.drop_vars("seconds"))


def test_given_targets_take_precedence_over_labels(network, images, targets):
    labels = (targets + 1) % 4
    loader = DataLoader(TensorDataset(images, targets), 5)
    explained = heatproof.explain(network, loader, labels, ["saliency"], image_ids=list("abcdefghijkl"))
    np.testing.assert_array_equal(explained["target"], labels)
    assert explained["image"].values.tolist() == list("abcdefghijkl")


def test_other_functions_accept_loaders(network, images, targets):
    labels = (targets + 1) % 4
    loader = DataLoader(TensorDataset(images, labels), 5)
    maps = heatproof.explain(network, loader, None, ["saliency"])
    result = heatproof.evaluate("sds", network, loader, None, maps)
    xarray.testing.assert_identical(result, heatproof.evaluate("sds", network, images, labels, maps))
    both = [
        heatproof.finetune(network, inputs, classes, epochs=1) for inputs, classes in ((loader, None), (images, labels))
    ]
    for mine, theirs in zip(*(tuned.parameters() for tuned in both), strict=True):
        assert torch.equal(mine, theirs)
    assert both[0].heatproof["labels"] == "given"


@pytest.mark.filterwarnings("ignore")
def test_choose_accepts_loaders_and_classes(network):
    images = torch.randn(90, 3, 16, 16, generator=torch.Generator().manual_seed(8))
    with torch.no_grad():
        labels = network(images).argmax(1)
    classes = [int(number) for number in labels.bincount().argsort()[-2:]]
    loader = DataLoader(TensorDataset(images, labels), 16)
    choice = heatproof.choose(network, loader, None, ["saliency", "input_x_gradient"], classes=classes)
    rows = sum(labels == number for number in classes).bool()
    right = heatproof.choose(network, images[rows], labels[rows], ["saliency", "input_x_gradient"])
    assert choice.sentence == right.sentence
    assert sum(choice.images) == int(rows.sum())
    columns = [name for name in right.table if name != "seconds"]
    assert choice.table[columns].equals(right.table[columns])


def test_images_are_read_lazily(images, targets):
    dataset = Samples(images.repeat(50, 1, 1, 1), targets.repeat(50))
    source = read_inputs(None, DataLoader(dataset, 64), torch.zeros(600, dtype=torch.int64))
    assert dataset.read <= 16
    before = dataset.read
    assert torch.equal(source.read([7, 599]), images[[7, 11]])
    assert dataset.read == before + 2
    assert torch.equal(source.take([599, 7]).read(range(2)), images[[11, 7]])


class Listed(Samples):
    """A dataset that, like those of torchvision, has a list of its labels."""

    @property
    def targets(self):
        return self.labels.tolist()


@pytest.mark.parametrize("form", [lambda dataset: dataset, lambda dataset: Subset(dataset, range(600))])
def test_listed_labels_avoid_reading_the_images(form, images, targets):
    dataset = Listed(images.repeat(50, 1, 1, 1), targets.repeat(50))
    source = read_inputs(None, form(dataset), classes=[int(targets[0])])
    assert dataset.read <= 40
    assert (source.targets == targets[0]).all()


def test_listed_labels_that_differ_from_the_samples_are_ignored(images, targets):
    class Mapped(Listed):
        def __getitem__(self, number):
            image, label = super().__getitem__(number)
            return image, (label + 1) % 4

    assert torch.equal(read_inputs(None, Mapped(images, targets)).targets, (targets + 1) % 4)


def test_a_sampler_selects_the_images(images, targets):
    dataset = TensorDataset(images, targets)
    source = read_inputs(None, DataLoader(dataset, 5, sampler=[4, 2, 9]), torch.tensor([0, 1, 2]))
    assert torch.equal(source.images, images[[4, 2, 9]])
    source = read_inputs(None, DataLoader(dataset, 5, sampler=SubsetRandomSampler([4, 2, 9])))
    assert torch.equal(source.images, images[[2, 4, 9]])
    assert torch.equal(source.targets, targets[[2, 4, 9]])


@pytest.mark.parametrize("generator", [None, torch.Generator().manual_seed(3)])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_random_states_are_left_unchanged(shuffle, stream, generator, network, images, targets):
    if stream and shuffle:
        pytest.skip("a stream has no order to change")
    dataset = Stream(images, targets) if stream else TensorDataset(images, targets)
    loader = DataLoader(dataset, 5, shuffle=shuffle, generator=generator)

    def states():
        loader_state = [] if generator is None else [generator.get_state().tolist()]
        return torch.get_rng_state().tolist(), repr(np.random.get_state()), random.getstate(), loader_state  # noqa: NPY002

    before = states()
    heatproof.explain(network, loader, None, ["saliency"])
    assert states() == before


class Jitters(Samples):
    def __getitem__(self, number):
        image, label = super().__getitem__(number)
        return image.flip(-1) if torch.rand(()) < 0.5 else image, label


class Grows(Samples):
    def __getitem__(self, number):
        image, label = super().__getitem__(number)
        return image[:, : 16 - number], label


class Fails(Samples):
    def __getitem__(self, number):
        if number == 11:
            raise KeyError("no such file")
        return super().__getitem__(number)


def in_order_of_brightness(batch):
    return default_collate(sorted(batch, key=lambda sample: float(sample[0].sum())))


REFUSED = {
    "random augmentation": (lambda x, y: DataLoader(Jitters(x, y), 5), "each time that it is read: remove random"),
    "random augmentation of one image": (lambda x, y: DataLoader(Jitters(x[:1], y), 5), "each time that it is read"),
    "images of other shapes": (lambda x, y: DataLoader(Grows(x, y), 1), "shapes.*resize all to one"),
    "batches of other shapes": (lambda x, y: [(x[:6], y[:6]), (x[6:, :, :8], y[6:])], "shapes.*resize all to one"),
    "a data set that fails": (lambda x, y: DataLoader(Fails(x, y), 5), "loader fails .*KeyError.*next"),
    "a sampler with replacement": (lambda x, y: DataLoader(TensorDataset(x, y), 5, sampler=[1, 1]), "an image twice"),
    "a loader that sorts each batch": (
        lambda x, y: DataLoader(
            Samples(x, y),
            5,
            collate_fn=in_order_of_brightness,
        ),
        "sorting from its `collate_fn`",
    ),
    "labels of two kinds": (
        lambda x, y: Samples(x, y, lambda a, b: {"image": a, "fine_label": b, "coarse_label": b}),
        "fine_label and coarse_label.*give `targets`",
    ),
    "an empty loader": (lambda x, y: DataLoader(TensorDataset(x[:0], y[:0]), 5), "no images"),
    "an empty generator": (lambda x, y: iter(()), "only once"),
    "labels that are names": (lambda x, y: [(x, ["cat"] * 12)], "class names, as 'cat'"),
    "labels of several classes": (lambda x, y: [(x, torch.ones(12, 4))], "several classes"),
    "labels that are numbers": (lambda x, y: [(x, y + 0.5)], "a class is a whole number"),
    "keys that are not known": (
        lambda x, y: DataLoader(Samples(x, y, lambda a, b: {"a": a}), 5),
        "name its images 'image'",
    ),
    "images of PIL": (
        lambda x, y: DataLoader(Samples(x, y, lambda a, b: (Image.new("RGB", (16, 16)), b)), 5),
        r"give it transform=torchvision.transforms.ToTensor\(\)",
    ),
    "whole numbers": (lambda x, y: DataLoader(TensorDataset(x.to(torch.uint8), y), 5), r"images.float\(\).div\(255\)"),
    "a value that is not finite": (
        lambda x, y: DataLoader(TensorDataset(torch.cat([x[:3], x[3:] * float("nan")]), y), 5),
        "Image '3' has a value that is not finite",
    ),
    "a stream with a value that is not finite": (lambda x, y: [(x * float("inf"), y)], "Image '0' has a value"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_loaders_are_refused_in_one_sentence(case, network, images, targets):
    make, sentence = REFUSED[case]
    with pytest.raises(HeatproofError, match=sentence) as raised:
        heatproof.explain(network, make(images, targets), None, ["saliency"])
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("argument", ["targets", "image_ids"])
def test_ordered_arguments_are_refused_with_a_shuffling_loader(argument, network, images, targets):
    loader = DataLoader(TensorDataset(images, targets), 5, shuffle=True)
    with pytest.raises(HeatproofError, match=f"order of the {argument} is undefined: give one with shuffle=False"):
        heatproof.explain(network, loader, methods=["saliency"], **{"targets": None, argument: list(range(12))})


@pytest.fixture
def photos(tmp_path):
    generator = np.random.default_rng(0)
    for name, count in (("cat", 3), ("ant", 2), ("bee", 4)):
        (tmp_path / name).mkdir()
        for number in range(count):
            pixels = generator.integers(0, 255, (20, 24, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.png")
    return tmp_path


def transform(image):
    pixels = torch.from_numpy(np.array(image.resize((16, 16)))).permute(2, 0, 1)
    return (pixels.float() / 255 - 0.5) / 0.25


PATHS = [f"{name}/{n}.png" for name, count in (("ant", 2), ("bee", 4), ("cat", 3)) for n in range(count)]
CLASSES = [0, 0, 1, 1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("kind", [str, lambda path: path])
def test_a_folder_has_names_and_classes(kind, network, photos):
    explained = heatproof.explain(network, kind(photos), None, ["saliency"], transform=transform)
    assert explained["image"].values.tolist() == PATHS
    assert explained["target"].values.tolist() == CLASSES
    pixels = torch.stack([transform(Image.open(photos / path)) for path in PATHS])
    right = heatproof.explain(network, pixels, CLASSES, ["saliency"], image_ids=PATHS)
    xarray.testing.assert_identical(explained.drop_vars("seconds"), right.drop_vars("seconds"))


def test_system_folders_are_not_classes(network, photos):
    for name in ("__MACOSX", "@eaDir"):
        (photos / name).mkdir()
        (photos / name / "._0.png").write_bytes(b"")
    explained = heatproof.explain(network, photos, None, "saliency", transform=transform)
    assert explained["target"].values.tolist() == [0] * 2 + [1] * 4 + [2] * 3


def test_a_loader_of_a_folder_has_the_same_names_and_classes(network, photos):
    torchvision = pytest.importorskip("torchvision")
    dataset = torchvision.datasets.ImageFolder(photos, transform)
    explained = heatproof.explain(network, DataLoader(dataset, 4), None, ["saliency"])
    right = heatproof.explain(network, photos, None, ["saliency"], transform=transform)
    xarray.testing.assert_identical(explained.drop_vars("seconds"), right.drop_vars("seconds"))
    part = heatproof.explain(network, DataLoader(Subset(dataset, [8, 1]), 4), None, ["saliency"])
    assert part["image"].values.tolist() == [PATHS[8], PATHS[1]]
    assert part["target"].values.tolist() == [2, 0]


def test_a_model_of_timm_defines_the_transform(photos):
    timm = pytest.importorskip("timm")
    model = timm.create_model("test_resnet", num_classes=3).eval()
    source = read_inputs(model, photos)
    assert source.images.shape[1:] == model.pretrained_cfg["input_size"]
    expected = timm.data.create_transform(**timm.data.resolve_data_config({}, model=model))(
        Image.open(photos / PATHS[4]).convert("RGB")
    )
    assert torch.equal(source.images[4], expected)
    with pytest.raises(HeatproofError, match=r"3 class folders and the model 10 outputs.*give `targets`"):
        read_inputs(timm.create_model("test_resnet", num_classes=10).eval(), photos)


def test_a_folder_without_classes_is_explained_for_the_predicted_class(network, photos):
    explained = heatproof.explain(network, photos / "bee", None, ["saliency"], transform=transform)
    pixels = torch.stack([transform(Image.open(photos / "bee" / name)) for name in explained["image"].values])
    with torch.no_grad():
        assert explained["target"].values.tolist() == network(pixels).argmax(1).tolist()
    assert explained["image"].values.tolist() == [f"{number}.png" for number in range(4)]


def laid_out(photos, how):
    if how == "split":
        for name in ("train", "val"):
            (photos / name / "cat").mkdir(parents=True)
            Image.new("RGB", (16, 16)).save(photos / name / "cat" / "0.png")
    elif how == "loose":
        Image.new("RGB", (16, 16)).save(photos / "loose.png")
    elif how == "damaged":
        (photos / "bee" / "2.png").write_bytes(b"no picture")
    elif how == "empty":
        (photos / "nothing").mkdir()
        return photos / "nothing"
    elif how == "file":
        return photos / "bee" / "2.png"
    elif how == "missing":
        return photos / "nowhere"
    return photos


def flips(image):
    return transform(image).flip(-1) if torch.rand(()) < 0.5 else transform(image)


FOLDERS = {
    "a folder that is not there": ("missing", transform, "There is no folder .*nowhere"),
    "a file": ("file", transform, "is a file: name the folder"),
    "an empty folder": ("empty", transform, "has no images"),
    "train and val": ("split", transform, "has train and val: name one of them"),
    "an image beside class folders": ("loose", transform, "image 'loose.png' beside class folders"),
    "a damaged image": ("damaged", transform, r"The image .*2.png cannot be read .*: repair or remove it"),
    "no transform": ("", None, r"DataLoader\(ImageFolder\(folder, transform\), 64\)"),
    "a transform that is none": ("", 3, "`transform` is int"),
    "a transform that makes no tensor": ("", lambda image: image, "`transform` returns Image"),
    "a transform that makes bytes": ("", lambda image: transform(image).byte(), "`transform` returns torch.uint8"),
    "a transform that fails": (
        "",
        lambda image: image.nothing,
        "`transform` fails on the image .*AttributeError",
    ),
    "a random transform": ("", flips, "`transform` returns another image .*each time"),
    "shapes that differ": (
        "",
        lambda image: transform(image)[:, : 16 - int(np.array(image)[0, 0, 0]) % 2],
        "have the shapes .*after `transform`",
    ),
    "a value that is not finite": ("", lambda image: transform(image) / 0, "Image 'ant/0.png' has a value"),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_invalid_folders_are_refused_in_one_sentence(case, network, photos):
    how, function, sentence = FOLDERS[case]
    with pytest.raises(HeatproofError, match=sentence) as raised:
        heatproof.explain(network, laid_out(photos, how), None, ["saliency"], transform=function)
    assert "\n" not in str(raised.value)


def test_a_transform_with_a_tensor_is_refused(network, images, targets):
    with pytest.raises(HeatproofError, match="leave it out"):
        heatproof.explain(network, images, targets, ["saliency"], transform=transform)


@pytest.mark.parametrize("classes", [[1, 3], (3, 1), {1, 3}, np.array([1, 3]), torch.tensor([1, 3]), range(1, 4, 2)])
@pytest.mark.parametrize("form", ["tensor", "loader"])
def test_a_subset_of_the_classes_keeps_the_image_names(form, classes, network, images):
    labels = torch.arange(12) % 4
    inputs = (images, labels) if form == "tensor" else (DataLoader(TensorDataset(images, labels), 5), None)
    explained = heatproof.explain(network, *inputs, ["saliency", "random"], classes=classes)
    expected = heatproof.explain(network, images, labels, ["saliency", "random"])
    rows = [row for row in range(12) if row % 4 in (1, 3)]
    assert explained["image"].values.tolist() == [str(row) for row in rows]
    np.testing.assert_array_equal(explained["attribution"], expected["attribution"][:, rows])


def test_classes_of_a_folder_can_be_selected_by_name(network, photos):
    explained = heatproof.explain(network, photos, None, ["saliency"], transform=transform, classes=["cat", 0])
    assert explained["target"].values.tolist() == [0, 0, 2, 2, 2]


def test_classes_without_labels_are_the_predicted_ones(network, images, targets):
    chosen = int(targets[0])
    explained = heatproof.explain(network, images, None, ["saliency"], classes=[chosen])
    assert explained["image"].values.tolist() == [str(row) for row in range(12) if targets[row] == chosen]


@pytest.mark.parametrize(
    ("classes", "sentence"),
    [
        (3, r"as classes=\[3\]"),
        ("cat", "give a list of class numbers"),
        ([], "classes is empty"),
        ([9], "No image has the class 9"),
        ([1, "cat"], "only a folder of class folders has names"),
        ([1.0], "classes has 1.0"),
        ([True], "classes has True"),
        ({1: 2}, "give a list"),
    ],
)
def test_invalid_classes_are_refused(classes, sentence, network, images):
    with pytest.raises(HeatproofError, match=sentence):
        heatproof.explain(network, images, torch.arange(12) % 4, ["saliency"], classes=classes)


def test_a_missing_class_folder_is_named(network, photos):
    with pytest.raises(HeatproofError, match=r"no class folder 'cats'.*cat"):
        heatproof.explain(network, photos, None, ["saliency"], transform=transform, classes=["cats"])


@pytest.fixture
def stderr_text(capsys):
    """Return the text that is written to stderr, which is a file."""
    return lambda: capsys.readouterr().err


@pytest.mark.parametrize(("progress", "lines"), [(True, True), (False, False), (None, False)])
def test_progress_is_printed_if_requested(progress, lines, stderr_text, network, images, targets):
    heatproof.explain(network, images, targets, ["saliency", "random"], progress=progress)
    assert bool(re.search(r"^maps of 2 methods: 0 of 24 images$", stderr_text(), re.M)) == lines


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("progress", "lines"), [(True, True), (False, False), (None, False)])
def test_choose_prints_the_progress_of_both_halves(progress, lines, stderr_text, network):
    images = torch.randn(16, 3, 16, 16, generator=torch.Generator().manual_seed(8))
    heatproof.choose(network, images, None, ["saliency"], progress=progress)
    written = stderr_text()
    first = "First half: selecting options of 3 methods on 8 images."
    second = "Second half: scoring 3 methods on 8 images."
    for line in (first, second, "maps of 3 methods: 0 of 24 images", "scores by 2 metrics: 0 of 16 images"):
        assert (line in written) == lines


def test_progress_lines_state_the_remaining_time(stderr_text, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(batches, "time", type("Clock", (), {"monotonic": staticmethod(lambda: now[0])}))
    with batches.show_progress(True):
        for _ in batches.track(range(8), "maps", unit="batch"):
            now[0] += 4
    assert stderr_text().splitlines() == [
        "maps: 0 of 8 batches",
        "maps: 3 of 8 batches, 0.25 batches/s, 20 s left",
        "maps: 6 of 8 batches, 0.25 batches/s, 8 s left",
        "maps: 8 batches in 32.0 s",
    ]


@pytest.mark.parametrize("progress", [True, False])
def test_a_terminal_has_a_progress_bar_unless_progress_is_off(progress, monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stderr", terminal)
    assert list(batches.track([5, 6], "maps", progress=progress)) == [5, 6]
    assert ("maps" in terminal.getvalue()) == progress


@pytest.mark.parametrize("progress", ["yes", 1, []])
def test_invalid_values_of_progress_are_refused(progress, network, images, targets):
    with pytest.raises(HeatproofError, match="'progress' of heatproof"):
        heatproof.explain(network, images, targets, ["saliency"], progress=progress)
