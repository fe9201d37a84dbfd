"""Tables from cached maps and drops, including methods that are not applicable."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import spearmanr

import heatproof
from heatproof.core.normalise import normalise
from heatproof.datasets.checks import open_dataset
from heatproof.errors import HeatproofError
from heatproof.models.network import load_network
from heatproof.store.reading import read_json

GAP = {"odd": {"explainer": "toy_plugin:never_applies"}}
MINE = {"mine": {"explainer": "toy_plugin:gradient"}}
IDSDS = "results/scores/toy/net/finetuned/idsds.parquet"
# Tolerance of float32 through a few layers: the order of sums depends on the batch, and logits reach 30.
ROUNDING = 1e-6

ROOT = Path(__file__).parents[2]


def table(project, name="idsds_table"):
    return pd.read_csv(project.folder / f"results/{name}.csv")


@pytest.fixture
def scored(project):
    def make(**change):
        return project(**change).attribute().drop().score()

    return make


def test_drops_equal_outputs_of_the_network(project):
    run = project(evaluation={"images": 4, "accuracy_images": 9}, drops={"baselines": ["zeros"]}).drop()
    finetuning = run.finetune()
    data = open_dataset(finetuning.dataset)
    network = load_network(finetuning.model, 3, run.folder / finetuning.files["weights"], torch.device("cpu"))
    images = normalise(data.images("evaluation", 0, 9), finetuning.model.facts)
    labels = data.splits["evaluation"].labels[:9]
    for variant in (0, 1, 6, 16):
        deleted = images.clone()
        if variant:
            row, column = divmod(variant - 1, 4)
            deleted[:, :, 3 * row : 3 * row + 3, 3 * column : 3 * column + 3] = 0
        logits = network(deleted).numpy()
        drops = run.drops_of("logit", baseline="zeros")[:, variant]
        np.testing.assert_allclose(drops, logits[np.arange(9), labels], rtol=ROUNDING, atol=1e-5)
        np.testing.assert_array_equal(run.drops_of("predicted", baseline="zeros")[:, variant], logits.argmax(1))
        ranks = (logits > logits[np.arange(9), labels][:, None]).sum(1)
        np.testing.assert_array_equal(run.drops_of("target_rank", baseline="zeros")[:, variant], ranks)


@pytest.mark.parametrize(("batch_size", "shard_size"), [(1, 16), (7, 5), (64, 4)])
@pytest.mark.parametrize("baseline", ["zeros", "random", "blur", "mean"])
def test_drops_do_not_depend_on_batches_and_shards(project, batch_size, shard_size, baseline):
    change = {"drops": {"baselines": [baseline]}}
    reference = project(**change).drop()
    other = project(**change, shard_size=shard_size).drop(batch_size=batch_size)
    for array in ("logit", "log_probability"):
        expected, drops = (run.drops_of(array, baseline=baseline) for run in (reference, other))
        np.testing.assert_allclose(drops, expected, rtol=ROUNDING, atol=1e-5)
    again = project(**change).drop()
    assert again.bytes("drops") == reference.bytes("drops") != {}


def test_a_score_is_the_correlation_of_patch_sums_and_drops(scored):
    run = scored(shard_size=4)
    scores = pd.read_parquet(run.folder / IDSDS)
    logits = run.drops_of("logit").astype(np.float64)
    sums = run.maps()[:, 0].astype(np.float64).reshape(10, 4, 3, 4, 3).sum((2, 4)).reshape(10, 16)
    expected = [spearmanr(sums[image], logits[image, 0] - logits[image, 1:]).statistic for image in range(10)]
    mine = scores[scores.method == "mine"]
    assert mine.image.tolist() == [f"evaluation-{row:02d}" for row in range(10)]
    np.testing.assert_allclose(mine.score, expected, atol=1e-12)
    absolute = np.abs(run.maps()[:, 0]).astype(np.float64).reshape(10, 4, 3, 4, 3).sum((2, 4)).reshape(10, 16)
    expected = [spearmanr(absolute[image], logits[image, 0] - logits[image, 1:]).statistic for image in range(10)]
    np.testing.assert_allclose(scores[scores.method == "mine_abs"].score, expected, atol=1e-12)


def test_a_reason_appears_in_the_table(scored):
    run = scored(explainers=[MINE, GAP, "random"])
    assert run.gaps("idsds") == dict.fromkeys(("odd", "odd_abs"), "the network has no attention")
    rows = table(run).set_index("method")
    assert rows.loc["odd", "gap"] == "the network has no attention"
    assert rows.loc[["odd", "odd_abs"], ["score", "rank", "ci_low"]].isna().all(axis=None)
    assert rows.loc["odd", "n_images"] == 0
    assert rows.loc[["mine", "random"], "gap"].isna().all()
    assert sorted(rows["rank"].dropna()) == [1, 2, 3, 4]
    ranked = table(run, "meta_rank").set_index("method")
    assert ranked["kappa"].notna().sum() == 4


def test_the_column_gap_exists_only_if_needed(scored):
    assert "gap" not in table(scored(explainers=[MINE, "random"]))


def test_a_run_without_applicable_methods_is_an_error(scored):
    """No method of the config is applicable to this model, so there is no table."""
    with pytest.raises(HeatproofError, match="No method has a rank under any metric of the patch drops"):
        scored(explainers=[GAP])


def test_the_manifest_of_tables_has_the_digests_of_all_scores(scored):
    """The inputs of every test case are listed, although all score files have the same name."""
    run = scored(drops={"baselines": ["mean", "random"]})
    manifest = read_json(run.folder / "results/tables.json")
    assert set(manifest["input_sha256"]) == {IDSDS, IDSDS.replace("idsds", "sds_g4_random")}


def test_the_same_command_gives_the_same_tables(scored):
    first, second = scored(), scored()
    for name in ("idsds_table", "meta_rank", "accuracy"):
        assert table(first, name).equals(table(second, name))


def test_a_missing_manifest_is_reported(scored):
    run = scored()
    run.base("mine").with_name("mine.0.json").unlink()
    with pytest.raises(HeatproofError, match=r"mine\.0\.json is missing: run your snakemake"):
        run.score()


def test_a_missing_manifest_of_scores_is_reported(scored):
    run = scored()
    (run.folder / IDSDS.replace("parquet", "json")).write_text("{")
    with pytest.raises(HeatproofError, match=r"idsds\.json is damaged: remove it with `rm .*idsds\.json`"):
        run.make("tables")


@pytest.mark.parametrize(("grid", "shape"), [(4, (4, 4)), ([2, 6], (2, 6))])
def test_stored_patch_sums_give_the_scores_of_stored_maps(scored, grid, shape):
    explainers, grids = [MINE, GAP, "saliency", "random"], {"finetuning": {"grid": grid}, "drops": {"grids": [grid]}}
    maps = scored(explainers=explainers, **grids)
    sums = scored(explainers=explainers, attribution={"stored_as": "patch_sums"}, **grids)
    assert sums.maps().shape == (10, 1, *shape)
    assert maps.maps().shape == (10, 1, 12, 12)
    columns = ["method", "image", "score"]
    expected, of_sums = (pd.read_parquet(run.folder / IDSDS)[columns] for run in (maps, sums))
    assert {"mine", "mine_abs"} < set(of_sums.method)
    pd.testing.assert_frame_equal(of_sums, expected, check_exact=True)


def test_tables_of_methods_and_checks_have_the_values_of_shards(scored):
    run = scored(explainers=[MINE, GAP, {"integrated_gradients": {"steps": 3}}, "random"], shard_size=4)
    methods = run.methods("idsds").set_index("method")
    assert set(methods["metric"]) == {"idsds"}
    assert methods.loc["integrated_gradients_abs", "explainer"] == "integrated_gradients"
    shards = [read_json(f"{run.base('integrated_gradients')}.{shard}.json") for shard in range(3)]
    row = methods.loc["integrated_gradients"]
    assert (row["images"], row["passes"]) == (10, sum(shard["network_passes"] for shard in shards))
    assert row["seconds"] == sum(shard["seconds"] for shard in shards)
    assert row["check_passes"] > shards[0]["gate"]["network_passes"]
    drops = [read_json(run.folder / f"results/drops/toy/net/finetuned/g4_mean.{shard}.json") for shard in range(3)]
    assert set(methods["drops_passes"]) == {sum(shard["network_passes"] for shard in drops)}
    assert set(methods["drops_seconds"]) == {sum(shard["seconds"] for shard in drops)}
    assert methods["gap"].to_dict() == dict.fromkeys(methods.index, "") | run.gaps("idsds")
    checks = pd.read_parquet(run.folder / IDSDS.replace("parquet", "checks.parquet")).set_index(["explainer", "figure"])
    assert list(checks.index) == sorted(checks.index)
    figures = shards[0]["gate"]["figures"]
    assert checks.loc["integrated_gradients", "value"].to_dict() == {name: figures[name]["value"] for name in figures}
    assert checks.loc["odd", "gap"].tolist() == ["the network has no attention"]
    manifest = read_json(run.folder / IDSDS.replace("parquet", "json"))
    assert not {"gaps", "gates", "costs", "share_wrong"} & manifest.keys()
    assert list(heatproof.open(run.folder).scores) == ["toy/net/finetuned/idsds"]


@pytest.mark.parametrize("shard_size", [4, 16])
def test_passes_of_checks_and_maps_do_not_depend_on_shards(project, shard_size):
    explainers = ["saliency", {"rise": {"masks": 8}}, "random"]
    run = project(explainers=explainers, shard_size=shard_size).attribute().drop().score()
    rows = table(run).set_index("method")
    rows = rows[~rows.index.str.endswith("_abs")]
    # Four images in a batch, two of them alone, and the maps of four images.
    assert rows["check_passes"].to_dict() == {"saliency": 6 + 4, "rise": 6 + 4 * 8, "random": 0}
    assert rows["passes"].to_dict() == {"saliency": 1, "rise": 8, "random": 0}
    run.make("costs")
    costs = table(run, "costs").set_index("method")
    assert costs.loc[["saliency", "saliency_abs", "rise"], "check_passes"].tolist() == [10, 10, 38]


def test_the_documents_name_the_columns_of_the_tables(scored):
    run = scored(explainers=["saliency"])
    run.make("costs")
    columns = list(table(run))
    assert columns.index("check_passes") == columns.index("passes") + 1
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    header = next(line for line in readme.splitlines() if line.startswith("dataset,model,weights,method,metric"))
    assert [name for name in columns if name not in ("note", "gap")] == header.split(",")
    sample = [line for line in readme.splitlines() if line.startswith("digits,resnet20,finetuned,")]
    assert {line.count(",") for line in sample} == {header.count(",")}
    reading = (ROOT / "docs/reading.md").read_text(encoding="utf-8")
    paragraph = next(part for part in reading.split("\n\n") if part.startswith("`idsds_table.csv` and `scores.csv`"))
    assert [name for name in columns if f"`{name}`" not in paragraph] == []
    paragraph = next(part for part in reading.split("\n\n") if part.startswith("`costs.csv`"))
    assert [name for name in table(run, "costs") if f"`{name}`" not in paragraph] == []
