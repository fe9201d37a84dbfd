"""Published files contain no secrets of addresses and no absolute paths; terminals get no control characters."""

from __future__ import annotations

import hashlib
import http.client
import io
import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import yaml
from PIL import Image
from safetensors.torch import save_file
from toy_project import BASE

from heatproof.core.dataset import Split
from heatproof.core.provenance import Key
from heatproof.core.specs import Runtime, ShardRange
from heatproof.errors import HeatproofError
from heatproof.models.network import build_network
from heatproof.models.registry import ModelSpec
from heatproof.store.manifest import write_manifest
from heatproof.store.writing import write_table
from heatproof.store.zarr_store import ArraySpec
from heatproof.workflow.commands.cli import main
from heatproof.workflow.commands.list_stores import print_stores
from heatproof.workflow.commands.show_maps import show
from heatproof.workflow.config.files import default_config, merge
from heatproof.workflow.job import run_and_report_errors
from heatproof.workflow.plan.folder import Folder
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.validate import make_plan
from heatproof.workflow.reconcile import Results
from heatproof.workflow.stages._applicability import write_applicability
from heatproof.workflow.stages._shards import Origin, open_shard
from heatproof.workflow.stages.fetch import FetchStart
from heatproof.workflow.terminal import print_failure, print_results

SECRETS = ("alice", "hunter2", "SECRET", "fragment")
ADDRESS = "https://alice:hunter2@example.org/nets/x.pth?sig=SECRET#fragment"
MODEL = ModelSpec("cifar_vgg11_bn", "heatproof.models.vgg", {"width": 2}, name="net")
# ESC that clears the screen, the one-byte CSI, a bidirectional override, a bell.
CONTROL = "\x1b[2J \x9b2J \u202egnp.exe \x07"
ACTING = set("\x1b\x9b\u202e\x07")


def everything_in(folder: Path) -> str:
    return "\n".join(file.read_bytes().decode("latin-1") for file in folder.rglob("*") if file.is_file())


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A working folder, and a home folder with image files and a checkpoint."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    home = tmp_path / "alice"
    rng = np.random.default_rng(0)
    for name in ("cats", "dogs"):
        (home / "photos" / name).mkdir(parents=True)
        for i in range(12):
            pixels = rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(home / f"photos/{name}/{i}.png")
    state = build_network(MODEL, 2).state_dict()
    save_file({name: value.contiguous() for name, value in state.items()}, home / "x.pth")
    return home


def fetched(checkpoint: str, sha256: str | None) -> FetchStart:
    files = {"weights": "results/x.safetensors", "history": "results/x.history.csv"}
    os.makedirs("results", exist_ok=True)
    where = {"files": files, "manifest": "results/x.json", "key": Key("config", "code")}
    job = FetchStart(model=MODEL, checkpoint=str(checkpoint), sha256=sha256, **where)
    job.run(Runtime())
    return job


# ---- secrets of addresses --------------------------------------------------------------------------------------------


def test_results_of_a_fetch_have_no_secret_of_its_address(home, monkeypatch):
    data, addresses = (home / "x.pth").read_bytes(), []

    def open_address(address, timeout):
        addresses.append(address)
        return io.BytesIO(data)

    monkeypatch.setattr("urllib.request.urlopen", open_address)
    fetched(ADDRESS, hashlib.sha256(data).hexdigest())
    assert addresses == [ADDRESS], "the job itself needs all of it"
    left = everything_in(Path("results"))
    assert "https://example.org/nets/x.pth" in left
    assert not [secret for secret in SECRETS if secret in left]


@pytest.mark.parametrize(
    "error",
    [OSError(f"{ADDRESS} is away"), http.client.InvalidURL("nonnumeric port: 'hunter2@example.org?sig=SECRET'")],
)
def test_no_secret_of_an_address_is_in_an_error(home, monkeypatch, error):
    def refuse(address, timeout):
        raise error

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    with pytest.raises(HeatproofError, match=r"https://example\.org/nets/x\.pth cannot be fetched") as caught:
        fetched(ADDRESS, "0" * 64)
    assert not [secret for secret in SECRETS if secret in str(caught.value)]
    monkeypatch.setattr("urllib.request.urlopen", lambda address, timeout: io.BytesIO(b"other"))
    with pytest.raises(HeatproofError, match="has SHA-256") as caught:
        fetched(ADDRESS, "0" * 64)
    assert not [secret for secret in SECRETS if secret in str(caught.value)]


def test_the_check_of_a_config_prints_no_secret():
    model = {"m": {"architecture": "small_vit", "checkpoint": ADDRESS.replace("https", "ftp"), "sha256": "0" * 64}}
    with pytest.raises(HeatproofError) as caught:
        make_plan(merge(default_config(), {"models": [model]}))
    assert "ftp://example.org/nets/x.pth" in str(caught.value)
    assert not [secret for secret in SECRETS if secret in str(caught.value)]


def key_with(checkpoint: str, **settings) -> Key:
    model = {"m": {"architecture": "cifar_vgg11_bn", "checkpoint": checkpoint, **settings}}
    graph = Graph(make_plan(merge(default_config(), {"models": [model]})))
    spec = graph.spec("fetch", dataset="digits", model="m")
    assert spec.checkpoint == checkpoint
    return spec.key


def test_keys_do_not_depend_on_tokens_and_places_of_the_same_bytes():
    sha256 = "0" * 64
    same = {key_with(at, sha256=sha256) for at in (ADDRESS, "https://example.org/x.pth?sig=NEW", "/mnt/x.pth", "x.pth")}
    assert len(same) == 1
    assert key_with(ADDRESS, sha256="1" * 64) not in same
    # Without a digest, only the path distinguishes checkpoints.
    assert key_with("/mnt/a/x.pth") != key_with("/mnt/b/x.pth")


# ---- local paths -----------------------------------------------------------------------------------------------------


def test_no_path_of_a_checkpoint_is_published_and_its_bytes_are_still_compared(home):
    fetch = fetched(home / "x.pth", None)
    left = everything_in(Path("results"))
    assert "x.pth" in left
    assert str(home) not in left
    assert "alice" not in left
    results = Results(SimpleNamespace(jobs=list))
    job = SimpleNamespace(sources=(str(home / "x.pth"),))
    assert results.inputs_unchanged(job, fetch.manifest)
    (home / "x.pth").write_bytes(b"other")
    assert not results.inputs_unchanged(job, fetch.manifest)
    assert not results.inputs_unchanged(SimpleNamespace(sources=(str(home / "y.pth"),)), fetch.manifest)


def test_no_path_is_in_a_reason_why_a_method_is_not_applicable(home):
    reason = f"[Errno 2] No such file: '{home}/my nets/x.pth', nor {ADDRESS}"
    record = write_applicability("results/a.gate.json", "key", 2, {}, reason, 2)
    facts = {
        "gap": reason,
        "gate": record,
    }
    write_manifest("results/a.json", [], spec_key=Key("config", "code"), key="key", **facts)
    left = everything_in(Path("results"))
    assert left.count("x.pth") == 6, "the names stay"
    assert str(home) not in left
    assert not [secret for secret in SECRETS if secret in left]


@pytest.fixture
def photos(home):
    """Maps of images in a home folder, made by jobs."""
    dataset = {"photos": {"dataset": "image_folder", "root": str(home / "photos"), "size": 16}}
    change = {"datasets": [dataset], "evaluation": {"images": 2}, "explainers": ["random"], "shard_size": 4}
    config = merge(BASE, change)
    Path("mine.yaml").write_text(yaml.safe_dump({**change, "models": BASE["models"], "metrics": []}))
    graph, runtime = Graph(make_plan(config)), Runtime(2, 1, "cpu")
    graph.spec("prepare", dataset="photos").run(runtime)
    spec = graph.spec("attribute_reference", dataset="photos", shard=0)
    spec.run(runtime)
    return f"{spec.explainers[0].store}.zarr"


def test_no_path_of_data_is_published_and_the_config_still_finds_them(home, photos):
    left = everything_in(Path("results"))
    assert "/photos" in left
    assert str(home) not in left
    assert str(Path.cwd()) not in left
    with pytest.raises(HeatproofError, match="does not say where the files of the dataset 'photos' are"):
        show(photos, "0", None, "maps.png")
    show(photos, "0", None, "maps.png", config="mine.yaml")
    assert Path("maps.png").exists()


PLACES = {
    "/home/alice/data/photos": "…/photos",
    "/data/photos/": "…/photos",
    "/home/alice/my photos/": "…/my photos",
    "//server/alice/x": "…/x",
    "file:///home/alice/x.pth": "…/x.pth",
    "FILE://server/alice/x.pth": "…/x.pth",
    "file:/home/alice/x.pth": "file:…/x.pth",
    "local-dir:/home/alice/net": "local-dir:…/net",
    "~/photos": "~/photos",
    "data/photos": "data/photos",
    "../photos": "../photos",
    "package:resnet50": "package:resnet50",
    "hf-hub:timm/x@main": "hf-hub:timm/x@main",
    "timm:resnet50.a1_in1k": "timm:resnet50.a1_in1k",
    "100%25 of 3/4, and/or ~5": "100%25 of 3/4, and/or ~5",
    # Addresses.
    ADDRESS: "https://example.org/nets/x.pth",
    "https://alice:hunter2%40@example.org:8080/x": "https://example.org:8080/x",
    "s3://alice:hunter2@bucket/x?versionId=SECRET": "s3://bucket/x",
    f"https://proxy.org/{ADDRESS}": "https://proxy.org/https://example.org/nets/x.pth",
    # Sentences that contain some of them.
    f"{ADDRESS} is away, and so is {ADDRESS}": " is away, and so is ".join(["https://example.org/nets/x.pth"] * 2),
    "[Errno 2] No such file: '/home/alice/my photos/x'": "[Errno 2] No such file: '…/x'",
    "cannot open /home/alice/x.pth (missing)": "cannot open …/x.pth (missing)",
    "digits / vgg finetuned, of (N, C)/(H, W)": "digits / vgg finetuned, of (N, C)/(H, W)",
}


@pytest.mark.parametrize(("text", "published"), PLACES.items())
def test_published_text_has_no_local_path(text, published):
    from heatproof.store.publishing import public

    assert public({"options": {"root": [text, 3]}}) == {"options": {"root": [published, 3]}}
    assert public({text: 1}) == {published: 1}
    assert public(public(text)) == public(text)


# ---- tables ----------------------------------------------------------------------------------------------------------


def test_a_carriage_return_in_a_cell_ends_no_row(tmp_path):
    write_table(pd.DataFrame({"method": ["a\rb", "c\r\nd"], "score": [1.0, 2.0]}), tmp_path / "a.csv")
    read = pd.read_csv(tmp_path / "a.csv")
    assert read.to_dict("list") == {"method": ["a\nb", "c\n\nd"], "score": [1.0, 2.0]}


def test_numbers_and_ordinary_texts_keep_their_bytes(tmp_path):
    table = pd.DataFrame(
        {
            "method": ["saliency", "grad_cam", "a=b", "x-1"],
            "said": ["κ 0.5 (-0.2 to 0.9)", "shape (3, -1)", "two - three = -1", "a–b, 5; c: d"],
            "score": [-0.5, np.nan, 1e-9, -np.inf],
            "as_text": ["-0.5", "", "+3e-4", "-inf"],
            "holds": [True, False, True, True],
            "maybe": pd.array([True, None, False, True], dtype="boolean"),
            "rank": pd.array([1, None, -3, 4], dtype="Int64"),
            "either": ["x", None, 1.5, True],
        }
    )
    write_table(table, tmp_path / "a.csv")
    expected = table.to_csv(index=False, lineterminator="\n", float_format="%.8g")
    assert (tmp_path / "a.csv").read_text() == expected
    write_table(table[:0], tmp_path / "b.csv")
    assert (tmp_path / "b.csv").read_text() == table[:0].to_csv(index=False)


# ---- control characters ----------------------------------------------------------------------------------------------


def store(path: str, gap: str | None = None, maps=("m",), **made_by) -> Path:
    split = Split((f"{CONTROL}0", "1"), np.zeros(2, dtype=np.int64))
    arrays = {"attribution": ArraySpec(("map", "y", "x"), (len(maps), 2, 2))}
    shard = ShardRange(0, 2, (0, 2))
    writer = open_shard(shard, path, Origin(Key("config", "code"), made_by), split, arrays, {"map": list(maps)})
    if gap is None:
        writer.add(0, {"attribution": np.zeros((2, len(maps), 2, 2), dtype=np.float32)}, 1.0, 1)
    writer.publish("cpu", gap)
    return Path(f"{path}.zarr")


def test_control_characters_of_a_store_are_not_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    explainer = {"kind": f"{CONTROL}\nresults/fake.zarr", "options": {CONTROL: CONTROL}}
    store("results/maps/a", gap=f"no\n{CONTROL}", maps=(CONTROL,), explainer=explainer)
    assert run_and_report_errors(lambda: print_stores("results")) == 0
    output = capsys.readouterr().out
    assert not ACTING & set(output)
    assert r"\x1b[2J" in output
    assert len(output.splitlines()) == 2
    assert main(["maps", "show", "results/maps/a.zarr", "--image", CONTROL]) == 1
    assert not ACTING & set(capsys.readouterr().err)


def test_control_characters_of_a_table_are_not_printed(tmp_path, capsys):
    lines = [f"{model},{method}{CONTROL},{i}" for model in "ab" for i, method in enumerate("pqrs")]
    (tmp_path / "t.csv").write_text("\n".join(["model,method,score", *lines]), encoding="utf-8")
    assert main(["rank", str(tmp_path / "t.csv")]) == 0
    assert not ACTING & set(capsys.readouterr().out)
    (tmp_path / "t.csv").write_text("\n".join([f"model,method,score\na,{CONTROL},{CONTROL}"]), encoding="utf-8")
    assert main(["rank", str(tmp_path / "t.csv")]) == 1
    assert not ACTING & set(capsys.readouterr().err)


def test_control_characters_of_logs_and_errors_are_not_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    assert run_and_report_errors(lambda: logging.getLogger("heatproof.x").info("image %s", CONTROL)) == 0
    (tmp_path / "job.log").write_text(f"heatproof: no image {CONTROL}\n", encoding="utf-8")
    print_failure(SimpleNamespace(jobs=[("maps", ["job.log"])]))
    (tmp_path / "results").mkdir()
    ranked = f"rank,method,kappa,ci_low,ci_high\n1,{CONTROL},0.5,,\n"
    (tmp_path / "results/meta_rank.csv").write_text(ranked, encoding="utf-8")
    print_results(Folder())
    output = capsys.readouterr().err
    assert output.count(r"\x1b[2J") == 3
    assert not ACTING & set(output)


def test_ordinary_text_is_not_changed():
    from heatproof.store.publishing import escaped

    text = "κ 0.5 ± 0.1\n16×16\tDrähte – 日本語 …/photos"
    assert escaped(text) == text
    assert escaped("a\nb", keep="") == r"a\nb"
    assert escaped(os.fsdecode(b"caf\xe9")) == r"caf\udce9"


# ---- listing stores --------------------------------------------------------------------------------------------------


def list_stores(folder: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", "heatproof", "maps", "ls", folder], capture_output=True, timeout=120)


def test_one_malformed_store_does_not_end_the_listing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store("results/maps/a", explainer=["no mapping"])
    store("results/maps/b", explainer={"kind": "rise", "options": {}})
    store("results/maps/c", explainer={"kind": "rise"})
    (tmp_path / "results/maps/d.zarr").mkdir()
    (tmp_path / "results/maps/e.zarr").mkdir()
    (tmp_path / "results/maps/e.zarr/zarr.json").write_text("[" * 100_000)
    ran = list_stores("results")
    lines = ran.stdout.decode().splitlines()
    assert [line.split()[0] for line in lines[1:]] == [f"results/maps/{name}.zarr" for name in "abcde"]
    assert ["damaged: " in line for line in lines[1:]] == [True, False, True, True, True]
    assert ran.returncode == 1
    assert ran.stderr.decode() == "heatproof: 4 of 5 stores cannot be read: the last column says why.\n"


def test_names_that_are_not_utf8_are_listed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store("results/maps/a", explainer={"kind": "rise", "options": {}})
    os.rename(b"results/maps", b"results/caf\xe9")
    os.mkdir(b"results/caf\xe9/\xff.zarr")
    ran = list_stores("results")
    assert b"Traceback" not in ran.stdout + ran.stderr
    output = ran.stdout.decode()
    assert r"results/caf\udce9/a.zarr" in output
    assert r"\udcff.zarr" in output
    assert ran.returncode == 1
