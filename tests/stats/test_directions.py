"""Whether higher is better, by the name of a metric in tables."""

import pytest

from heatproof.stats.table import registered_direction


@pytest.mark.parametrize(
    ("metric", "direction"),
    [
        ("rise_deletion", False),
        ("rise_insertion", True),
        ("sensitivity_max", False),
        ("idsds", True),
        ("idsds_g8_blur_probability", True),
        ("my_metric", None),
    ],
)
def test_directions_are_those_of_the_table_of_metrics(metric, direction):
    assert registered_direction(metric) is direction
