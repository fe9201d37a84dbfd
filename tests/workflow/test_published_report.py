"""Published files of a run, including Snakemake's report, contain no local paths, user names and secrets."""

from __future__ import annotations

import base64
import getpass
import gzip
import hashlib
import io
import os
import re
import zipfile
import zlib
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pandas as pd
import pytest
from safetensors.torch import save_file

from heatproof.models.network import build_network
from heatproof.models.registry import ModelSpec
from heatproof.store.zarr_store import describe_store

pytestmark = [pytest.mark.workflow, pytest.mark.slow]


def test_the_report_and_the_results_name_neither_folders_nor_the_machine(project):
    project.run("all")
    project.run("all", "--report", "r.html")
    page = (project.folder / "r.html").read_text(encoding="utf-8")
    inside = [base64.b64decode(data) for data in re.findall(r"data:[^\"',]*;base64,([A-Za-z0-9+/]+=*)", page)]
    written = [file.read_bytes() for file in (project.folder / "results").rglob("*") if file.is_file()]
    places = {
        str(project.folder),
        str(project.folder.parent),
        str(Path.home()),
        f"{os.uname().nodename}.{getpass.getuser()}",
    }
    for text in [page.encode(), *inside, *written]:
        assert not [path for path in places if len(path) > len("/root") and path.encode() in text]


# ---- planted secrets -------------------------------------------------------------------------------------------------

# An invented user's name, a password, and tokens.
SECRETS = ("mallory", "hunter2", "TOKEN-of-query", "TOKEN-of-environment", "TOKEN-of-fragment")
# The record of the last run, logs and specs are not published (docs/security.md).
PRIVATE = (".last_run.json", ".sources", "logs", ".jobs", ".lock")


def unpacked(name: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the bytes of a file, and of data that are compressed or encoded in it."""
    yield name, data
    for inside in re.findall(rb"data:[^\"',]*;base64,([A-Za-z0-9+/]+=*)", data):
        yield from unpacked(f"{name}, encoded", base64.b64decode(inside))
    if data.startswith(b"PK\x03\x04"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for member in archive.namelist():
                yield from unpacked(f"{name}: {member}", archive.read(member))
    if data.startswith(b"\x1f\x8b"):
        yield from unpacked(f"{name}, unpacked", gzip.decompress(data))
    for text in re.findall(rb"(?s)(?:zTXt|iTXt)(.{,4000})", data) if data.startswith(b"\x89PNG") else ():
        at = text.find(b"\x78\x9c")
        if at >= 0:
            yield f"{name}, text", zlib.decompressobj().decompress(text[at:], 2**20)
    if name.endswith(".parquet"):
        yield f"{name}, as text", pd.read_parquet(io.BytesIO(data)).to_csv().encode()


def secrets_in(folder: Path, planted: set[str]) -> set[tuple[str, str]]:
    """Return the secrets that are found below a folder, with their files."""
    files = [file for file in folder.rglob("*") if file.is_file() and not set(file.parts) & set(PRIVATE)]
    parts = [part for file in files for part in unpacked(str(file), file.read_bytes())]
    for store in folder.rglob("*.zarr"):
        # The compressed part has the metadata, including names of images and classes.
        parts.append((str(store), repr(describe_store(store)).encode()))
    return {(name, secret) for name, data in parts for secret in planted if secret.encode() in data}


@pytest.fixture
def home(tmp_path):
    """A home folder."""
    (tmp_path / "mallory").mkdir()
    return tmp_path / "mallory"


@pytest.fixture
def server_address(home):
    """Serve the home folder, and return its address."""
    handler = partial(SimpleHTTPRequestHandler, directory=home)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_no_planted_secret_is_published(project, home, server_address, monkeypatch):
    model = ModelSpec("cifar_vgg11_bn", "heatproof.models.vgg", {"width": 2}, name="net")
    state = {name: value.contiguous() for name, value in build_network(model, 10).state_dict().items()}
    save_file(state, home / "x.safetensors")
    sha256 = hashlib.sha256((home / "x.safetensors").read_bytes()).hexdigest()
    entry = {"architecture": "cifar_vgg11_bn", "options": {"width": 2}, "sha256": sha256}
    query = "?sig=TOKEN-of-query#TOKEN-of-fragment"
    project.config |= {
        "weights": ["pretrained"],
        "explainers": ["saliency", "random"],
        "metrics": [{"rise_deletion": {"steps": 4}}],
        "models": [
            {"local": {**entry, "checkpoint": str(home / "x.safetensors")}},
            {"fetched": {**entry, "checkpoint": f"{server_address}/x.safetensors{query}"}},
        ],
    }
    monkeypatch.setenv("HF_TOKEN", "TOKEN-of-environment")
    monkeypatch.setenv("HTTPS_PROXY", "http://mallory:hunter2@localhost:9")
    project.run("all")
    project.run("all", "--report", "r.html")
    published = project.folder / "published"
    published.mkdir()
    (project.folder / "r.html").rename(published / "r.html")
    for command in (("rank", "results", "--out", "published/ranked"),):
        done = project.heatproof(*command)
        assert done.returncode == 0, done.stderr
        (published / f"{command[0]}.txt").write_text(done.stdout)
    # A name of two letters occurs in many words.
    places = {str(project.folder), str(home), os.uname().nodename, f"{os.uname().nodename}.{getpass.getuser()}"}
    planted = {*SECRETS, *(path for path in places if len(path) > len("/root"))}
    assert secrets_in(published, planted) == set()
    assert secrets_in(project.folder / "results", planted) == set()
