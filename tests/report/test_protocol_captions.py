"""Charts and captions of protocol checks agree with the table."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from heatproof.core.specs import Runtime
from heatproof.report.tables.protocol import MOST_COLOURS, caption, check_tables, draw_bumps
from heatproof.workflow.plan.comparisons import Compared
from heatproof.workflow.plan.folder import Folder
from heatproof.workflow.stages import _results
from heatproof.workflow.stages.checks import Checks

NAMES = [f"method_{number}" for number in range(12)]
LEVELS = [("logit", "pretrained", "sds", "raw"), ("probability", "pretrained", "sds_probability", "raw")]
SPEC = Checks(
    comparisons=[Compared("output", "pretrained", "logit", LEVELS, [("digits", "net")])],
    cases=[],
    directions={"sds": True, "sds_probability": True},
    images={"sds": 10, "sds_probability": 10},
    transforms={},
    bootstrap=50,
    level=0.95,
    least_coverage=0.5,
    upstream="u",
    templates="t",
)
FALLEN = [0, *range(2, 9), 1, *range(9, 12)]


@pytest.fixture
def compared():
    """Ranks in which the second method falls to place nine at the second level, and the others keep their order."""
    rows = []
    for metric, order in (("sds", range(12)), ("sds_probability", FALLEN)):
        values = np.empty(12)
        values[list(order)] = np.linspace(0.9, 0.1, 12)
        scores = values[:, None] + np.random.default_rng(0).normal(0, 0.01, (12, 10))
        for method, row in zip(NAMES, scores, strict=True):
            rows += [
                {"metric": metric, "method": method, "image": f"image-{number}", "score": score}
                for number, score in enumerate(row)
            ]
    table = pd.DataFrame(rows).assign(dataset="digits", model="net", weights="pretrained")
    return check_tables(
        table,
        [vars(comparison) for comparison in SPEC.comparisons],
        directions=SPEC.directions,
        images=SPEC.images,
        transforms={},
        repetitions=50,
    )


def test_a_caption_names_the_method_that_moves_farthest(compared):
    shows, conclusion = caption("output", *compared)
    assert "12 methods" in shows
    assert "10 images" in shows
    assert "method_1 moves farthest: it falls from rank 2 at the reference level to rank 9 at probability" in conclusion
    rho = compared[1].loc[0, "spearman"]
    assert rho == pytest.approx(1 - 6 * (49 + 7) / (12 * 143))
    assert f"lowest is {rho:.2f}" in conclusion
    assert "the same in 1 of 1 pairs" in conclusion


@pytest.mark.parametrize(
    ("same", "other", "text"),
    [(0.9, 0.8, "The ranking depends"), (0.9, 0.88, "hardly depends"), (0.3, 0.1, "These images do not decide")],
)
def test_a_caption_begins_with_the_agreement_between_halves_of_the_images(compared, same, other, text):
    methods, pairs = compared
    _, conclusion = caption("output", methods, pairs.assign(halves_same=same, halves_other=other))
    assert text in conclusion.split(".")[0]


def test_a_chart_has_every_method_and_colours_those_that_move(compared):
    figure = draw_bumps(compared[0], "output")
    (axes,) = figure.axes
    texts = [text.get_text() for text in axes.texts]
    assert "method_1  2" in texts
    assert "9  method_1" in texts
    assert len(texts) == 2 * len(NAMES)
    bold = {text.get_text() for text in axes.texts if text.get_weight() == "bold"}
    assert bold == {"method_1  2", "9  method_1"}
    assert len(axes.lines) == len(NAMES)


def test_a_method_without_a_rank_is_counted(compared):
    rows = compared[0].copy()
    rows.loc[rows["method"] == "method_3", "rank"] = np.nan
    (axes,) = draw_bumps(rows, "output").axes
    assert "1 without a rank" in axes.get_title()
    assert len(axes.lines) == len(NAMES) - 1


def test_colours_are_limited_to_a_distinguishable_number(compared):
    rows = compared[0].copy()
    reversed_ranks = rows["level"] == "probability"
    rows.loc[reversed_ranks, "rank"] = 13 - rows.loc[rows["level"] == "logit", "rank"].to_numpy()
    (axes,) = draw_bumps(rows, "output").axes
    assert sum(line.get_linewidth() > 1.5 for line in axes.lines) == MOST_COLOURS


def test_a_factor_without_scores_has_a_chart_and_a_caption(tmp_path, monkeypatch):
    """No explainer may be applicable to a network, and yet the workflow waits for every chart of the plan."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_results, "read_scores", lambda *arguments: ([], pd.DataFrame()))
    charts = {f"output.{ending}": f"results/checks/output.{ending}" for ending in ("png", "svg")}
    files = Checks.paths(Folder()) | charts
    replace(SPEC, files=files, manifest="results/checks/manifest.json").run(Runtime())
    assert {path.name for path in (tmp_path / "results/checks").iterdir()} >= {"output.png", "output.svg", "index.html"}
    assert "two levels" in pd.read_csv(files["captions"])["conclusion"][0]
