"""What makes the tables of how far the ranking can be believed: their paths, and what their job is told."""

from __future__ import annotations

from typing import Any

from heatproof.metrics.single_deletion import base_name
from heatproof.plan.paths import RESULTS
from heatproof.plan.scoring import Scoring
from heatproof.plan.specs import keyed

FOLDER = RESULTS + "/ranking"
TABLES = {
    name: f"{FOLDER}/{name}.csv"
    for name in (
        "ranking",
        "consistency",
        "consistency_groups",
        "stability_methods",
        "stability_cases",
        "families",
        "reliability",
        "significance",
        "truth",
    )
}
CONSISTENCY_PNG = FOLDER + "/consistency.png"
DIFFERENCE_PNG = FOLDER + "/critical_difference.png"
TRUTH_PNG = FOLDER + "/truth.png"
BELIEF_MANIFEST = FOLDER + "/manifest.json"
BELIEF_FILES = [*TABLES.values(), CONSISTENCY_PNG, DIFFERENCE_PNG, TRUTH_PNG]


def belief_spec(plan: Scoring) -> dict[str, Any]:
    """Return what makes these tables, from the scores of all metrics."""
    scores = plan.scores_table_spec()
    spec = {
        **{key: scores[key] for key in ("scores", "cases", "directions", "references", "seed", "bootstrap", "level")},
        "tested": sorted({case[3] for case in plan.test_cases() if base_name(case[3]) == "idsds"})
        or sorted({case[3] for case in plan.test_cases()}),
        # Their ranking of methods is the true one, where the dataset's parts can be removed.
        "truths": [name for name, entry in plan.metrics.items() if entry.metric.name == "part_deletion"],
        "upstream": scores["key"],
        "outputs": TABLES,
        "consistency_png": CONSISTENCY_PNG,
        "difference_png": DIFFERENCE_PNG,
        "truth_png": TRUTH_PNG,
        "manifest": BELIEF_MANIFEST,
    }
    return keyed(spec, ["heatproof.report.believed"])
