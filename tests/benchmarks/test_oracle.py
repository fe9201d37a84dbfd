"""Differences between two results folders that `benchmarks/oracle.py` finds, and those that it ignores."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
import zarr

from heatproof.attribution.registry import EXPLAINERS
from heatproof.config.files import read_config
from heatproof.config.schema import normalise
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
    array = np.random.default_rng(0).normal(size=(4, 2, 3)).astype("float32")
    array[3] = np.nan
    return array


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
    assert (found.tables, found.arrays) == (2, 2)
    assert found.equal()


@pytest.mark.parametrize(
    ("before", "after", "numbers", "message"),
    [
        (["0.25", ""], ["0.25", ""], None, ""),
        (["0.25", ""], ["0.250", ""], False, "1 of 2 rows, row 1: '0.25' is '0.250'"),
        (["0.25", "1"], ["0.25", "1.0000001"], True, "1 of 2 rows, row 2: '1' is '1.0000001'"),
        (["0.25", "1"], ["0.25", ""], True, "1 of 2 rows, row 2: '1' is ''"),
        (["0.25", "1"], ["0.25", "one"], True, "1 of 2 rows, row 2: '1' is 'one'"),
        (["", ""], ["", "1"], True, "1 of 2 rows, row 2: '' is '1'"),
        (["True", "False"], ["True", "True"], True, "1 of 2 rows, row 2: 'False' is 'True'"),
        (["open", ""], ["open", "a note"], False, "1 of 2 rows, row 2: '' is 'a note'"),
        (["12", "ab"], ["13", "ab"], False, "1 of 2 rows, row 1: '12' is '13'"),
        (["inf", "nan"], ["inf", ""], False, "1 of 2 rows, row 2: 'nan' is ''"),
    ],
)
def test_numbers_are_compared_exactly_and_texts_separately(oracle, sides, before, after, numbers, message):
    assert oracle.compare_column(before, after) == (bool(numbers), message)
    for side, cells in zip(sides, (before, after), strict=True):
        pd.DataFrame({"method": ["a", "b"], "of": cells}).to_csv(side / "scores.csv", index=False)
    found = oracle.compare(*sides)
    assert found.equal() is (numbers is not True)
    listed = [f"scores.csv, of: {message}"]
    assert found.differing_numbers == (listed if numbers else [])
    assert found.differing_texts == (listed if numbers is False else [])


def test_scores_of_images_are_compared_as_well(oracle, sides):
    scores = pd.DataFrame({"method": ["a", "b"], "image": ["1", "2"], "score": [0.5, np.nan]})
    for side in sides:
        scores.to_parquet(side / "sds.parquet")
    assert oracle.compare(*sides).equal()
    scores.assign(score=[np.nextafter(0.5, 1), np.nan], method=["a", "c"]).to_parquet(sides[1] / "sds.parquet")
    found = oracle.compare(*sides)
    assert found.differing_numbers == ["sds.parquet, score: 1 of 2 rows, row 1: '0.5' is '0.5000000000000001'"]
    assert found.differing_texts == ["sds.parquet, method: 1 of 2 rows, row 2: 'b' is 'c'"]


def test_a_row_or_a_column_of_numbers_that_is_missing_is_a_difference(oracle, sides):
    (sides[1] / "scores.csv").write_text("method\nsaliency\n")
    assert oracle.compare(*sides).differing_numbers == ["scores.csv, score: only in the first"]
    (sides[1] / "scores.csv").write_text("method,note,score\nsaliency,new,0.25\n")
    found = oracle.compare(*sides)
    assert found.differing_texts == ["scores.csv, note: only in the second"]
    assert found.equal()
    (sides[1] / "scores.csv").write_text("method,score\nsaliency,0.25\nrandom,0.1\n")
    assert oracle.compare(*sides).differing_numbers == ["scores.csv: 1 rows are 2"]


def test_measured_times_are_not_compared(oracle, sides):
    for side, row in zip(sides, ("saliency,3,1", "saliency,3,2"), strict=True):
        (side / "costs.csv").write_text(f"method,passes,seconds\n{row}\n")
    assert oracle.compare(*sides).equal()
    (sides[1] / "costs.csv").write_text("method,passes,seconds\nsaliency,4,2\n")
    assert not oracle.compare(*sides).equal()


@pytest.mark.parametrize(("side", "side_name"), [(0, "second"), (1, "first")])
def test_a_missing_table_is_a_difference(oracle, sides, side, side_name):
    (sides[side] / "ranking" / "families.csv").unlink()
    found = oracle.compare(*sides)
    assert found.missing_tables == [f"ranking/families.csv (only in the {side_name})"]
    assert not found.equal()


def test_a_changed_value_of_an_array_is_a_difference(oracle, sides):
    zarr.open_group(sides[1] / CURVES)["response"][2, 1, 0] += np.float32(1e-6)
    found = oracle.compare(*sides)
    assert found.differing_arrays == [f"{CURVES}/response"]
    assert not found.equal()


def test_a_value_in_place_of_nan_is_a_difference(oracle, sides):
    zarr.open_group(sides[1] / CURVES)["response"][3, 0, 0] = 0
    assert oracle.compare(*sides).differing_arrays == [f"{CURVES}/response"]


def test_another_type_or_shape_is_a_difference(oracle, values):
    content = oracle.content(values)
    assert content == oracle.content(values.copy(order="F"))
    assert content != oracle.content(values.astype("float64"))
    assert content != oracle.content(values.reshape(4, 3, 2))


def test_layout_and_attributes_are_no_difference(oracle, sides, values):
    shutil.rmtree(sides[1] / CURVES)
    store(sides[1] / CURVES, values, chunk=4, key="new")
    assert oracle.compare(*sides).equal()


def test_stores_of_other_digests_are_paired_by_their_content(oracle, sides, values):
    for name, shift in ((CURVES, 1), (OTHER, 0)):
        shutil.rmtree(sides[1] / name)
        # The digests differ, and are in the reverse order.
        store(sides[1] / name.replace("abcd", "ffff"), values + shift)
    found = oracle.compare(*sides)
    assert found.arrays == 2
    assert found.equal()
    shutil.rmtree(sides[1] / OTHER.replace("abcd", "ffff"))
    assert oracle.compare(*sides).missing_arrays == [f"{CURVES}/response (only in the first)"]


def test_a_changed_value_in_a_store_of_another_digest_is_a_difference(oracle, sides, values):
    shutil.rmtree(sides[1] / CURVES)
    store(sides[1] / CURVES.replace("abcd", "ffff"), values * 2)
    found = oracle.compare(*sides)
    assert found.differing_arrays == [f"{CURVES}/response and {CURVES.replace('abcd', 'ffff')}/response"]


def test_renamed_stores_are_compared_if_the_renaming_is_specified(oracle, sides):
    (sides[1] / "curves").rename(sides[1] / "responses")
    assert len(oracle.compare(*sides).missing_arrays) == 4
    assert oracle.compare(*sides, [("^curves/", "responses/")]).equal()


def test_two_empty_folders_are_not_equal(oracle, tmp_path):
    assert not oracle.compare(tmp_path, tmp_path).equal()


@pytest.mark.parametrize("changed", [False, True])
def test_the_command_prints_differences(oracle, sides, monkeypatch, capsys, changed):
    if changed:
        (sides[1] / "scores.csv").write_text("method,score\nSaliency,0.5\n")
    for side in sides:
        (side.parent / "quick" / side.name).mkdir(parents=True)
        side.rename(side.parent / "quick" / side.name / "results")
    pattern = f"{sides[0].parent}/{{}}"
    arguments = ["oracle", ".", ".", "--configs", "quick", "--work", f"{sides[0].parent}/work"]
    arguments += [f"--first-results={pattern}/first", f"--second-results={pattern}/second"]
    monkeypatch.setattr(sys, "argv", arguments)
    assert oracle.main() == int(changed)
    printed = capsys.readouterr().out.splitlines()
    assert printed[1].split() == ["quick", "2", str(int(changed)), str(int(changed)), "0", "2", "0", "0"]
    assert len(printed) == 2 + 2 * changed


@pytest.fixture
def checkouts(tmp_path):
    """Two checkouts with different configs."""
    folders = [tmp_path / "before", tmp_path / "after"]
    for checkout in folders:
        (checkout / "src").mkdir(parents=True)
        (checkout / "src/code.py").write_text("")
        (checkout / "config").mkdir()
        for name in ("config", "quick"):
            (checkout / "config" / f"{name}.yaml").write_text(f"seed: {len(checkout.name)}\n")
    return folders


@pytest.fixture
def call(oracle, checkouts, values, monkeypatch):
    """Return a function that calls the command, and returns its status and the runs that it started."""
    started, fails = [], set()

    def stand_in(command, env, **more):
        results = Path(command[command.index("--directory") + 1]) / "results"
        started.append((command, env))
        if results.parent.name in fails:
            return subprocess.CompletedProcess(command, 1)
        if not results.exists():
            store(results / CURVES, values, key="one")
            (results / "scores.csv").write_text("method,score\nsaliency,0.25\n")
        return subprocess.CompletedProcess(command, 0)

    def call(*configs, broken=()):
        started.clear()
        fails.clear()
        fails.update(broken)
        arguments = ["oracle", *map(str, checkouts), "--work", str(checkouts[0].parent / "work"), "--configs", *configs]
        monkeypatch.setattr(sys, "argv", arguments)
        return oracle.main(), list(started)

    monkeypatch.setattr(subprocess, "run", stand_in)
    return call


def test_each_checkout_runs_its_own_configs(checkouts, call):
    status, started = call("quick", "default")
    assert status == 0
    names = [["config", "quick"], ["config", "quick"], ["config"], ["config"]]
    for (command, env), checkout, configs in zip(started, checkouts * 2, names, strict=True):
        files = command[command.index("--configfile") + 1 : command.index("--")]
        assert files[:-1] == [str(checkout / "config" / f"{name}.yaml") for name in configs]
        assert yaml.safe_load(Path(files[-1]).read_text()) == {"report": {"all_metrics": True}}
        assert command[command.index("--snakefile") + 1] == str(checkout / "Snakefile")
        assert env["PYTHONPATH"] == str(checkout / "src")


def test_finished_runs_are_stored_and_not_repeated(oracle, checkouts, call, monkeypatch, capsys):
    assert call("quick", "default", broken=["quick"])[0] == 1
    assert "quick on" in capsys.readouterr().err
    # The first side's run of `quick` failed, and that of the second was not started; `default` was finished.
    status, started = call("quick", "default")
    assert (status, len(started)) == (0, 2)
    with monkeypatch.context() as context:
        context.setattr(oracle, "compare", lambda *arguments: pytest.fail("what is compared is stored"))
        assert call("quick", "default") == (0, [])
    (checkouts[1] / "src/code.py").write_text("EDITED = True")
    assert len(call("quick")[1]) == 1, "that of the edited checkout"
    work = checkouts[0].parent / "work"
    (work / "second/default/results/scores.csv").write_text("method,score\nsaliency,0.5\n")
    assert call("default")[0] == 1, "the edited checkout is compared again"


def test_an_edit_during_a_run_is_an_error(oracle, checkouts, call, monkeypatch, capsys):
    stand_in = subprocess.run

    def edits(*arguments, **more):
        (checkouts[0] / "src/code.py").write_text("EDITED = True")
        return stand_in(*arguments, **more)

    monkeypatch.setattr(subprocess, "run", edits)
    assert call("quick")[0] == 1
    assert "before was edited while quick ran: run the same command again" in capsys.readouterr().err


def test_the_config_of_the_oracle_has_all_explainers_and_metrics():
    path = ROOT / "config" / "everything.yaml"
    config = normalise(read_config(path))
    kinds = {settings.get("explainer", name) for name, settings in config["explainers"].items()}
    assert kinds == set(EXPLAINERS) - {"gaussians"}
    metrics = {settings.get("metric", name) for name, settings in config["metrics"].items()}
    # `sds` and `idsds` follow from `drops` and the weights; older versions do not have `patch_insertion`.
    ours = {name for name, entry in METRICS.items() if entry.function.__module__.startswith("heatproof.")}
    assert metrics == ours - {"idsds", "sds", "patch_insertion"}
    assert len(config["drops"]["grids"]) > 1
    assert config["report"]["all_metrics"]
    assert yaml.safe_load(path.read_text())["shard_size"] < config["evaluation"]["images"]


def test_the_configs_of_the_oracle_exist(oracle):
    assert all((ROOT / "config" / f"{name}.yaml").is_file() for name in oracle.CONFIGS.values())
