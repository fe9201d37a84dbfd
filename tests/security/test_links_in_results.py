"""No file below a results folder is written, read or touched through a link, by any code."""

import os
from pathlib import Path

import pytest

from heatproof.errors import HeatproofError
from heatproof.store.manifest import touch, verified_bytes, verified_path, write_manifest
from heatproof.store.reading import file_digest, read_result_bytes, refuse_links, refuse_links_in, resolve_user_folder
from heatproof.store.writing import write_text
from heatproof.workflow import start as workflow
from heatproof.workflow.config.files import default_config
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.validate import make_plan
from heatproof.workflow.reconcile import Results, _set_times


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """A file outside the working folder, which has an empty results folder."""
    (tmp_path / "work/results").mkdir(parents=True)
    (tmp_path / "private.txt").write_text("private")
    os.utime(tmp_path / "private.txt", (1, 1))
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "private.txt"


def linked(outside: Path, path: str) -> Path:
    """Create a link to the file outside, or to its folder if the path ends with a slash."""
    link = Path(path)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(outside.parent if path.endswith("/") else outside)
    return link


WRITTEN = ["results/logs/", "results/logs/drops/", "results/logs/drops/a.log", "results/benchmarks/drops/a/b.tsv"]


@pytest.mark.parametrize("path", WRITTEN)
def test_a_run_is_refused_if_snakemake_would_write_through_a_link(outside, path):
    linked(outside, path)
    with pytest.raises(HeatproofError, match="is a symbolic link"):
        workflow.start_run(Graph(make_plan(default_config())), "results", dry_run=False)
    assert (outside.read_text(), outside.stat().st_mtime) == ("private", 1)


def test_a_pipe_among_logs_is_refused(outside):
    Path("results/logs").mkdir()
    os.mkfifo("results/logs/a.log")
    with pytest.raises(HeatproofError, match="a named pipe"):
        refuse_links_in("results/logs")


@pytest.mark.parametrize("read", [read_result_bytes, verified_path, verified_bytes])
@pytest.mark.parametrize("path", ["results/a.csv", "results/deep/"])
def test_nothing_is_read_through_a_link(outside, read, path):
    link = linked(outside, path)
    with pytest.raises(HeatproofError, match="is a symbolic link"):
        read(link if link.suffix else link / outside.name)


def test_times_and_bytes_behind_a_link_are_unchanged(outside):
    link = linked(outside, "results/a.csv")
    _set_times([str(link)], 10**18)
    with pytest.raises(HeatproofError, match="is a symbolic link"):
        write_text(link, "mine")
    assert (outside.read_text(), outside.stat().st_mtime) == ("private", 1)


def test_an_error_names_a_listed_file_that_became_a_link(outside):
    from heatproof.core.provenance import Key
    from heatproof.workflow.plan.stage import Product

    Path("results/a.csv").write_text("private")
    write_manifest("results/a.json", ["results/a.csv"], spec_key=Key("a", "b"), key="c")
    Path("results/a.csv").unlink()
    linked(outside, "results/a.csv")
    product = Product("results/a.json", Key("a", "b"), ("results/a.csv", "results/a.json"), "results/a.csv")
    with pytest.raises(HeatproofError, match=r"results/a\.csv is a symbolic link"):
        Results(Graph(make_plan(default_config()))).damage(product)
    with pytest.raises(HeatproofError, match=r"results/a\.csv is a symbolic link"):
        touch("results/a.json")
    assert outside.stat().st_mtime == 1


def test_the_results_folder_may_be_a_link_but_nothing_below_it(outside, tmp_path):
    (tmp_path / "disk").mkdir()
    Path("results").rmdir()
    Path("results").symlink_to(tmp_path / "disk")
    write_text("results/a.csv", "mine")
    assert read_result_bytes("results/a.csv") == read_result_bytes(resolve_user_folder("results") / "a.csv") == b"mine"
    linked(outside, "results/b.csv")
    for path in ("results/b.csv", resolve_user_folder("results") / "b.csv"):
        with pytest.raises(HeatproofError, match="is a symbolic link"):
            refuse_links(path)


def test_readers_of_results_refuse_pipes(outside):
    os.mkfifo("results/a.csv")
    for read in (read_result_bytes, file_digest, verified_path):
        with pytest.raises(HeatproofError, match="a named pipe"):
            read("results/a.csv")
