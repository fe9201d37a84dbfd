"""Untrusted inputs are data: no name leads out of the results folder, and only the config can name code."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path

import pytest
from toy_project import BASE, Project

import heatproof
from heatproof.core.provenance import digest
from heatproof.errors import HeatproofError
from heatproof.store.manifest import CHECKSUM_KEY, read_checksummed, write_checksummed
from heatproof.store.publishing import escaped
from heatproof.store.zarr_store import describe_store
from heatproof.workflow.commands.list_stores import print_stores
from heatproof.workflow.commands.show_maps import show
from heatproof.workflow.config.files import default_config, merge, workflow_folder
from heatproof.workflow.job import run_and_report_errors
from heatproof.workflow.plan.validate import make_plan

ROOT = Path(heatproof.__file__).parent
WORKFLOW = [
    workflow_folder() / "Snakefile",
    workflow_folder() / "workflow/Snakefile",
    *(workflow_folder() / "workflow/rules").glob("*.smk"),
]
ENTRIES = {
    "datasets": {"dataset": "digits"},
    "models": {"architecture": "small_vit"},
    "weights": {"epochs": 1},
    "explainers": {"explainer": "saliency"},
    "metrics": {"metric": "ids"},
}
NAMES = {
    "above the folder": "../../x",
    "the folder above": "..",
    "this folder": ".",
    "hidden": ".ssh",
    "absolute": "/etc/passwd",
    "with a slash": "a/b",
    "with a backslash": "a\\b",
    "with a NUL": "a\0b",
    "with a newline": "a\nb",
    "at its end a newline": "a\n",
    "empty": "",
    "with a space": "a b",
    "of a shell": "$(touch x)",
    "of a wildcard": "{dataset}",
    "of a page": "<script>alert(1)</script>",
    "too long for a file": "a" * 200,
    "too long in bytes": "ä" * 100,
}


@pytest.mark.parametrize("key", ENTRIES)
@pytest.mark.parametrize("name", NAMES.values(), ids=list(NAMES))
def test_names_that_lead_out_of_the_results_are_refused(key, name):
    with pytest.raises(HeatproofError, match="cannot name a folder: use letters") as caught:
        make_plan(merge(default_config(), {key: [{name: ENTRIES[key]}]}))
    assert "\n" not in str(caught.value)
    assert key in str(caught.value)


ALIKE = {
    "case": ("VGG11", "vgg11"),
    "two ways to write a syllable": ("\uac00", "\u1100\u1161"),
    "both": ("x\uac00", "X\u1100\u1161"),
    "a ligature": ("\ufb01ne", "fine"),
    "wide letters": ("\uff41", "a"),
    "a sharp s": ("stra\u00dfe", "STRASSE"),
    "a long s": ("\u017f", "S"),
}


@pytest.mark.parametrize("key", ENTRIES)
@pytest.mark.parametrize("names", ALIKE.values(), ids=list(ALIKE))
def test_names_that_are_equal_to_a_file_system_are_refused(key, names):
    """Names that differ only in case or Unicode form would be the same file on some systems."""
    first, second = names
    entries = [{name: ENTRIES[key]} for name in (first, "between", second)]
    with pytest.raises(HeatproofError, match="which some file systems take for one name: rename one") as caught:
        make_plan(merge(default_config(), {key: entries}))
    assert f"{key} names {first!r} and {second!r}" in str(caught.value)


def small(**settings):
    return {"models": [{"m": {"architecture": "small_vit"}}], **settings}


DERIVED_NAMES = {
    "a training seed": (
        {"training_seeds": 2, "models": [{"m": {"architecture": "small_vit"}}, {"M_SEED1": ENTRIES["models"]}]},
        "The model 'M_SEED1' has the name that `training_seeds` gives to 'm'",
    ),
    "an epoch": (
        small(weights=["pretrained", {"f": {"epochs": 3}}, "F_Epoch2"], finetuning={"keep": [2], "epochs": 3}),
        "The weights 'F_Epoch2' have the name that epoch 2 of 'f' gets",
    ),
    "a baseline": (
        small(weights=["pretrained", "f", "F_Zeros"], baselines=["mean", "zeros"]),
        "The weights 'F_Zeros' have the name that `baselines` gives to 'f'",
    ),
    "a method": (
        small(explainers=[{"saliency": {}}, {"SALIENCY_ABS": {"explainer": "edges"}}]),
        "both make the method 'SALIENCY_ABS'|'saliency_abs'",
    ),
}


@pytest.mark.parametrize("what", DERIVED_NAMES)
def test_names_that_equal_derived_names_are_refused(what):
    change, message = DERIVED_NAMES[what]
    with pytest.raises(HeatproofError, match=message):
        make_plan(merge(default_config(), change))


@pytest.mark.parametrize("address", ["ftp://a/b", "s3://a/b", "data://x", "gopher://x", "FTP://a/b"])
def test_addresses_of_checkpoints_with_other_schemes_are_refused(address):
    model = {"m": {"architecture": "small_vit", "checkpoint": address, "sha256": "0" * 64}}
    with pytest.raises(HeatproofError, match="cannot be fetched: give a path, or an address that begins"):
        make_plan(merge(default_config(), {"models": [model]}))


# ---- code ------------------------------------------------------------------------------------------------------------

EVIL = "evil_plugin"


def point_elsewhere(value):
    """Replace every text in a mapping that names code by other code."""
    if isinstance(value, dict):
        return {key: point_elsewhere(item) for key, item in value.items()}
    if isinstance(value, list):
        return [point_elsewhere(item) for item in value]
    if isinstance(value, str) and (":" in value or "." in value or value == "toy_plugin"):
        return f"{EVIL}:run" if ":" in value else EVIL
    return value


def test_code_that_data_name_is_not_executed(tmp_path, monkeypatch, capsys):
    """Manifests and stores record what made them, but this is never executed."""
    (tmp_path / f"{EVIL}.py").write_text("raise SystemExit('code out of data')\n")
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "project"
    folder.mkdir()
    project = Project(folder, pretraining={"epochs": 1}, finetuning={"epochs": 1}).train().attribute().drop()
    changed = 0
    for path in (folder / "results").rglob("*.json"):
        if path.name == "zarr.json":
            content = json.loads(path.read_text())
            plain = {**content["attributes"], CHECKSUM_KEY: None}
            if "key" in plain:
                del plain[CHECKSUM_KEY]
                elsewhere = {**point_elsewhere(plain), "key": plain["key"], "files": plain["files"]}
                content["attributes"] = {**elsewhere, CHECKSUM_KEY: digest(elsewhere)}
                path.write_text(json.dumps(content))
            changed += EVIL in json.dumps(content)
        else:
            content = read_checksummed(path)
            keep = {
                name: content[name]
                for name in ("files", "key", "splits", "config", "code", CHECKSUM_KEY)
                if name in content
            }
            write_checksummed(path, {**point_elsewhere(content), **keep, "module": EVIL, "kind": f"{EVIL}:run"})
            changed += 1
    assert changed > 10
    project.train().attribute().drop().score_all().score()
    monkeypatch.chdir(folder)
    print_stores("results")
    with pytest.raises(HeatproofError, match="a store does not decide what code is run"):
        show(f"{project.base()}.zarr", "0", None, "maps.png")
    assert EVIL not in sys.modules


def test_a_store_that_needs_a_pickle_is_damaged(tmp_path):
    folder = tmp_path / "s.zarr/label"
    (folder / "c").mkdir(parents=True)
    (folder / "c/0").write_bytes(b"\x80\x04.")
    array = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [1],
        "data_type": "int64",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": [{"name": "numcodecs.pickle", "configuration": {}}],
    }
    (folder / "zarr.json").write_text(json.dumps(array))
    (tmp_path / "s.zarr/zarr.json").write_text(json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}}))
    with pytest.raises(HeatproofError, match="is damaged, or not a store"):
        describe_store(tmp_path / "s.zarr")


# Numbers, paths of heatproof, text that was escaped by cell, and JSON, which escapes text itself.
PLAIN = {
    "api/choose.py": "what a caller's own data are planned to take",
    "core/batches.py": "words of our own for a step, and numbers",
    "workflow/commands/list_stores.py": "cells that were escaped one by one",
    "workflow/commands/run.py": "the name of a signal",
    "workflow/terminal.py": "paths of the results folder",
}


def test_printed_texts_are_escaped():
    """Names of files, classes and images can contain control characters, which terminals execute."""
    plain = set()
    for file in [*ROOT.rglob("*.py"), *WORKFLOW]:
        for line in re.findall(r"(?:print|sys\.std(?:out|err)\.write)\(.*", file.read_text(encoding="utf-8")):
            if "escaped(" not in line and not line.startswith("print()"):
                plain.add(str(file.relative_to(ROOT)) if file.is_relative_to(ROOT) else file.name)
    assert plain == set(PLAIN)


def test_a_traceback_is_escaped(capsys):
    def work():
        raise RuntimeError("\x1b[2Jgone\u202e")

    assert run_and_report_errors(work) == 1
    output = capsys.readouterr().err
    assert "RuntimeError: \\x1b[2Jgone\\u202e" in output
    assert escaped(output) == output


def test_only_the_plan_and_its_jobs_import_code_that_a_config_names():
    """All names of code that are imported come from the config, or from a spec, which is made from the config."""
    users = {
        str(file.relative_to(ROOT))
        for file in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and re.search(r"\bimport_callable$|\.load_callable$", ast.unparse(node.func))
    }
    assert users == {
        # Named by a developer, for tests.
        "testing/_naming.py",
        "workflow/stages/_explaining.py",
        "datasets/checks.py",
        "models/network.py",
        "workflow/plan/resolve.py",
        # The callable target.
        "datasets/reader.py",
        "workflow/plan/selection.py",
        "workflow/plan/metrics.py",
        "workflow/plan/validate.py",
        "core/perturb/baselines.py",
        "core/registry.py",
    }, BASE
