"""Metrics that are scored on different numbers of images are compared on the images that they share."""

import numpy as np
import pandas as pd

from heatproof.claims.evidence import Case, Evidence, Model, Resampling
from heatproof.core.methods import Method
from heatproof.metrics.bootstrap import bootstrap_means
from heatproof.report.tables.protocol import check_tables

METHODS = [f"method_{number}" for number in range(6)]
NETWORK = {"dataset": "digits", "model": "net", "weights": "pretrained"}


def scores_of(metric, values):
    """Return values (methods, images) as a tidy table of scores."""
    rows = [
        {"method": method, "image": f"image-{number}", "score": score, "metric": metric}
        for method, row in zip(METHODS, values, strict=True)
        for number, score in enumerate(row)
    ]
    return pd.DataFrame(rows).assign(**NETWORK)


def noise(images):
    return np.random.default_rng(0).normal(size=(len(METHODS), images))


def test_levels_are_compared_on_the_images_of_the_fewest():
    long, short = noise(40), noise(40)[:, :10]
    comparison = {
        "factor": "images",
        "setting": "all",
        "reference": "long",
        "levels": [(name, "pretrained", name, "raw") for name in ("long", "short")],
        "networks": [("digits", "net")],
    }
    methods, pairs = check_tables(
        pd.concat([scores_of("long", long), scores_of("short", short)]),
        [comparison],
        directions={"long": True, "short": True},
        images={"long": 40, "short": 10},
        transforms={},
        repetitions=50,
    )
    # On the shared images both metrics have the same scores.
    assert pairs["spearman"].tolist() == [1.0]
    assert set(methods["n_images"]) == {10}


def test_resampled_images_are_the_same_for_metrics_of_more_and_fewer_images():
    values = noise(40)
    values[:, 10:] = values[:, :1]
    table = pd.concat([scores_of("long", values), scores_of("short", values[:, :10])])
    cases = [Case(**NETWORK, metric=name, kind=name, options={}, higher_is_better=True) for name in ("long", "short")]
    methods = [Method(name) for name in METHODS]
    models = {"net": Model("net", "net", None, None, False, False)}
    evidence = Evidence(table, cases, methods, models, draws=Resampling(0, 50))
    defined = np.where(np.arange(40) < 10, values, np.nan)
    # Another draw would differ in the first digits; a sum over another number of methods differs in the last.
    np.testing.assert_allclose(evidence.means[1:, 1], bootstrap_means(defined, 0, 50).T, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(evidence.means[0, 1], values[:, :10].mean(1))
