"""Distances from the best reference map, on planted scores."""

import numpy as np
import pandas as pd

from heatproof.report.results import CASE, above_reference


def table_of(rows):
    columns = [*CASE, "method", "score"]
    return pd.DataFrame([("digits", "vgg", *row) for row in rows], columns=columns)


def test_differences_from_references_equal_values_computed_by_hand_in_both_directions():
    table = table_of(
        [
            ("finetuned", "idsds", "gradient", 0.75),
            ("finetuned", "idsds", "random", 0.0),
            ("finetuned", "idsds", "edges", 0.25),
            ("finetuned", "deletion", "gradient", 0.5),
            ("finetuned", "deletion", "edges", 0.125),
            ("finetuned", "deletion", "random", 0.25),
        ]
    )
    above = above_reference(table, ["random", "edges"], {"idsds": True, "deletion": False})
    assert above.name == "above_reference"
    assert above.tolist() == [0.5, -0.25, 0, -0.375, 0, -0.125]


def test_each_case_is_compared_with_its_own_best_reference():
    table = table_of(
        [
            ("pretrained", "sds", "gradient", 0.5),
            ("finetuned", "idsds", "random", 0.25),
            ("pretrained", "sds", "random", 0.375),
            ("finetuned", "idsds", "gradient", 0.5),
        ]
    )
    above = above_reference(table, ["random"], {"idsds": True, "sds": True})
    assert above.tolist() == [0.125, 0, 0, 0.25]


def test_without_a_score_of_method_or_reference_the_difference_is_empty():
    nan = float("nan")
    table = table_of(
        [
            ("finetuned", "idsds", "gradient", nan),
            ("finetuned", "idsds", "random", 0.25),
            ("finetuned", "idsds", "edges", nan),
            ("pretrained", "sds", "gradient", 0.5),
            ("pretrained", "sds", "random", nan),
        ]
    )
    directions = {"idsds": True, "sds": True}
    above = above_reference(table, ["random", "edges"], directions)
    np.testing.assert_array_equal(above, [nan, 0, nan, nan, nan])
    assert above_reference(table, [], directions).isna().all()
