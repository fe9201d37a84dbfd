"""The table of all metrics: every method on every model, with intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from heatproof.metrics.scored import read_scores
from heatproof.report.output import publish
from heatproof.report.results import above_reference
from heatproof.report.tables import read_gaps, score_table


def all_scores(spec: Mapping[str, Any], machine: Mapping[str, Any]) -> None:
    """Write scores.csv: every metric of the config.

    It has the columns of idsds_table.csv, ``higher_is_better``, and ``above_reference`` (see `above_reference`).
    """
    _, files, scores = read_scores(spec)
    gaps = pd.DataFrame([row for path in files for row in read_gaps(path)])
    directions = spec["directions"]
    table = score_table(scores, gaps, spec["seed"], spec["bootstrap"], spec["level"], directions)
    place = list(table.columns).index("rank") + 1
    table.insert(place, "higher_is_better", [directions[name] for name in table["metric"]])
    table.insert(place + 1, "above_reference", above_reference(table, spec["references"], directions))
    publish(spec, {spec["output"]: table}, files)
