"""Removing results that are not needed any more, with real Snakemake."""

import re

import pytest
from snakemake_project import TABLE

KINDS = ("maps", "responses", "epochs", "others", "targets", "leftovers")


def prune(project, *arguments):
    """Return the output of `prune`, and the number of removable results of each kind."""
    done = project.heatproof("prune", "micro.yaml", "--target", TABLE, *arguments)
    assert done.returncode == 0, done.stderr
    numbers = re.findall(rf"^({'|'.join(KINDS)}) +(\d+)", done.stdout, flags=re.MULTILINE)
    return done.stdout, {kind: int(number) for kind, number in numbers}


def shards(project, folder):
    arrays = {"maps": "attribution", "drops": "logit"}
    return [path for path in project.folder.glob(f"results/{folder}/**/{arrays[folder]}/c/**/*") if path.is_file()]


@pytest.mark.slow
def test_tables_remain_current_without_maps_and_responses(project):
    tables = project.tables()
    output, counts = prune(project)
    assert counts == {"maps": 6, "responses": 2, "epochs": 0, "others": 0, "targets": 0, "leftovers": 0}
    assert re.search(r"maps +6 .* [1-9]\d* passes, ", output)
    assert shards(project, "maps")
    assert "Nothing was removed" in output
    assert "Removed" in prune(project, "--delete", "maps", "--delete", "responses")[0]
    assert not shards(project, "maps")
    assert not shards(project, "drops")
    assert project.ran() == {}
    assert project.tables() == tables
    # A copy without Snakemake's records is reconciled as well.
    for path in (project.folder / ".snakemake/metadata").iterdir():
        path.unlink()
    assert project.ran() == {}
    # More images are added to the first ones, with the same scores.
    project.config["evaluation"]["images"] = 7
    assert project.ran()["attribute"] >= 1
    assert shards(project, "maps")


@pytest.mark.slow
def test_inputs_of_unfinished_jobs_are_not_removed(project):
    # Curves were not computed; the metrics that read them need the maps.
    done = project.heatproof("prune", "micro.yaml", "--target", "results/scores.csv")
    assert re.search(r"^maps +0 ", done.stdout, flags=re.MULTILINE), done.stdout
    project.config["scores"] = {"bootstrap": 20, "least_coverage": 0.4}
    assert prune(project)[1]["maps"] == 6
    project.config["target"] = "predicted"
    assert prune(project)[1]["maps"] == 0


@pytest.mark.slow
def test_stores_of_methods_outside_the_config_can_be_removed(project):
    project.config["explainers"] = ["saliency", "random"]
    assert prune(project)[1]["others"] == 1
    prune(project, "--delete", "others")
    assert not list(project.folder.glob("results/maps/**/integrated_gradients*"))


@pytest.mark.slow
def test_unknown_kinds_and_targets_are_refused(project):
    for arguments, message in (
        (("--delete", "map"), "there is no such kind, did you mean 'maps'"),
        (("--target", "results/nothing.csv"), "No job of this config makes results/nothing.csv"),
    ):
        done = project.heatproof("prune", "micro.yaml", *arguments)
        assert done.returncode == 1
        assert message in done.stderr
