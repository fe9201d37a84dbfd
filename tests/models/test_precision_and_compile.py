"""Lower precision or compiled networks change only the last bits of a run."""

import numpy as np
import pytest
import torch
from toy_project import BASE, NETWORK, WHERE, Project

from heatproof.core.specs import Runtime
from heatproof.store.reading import read_json
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.validate import make_plan

CONFIG = {"explainers": ["saliency", "random"], "metrics": ["deletion_morf"]}


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    torch.set_num_threads(1)
    return Project(tmp_path_factory.mktemp("exact"), **CONFIG).train().attribute().drop().respond()


def lower(exact, tmp_path):
    """Return a project with the same weights and bfloat16."""
    import shutil

    shutil.copytree(exact.folder, tmp_path, dirs_exist_ok=True)
    return Project(tmp_path, **CONFIG, precision="bfloat16")


def test_lower_precision_changes_maps_and_drops_and_is_recorded(exact, tmp_path):
    toy = lower(exact, tmp_path).attribute().drop()
    for full, lowered in ((exact.drops_of(), toy.drops_of()), (exact.maps("saliency"), toy.maps("saliency"))):
        assert not np.array_equal(full, lowered)
        assert np.corrcoef(full.ravel(), lowered.ravel())[0, 1] > 0.99
    np.testing.assert_array_equal(exact.maps("random"), toy.maps("random"))
    manifest = read_json(toy.folder / "results/drops/toy/net/finetuned/g4_mean.0.json")
    assert manifest["made_by"]["precision"] == "bfloat16"


def test_only_jobs_that_run_a_network_on_evaluation_images_are_repeated():
    plain, tf32 = (make_plan({**BASE, **CONFIG, **more}) for more in ({}, {"precision": "tf32"}))
    graph, tf32_graph, where = Graph(plain), Graph(tf32), dict(zip(NETWORK, WHERE, strict=True))
    assert graph.spec("finetune", **where).key == tf32_graph.spec("finetune", **where).key
    ((random,), (same,)) = (
        jobs.spec("attribute_reference", dataset="toy", shard=0).explainers for jobs in (graph, tf32_graph)
    )
    assert random.key == same.key
    drops = [jobs.spec("drops", **where, grid=4, baseline="zeros", shard=0).key for jobs in (graph, tf32_graph)]
    assert drops[0] != drops[1]
    ((saliency,), (other,)) = (jobs.spec("attribute", **where, shard=0).explainers for jobs in (graph, tf32_graph))
    assert saliency.key != other.key


def test_runtime_settings_change_no_key():
    plain = make_plan(BASE)
    other = make_plan({**BASE, "compile": True, "deterministic": True})
    keys = [[product.key for job in Graph(plan).jobs() for product in job.products] for plan in (plain, other)]
    assert keys[0] == keys[1]
    assert other.runtime().compile
    assert other.runtime().deterministic


def test_compiled_networks_give_the_same_results(exact, tmp_path, monkeypatch):
    """A counter replaces the compiler: heatproof must call it, and PyTorch is responsible for its results."""
    compiled = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, *a, **k: compiled.append(type(self).__name__))
    toy = Project(tmp_path, **CONFIG)
    toy.runtime = lambda batch_size=64: Runtime(batch_size, 1, "cpu", compile=True)
    toy.train().attribute().drop().respond()
    assert len(compiled) == 2, "patch drops and the response, and not the maps"
    assert toy.bytes("drops", "curves") == exact.bytes("drops", "curves")
