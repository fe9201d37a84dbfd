"""The files of CONTRIBUTING.md, unchanged, as plugins of a real run, without edits of heatproof."""

from __future__ import annotations

import copy
import re
import subprocess
import sys

import pandas as pd
import pytest
from snakemake_project import MICRO, REPOSITORY, Project, clone

RECIPES = dict(
    re.findall(
        r"```python\n# (\w+)\.py\n(.*?)```",
        (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8"),
        flags=re.DOTALL,
    )
)
# A response that depends on the network alone, in a file outside the package.
INSERTION = (REPOSITORY / "src/heatproof/metrics/patch_insertion.py").read_text(encoding="utf-8")
RECIPES["my_removals"] = INSERTION.replace("patch_insertion", "single_insertion").replace('"insertions"', '"singles"')


@pytest.fixture
def plugins(tmp_path):
    folder = tmp_path / "package"
    folder.mkdir()
    for name, text in RECIPES.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return folder


def test_the_documentation_has_a_recipe_of_each_kind():
    assert {"my_explainer", "my_metric", "my_response", "my_figure", "my_claim"} <= set(RECIPES)


def test_recipes_register_themselves(plugins):
    code = (
        "from heatproof.core.registry import load_plugins\n"
        f"load_plugins({list(RECIPES)!r})\n"
        "from heatproof.explainers.registry import EXPLAINERS\n"
        "from heatproof.claims.registry import CLAIMS\n"
        "from heatproof.metrics.registry import METRICS\n"
        "from heatproof.report.figures.registry import FIGURES\n"
        "names = ['scaled_gradient', 'first_patch_drop', 'single_insertion', 'top_cells_drop']\n"
        "names += ['saliency_beats_noise', 'interval_widths']\n"
        "tables = [EXPLAINERS, METRICS, METRICS, METRICS, CLAIMS, FIGURES]\n"
        "print(all(name in table for name, table in zip(names, tables)))\n"
    )
    environment = {"PYTHONPATH": f"{plugins}:{REPOSITORY / 'src'}"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr


@pytest.mark.slow
@pytest.mark.workflow
def test_a_run_has_additions_of_plugins(tmp_path, plugins, monkeypatch):
    project = Project(clone(tmp_path / "project"), copy.deepcopy(MICRO))
    project.config |= {
        "plugins": list(RECIPES),
        "explainers": ["saliency", "random", {"scaled_gradient": {"factor": 3.0}}],
        "metrics": ["first_patch_drop", "top_cells_drop", {"single_insertion": {"grid": 2}}],
        "report": {"all_metrics": True, "images": 2},
    }
    environment = project.environment()
    monkeypatch.setattr(
        project, "environment", lambda: {**environment, "PYTHONPATH": f"{environment['PYTHONPATH']}:{plugins}"}
    )
    project.run("all")
    results = project.folder / "results"
    assert "scaled_gradient" in set(pd.read_csv(results / "idsds_table.csv")["method"])
    assert {"first_patch_drop", "single_insertion", "top_cells_drop"} <= set(
        pd.read_csv(results / "scores.csv")["metric"]
    )
    claims = pd.read_csv(results / "claims.csv").set_index("claim")
    assert claims.loc["saliency_beats_noise", "paper"] == "Example 2026"
    page = (results / "report/index.html").read_text(encoding="utf-8")
    for name in ("scaled_gradient", "first_patch_drop", "saliency_beats_noise", "wide ones need more images"):
        assert name in page
    assert "<svg" in (results / "figures/interval_widths.svg").read_text(encoding="utf-8")
    assert "Nothing to be done" in project.run("all")
