"""A finished run as one file: it says when it was changed, and several are ranked together where that makes sense."""

import json
import zipfile

import pytest
import yaml

from heatproof import bundle
from heatproof.errors import HeatproofError

pytestmark = [pytest.mark.workflow, pytest.mark.slow]


@pytest.fixture
def made(project, monkeypatch):
    project.write_config()
    monkeypatch.chdir(project.folder)
    bundle.bundle(["micro.yaml"], out="one.zip")
    return project


def repacked(path, out, changes):
    """Write a bundle anew with other contents, and checksums that fit unless they are among the changes."""
    contents = {**bundle.read(path), **changes}
    import hashlib

    sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in contents.items())
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in {bundle.SUMS: sums.encode(), **contents}.items():
            archive.writestr(name, data)


def test_a_bundle_has_the_tables_the_config_and_what_made_them(made):
    contents = bundle.read("one.zip")
    table = made.folder / "results/idsds_table.csv"
    assert contents["idsds_table.csv"] == table.read_bytes()
    assert yaml.safe_load(contents["config.yaml"])["shard_size"] == made.config["shard_size"]
    about = json.loads(contents["about.json"])
    assert about["manifests"]["tables.json"]["versions"]["torch"]
    assert list(about["datasets"]) == ["digits"]
    assert str(made.folder) not in contents["about.json"].decode() + contents["config.yaml"].decode()
    assert "is whole" in bundle.verify("one.zip")


def test_the_same_run_makes_the_same_bytes(made):
    first = (made.folder / "one.zip").read_bytes()
    bundle.bundle(["micro.yaml"], out="again.zip")
    assert (made.folder / "again.zip").read_bytes() == first


def test_a_bundle_that_was_changed_is_refused(made):
    with zipfile.ZipFile("one.zip") as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    table = contents["idsds_table.csv"]
    for changed, sentence in (
        ({"idsds_table.csv": table.replace(b"saliency", b"salience", 1)}, "other bytes than its checksum"),
        ({"more.csv": b"a"}, "beside what it lists, more.csv"),
        ({"idsds_table.csv": None}, "lacks idsds_table.csv"),
        ({"SHA256SUMS": None}, "is no bundle"),
    ):
        with zipfile.ZipFile("bad.zip", "w") as archive:
            for name, data in {**contents, **changed}.items():
                if data is not None:
                    archive.writestr(name, data)
        with pytest.raises(HeatproofError, match=sentence):
            bundle.verify("bad.zip")
    (made.folder / "no.zip").write_bytes(b"PK")
    with pytest.raises(HeatproofError, match="cannot be read as a bundle"):
        bundle.verify("no.zip")


def test_a_damaged_table_is_not_bundled(made):
    table = made.folder / "results/idsds_table.csv"
    table.write_bytes(table.read_bytes().replace(b"saliency", b"salience", 1))
    with pytest.raises(HeatproofError, match=r"idsds_table\.csv"):
        bundle.bundle(["micro.yaml"], out="two.zip")


def test_bundles_of_several_people_are_ranked_together(made, capsys):
    table = bundle.read("one.zip")["idsds_table.csv"]
    repacked("one.zip", "other.zip", {"idsds_table.csv": table.replace(b",vgg,", b",other,")})
    done = made.heatproof("rank", "one.zip", "other.zip", "--out", "ranked")
    assert done.returncode == 0, done.stderr
    assert "over 2 networks" in done.stdout
    assert (made.folder / "ranked/meta_rank.csv").is_file()
    alone = made.heatproof("rank", "results")
    assert "over 1 network" in alone.stdout


def test_what_cannot_be_compared_is_refused_with_the_reason(made, tmp_path):
    contents = bundle.read("one.zip")
    about = json.loads(contents["about.json"])
    other = contents["idsds_table.csv"].replace(b",vgg,", b",other,")
    with pytest.raises(HeatproofError, match="both have the network digits / vgg"):
        bundle.unpacked(["one.zip", "one.zip", made.folder / "one.zip"], tmp_path / "a")
    for change, sentence in (
        ({"datasets": {"digits": "elsewhere"}}, "the dataset digits is"),
        ({"metrics": {**about["metrics"], "rise_deletion": {"steps": 9}}}, "the metric rise_deletion is"),
        ({"target": "predicted"}, "the setting target is"),
        ({"heatproof": "9.9"}, "the version of heatproof is"),
    ):
        changed = json.dumps({**about, **change}).encode()
        repacked("one.zip", "other.zip", {"idsds_table.csv": other, "about.json": changed})
        with pytest.raises(HeatproofError, match=sentence):
            bundle.unpacked(["one.zip", "other.zip"], tmp_path / str(sentence.split()[1]))
    with pytest.raises(HeatproofError, match=r"neither scores\.csv nor"):
        bundle.unpacked([tmp_path], tmp_path / "b")
