"""Which jobs run again after each change, in one invocation; docs/reruns.md has this as a table."""

from __future__ import annotations

import json
import os
import re
import shutil

import pytest
from snakemake_project import MICRO, TABLE, Project, clone

pytestmark = [pytest.mark.workflow, pytest.mark.slow]

MAPS = "results/maps/digits/vgg/finetuned"
SALIENCY = f"{MAPS}/saliency.zarr/attribution/c/0/0/0/0"
SCORES = "results/scores.csv"
RESCORED = {"score": 1, "tables": 1}


def passes(project: Project, explainer: str, shard: int) -> int:
    return manifest(project, explainer, shard)["network_passes"]


def manifest(project: Project, explainer: str, shard: int) -> dict:
    return json.loads((project.folder / MAPS / f"{explainer}.{shard}.json").read_text())


def test_an_unchanged_config_reruns_nothing(project):
    printed = project.run()
    assert "Nothing to be done" in printed


def test_an_added_method_reruns_only_its_maps_and_the_scores(project):
    project.config["explainers"].append("input_x_gradient")
    before = (project.folder / SALIENCY).read_bytes()
    assert project.ran() == {"attribute": 2, **RESCORED}
    log = (project.folder / "results/logs/attribute/digits/vgg/finetuned/all.0.log").read_text()
    assert "saliency: all 4 images are in the store already" in log
    assert (project.folder / SALIENCY).read_bytes() == before
    assert project.ran() == {}


def test_removing_restoring_and_moving_methods_computes_no_maps(project):
    """Existing results of a method are kept, and jobs whose results do not depend on methods do not run."""
    project.config["evaluation"]["images"] = 4
    rescored = {"score": 3, "all_scores": 1, "tables": 1}
    explainers = project.config["explainers"]
    assert project.ran(SCORES, TABLE) == {"curves": 2, **rescored}
    removed = explainers.pop(1)
    assert project.ran(SCORES, TABLE) == rescored
    assert "integrated_gradients" not in (project.folder / TABLE).read_text()
    explainers.insert(1, removed)
    assert project.ran(SCORES, TABLE) == rescored
    explainers.reverse()
    assert project.ran(SCORES, TABLE) == rescored
    assert "integrated_gradients" in (project.folder / TABLE).read_text()
    assert project.ran(SCORES, TABLE) == {}


def test_an_option_of_a_method_reruns_only_the_method(project):
    project.config["explainers"][1] = {"integrated_gradients": {"steps": 9}}
    assert project.ran() == {"attribute": 2, **RESCORED}
    assert passes(project, "integrated_gradients", 0) > 0
    log = (project.folder / "results/logs/attribute/digits/vgg/finetuned/all.0.log").read_text()
    assert "saliency: all 4 images are in the store already" in log
    assert project.ran() == {}


def test_another_grid_reruns_drops_and_scores(project):
    project.config["drops"] = {"grids": [2]}
    assert project.ran() == {"drops": 2, **RESCORED}
    metrics = {line.split(",")[4] for line in (project.folder / TABLE).read_text().splitlines()[1:]}
    assert metrics == {"sds_g2_mean"}, "weights that were finetuned for grid 4 give no IDSDS on grid 2"
    assert project.ran() == {}


def test_another_baseline_reruns_drops_and_scores(project):
    project.config["drops"] = {"baselines": ["mean", "random"]}
    assert project.ran() == {"drops": 2, "score": 1, "tables": 1}
    assert project.ran() == {}


def test_saving_an_epoch_leaves_other_results_unchanged(project):
    """Results from before `keep` are unchanged, and removing an epoch trains nothing."""
    weights = project.folder / "results/weights/digits/vgg/finetuned.safetensors"
    before = weights.read_bytes(), (project.folder / SALIENCY).read_bytes()
    project.config["finetuning"] = {"epochs": 1, "keep": [1]}
    assert project.ran() == {"finetune": 1, "keep_epoch": 1, "drops": 4, "attribute": 4, "score": 2, "tables": 1}
    assert (weights.read_bytes(), (project.folder / SALIENCY).read_bytes()) == before
    log = project.folder / "results/logs/attribute/digits/vgg/finetuned/all.0.log"
    assert "saliency: all 4 images are in the store already" in log.read_text()
    assert project.ran() == {}
    project.config["finetuning"] = {"epochs": 1}
    assert project.ran() == {"tables": 1}
    assert (weights.read_bytes(), (project.folder / SALIENCY).read_bytes()) == before


def test_metrics_rerun_only_responses_that_are_new(project):
    """One shard of images, so that a response is one job: stored responses are not computed again for a metric."""
    project.config["evaluation"]["images"] = 4
    metrics = project.config["metrics"]
    assert project.ran(SCORES) == {"curves": 2, "score": 3, "all_scores": 1}
    metrics.append({"mas_deletion": {"steps": 4}})
    metrics[0]["rise_deletion"]["output"] = "logit"
    assert project.ran(SCORES) == {"curves": 1, "score": 2, "all_scores": 1}, "MAS has an order of its own"
    metrics.append({"ids": {"steps": 3}})
    project.edit("src/heatproof/core/perturb/road.py", "from collections", "EDITED = True\nfrom collections")
    rerun = {"curves": 4, "score": 5, "all_scores": 1}
    assert project.ran(SCORES) == rerun, "the new response, and all along sequences, which share their module with ROAD"
    project.config["explainers"][1] = {"integrated_gradients": {"steps": 9}}
    assert project.ran(SCORES) == {"attribute": 1, "curves": 4, "score": 5, "all_scores": 1}
    logs = sorted((project.folder / "results/logs/curves/digits/vgg/finetuned").glob("*/all.0.log"))
    counts = [log.read_text().count("all images are in the store already") for log in logs]
    assert counts == [2, 2, 2, 2], "two of three explainers are as they were"
    assert project.ran(SCORES) == {}
    project.config["attribution_jobs"] = "apart"
    planned = project.run(SCORES, "--dry-run", "--forcerun", "curves")
    assert re.search(r"^curves +12$", planned, flags=re.MULTILINE), "a job for each explainer and response"
    assert project.ran(SCORES) == {}, "none of which has anything to do"


def test_another_seed_reruns_all_jobs(project):
    project.config["seed"] = 1
    assert project.ran() == {
        "prepare": 1,
        "pretrain": 1,
        "finetune": 1,
        "drops": 2,
        "attribute": 2,
        "attribute_reference": 2,
        **RESCORED,
    }
    assert project.ran() == {}


def test_more_images_rerun_only_shards_with_new_images(project):
    """Two more images are in the second shard, four more in a third: the first shard is unchanged."""
    first = (project.folder / SALIENCY).stat().st_mtime_ns
    network_passes = passes(project, "integrated_gradients", 1)
    project.config["evaluation"]["images"] = 12
    assert project.ran() == {"drops": 2, "attribute": 2, "attribute_reference": 2, **RESCORED}
    assert (project.folder / SALIENCY).stat().st_mtime_ns == first
    extended = manifest(project, "integrated_gradients", 1)
    assert extended["images"] == [4, 8]
    assert extended["network_passes"] == 2 * network_passes, "two images were there, two are new"
    assert project.ran() == {}


def test_fewer_images_rerun_only_the_scores(project):
    project.config["evaluation"]["images"] = 4
    assert project.ran() == RESCORED
    assert project.ran() == {}


def test_an_edit_of_a_metric_reruns_only_the_scores(project):
    project.edit("src/heatproof/metrics/arrays.py", "import numpy as np", "import numpy as np\n\nEDITED = True")
    assert project.ran() == RESCORED
    assert project.ran() == {}


def test_an_edit_of_a_plot_reruns_only_the_figure(project):
    project.config["report"] = {"all_metrics": False}
    page = {"features": 2, "in_domain": 1, "costs": 1, "figure": 4, "report_page": 1}
    assert project.ran("all") == {**page, "all": 1}
    project.edit("src/heatproof/report/figures/plots.py", "from typing import", "EDITED = True\nfrom typing import")
    assert project.ran("all") == {"figure": 1, "all": 1}


def test_an_edit_of_an_explainer_reruns_only_its_maps_and_the_scores(project):
    """An edit makes the maps of one family of explainers stale, and no others."""
    project.edit(
        "src/heatproof/explainers/path.py",
        "from heatproof.explainers.registry",
        "EDITED = True\nfrom heatproof.explainers.registry",
    )
    project.edit(
        "src/heatproof/explainers/reference.py",
        "from heatproof.explainers.registry",
        "EDITED = True\nfrom heatproof.explainers.registry",
    )
    assert project.ran() == {"attribute": 2, "attribute_reference": 2, **RESCORED}
    log = (project.folder / "results/logs/attribute/digits/vgg/finetuned/all.0.log").read_text()
    assert "saliency: all 4 images are in the store already" in log
    assert "integrated_gradients: all 4 images are in the store already" not in log


def test_an_edit_of_a_helper_reruns_only_the_explainer_that_imports_it(project):
    """An edit of a module that one explainer imports causes passes for that explainer only, even in a shared job."""
    helper = "src/heatproof/explainers/_quadrature.py"
    before = manifest(project, "saliency", 0), manifest(project, "integrated_gradients", 0)
    project.edit(helper, "Any\n", "Any\n\nEDITED = True\n")
    assert project.ran() == {"attribute": 2, **RESCORED}
    after = manifest(project, "saliency", 0), manifest(project, "integrated_gradients", 0)
    assert after[0] == before[0]
    assert after[1]["config"] == before[1]["config"]
    assert after[1]["code"] != before[1]["code"]
    assert after[1]["network_passes"] == before[1]["network_passes"] > 0
    log = (project.folder / "results/logs/attribute/digits/vgg/finetuned/all.0.log").read_text()
    assert "saliency: all 4 images are in the store already" in log
    assert "integrated_gradients: all 4 images are in the store already" not in log
    assert project.ran() == {}


def test_edits_of_comments_and_docstrings_rerun_nothing(project):
    for file in (project.folder / "src").rglob("*.py"):
        text = file.read_text()
        if text.startswith('"""'):
            file.write_text('"""Edited. ' + text[3:] + "\n# A comment at the end.\n")
    assert project.ran() == {}


def test_settings_of_the_machine_rerun_nothing(project):
    """Runtime settings of jobs do not affect results."""
    project.config |= {"batch_size": 5, "device": "cpu"}
    assert project.ran() == {}


def test_explainers_in_separate_jobs_rerun_nothing(project):
    """With another division into jobs, nothing is computed again, and the tables keep their bytes."""
    before = project.tables(), (project.folder / SALIENCY).read_bytes()
    project.config["attribution_jobs"] = "apart"
    assert project.ran() == {}
    assert (project.tables(), (project.folder / SALIENCY).read_bytes()) == before
    # Even if it is requested, the job of one explainer finds its maps.
    assert project.ran(SALIENCY, "--forcerun", "attribute") == {"attribute": 1}
    log = (project.folder / "results/logs/attribute/digits/vgg/finetuned/saliency.0.log").read_text()
    assert "saliency: all 4 images are in the store already" in log
    assert (project.tables(), (project.folder / SALIENCY).read_bytes()) == before


@pytest.mark.parametrize("keep_times", [True, False])
def test_copied_results_in_a_fresh_clone_rerun_nothing(finished, tmp_path, keep_times):
    fresh = Project(clone(tmp_path / "fresh"), finished.config)
    copy = shutil.copy2 if keep_times else shutil.copyfile
    # Reverse order, so that files would have wrong times if these were not set.
    for file in sorted((finished.folder / "results").rglob("*"), reverse=True):
        if file.is_file():
            target = fresh.folder / file.relative_to(finished.folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            copy(file, target)
    assert fresh.ran() == {}
    # Without Snakemake's records, a change must still be detected.
    fresh.config = {**MICRO, "explainers": ["saliency", {"integrated_gradients": {"steps": 9}}, "random"]}
    assert fresh.ran() == {"attribute": 2, **RESCORED}


def test_copied_results_of_another_config_are_stale(finished, tmp_path):
    """Results of another seed are stale."""
    fresh = Project(clone(tmp_path / "fresh"), {**MICRO, "seed": 1})
    shutil.copytree(finished.folder / "results", fresh.folder / "results")
    ran = fresh.ran()
    assert ran["pretrain"] == 1
    assert ran["attribute"] == 2
    assert ran["tables"] == 1


def test_only_a_deleted_map_is_computed_again(project):
    file = project.folder / SALIENCY
    before = file.read_bytes()
    other_maps = {
        path: path.read_bytes() for path in (project.folder / "results/maps").rglob("c/*/0/0/0") if path != file
    }
    file.unlink()
    assert project.ran(SALIENCY) == {"attribute": 1}
    assert file.read_bytes() == before
    assert {path: path.read_bytes() for path in other_maps} == other_maps
    log = (project.folder / "results/logs/attribute/digits/vgg/finetuned/all.0.log").read_text()
    assert "integrated_gradients: all 4 images are in the store already" in log


def test_a_damaged_chunk_is_reported_and_repaired(project):
    file = project.folder / SALIENCY
    content = file.read_bytes()
    table = (project.folder / TABLE).read_bytes()
    file.write_bytes(content[:40] + bytes([content[40] ^ 0xFF]) + content[41:])
    (project.folder / "results/scores/digits/vgg/finetuned/idsds.parquet").unlink()
    (project.folder / TABLE).unlink()
    message = project.heatproof("maps", "show", f"{MAPS}/saliency.zarr", "--image", "1").stderr
    assert f"rm {SALIENCY}` and run your snakemake command with this path as its target" in message
    printed = project.run()
    assert f"{SALIENCY} is damaged" in printed
    assert "Traceback" not in printed
    assert file.read_bytes() == content
    assert (project.folder / TABLE).read_bytes() == table


def test_a_missing_shard_is_reported(project):
    (project.folder / SALIENCY).unlink()
    done = project.heatproof("maps", "show", f"{MAPS}/saliency.zarr", "--image", "1")
    assert done.returncode == 1
    assert f"{SALIENCY} is missing" in done.stderr
    assert "run your snakemake command with this path as its target" in done.stderr
    assert project.ran() == {}, "behind tables that stand, the command alone makes nothing"
    assert project.ran(SALIENCY) == {"attribute": 1}
    assert project.heatproof("maps", "show", f"{MAPS}/saliency.zarr", "--image", "1").returncode == 0


def test_damaged_metadata_are_repaired_by_the_remedy_in_the_message(project):
    store = f"{MAPS}/saliency.zarr"
    maps = (project.folder / SALIENCY).read_bytes()
    (project.folder / store / "attribution/zarr.json").write_bytes(b"")
    message = project.heatproof("maps", "show", store, "--image", "1").stderr
    target = re.search(r"with (\S+) as its target", message)
    assert target, message
    assert project.ran(target[1]) == {"attribute": 1}
    assert (project.folder / SALIENCY).read_bytes() == maps
    assert project.heatproof("maps", "show", store, "--image", "1").returncode == 0


def test_a_damaged_manifest_is_reported_and_repaired(project):
    path = f"{MAPS}/saliency.0.json"
    scores = "results/scores/digits/vgg/finetuned/idsds.parquet"
    (project.folder / path).write_text("{")
    (project.folder / scores).unlink()
    printed = project.run(scores)
    assert f"heatproof: {path} is damaged. A run that needs it recomputes it." in printed
    assert project.ran(path) == {}


def test_another_checkpoint_under_the_same_path_reruns_its_jobs(project, tmp_path):
    """Even if the file has an old date, and Snakemake has no records."""
    weights = project.folder / "results/weights/digits/vgg"
    target = "results/weights/digits/vgg/finetuned.safetensors"
    checkpoints = {name: (weights / f"{name}.safetensors").read_bytes() for name in ("pretrained", "finetuned")}
    mine = project.folder / "mine.safetensors"
    mine.write_bytes(checkpoints["pretrained"])
    project.config["models"][0]["vgg"]["checkpoint"] = mine.name
    assert project.ran(target) == {"fetch": 1, "finetune": 1}
    assert project.ran(target) == {}
    copied = Project(clone(tmp_path / "copied"), project.config)
    shutil.copytree(project.folder / "results", copied.folder / "results")
    for each in (project, copied):
        path = each.folder / mine.name
        path.write_bytes(checkpoints["finetuned"])
        os.utime(path, (1e9, 1e9))
        assert each.ran(target) == {"fetch": 1, "finetune": 1}
        assert (each.folder / "results/weights/digits/vgg/pretrained.safetensors").read_bytes() == path.read_bytes()
        assert each.ran(target) == {}


def test_another_checkpoint_to_start_from_reruns_the_training(project, tmp_path):
    """Transferred weights are trained again when the checkpoint that they start from changes."""
    weights = project.folder / "results/weights/digits/vgg"
    target = "results/weights/digits/vgg/finetuned.safetensors"
    checkpoints = {name: (weights / f"{name}.safetensors").read_bytes() for name in ("pretrained", "finetuned")}
    mine = project.folder / "mine.safetensors"
    mine.write_bytes(checkpoints["pretrained"])
    project.config["models"][0]["vgg"] |= {"checkpoint": mine.name, "transfer": True}
    transferred = {"fetch_start": 1, "pretrain": 1, "finetune": 1}
    assert project.ran(target) == transferred
    assert project.ran(target) == {}
    copied = Project(clone(tmp_path / "copied"), project.config)
    shutil.copytree(project.folder / "results", copied.folder / "results")
    shutil.copy2(mine, copied.folder)
    assert copied.ran(target) == {}
    for each in (project, copied):
        path = each.folder / mine.name
        path.write_bytes(checkpoints["finetuned"])
        os.utime(path, (1e9, 1e9))
        assert each.ran(target) == transferred
        assert (each.folder / "results/checkpoints/vgg.safetensors").read_bytes() == path.read_bytes()
        assert each.ran(target) == {}


def test_an_edit_of_the_conda_file_reruns_nothing(project):
    """The file of an environment that is not used does not matter."""
    project.edit("envs/heatproof.yaml", "python >=3.11", "python >=3.11.1")
    assert project.ran() == {}
