"""The table of costs and scores, and the Pareto front."""

import numpy as np
import pandas as pd

from heatproof.core.methods import MethodSpec
from heatproof.report.tables.costs import cost_table, draw_costs

CASE = {"dataset": "d", "model": "m", "weights": "w", "metric": "idsds"}
EXPLAINERS = [
    MethodSpec(name, kind, maps=((name, False),), uses_model=kind != "random")
    for name, kind in [
        ("saliency", "saliency"),
        ("ig", "integrated_gradients"),
        ("ig_4", "integrated_gradients"),
        ("rise", "rise"),
        ("random", "random"),
    ]
]


def table():
    spent = {"saliency": (1, 3.0), "ig": (16, 40.0), "ig_4": (4, 10.0), "rise": (50, 50.0), "random": (0, 1.0)}
    scores = {"saliency": 0.4, "ig": 0.6, "ig_4": 0.3, "rise": 0.5, "random": 0.9}
    rows = [
        {
            **CASE,
            "method": name,
            "score": score,
            "ci_low": score - 0.1,
            "ci_high": score + 0.1,
            "rank": 1,
            "passes": once,
        }
        for (name, score), (once, _) in zip(
            [*scores.items(), ("a_gap", np.nan)], [*spent.values(), (0, 0)], strict=True
        )
    ]
    methods = [
        {**CASE, "method": name, "images": 10, "seconds": seconds / 100, "drops_passes": 100, "drops_seconds": 0.1}
        for name, (_, seconds) in spent.items()
    ]
    return cost_table(pd.DataFrame(rows), pd.DataFrame(methods), EXPLAINERS).set_index("method")


def test_costs_are_measured_in_forward_passes_of_the_same_network():
    costs = table()
    assert costs["passes"].to_dict() == {"saliency": 1, "ig": 16, "ig_4": 4, "rise": 50}
    np.testing.assert_allclose(costs["cost"], [3, 40, 10, 50])
    np.testing.assert_allclose(costs["seconds"], [0.003, 0.04, 0.01, 0.05])


def test_the_front_has_the_methods_with_no_better_cheaper_method():
    assert table()["on_front"].to_dict() == {"saliency": True, "ig": True, "ig_4": False, "rise": False}


def test_the_figure_joins_methods_of_one_series_and_draws_the_front():
    costs = table().reset_index()
    (axes,) = draw_costs(costs.assign(on_front=costs["on_front"].astype(str))).axes
    drawn = {tuple(np.round(line.get_xdata(), 6)) for line in axes.lines}
    assert (10.0, 40.0) in drawn
    assert (3.0, 40.0) in drawn
    assert {text.get_text() for text in axes.texts} >= {"saliency", "ig"}
