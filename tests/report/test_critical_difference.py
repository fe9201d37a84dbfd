"""The critical-difference diagram: positions of the methods, and bars between them."""

import numpy as np
import pandas as pd
import pytest

from heatproof.errors import HeatproofError
from heatproof.report.results import save
from heatproof.report.tables.reliability import draw_critical_difference


def table(metrics=("mas_insertion",)):
    rng = np.random.default_rng(0)
    # Two pairs of methods: similar within a pair, different between pairs.
    wide = pd.DataFrame(np.array([3.0, 3.0, 0.0, 0.0]) + rng.standard_normal((40, 4)), columns=["a", "b", "c", "d"])
    long = wide.rename_axis("image").reset_index().melt("image", var_name="method", value_name="score")
    return pd.concat([long.assign(metric=metric, higher_is_better=True) for metric in metrics])


@pytest.mark.parametrize("posthoc", ["wilcoxon", "nemenyi"])
def test_bars_join_methods_without_a_difference(posthoc):
    axes = draw_critical_difference(table(), posthoc=posthoc).axes[0]
    bars = [line for line in axes.lines if len(set(line.get_ydata())) == 1 and line.get_ydata()[0] < 0]
    assert len(bars) == 2
    texts = [text.get_text().strip() for text in axes.texts]
    assert [any(text.split("  ")[end] == name for text in texts for end in (0, 1)) for name in "abcd"] == [True] * 4
    assert any(text.startswith("CD = ") for text in texts) == (posthoc == "nemenyi")
    left = max(line.get_xdata()[-1] for line in axes.lines if line.get_ydata()[-1] == 0)
    assert left > 2.5


def test_each_metric_has_a_panel_and_the_bytes_are_reproducible(tmp_path):
    for name in ("one.svg", "two.svg"):
        figure = draw_critical_difference(table(("sic", "aic")))
        assert [axes.get_title(loc="left") for axes in figure.axes] == ["sic", "aic"]
        save(figure, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_a_table_without_enough_scores_is_drawn_without_methods():
    with pytest.raises(HeatproofError, match="no scores to compare"):
        draw_critical_difference(table().iloc[:0])
