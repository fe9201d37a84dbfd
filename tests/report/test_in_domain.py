"""Tests of whether deleted patches are in domain: on planted features and outputs, and on stores."""

from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from toy_project import WHERE, Project

from heatproof.core import provenance
from heatproof.core.randomness import derive_seed, numpy_generator
from heatproof.core.specs import Runtime
from heatproof.metrics.bootstrap import draw_counts
from heatproof.report.tables import in_domain as report
from heatproof.report.tables.in_domain import area_under_curve, calibration_error, paired_share, probe_scores
from heatproof.store.manifest import read_shard
from heatproof.store.zarr_store import open_store, read

LEVEL = 0.95


def planted(shift, images=60, width=12):
    """Return features that differ much between images, and deletions as a shift of one feature."""
    features = np.repeat(np.random.default_rng(0).normal(size=(images, 1, width)), 2, axis=1)
    features[:, 1, 3] += shift
    return features


def classes(images, count=10):
    """Return the classes of images in turn, as in splits."""
    return np.arange(images) % count


def statistics(features, labels=None, seed=0):
    """Return the paired share and the AUC."""
    scores = probe_scores(features, classes(len(features)) if labels is None else labels, seed)
    return paired_share(scores, LEVEL)[0], area_under_curve(scores)(np.ones(len(features)))


def reference(features, strata, seed):
    """Return the scores of the same probe from an independent implementation with the same seed."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedGroupKFold

    images, scores = len(features), np.full((len(features), 2), np.nan)
    rows = [(image, version) for image in range(images) for version in (0, 1)]
    values = np.array([features[row] for row in rows], dtype=float)
    folds = StratifiedGroupKFold(
        min(5, images), shuffle=True, random_state=derive_seed(seed, "folds of the probe") % 2**32
    )
    y, groups = [strata[image] for image, _ in rows], [image for image, _ in rows]
    for train, test in folds.split(values, y, groups):
        mean, spread = values[train].mean(axis=0), values[train].std(axis=0)
        fitted = LogisticRegression(max_iter=1000)
        fitted.fit((values[train] - mean) / spread, [rows[number][1] for number in train])
        for number in test:
            assert np.isnan(scores[rows[number]])
            scores[rows[number]] = fitted.decision_function([(values[number] - mean) / spread])[0]
    return scores


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("labels", "strata"),
    [
        (classes(60), classes(60)),
        (np.zeros(23, int), np.zeros(23, int)),
        (classes(3, 2), [0, 0, 0]),
        # Four of a and three of b are fewer than folds and form one stratum; two of a alone join the next class.
        (np.array([*"aaaabbb", *"cccccc"]), [*[0] * 7, *[1] * 6]),
        (np.array([*"aa", *"ccccccccc", *"bbbbb"]), [0, 0, *[1] * 9, *[0] * 5]),
        (np.arange(12), np.zeros(12)),
    ],
    ids=["ten classes", "one class", "three images", "rare classes", "a rare class", "a class an image"],
)
def test_scores_equal_those_of_an_independent_implementation(labels, strata, seed):
    from sklearn.metrics import roc_auc_score

    features = planted(1, images=len(labels), width=4) + np.random.default_rng(2).normal(size=(len(labels), 2, 4)) / 2
    scores, expected = probe_scores(features, labels, seed), reference(features, strata, seed)
    np.testing.assert_allclose(scores, expected, rtol=1e-6, atol=1e-8)
    share, area = paired_share(scores, LEVEL)[0], area_under_curve(scores)(np.ones(len(labels)))
    assert share == np.mean([1.0 if deleted > intact else 0.0 for intact, deleted in expected])
    assert area == pytest.approx(roc_auc_score(np.tile([0, 1], len(labels)), expected.ravel()))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("images", range(2, 13))
@pytest.mark.parametrize("count", [1, 2, 5, 12])
def test_few_images_and_few_classes_are_scored(images, count):
    assert np.isfinite(probe_scores(planted(1, images), classes(images, count), 0)).all()


def test_one_image_has_no_probe():
    assert np.isnan(statistics(planted(1, images=1))).all()
    assert np.isnan(paired_share(np.full((1, 2), np.nan), LEVEL)).all()


def test_features_that_ignore_the_patch_give_one_half():
    assert statistics(planted(0)) == pytest.approx((0.5, 0.5))
    assert statistics(np.ones((60, 2, 4))) == (0.5, 0.5)


def test_features_that_mark_the_patch_give_one():
    assert statistics(planted(20)) == (1, 1)


def test_a_small_shift_of_features_is_detected_in_pairs():
    paired, area = statistics(planted(1))
    assert paired == 1
    assert 0.6 < area < 0.9


def test_a_probe_is_tested_on_the_classes_that_it_was_fitted_to():
    """Each class marks the deletion by another feature, which a probe that was not fitted to the class cannot use."""
    features = planted(0, images=100, width=10)
    features[np.arange(100), 1, classes(100)] += 1
    paired, area = statistics(features)
    assert paired > 0.9
    assert area > 0.55


def test_folds_have_both_versions_of_an_image_and_every_class(monkeypatch):
    import sklearn.model_selection as selection

    folds = []
    split = selection.StratifiedGroupKFold.split

    def watched(self, X, y=None, groups=None):
        for train, test in split(self, X, y, groups):
            folds.append((set(train // 2), set(test // 2), len(test)))
            yield train, test

    monkeypatch.setattr(selection.StratifiedGroupKFold, "split", watched)
    drawn = []
    for seed in (0, 0, 1):
        folds.clear()
        probe_scores(planted(1, images=70), classes(70), seed)
        drawn.append([sorted(test) for _, test, _ in folds])
        assert len(folds) == 5
        for train, test, versions in folds:
            assert train.isdisjoint(test)
            assert versions == 2 * len(test)
            assert {image % 10 for image in train} == {image % 10 for image in test} == set(range(10))
        assert sorted(image for _, test, _ in folds for image in test) == list(range(70))
    assert drawn[0] == drawn[1] != drawn[2]


def test_paired_share_equals_a_value_computed_by_hand():
    """Ties count as one half; the interval is Wilson's for 11 / (1 + 2/π) images."""
    intact = np.zeros(11)
    deleted = np.array([1.0] * 7 + [0.0] * 2 + [-1.0] * 2)
    share, low, high = paired_share(np.stack([intact, deleted], axis=1), LEVEL)
    assert share == pytest.approx(8 / 11)
    images, z = 11 / (1 + 2 / np.pi), 1.959964
    # The ends are the shares from which the observed share is z standard deviations away.
    for end in (low, high):
        assert abs(share - end) == pytest.approx(z * np.sqrt(end * (1 - end) / images), rel=1e-5)
    assert paired_share(np.stack([intact, intact + 1], axis=1), LEVEL)[::2] == pytest.approx((1, 1))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["noise", "pairs"])
def test_intervals_contain_one_half_if_features_have_no_information(kind):
    """The coverage is nominal: the variance is 1 + 2/π times that of images that are not used to fit probes."""
    rng, held, shares = np.random.default_rng(3), [], []
    for seed in range(300):
        features = rng.normal(size=(40, 1, 4)) * (kind == "pairs") + 0.1 * rng.normal(size=(40, 2, 4))
        share, low, high = paired_share(probe_scores(features, classes(40), seed), LEVEL)
        held.append(low <= 0.5 <= high)
        shares.append(share)
    assert 0.925 <= np.mean(held) <= 0.985
    assert np.var(shares) / (0.25 / 40) == pytest.approx(1 + 2 / np.pi, rel=0.2)


def test_area_is_the_share_of_ordered_pairs_with_half_of_the_ties():
    scores = np.array([[0.1, 0.4], [0.4, 0.3], [0.2, 0.9]])
    pairs = [(d > i) + (d == i) / 2 for i in scores[:, 0] for d in scores[:, 1]]
    assert area_under_curve(scores)(np.ones(3)) == pytest.approx(np.mean(pairs))
    twice = area_under_curve(scores)(np.array([2.0, 0.0, 1.0]))
    assert twice == pytest.approx(area_under_curve(scores[[0, 0, 2]])(np.ones(3)))


def test_calibration_error_equals_a_value_computed_by_hand():
    confidence = np.array([0.95, 0.99, 0.97, 0.50, 0.52, 1 / 15])
    right = np.array([True, True, False, False, True, False])
    # Bins (14/15, 1], (7/15, 8/15] and (0, 1/15].
    by_hand = (3 * abs(2 / 3 - 0.97) + 2 * abs(1 / 2 - 0.51) + 1 * abs(0 - 1 / 15)) / 6
    assert calibration_error(confidence, right)(np.ones(6)) == pytest.approx(by_hand)
    assert calibration_error(np.ones(4), np.ones(4, bool))(np.ones(4)) == 0


# ---- from stores -----------------------------------------------------------------------------------------------------


def features(project, batch_size=64):
    for shard in project.plan.shards(project.plan.drop_images):
        job = project.on_network("features", grid=4, baseline="mean", shard=shard)
        project.make(job, batch_size)
    return project


def stored(project, array):
    return read(project.folder / "results/features/toy/net/finetuned/g4_mean.zarr", array, 0, 10)


@pytest.fixture(scope="module")
def scored_project(tmp_path_factory):
    torch.set_num_threads(1)
    return features(Project(tmp_path_factory.mktemp("domain")).train().drop())


def test_the_outputs_equal_those_of_the_patch_drops(scored_project):
    """On intact images, and on images with one deleted patch."""
    np.testing.assert_array_equal(stored(scored_project, "predicted")[:, 0], scored_project.drops_of("predicted")[:, 0])
    right = (
        stored(scored_project, "predicted")[:, 0]
        == open_store(scored_project.folder / "results/drops/toy/net/finetuned/g4_mean.zarr").labels[:10]
    )
    label = np.exp(scored_project.drops_of("log_probability"))[:, 0]
    np.testing.assert_allclose(stored(scored_project, "confidence")[right, 0], label[right], rtol=1e-5)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_features_do_not_depend_on_the_batch_size(scored_project, tmp_path, batch_size):
    job = scored_project.on_network("features", grid=4, baseline="mean", shard=0)
    scored_project.make(replace(job.spec, store=str(tmp_path / "again")), batch_size)
    for array in ("features", "confidence", "predicted"):
        np.testing.assert_allclose(
            read(tmp_path / "again.zarr", array, 0, 10), stored(scored_project, array), rtol=1e-4, atol=1e-5
        )


def test_features_do_not_depend_on_shards(scored_project, tmp_path):
    import shutil

    shutil.copytree(scored_project.folder, tmp_path / "cut")
    shutil.rmtree(tmp_path / "cut/results/features")
    cut = features(Project(tmp_path / "cut", shard_size=4))
    for array in ("features", "confidence", "predicted"):
        np.testing.assert_array_equal(stored(cut, array), stored(scored_project, array))


def area_of_resamples(scores, spec):
    """Return the area and its percentiles over resampled images."""
    rng, measure = numpy_generator(spec.seed, "bootstrap over images"), area_under_curve(scores)
    areas = [measure(draw_counts(rng, 1, len(scores))[0]) for _ in range(spec.bootstrap)]
    return np.quantile(areas, [0.025, 0.975])


def test_the_table_has_all_layers_and_the_outputs(scored_project):
    scored_project.make("in_domain")
    table = pd.read_csv(scored_project.folder / "results/in_domain.csv")
    labels = open_store(scored_project.folder / "results/features/toy/net/finetuned/g4_mean.zarr").labels[:10]
    assert list(table.columns) == report.COLUMNS
    assert list(table["layer"]) == ["features.0", "features.4", "penultimate", "output"]
    probed, output_row = table.iloc[:-1], table.iloc[-1]
    assert table["in_domain"].all()
    for layer, row in enumerate(probed.to_dict("records")):
        scores = probe_scores(
            stored(scored_project, "features")[:, :, layer], labels, scored_project.job("in_domain").spec.seed
        )
        expected = [*paired_share(scores, LEVEL), area_under_curve(scores)(np.ones(10))]
        assert [row[key] for key in report.PROBE_COLUMNS[:4]] == pytest.approx(expected)
        # The interval of resampled images, widened by the square root of two.
        drawn = area_of_resamples(scores, scored_project.job("in_domain").spec)
        for end, other in (("auc_low", drawn[0]), ("auc_high", drawn[1])):
            assert row[end] == pytest.approx(np.clip(row["auc"] + np.sqrt(2) * (other - row["auc"]), 0, 1))
    assert probed[report.QUANTITIES].isna().all(axis=None)
    predicted = stored(scored_project, "predicted")
    assert output_row["accuracy_intact"] == pytest.approx((predicted[:, 0] == labels).mean())
    assert output_row["confidence_deleted"] == pytest.approx(stored(scored_project, "confidence")[:, 1].mean())
    drawn = report.draw_in_domain(table, 0.95)
    np.testing.assert_allclose(drawn.axes[0].lines[1].get_ydata(), probed["paired"])
    plt.close("all")


def test_a_network_without_layers_is_a_row_with_its_reason(scored_project, monkeypatch):
    from heatproof.core.perturb import features as executor
    from heatproof.errors import NotApplicable

    def nothing(network, image):
        raise NotApplicable("nothing to follow")

    monkeypatch.setattr(executor, "feature_widths", nothing)
    spec = scored_project.on_network("features", grid=4, baseline="mean", shard=0).spec
    scored_project.make(replace(spec, store="flat"))
    monkeypatch.chdir(scored_project.folder)
    assert read_shard("flat", 0)["gap"] == "nothing to follow"
    spec = scored_project.job("in_domain").spec
    replace(spec, scored=[replace(spec.scored[0], features="flat")], data=[]).run(Runtime())
    table = pd.read_csv(spec.files["in_domain"])
    assert list(table["gap"]) == ["nothing to follow"]
    assert not report.draw_in_domain(table, 0.95).axes


@pytest.mark.parametrize(
    ("module", "changed"),
    [
        ("heatproof.core.perturb.features", {"features", "in_domain"}),
        ("heatproof.metrics.responses.features", {"features", "in_domain"}),
        ("heatproof.report.tables.in_domain", {"in_domain"}),
        # The module of the toy network also has a metric, and so imports the responses that metrics read.
        ("heatproof.core.perturb.patches", {"drops", "features", "channels", "in_domain"}),
        ("heatproof.core.perturb.channels", {"channels"}),
    ],
)
def test_an_edit_changes_only_the_keys_of_stages_that_use_the_code(module, changed, monkeypatch):
    def keys():
        for cached_function in (provenance._digest_of, provenance._code_of):
            cached_function.cache_clear()
        project, drops = Project("."), {"grid": 4, "baseline": "mean", "shard": 0}
        stages = {"features": drops, "drops": drops, "channels": {"shard": 0}}
        keys_of_network = {
            stage: project.on_network(stage, **wildcards).spec.key for stage, wildcards in stages.items()
        }
        return {**keys_of_network, "in_domain": project.job("in_domain").spec.key}

    plain = provenance.read_source

    def edited(name):
        source = plain(name)
        return source._replace(digest=source.digest + "\nEDITED = True") if name == module else source

    before = keys()
    monkeypatch.setattr(provenance, "read_source", edited)
    after = keys()
    monkeypatch.undo()
    keys()
    assert {stage for stage in before if before[stage] != after[stage]} == changed


def test_the_default_run_has_the_in_domain_table_and_the_scores_do_not_need_it():
    from heatproof.workflow.plan.graph import Graph

    project = Project(".")
    assert "results/in_domain.csv" in Graph(project.plan).targets()
    alone = {job.stage for job in Graph(project.plan).jobs_leading_to(["results/idsds_table.csv"])}
    assert not alone & {"features", "in_domain"}
    assert next((score.dataset, score.model, score.weights) for score in project.job("in_domain").spec.scored) == WHERE
