"""What makes the pictures of all metrics: their paths, and what their job is told."""

from __future__ import annotations

from typing import Any

from heatproof.plan.paths import RESULTS, SCORES_TABLE
from heatproof.plan.scoring import Scoring
from heatproof.plan.specs import keyed

FOLDER = RESULTS + "/figures/overview"
FILES = {
    "places": f"{FOLDER}/places.csv",
    "places_png": f"{FOLDER}/places.png",
    "dual": f"{FOLDER}/soundness_completeness.csv",
    "dual_png": f"{FOLDER}/soundness_completeness.png",
    "captions": f"{FOLDER}/captions.csv",
}
OVERVIEW_FILES = list(FILES.values())
OVERVIEW_MANIFEST = FOLDER + "/manifest.json"


def overview_spec(plan: Scoring) -> dict[str, Any]:
    """Return what makes these pictures, from the table of all metrics."""
    kinds: dict[str, str] = {}
    for name, entry in plan.metrics.items():
        # The first of a kind, where one is scored with several options.
        kinds.setdefault(entry.metric.name, name)
    dual = {kind: kinds[kind] for kind in ("soundness", "completeness") if kind in kinds}
    spec = {
        "scores": SCORES_TABLE,
        "kinds": dual if len(dual) == 2 else {},
        "upstream": plan.scores_table_spec()["key"],
        **FILES,
        "manifest": OVERVIEW_MANIFEST,
    }
    return keyed(spec, ["heatproof.report.overview"])
