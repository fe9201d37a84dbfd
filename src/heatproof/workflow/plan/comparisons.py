"""Comparisons of the protocol checks: which conventions a config varies, and which settings stay the same meanwhile."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from heatproof.core.grids import Grid, grid_sort_key, patch_count
from heatproof.core.specs import PRETRAINED
from heatproof.workflow.plan.paths import Case

if TYPE_CHECKING:
    from heatproof.workflow.plan.metrics import MetricChoice
    from heatproof.workflow.plan.plan import Plan

# The setting of comparisons on patch drops, for factors that do not belong to the drops.
SINGLE_DELETION = "single deletion"
# Largest number of characters of a level that is labelled by its value in a chart.
LONGEST = 16

# Weights of a saved epoch have such a name.
EPOCH = re.compile(r"_epoch(\d+)$")

# Level, weights, metric, transform.
Level = tuple[str, str, str, str]
# Factor, setting, reference level, levels.
Comparison = tuple[str, str, str, list[Level]]


@dataclass(frozen=True)
class Compared:
    """A factor that varies while a setting stays the same.

    Attributes
    ----------
    reference
        The level that the other levels are compared with.
    levels
        Level, weights, metric and transform of each.
    networks
        Dataset and model of each network on which the levels are compared.
    """

    factor: str
    setting: str
    reference: str
    levels: list[Level]
    networks: list[tuple[str, str]]


def comparisons(plan: Plan, model: str) -> Iterator[Comparison]:
    """Yield the comparisons on one model: a factor, the setting that stays the same, its reference level, its levels.

    Each has at least two levels. The default setting of a factor comes first, because the first one is drawn.
    """
    conventions = Conventions(plan, model)
    scored, settings = conventions.metrics, (SINGLE_DELETION, *plan.metrics)
    yield from conventions.drops()
    for factor, named in {"seed": conventions.seeds(), "weights": conventions.kinds_of_weights()}.items():
        for setting in settings:
            levels = [
                (level, w, metric, "raw") for level, w in named.items() if (metric := conventions.metric(w, setting))
            ]
            yield from _if_varied(factor, setting, levels)
    if any(len(entry.methods) > len(entry.maps) for entry in plan.explainers.values()):
        for setting in settings:
            if metric := conventions.metric(conventions.default_weights, setting):
                yield (
                    "transform",
                    setting,
                    "raw",
                    [(level, conventions.default_weights, metric, level) for level in ("raw", "abs")],
                )
    for name in scored:
        other = re.sub(r"(?:^|(?<=_))morf(?=_|$)", "lerf", name)
        if other != name and other in scored:
            setting = name.replace("_morf", "")
            yield (
                "order",
                setting,
                "MoRF",
                [
                    ("MoRF", conventions.default_weights, name, "raw"),
                    ("LeRF", conventions.default_weights, other, "raw"),
                ],
            )
    yield from conventions.options()


@dataclass(frozen=True, eq=False)
class Conventions:
    """The conventions under which one model is scored.

    The default conventions are those of the finetuning in the config; others are compared with them.
    """

    plan: Plan
    model: str

    @cached_property
    def finetunings(self) -> dict[str, dict[str, Any]]:
        """Name of finetuned weights to the settings of their finetuning."""
        settings_by_weights = {name: self.plan.finetuning(self.model, name) for name in self.plan.weights}
        seed = {"seed": self.plan.config["seed"]}
        return {name: {**seed, **settings} for name, settings in settings_by_weights.items() if settings is not None}

    @cached_property
    def default_weights(self) -> str:
        """The default weights: finetuned with the settings of `finetuning` in the config, if these are scored."""
        # The number of saved epochs does not change a finetuning.
        settings = {key: value for key, value in self.plan.models[self.model].finetuning.items() if key != "keep"}
        wanted = {"seed": self.plan.config["seed"], **settings}
        default_weights = [name for name, settings in self.finetunings.items() if settings == wanted]
        # Prefer the final weights to those of a saved epoch.
        return min(default_weights or self.finetunings or [PRETRAINED], key=lambda name: bool(EPOCH.search(name)))

    @cached_property
    def metrics(self) -> dict[str, MetricChoice]:
        """The metrics of the config with which the default weights are scored."""
        return {name: self.plan.metrics[name] for name in self.plan.metrics_on(self.default_weights, self.model)}

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Settings of the finetuning of the default weights; only the seed if they were not finetuned."""
        return self.finetunings.get(self.default_weights, {"seed": self.plan.config["seed"]})

    @cached_property
    def default_combination(self) -> tuple[Grid, str, str]:
        """The default grid, baseline and output."""
        drops, (grid, baseline) = self.plan.config["drops"], self.plan.reference
        grid, baseline = self.settings.get("grid", grid), self.settings.get("baseline", baseline)
        grid = grid if grid in drops["grids"] else drops["grids"][0]
        baseline = baseline if baseline in drops["baselines"] else drops["baselines"][0]
        return grid, baseline, drops["outputs"][0]

    def single_deletion(self, weights: str, combination: tuple[Grid, str, str]) -> str | None:
        """Return the single-deletion metric of a grid, baseline and output; None if these weights have none."""
        combinations = self.plan.metrics_of(weights, self.model) if weights in self.plan.weights else {}
        return next((name for name, combined in combinations.items() if combined == combination), None)

    def metric(self, weights: str, setting: str) -> str | None:
        """Return the metric of a setting on certain weights; None if they are not scored with it."""
        if setting == SINGLE_DELETION:
            return self.single_deletion(weights, self.default_combination)
        metrics = self.plan.metrics_on(weights, self.model) if weights in self.plan.weights else []
        return setting if setting in metrics else None

    def drops(self) -> Iterator[Comparison]:
        """Yield comparisons of grids, baselines and outputs of patch drops, first on weights in-domain for each."""
        drops, default_combination = self.plan.config["drops"], self.default_combination
        baselines = sorted(drops["baselines"], key=lambda value: value != default_combination[1])
        for position, factor, values in (
            (0, "grid", sorted(drops["grids"], key=grid_sort_key)),
            (1, "baseline", baselines),
        ):
            settings: dict[str, list[Level]] = {}
            for value in values:
                weights_of_setting = {
                    "in-domain": self.weights_finetuned_for(factor, value),
                    PRETRAINED: PRETRAINED,
                    self.default_weights: self.default_weights,
                }
                for setting, weights in weights_of_setting.items():
                    if metric := self.single_deletion(
                        weights, (*default_combination[:position], value, *default_combination[position + 1 :])
                    ):
                        settings.setdefault(setting, []).append((_level_name(factor, value), weights, metric, "raw"))
            if self.finetunings and len(settings.get("in-domain", ())) < 2:
                # Without in-domain weights, the default weights come first.
                settings = {
                    name: settings[name] for name in sorted(settings, key=lambda name: name != self.default_weights)
                }
            for setting, levels in settings.items():
                yield from _if_varied(factor, setting, levels, _level_name(factor, default_combination[position]))
        for weights in dict.fromkeys([self.default_weights, PRETRAINED]):
            scored = {
                output: self.single_deletion(weights, (*default_combination[:2], output)) for output in drops["outputs"]
            }
            outputs = [(output, weights, metric, "raw") for output, metric in scored.items() if metric]
            yield from _if_varied("output", weights, outputs)

    def weights_finetuned_for(self, factor: str, value: Any) -> str:
        """Return the weights finetuned for a grid or baseline, and otherwise as the default weights; "" if none."""
        weights = [name for name, settings in self.finetunings.items() if settings == {**self.settings, factor: value}]
        return min(weights, key=lambda name: name != self.default_weights, default="")

    def seeds(self) -> dict[str, str]:
        """Return the weights that differ from the default ones only in the seed of their finetuning, by seed."""
        weights_by_seed = {f"seed {self.settings['seed']}": self.default_weights}
        for name, settings in self.finetunings.items():
            if {**settings, "seed": self.settings["seed"]} == self.settings:
                weights_by_seed.setdefault(f"seed {settings['seed']}", name)
        return weights_by_seed

    def kinds_of_weights(self) -> dict[str, str]:
        """Return the weights before, during and after the default finetuning: the same grid, baseline and seed."""

        def order(name: str) -> tuple[bool, float]:
            epoch = EPOCH.search(name)
            return name != PRETRAINED, float(epoch[1]) if epoch else float("inf")

        def deletion(settings: dict[str, Any]) -> list[Any]:
            return [settings.get(key) for key in ("grid", "baseline", "seed")]

        default_deletion = deletion(self.settings)
        same_deletion = [
            name
            for name in self.plan.weights
            if deletion(self.finetunings.get(name, self.settings)) == default_deletion
        ]
        return {name: name for name in sorted(same_deletion, key=order)}

    def options(self) -> Iterator[Comparison]:
        """Yield comparisons of metrics of one kind that differ in one option only."""
        groups: dict[tuple[str, str, str], list[Level]] = {}
        for name, entry in self.metrics.items():
            for option, value in entry.options.items():
                rest = json.dumps({key: other for key, other in entry.options.items() if key != option}, default=str)
                label = _level_name(option, value) if option != "grid" or value else "plain"
                level = label if len(label) <= LONGEST else name
                groups.setdefault((option, entry.metric.name, rest), []).append(
                    (level, self.default_weights, name, "raw")
                )
        for (option, kind, _), levels in groups.items():
            # Identical entries have the same level twice.
            yield from _if_varied(option, kind, list({level[0]: level for level in reversed(levels)}.values())[::-1])


def _if_varied(factor: str, setting: str, levels: list[Level], reference: str | None = None) -> Iterator[Comparison]:
    names = [level for level, *_ in levels]
    if len(names) > 1:
        yield factor, setting, reference if reference in names else names[0], levels


def _level_name(factor: str, value: Any) -> str:
    if factor != "grid":
        return str(value)
    # Grids with the same number of patches can differ in rows and columns.
    return f"P = {patch_count(value)}" + ("" if isinstance(value, int) else f" ({value})")


def all_comparisons(plan: Plan) -> list[Compared]:
    """Return the comparisons on all networks; a comparison that several networks share is listed once."""
    compared: dict[tuple[Any, ...], Compared] = {}
    for dataset, model in plan.pairs():
        for factor, setting, named_reference, all_levels in comparisons(plan, model):
            # A metric that is not applicable has no scores to compare.
            levels = [level for level in all_levels if not plan.unsupported_reason(dataset, level[2])]
            if len(levels) < 2:
                continue
            reference = named_reference if named_reference in [level[0] for level in levels] else levels[0][0]
            same = (factor, setting, reference, *levels)
            compared.setdefault(same, Compared(factor, setting, reference, levels, [])).networks.append(
                (dataset, model)
            )
    return list(compared.values())


def factors(plan: Plan) -> list[str]:
    """Return the factors that the config varies, in the order of the tables."""
    return list(dict.fromkeys(entry.factor for entry in all_comparisons(plan)))


def compared_cases(plan: Plan) -> list[Case]:
    """Return the test cases whose scores are compared."""
    cases = [
        plan.case(*network, weights, metric)
        for entry in all_comparisons(plan)
        for network in entry.networks
        for _, weights, metric, _ in entry.levels
    ]
    return list(dict.fromkeys(cases))


def default_cases(plan: Plan) -> list[Case]:
    """Return the test case of single deletion on the default weights of every dataset and model."""
    conventions_by_pair = [(pair, Conventions(plan, pair[1])) for pair in plan.pairs()]
    return [
        plan.case(
            *pair, conventions.default_weights, conventions.metric(conventions.default_weights, SINGLE_DELETION) or ""
        )
        for pair, conventions in conventions_by_pair
    ]
