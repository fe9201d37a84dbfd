"""Paths that begin with ``~``, and files and folders that cannot be written."""

import errno
import os
from pathlib import Path

import pytest
import torch

import heatproof
from heatproof.errors import HeatproofError
from heatproof.store import writing
from heatproof.store.reading import user_path
from heatproof.store.table_formats import read_user_table

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture(scope="module")
def choice(network):
    images = torch.randn(16, 3, 16, 16, generator=torch.Generator().manual_seed(8))
    return heatproof.choose(network, images, None, ["saliency"])


def saved(choice, network, images):
    path = choice.save("~/saved.json")
    assert heatproof.Choice.load("~/saved.json") == choice
    assert path == Path.home() / "saved.json"


def opened(choice, network, images):
    (Path.home() / "results").mkdir()
    (Path.home() / "results" / "table.csv").write_text("method,score\nx,1\n")
    assert list(heatproof.open("~/results").tables) == ["table"]


def cached(choice, network, images):
    heatproof.explain(network, images, None, "saliency", cache="~/cache")


def read(choice, network, images):
    (Path.home() / "scores.csv").write_text("method,score\nx,1\n")
    assert read_user_table("~/scores.csv").content.startswith(b"method")


@pytest.mark.parametrize("call", [saved, opened, cached, read])
def test_a_tilde_is_the_home_folder(call, home, choice, network, images):
    call(choice, network, images)
    assert os.listdir(home)
    assert os.listdir(home.parent) == ["home"]


def test_a_folder_whose_name_is_a_tilde_is_written_with_a_dot(home, choice):
    assert choice.save("./~/saved.json").read_text() == (home.parent / "~" / "saved.json").read_text()
    assert os.listdir(home) == []


@pytest.mark.parametrize("path", ["~nobody_has_this_name/x", 3, None, b"x"])
def test_a_path_that_is_none_is_refused(path):
    with pytest.raises(HeatproofError, match=r"home folder of a user|The path is"):
        user_path(path)


def refusing(monkeypatch, code):
    """Let the system refuse to create files, as in a folder that is not writable, which root does not meet."""
    real = os.open

    def refused(path, flags, *arguments, **options):
        if flags & os.O_CREAT and str(path).endswith((".json", ".html", ".csv", ".batch")):
            raise OSError(code, os.strerror(code), str(path))
        return real(path, flags, *arguments, **options)

    monkeypatch.setattr(writing.os, "open", refused)


@pytest.mark.parametrize("ending", ["html", "json", "csv"])
@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_a_choice_that_cannot_be_saved_names_its_file(ending, code, home, choice, monkeypatch):
    refusing(monkeypatch, code)
    with pytest.raises(HeatproofError) as raised:
        choice.save(f"choice.{ending}")
    assert str(raised.value).startswith(f"choice.{ending} cannot be written ({os.strerror(code)}): ")
    assert isinstance(raised.value.__cause__, OSError)


def test_a_choice_cannot_be_saved_below_a_file(home, choice):
    (home / "file").write_text("")
    with pytest.raises(HeatproofError, match=r"choice\.html cannot be written"):
        choice.save(home / "file" / "choice.html")


def test_a_cache_that_cannot_be_written_names_no_temporary_file(home, network, images, monkeypatch):
    refusing(monkeypatch, errno.EACCES)
    with pytest.raises(HeatproofError) as raised:
        heatproof.explain(network, images, None, "saliency", cache="cache")
    assert "Permission to write" in str(raised.value)
    assert os.uname().nodename + "." not in str(raised.value)


def test_a_temporary_file_is_not_named(home, monkeypatch):
    refusing(monkeypatch, errno.EACCES)
    with pytest.raises(PermissionError) as raised:
        writing.write_text(home / "notes.json", "text")
    assert raised.value.filename == str(home / "notes.json")
