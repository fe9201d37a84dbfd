"""How published weights read pictures, and that `heatproof check` says where a dataset reads them otherwise."""

import json

import pytest
from PIL import Image

from heatproof.config import default_config, merge
from heatproof.models.preprocessing import differences, preprocessing
from heatproof.plan.validate import make_plan
from heatproof.trial import look_at_pictures


@pytest.mark.parametrize(
    ("architecture", "name", "expected"),
    [
        ("timm_model", "tf_efficientnet_lite0", {"size": 224, "resize": 256, "interpolation": "bicubic"}),
        ("torchvision_model", "inception_v3", {"size": 299, "resize": 342, "interpolation": "bilinear"}),
    ],
)
def test_libraries_say_it_of_their_weights(architecture, name, expected):
    assert preprocessing(architecture, {"name": name}) == expected
    assert differences(architecture, {"name": name}, expected) == []
    assert differences(architecture, {"name": name}, {**expected, "resize": 300}) == [f"resize: {expected['resize']}"]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"size": {"height": 224, "width": 224}, "resample": 2}, (224, 224, "bilinear")),
        ({"size": {"shortest_edge": 224}, "crop_pct": 0.875, "resample": 3}, (224, 256, "bicubic")),
        ({"size": 256, "do_center_crop": True, "crop_size": {"height": 224}, "resample": 3}, (224, 256, "bicubic")),
    ],
)
def test_image_processors_say_it_in_their_folder(tmp_path, told, expected):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(told))
    assert tuple(preprocessing("transformers_model", {"name": str(tmp_path)}).values()) == expected


def test_of_other_networks_nothing_is_known():
    assert preprocessing("cifar_resnet20", {}) == {}


def test_what_is_read_otherwise_is_said_before_the_run(tmp_path):
    for number in range(40):
        picture = tmp_path / "photos" / ("ant", "bee")[number % 2] / f"{number}.png"
        picture.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (48, 40)).save(picture)
    model = {"architecture": "timm_model", "options": {"name": "tf_efficientnet_lite0"}, "transfer": True}
    photographs = {"dataset": "image_folder", "root": str(tmp_path / "photos"), "size": 224}
    config = {
        "datasets": [{"zoomed": {**photographs, "resize": 300}}, {"plain": photographs}],
        "models": [{"lite0": {**model, "checkpoint": "mine.pth"}}],
        "evaluation": {"images": 4, "accuracy_images": 4},
    }
    said = look_at_pictures(make_plan(merge(default_config(), config)))
    assert [line for line in said if "published" in line] == [
        "zoomed: the weights of lite0 were published with resize: 256, interpolation: bicubic; set that in the "
        "dataset to read pictures so"
    ]
