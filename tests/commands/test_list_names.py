import subprocess
import sys

import pytest
import yaml

from heatproof.datasets.registry import DATASETS
from heatproof.explainers.registry import EXPLAINERS
from heatproof.metrics.registry import METRICS
from heatproof.models.registry import ARCHITECTURES
from heatproof.workflow.commands.list_names import print_names
from heatproof.workflow.config.files import default_config, workflow_folder
from heatproof.workflow.plan.validate import make_plan

TABLES = {"datasets": DATASETS, "models": ARCHITECTURES, "explainers": EXPLAINERS, "metrics": METRICS}


def words(text):
    return [line.split()[0] for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("what", TABLES)
def test_every_entry_is_listed_with_its_summary_and_options(what, capsys):
    print_names(what)
    output = capsys.readouterr().out
    for name, entry in TABLES[what].items():
        assert name in words(output)
        assert entry.summary, f"{what}: {name} has no summary"
        assert entry.summary in output
        for option in entry.options:
            assert f"{option}=" in output or f"{option} (needed)" in output


def test_metrics_name_the_output_that_they_read(capsys):
    print_names("metrics")
    listed = " ".join(capsys.readouterr().out.split())
    assert "the image's entropy; higher is better. higher is better, 0 to 1 reads a class decision" in listed
    assert "reads a class decision, or any number, or a probability, by `output`" in listed


def test_kinds_and_configs_are_listed(capsys):
    print_names(None)
    assert words(capsys.readouterr().out)[1:] == ["configs", "datasets", "models", "explainers", "methods", "metrics"]
    print_names("configs")
    output = capsys.readouterr().out
    assert "  quick " in output
    assert "A first look in about a minute: one small network, sixteen images, a few methods.\n" in output
    assert {path.stem for path in (workflow_folder() / "config").glob("*.yaml")} <= set(words(output))


def test_methods_are_those_of_the_config(tmp_path, capsys):
    print_names("methods")
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[0] for row in rows] == list(make_plan(default_config()).methods)
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"explainers": [{"fast": {"explainer": "integrated_gradients", "steps": 3}}]}))
    print_names("methods", path)
    assert [line.split()[:3] for line in capsys.readouterr().out.splitlines()[2:]] == [
        ["fast", "fast", "raw"],
        ["fast_abs", "fast", "abs"],
    ]


def test_models_and_explainers_of_a_config_are_listed(tmp_path, capsys):
    path = tmp_path / "mine.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "models": [{"small_one": {"architecture": "cifar_resnet20", "options": {"width": 3}}}],
                "explainers": [{"fast": {"explainer": "integrated_gradients", "steps": 3}}, "random"],
            }
        )
    )
    print_names("models", path)
    assert "small_one  cifar_resnet20 (width=3)" in capsys.readouterr().out
    print_names("explainers", path)
    assert "fast  integrated_gradients (baseline=null, steps=3)" in capsys.readouterr().out


def test_report_imports_no_torch():
    names = ("report.stores", "report.figures.map_figure", "report.figures.plots", "report.page.page")
    modules = ", ".join(
        f"heatproof.{name}" for name in (*names, "workflow.commands.list_names", "workflow.commands.list_stores")
    )
    program = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
