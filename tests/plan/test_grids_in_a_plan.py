"""Grids of any shape in a config: normal form, names and paths, and the error for an invalid grid."""

from pathlib import Path

import jsonschema
import pytest
import yaml

from heatproof.core.options import normalise_grid_options
from heatproof.core.registry import options_of
from heatproof.errors import HeatproofError
from heatproof.explainers.registry import EXPLAINERS
from heatproof.metrics.registry import METRICS
from heatproof.workflow.config.files import default_config, merge
from heatproof.workflow.plan import comparisons
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.validate import make_plan

SCHEMA = yaml.safe_load((Path(__file__).parents[2] / "workflow/schemas/config.schema.yaml").read_text(encoding="utf-8"))
WHERE = {"dataset": "digits", "model": "resnet20", "weights": "finetuned"}


def grids_among(function):
    return [name for name in options_of(function) if normalise_grid_options({name: [3, 3]}, function)[name] == 3]


def configs_with(grid):
    """Yield every key of a config that takes a grid, with a config that has a grid there."""
    yield "'drops.grids.0'", {"drops": {"grids": [grid]}}
    yield "'finetuning.grid'", {"finetuning": {"grid": grid}}
    yield "'grid' in weights: f", {"weights": [{"f": {"grid": grid}}]}
    yield (
        "'finetuning.grid' in models: resnet20",
        {"models": [{"resnet20": {"architecture": "cifar_resnet20", "finetuning": {"grid": grid}}}]},
    )
    for name, entry in METRICS.items():
        functions = (entry.options_function, entry.function)
        if name not in ("sds", "idsds") and not entry.is_custom and any(map(grids_among, functions)):
            steps = {"steps": 2} if "steps" in entry.options else {}
            yield f"'grid' of metric {name!r}", {"metrics": [{name: {"grid": grid, **steps}}]}
    for name, entry in EXPLAINERS.items():
        if entry.function.__module__.startswith("heatproof."):
            for option in grids_among(entry.function):
                yield f"{option!r} of explainer {name!r}", {"explainers": [{name: {option: grid}}]}


def plan_of(**change):
    return make_plan(merge(default_config(), change))


def jobs_as_json(plan):
    return [(job.stage, job.wildcards, job.spec_json, job.outputs, job.inputs) for job in Graph(plan).jobs()]


@pytest.mark.parametrize(("key", "change"), list(configs_with([4, 4])), ids=lambda value: str(value)[:60])
def test_a_square_grid_is_the_same_however_it_is_written(key, change):
    square = next(config for name, config in configs_with(4) if name == key)
    assert jobs_as_json(plan_of(**change)) == jobs_as_json(plan_of(**square))


@pytest.mark.parametrize(("key", "change"), list(configs_with([4, 8])), ids=lambda value: str(value)[:60])
def test_rows_and_columns_are_another_grid(key, change):
    jsonschema.validate(change, SCHEMA)
    square, turned = (next(config for name, config in configs_with(grid) if name == key) for grid in (4, [8, 4]))
    jobs = [jobs_as_json(plan_of(**config)) for config in (change, square, turned)]
    assert jobs[0] != jobs[1]
    assert jobs[0] != jobs[2]


BAD = [[4], [0, 4], [4, 4, 4], "4x8", True, 2.0, [4, "8"], [4, 1025], [1, -1], [True, 4], {"rows": 4}]


@pytest.mark.parametrize("bad", BAD)
def test_invalid_grids_are_refused_in_one_sentence(bad):
    for key, change in configs_with(bad):
        with pytest.raises(HeatproofError, match=r"\[rows, columns\]( or null)?, not ") as caught:
            plan_of(**change)
        assert key in str(caught.value)


@pytest.mark.parametrize(("bad", "bound"), [(0, "at least"), (-4, "at least"), (1025, "at most 1024")])
def test_the_error_about_a_number_names_its_bound(bad, bound):
    for key, change in configs_with(bad):
        with pytest.raises(HeatproofError, match=f"must be .*{bound}.*, not {bad}") as caught:
            plan_of(**change)
        assert key in str(caught.value)


# JSON has one type of numbers, and a JSON schema cannot constrain a product.
@pytest.mark.parametrize("bad", [0, 1, 1025, [2000, 4], *(value for value in BAD if value != 2.0)])
def test_the_schema_refuses_invalid_grids(bad):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"drops": {"grids": [bad]}}, SCHEMA)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"drops": {"grids": [[4, 5]]}}, r"The grid \[4, 5\] in drops does not divide the 32×32 .* so use 4\."),
        ({"finetuning": {"grid": [6, 16]}}, r"The grid \[6, 16\] in finetuning .*rows have .*use \[4, 16\]\."),
        ({"metrics": [{"patch_insertion": {"grid": 5}}]}, r"'patch_insertion' .*A grid of 5 .*use 4 or 8\."),
        ({"metrics": [{"patch_insertion": {"grid": [3, 8]}}]}, r"A grid of \[3, 8\] .*use \[2, 8\]\."),
        ({"metrics": [{"ids": {"grid": [3, 8], "steps": 2}}]}, r"'ids' .*A grid of \[3, 8\] .*use \[2, 8\]\."),
        ({"drops": {"grids": [4, [4, 4]]}}, "'drops.grids' in the config names 4 twice"),
        ({"drops": {"grids": [[4, 8], [4, 8]]}}, r"'drops.grids' in the config names \[4, 8\] twice"),
        (
            {"attribution": {"stored_as": "patch_sums"}, "metrics": [], "drops": {"grids": [4, [4, 8]]}},
            r"drops has the grids \[4, \[4, 8\]\]: name one grid",
        ),
    ],
)  # fmt: skip
def test_a_grid_that_does_not_fit_is_refused_before_the_run(change, message):
    with pytest.raises(HeatproofError, match=message):
        plan_of(**change)


def test_grids_are_part_of_names_and_paths():
    plan = plan_of(
        drops={"grids": [4, [4, 8]], "baselines": ["mean", "blur"]},
        weights=["pretrained", "finetuned", {"wide": {"grid": [4, 8]}}],
    )
    assert plan.config["drops"]["grids"] == [4, (4, 8)]
    assert set(plan.metrics_of("finetuned", "resnet20")) == {"idsds", "sds_g4_blur", "sds_g4x8_mean", "sds_g4x8_blur"}
    assert set(plan.metrics_of("wide", "resnet20")) == {"sds", "sds_g4_blur", "idsds_g4x8_mean", "sds_g4x8_blur"}
    graph = Graph(plan)
    for stage in ("drops", "features"):
        for grid, name in ((4, "g4_mean"), ((4, 8), "g4x8_mean")):
            job = graph.job(stage, {**WHERE, "grid": grid, "baseline": "mean", "shard": 0})
            assert job.outputs[0] == f"results/{stage}/digits/resnet20/finetuned/{name}.0.json"
            assert job.benchmark == f"results/benchmarks/{stage}/digits/resnet20/finetuned/{name[1:-5]}/mean/0.tsv"
            # Wildcards are text in Snakemake.
            assert graph.job(stage, {key: str(value) for key, value in job.wildcards.items()}) is job
    spec = graph.spec("finetune", **{**WHERE, "weights": "wide"})
    assert spec.training.grid == (4, 8)


def test_grids_with_equal_numbers_of_patches_are_different_levels():
    plan = plan_of(drops={"grids": [[8, 4], 8, [4, 8], 4]}, weights=["finetuned"])
    rows = [row for row in comparisons.comparisons(plan, "resnet20") if row[0] == "grid"]
    assert [level[0] for level in rows[0][3]] == ["P = 16", "P = 32 (4x8)", "P = 32 (8x4)", "P = 64"]
