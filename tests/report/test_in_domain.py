"""Is a deleted patch in domain? Planted features, planted answers, and the table from stores."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from toy_project import WHERE, Project

from heatproof import provenance
from heatproof.manifest import read_shard
from heatproof.plan import plan as planned
from heatproof.plan.paths import IN_DOMAIN
from heatproof.report import in_domain as report
from heatproof.report.in_domain import area_under_curve, calibration_error, probe_scores
from heatproof.responses.run import respond
from heatproof.store import open_store, read

ONCE = np.ones(60)


def planted(shift, images=60, width=12):
    """Features that tell images apart very well, and deletions by a shift of one feature."""
    features = np.repeat(np.random.default_rng(0).normal(size=(images, 1, width)), 2, axis=1)
    features[:, 1, 3] += shift
    return features


def auc_of(features):
    return area_under_curve(probe_scores(features))(np.ones(len(features)))


def test_features_that_ignore_the_patch_tell_nothing():
    assert auc_of(planted(0)) == pytest.approx(0.5)
    assert auc_of(np.ones((60, 2, 4))) == 0.5


def test_features_that_mark_the_patch_tell_it_always():
    assert auc_of(planted(20)) == 1
    assert 0.6 < auc_of(planted(1)) < 1


def test_noise_that_is_drawn_for_each_version_tells_nothing():
    noise = np.random.default_rng(1).normal(size=(400, 2, 6))
    assert auc_of(noise) == pytest.approx(0.5, abs=0.06)


def test_both_versions_of_an_image_are_in_one_fold(monkeypatch):
    import sklearn.model_selection as selection

    found = []
    split = selection.GroupKFold.split

    def watched(self, X, y=None, groups=None):
        for train, test in split(self, X, y, groups):
            found.append((set(train // 2), set(test // 2), len(test)))
            yield train, test

    monkeypatch.setattr(selection.GroupKFold, "split", watched)
    probe_scores(planted(1, images=23))
    assert len(found) == 5
    for train, test, versions in found:
        assert train.isdisjoint(test)
        assert versions == 2 * len(test)
    assert sorted(image for _, test, _ in found for image in test) == list(range(23))


def test_area_is_the_share_of_pairs_with_ties_as_halves():
    scores = np.array([[0.1, 0.4], [0.4, 0.3], [0.2, 0.9]])
    pairs = [(d > i) + (d == i) / 2 for i in scores[:, 0] for d in scores[:, 1]]
    assert area_under_curve(scores)(np.ones(3)) == pytest.approx(np.mean(pairs))
    twice = area_under_curve(scores)(np.array([2.0, 0.0, 1.0]))
    assert twice == pytest.approx(area_under_curve(scores[[0, 0, 2]])(np.ones(3)))


def test_calibration_error_by_hand():
    confidence = np.array([0.95, 0.99, 0.97, 0.50, 0.52, 1 / 15])
    right = np.array([True, True, False, False, True, False])
    # Bins (14/15, 1], (7/15, 8/15] and (0, 1/15].
    by_hand = (3 * abs(2 / 3 - 0.97) + 2 * abs(1 / 2 - 0.51) + 1 * abs(0 - 1 / 15)) / 6
    assert calibration_error(confidence, right)(np.ones(6)) == pytest.approx(by_hand)
    assert calibration_error(np.ones(4), np.ones(4, bool))(np.ones(4)) == 0


def test_one_image_has_no_probe():
    assert np.isnan(auc_of(planted(1, images=1)))


# ---- from stores -----------------------------------------------------------------------------------------------------


def features(project, batch_size=64):
    for shard in project.plan.shards(project.plan.drop_images):
        job = project.on_network("features", grid=4, baseline="mean", shard=shard)
        project.inside(respond, job.spec, batch_size)
    return project


def stored(project, array):
    return read(project.folder / "results/features/toy/net/finetuned/g4_mean.zarr", array, 0, 10)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    torch.set_num_threads(1)
    return features(Project(tmp_path_factory.mktemp("domain")).train().drop())


def test_the_answers_are_those_of_the_patch_drops(made):
    """On intact images, and for the deleted one of those of a patch."""
    np.testing.assert_array_equal(stored(made, "predicted")[:, 0], made.drops_of("predicted")[:, 0])
    right = (
        stored(made, "predicted")[:, 0]
        == open_store(made.folder / "results/drops/toy/net/finetuned/g4_mean.zarr").labels[:10]
    )
    label = np.exp(made.drops_of("log_probability"))[:, 0]
    np.testing.assert_allclose(stored(made, "confidence")[right, 0], label[right], rtol=1e-5)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_batches_change_nothing(made, tmp_path, batch_size):
    job = made.on_network("features", grid=4, baseline="mean", shard=0)
    made.inside(respond, {**job.spec, "store": str(tmp_path / "again")}, batch_size)
    for array in ("features", "confidence", "predicted"):
        np.testing.assert_allclose(
            read(tmp_path / "again.zarr", array, 0, 10), stored(made, array), rtol=1e-4, atol=1e-5
        )


def test_shards_change_nothing(made, tmp_path):
    import shutil

    shutil.copytree(made.folder, tmp_path / "cut")
    shutil.rmtree(tmp_path / "cut/results/features")
    cut = features(Project(tmp_path / "cut", shard_size=4))
    for array in ("features", "confidence", "predicted"):
        np.testing.assert_array_equal(stored(cut, array), stored(made, array))


def test_the_table_has_all_layers_and_the_answers(made):
    made.inside(report.in_domain, made.job("in_domain").spec)
    table = pd.read_csv(made.folder / IN_DOMAIN)
    assert list(table.columns) == report.COLUMNS
    assert list(table["layer"]) == ["features.0", "features.4", "penultimate", "output"]
    probed, answers = table.iloc[:-1], table.iloc[-1]
    assert table["in_domain"].all()
    assert (probed["ci_low"] <= probed["auc"]).all()
    assert (probed["auc"] <= probed["ci_high"]).all()
    assert probed[report.QUANTITIES].isna().all(axis=None)
    predicted = stored(made, "predicted")
    labels = open_store(made.folder / "results/features/toy/net/finetuned/g4_mean.zarr").labels[:10]
    assert answers["accuracy_intact"] == pytest.approx((predicted[:, 0] == labels).mean())
    assert answers["confidence_deleted"] == pytest.approx(stored(made, "confidence")[:, 1].mean())
    drawn = report.draw_in_domain(table, 0.95)
    np.testing.assert_allclose(drawn.axes[0].lines[1].get_ydata(), probed["auc"])
    plt.close("all")


def test_a_network_without_layers_is_a_row_with_its_reason(made, monkeypatch):
    from heatproof.errors import NotApplicable
    from heatproof.perturbation import features as executor

    def nothing(network, image):
        raise NotApplicable("nothing to follow")

    monkeypatch.setattr(executor, "feature_widths", nothing)
    spec = made.on_network("features", grid=4, baseline="mean", shard=0).spec
    made.inside(respond, {**spec, "store": "flat"})
    monkeypatch.chdir(made.folder)
    assert read_shard("flat", 0)["gap"] == "nothing to follow"
    job = made.job("in_domain").spec
    table = report.in_domain_table({**job, "scored": [{**job["scored"][0], "features": "flat"}]})
    assert list(table["gap"]) == ["nothing to follow"]
    assert not report.draw_in_domain(table, 0.95).axes


@pytest.mark.parametrize(
    ("module", "changed"),
    [
        ("heatproof.perturbation.features", {"features", "in_domain"}),
        ("heatproof.responses.features", {"features", "in_domain"}),
        ("heatproof.report.in_domain", {"in_domain"}),
        ("heatproof.perturbation.patches", {"drops"}),
        ("heatproof.perturbation.channels", {"channels"}),
    ],
)
def test_an_edit_of_its_own_code_alone_makes_it_again(module, changed, monkeypatch):
    def keys():
        for known in (provenance._digest_of, planned._code):
            known.cache_clear()
        project, drops = Project("."), {"grid": 4, "baseline": "mean", "shard": 0}
        stages = {"features": drops, "drops": drops, "channels": {"shard": 0}}
        found = {stage: project.on_network(stage, **asked).spec["key"] for stage, asked in stages.items()}
        return {**found, "in_domain": project.job("in_domain").spec["key"]}

    plain = provenance.read_source

    def edited(name):
        source = plain(name)
        return source._replace(text=source.text + "\nEDITED = True") if name == module else source

    before = keys()
    monkeypatch.setattr(provenance, "read_source", edited)
    after = keys()
    monkeypatch.undo()
    keys()
    assert {stage for stage in before if before[stage] != after[stage]} == changed


def test_the_default_run_makes_it_and_the_table_of_scores_alone_does_not():
    from heatproof.plan.graph import Graph
    from heatproof.plan.reports import targets

    project = Project(".")
    assert IN_DOMAIN in targets(project.plan)
    alone = {job.stage for job in Graph(project.plan).needed(["results/idsds_table.csv"])}
    assert not alone & {"features", "in_domain"}
    assert tuple(project.job("in_domain").spec["scored"][0][key] for key in ("dataset", "model", "weights")) == WHERE
