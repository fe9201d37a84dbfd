"""Names of datasets in a config."""

from pathlib import Path

import pytest

from heatproof.core.specs import Runtime
from heatproof.datasets.checks import open_dataset
from heatproof.datasets.registry import DATASETS
from heatproof.errors import HeatproofError
from heatproof.store.reading import read_json
from heatproof.workflow.config.files import default_config, merge
from heatproof.workflow.plan.validate import make_plan
from heatproof.workflow.stages.prepare import Prepare

PAGE = Path(__file__).parents[2] / "docs" / "datasets.md"


def plan_of(dataset, images=3):
    change = {"datasets": [dataset], "models": ["cifar_resnet20"], "metrics": [], "drops": {"grids": [4]}}
    return make_plan(merge(default_config(), {**change, "evaluation": {"images": images, "accuracy_images": 0}}))


def test_every_dataset_has_a_row_on_the_page():
    rows = [
        line.split("|")[1].strip() for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")
    ]
    assert [name for name in DATASETS if rows.count(f"`{name}`") < 1] == []


def test_prepare_writes_the_manifest_of_a_dataset_in_a_config(tmp_path, fill):
    fill(tmp_path / "pictures", ["ant", "bee"], 10)
    plan = plan_of({"photos": {"dataset": "image_folder", "root": str(tmp_path / "pictures"), "size": 32}})
    assert plan.datasets["photos"]["size"] == (32, 32)
    spec = plan.dataset_spec("photos")
    Prepare(dataset=spec, manifest=str(tmp_path / "photos.json")).run(Runtime())
    manifest = read_json(tmp_path / "photos.json")
    assert manifest["class_names"] == ["ant", "bee"]
    assert manifest["splits"]["evaluation"]["ids"] == list(open_dataset(spec).splits["evaluation"].ids)
    assert [len(manifest["splits"][split]["ids"]) for split in ("train", "validation", "evaluation")] == [14, 2, 4]


@pytest.mark.parametrize(
    ("options", "images", "message"),
    [
        ({"size": 30}, 3, "The grid 4 in drops does not divide the 30×30 images of 'photos'"),
        ({"size": 32}, 5, "the evaluation split of 'photos' has 4 images"),
        ({"size": 32, "resize": 31}, 3, "resize is 31 and size 32"),
        (
            {"size": 0},
            3,
            "The option 'size' of dataset 'photos' must be a whole number of at least 1 and of at most 8192, not 0",
        ),
        ({"resize": 0.5}, 3, "The option 'resize' of dataset 'photos' must be"),
        ({"interpolation": "linear"}, 3, "The option 'interpolation' of dataset 'photos' must be 'bilinear' or"),
        ({"evaluation": 0.95}, 3, "evaluation 0.95 leave no training images"),
    ],
)
def test_invalid_options_of_a_dataset_are_refused(tmp_path, fill, options, images, message):
    fill(tmp_path, ["ant", "bee"], 10)
    with pytest.raises(HeatproofError, match=message):
        plan_of({"photos": {"dataset": "image_folder", "root": str(tmp_path), **options}}, images)


def test_a_dataset_of_files_needs_the_option_root():
    with pytest.raises(HeatproofError, match="The dataset 'cifar10' needs the option 'root': give it a value"):
        plan_of("cifar10")
