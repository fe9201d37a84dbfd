"""An edit of a module of explainers makes maps and responses stale only for explainers whose modules import it."""

import re
from pathlib import Path

import pytest

from heatproof.core import provenance
from heatproof.explainers.registry import EXPLAINERS
from heatproof.workflow.config.files import default_config, merge
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.validate import make_plan

FOLDER = Path(provenance.ROOT) / "explainers"
# The stage, its helpers and the registry, which all maps depend on.
SHARED = {"__init__", "explaining", "plain_functions", "registry"}
# Modules for `heatproof check`, the matrix and objects of other libraries, which no run uses for maps.
ASIDE = {"_network_traits", "other_libraries"}
MODULES = sorted({path.stem for path in FOLDER.glob("*.py")} - SHARED - ASIDE)
FAMILIES = sorted({entry.function.__module__.rpartition(".")[2] for entry in EXPLAINERS.values()})
WHERE = {"dataset": "digits", "model": "resnet20", "weights": "finetuned"}
CONFIG = {
    "datasets": ["digits"],
    "models": [{"resnet20": {"architecture": "cifar_resnet20"}}],
    "explainers": list(EXPLAINERS),
    # One kind of response to map orderings each; the last one computes maps again.
    "metrics": ["deletion_morf", "sic", "sensitivity_max"],
}


def imports(module):
    """Return the modules of the package that the source of a module imports, including the module itself."""
    names, pending = set(), [module]
    while pending:
        name = pending.pop()
        if name not in names:
            names.add(name)
            text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
            pending += set(re.findall(r"^ *from heatproof\.explainers\.(\w+) import", text, re.MULTILINE)) - SHARED
    return names


def keys():
    """Return the keys of drops, and of the maps and responses of each explainer, in a new plan."""
    graph = Graph(make_plan(merge(default_config(), CONFIG)))
    maps = {}
    for stage, where in (("attribute", WHERE), ("attribute_reference", {"dataset": "digits"})):
        for entry in graph.spec(stage, **where, shard=0).explainers:
            maps[entry.name] = entry.key
    responses = {}
    for response in graph.plan.method_responses:
        for entry in graph.spec("curves", **WHERE, response=response, shard=0).explainers:
            responses[response, entry.name] = entry.key
    fills = [{"grid": grid, "baseline": baseline} for grid, baseline in graph.plan.combinations]
    drops = [graph.spec("drops", **WHERE, **fill, shard=0).key for fill in fills]
    return {"drops": drops, "maps": maps, "responses": responses}


def forget():
    for cached in (provenance._digest_of, provenance._code_of):
        cached.cache_clear()


@pytest.fixture
def edited(monkeypatch):
    """Return a function that simulates an edit of a module and returns the keys after it."""
    plain = provenance.read_source

    def after(edited):
        def read_source(module):
            source = plain(module)
            changed = module == f"heatproof.explainers.{edited}"
            return source._replace(digest=source.digest + "\nEDITED = True") if changed else source

        monkeypatch.setattr(provenance, "read_source", read_source)
        forget()
        return keys()

    yield after
    forget()


@pytest.fixture(scope="module")
def untouched():
    return keys()


@pytest.mark.parametrize("module", MODULES)
def test_an_edit_makes_only_results_of_explainers_that_import_the_module_stale(module, untouched, edited):
    after = edited(module)
    expected = {
        name for name, entry in EXPLAINERS.items() if module in imports(entry.function.__module__.rpartition(".")[2])
    }
    assert expected
    assert {name for name, key in after["maps"].items() if key != untouched["maps"][name]} == expected
    changed = {key for key, value in after["responses"].items() if value != untouched["responses"][key]}
    assert changed == {(response, name) for response, name in after["responses"] if name in expected}
    assert len({response for response, _ in changed}) == 3
    assert after["drops"] == untouched["drops"]


@pytest.mark.parametrize("family", FAMILIES)
def test_no_family_imports_another(family):
    assert imports(family) & set(FAMILIES) == {family}


def test_the_stage_imports_no_family():
    modules = provenance.import_closure(["heatproof.workflow.stages.attribute"])
    assert not set(modules) & {f"heatproof.explainers.{name}" for name in MODULES}
