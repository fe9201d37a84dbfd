import io

import pandas as pd
import pytest
from PIL import Image

from heatproof.core.provenance import Key
from heatproof.core.specs import Runtime
from heatproof.errors import HeatproofError
from heatproof.report.figures.plots import draw, draw_variance, method_order
from heatproof.report.results import read_table
from heatproof.workflow.plan.folder import Folder
from heatproof.workflow.stages.figure import Figure, ReadTable

PLOT = Figure.paths(Folder(), figure="idsds")

COLUMNS = "dataset,model,weights,method,metric,score,ci_low,ci_high,n_images,n_undefined,rank,gap"
ROWS = """
tiny,net,pretrained,good,sds,0.9,0.8,0.95,10,0,1,
tiny,net,pretrained,poor,sds,0.1,0.0,0.2,10,0,2,
tiny,net,pretrained,random,sds,0.05,-0.1,0.1,10,0,3,
tiny,net,pretrained,cam,sds,,,,0,0,,no layer to read
tiny,net,pretrained,flat,sds,,,,0,10,,
tiny,net,finetuned,good,idsds,0.2,0.1,0.3,7,3,2,
tiny,net,finetuned,poor,idsds,0.6,0.5,0.7,10,0,1,
tiny,net,finetuned,random,idsds,0.99,0.98,1.0,10,0,3,
tiny,net,finetuned,cam,idsds,,,,0,0,,no layer to read
tiny,net,finetuned,flat,idsds,0.3,,,1,9,,
tiny,other,finetuned,good,idsds,0.4,0.3,0.5,10,0,1,
"""


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "results/idsds_table.csv"
    path.parent.mkdir()
    path.write_text(COLUMNS + ROWS)
    return path


def texts(figure):
    import matplotlib.text

    return [text.get_text() for text in figure.findobj(matplotlib.text.Text)]


def test_figure_shows_gaps_undefined_images_and_both_weights(table):
    figure = draw(read_table(table), ["random"])
    drawn = texts(figure)
    assert "not applicable: no layer to read" in drawn
    assert "pretrained: undefined on all 10 images" in drawn
    assert any(text == "0 and 3 undefined" for text in drawn)
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend[:2] == ["finetuned (IDSDS)", "pretrained (SDS)"]
    assert legend[2].startswith("reference maps")
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title(loc="left") for axes in panels] == ["net", "other"]


def test_methods_are_ordered_by_the_first_in_domain_case_with_references_last(table):
    rows = read_table(table)
    rows = rows.assign(family=rows["metric"])
    assert method_order(rows, ["random"]) == ["poor", "flat", "good", "cam", "random"]
    only_sds = rows[rows["family"] == "sds"]
    assert method_order(only_sds, ["random"])[:2] == ["good", "poor"]


def test_points_are_at_the_values_of_the_table(table):
    figure = draw(read_table(table), ["random"])
    net = figure.axes[0]
    labels = [label.get_text() for label in net.get_yticklabels()]
    points = {
        (labels[round(y)], round(float(x), 3))
        for line in net.lines
        if line.get_linestyle() == "None"
        for x, y in zip(*line.get_data(), strict=True)
    }
    expected = {("good", 0.9), ("poor", 0.1), ("random", 0.05), ("good", 0.2), ("poor", 0.6), ("random", 0.99)}
    assert points == expected | {("flat", 0.3)}


def test_other_grids_and_datasets_have_separate_panels(table):
    rows = read_table(table)
    blurred = rows[rows["model"] == "net"].assign(metric="sds_g8_blur")
    elsewhere = rows[rows["model"] == "other"].assign(dataset="large")
    figure = draw(pd.concat([rows, blurred, elsewhere], ignore_index=True), plain="grid 4, zeros")
    titles = [axes.get_title(loc="left") for axes in figure.axes if axes.get_visible()]
    assert titles == [
        "tiny · net · grid 4, zeros",
        "tiny · other · grid 4, zeros",
        "tiny · net · grid 8, blur",
        "large · other · grid 4, zeros",
    ]


def test_fifty_methods_get_fifty_rows(table):
    rows = read_table(table).iloc[:1]
    many = pd.concat([rows.assign(method=f"method_{n:02}", score=n / 50) for n in range(50)], ignore_index=True)
    figure = draw(many)
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == [f"method_{n:02}" for n in reversed(range(50))]
    assert figure.get_figheight() > 2 * draw(many.iloc[:20]).get_figheight() - 2


def test_stage_writes_the_same_bytes_again(table, tmp_path):
    spec = Figure(
        figure="idsds",
        module="heatproof.report.figures.scores",
        read=ReadTable("results/idsds_table.csv", Key("u", "u")),
        references=["random"],
        level=0.95,
        plain="grid 4, zeros",
        files=PLOT,
        manifest="results/figures/idsds.figure.json",
    )
    spec.run(Runtime())
    first = {end: (tmp_path / path).read_bytes() for end, path in PLOT.items()}
    spec.run(Runtime())
    assert {end: (tmp_path / path).read_bytes() for end, path in PLOT.items()} == first
    assert Image.open(io.BytesIO(first["png"])).size[0] > 1000
    assert b"<dc:date>" not in first["svg"]


def test_variance_components_are_shares_of_one():
    rows = [("idsds", "w", "network", 0.2), ("idsds", "w", "image", 0.3), ("idsds", "w", "residual", 0.5)]
    rows += [("sds", "w", "image", 1.0), ("sds", "w", "seed", float("nan"))]
    table = pd.DataFrame(rows, columns=["metric", "weights", "component", "share"])
    (axes,) = draw_variance(table).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["idsds · w", "sds · w"]
    ends = [bar.get_x() + bar.get_width() for bars in axes.containers for bar in bars]
    assert max(ends) == pytest.approx(1)
    assert [bars.get_label() for bars in axes.containers] == ["network", "image", "residual"]
    assert "two networks" in texts(draw_variance(table.tail(1)))[0]


def test_a_table_without_the_column_gap_is_read(tmp_path):
    path = tmp_path / "plain.csv"
    path.write_text("\n".join(line.rpartition(",")[0] for line in (COLUMNS + ROWS).splitlines()[:4]))
    assert read_table(path)["gap"].tolist() == ["", "", ""]
    assert len(draw(read_table(path)).axes) == 1


def test_a_table_without_scores_is_refused(table):
    with pytest.raises(HeatproofError, match="no IDSDS or SDS score"):
        draw(read_table(table).assign(metric="speed"))
