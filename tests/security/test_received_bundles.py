"""Untrusted bundles, results and tables are read as they were made, or refused in one sentence."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import re
import stat
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from heatproof.core.provenance import Key, digest
from heatproof.errors import HeatproofError
from heatproof.report.tables.score_import import read_scores
from heatproof.store.manifest import CHECKSUM_KEY, write_manifest
from heatproof.workflow.commands import bundle
from heatproof.workflow.commands.cli import main
from heatproof.workflow.commands.diff import diff

KEY = Key("config", "code")
CONFIG = {"metrics": {"ids": {}}, "target": "label", "drops": {"grids": [4]}}
HEADER = ["dataset", "model", "weights", "metric", "method", "score", "ci_low", "ci_high", "rank", "in_best_set"]


def results(folder: Path, model: str = "net") -> Path:
    """Write results of a run: a table and a figure, each with its manifest."""
    rows = [
        ["tiny", model, "finetuned", metric, f"method{n}", n / 7, n / 7 - 0.1, n / 7 + 0.1, n, n > 3]
        for metric in ("ids", "sds")
        for n in range(5)
    ]
    (folder / "figures").mkdir(parents=True)
    pd.DataFrame(rows, columns=HEADER).to_csv(folder / "scores.csv", index=False)
    (folder / "figures/a.svg").write_text("<svg/>")
    write_manifest(folder / "scores.json", [folder / "scores.csv"], spec_key=KEY, key="whole")
    figure, facts = folder / "figures/a.svg", {"read": {"results/scores.json": "whole"}}
    write_manifest(folder / "figures/a.figure.json", [figure], spec_key=KEY, key="drawn", **facts)
    return folder


def contents_of(folder: Path) -> dict[str, bytes]:
    """Return the files of a valid bundle, without checksums."""
    names = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    keys = {name: KEY for name in names if name.endswith(".json")}
    about = bundle.BundleRecord(bundle.FORMAT, "1.0", CONFIG, {"tiny": KEY}, keys)
    return {
        **names,
        bundle.ABOUT: json.dumps(vars(about)).encode(),
        bundle.CONFIG: bundle._as_yaml(CONFIG),
    }


def packed(path: Path, contents: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    """Write a bundle with matching checksums."""
    sums = bundle._sums({name: hashlib.sha256(data).hexdigest() for name, data in contents.items()})
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in {bundle.SUMS: sums, **contents}.items():
            archive.writestr(name, data)
    return path


def with_checksum(content: bytes, **change) -> bytes:
    """Return a manifest with other values and a matching checksum."""
    value = {**json.loads(content), **change}
    value.pop(CHECKSUM_KEY)
    return json.dumps({**value, CHECKSUM_KEY: digest(value)}).encode()


@pytest.fixture
def contents(tmp_path):
    return contents_of(results(tmp_path / "results"))


@pytest.fixture
def valid_bundle(contents, tmp_path):
    return packed(tmp_path / "sound.zip", contents)


def test_a_valid_bundle_is_verified_ranked_and_compared(valid_bundle, capsys):
    message = bundle.verify(valid_bundle)
    assert "its 6 files match their checksums; its 2 manifests list all 2 tables" in message
    assert "Only a run can show" in message
    assert main(["rank", str(valid_bundle)]) == 0
    assert "5 methods in 1 test case\n" in capsys.readouterr().out
    assert len(diff(valid_bundle, valid_bundle).table) == 10


# ---- the record of a bundle ------------------------------------------------------------------------------------------


def with_about(contents, **change):
    return {**contents, bundle.ABOUT: json.dumps({**json.loads(contents[bundle.ABOUT]), **change}).encode()}


EDITED = {
    "a table with another score": (
        lambda contents: {**contents, "scores.csv": contents["scores.csv"].replace(b"0.1", b"0.9")},
        "No manifest in .* lists scores.csv",
    ),
    "a page that no manifest lists": (
        lambda contents: {**contents, "report/index.html": b"<p>"},
        "lists report/index.html",
    ),
    "another config": (
        lambda contents: {**contents, "config.yaml": b"seed: 7\n"},
        "is not the config that about.json records",
    ),
    "a manifest of another key": (
        lambda contents: {**contents, "scores.json": with_checksum(contents["scores.json"], config="other")},
        "from another config or code",
    ),
    "a manifest that was read from another": (
        lambda contents: {**contents, "scores.json": with_checksum(contents["scores.json"], key="other")},
        "was made from another scores.json",
    ),
    "a manifest without its seal": (
        lambda contents: {**contents, "scores.json": b"{}"},
        "scores.json in .* is damaged",
    ),
    "wrong types": (
        lambda contents: {**contents, "scores.json": with_checksum(contents["scores.json"], files=5)},
        "is damaged",
    ),
    "a file of elsewhere": (
        lambda contents: {
            **contents,
            "scores.json": with_checksum(
                contents["scores.json"], files=[{"file": "../../x", "sha256": "", "bytes": 0}]
            ),
        },
        "is damaged",
    ),
    "a manifest that nobody knows": (
        lambda contents: {**contents, "more.json": contents["scores.json"]},
        "is no manifest that",
    ),
    "a record of wrong types": (lambda contents: with_about(contents, keys=5), "cannot be read"),
    "metrics of wrong types": (lambda contents: with_about(contents, config={"metrics": 5}), "cannot be read"),
    "a record that is a list": (lambda contents: {**contents, bundle.ABOUT: b"[]"}, "cannot be read"),
    "deep nesting": (lambda contents: {**contents, bundle.ABOUT: b"[" * 10**5}, "cannot be read"),
    "numbers of 5,000 digits": (
        lambda contents: {**contents, bundle.ABOUT: b'{"format":' + b"9" * 5000 + b"}"},
        "cannot be",
    ),
    "an older format": (
        lambda contents: {**contents, bundle.ABOUT: b'{"heatproof": "1.0"}'},
        "another version of heatproof",
    ),
    "no record": (
        lambda contents: {name: data for name, data in contents.items() if name != bundle.ABOUT},
        "has no about.json",
    ),
    "neither table": (
        lambda contents: {name: data for name, data in contents.items() if name != "scores.csv"},
        None,
    ),
}


@pytest.mark.parametrize("case", EDITED)
def test_contradictions_are_refused_although_checksums_match(contents, tmp_path, case):
    edit, sentence = EDITED[case]
    path = packed(tmp_path / "bad.zip", edit(contents))
    for call in (bundle.verify, lambda path: bundle.tables([path]), lambda path: diff(path, path)):
        if sentence is None and call is bundle.verify:
            continue
        with pytest.raises(HeatproofError, match=sentence or "neither scores.csv") as caught:
            call(str(path))
        assert "\n" not in str(caught.value)


# ---- archives --------------------------------------------------------------------------------------------------------


def member(name, mode=0, **facts):
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    for key, value in facts.items():
        setattr(info, key, value)
    return info


MEMBERS = {
    "../outside": "cannot be that of a file in an archive",
    "/etc/passwd": "cannot be that of a file in an archive",
    "a/../../b": "cannot be that of a file in an archive",
    "a//b": "cannot be that of a file in an archive",
    "./a": "cannot be that of a file in an archive",
    "a\\b": "cannot be that of a file in an archive",
    "C:/a": "cannot be that of a file in an archive",
    "a\x1b[2J": "cannot be that of a file in an archive",
    "a\u202egnp": "cannot be that of a file in an archive",
    "cafe\u0301.csv": "cannot be that of a file in an archive",
    "SCORES.CSV": "twice",
    "folder/": "cannot be that of a file in an archive",
    "x" * 300: "longer than file names can be",
}


@pytest.mark.parametrize("name", MEMBERS)
def test_bundles_with_invalid_names_are_refused(valid_bundle, tmp_path, name):
    with zipfile.ZipFile(valid_bundle, "a") as archive:
        archive.writestr(member(name), b"")
    with pytest.raises(HeatproofError, match=MEMBERS[name]) as caught:
        bundle.verify(str(valid_bundle))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFDIR, stat.S_IFCHR])
def test_bundles_with_links_and_pipes_are_refused(valid_bundle, kind):
    with zipfile.ZipFile(valid_bundle, "a") as archive:
        archive.writestr(member("link", kind | 0o777), b"/etc/passwd")
    with pytest.raises(HeatproofError, match="link is not a regular file"):
        bundle.verify(str(valid_bundle))


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_bundles_with_other_compressions_are_refused(contents, tmp_path, method):
    with pytest.raises(HeatproofError, match="compressed by another method than deflate"):
        bundle.verify(str(packed(tmp_path / "bad.zip", contents, method)))


def change_listed_size(archive: Path, name: str, size: int) -> None:
    """Change the size of a member that an archive lists, with a matching checksum."""
    data, encoded = bytearray(archive.read_bytes()), name.encode()
    with zipfile.ZipFile(archive) as opened:
        crc = zipfile.crc32(opened.read(name)[:size]) & 0xFFFFFFFF
    for signature, crc_at, size_at, name_at in ((b"PK\1\2", 16, 24, 46), (b"PK\3\4", 14, 22, 30)):
        at = -1
        while (at := data.find(signature, at + 1)) >= 0:
            if data[at + name_at :].startswith(encoded):
                data[at + crc_at : at + crc_at + 4] = crc.to_bytes(4, "little")
                data[at + size_at : at + size_at + 4] = size.to_bytes(4, "little")
    archive.write_bytes(data)


def test_a_member_that_unpacks_to_more_than_its_size_is_refused(contents, tmp_path):
    path = packed(tmp_path / "bomb.zip", {**contents, "bomb.svg": bytes(2**26)})
    change_listed_size(path, "bomb.svg", 10)
    with zipfile.ZipFile(path) as archive:
        assert len(archive.read("bomb.svg")) == 10, "the library cuts it"
    with pytest.raises(HeatproofError, match=r"bomb\.zip cannot be read as a bundle .*bomb\.svg"):
        bundle.verify(str(path))


def test_excessive_bundles_are_refused(contents, tmp_path):
    large = packed(tmp_path / "large.zip", {**contents, "bomb.svg": b""})
    change_listed_size(large, "bomb.svg", 2**31)
    many = packed(tmp_path / "many.zip", {**contents, **{f"figures/{number}.svg": b"" for number in range(10_001)}})
    for path in (large, many):
        with pytest.raises(HeatproofError, match="holds more than 10,000 files or 1 GiB"):
            bundle.verify(str(path))


@pytest.mark.parametrize("where", ["before", "behind"])
def test_data_around_an_archive_are_refused(valid_bundle, where):
    data = valid_bundle.read_bytes()
    valid_bundle.write_bytes(b"more" + data if where == "before" else data + b"more")
    with pytest.raises(HeatproofError, match=r"data (before|follow)"):
        bundle.verify(str(valid_bundle))


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "empty", "missing"])
@pytest.mark.parametrize("ending", [".zip", ".csv"])
def test_commands_refuse_paths_that_are_not_regular_files(tmp_path, kind, ending, capsys):
    path = tmp_path / f"x{ending}"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "empty":
        path.touch()
    for command in (["rank", path], ["diff", path, path], *([["verify", path]] if ending == ".zip" else [])):
        assert main(list(map(str, command))) == 1
        assert str(path) in capsys.readouterr().err


def test_random_damage_is_refused_in_one_sentence_or_changes_nothing(contents, tmp_path):
    valid_bundle = packed(tmp_path / "x.zip", contents)
    undamaged, table = valid_bundle.read_bytes(), contents["scores.csv"]
    draws, outcomes = random.Random(0), dict.fromkeys(["refused", "same"], 0)
    names, lines = list(contents), set()
    for _ in range(400):
        kind = draws.choice(["flip", "cut", "zero", "swap", "append", "twice", "rename", "foreign", "types", "drop"])
        data, start = bytearray(undamaged), draws.randrange(len(undamaged))
        name, other = draws.sample(names, 2)
        edited = dict(contents)
        if kind == "flip":
            data[start] ^= 1 << draws.randrange(8)
        elif kind == "cut":
            del data[start:]
        elif kind == "zero":
            data[start : start + draws.randrange(1, 64)] = bytes(len(data[start : start + 8]))
        elif kind == "append":
            data += draws.randbytes(draws.randrange(1, 99))
        else:
            if kind == "swap":
                edited[name], edited[other] = edited[other], edited[name]
            elif kind == "rename":
                edited[f"{name}x"] = edited.pop(name)
            elif kind == "drop":
                del edited[name]
            elif kind == "types":
                value = json.loads(edited["scores.json"])
                wrong = draws.choice([5, "x", None, [], {}, [[]], 1e400, {"a": 1}, True])
                edited["scores.json"] = with_checksum(edited["scores.json"], **{draws.choice(list(value)): wrong})
            path = tmp_path / "y.zip"
            packed(path, edited, zipfile.ZIP_BZIP2 if kind == "foreign" else zipfile.ZIP_STORED)
            if kind == "twice":
                with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as archive:
                    archive.writestr(name, contents[other])
            data = bytearray(path.read_bytes())
        valid_bundle.write_bytes(data)
        for call in (bundle.verify, lambda path: bundle.tables([path]), lambda path: diff(path, path)):
            try:
                read = call(str(valid_bundle))
            except HeatproofError as error:
                lines.add(str(error).count("\n"))
                outcomes["refused"] += 1
                continue
            outcomes["same"] += 1
            if isinstance(read, list):
                assert read[0].content == table, kind
    assert lines == {0}
    assert outcomes["refused"] > 900


# ---- results folders and tables --------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["edited", "unlisted", "link", "linked folder", "pipe"])
def test_results_that_differ_from_their_manifests_are_refused(tmp_path, damage, capsys):
    folder = results(tmp_path / "got/results")
    table = folder / "scores.csv"
    content = table.read_bytes()
    if damage == "edited":
        table.write_bytes(content.replace(b"0.1", b"0.9"))
    elif damage == "unlisted":
        (folder / "scores.json").unlink()
    elif damage == "pipe":
        table.unlink()
        os.mkfifo(table)
    elif damage == "link":
        table.rename(tmp_path / "outside.csv")
        table.symlink_to(tmp_path / "outside.csv")
    if damage == "linked folder":
        (tmp_path / "own").symlink_to(tmp_path / "got")
        assert main(["rank", str(tmp_path / "own")]) == 0, "the folder that is named can be a link"
        return
    for path in (tmp_path / "got", folder):
        for command in (["rank", path], ["diff", path, path]):
            assert main(list(map(str, command))) == 1
            assert "scores.csv" in capsys.readouterr().err
    if damage in ("edited", "link", "pipe"):
        assert main(["rank", str(table)]) == 1


def table_of(rows: list[list[str]]) -> bytes:
    return "\n".join(map(",".join, rows)).encode()


ROWS = [["method", "model", "score"], ["a", "x", "1"], ["b", "x", "2"], ["a", "y", "3"], ["b", "y", "4"]]
TABLES = {
    "inf": (table_of([*ROWS, ["c", "x", "inf"]]), "gives 'c' the score 'inf', which is not a finite number .row 6."),
    "-Infinity": (table_of([*ROWS, ["c", "x", "-Infinity"]]), "'-Infinity', which is not a finite number"),
    "a number too large": (table_of([*ROWS, ["c", "x", "1e999"]]), "'1e999', which is not a finite number"),
    "5,000 digits": (table_of([*ROWS, ["c", "x", "9" * 5000]]), "which is not a (finite )?number"),
    "inf in a wide table": (table_of([["method", "x", "y"], ["a", "1", "2"], ["b", "inf", "2"]]), "'b' .*row 3"),
    "a mistake in a wide table": (table_of([["method", "x"], *[[f"m{n}", "1"] for n in range(5)], ["b", "1,5"]]), ""),
    "a letter in a wide table": (table_of([["method", "x"], *[[f"m{n}", "1"] for n in range(5)], ["b", "o"]]), "row 7"),
    "NUL": (b"method,score\na,1\nb\0,2\n", "not text in UTF-8"),
    "UTF-16": (table_of(ROWS).decode().encode("utf-16"), "not text in UTF-8"),
    "Latin 1": ("method,score\nä,1\n".encode("latin-1"), "cannot be read as a table"),
    "no text": (bytes(range(1, 256)), "cannot be read as a table|nothing to rank"),
    "a longer row": (table_of([*ROWS, ["c", "x", "1", "2"]]), "cannot be read as a table"),
    "a shorter row": (table_of([*ROWS, ["c", "x"]]), "row 6 has 2 cells, and the header 3"),
    "only a header": (table_of(ROWS[:1]), "nothing to rank"),
    "nothing": (b"", "cannot be read as a table|nothing to rank"),
    "many columns": (table_of([["method", *map(str, range(10**5))], ["a", *["1"] * 10**5]]), "100,001 columns"),
    "many columns behind a quote": (b'"a\nb",' + b",".join(b"%d" % n for n in range(10**5)), "columns"),
    "many short rows": (table_of([list(map(str, range(4000)))]) + b"\r1" * 2000, "cells"),
    "two columns of a name": (table_of([["method", "x", "x"], ["a", "1", "2"]]), "two columns 'x'"),
    "many methods": (table_of([ROWS[0], *[[f"m{n}", "x", "1"] for n in range(3001)]]), "3,001 methods, and at most"),
    "many networks": (table_of([ROWS[0], *[["a", f"n{n}", "1"] for n in range(3000)]]), "3,000 test cases"),
}


@pytest.mark.parametrize("case", TABLES)
def test_invalid_tables_are_refused_in_one_sentence(tmp_path, case, capsys):
    content, sentence = TABLES[case]
    path = tmp_path / "mine.csv"
    path.write_bytes(content)
    assert main(["rank", str(path)]) == 1
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert re.search(sentence, message)


@pytest.mark.parametrize("number", ["inf", "x", "9" * 400])
def test_cells_of_a_run_that_are_not_finite_numbers_are_refused(tmp_path, number):
    folder = results(tmp_path / "results")
    table = pd.read_csv(folder / "scores.csv", dtype=str)
    table.loc[3, "ci_low"] = number
    table.to_csv(folder / "scores.csv", index=False)
    write_manifest(folder / "scores.json", [folder / "scores.csv"], spec_key=KEY, key="whole")
    with pytest.raises(HeatproofError, match="in row 5 of 'ci_low', which is not a finite number"):
        diff(folder, folder)


def test_a_users_table_can_be_a_link(tmp_path):
    (tmp_path / "x.csv").write_bytes(table_of(ROWS))
    (tmp_path / "mine.csv").symlink_to(tmp_path / "x.csv")
    assert np.isfinite(read_scores([tmp_path / "mine.csv"])["score"]).all()
    # Next to a user's own records, which are not manifests.
    (tmp_path / "results").mkdir()
    (tmp_path / "results/x.csv").write_bytes(table_of(ROWS))
    (tmp_path / "results/x.json").write_text("{}")
    assert len(bundle.tables([tmp_path / "results/x.csv"])[0].content) == len(table_of(ROWS))


def test_reading_a_bundle_writes_no_file(valid_bundle, tmp_path, monkeypatch):
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr("tempfile.TemporaryDirectory", None)
    assert io.BytesIO(bundle.tables([valid_bundle])[0].content).read(7) == b"dataset"
    assert sorted(tmp_path.rglob("*")) == before
