"""Bundles of a finished run: changes are detected, and several bundles are ranked together if they are comparable."""

import hashlib
import json
import os
import zipfile

import pytest
import yaml

from heatproof.core.provenance import digest
from heatproof.errors import HeatproofError
from heatproof.store.manifest import CHECKSUM_KEY
from heatproof.workflow.commands import bundle

pytestmark = [pytest.mark.workflow, pytest.mark.slow]


@pytest.fixture
def bundled_project(project, monkeypatch):
    project.write_config()
    monkeypatch.chdir(project.folder)
    bundle.bundle(["micro.yaml"], out="one.zip")
    return project


def repacked(path, out, **changes):
    """Write a bundle with changes of its record, a table and the table's manifest, and with matching digests."""
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist() if name != bundle.SUMS}
    table = changes.pop("table", contents["idsds_table.csv"])
    record = json.loads(contents["tables.json"])
    facts = next(listed_file for listed_file in record["files"] if listed_file["file"] == "idsds_table.csv")
    facts |= {"sha256": hashlib.sha256(table).hexdigest(), "bytes": len(table)}
    del record[CHECKSUM_KEY]
    about = json.loads(contents["about.json"])
    about |= {**changes, "config": {**about["config"], **changes.get("config", {})}}
    contents |= {
        "idsds_table.csv": table,
        "tables.json": json.dumps({**record, CHECKSUM_KEY: digest(record)}).encode(),
        "about.json": json.dumps(about).encode(),
        "config.yaml": bundle._as_yaml(about["config"]),
    }
    sums = bundle._sums({name: hashlib.sha256(data).hexdigest() for name, data in contents.items()})
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in {bundle.SUMS: sums, **contents}.items():
            archive.writestr(name, data)


def unpacked(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_bundle_has_the_tables_the_config_and_their_provenance(bundled_project):
    contents = unpacked("one.zip")
    results = bundled_project.folder / "results"
    assert contents["idsds_table.csv"] == (results / "idsds_table.csv").read_bytes()
    assert contents["tables.json"] == (results / "tables.json").read_bytes()
    assert yaml.safe_load(contents["config.yaml"])["shard_size"] == bundled_project.config["shard_size"]
    about = json.loads(contents["about.json"])
    record = json.loads(contents["tables.json"])
    assert about["keys"] == {"tables.json": [record["config"], record["code"]]}
    assert list(about["datasets"]) == ["digits"]
    assert "is complete and unchanged" in bundle.verify("one.zip")


def test_the_same_run_makes_the_same_bytes(bundled_project):
    first = (bundled_project.folder / "one.zip").read_bytes()
    bundle.bundle(["micro.yaml"], out="again.zip")
    assert (bundled_project.folder / "again.zip").read_bytes() == first


def test_a_bundle_that_was_changed_is_refused(bundled_project):
    with zipfile.ZipFile("one.zip") as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    table = contents["idsds_table.csv"]
    for changed, sentence in (
        ({"idsds_table.csv": table.replace(b"saliency", b"salience", 1)}, "other bytes than its checksum"),
        ({"more.csv": b"a"}, "beside what it lists, more.csv"),
        ({"idsds_table.csv": None}, "lacks idsds_table.csv"),
        ({"SHA256SUMS": None}, "is not a bundle"),
    ):
        with zipfile.ZipFile("bad.zip", "w") as archive:
            for name, data in {**contents, **changed}.items():
                if data is not None:
                    archive.writestr(name, data)
        with pytest.raises(HeatproofError, match=sentence):
            bundle.verify("bad.zip")
    (bundled_project.folder / "no.zip").write_bytes(b"PK")
    with pytest.raises(HeatproofError, match="cannot be read as a bundle"):
        bundle.verify("no.zip")


def test_a_damaged_table_is_not_bundled(bundled_project):
    table = bundled_project.folder / "results/idsds_table.csv"
    table.write_bytes(table.read_bytes().replace(b"saliency", b"salience", 1))
    words = r"bytes of results/idsds_table\.csv differ from those that results/tables\.json lists"
    with pytest.raises(HeatproofError, match=words):
        bundle.bundle(["micro.yaml"], out="two.zip")
    assert not (bundled_project.folder / "two.zip").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 7},
        {"drops": {"grids": [2]}},
        {"drops": {"baselines": ["zeros"]}},
        {"pretraining": {"epochs": 2}},
        {"evaluation": {"images": 5, "accuracy_images": 0}},
    ],
)
def test_results_of_another_config_are_not_bundled(bundled_project, change):
    (bundled_project.folder / "other.yaml").write_text(yaml.safe_dump({**bundled_project.config, **change}))
    with pytest.raises(HeatproofError, match=r"from another config, code or input .* `heatproof run other\.yaml`"):
        bundle.bundle(["other.yaml"], out="two.zip")


@pytest.mark.parametrize("change", ["removed", "link", "pipe", "unlisted", "no manifest"])
def test_only_files_that_manifests_list_are_bundled(bundled_project, change):
    results = bundled_project.folder / "results"
    table = results / "accuracy.csv"
    content = table.read_bytes()
    if change == "unlisted":
        (results / "mine.csv").write_text("secret\n")
        (results / "figures").mkdir()
        (results / "figures/mine.svg").symlink_to("/etc/passwd")
        (results / "mine.json").write_text('{"key": "secret"}')
        bundle.bundle(["micro.yaml"], out="two.zip")
        assert (bundled_project.folder / "two.zip").read_bytes() == (bundled_project.folder / "one.zip").read_bytes()
        return
    (results / "tables.json" if change == "no manifest" else table).unlink()
    if change == "link":
        (bundled_project.folder / "outside.csv").write_bytes(content)
        table.symlink_to(bundled_project.folder / "outside.csv")
    elif change == "pipe":
        os.mkfifo(table)
    with pytest.raises(HeatproofError, match=r"results/(accuracy\.csv|tables\.json) is (missing|a symbolic|damaged)"):
        bundle.bundle(["micro.yaml"], out="two.zip")


def test_bundles_of_several_people_are_ranked_together(bundled_project, capsys):
    table = unpacked("one.zip")["idsds_table.csv"]
    repacked("one.zip", "other.zip", table=table.replace(b",vgg,", b",other,"))
    done = bundled_project.heatproof("rank", "one.zip", "other.zip", "--out", "ranked")
    assert done.returncode == 0, done.stderr
    assert "over 2 networks" in done.stdout
    assert (bundled_project.folder / "ranked/meta_rank.csv").is_file()
    alone = bundled_project.heatproof("rank", "results")
    assert "over 1 network" in alone.stdout


def test_bundles_that_cannot_be_compared_are_refused_with_the_reason(bundled_project):
    contents = unpacked("one.zip")
    metrics = json.loads(contents["about.json"])["config"]["metrics"]
    other = contents["idsds_table.csv"].replace(b",vgg,", b",other,")
    with pytest.raises(HeatproofError, match="both have the network digits / vgg"):
        bundle.tables(["one.zip", "one.zip", bundled_project.folder / "one.zip"])
    for change, sentence in (
        ({"datasets": {"digits": ["else", "where"]}}, "the dataset digits is"),
        ({"config": {"metrics": {**metrics, "rise_deletion": {"steps": 9}}}}, "the metric rise_deletion is"),
        ({"config": {"target": "predicted"}}, "the setting target is"),
        ({"heatproof": "9.9"}, "the version of heatproof is"),
    ):
        repacked("one.zip", "other.zip", table=other, **change)
        with pytest.raises(HeatproofError, match=sentence):
            bundle.tables(["one.zip", "other.zip"])
    with pytest.raises(HeatproofError, match=r"neither scores\.csv nor"):
        bundle.tables([bundled_project.folder / "config"])
