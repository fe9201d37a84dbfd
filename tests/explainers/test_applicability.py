"""The applicability check runs once for each model and explainer, is recorded, and decides if maps are computed."""

from dataclasses import replace

import pandas as pd
import pytest
from jobs import without_times
from toy_project import WHERE

from heatproof.errors import HeatproofError
from heatproof.store.manifest import read_checksummed, write_checksummed
from heatproof.store.reading import read_json
from heatproof.store.source_files import read_record, write_record
from heatproof.workflow.config.schema import normalise
from heatproof.workflow.stages._shards import Shard

IG = {"ig": {"explainer": "integrated_gradients", "steps": 12}}


def record(project, explainer):
    return read_json(f"{project.base(explainer)}.gate.json")


def reason_of(project, explainer, shard=0):
    return read_json(f"{project.base(explainer)}.{shard}.json")["gap"]


def test_figures_of_explainers_are_recorded(project):
    names = ("ig", "deep_lift", "guided_backprop", "lrp", "saliency")
    run = project(explainers=[IG, *names[1:]]).attribute()
    figures = {name: record(run, name)["figures"] for name in names}
    assert 0 < figures["ig"]["completeness_error"]["value"] < 0.5
    for name, figure, limit in (("deep_lift", "convergence_delta", 0.01), ("lrp", "conservation_error", 1e-3)):
        assert figures[name][figure]["value"] < figures[name][figure]["limit"] == limit
    assert figures["guided_backprop"]["difference_from_gradient"]["value"] > 0.01
    assert figures["saliency"] == {"constant_maps": {"value": 0, "limit": None}}
    assert not any(record(run, name)["gap"] for name in names)


def test_more_steps_have_a_smaller_error(project):
    errors = []
    for steps in (2, 64):
        run = project(explainers=[{"ig": {"explainer": "integrated_gradients", "steps": steps}}]).attribute()
        errors.append(record(run, "ig")["figures"]["completeness_error"]["value"])
    assert errors[1] < errors[0]


def test_the_tolerance_of_an_explainer_takes_precedence_over_the_config(project):
    names = {"own": {"explainer": "deep_lift", "tolerance": 0.5}, "given": {"explainer": "deep_lift"}, "lrp": {}}
    run = project(explainers=[{name: options} for name, options in names.items()], attribution={"tolerance": 1e-12})
    run.attribute()
    limits = {"own": ("convergence_delta", 0.5), "given": ("convergence_delta", 1e-12)}
    for name, (figure, limit) in {**limits, "lrp": ("conservation_error", 1e-12)}.items():
        figure_record = record(run, name)["figures"][figure]
        assert figure_record["limit"] == limit
        assert 0 < figure_record["value"] < 0.01, "figures are also recorded for explainers that do not apply"
        assert (reason_of(run, name) is not None) == (name != "own")
    assert "above 1e-12" in reason_of(run, "given")


def test_an_invalid_tolerance_is_an_error():
    with pytest.raises(HeatproofError, match=r"^'attribution.tolerance' in the config must be above 0.0, not -1\.$"):
        normalise({"attribution": {"tolerance": -1}})


@pytest.mark.parametrize(
    ("explainer", "reason"),
    [
        ("constant_map", "each of its maps is constant"),
        ("half_a_map", "its map has 6 × 12 pixels, and the image has 12 × 12"),
        ("misses_its_sum", "its completeness error is 3, above 1"),
        ("never_applies", "the network has no attention"),
    ],
)
def test_explainers_that_fail_have_their_reason_in_every_shard(project, explainer, reason):
    run = project(explainers=[{"odd": {"explainer": f"toy_plugin:{explainer}"}}, "saliency"], shard_size=4).attribute()
    assert record(run, "odd")["gap"] == reason
    assert [reason_of(run, "odd", shard) for shard in range(3)] == [reason] * 3
    assert reason_of(run, "saliency") is None


def test_the_check_runs_once_for_all_shards(project):
    run = project(explainers=["saliency"], shard_size=4).attribute()
    in_one_shard = project(explainers=["saliency"], shard_size=12).attribute()
    passes = [read_json(f"{run.base('saliency')}.{shard}.json")["gate"]["network_passes"] for shard in range(3)]
    assert passes == [4, 4, 4]
    assert record(run, "saliency")["images"] == 4
    assert record(in_one_shard, "saliency")["figures"] == record(run, "saliency")["figures"]


def test_a_later_job_reads_the_record_of_the_first(project):
    run = project(explainers=["saliency"], shard_size=4)
    run.make(run.maps_spec(["saliency"], 0))
    path = f"{run.base('saliency')}.gate.json"
    write_checksummed(path, {**read_checksummed(path), "gap": "a reason of a test"})
    run.make(run.maps_spec(["saliency"], 1))
    assert reason_of(run, "saliency", 1) == "a reason of a test"


@pytest.mark.parametrize(("explainer", "reads"), [("expected_gradients", True), ("mine", True), ("saliency", False)])
def test_the_check_is_repeated_only_if_the_explainer_reads_the_changed_training_images(project, explainer, reads):
    source = {"explainer": "toy_plugin:gradient"} if explainer == "mine" else {}
    options = {**source, **({"baselines": 2} if explainer == "expected_gradients" else {})}
    run = project(explainers=[{explainer: options}]).attribute(reference=False)
    path = f"{run.base(explainer)}.gate.json"
    write_checksummed(path, {**read_checksummed(path), "gap": "a reason of a test"})
    files = run.folder / "results/datasets/toy.files"
    record = read_record(files)
    write_record(files, replace(record, listed={**record.listed, "train": ("other", record.listed["train"][1])}))
    before = read_json(f"{run.base(explainer)}.0.json")["data"]
    run.attribute(reference=False)
    assert (read_json(f"{run.base(explainer)}.0.json")["data"] != before) == reads
    assert read_checksummed(path)["gap"] == (None if reads else "a reason of a test")
    assert reason_of(run, explainer) is None


def manifests_of(run):
    contents = {path.relative_to(run.folder): read_json(path) for path in (run.folder / "results/maps").rglob("*.json")}
    return {path: without_times(content) for path, content in contents.items() if "files" in content}


@pytest.mark.parametrize("attribution_jobs", ["together", "apart"])
@pytest.mark.parametrize("record_is_lost", [False, True], ids=["", "record lost"])
def test_a_resumed_job_has_the_record_of_the_first(project, monkeypatch, attribution_jobs, record_is_lost):
    """If a job is killed after its last batch and before it publishes, the result of the check is not lost."""
    change = {
        "explainers": [IG, "deep_lift", "saliency", "random"],
        "shard_size": 16,
        "attribution_jobs": attribution_jobs,
    }
    undisturbed = project(**change).attribute().drop().score()
    killed, publish = project(**change), Shard.publish_behind

    def killed_here(shard, *arguments):
        raise KeyboardInterrupt

    jobs = (
        [[name] for name in killed.plan.model_explainers]
        if attribution_jobs == "apart"
        else [killed.plan.model_explainers]
    )
    for explainers in jobs:
        for _ in explainers:
            monkeypatch.setattr(Shard, "publish_behind", killed_here)
            with pytest.raises(KeyboardInterrupt):
                killed.attribute(explainers=explainers, reference=False)
            if record_is_lost:
                for path in (killed.folder / "results/maps").rglob("*.gate.json"):
                    path.unlink()
        monkeypatch.setattr(Shard, "publish_behind", publish)
        killed.attribute(explainers=explainers)
    killed.drop().score()
    tables = [sorted((run.folder / "results").glob("*.csv")) for run in (killed, undisturbed)]
    assert [path.read_text() for path in tables[0]] == [path.read_text() for path in tables[1]]
    assert manifests_of(killed) == manifests_of(undisturbed)


@pytest.mark.parametrize("layer", ["features", None], ids=["named", "found"])
@pytest.mark.parametrize("batches", [0, 1, 3])
def test_passes_of_a_killed_job_equal_those_of_an_undisturbed_one(project, monkeypatch, layer, batches):
    """Passes that run once for a network, such as those for its CAM layer, do not count for the first explainer."""
    change = {
        "explainers": ["grad_cam", "hires_cam", "saliency", "guided_backprop", IG],
        "models": [{"net": {"architecture": "toy_plugin:network", "cam_layer": layer}}],
        "shard_size": 16,
    }
    undisturbed = project(**change).attribute(batch_size=3)
    killed, add = project(**change), Shard.add
    for _ in killed.plan.model_explainers:
        remaining = [None] * batches

        def add_until_killed(shard, *arguments, remaining=remaining):
            if not remaining:
                raise KeyboardInterrupt
            remaining.pop()
            add(shard, *arguments)

        monkeypatch.setattr(Shard, "add", add_until_killed)
        with pytest.raises(KeyboardInterrupt):
            killed.attribute(batch_size=3, reference=False)
        monkeypatch.setattr(Shard, "add", add)
    killed.attribute(batch_size=3)
    assert manifests_of(killed) == manifests_of(undisturbed)
    assert record(killed, "hires_cam") == record(undisturbed, "hires_cam")


def test_the_table_has_a_row_for_every_figure_and_every_reason(project):
    run = project(explainers=[IG, {"odd": {"explainer": "toy_plugin:never_applies"}}, "saliency", "random"])
    run.attribute().drop().score()
    table = pd.read_csv(run.folder / "results/applicability.csv")
    rows = table.set_index(["explainer", "figure"])
    assert set(zip(table["dataset"], table["model"], table["weights"], strict=True)) >= {WHERE}
    assert rows.loc[("ig", "completeness_error"), "limit"] == 1
    assert rows.loc[("random", "constant_maps"), "value"] == 0
    refused = table[table["explainer"] == "odd"]
    assert set(refused["gap"]) == {"the network has no attention"}
    assert refused["figure"].isna().all()
