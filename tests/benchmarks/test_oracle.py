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

from heatproof.explainers.registry import EXPLAINERS
from heatproof.metrics.registry import METRICS
from heatproof.workflow.config.files import read_config
from heatproof.workflow.config.schema import normalise

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


def store(path, values, *, chunk=1, ids=None, **attributes):
    group = zarr.create_group(path, attributes=attributes)
    chunks = (chunk, *values.shape[1:])
    names = ("image", *"abc"[: values.ndim - 1])
    group.create_array("response", shape=values.shape, dtype=values.dtype, chunks=chunks, dimension_names=names)
    group["response"][...] = values
    group.create_array("image", shape=(len(values),), dtype="int64", dimension_names=("image",))
    if ids is not None:
        group["image"][...] = np.arange(len(values))
        group.create_array("image_id", shape=(len(values),), dtype=str, dimension_names=("image",))
        group["image_id"][...] = np.array(ids, dtype=object)
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
    comparison = oracle.compare(*sides)
    assert (comparison.tables, comparison.arrays) == (2, 2)
    assert comparison.equal()


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
    comparison = oracle.compare(*sides)
    assert comparison.equal() is (numbers is not True)
    listed = [f"scores.csv, of: {message}"]
    assert comparison.differing_numbers == (listed if numbers else [])
    assert comparison.differing_texts == (listed if numbers is False else [])


def test_scores_of_images_are_compared_as_well(oracle, sides):
    scores = pd.DataFrame({"method": ["a", "b"], "image": ["1", "2"], "score": [0.5, np.nan]})
    for side in sides:
        scores.to_parquet(side / "sds.parquet")
    assert oracle.compare(*sides).equal()
    scores.assign(score=[np.nextafter(0.5, 1), np.nan], method=["a", "c"]).to_parquet(sides[1] / "sds.parquet")
    comparison = oracle.compare(*sides)
    assert comparison.differing_numbers == ["sds.parquet, score: 1 of 2 rows, row 1: '0.5' is '0.5000000000000001'"]
    assert comparison.differing_texts == ["sds.parquet, method: 1 of 2 rows, row 2: 'b' is 'c'"]


def test_another_number_of_rows_is_a_difference(oracle, sides):
    (sides[1] / "scores.csv").write_text("method,score\nsaliency,0.25\nrandom,0.1\n")
    assert oracle.compare(*sides).differing_numbers == ["scores.csv: 1 rows are 2"]


@pytest.mark.parametrize("cells", ["score\n0.25", "method\nsaliency"])
def test_a_missing_column_is_a_difference_and_a_new_one_is_none(oracle, sides, cells):
    (sides[1] / "scores.csv").write_text(f"{cells}\n")
    comparison = oracle.compare(*sides)
    missing = "method" if cells.startswith("score") else "score"
    assert (comparison.missing, comparison.new) == ([f"scores.csv, {missing}"], [])
    assert not comparison.equal()
    comparison = oracle.compare(*reversed(sides))
    assert (comparison.missing, comparison.new) == ([], [f"scores.csv, {missing}"])
    assert comparison.equal()


def test_a_missing_column_does_not_hide_another_number_of_rows_or_the_reverse(oracle, sides):
    (sides[1] / "scores.csv").write_text("method\nsaliency\nrandom\n")
    comparison = oracle.compare(*sides)
    assert comparison.missing == ["scores.csv, score"]
    assert comparison.differing_numbers == ["scores.csv: 1 rows are 2"]


def test_measured_times_are_not_compared(oracle, sides):
    for side, row in zip(sides, ("saliency,3,1", "saliency,3,2"), strict=True):
        (side / "costs.csv").write_text(f"method,passes,seconds\n{row}\n")
    assert oracle.compare(*sides).equal()
    (sides[1] / "costs.csv").write_text("method,passes,seconds\nsaliency,4,2\n")
    assert not oracle.compare(*sides).equal()


def test_measured_times_of_methods_are_not_compared(oracle, sides):
    for side, seconds in zip(sides, (1.0, 2.0), strict=True):
        pd.DataFrame({"method": ["saliency"], "passes": [3], "seconds": [seconds]}).to_parquet(
            side / "sds.methods.parquet"
        )
    assert oracle.compare(*sides).equal()


def test_sums_of_checks_are_counted_and_not_compared(oracle, sides):
    for side, checks in zip(sides, (("1", "2"), ("3", "")), strict=True):
        rows = "".join(f"saliency,4,{count}\n" for count in checks)
        (side / "costs.csv").write_text(f"method,passes,check_passes\n{rows}")
    # In any table, also if the other side has no such column or table.
    (sides[0] / "scores.csv").write_text("method,score,check_passes\nsaliency,0.25,120.0\n")
    pd.DataFrame({"check_passes": [7, 8]}).to_parquet(sides[1] / "new.parquet")
    comparison = oracle.compare(*sides)
    assert comparison.check_passes == (123, 18)
    assert comparison.new == ["new.parquet"]
    assert comparison.equal()


def test_what_only_the_first_side_has_is_a_difference(oracle, sides):
    (sides[1] / "ranking" / "families.csv").unlink()
    shutil.rmtree(sides[1] / OTHER)
    comparison = oracle.compare(*sides)
    assert comparison.missing == ["ranking/families.csv", f"{OTHER}/response"]
    assert not comparison.equal()
    for gone in (["families"], ["deletion"], ["^families", "deletion"]):
        assert not oracle.compare(*sides, gone=gone).equal(), "a part is missing still"
    comparison = oracle.compare(*sides, gone=["families", "deletion-4567.*/response$"])
    assert (comparison.missing, comparison.gone) == ([], ["ranking/families.csv", f"{OTHER}/response"])
    assert comparison.equal()


def test_what_only_the_second_side_has_is_listed_and_no_difference(oracle, sides):
    (sides[0] / "ranking" / "families.csv").unlink()
    shutil.rmtree(sides[0] / OTHER)
    comparison = oracle.compare(*sides)
    assert comparison.new == ["ranking/families.csv", f"{OTHER}/response"]
    assert (comparison.missing, comparison.gone) == ([], [])
    assert comparison.equal()


def test_a_column_is_gone_under_the_path_of_its_table(oracle, sides):
    (sides[1] / "scores.csv").write_text("method\nsaliency\n")
    assert not oracle.compare(*sides, gone=["scores.csv$"]).equal(), "only the table is meant"
    comparison = oracle.compare(*sides, gone=["^scores.csv, score$"])
    assert comparison.gone == ["scores.csv, score"]
    assert comparison.equal()


def test_what_is_gone_may_not_differ_if_it_is_there(oracle, sides):
    (sides[1] / "scores.csv").write_text("method,score\nsaliency,0.5\n")
    assert not oracle.compare(*sides, gone=["scores.csv"]).equal()


def test_a_changed_value_of_an_array_is_a_difference(oracle, sides):
    zarr.open_group(sides[1] / CURVES)["response"][2, 1, 0] += np.float32(1e-6)
    comparison = oracle.compare(*sides)
    assert comparison.differing_arrays == [f"{CURVES}/response"]
    assert not comparison.equal()


def test_a_value_in_place_of_nan_is_a_difference(oracle, sides):
    zarr.open_group(sides[1] / CURVES)["response"][3, 0, 0] = 0
    assert oracle.compare(*sides).differing_arrays == [f"{CURVES}/response"]


def test_another_type_or_shape_is_a_difference(oracle, values):
    digests = oracle.row_digests(values)
    assert digests == oracle.row_digests(values.copy(order="F"))
    for other in (values.astype("float64"), values.reshape(4, 3, 2)):
        assert not set(digests) & set(oracle.row_digests(other))


@pytest.mark.parametrize("rows", [2, 5])
def test_another_number_of_rows_of_an_array_is_a_difference(oracle, sides, rows):
    shutil.rmtree(sides[1] / CURVES)
    store(sides[1] / CURVES, np.resize(zarr.open_group(sides[0] / CURVES)["response"][...], (rows, 2, 3)))
    assert oracle.compare(*sides).differing_arrays == [f"{CURVES}/response"]


def test_layout_and_attributes_are_no_difference(oracle, sides, values):
    shutil.rmtree(sides[1] / CURVES)
    store(sides[1] / CURVES, values, chunk=4, key="new")
    assert oracle.compare(*sides).equal()


def test_stores_of_other_digests_are_paired_by_their_content(oracle, sides, values):
    for name, shift in ((CURVES, 1), (OTHER, 0)):
        shutil.rmtree(sides[1] / name)
        # The digests differ, and are in the reverse order.
        store(sides[1] / name.replace("abcd", "ffff"), values + shift)
    comparison = oracle.compare(*sides)
    assert comparison.arrays == 2
    assert comparison.equal()
    shutil.rmtree(sides[1] / OTHER.replace("abcd", "ffff"))
    assert oracle.compare(*sides).missing == [f"{CURVES}/response"]


def test_a_changed_value_in_a_store_of_another_digest_is_a_difference(oracle, sides, values):
    shutil.rmtree(sides[1] / CURVES)
    store(sides[1] / CURVES.replace("abcd", "ffff"), values * 2)
    comparison = oracle.compare(*sides)
    assert comparison.differing_arrays == [f"{CURVES}/response and {CURVES.replace('abcd', 'ffff')}/response"]


@pytest.mark.parametrize(
    ("path", "without"),
    [
        ("scores-0764f811.csv", "scores.csv"),
        ("scores.0764f811ab.parquet", "scores.parquet"),
        ("maps-0764f811/d.0764f811/saliency.zarr/maps", "maps/d/saliency.zarr/maps"),
        ("maps-0764f811", "maps"),
        ("scores-0764f81.csv", "scores-0764f81.csv"),
        ("scores-0764f811x.csv", "scores-0764f811x.csv"),
        ("scores_0764f811.csv", "scores_0764f811.csv"),
    ],
)
def test_digests_are_dropped_anywhere_in_a_path(oracle, path, without):
    assert oracle.DIGEST.sub("", path) == without


def test_tables_of_other_digests_are_paired_by_their_numbers(oracle, sides):
    # The digests are in the reverse order on the second side, where texts and a column are new.
    first = {"0123abcd": "method,score\nSaliency,0.25", "4567abcd": "method,score\nSaliency,0.5"}
    second = {"0123ffff": "method,score,note\nsaliency,0.5,new", "4567ffff": "method,score,note\nsaliency,0.25,new"}
    for side, tables in zip(sides, (first, second), strict=True):
        for digest, cells in tables.items():
            (side / f"runs.{digest}").mkdir()
            (side / f"runs.{digest}/scores-{digest}.csv").write_text(f"{cells}\n")
    comparison = oracle.compare(*sides)
    assert comparison.tables == 4
    assert [text.split(":")[0] for text in comparison.differing_texts] == [
        "runs.0123abcd/scores-0123abcd.csv and runs.4567ffff/scores-4567ffff.csv, method",
        "runs.4567abcd/scores-4567abcd.csv and runs.0123ffff/scores-0123ffff.csv, method",
    ]
    assert comparison.new == ["runs.4567ffff/scores-4567ffff.csv, note", "runs.0123ffff/scores-0123ffff.csv, note"]
    assert comparison.equal()
    shutil.rmtree(sides[1] / "runs.0123ffff")
    assert oracle.compare(*sides).missing == ["runs.4567abcd/scores-4567abcd.csv"]


def test_tables_of_the_same_numbers_are_paired_by_their_texts(oracle, sides):
    for side, digests in zip(sides, (("0123abcd", "4567abcd"), ("4567ffff", "0123ffff")), strict=True):
        for digest, method in zip(digests, ("saliency", "random"), strict=True):
            (side / f"scores-{digest}.csv").write_text(f"method,score\n{method},0.25\n")
    comparison = oracle.compare(*sides)
    assert comparison.tables == 4
    assert comparison.differing_texts == []


def test_a_changed_number_in_a_table_of_another_digest_is_a_difference(oracle, sides):
    for side, digest, score in zip(sides, ("0123abcd", "0123ffff"), ("0.25", "0.5"), strict=True):
        (side / f"costs-{digest}.csv").write_text(f"score,seconds\n{score},{score}\n")
    # `seconds` is measured in any `costs.csv`.
    title = "costs-0123abcd.csv and costs-0123ffff.csv"
    assert oracle.compare(*sides).differing_numbers == [f"{title}, score: 1 of 1 rows, row 1: '0.25' is '0.5'"]


def test_renamed_stores_are_compared_if_the_renaming_is_specified(oracle, sides):
    (sides[1] / "curves").rename(sides[1] / "responses")
    comparison = oracle.compare(*sides)
    assert len(comparison.missing) == len(comparison.new) == 2
    assert oracle.compare(*sides, [("^curves/", "responses/")]).equal()


def test_renamed_tables_are_compared_if_the_renaming_is_specified(oracle, sides):
    (sides[1] / "ranking").rename(sides[1] / "orders")
    comparison = oracle.compare(*sides)
    assert (comparison.missing, comparison.new) == (["ranking/families.csv"], ["orders/families.csv"])
    comparison = oracle.compare(*sides, [("^ranking/", "orders/")])
    assert (comparison.tables, comparison.new) == (2, [])
    assert comparison.equal()
    (sides[1] / "orders" / "families.csv").write_text("family\n5\n")
    (sides[0] / "ranking" / "families.csv").write_text("family\n4\n")
    assert not oracle.compare(*sides, [("^ranking/", "orders/")]).equal()


MAPS = "maps/d/m/w/saliency"


@pytest.fixture
def images():
    """Values of twelve images, the ids of which are in no order."""
    ids = [f"image {number}" for number in (7, 3, 11, 1, 10, 0, 2, 9, 5, 8, 4, 6)]
    return np.random.default_rng(1).normal(size=(12, 2, 3)).astype("float32"), ids


def shards(results, values, ids, *, name=f"{MAPS}-0764f811", order=None, size=1):
    """Write a store per shard of some images; ids can be missing."""
    order = range(len(values)) if order is None else order
    for number, start in enumerate(range(0, len(values), size)):
        rows = list(order[start : start + size])
        path = results / name / f"{number}-{number:04x}c2aa.zarr"
        store(path, values[rows], ids=None if ids is None else [ids[row] for row in rows])


@pytest.mark.parametrize("size", [1, 5])
def test_shards_are_compared_with_one_store_by_the_ids_of_images(oracle, sides, images, size):
    values, ids = images
    store(sides[0] / f"{MAPS}.zarr", values, ids=ids)
    shards(sides[1], values, ids, order=range(11, -1, -1), size=size)
    comparison = oracle.compare(*sides)
    assert (comparison.arrays, comparison.new, comparison.missing) == (3, [], [])
    assert comparison.equal()
    assert oracle.compare(*reversed(sides)).equal()
    zarr.open_group(sides[1] / f"{MAPS}-0764f811/0-0000c2aa.zarr")["response"][0, 0, 0] += 1
    name = f"{MAPS}.zarr/response and {MAPS}-0764f811.zarr/response"
    assert oracle.compare(*sides).differing_arrays == [name]


@pytest.mark.parametrize("positions", [False, True])
def test_ids_can_be_in_another_coordinate(oracle, sides, images, positions):
    values, ids = images
    store(sides[0] / f"{MAPS}.zarr", values, ids=ids)
    shards(sides[1], values, ids, order=range(11, -1, -1), size=5)
    for path in sorted((sides[1] / f"{MAPS}-0764f811").glob("*.zarr")):
        group = zarr.open_group(path)
        images_of_shard = list(group["image_id"][...])
        del group["image_id"], group["image"]
        names = [ids.index(image) for image in images_of_shard] if positions else images_of_shard
        kind = "int64" if positions else str
        group.create_array("image", shape=(len(names),), dtype=kind, dimension_names=("image",))
        group["image"][...] = np.array(names, dtype="int64" if positions else object)
    assert oracle.compare(*sides).equal()
    assert oracle.compare(*reversed(sides)).equal()
    zarr.open_group(sides[1] / f"{MAPS}-0764f811/1-0001c2aa.zarr")["response"][0, 0, 0] += 1
    assert len(oracle.compare(*sides).differing_arrays) == 1


def test_values_of_another_image_are_a_difference(oracle, sides, images):
    values, ids = images
    store(sides[0] / f"{MAPS}.zarr", values, ids=ids)
    store(sides[1] / f"{MAPS}.zarr", values, ids=[*ids[:-2], ids[-1], ids[-2]])
    assert oracle.compare(*sides).differing_arrays == [f"{MAPS}.zarr/response"]
    shutil.rmtree(sides[1] / f"{MAPS}.zarr")
    # Of the same position in the order of ids.
    store(sides[1] / f"{MAPS}.zarr", values, ids=[image.replace("image 9", "image 90") for image in ids])
    assert oracle.compare(*sides).differing_arrays == [f"{MAPS}.zarr/response"]


def test_a_missing_shard_is_a_difference_and_so_is_one_too_many(oracle, sides, images):
    store(sides[0] / f"{MAPS}.zarr", images[0], ids=images[1])
    shards(sides[1], *images, size=4)
    assert oracle.compare(*sides).equal()
    shutil.copytree(sides[1] / f"{MAPS}-0764f811/2-0002c2aa.zarr", sides[1] / f"{MAPS}-0764f811/3-0003c2aa.zarr")
    assert len(oracle.compare(*sides).differing_arrays) == 1
    for number in (2, 3):
        shutil.rmtree(sides[1] / f"{MAPS}-0764f811/{number}-000{number}c2aa.zarr")
    assert len(oracle.compare(*sides).differing_arrays) == 1


def test_folders_of_shards_are_paired_by_their_content(oracle, sides, images):
    values, ids = images
    for shift, (old, new) in enumerate((("0123abcd", "4567ffff"), ("4567abcd", "0123ffff"))):
        store(sides[0] / f"{MAPS}-{old}.zarr", values + shift, ids=ids)
        shards(sides[1], values + shift, ids, name=f"{MAPS}-{new}", size=4)
    comparison = oracle.compare(*sides)
    assert comparison.arrays == 4
    assert comparison.equal()


def test_rows_that_share_an_id_are_compared_in_their_order(oracle, sides, images):
    values, ids = images[0], ["b", "a", "b", "a", *"cccccccc"]
    store(sides[0] / f"{MAPS}.zarr", values, ids=ids)
    shards(sides[1], values, ids, order=[1, 3, 0, 2, *range(4, 12)], size=5)
    assert oracle.compare(*sides).equal()
    shutil.rmtree(sides[1] / f"{MAPS}-0764f811")
    shards(sides[1], values, ids, order=[3, 1, 0, 2, *range(4, 12)], size=5)
    assert len(oracle.compare(*sides).differing_arrays) == 1


def test_images_that_were_not_computed_may_be_missing(oracle, sides, images):
    values, ids = images
    values[[2, 5]] = np.nan
    store(sides[0] / f"{MAPS}.zarr", values, ids=ids)
    rows = [row for row in range(12) if row not in (2, 5)]
    shards(sides[1], values[rows], [ids[row] for row in rows], size=5)
    assert oracle.compare(*sides).equal()
    values[2, 0, 0] = 0
    shutil.rmtree(sides[0] / f"{MAPS}.zarr")
    store(sides[0] / f"{MAPS}.zarr", values, ids=ids)
    assert len(oracle.compare(*sides).differing_arrays) == 1


@pytest.mark.parametrize("order", [range(12), [1, 0, *range(2, 12)]])
def test_rows_without_ids_keep_their_order(oracle, sides, images, order):
    values = images[0]
    for side, rows in zip(sides, (range(12), order), strict=True):
        # Shard 10 comes after shard 9.
        shards(side, values, None, order=rows)
        for path in (side / f"{MAPS}-0764f811").glob("*.zarr"):
            shutil.rmtree(path / "image")
    store(sides[0] / "maps/d/m/w/random.zarr", values)
    shutil.rmtree(sides[0] / "maps/d/m/w/random.zarr/image")
    shards(sides[1], values, images[1], name="maps/d/m/w/random", order=order)
    equal = list(order) == list(range(12))
    comparison = oracle.compare(*sides)
    assert comparison.arrays == 4
    assert len(comparison.differing_arrays) == (0 if equal else 2)


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
    assert printed[1].split() == ["quick", "2", str(int(changed)), str(int(changed)), "2", "0", "0", "0", "0"]
    assert printed[2] == "quick, check_passes: 0 before, 0 after"
    assert len(printed) == 3 + 2 * changed


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

    def call(*configs, broken=(), options=()):
        started.clear()
        fails.clear()
        fails.update(broken)
        arguments = ["oracle", *map(str, checkouts), "--work", str(checkouts[0].parent / "work"), "--configs", *configs]
        arguments += options
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


def test_an_edit_of_the_oracle_or_other_options_compare_again_without_a_run(
    oracle, checkouts, call, monkeypatch, tmp_path
):
    comparisons, compare = [], oracle.compare
    monkeypatch.setattr(oracle, "compare", lambda *inputs: comparisons.append(inputs) or compare(*inputs))
    for options in ([], ["--gone", "a"], ["--gone", "a", "--gone", "b"], ["--rename", "^x=b"], ["--rename", "^x=c"]):
        comparisons.clear()
        call("quick", options=options)
        assert call("quick", options=options) == (0, [])
        assert len(comparisons) == 1, "the second call reads the stored comparison"
    assert call("quick")[1] == []
    edited = tmp_path / "oracle.py"
    edited.write_text(Path(oracle.__file__).read_text() + "# Edited.\n")
    monkeypatch.setattr(oracle, "__file__", str(edited))
    comparisons.clear()
    assert call("quick") == (0, [])
    assert call("quick") == (0, [])
    assert len(comparisons) == 1


def test_what_is_gone_and_new_is_printed(checkouts, call, capsys):
    call("quick")
    work = checkouts[0].parent / "work"
    for side, names in (("first", ["old", "gone"]), ("second", ["new"])):
        for name in names:
            (work / side / f"quick/results/{name}.csv").write_text("check_passes\n100\n")
    capsys.readouterr()
    # Another option, because the results of finished runs do not change otherwise.
    assert call("quick", options=["--gone", "^gone"])[0] == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[1].split() == ["quick", "1", "0", "0", "1", "0", "1", "1", "1"]
    assert printed[2:] == [
        "quick, check_passes: 200 before, 100 after",
        "quick, missing: old.csv",
        "quick, gone: gone.csv",
        "quick, new: new.csv",
    ]
    assert call("quick", options=["--gone", "^gone", "--gone", "^old"]) == (0, [])


@pytest.mark.parametrize("side", ["first", "second"])
def test_one_side_runs_alone(checkouts, call, capsys, side):
    work = checkouts[0].parent / "work"
    status, started = call("quick", "default", options=["--run-only", side])
    assert (status, len(started)) == (0, 2)
    assert sorted(path.relative_to(work).as_posix() for path in work.glob("*")) == [side], "nothing is compared"
    assert capsys.readouterr().out == ""
    status, started = call("quick", "default")
    assert (status, len(started)) == (0, 2), "the other side's"
    assert (work / "quick.json").is_file()


def test_one_side_that_runs_alone_can_fail(call):
    assert call("quick", "default", broken=["quick"], options=["--run-only", "second"])[0] == 1


def test_a_side_with_finished_runs_does_not_run_alone(call, capsys):
    with pytest.raises(SystemExit) as error:
        call("quick", options=["--run-only", "first", "--first-results", "baselines/{}"])
    assert error.value.code == 2
    assert "--run-only first has nothing to run" in capsys.readouterr().err


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
