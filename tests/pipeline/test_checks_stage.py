"""Protocol checks and montages from cached scores and maps."""

import pandas as pd
import pytest

from heatproof.plan import checks as plan_checks
from heatproof.plan.figures import shown_methods
from heatproof.ranking.flips import METHOD_COLUMNS, PAIR_COLUMNS
from heatproof.report.checks import WHERE, check_tables, checks
from heatproof.report.montage import montage

EXPLAINERS = [{"mine": {"explainer": "toy_plugin:gradient"}}, "saliency", "random", "edges"]


@pytest.fixture
def made(project):
    drops = {"grids": [2, 4], "outputs": ["logit", "probability"]}
    return project(explainers=EXPLAINERS, drops=drops).attribute().drop().score()


def test_the_stage_tells_what_the_score_tables_tell(made):
    missing = [path for path in plan_checks.check_inputs(made.plan) if not (made.folder / path).exists()]
    assert not missing
    made.inside(checks, plan_checks.checks_spec(made.plan))
    assert all((made.folder / file).stat().st_size for file in plan_checks.check_files(made.plan))
    methods = pd.read_csv(made.folder / plan_checks.METHODS)
    table = pd.read_csv(made.folder / "results/idsds_table.csv").set_index(["metric", "method"])
    rows = methods[(methods["factor"] == "grid") & (methods["level"] == "P = 4")]
    assert sorted(rows["method"]) == sorted(made.plan.methods)
    for row in rows.to_dict("records"):
        told = table.loc[("sds_g2_zeros", row["method"])]
        assert row["score"] == pytest.approx(told["score"], nan_ok=True)
        assert row["rank"] == told["rank"]
    absolute = methods[(methods["factor"] == "transform") & (methods["level"] == "abs")].set_index("method")["score"]
    assert list(absolute.index) == ["mine", "saliency", "random", "edges"]
    assert absolute["mine"] == pytest.approx(table.loc[("idsds", "mine_abs"), "score"])
    assert absolute["edges"] == pytest.approx(table.loc[("idsds", "edges"), "score"])
    summary = pd.read_csv(made.folder / plan_checks.SUMMARY)
    assert list(summary["factor"]) == ["grid", "output", "transform"]
    captions = pd.read_csv(made.folder / plan_checks.CAPTIONS)
    assert list(captions["factor"]) == ["grid", "output", "transform"]
    page = (made.folder / plan_checks.CHECKS_PAGE).read_text()
    assert page.count("data:image/png") == 3
    assert captions.loc[0, "shows"] in page


def test_nothing_varies_and_tables_have_their_heads(made):
    spec = {**plan_checks.checks_spec(made.plan), "comparisons": []}
    made.inside(checks, spec)
    assert list(pd.read_csv(made.folder / plan_checks.METHODS).columns) == [*WHERE, *METHOD_COLUMNS]
    assert list(pd.read_csv(made.folder / plan_checks.SUMMARY).columns) == [*WHERE, *PAIR_COLUMNS]
    assert pd.read_csv(made.folder / plan_checks.CAPTIONS).empty
    assert "every convention has one level" in (made.folder / plan_checks.CHECKS_PAGE).read_text()


def test_a_network_without_scores_is_left_out(made):
    spec = plan_checks.checks_spec(made.plan)
    methods, pairs = check_tables(pd.DataFrame(), spec)
    assert methods.empty
    assert pairs.empty


def test_montages(made):
    spec = plan_checks.montage_spec(made.plan, shown_methods(made.plan))
    assert not [path for path in plan_checks.montage_inputs(made.plan) if not (made.folder / path).exists()]
    made.inside(montage, spec)
    assert [(made.folder / file).stat().st_size > 0 for file in plan_checks.montage_files(made.plan)] == [True]
