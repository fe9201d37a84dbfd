"""The explained class is also the scored one, and images are sampled by the output for the intact image."""

import numpy as np
import pytest

from heatproof.errors import HeatproofError
from heatproof.store.reading import read_json
from heatproof.workflow.stages._stored_scores import select_images

METRICS = ["rise_deletion", "deletion_morf", "sensitivity_n"]


@pytest.fixture
def explained(project):
    def make(**change):
        run = project(metrics=METRICS, explainers=[{"mine": {"explainer": "toy_plugin:gradient"}}], **change)
        return run.attribute().drop().respond().score_all()

    return make


def test_maps_drops_and_responses_explain_the_target_class(explained):
    label, target = explained(), explained(target=1)
    classes = np.arange(10) % 3
    same = classes == 1
    for read in (lambda run: run.maps()[:, 0], lambda run: run.drops_of("logit")):
        assert np.array_equal(read(label)[same], read(target)[same])
        assert not np.isclose(read(label)[~same], read(target)[~same]).all(axis=tuple(range(1, read(label).ndim))).any()
    for metric in METRICS:
        first, second = (
            run.scores(metric).set_index("image").query("method == 'mine'")["score"] for run in (label, target)
        )
        ids = np.array(first.index)
        np.testing.assert_array_equal(first[ids[same]], second[ids[same]])
        assert (first[ids[~same]] != second[ids[~same]]).any()


def test_scores_of_images_name_their_class(explained):
    run = explained()
    names = read_json(run.folder / "results/datasets/toy.json")["class_names"]
    table = run.scores("idsds").query("method == 'mine'")
    assert list(table["class"]) == [names[row % 3] for row in range(10)]


def test_the_target_predicted_is_the_class_that_the_network_predicts(explained):
    label, predicted = explained(), explained(target="predicted")
    right = label.drops_of("predicted")[:, 0] == np.arange(10) % 3
    assert right.any()
    np.testing.assert_array_equal(label.maps()[right], predicted.maps()[right])
    assert (predicted.drops_of("target_rank")[:, 0] == 0).all()


def test_a_class_that_the_dataset_does_not_have_is_refused(project):
    with pytest.raises(HeatproofError, match="is 3, and the dataset has 3 classes, labels or numbers, counted from 0"):
        project(target=3).drop()


def test_a_metric_cannot_score_another_class_than_the_maps_explain(project):
    with pytest.raises(
        HeatproofError, match="scores target: predicted, and the maps of this run explain target: label"
    ):
        project(metrics=[{"rise_deletion": {"target": "predicted"}}])
    project(metrics=[{"rise_deletion": {"target": "predicted"}}], target="predicted")


def test_only_images_that_the_network_gets_right_are_scored(project):
    every, right = (
        project(evaluation={"images": 10, "only_correct": only}, target=0).attribute().drop().score()
        for only in (False, True)
    )
    methods = every.methods("idsds")
    predicted = every.drops_of("predicted")[:, 0]
    correct = predicted == np.arange(10) % 3
    assert set(methods["share_wrong"]) == {1 - correct.mean()}
    scored = right.scores("idsds").query("method == 'mine'")["image"].tolist()
    assert scored == [f"evaluation-{row:02d}" for row in np.flatnonzero(correct)]


def test_samples_are_balanced_over_the_remaining_classes():
    labels = np.array([0, 0, 0, 1, 1, 2])
    right = np.array([True, True, True, False, True, True])
    every = {"only_correct": False, "balanced": False}
    assert select_images(labels, right, **every).all()
    assert select_images(labels, right, **{**every, "only_correct": True}).tolist() == right.tolist()
    assert select_images(labels, right, only_correct=True, balanced=True).tolist() == [
        True,
        False,
        False,
        False,
        True,
        True,
    ]
    assert not select_images(labels, np.zeros(6, dtype=bool), only_correct=True, balanced=True).any()


def test_keys_depend_on_the_sampling_and_the_target(project):
    plain = project()
    spec = plain.spec("idsds")
    other = project(evaluation={"images": 10, "balanced": True})
    assert other.spec("idsds").key != spec.key
    explained = [run.maps_spec(["mine"]).explainers[0] for run in (plain, project(target="predicted"))]
    assert explained[0].key != explained[1].key
