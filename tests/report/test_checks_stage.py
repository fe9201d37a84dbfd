"""Protocol checks and montages from cached scores and maps."""

from dataclasses import replace

import pandas as pd
import pytest

from heatproof.report.tables.protocol import WHERE, check_tables
from heatproof.stats.flips import METHOD_COLUMNS, PAIR_COLUMNS

EXPLAINERS = [{"mine": {"explainer": "toy_plugin:gradient"}}, "saliency", "random", "edges"]


@pytest.fixture
def scored_project(project):
    drops = {"grids": [2, 4], "outputs": ["logit", "probability"]}
    return project(explainers=EXPLAINERS, drops=drops).attribute().drop().score()


def test_the_tables_of_checks_agree_with_the_score_tables(scored_project):
    missing = [path for path in scored_project.job("checks").inputs if not (scored_project.folder / path).exists()]
    assert not missing
    scored_project.make("checks")
    files = scored_project.job("checks").spec.files
    assert all((scored_project.folder / file).stat().st_size for file in scored_project.job("checks").outputs)
    methods = pd.read_csv(scored_project.folder / files["methods"])
    table = pd.read_csv(scored_project.folder / "results/idsds_table.csv").set_index(["metric", "method"])
    rows = methods[(methods["factor"] == "grid") & (methods["level"] == "P = 4")]
    assert sorted(rows["method"]) == sorted(scored_project.plan.methods)
    for row in rows.to_dict("records"):
        spec = table.loc[("sds_g2_mean", row["method"])]
        assert row["score"] == pytest.approx(spec["score"], nan_ok=True)
        assert row["rank"] == spec["rank"]
    absolute = methods[(methods["factor"] == "transform") & (methods["level"] == "abs")].set_index("method")["score"]
    assert list(absolute.index) == ["mine", "saliency", "random", "edges"]
    assert absolute["mine"] == pytest.approx(table.loc[("idsds", "mine_abs"), "score"])
    assert absolute["edges"] == pytest.approx(table.loc[("idsds", "edges"), "score"])
    summary = pd.read_csv(scored_project.folder / files["summary"])
    assert list(summary["factor"]) == ["grid", "output", "transform"]
    captions = pd.read_csv(scored_project.folder / files["captions"])
    assert list(captions["factor"]) == ["grid", "output", "transform"]
    page = (scored_project.folder / files["page"]).read_text()
    assert page.count("data:image/png") == 3
    assert captions.loc[0, "shows"] in page


def test_a_config_without_variation_leads_to_tables_without_rows(scored_project):
    spec = scored_project.job("checks").spec
    files = spec.files
    scored_project.make(replace(spec, comparisons=[]))
    assert list(pd.read_csv(scored_project.folder / files["methods"]).columns) == [*WHERE, *METHOD_COLUMNS]
    assert list(pd.read_csv(scored_project.folder / files["summary"]).columns) == [*WHERE, *PAIR_COLUMNS]
    assert pd.read_csv(scored_project.folder / files["captions"]).empty
    assert "This config varies no convention" in (scored_project.folder / files["page"]).read_text()


def test_a_network_without_scores_is_left_out(scored_project):
    comparisons = [vars(comparison) for comparison in scored_project.job("checks").spec.comparisons]
    methods, pairs = check_tables(pd.DataFrame(), comparisons, directions={}, images={}, transforms={})
    assert methods.empty
    assert pairs.empty


def test_the_montage_stage_writes_its_images(scored_project):
    job = scored_project.job("montage")
    assert not [path for path in job.inputs if not (scored_project.folder / path).exists()]
    scored_project.make("montage")
    images = [file for file in job.outputs if file.endswith(".png")]
    assert [(scored_project.folder / file).stat().st_size > 0 for file in images] == [True]
