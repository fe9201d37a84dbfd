"""`heatproof init` writes a config that runs."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from heatproof.core.grids import divides
from heatproof.core.input_facts import InputFacts
from heatproof.errors import HeatproofError
from heatproof.models.network import build_network
from heatproof.models.registry import ModelSpec
from heatproof.store.publishing import escaped
from heatproof.store.strict_yaml import read_mapping
from heatproof.workflow.check import check_config
from heatproof.workflow.commands.init import _grids, init
from heatproof.workflow.config.files import read_config
from heatproof.workflow.plan.validate import make_plan


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Two classes of twenty image files of 40×48 pixels, in the working folder."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    for name in ("cat", "dog"):
        folder = tmp_path / "photos" / name
        folder.mkdir(parents=True)
        for number in range(20):
            pixels = generator.integers(0, 256, (48, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    return "photos"


def test_a_network_for_any_size_gets_the_size_of_the_images(photos):
    output = init(photos, "cifar_resnet20", "mine.yaml")
    assert output.endswith("heatproof run mine.yaml --cores 2"), "which works without a clone as well"
    assert "is sound" in check_config("mine.yaml")
    plan = make_plan(read_config("mine.yaml"))
    assert plan.size_of("photographs", "cifar_resnet20") in (None, (48, 40))
    assert plan.datasets["photographs"]["options"]["size"] == [48, 40]
    assert plan.images_of_kinds == {"drops": 8, "curves": 8, "subsets": 8, "parts": 8}
    text = Path("mine.yaml").read_text()
    assert "2 classes; 28 train, 4 validation, 8 evaluation images" in text
    assert "Grids that divide them: 2, 4, 8" in text
    # The intact image and 16 patches, on two networks.
    assert f"{17 * 8 * 2:,} passes for patch drops" in text


@pytest.mark.slow
def test_a_network_of_timm_brings_its_size_and_resizing(photos):
    pytest.importorskip("timm")
    init(photos, "timm:convnext_tiny")
    config = yaml.safe_load(Path("mine.yaml").read_text())
    dataset = config["datasets"][0]["photographs"]
    assert (dataset["size"], dataset["resize"], dataset["interpolation"]) == (224, 236, "bicubic")
    assert config["models"] == [{"convnext_tiny": {"architecture": "timm_model", "options": {"name": "convnext_tiny"}}}]
    assert "normalised with mean 0.485, 0.456, 0.406 and deviation 0.229, 0.224, 0.225" in Path("mine.yaml").read_text()


def test_options_are_chosen_to_fit_published_weights(photos):
    """Published weights of cifar_resnet20 have shortcuts without weights, under other names."""
    spec = ModelSpec("cifar_resnet20", "heatproof.models.resnet", {"shortcut": "A"})
    state = build_network(spec, 10).state_dict()
    theirs = {f"module.their_{position}.{name.rpartition('.')[2]}": state[name] for position, name in enumerate(state)}
    torch.save(theirs, "theirs.th")
    output = init(photos, "cifar_resnet20", checkpoint="theirs.th")
    text = Path("mine.yaml").read_text()
    model = yaml.safe_load(text)["models"][0]["cifar_resnet20"]
    assert model["options"] == {"shortcut": "A"}
    assert (model["mean"], model["std"]) == ([0.5] * 3, [0.5] * 3)
    for source in (output, text):
        assert "Check mean and std of the model: the weights must have been trained with them." in source
    assert "is sound" in check_config("mine.yaml")
    Path("mine.yaml").write_text(text.replace("shortcut: A", "shortcut: B"))
    with pytest.raises(
        HeatproofError, match=r"do not fit .*: with options: \{shortcut: A\} they fit \(by default width=16"
    ):
        check_config("mine.yaml")
    Path("mine.yaml").write_text(text.replace("shortcut: A", "width: 4"))
    with pytest.raises(
        HeatproofError, match=r"shortcut=B; `heatproof list models` shows them\), and the number of class"
    ):
        check_config("mine.yaml")


def test_published_weights_keep_all_but_their_head(photos):
    with pytest.raises(HeatproofError, match=r"There is no file weights.pth: --checkpoint is a file of weights"):
        init(photos, "torchvision:resnet18", checkpoint="weights.pth")
    Path("weights.pth").touch()
    init(photos, "torchvision:resnet18", checkpoint="weights.pth")
    model = yaml.safe_load(Path("mine.yaml").read_text())["models"][0]["resnet18"]
    assert (model["checkpoint"], model["transfer"]) == ("weights.pth", True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "timm:convnext_tiy"}, "timm has no network 'convnext_tiy'"),
        ({"model": "keras:vgg"}, "write timm:NAME, torchvision:NAME"),
        ({"model": "resnt"}, "architecture"),
        (
            {"model": "resnet18"},
            "no architecture named 'resnet18': for the network of that library write torchvision:r",
        ),
        ({"model": "regnet_x_400mf"}, "for the network of that library write torchvision:regnet_x_400mf"),
        ({"photos": "nowhere"}, "There is no folder nowhere"),
    ],
)
def test_unknown_models_and_folders_are_refused(photos, changes, message):
    with pytest.raises(HeatproofError, match=message):
        init(**{"photos": photos, "model": "cifar_resnet20", **changes})


def test_an_existing_config_is_not_overwritten(photos, tmp_path):
    (tmp_path / "mine.yaml").write_text("mine")
    with pytest.raises(HeatproofError, match=r"mine.yaml is there: give another name with --out"):
        init(photos, "cifar_resnet20")
    assert (tmp_path / "mine.yaml").read_text() == "mine"


HOSTILE = [
    "a\nplugins: [evil]",
    "a\r\nplugins: [evil]",
    "a\rplugins: [evil]",
    "a\x85plugins: [evil]",
    "a\u2028plugins: [evil]",
    "a\u202egnihton",
    "a\x1b[2J",
    "a: b",
    "a #b",
    "- a",
    "{a: b}",
    "&a",
    "*a",
    "!!set",
    "%YAML",
    "---",
    "no",
    "1e-3",
    "2001-01-01",
    "'\"\\",
    "Äpfel 日本",
]


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_folder_names_are_written_as_texts(photos, name):
    Path(photos).rename(name)
    output = init(name, "cifar_resnet20")
    written = Path("mine.yaml").read_text()
    assert escaped(written) == written, "nothing is hidden, comments included"
    comments = [line for line in written.splitlines() if line.startswith("#")]
    config = read_mapping("mine.yaml")
    assert config["datasets"][0]["photographs"]["root"] == name
    assert yaml.safe_load(written) == config
    Path(name).rename("photos")
    Path("mine.yaml").unlink()
    init("photos", "cifar_resnet20")
    plain = read_mapping("mine.yaml")
    plain["datasets"][0]["photographs"]["root"] = name
    assert config == plain
    assert len(comments) == len([line for line in Path("mine.yaml").read_text().splitlines() if line.startswith("#")])
    assert "plugins" not in output


def test_a_folder_name_that_is_not_utf8_is_refused(photos):
    os.rename(photos, b"a\xff")
    with pytest.raises(HeatproofError, match=r"The name of the folder a\\xff is not UTF-8: rename it"):
        init(os.fsdecode(b"a\xff"), "cifar_resnet20")


def test_next_commands_are_quoted_for_a_shell(photos):
    assert "heatproof check 'a; b.yaml'\n" in init(photos, "cifar_resnet20", "a; b.yaml")


def test_too_few_images_per_class_give_a_warning(photos):
    for number in range(1, 20):
        for name in ("cat", "dog"):
            Path(f"photos/{name}/{number}.png").rename(f"photos/{name}_{number}.png")
            Path(f"photos/{name}_{number}").mkdir()
            Path(f"photos/{name}_{number}.png").rename(f"photos/{name}_{number}/0.png")
    init(photos, "cifar_resnet20")
    assert "warning: 28 train and 4 validation images for 40 classes, fewer than two per class" in check_config(
        "mine.yaml"
    )


def test_enough_images_per_class_give_no_warning(photos):
    init(photos, "cifar_resnet20")
    assert "warning" not in check_config("mine.yaml")


def test_a_users_function_builds_the_network(photos, tmp_path, monkeypatch):
    (tmp_path / "own").mkdir()
    (tmp_path / "own/nets.py").write_text(
        "from torch import nn\n"
        "def build(num_classes, *, width=4):\n"
        "    return nn.Sequential(nn.Conv2d(3, width, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(num_classes))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    output = init(photos, "own.nets:build")
    text = Path("mine.yaml").read_text()
    model = yaml.safe_load(text)["models"][0]["nets"]
    assert model == {"architecture": "own.nets:build", "mean": [0.5] * 3, "std": [0.5] * 3}
    assert "Check mean and std of the model" in text
    assert output.startswith("mine.yaml is written")
    assert make_plan(read_config("mine.yaml")).models["nets"].architecture == "own.nets:build"


@pytest.mark.parametrize("model", ["own.nowhere:build", "keras:vgg", "json:nothing"])
def test_an_unknown_model_function_is_refused_in_one_sentence(model, photos):
    with pytest.raises(
        HeatproofError, match=rf"--model {model}: write timm:NAME, .* package.module:function"
    ) as caught:
        init(photos, model)
    assert "\n" not in str(caught.value)
    assert not Path("mine.yaml").exists()


@pytest.mark.parametrize("processor", [True, False])
def test_a_transformers_folder_gives_size_and_preprocessing(processor, photos, tmp_path):
    folder = tmp_path / "nets/swin.tiny"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "swin", "image_size": 32}')
    if processor:
        (folder / "preprocessor_config.json").write_text(
            '{"image_mean": [0.4, 0.4, 0.4], "image_std": [0.2, 0.2, 0.2]}'
        )
    init(photos, "transformers:nets/swin.tiny")
    text = Path("mine.yaml").read_text()
    config = yaml.safe_load(text)
    model = config["models"][0]["swin"]
    assert model["architecture"] == "transformers_model"
    assert model["options"] == {"name": "nets/swin.tiny"}
    assert model.get("mean") == (None if processor else [0.5] * 3)
    assert ("Check mean and std of the model" in text) != processor
    assert config["datasets"][0]["photographs"]["size"] == 32
    expected = 0.4 if processor else 0.5
    assert make_plan(read_config("mine.yaml")).models["swin"].facts.mean == (expected,) * 3


@pytest.mark.parametrize(("outputs", "named"), [(10, True), (1, False)])
def test_weights_of_more_classes_than_folders_can_keep_their_head(outputs, named, photos):
    """The existing head belongs to the network; a new one would make another network."""
    state = build_network(ModelSpec("cifar_resnet20", "heatproof.models.resnet", {}), outputs).state_dict()
    torch.save(state, "ten.pth")
    init(photos, "cifar_resnet20", checkpoint="ten.pth")
    text = Path("mine.yaml").read_text()
    Path("mine.yaml").write_text(text.replace("transfer: true", "transfer: false"))
    with pytest.raises(HeatproofError, match=r"2 classes of 'photographs': .*set transfer: true") as caught:
        check_config("mine.yaml")
    advice = "among the 10 that the weights know, name their outputs in the dataset's settings, as outputs: {class"
    assert (advice in str(caught.value)) == named
    if named:
        config = read_mapping("mine.yaml")
        config["datasets"][0]["photographs"] |= {"outputs": {"cat": 3, "dog": 5}, "num_outputs": 10}
        Path("mine.yaml").write_text(yaml.safe_dump(config))
        assert "is sound" in check_config("mine.yaml")


@pytest.mark.parametrize(
    ("size", "grid"),
    [
        ((96, 100), 4),
        ((64, 80), 4),
        ((50, 64), 2),
        ((64, 81), [4, 3]),
        ((81, 64), [3, 4]),
        ((224, 97), [4, 1]),
        ((77, 90), [7, 5]),
    ],
)
def test_images_without_a_square_grid_get_rows_and_columns(size, grid):
    grids = _grids(*size)
    assert grids[0] == grid
    assert all(divides(grid, *size) for grid in grids)


def test_images_without_any_patch_grid_are_refused():
    with pytest.raises(HeatproofError, match="89×97 pixels have no patch grid"):
        _grids(89, 97)


def test_rows_and_columns_are_written_into_a_config(photos, tmp_path, monkeypatch):
    odd = InputFacts(size=(64, 81))
    monkeypatch.setattr("heatproof.workflow.commands.init.facts_of", lambda settings: (odd, True))
    init("photos", "cifar_resnet20")
    config = yaml.safe_load((tmp_path / "mine.yaml").read_text())
    assert config["drops"]["grids"] == [[4, 3]]
    assert config["finetuning"]["grid"] == [4, 3]
    assert "# Grids that divide them: [4, 3]\n" in (tmp_path / "mine.yaml").read_text()
