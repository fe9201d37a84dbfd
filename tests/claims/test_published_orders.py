"""Orders of methods in a run compared with the published ones."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import kendalltau

from heatproof.claims.evidence import Case, Evidence, Model, Resampling
from heatproof.claims.published_numbers import published_evidence
from heatproof.claims.published_orders import kendall_rows, published_orders
from heatproof.report.figures.networks import draw_published


def run_like(factor: float, network: str = "resnet18", images: int = 24) -> Evidence:
    """Return a run whose methods have the scores of a published network, times a factor, with noise between images."""
    published = published_evidence("reproduction")
    at = next(i for i, case in enumerate(published.cases) if case.model == network and case.kind == "idsds")
    methods = [
        method for column, method in enumerate(published.methods) if not np.isnan(published.means[0, at, column])
    ]
    scores = [published.means[0, at, published.methods.index(method)] for method in methods]
    noise = np.random.default_rng(0).normal(0, 0.1, (images, len(methods)))
    rows = [
        {"method": method.name, "image": str(i), "score": factor * score + noise[i, column]}
        for i in range(images)
        for column, (method, score) in enumerate(zip(methods, scores, strict=True))
    ]
    case = Case("mine", "net", "finetuned", "idsds", "idsds", {}, True, grid=4, baseline="mean")
    model = Model("net", "resnet", 18, 1.0, True, True)
    scored = pd.DataFrame(rows).assign(dataset="mine", model="net", weights="finetuned", metric="idsds")
    return Evidence(scored, [case], methods, {"net": model}, draws=Resampling(0, 200))


def test_an_order_like_the_published_one_agrees_and_its_reverse_does_not():
    like, _ = published_orders(run_like(1.0))
    unlike, _ = published_orders(run_like(-1.0))
    assert list(like["published"]) == ["imagenet", "cifar100"]
    assert list(like["networks"]) == [13, 8]
    for name in ("spearman", "kendall"):
        assert (like[name] > 0.4).all()
        assert (unlike[name] < -0.4).all()
        assert (like[f"{name}_low"] < like[name]).all()
        assert (like[name] < like[f"{name}_high"]).all()
    # The similarity of two published networks does not depend on the run.
    pd.testing.assert_series_equal(like["spearman_among"], unlike["spearman_among"])


def test_ranks_of_methods_and_their_differences():
    evidence = run_like(1.0)
    orders, methods = published_orders(evidence)
    ours = methods[methods["published"] == "imagenet"].set_index("method")
    assert len(ours) == orders.loc[0, "methods"]
    assert sorted(ours["rank"]) == list(range(1, len(ours) + 1))
    best = evidence.methods[int(np.nanargmax(evidence.means[0, 0]))].name
    assert ours.loc[best, "rank"] == 1
    assert ours["difference"].tolist() == pytest.approx((ours["published_rank"] - ours["rank"]).tolist())
    figure = draw_published(methods, orders)
    assert len(figure.axes) == 2


def test_few_methods_are_not_compared():
    evidence = run_like(1.0)
    evidence.methods = evidence.methods[:4]
    evidence.means = evidence.means[:, :, :4]
    orders, methods = published_orders(evidence)
    assert orders.empty
    assert not draw_published(methods, orders).axes


def test_kendall_is_that_of_scipy():
    generator = np.random.default_rng(1)
    a, b = generator.integers(0, 6, (2, 5, 12)).astype(float)
    expected = [kendalltau(ranks, other_ranks).statistic for ranks, other_ranks in zip(a, b, strict=True)]
    assert kendall_rows(a, b) == pytest.approx(expected)
    assert np.isnan(kendall_rows(np.ones((1, 4)), b[:1, :4])).all()
