"""From a config to what every job is told: the one owner of names, paths, keys and specs. Importable without torch."""

from heatproof.plan.entries import ExplainerEntry, ModelEntry, Record
from heatproof.plan.whole import Plan, make_plan

__all__ = ["ExplainerEntry", "ModelEntry", "Plan", "Record", "make_plan"]
