"""Figures of scores over accuracy and of methods under several protocols, from planted tables."""

import pandas as pd
import pytest

from heatproof.report.figures.networks import best_over_accuracy, draw_over_accuracy, draw_protocols, protocol_table
from heatproof.report.figures.registry import FIGURES
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.validate import make_plan


def scores(rows):
    return pd.DataFrame(rows, columns=["dataset", "model", "weights", "method", "metric", "score"])


# Networks with a higher accuracy have a lower best score.
NETWORKS = {f"net{number}": (0.5 + 0.1 * number, 0.9 - 0.1 * number) for number in range(5)}
TABLE = scores(
    [
        row
        for model, (_, best) in NETWORKS.items()
        for row in (
            ("d", model, "pretrained", "ig", "sds", 0.99),
            ("d", model, "finetuned", "ig", "idsds", best),
            ("d", model, "finetuned", "cam", "idsds", best + (0.05 if model == "net1" else -0.05)),
            ("d", model, "finetuned", "random", "idsds", 0.98),
            ("d", model, "finetuned", "ig", "idsds_g2_zeros", 1.0),
            ("d", model, "finetuned", "gap", "idsds", None),
        )
    ]
)
ACCURACY = pd.DataFrame(
    [("d", model, weights, top1) for model, (top1, _) in NETWORKS.items() for weights in ("pretrained", "finetuned")],
    columns=["dataset", "model", "weights", "top1_clean"],
)


def test_the_score_of_the_best_method_is_drawn_over_the_accuracy_of_each_network():
    best = best_over_accuracy(TABLE, ACCURACY, ["random"])
    assert best["method"].tolist() == ["ig", "cam", "ig", "ig", "ig"]
    assert best["score"].tolist() == pytest.approx([0.9, 0.85, 0.7, 0.6, 0.5])
    assert best["top1_clean"].tolist() == pytest.approx([top1 for top1, _ in NETWORKS.values()])
    (axes,) = draw_over_accuracy(TABLE, ACCURACY, ["random"]).axes
    assert axes.get_title(loc="left") == "d, 5 networks: ρ = −1.00"
    drawn = {tuple(line.get_xydata()[0]) for line in axes.lines}
    assert drawn == {(row.top1_clean * 100, row.score) for row in best.itertuples()}
    assert axes.get_ylabel() == "best IDSDS"


def test_sds_is_used_without_finetuned_weights():
    before = TABLE[TABLE["weights"] == "pretrained"]
    best = best_over_accuracy(before, ACCURACY, [])
    assert set(best["metric"]) == {"sds"}
    (axes,) = draw_over_accuracy(before, ACCURACY, []).axes
    assert axes.get_ylabel() == "best SDS"


@pytest.mark.parametrize(
    ("table", "accuracy"), [(TABLE.iloc[:0], ACCURACY), (TABLE, ACCURACY.drop(columns="top1_clean"))]
)
def test_the_figure_without_scores_or_classes_has_a_sentence(table, accuracy):
    figure = draw_over_accuracy(table, accuracy, [])
    assert not figure.axes
    assert [text.get_text() for text in figure.texts] == ["No network has both a score and a top-1 accuracy."]


METHODS = ("ig", "ixg", "cam", "rise")
PROTOCOLS = scores(
    [
        ("d", model, weights, method, metric, sign * number / 10 + 0.01 * (model == "b"))
        for model in ("a", "b")
        for number, method in enumerate(METHODS)
        for weights, metric, sign in (
            ("finetuned", "idsds", 1),
            ("pretrained", "sds", 1),
            ("pretrained", "ids", -1),
            ("finetuned", "ids", 7),
            ("finetuned", "sds", 9),
        )
    ]
    + [("d", "c", "finetuned", "ig", "idsds", 5.0), ("d", "a", "finetuned", "random", "idsds", 3.0)]
)


def test_protocols_compare_the_same_methods_on_the_same_networks():
    table = protocol_table(PROTOCOLS, ["random"])
    assert table.columns.tolist() == ["idsds", "sds", "ids"], "known parts are not among the metrics"
    assert table.index.tolist() == ["rise", "cam", "ixg", "ig"]
    assert table.loc["rise"].tolist() == pytest.approx([0.305, 0.305, -0.295]), "weights before, but for IDSDS"
    titles = [axes.get_title(loc="left") for axes in draw_protocols(PROTOCOLS, ["random"]).axes]
    assert titles == [
        "IDSDS, in domain",
        "SDS, out of domain\nρ with IDSDS: 1.00",
        "IDS, incremental\nρ with IDSDS: −1.00",
    ]


def test_the_figure_without_protocols_has_a_sentence():
    (axes,) = draw_protocols(PROTOCOLS[PROTOCOLS["weights"] == "other"], []).axes
    assert axes.get_title() == "no protocol was scored"


def test_a_figure_of_two_tables_waits_for_both():
    assert FIGURES["score_over_accuracy"].also_reads == ("accuracy",)
    job = Graph(make_plan({})).job("figure", {"figure": "score_over_accuracy"})
    assert {"results/idsds_table.csv", "results/accuracy.csv"} <= set(job.inputs)
    assert job.spec.further["accuracy"].table == "results/accuracy.csv"
