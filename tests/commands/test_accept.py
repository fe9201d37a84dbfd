"""`heatproof accept`: results from other code are kept if and only if the current code reproduces them."""

import os
import shutil
from importlib import import_module

import pytest
from toy_project import BASE

from heatproof.core import provenance
from heatproof.core.provenance import Key
from heatproof.core.specs import Runtime
from heatproof.datasets.checks import open_dataset
from heatproof.datasets.probe_images import probe_rows
from heatproof.store.manifest import read_checksummed
from heatproof.workflow.commands import accept as accepting
from heatproof.workflow.config.files import merge
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.validate import make_plan
from heatproof.workflow.reconcile import Results

MACHINE = Runtime(4, 1, "cpu")
CHANGE = {
    "metrics": [{"rise_deletion": {"steps": 4}}, {"infidelity": {"samples": 4, "sizes": [0.25]}}],
    "pretraining": {"epochs": 2},
    "finetuning": {"epochs": 2, "keep": [1]},
    "shard_size": 6,
}
STAGES = (
    "prepare",
    "pretrain",
    "finetune",
    "keep_epoch",
    "attribute",
    "attribute_reference",
    "drops",
    "curves",
    "subsets",
)


def graph_of(**change):
    return Graph(make_plan(merge(merge(BASE, CHANGE), change)))


def jobs_of(graph):
    return [job for job in graph.jobs() if job.stage in STAGES]


def products_of(graph):
    return [(job, product) for job in jobs_of(graph) for product in job.products]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder, before = tmp_path_factory.mktemp("accept"), os.getcwd()
    os.chdir(folder)
    for job in jobs_of(graph_of()):
        job.spec.run(MACHINE)
    os.chdir(before)
    return folder


@pytest.fixture
def folder(finished, tmp_path, monkeypatch):
    shutil.copytree(finished / "results", tmp_path / "results")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def edited(monkeypatch):
    """Edit a helper that all code imports, so that every digest of code changes."""
    code = provenance._code_of
    monkeypatch.setattr(provenance, "_code_of", lambda modules: code(modules)[::-1])


def bytes_of(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and "c" in path.parts}


def verdicts(graph):
    return dict(accepting.accept(graph, MACHINE))


def test_current_results_have_nothing_to_accept(folder):
    """An edit of a comment, for example, changes no digest."""
    assert verdicts(graph_of()) == {}
    assert accepting.report(graph_of(), MACHINE).startswith("There is nothing to accept")


def test_an_edit_without_effect_keeps_all_results(folder, edited, monkeypatch):
    before, graph = bytes_of(folder), graph_of()
    all_products = products_of(graph)
    assert not any(Results(graph).is_current(job, product) for job, product in all_products)
    explained_rows = []
    read_images = import_module("heatproof.workflow.stages._maps").EvaluationImages
    batch_of = read_images.batch

    def watched(self, rows, images):
        explained_rows.append(tuple(rows))
        return batch_of(self, rows, images)

    monkeypatch.setattr(read_images, "batch", watched)
    assert verdicts(graph) == {product.manifest: None for _, product in all_products}
    assert all(Results(graph).is_current(job, product) for job, product in all_products)
    assert bytes_of(folder) == before, "not one shard is written"
    split = open_dataset(graph.plan.dataset_spec("toy")).splits["evaluation"]
    assert set(explained_rows) == {(0, 1, 2, 3), tuple(probe_rows(split.ids, lambda row: False))}, (
        "one batch, and the check's"
    )
    assert verdicts(graph) == {}


def test_an_edit_of_one_explainer_keeps_the_other_results(folder, edited, monkeypatch):
    make = import_module("heatproof.explainers.explaining")
    explain = make.explain_batch
    monkeypatch.setattr(
        make, "explain_batch", lambda method, *rest: (1 + (method.name == "mine")) * explain(method, *rest)
    )
    graph = graph_of()
    differences = verdicts(graph)
    different = {name for name, difference in differences.items() if difference is not None}
    assert {name.split("/")[-1] for name in different if "/maps/" in name} == {"mine.0.json", "mine.1.json"}
    assert "attribution of 4 of 4 images differs" in differences["results/maps/toy/net/finetuned/mine.0.json"]
    assert differences["results/maps/toy/net/finetuned/mine.1.json"] == "its first shard differs"
    assert not [name for name in different if "/maps/" not in name and "/mine/" not in name]
    results = Results(graph)
    assert not any(
        results.is_current(job, product) for job, product in products_of(graph) if product.manifest in different
    )
    assert Key.of(read_checksummed("results/maps/toy/net/finetuned/mine.0.json")) not in {
        product.key for _, product in products_of(graph)
    }


def test_a_training_that_would_differ_is_not_accepted(folder, edited, monkeypatch):
    loop = import_module("heatproof.training.loop")
    epoch = loop._one_epoch
    monkeypatch.setattr(loop, "_one_epoch", lambda *arguments: 1.5 * epoch(*arguments))
    differences = verdicts(graph_of())
    assert "its first epoch is 0," in differences["results/weights/toy/net/pretrained.json"]
    assert differences["results/datasets/toy.json"] is None


def test_results_of_another_config_are_not_accepted(folder, edited):
    assert not [name for name in verdicts(graph_of(seed=1)) if "/maps/" in name or "/weights/" in name]
