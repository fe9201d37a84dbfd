"""Images with other numbers of channels than three, and networks with one logit, in all stages."""

import numpy as np
import pandas as pd
import pytest
import torch
from toy_project import Project

from heatproof.errors import HeatproofError
from heatproof.models.network import build_network
from heatproof.models.registry import ModelSpec

EXPLAINERS = ["saliency", "integrated_gradients", {"rise": {"masks": 20}}, "grad_cam", "random", "edges"]
METRICS = [{"deletion_morf": {"steps": 4}}, "road_morf", {"rise_difference": {"steps": 4}}]


def run(tmp_path, classes, channels, architecture):
    options = {"channels": channels}
    return (
        Project(
            tmp_path,
            datasets=[{"toy": {"dataset": "toy_plugin:bands", "channels": channels, "classes": classes}}],
            models=[{"net": {"architecture": architecture, "options": options, "cam_layer": "features"}}],
            pretraining={"epochs": 2},
            finetuning={"epochs": 1},
            explainers=EXPLAINERS,
            metrics=METRICS,
        )
        .train()
        .attribute()
        .drop()
        .respond()
        .score_all()
        .score()
    )


@pytest.mark.parametrize("channels", [1, 4])
def test_networks_of_any_number_of_channels_run(tmp_path, channels):
    project = run(tmp_path, 3, channels, "toy_plugin:of_channels")
    table = pd.read_csv(project.folder / "results/scores.csv")
    assert set(table["metric"]) == {"idsds", "deletion_morf", "road_morf", "rise_difference"}
    assert "gap" not in table or table["gap"].isna().all()
    assert table.loc[table["metric"] == "idsds", "score"].notna().all()


def test_one_logit_counts_as_two_classes(tmp_path):
    project = run(tmp_path, 2, 1, "toy_plugin:one_logit")
    logit, predicted = project.drops_of("logit"), project.drops_of("predicted")
    assert set(np.unique(predicted)) <= {0, 1}
    assert np.ptp(logit[:, 0]) > 0
    table = pd.read_csv(project.folder / "results/idsds_table.csv")
    assert table.loc[table["method"] == "saliency", "n_undefined"].item() == 0


def test_one_logit_has_the_scores_of_the_equal_network_with_two(tmp_path):
    folders = [tmp_path / name for name in ("one_logit", "two_logits_of_one")]
    for folder in folders:
        folder.mkdir()
    single, two = (run(folder, 2, 1, f"toy_plugin:{folder.name}").folder / "results" for folder in folders)
    for name in ("scores.csv", "idsds_table.csv"):
        first, second = (pd.read_csv(folder / name) for folder in (single, two))
        assert len(first) > 5
        pd.testing.assert_frame_equal(first, second, rtol=0, atol=1e-6)


def test_two_logits_are_unchanged():
    spec = ModelSpec("toy_plugin:network", "toy_plugin", {})
    two, three = (build_network(spec, classes) for classes in (2, 3))
    images = torch.rand(2, 3, 12, 12)
    assert two(images).shape == (2, 2)
    assert three(images).shape == (2, 3)
    assert list(two.state_dict()) == list(three.state_dict())


@pytest.mark.parametrize(
    ("dataset", "sentence"),
    [
        ({"classes": 1}, "has 1 class: a network needs two or more"),
        ({"channels": 0}, r"shape \(images, channels, height, width\)"),
    ],
)
def test_invalid_settings_are_refused(tmp_path, dataset, sentence):
    project = Project(tmp_path, datasets=[{"toy": {"dataset": "toy_plugin:bands", **dataset}}])
    with pytest.raises(HeatproofError, match=sentence):
        project.make(project.prepare())


def test_preprocessing_must_fit_the_channels(tmp_path):
    scale = {"mean": [0.1, 0.2, 0.3], "std": [0.5, 0.5, 0.6]}
    network = {"architecture": "toy_plugin:of_channels", "options": {"channels": 4}, "cam_layer": "features", **scale}
    project = Project(
        tmp_path,
        datasets=[{"toy": {"dataset": "toy_plugin:bands", "channels": 4}}],
        models=[{"net": network}],
    )
    with pytest.raises(HeatproofError, match="3 numbers as mean, and the images have 4 channels"):
        project.train()
