"""What the oracle of `benchmarks/oracle.py` finds in two results folders, and what it looks past."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
import zarr

from heatproof.attribution.registry import EXPLAINERS
from heatproof.config import normalise, read_config
from heatproof.metrics.registry import METRICS

ROOT = Path(__file__).parents[2]
CURVES = "curves/parts/net/finetuned/saliency/deletion-0123abcd.zarr"
OTHER = "curves/parts/net/finetuned/saliency/deletion-4567abcd.zarr"


@pytest.fixture(scope="module")
def oracle():
    spec = importlib.util.spec_from_file_location("oracle", ROOT / "benchmarks" / "oracle.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["oracle"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["oracle"]


def store(path, values, *, chunk=1, **attributes):
    group = zarr.create_group(path, attributes=attributes)
    chunks = (chunk, *values.shape[1:])
    names = ("image", *"abc"[: values.ndim - 1])
    group.create_array("response", shape=values.shape, dtype=values.dtype, chunks=chunks, dimension_names=names)
    group["response"][...] = values
    group.create_array("image", shape=(len(values),), dtype="int64", dimension_names=("image",))
    group.create_array("method", shape=(2,), dtype="int64", dimension_names=("method",))


@pytest.fixture
def values():
    made = np.random.default_rng(0).normal(size=(4, 2, 3)).astype("float32")
    made[3] = np.nan
    return made


@pytest.fixture
def sides(tmp_path, values):
    first, second = tmp_path / "first", tmp_path / "second"
    (first / "ranking").mkdir(parents=True)
    (first / "scores.csv").write_text("method,score\nsaliency,0.25\n")
    (first / "ranking" / "families.csv").write_text("family\ngradient\n")
    store(first / CURVES, values, key="old")
    store(first / OTHER, values + 1, key="old")
    shutil.copytree(first, second)
    return first, second


def test_copies_are_equal(oracle, sides):
    found = oracle.compare(*sides)
    assert (found.csvs, found.arrays) == (2, 2)
    assert found.equal()


def test_a_byte_of_a_table(oracle, sides):
    (sides[1] / "scores.csv").write_text("method,score\nsaliency,0.250\n")
    found = oracle.compare(*sides)
    assert found.differing_csvs == ["scores.csv: line 2: 'saliency,0.25' is 'saliency,0.250'"]
    assert not found.equal()


def test_another_end_of_lines(oracle, sides):
    (sides[1] / "scores.csv").write_bytes(b"method,score\r\nsaliency,0.25\r\n")
    assert len(oracle.compare(*sides).differing_csvs) == 1


@pytest.mark.parametrize(("side", "told"), [(0, "second"), (1, "first")])
def test_a_missing_table(oracle, sides, side, told):
    (sides[side] / "ranking" / "families.csv").unlink()
    found = oracle.compare(*sides)
    assert found.missing_csvs == [f"ranking/families.csv (only in the {told})"]
    assert not found.equal()


def test_a_value_of_an_array(oracle, sides):
    zarr.open_group(sides[1] / CURVES)["response"][2, 1, 0] += np.float32(1e-6)
    found = oracle.compare(*sides)
    assert found.differing_arrays == [f"{CURVES}/response"]
    assert not found.equal()


def test_a_value_where_nothing_was_computed(oracle, sides):
    zarr.open_group(sides[1] / CURVES)["response"][3, 0, 0] = 0
    assert oracle.compare(*sides).differing_arrays == [f"{CURVES}/response"]


def test_another_type_or_shape_is_a_difference(oracle, values):
    told = oracle.content(values)
    assert told == oracle.content(values.copy(order="F"))
    assert told != oracle.content(values.astype("float64"))
    assert told != oracle.content(values.reshape(4, 3, 2))


def test_layout_and_attributes_are_no_difference(oracle, sides, values):
    shutil.rmtree(sides[1] / CURVES)
    store(sides[1] / CURVES, values, chunk=4, key="new")
    assert oracle.compare(*sides).equal()


def test_stores_of_other_digests_are_paired_by_their_content(oracle, sides, values):
    for name, shift in ((CURVES, 1), (OTHER, 0)):
        shutil.rmtree(sides[1] / name)
        # The digests are others, and in the other order.
        store(sides[1] / name.replace("abcd", "ffff"), values + shift)
    found = oracle.compare(*sides)
    assert found.arrays == 2
    assert found.equal()
    shutil.rmtree(sides[1] / OTHER.replace("abcd", "ffff"))
    assert oracle.compare(*sides).missing_arrays == [f"{CURVES}/response (only in the first)"]


def test_a_changed_value_under_another_digest(oracle, sides, values):
    shutil.rmtree(sides[1] / CURVES)
    store(sides[1] / CURVES.replace("abcd", "ffff"), values * 2)
    found = oracle.compare(*sides)
    assert found.differing_arrays == [f"{CURVES}/response and {CURVES.replace('abcd', 'ffff')}/response"]


def test_stores_that_were_renamed(oracle, sides):
    (sides[1] / "curves").rename(sides[1] / "responses")
    assert len(oracle.compare(*sides).missing_arrays) == 4
    assert oracle.compare(*sides, [("^curves/", "responses/")]).equal()


def test_two_empty_folders_are_no_success(oracle, tmp_path):
    assert not oracle.compare(tmp_path, tmp_path).equal()


@pytest.mark.parametrize("changed", [False, True])
def test_the_command_says_what_differs(oracle, sides, monkeypatch, capsys, changed):
    if changed:
        (sides[1] / "scores.csv").write_text("")
    for side in sides:
        (side.parent / "quick" / side.name).mkdir(parents=True)
        side.rename(side.parent / "quick" / side.name / "results")
    pattern = f"{sides[0].parent}/{{}}"
    asked = ["oracle", ".", ".", "--configs", "quick"]
    asked += [f"--first-results={pattern}/first", f"--second-results={pattern}/second"]
    monkeypatch.setattr(sys, "argv", asked)
    assert oracle.main() == int(changed)
    printed = capsys.readouterr().out.splitlines()
    assert printed[1].split() == ["quick", "2", str(int(changed)), "0", "2", "0", "0"]
    assert len(printed) == 2 + changed


def test_a_run_lays_its_config_over_the_embedded_default(oracle, tmp_path, monkeypatch):
    ran = []

    def spy(command, env, **more):
        ran.append((command, env))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", spy)
    for config in ("quick", "default"):
        assert oracle.run(Path("/checkout"), config, tmp_path / config, 2) == tmp_path / config / "results"
    for (command, env), names in zip(ran, (["config", "quick"], ["config"]), strict=True):
        given = command[command.index("--configfile") + 1 : command.index("--")]
        assert given[:-1] == [str(ROOT / "config" / f"{name}.yaml") for name in names]
        assert yaml.safe_load(Path(given[-1]).read_text()) == {"report": {"all_metrics": True}}
        assert env["PYTHONPATH"] == "/checkout/src"


def test_its_config_names_everything():
    path = ROOT / "config" / "everything.yaml"
    config = normalise(read_config(path))
    kinds = {settings.get("explainer", name) for name, settings in config["explainers"].items()}
    assert kinds == set(EXPLAINERS) - {"gaussians"}
    metrics = {settings.get("metric", name) for name, settings in config["metrics"].items()}
    # Two follow from `drops` and from how weights were finetuned, and there is nothing to hold a newer one against.
    ours = {name for name, entry in METRICS.items() if entry.function.__module__.startswith("heatproof.")}
    assert metrics == ours - {"idsds", "sds", "patch_insertion"}
    assert len(config["drops"]["grids"]) > 1
    assert config["report"]["all_metrics"]
    assert yaml.safe_load(path.read_text())["shard_size"] < config["evaluation"]["images"]


def test_its_configs_are_there(oracle):
    assert all((ROOT / "config" / f"{name}.yaml").is_file() for name in oracle.CONFIGS.values())
