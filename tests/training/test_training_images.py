"""Images that are read from disk in each epoch, random crops and flips, and the losses."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import RandomResizedCrop
from torchvision.transforms import functional as transforms

from heatproof.core.input_facts import InputFacts
from heatproof.core.normalise import normalise
from heatproof.core.randomness import torch_generator
from heatproof.datasets.image_files import CROP_DRAWS, RATIO, crop_box
from heatproof.datasets.image_folder import image_folder
from heatproof.training import examples as reading
from heatproof.training.examples import crop_images, read_examples
from heatproof.training.loop import flip_randomly
from heatproof.training.losses import compute_loss

FACTS = InputFacts(mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))


@pytest.fixture
def photos(tmp_path):
    """Write two classes of images that are larger than the network's input and not square."""
    for label, name in enumerate(("ant", "bee")):
        for number in range(15):
            folder = tmp_path / "photos" / name
            folder.mkdir(parents=True, exist_ok=True)
            drawn = np.random.default_rng([label, number]).integers(0, 256, (24, 30, 3), dtype=np.uint8)
            Image.fromarray(drawn).save(folder / f"{number}.png")
    return image_folder(seed=0, root=str(tmp_path / "photos"), size=16, resize=20)


def read_train(photos, smallest=0.0, seed=0):
    labels = torch.from_numpy(photos.splits["train"].labels)
    return read_examples(photos, "train", labels, FACTS, smallest, seed)


def test_images_from_disk_and_in_memory_are_equal(photos, monkeypatch):
    held = read_train(photos)
    assert isinstance(held.images, torch.Tensor)
    monkeypatch.setattr(reading, "IN_MEMORY", 0)
    torch.set_num_threads(3)
    stored = read_train(photos)
    assert stored.images.readers == 3
    torch.set_num_threads(1)
    assert not isinstance(stored.images, torch.Tensor)
    rows = torch.randperm(len(held.labels), generator=torch_generator(0, "rows"))[:9]
    assert torch.equal(stored.images[rows], held.images[rows])
    assert torch.equal(stored.images[3:8], held.images[3:8])


@pytest.mark.parametrize("baseline", ["zeros", "random"])
def test_a_training_from_disk_ends_in_the_same_bytes(project, monkeypatch, baseline):
    change = {"pretraining": {"epochs": 2}, "finetuning": {"epochs": 2, "baseline": baseline}}
    projects = [project(**change).train()]
    monkeypatch.setattr(reading, "IN_MEMORY", 0)
    projects.append(project(**change).train())
    for name in ("pretrained.safetensors", "finetuned.safetensors", "finetuned.history.csv"):
        path, other = (each.folder / "results/weights/toy/net" / name for each in projects)
        assert path.read_bytes() == other.read_bytes(), name


def test_crops_are_of_the_stored_image_and_drawn_by_row_and_epoch(photos):
    examples = read_train(photos, smallest=0.3)
    rows = torch.tensor([4, 0, 7])
    first = examples.crop(rows, 1)
    assert first.shape == (3, 3, 16, 16)
    assert torch.equal(examples.crop(rows.flip(0), 1), first.flip(0)), "in any batch"
    assert not torch.equal(examples.crop(rows, 2), first)
    assert not torch.equal(read_train(photos, 0.3, seed=1).crop(rows, 1), first)
    drawn = reading.counter_uniform(0, "crop of epoch 1", ["4"], (CROP_DRAWS,)).numpy()[0]
    top, left, height, width = crop_box(24, 30, drawn, 0.3)
    listed, order = photos._selected("train")
    with Image.open(listed.places[order[4]]) as image:
        cut = transforms.resized_crop(image, top, left, height, width, [16, 16])
    assert torch.equal(first[:1], normalise(np.asarray(cut, np.float32).transpose(2, 0, 1)[None] / 255, FACTS))


def test_boxes_have_the_requested_areas_and_shapes():
    drawn = np.random.default_rng(0).random((2000, CROP_DRAWS))
    boxes = np.array([crop_box(300, 400, draws, 0.08) for draws in drawn])
    top, left, height, width = boxes.T
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + height <= 300).all()
    assert (left + width <= 400).all()
    area, ratio = height * width / 120_000, width / height
    assert 0.07 < area.min() < 0.1
    assert 0.9 < area.max() <= 1
    assert RATIO[0] * 0.97 < ratio.min()
    assert ratio.max() < RATIO[1] * 1.03
    # An image that is not square refuses some large boxes.
    theirs = [RandomResizedCrop.get_params(torch.empty(3, 300, 400), [0.08, 1.0], RATIO)[2:] for _ in range(2000)]
    assert area.mean() == pytest.approx(np.prod(theirs, axis=1).mean() / 120_000, abs=0.03)
    assert abs(np.log(ratio).mean()) < 0.03
    # No attempt fits into a strip, so that the largest allowed box at its centre is used.
    assert crop_box(300, 30, np.full(CROP_DRAWS, 0.9), 0.9) == (130, 0, 40, 30)


def test_images_without_files_are_cropped_directly():
    images = torch.arange(144.0).reshape(1, 1, 12, 12)
    crops = crop_images(images, np.full((1, CROP_DRAWS), 0.5), 0.25)
    assert crops.shape == images.shape
    assert images.min() < crops.min()
    assert crops.max() < images.max()


def test_flips_are_drawn_by_row_and_epoch():
    images = torch.rand(400, 3, 4, 5)
    rows = torch.arange(400)
    mirrored = flip_randomly(images, 0.5, 0, 1, rows)
    flipped = (mirrored == images.flip(-1)).flatten(1).all(1)
    assert (flipped | (mirrored == images).flatten(1).all(1)).all()
    assert 0.4 < flipped.float().mean() < 0.6
    assert torch.equal(flip_randomly(images[7:9], 0.5, 0, 1, rows[7:9]), mirrored[7:9])
    assert not torch.equal(flip_randomly(images, 0.5, 0, 2, rows), mirrored)


def test_binary_cross_entropy_is_the_mean_over_classes():
    logits, labels = torch.tensor([[2.0, -1.0, 0.5], [0.0, 3.0, -2.0]]), torch.tensor([0, 2])
    p = logits.sigmoid()
    wanted = -(p[0, 0].log() + (1 - p[0, 1:]).log().sum() + (1 - p[1, :2]).log().sum() + p[1, 2].log()) / 6
    assert compute_loss("binary_cross_entropy", logits, labels).item() == pytest.approx(wanted.item())


def test_settings_reach_the_training(project, trained):
    weights_of = {"pretrained": (trained.folder / "results/weights/toy/net/pretrained.safetensors").read_bytes()}
    for change in (
        {"loss": "binary_cross_entropy"},
        {"random_horizontal_flip": 0.5},
        {"random_resized_crop": 0.5},
        {"optimizer": "adam", "lr": 0.01},
    ):
        other = project(pretraining=change).train()
        weights_of[str(change)] = (other.folder / "results/weights/toy/net/pretrained.safetensors").read_bytes()
    assert len(set(weights_of.values())) == 5


MEASURE = """
import sys
from pathlib import Path
import torch
from heatproof.datasets.image_folder import image_folder
from heatproof.core.input_facts import InputFacts
from heatproof.core.specs import Schedule
from heatproof.training.loop import fit
from heatproof.training import examples as reading
data = image_folder(seed=0, root=sys.argv[1], size=160)
reading.IN_MEMORY = int(sys.argv[2])
def peak():
    # The peak from `resource` includes the memory of the parent process.
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) // 1024
before = peak()
facts = InputFacts(mean=(0.5,) * 3, std=(0.2,) * 3)
train, validation = (
    reading.read_examples(data, name, torch.from_numpy(data.splits[name].labels), facts, 0.0, 0)
    for name in ("train", "validation")
)
net = torch.nn.Sequential(torch.nn.AvgPool2d(80), torch.nn.Flatten(), torch.nn.Linear(12, 2))
rest = {"momentum": 0.9, "weight_decay": 0.0, "schedule": "step", "decay": 0.1, "decay_every": 5}
fit(net, train, validation, Schedule(1, 16, "sgd", 0.1, label_smoothing=0.0, shift=0, **rest), 0)
print(peak() - before)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_folder(tmp_path):
    """1,000 photographs of 160 pixels are 300 MB in memory, and 5 MB per batch."""
    drawn = np.random.default_rng(0).integers(0, 256, (190, 190, 3), dtype=np.uint8)
    for name in ("ant", "bee"):
        (tmp_path / name).mkdir()
        for number in range(700):
            Image.fromarray(drawn).save(tmp_path / name / f"{number}.jpg")
    used = {}
    for most in (0, 2**31):
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, str(tmp_path), str(most)], capture_output=True, text=True, check=True
        )
        used[most] = int(done.stdout)
    print(used)
    assert used[2**31] - used[0] > 200
