"""Which jobs an edit of a module makes stale, by plans in memory; docs/reruns.md has a table of the cases."""

import re
from collections import Counter
from pathlib import Path

import pytest

from heatproof.core import provenance
from heatproof.workflow.config.files import default_config, merge
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.validate import make_plan
from heatproof.workflow.stages import methods

PAGE = Path(__file__).parents[2] / "docs/reruns.md"
HEADING = "## After an edit of the code\n"
CONFIG = {
    "datasets": ["digits"],
    "models": [{"resnet20": {"architecture": "cifar_resnet20"}}],
    "explainers": ["saliency", "integrated_gradients", "grad_cam", "rise", "random"],
    "metrics": ["deletion_morf", "road_morf", "sic", "infidelity", "sensitivity_max", "patch_insertion"],
    "report": {"all_metrics": True},
}
WITH_NETWORKS = (
    *("prepare", "pretrain", "finetune", "attribute", "attribute_reference"),
    *("curves", "drops", "subsets", "channels", "features"),
)


def rows():
    """Return the cells of the table in docs/reruns.md, by the module that is edited."""
    section = PAGE.read_text(encoding="utf-8").partition(HEADING)[2].partition("\n## ")[0]
    cells_of_rows = re.findall(r"^\| `(\S+)\.py` \| .* \| (.*) \| (\w+) \| (\w+) \|$", section, re.MULTILINE)
    return {f"heatproof.{path.replace('/', '.')}": cells for path, *cells in cells_of_rows}


ROWS = rows()


def keys():
    """Return the keys of all results, by stage and manifest, from a new plan."""
    for cached in (provenance._digest_of, provenance._code_of, methods.templates_digest):
        cached.cache_clear()
    jobs = Graph(make_plan(merge(default_config(), CONFIG))).jobs()
    return {(job.stage, product.manifest): product.key for job in jobs for product in job.products}


@pytest.fixture(scope="module")
def untouched():
    return keys()


@pytest.fixture
def after_edit(monkeypatch):
    """Return a function that returns the keys after an edit of a module; the edit is not written to disk."""
    plain = provenance.read_source

    def after(module, more):
        def read_source(name):
            source = plain(name)
            return source._replace(digest=source.digest + more) if name == module else source

        monkeypatch.setattr(provenance, "read_source", read_source)
        return keys()

    yield after
    monkeypatch.undo()
    keys()


def describe_share(changed, total):
    return "none" if not changed else "all" if changed == total else "some"


def test_the_page_has_a_row_for_modules_that_are_edited_most():
    assert len(ROWS) > 20
    assert all(provenance.source_path(module) for module in ROWS)


@pytest.mark.parametrize("module", ROWS)
def test_an_edit_starts_the_jobs_on_the_page(module, untouched, after_edit):
    after = after_edit(module, "\nEDITED = True")
    assert after.keys() == untouched.keys()
    totals = Counter(stage for stage, _ in untouched)
    changed = Counter(product[0] for product in untouched if after[product] != untouched[product])
    networks = [
        f"{'some ' if changed[stage] < totals[stage] else ''}`{stage}`" for stage in WITH_NETWORKS if changed[stage]
    ]
    reports = {stage for stage in totals if stage not in (*WITH_NETWORKS, "score")}
    started = [
        set(networks) or {"none"},
        describe_share(changed["score"], totals["score"]),
        describe_share(sum(changed[stage] for stage in reports), sum(totals[stage] for stage in reports)),
    ]
    stages, scores, tables = ROWS[module]
    assert started == [set(stages.split(", ")), scores, tables]


@pytest.mark.parametrize("module", ["heatproof.explainers.path", "heatproof.core.randomness"])
def test_an_edit_changes_no_digest_of_the_config(module, untouched, after_edit):
    after = after_edit(module, "\nEDITED = True")
    assert after != untouched
    assert {product: key.config for product, key in after.items()} == {
        product: key.config for product, key in untouched.items()
    }


def test_an_edit_of_a_template_starts_the_jobs_on_the_page(untouched, monkeypatch):
    digests = methods.file_digest
    page = PAGE.read_text(encoding="utf-8").partition(HEADING)[2]
    cell = re.search(r"^\| a template of a page \(a file in `report/templates`\) \| (.*) \|$", page, re.MULTILINE)[1]
    templates = sorted((methods.ROOT / "report/templates").iterdir())
    assert templates
    for edited in templates:
        monkeypatch.setattr(
            methods, "file_digest", lambda path, changed=edited: digests(path) + "edited" * (path == changed)
        )
        after = keys()
        changed = {stage for stage, manifest in untouched if after[stage, manifest] != untouched[stage, manifest]}
        assert changed == set(re.findall(r"`(\w+)`", cell))


def test_planning_again_gives_the_same_keys(untouched, after_edit):
    assert after_edit("heatproof.explainers.path", "") == untouched
