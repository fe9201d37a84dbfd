"""Responses that the workflow's stages cache, and the scores of every metric from them."""

import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from jobs import without_times
from scipy.stats import spearmanr
from toy_project import Project

import heatproof
from heatproof.core.batch import Batch
from heatproof.core.normalise import normalise
from heatproof.core.perturb.dataset_mean import mean_colour
from heatproof.datasets.checks import open_dataset
from heatproof.errors import HeatproofError
from heatproof.explainers.explaining import recomputed_maps
from heatproof.metrics.responses.information_curves import InformationCurves
from heatproof.metrics.responses.map_changes import MapChanges
from heatproof.models.network import load_network
from heatproof.store.reading import read_json
from heatproof.store.zarr_store import describe_store, read
from heatproof.workflow.stages import _responses as stage
from heatproof.workflow.stages._explaining import open_method, with_baselines
from heatproof.workflow.stages._shards import Shard

CURVES = "results/curves/toy/net/finetuned"
FEW = {"steps": 6}
METRICS = [
    {"ids": FEW},
    {"deletion_morf": FEW},
    {"deletion_lerf": FEW},
    "road_morf",
    "road_lerf",
    {"rise_insertion": FEW},
    {"rise_deletion": FEW},
    {"rise_difference": FEW},
    {"mas_insertion": FEW},
    {"mas_deletion": FEW},
    {"mas_difference": FEW},
    "sic",
    "aic",
    {"soundness": {"level": 0.7, "threshold": 0.0}},
    {"completeness": {"output": "probability"}},
    {"road_lerf_probability": {"metric": "road_lerf", "output": "probability"}},
    {"sensitivity_n": {"samples": 5}},
    {"infidelity": {"samples": 5}},
    {"sensitivity_max": {"samples": 2}},
    {"ids_updated": {"metric": "ids", "update": True, "steps": 3}},
    {"deletion_mean": {"metric": "deletion_morf", "baseline": "mean", "grid": 4, "steps": 4}},
    {"soundness_score": {"metric": "soundness", "output": "probability", "level": 0.5}},
    {"sds_of_mine": {"metric": "toy_plugin:smallest_drop"}},
]
# The accuracy at few points has few values: many images have the same score.
BY_ACCURACY = ("road_morf", "road_lerf", "aic", "soundness")
NAMES = [entry if isinstance(entry, str) else next(iter(entry)) for entry in METRICS]
CONFIG = {
    "metrics": METRICS,
    "explainers": [{"mine": {"explainer": "toy_plugin:gradient"}}, "random"],
    "drops": {"outputs": ["logit", "probability"], "baselines": ["zeros"]},
}


def run_all_stages(toy, batch_size=64):
    return toy.attribute().drop().respond(batch_size).score_all()


@pytest.fixture(scope="module")
def finished(trained, tmp_path_factory):
    """All results of the config above, in one shard. Tests must not change them."""
    folder = tmp_path_factory.mktemp("finished") / "project"
    shutil.copytree(trained.folder, folder)
    torch.set_num_threads(1)
    return run_all_stages(Project(folder, **CONFIG))


@pytest.fixture(scope="module")
def case(finished):
    """Return the network, the images and the labels behind the scores."""
    spec = finished.finetune()
    data = open_dataset(spec.dataset)
    network = load_network(spec.model, 3, finished.folder / spec.files["weights"], torch.device("cpu"))
    images = normalise(data.images("evaluation", 0, 10), spec.model.facts)
    return network, images, torch.from_numpy(data.splits["evaluation"].labels[:10]), data, spec.model.facts


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("method", ["mine", "mine_abs", "random"])
def test_scores_equal_those_of_evaluate(finished, case, name, method):
    network, images, labels, data, facts = case
    entry = finished.plan.metrics[name]
    explainer = method.removesuffix("_abs")
    maps = finished.maps(explainer)[:, 0]
    maps = np.abs(maps) if method.endswith("_abs") else maps
    options = {key: value for key, value in entry.options.items() if value is not None}
    if entry.metric.reads is InformationCurves:
        options |= {"mean": list(facts.mean), "std": list(facts.std)}
    if options.get("baseline") == "mean":
        options["baseline_options"] = {"value": mean_colour(data, facts)}
    if options.get("update") or entry.metric.reads is MapChanges:
        response = next(iter(entry.responses.values())).name
        spec = finished.curves_spec(response, [explainer])
        explainer_spec = spec.explainers[0]
        opened, stored = open_method(explainer_spec), next(m for m in explainer_spec.methods if m.name == method)
        batch = Batch(network, network, spec.facts, images, labels, data.splits["evaluation"].ids[:10], 0)
        batch = with_baselines(replace(batch, seed=spec.network.seed, dataset=data), explainer_spec.grid)
        options["explain"] = recomputed_maps(replace(stored, explainer=opened.explainer), batch)
    ids = list(data.splits["evaluation"].ids[:10])
    expected = heatproof.evaluate(entry.metric.name, network, images, labels, maps, image_ids=ids, **options)
    rows = finished.scores(name)
    rows = rows[rows.method == method]
    assert rows.image.tolist() == ids
    if name not in BY_ACCURACY and not (method == "random" and name == "sensitivity_max"):
        assert rows.score.nunique() > 3, "scores that are all alike show nothing"
    np.testing.assert_allclose(rows.score, expected["score"], atol=1e-5, equal_nan=True)
    np.testing.assert_array_equal(rows.valid, expected["valid"])


def test_scores_of_probabilities_equal_their_definition(finished):
    logs = finished.drops_of("log_probability", baseline="zeros").astype(np.float64)
    drops = np.exp(logs[:, :1]) - np.exp(logs[:, 1:])
    sums = finished.maps()[:, 0].astype(np.float64).reshape(10, 4, 3, 4, 3).sum((2, 4)).reshape(10, 16)
    expected = [spearmanr(a, b).statistic for a, b in zip(sums, drops, strict=True)]
    rows = finished.scores("idsds_probability")
    np.testing.assert_allclose(rows[rows.method == "mine"].score, expected, atol=1e-12)
    assert set(pd.read_csv(finished.folder / "results/scores.csv").metric) == {"idsds", "idsds_probability", *NAMES}


def test_the_table_has_every_metric_with_its_direction(finished):
    table = pd.read_csv(finished.folder / "results/scores.csv")
    assert list(table.columns[:12]) == [
        *("dataset", "model", "weights", "method", "metric", "score", "ci_low", "ci_high"),
        *("share_wrong", "n_images", "n_undefined", "rank"),
    ]
    directions = table.groupby("metric")["higher_is_better"].unique()
    assert not directions["deletion_morf"][0]
    assert not directions["infidelity"][0]
    assert directions["soundness"][0]
    best = table[(table["rank"] == 1) & (table.metric == "deletion_morf")].score.max()
    assert best == table[table.metric == "deletion_morf"].score.min()
    assert ((table.n_images + table.n_undefined) == 10).all()


def test_the_table_has_the_difference_to_the_best_reference_map(finished):
    table = pd.read_csv(finished.folder / "results/scores.csv")
    references = finished.plan.reference_methods
    assert references == ["random", "random_abs"]
    for metric, rows in table.groupby("metric"):
        sign = 1 if rows["higher_is_better"].all() else -1
        best = (sign * rows.score[rows.method.isin(references)]).max()
        # The table has eight significant digits.
        digits = 1e-7 * rows.score.abs().max()
        np.testing.assert_allclose(rows.above_reference, sign * rows.score - best, rtol=0, atol=digits, err_msg=metric)


# These maps depend only on the image, so that differences come from the responses.
DRAWN = {**CONFIG, "explainers": [{"noisy": {"explainer": "toy_plugin:noisy"}}, "random"]}


@pytest.fixture(scope="module")
def in_one_shard(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("in_one_shard") / "project"
    shutil.copytree(trained.folder, folder)
    torch.set_num_threads(1)
    return Project(folder, **DRAWN).attribute().drop(8).respond(8).score_all()


@pytest.mark.slow
@pytest.mark.parametrize(("shard_size", "apart"), [(4, False), (7, True)])
def test_shards_and_separate_jobs_change_no_bit(project, in_one_shard, shard_size, apart):
    """With one batch size: shards start batches at other images, and separate jobs compute one explainer each."""
    other = project(**DRAWN, shard_size=shard_size).attribute().drop(8)
    for explainer in (["noisy"], ["random"]) if apart else (None,):
        other.respond(8, explainer)
    other.score_all()
    table = "results/scores.csv"
    assert (other.folder / table).read_bytes() == (in_one_shard.folder / table).read_bytes()
    for name in ("idsds", "idsds_probability", *NAMES):
        pd.testing.assert_frame_equal(other.scores(name), in_one_shard.scores(name), check_exact=True)


@pytest.mark.parametrize("batch_size", [pytest.param(1, marks=pytest.mark.slow), 7, "auto"])
def test_other_batch_sizes_agree_within_rounding(batch_size, project, in_one_shard):
    """Maps, drops and curves: scores within 1e-5, and the same order of methods, except for ties."""
    other = project(**DRAWN).attribute(batch_size).drop(batch_size).respond(batch_size).score_all()
    compared = 0
    for name in ("idsds", "idsds_probability", *NAMES):
        theirs, ours = (toy.scores(name) for toy in (other, in_one_shard))
        # Rounding errors grow with the logits of a score, even if these cancel.
        np.testing.assert_allclose(theirs.score, ours.score, rtol=1e-5, atol=1e-5 * max(1, ours.score.abs().max()))
        gaps = []
        for table in (theirs, ours):
            means = table.groupby("method").score.mean().to_numpy()
            gaps.append(np.subtract.outer(means, means))
        apart = np.abs(gaps[1]) > 1e-5 * np.nanmax(np.abs(means))
        compared += int(apart.sum())
        assert (np.sign(gaps[0])[apart] == np.sign(gaps[1])[apart]).all()
    assert compared > len(NAMES)


def test_metrics_share_responses(finished):
    """A response of two metrics is computed once, and a curve with few fractions is read from one with many."""
    names = sorted(finished.plan.method_responses)
    kinds = [name.rpartition("-")[0] for name in names]
    assert sorted(kinds) == [
        "deletion_lerf_road",
        "deletion_lerf_zeros",
        "deletion_lerf_zeros_updated",
        "deletion_morf_mean",
        "deletion_morf_road",
        "deletion_morf_zeros",
        "deletion_morf_zeros_magnitude",
        "deletion_value_road",
        "explanations",
        "insertion_morf_blur",
        "insertion_morf_blur_magnitude",
        "pictures",
    ]
    assert len(finished.plan.model_responses) == 1
    shared = finished.spec("road_lerf").responses["deletion"]
    assert shared.points == [7, 17, 27, 37, 47, 57, 67, 77, 87]


def test_a_curve_with_updated_maps_is_not_taken_from_a_finer_one(project):
    coarse = {"metric": "ids", "update": True, "rule": "mean", "fractions": [0.0, 0.5, 1.0]}
    fine = {**coarse, "fractions": [0.0, 0.25, 0.5, 0.75, 1.0]}
    shared = project(metrics=[{"coarse": coarse}, {"fine": fine}]).plan.shared_responses
    assert all(wanted == response and points is None for wanted, (response, points) in shared.items())


def test_a_metric_defines_its_undefined_scores(project):
    toy = (
        project(
            metrics=[{"mine": {"metric": "toy_plugin:above_half", "steps": 2}}],
            explainers=["random"],
            drops={"baselines": ["zeros"]},
        )
        .attribute()
        .drop()
        .respond()
    )
    toy.score_with("mine")
    rows = toy.scores("mine")
    assert not rows.valid.all()
    assert rows.score.isna().equals(~rows.valid)
    assert (rows.score.dropna() > 0.5).all()


def test_drops_can_be_of_probabilities_only(project):
    toy = project(drops={"outputs": ["probability"]}, explainers=["random"]).attribute().drop().score()
    assert set(pd.read_csv(toy.folder / "results/idsds_table.csv").metric) == {"idsds_probability"}
    assert pd.read_csv(toy.folder / "results/accuracy.csv").in_domain.tolist() == [True]


def test_both_outputs_are_one_test_case(project):
    toy = project(drops={"outputs": ["logit", "probability"]}, explainers=["random", "saliency"])
    toy.attribute().drop().score()
    assert (pd.read_csv(toy.folder / "results/meta_rank.csv").n_cases == 1).all()


def test_stores_describe_their_contents(finished):
    name = next(name for name in finished.plan.method_responses if name.startswith("deletion_morf_zeros"))
    store = finished.folder / f"{CURVES}/mine/{name}.zarr"
    facts = describe_store(store)
    assert facts["coordinates"]["method"] == ["mine", "mine_abs"]
    values = read(store, "response", 0, 10)
    of = dict(zip(facts["coordinates"]["quantity"], np.moveaxis(values, 2, 0), strict=True))
    assert values.shape == (10, 2, 12, 7)
    maps = finished.maps()[:, 0].astype(np.float64)
    np.testing.assert_allclose(of["total_positive"][:, 0, 3], np.maximum(maps, 0).sum((1, 2)), rtol=1e-6)
    np.testing.assert_allclose(of["positive"][:, 0, 1], np.sort(np.maximum(maps, 0).reshape(10, -1))[:, -24:].sum(1))
    np.testing.assert_allclose(of["total_magnitude"][:, 0, 3], np.abs(maps).sum((1, 2)), rtol=1e-6)
    np.testing.assert_array_equal(of["changed"][:, 0], np.tile(np.arange(7) * 24, (10, 1)))
    np.testing.assert_allclose(of["magnitude"][:, 1, -1], np.abs(finished.maps()[:, 0]).sum((1, 2)), rtol=1e-6)
    manifest = read_json(finished.folder / f"{CURVES}/mine/{name}.0.json")
    assert manifest["made_by"]["response"]["settings"]["order"] == "morf"
    pictures_name = next(name for name in finished.plan.method_responses if name.startswith("pictures"))
    assert read_json(finished.folder / f"{CURVES}/mine/{pictures_name}.0.json")["made_by"]["encoder"].startswith(
        "libwebp "
    )


def passes(toy, shard=0):
    """Network passes of every response of one explainer."""
    folder = toy.folder / CURVES / "mine"
    return {path.name: read_json(path)["network_passes"] for path in folder.glob(f"*.{shard}.json")}


def test_rise_and_mas_take_separate_curves(project):
    """65 passes per image for 32 steps in both directions with the intact image; MAS has another order and blur."""
    steps = [name for kind in ("rise", "mas") for name in (f"{kind}_insertion", f"{kind}_deletion")]
    toy = project(metrics=steps, explainers=[{"mine": {"explainer": "toy_plugin:gradient"}}])
    toy.attribute().respond(5)
    # Ten images, raw and absolute; the intact images are passed once for both, before the methods.
    assert sum(passes(toy).values()) == 10 * 2 * 64 * 2


def test_a_metric_over_cached_responses_makes_no_pass(project):
    first = {"explainers": [{"mine": {"explainer": "toy_plugin:gradient"}}], "drops": {"baselines": ["zeros"]}}
    toy = project(**first, metrics=["rise_deletion", "soundness"]).attribute().drop().respond()
    before = toy.bytes("curves")
    more = ["rise_deletion", "soundness", "road_lerf", {"late": {"metric": "soundness", "level": 0.9}}, "deletion_morf"]
    again = type(toy)(toy.folder, **first, metrics=more)
    assert set(again.plan.method_responses) == set(toy.plan.method_responses)
    again.score_all()
    assert toy.bytes("curves") == before
    assert set(pd.read_csv(toy.folder / "results/scores.csv").metric) > {"late", "road_lerf", "deletion_morf"}


def test_a_metric_with_other_responses_leaves_existing_ones_unchanged(project):
    first = {"explainers": [{"mine": {"explainer": "toy_plugin:gradient"}}]}
    toy = project(**first, metrics=["rise_deletion"]).attribute().respond()
    before = {path: read_json(path) for path in (toy.folder / CURVES / "mine").glob("*.json")}
    again = type(toy)(toy.folder, **first, metrics=["rise_deletion", "road_morf"]).respond()
    assert {path: read_json(path) for path in before} == before
    assert len(passes(again)) == 2


def test_only_added_images_are_computed(project):
    change = {"explainers": [{"mine": {"explainer": "toy_plugin:gradient"}}], "metrics": ["ids", "road_morf"]}
    few = project(**change, evaluation={"images": 4}).attribute().respond(4)
    first = passes(few)
    more = type(few)(few.folder, **change, evaluation={"images": 8}).attribute().respond(4)
    assert passes(more) == {name: 2 * count for name, count in first.items()}
    images_at_once = project(**change, evaluation={"images": 8}).attribute().respond(4)
    assert more.bytes("curves") == images_at_once.bytes("curves") != {}


def test_the_reason_of_an_explainer_reaches_the_scores(project):
    gap = {"odd": {"explainer": "toy_plugin:never_applies"}}
    toy = run_all_stages(project(explainers=[gap, "random"], metrics=["rise_deletion", "sensitivity_n"]))
    for metric in ("rise_deletion", "sensitivity_n"):
        assert toy.gaps(metric) == dict.fromkeys(("odd", "odd_abs"), "the network has no attention")
    rows = pd.read_csv(toy.folder / "results/scores.csv").set_index(["metric", "method"])
    assert rows.loc[("rise_deletion", "odd"), "gap"] == "the network has no attention"
    assert rows.loc[("rise_deletion", "random"), "n_images"] == 10


def test_explainers_that_fail_on_changed_images_are_not_applicable(project):
    """Training images are available to explainers that use them as baselines."""
    explainers = [{"picky": {"explainer": "toy_plugin:picky"}}, {"expected_gradients": {"samples": 2, "baselines": 4}}]
    change = {"explainers": explainers, "metrics": [{"sensitivity_max": {"samples": 2}}, {"ids": FEW}]}
    toy = run_all_stages(project(**change))
    assert toy.gaps("ids") == {}
    assert toy.gaps("sensitivity_max") == dict.fromkeys(("picky", "picky_abs"), "this is no image of the split")
    assert toy.scores("sensitivity_max").valid.all()


def test_scores_without_applicable_explainers_are_empty(project):
    toy = project(explainers=[{"odd": {"explainer": "toy_plugin:never_applies"}}], metrics=["ids"])
    toy.attribute().drop().respond()
    toy.score_with("ids")
    assert len(toy.scores("ids")) == 0


def test_missing_maps_are_named(project):
    toy = project(metrics=["ids"]).attribute()
    toy.base("mine").with_name("mine.0.json").unlink()
    with pytest.raises(HeatproofError, match=r"mine\.0\.json is missing: run your snakemake"):
        toy.respond()


def test_batches_finished_before_a_kill_are_not_repeated(project, monkeypatch):
    """A job that is killed in its second batch continues with the second batch."""
    toy = project(metrics=["ids"], explainers=[{"mine": {"explainer": "toy_plugin:gradient"}}]).attribute()
    real, calls = stage.intact_responses, []

    def dies(*arguments, **options):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    monkeypatch.setattr(stage, "intact_responses", dies)
    with pytest.raises(KeyboardInterrupt):
        toy.respond(4)
    toy.respond(4)
    assert len(calls) == 4, "three batches of ten images, of which the first was done"
    uninterrupted = (
        project(metrics=["ids"], explainers=[{"mine": {"explainer": "toy_plugin:gradient"}}]).attribute().respond(4)
    )
    assert toy.bytes("curves") == uninterrupted.bytes("curves")


def test_a_resumed_job_has_complete_manifests(project, monkeypatch):
    """The job is killed after its last batch and before it publishes: the manifests are still complete."""
    change = {"metrics": ["ids"], "explainers": [{"mine": {"explainer": "toy_plugin:gradient"}}, "random"]}
    undisturbed, killed = project(**change).attribute().respond(4), project(**change).attribute()

    def killed_here(shard, *arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as changed:
        changed.setattr(Shard, "publish_behind", killed_here)
        with pytest.raises(KeyboardInterrupt):
            killed.respond(4)
    killed.respond(4)
    manifests = [
        {
            path.relative_to(toy.folder): without_times(read_json(path))
            for path in (toy.folder / "results/curves").rglob("*.json")
            if "files" in read_json(path)
        }
        for toy in (killed, undisturbed)
    ]
    assert manifests[0] == manifests[1]
    assert all(manifest["check_passes"] for manifest in manifests[0].values())
