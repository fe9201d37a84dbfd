"""Comparing two runs: random differences are not reported as changes, and a planted change is."""

import numpy as np
import pandas as pd
import pytest

from heatproof.core.provenance import Key
from heatproof.errors import HeatproofError
from heatproof.store.manifest import write_manifest
from heatproof.workflow.commands.cli import main
from heatproof.workflow.commands.diff import diff

METHODS = [f"method{number:02d}" for number in range(20)]


def run(folder, seed, images=200, planted=0.0, methods=METHODS):
    """Write the table of a run whose scores are means of random image scores."""
    draws = np.random.default_rng(seed)
    rows = []
    for number, method in enumerate(methods):
        values = draws.normal(0.02 * number + (planted if method == "method07" else 0), 0.3, images)
        half = 1.959964 * values.std(ddof=1) / images**0.5
        row = {"dataset": "tiny", "model": "net", "weights": "finetuned", "method": method, "metric": "idsds"}
        row |= {"score": values.mean(), "ci_low": values.mean() - half, "ci_high": values.mean() + half}
        rows.append(row)
    table = pd.DataFrame(rows)
    table["rank"] = table["score"].rank(ascending=False)
    table["in_best_set"] = table["ci_high"] > table["ci_low"].max()
    folder.mkdir(parents=True)
    return write_with_manifest(table, folder)


def write_with_manifest(table, folder):
    """Write a table with its manifest."""
    path = folder / "idsds_table.csv"
    table.to_csv(path, index=False)
    write_manifest(folder / "tables.json", [path], spec_key=Key("config", "code"), key="key")
    return folder


@pytest.mark.slow
def test_chance_is_not_reported_and_a_planted_change_is(tmp_path):
    false = detected = 0
    for seed in range(40):
        before = run(tmp_path / f"{seed}a", 2 * seed)
        false += diff(before, run(tmp_path / f"{seed}b", 2 * seed + 1)).table["moved"].any()
        table = diff(before, run(tmp_path / f"{seed}c", 1000 + seed, planted=0.3)).table
        detected += table.loc[0, "method"] == "method07" and table.loc[0, "moved"]
    # Among 40 pairs of equal runs, at most 5 % on average may have a score that is reported as changed.
    assert false <= 6
    assert detected == 40


def test_scores_of_only_one_run_are_reported(tmp_path):
    before, after = run(tmp_path / "a", 1), run(tmp_path / "b", 1, methods=METHODS[:-1])
    text = str(diff(before, after))
    assert text.startswith("Of 19 scores in both runs, 0 changed by more than their intervals.")
    assert "1 scores are only in the first run, including all of method19." in text


def test_the_set_of_the_best_is_compared(tmp_path):
    text = str(diff(run(tmp_path / "a", 1), run(tmp_path / "b", 2, planted=1.0)))
    (line,) = (
        line for line in text.splitlines() if line.startswith("The set of the best on tiny / net / finetuned, idsds")
    )
    assert "method07 entered" in line
    assert "method19" in line.partition("entered")[2]
    assert line.endswith("left.")


def test_differences_are_written_as_tables_and_pages(tmp_path, capsys):
    before, after = run(tmp_path / "a", 1), run(tmp_path / "b", 2, planted=1.0)
    for name in ("moved.csv", "moved.html"):
        assert main(["diff", str(before), str(after), "--out", str(tmp_path / name)]) == 0
    assert "method07" in capsys.readouterr().out
    assert pd.read_csv(tmp_path / "moved.csv")["moved"].sum() >= 1
    page = (tmp_path / "moved.html").read_text()
    assert '<th scope="row">method07</th>' in page
    assert main(["diff", str(before), str(after), "--out", str(tmp_path / "moved.txt")]) == 1
    assert ".csv or .html" in capsys.readouterr().err


@pytest.mark.parametrize("bad", ["nothing in common", "no column", "no table"])
def test_runs_that_cannot_be_compared_are_refused(tmp_path, bad):
    before, after = run(tmp_path / "a", 1), run(tmp_path / "b", 2)
    path = after / "idsds_table.csv"
    table = pd.read_csv(path)
    if bad == "nothing in common":
        write_with_manifest(table.assign(model="other"), after)
    elif bad == "no column":
        write_with_manifest(table.drop(columns="ci_low"), after)
    else:
        path.unlink()
    with pytest.raises(HeatproofError, match=r"no score in common|no column 'ci_low'|has neither"):
        diff(before, after)
