"""Preprocessing of published weights, and `heatproof check` on datasets that differ from it."""

import json
import os

import pytest
from PIL import Image

from heatproof.errors import HeatproofError
from heatproof.models.from_transformers import transformers_facts
from heatproof.models.preprocessing import preprocessing, preprocessing_differences
from heatproof.workflow.config.files import default_config, merge
from heatproof.workflow.plan.validate import make_plan
from heatproof.workflow.trial import inspect_image_files


@pytest.mark.parametrize(
    ("architecture", "name", "expected"),
    [
        ("timm_model", "tf_efficientnet_lite0", {"size": 224, "resize": 256, "interpolation": "bicubic"}),
        ("torchvision_model", "inception_v3", {"size": 299, "resize": 342, "interpolation": "bilinear"}),
    ],
)
def test_libraries_declare_the_preprocessing(architecture, name, expected):
    assert preprocessing(architecture, {"name": name}) == expected
    assert preprocessing_differences(architecture, {"name": name}, expected) == []
    assert preprocessing_differences(architecture, {"name": name}, {**expected, "resize": 300}) == [
        f"resize: {expected['resize']}"
    ]


@pytest.mark.parametrize(
    ("processor", "expected"),
    [
        ({"size": {"height": 224, "width": 224}, "resample": 2}, (224, 224, "bilinear")),
        ({"size": {"shortest_edge": 224}, "crop_pct": 0.875, "resample": 3}, (224, 256, "bicubic")),
        ({"size": 256, "do_center_crop": True, "crop_size": {"height": 224}, "resample": 3}, (224, 256, "bicubic")),
    ],
)
def test_image_processors_declare_the_preprocessing(tmp_path, processor, expected):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
    assert tuple(preprocessing("transformers_model", {"name": str(tmp_path)}).values()) == expected


def test_other_networks_declare_nothing():
    assert preprocessing("cifar_resnet20", {}) == {}


def test_another_preprocessing_is_reported_before_the_run(tmp_path):
    for number in range(40):
        path = tmp_path / "photos" / ("ant", "bee")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (48, 40)).save(path)
    model = {"architecture": "timm_model", "options": {"name": "tf_efficientnet_lite0"}, "transfer": True}
    photographs = {"dataset": "image_folder", "root": str(tmp_path / "photos"), "size": 224}
    config = {
        "datasets": [{"zoomed": {**photographs, "resize": 300}}, {"plain": photographs}],
        "models": [{"lite0": {**model, "checkpoint": "mine.pth"}}],
        "evaluation": {"images": 4, "accuracy_images": 4},
    }
    messages = inspect_image_files(make_plan(merge(default_config(), config)))
    assert [line for line in messages if "published" in line] == [
        "zoomed: the weights of lite0 were published with resize: 256, interpolation: bicubic; set these "
        "options of the dataset to read images in the same way"
    ]


PIPE = object()
INVALID_FILES = {
    "a pipe": PIPE,
    "a list": b"[1]",
    "deep": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "a long number": b'{"image_mean": ' + b"1" * 5_000 + b"}",
    "no JSON": b"{",
    "not UTF-8": b'{"a": "\xff"}',
    "more than any": b'{"a": "' + b"b" * 2**26 + b'"}',
}


@pytest.mark.parametrize("what", INVALID_FILES)
@pytest.mark.parametrize("file", ["config.json", "preprocessor_config.json"])
def test_invalid_files_in_the_folder_of_a_model_are_refused(tmp_path, what, file):
    for name in ("config.json", "preprocessor_config.json"):
        (tmp_path / name).write_text('{"image_mean": [0.5], "image_std": [0.5]}')
    (tmp_path / file).unlink()
    os.mkfifo(tmp_path / file) if INVALID_FILES[what] is PIPE else (tmp_path / file).write_bytes(INVALID_FILES[what])
    with pytest.raises(HeatproofError, match=f"has no {file} that can be read .* nothing is downloaded") as caught:
        transformers_facts(name=str(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "processor"),
    [
        *(("preprocessor_config.json", {"image_mean": value}) for value in (1, [], ["a"], [True], [1e300], [None], {})),
        *(("preprocessor_config.json", {"image_std": value}) for value in ([0], [0.5, 0.5], [-1], "0.5")),
        *(
            ("config.json", {"image_size": value})
            for value in ("32", [32], [32, -1], 10**9, [32, 32.5], True, {"a": 1})
        ),
    ],
)
def test_values_of_other_types_are_refused(tmp_path, file, processor):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "preprocessor_config.json").write_text('{"image_mean": [0.5], "image_std": [0.5]}')
    content = json.loads((tmp_path / file).read_text()) | processor
    (tmp_path / file).write_text(json.dumps(content).replace("1e+300", "1e999"))
    with pytest.raises(HeatproofError, match=r"has an invalid .+: save the model"):
        transformers_facts(name=str(tmp_path))


@pytest.mark.parametrize(
    "processor", [{"size": "big"}, {"size": -1}, {"size": {"height": []}}, {"size": True}, {"size": 10**12}, {}]
)
def test_invalid_sizes_are_ignored(tmp_path, processor):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
    assert preprocessing("transformers_model", {"name": str(tmp_path)}) == {}


@pytest.mark.parametrize("more", [{"crop_pct": "a"}, {"crop_pct": 1e-300}, {"resample": [3]}, {"crop_pct": -1}])
def test_invalid_options_fall_back_to_defaults(tmp_path, more):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"size": 64, **more}))
    expected = {"size": 64, "resize": 64, "interpolation": "bilinear"}
    assert preprocessing("transformers_model", {"name": str(tmp_path)}) == expected
