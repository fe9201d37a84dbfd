"""What the protocol checks compare: which conventions a config varies, and what else stays the same while one does."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from heatproof.plan.case import Case
from heatproof.plan.paths import PRETRAINED
from heatproof.plan.specs import Plan
from heatproof.provenance import digest

# The patch drops, as the setting of a factor that is no matter of theirs.
SINGLE_DELETION = "single deletion"
# What is called by its value in a chart, unless that is longer.
LONGEST = 16

# Checkpoints of one training are weights by such a name.
EPOCH = re.compile(r"_epoch(\d+)$")

# Level, weights, metric, transform.
Level = tuple[str, str, str, str]
# Factor, setting, reference level, levels.
Comparison = tuple[str, str, str, list[Level]]


def comparisons(plan: Plan, model: str) -> Iterator[Comparison]:
    """Yield what is compared on one model: a factor, what else holds, its reference level, and its levels.

    Two levels at least. The settings of one factor come with the plainest first, which is the one that is drawn.
    """
    yield from _of_drops(plan, model)
    weights = plain_weights(plan, model)
    home = _home(plan, model)
    alone = {"seed": _seeds(plan, model), "weights": _kinds_of_weights(plan, model)}
    for factor, named in alone.items():
        found = [
            (level, of, metric, "raw") for level, of in named.items() if (metric := _metric(plan, model, of, home))
        ]
        yield from _if_varied(factor, SINGLE_DELETION, found)
        for name in plan.metrics:
            yield from _if_varied(factor, name, [(level, of, name, "raw") for level, of in named.items()])
    if any(len(entry.methods) > len(entry.maps) for entry in plan.explainers.values()):
        known = _metric(plan, model, weights, home)
        for setting, metric in [(SINGLE_DELETION, known), *((name, name) for name in plan.metrics)]:
            if metric:
                yield "transform", setting, "raw", [(level, weights, metric, level) for level in ("raw", "abs")]
    for name in plan.metrics:
        other = re.sub(r"(?:^|(?<=_))morf(?=_|$)", "lerf", name)
        if other != name and other in plan.metrics:
            setting = name.replace("_morf", "")
            yield "order", setting, "MoRF", [("MoRF", weights, name, "raw"), ("LeRF", weights, other, "raw")]
    yield from _of_options(plan, weights)


def _of_drops(plan: Plan, model: str) -> Iterator[Comparison]:
    """Yield grids, baselines and outputs of the patch drops, first on weights that are in-domain for each."""
    home, plain = _home(plan, model), plain_weights(plan, model)
    drops = plan.config["drops"]
    for place, factor, values in ((0, "grid", drops["grids"]), (1, "baseline", drops["baselines"])):
        values = sorted(values) if factor == "grid" else sorted(values, key=lambda value: value != home[1])
        settings: dict[str, list[Level]] = {}
        for value in values:
            combination = (*home[:place], value, *home[place + 1 :])
            level = _told(factor, value)
            whose = {"in-domain": _tuned_for(plan, model, factor, value), PRETRAINED: PRETRAINED, plain: plain}
            for setting, weights in whose.items():
                metric = _metric(plan, model, weights, combination) if weights in plan.weights else None
                if weights and metric:
                    settings.setdefault(setting, []).append((level, weights, metric, "raw"))
        reference = _told(factor, home[place])
        if plain != PRETRAINED and len(settings.get("in-domain", ())) < 2:
            # Then the weights as they are come first.
            settings = {name: settings[name] for name in sorted(settings, key=lambda name: name != plain)}
        for setting, levels in settings.items():
            yield from _if_varied(factor, setting, levels, reference)
    for weights in dict.fromkeys([plain, PRETRAINED]):
        if weights in plan.weights:
            found = [
                (output, weights, metric, "raw")
                for output in drops["outputs"]
                if (metric := _metric(plan, model, weights, (*home[:2], output)))
            ]
            yield from _if_varied("output", weights, found)


def _if_varied(factor: str, setting: str, levels: list[Level], reference: str | None = None) -> Iterator[Comparison]:
    names = [level for level, *_ in levels]
    if len(names) > 1:
        yield factor, setting, reference if reference in names else names[0], levels


def _told(factor: str, value: Any) -> str:
    return f"P = {value**2}" if factor == "grid" else str(value)


def plain_weights(plan: Plan, model: str) -> str:
    """Return the weights that others are held against: finetuned as `finetuning` says, where they are scored."""
    tuned = [name for name in plan.weights if name != PRETRAINED]
    # How many epochs are kept is no matter of how it is done.
    said = {key: value for key, value in plan.models[model].finetuning.items() if key != "keep"}
    wanted = {"seed": plan.config["seed"], **said}
    plain = [name for name in tuned if _settings(plan, model, name) == wanted]
    # Not a checkpoint on the way there.
    return min(plain or tuned or [PRETRAINED], key=lambda name: bool(EPOCH.search(name)))


def _home(plan: Plan, model: str) -> tuple[int, str, str]:
    """Return the grid, baseline and output that stay while others vary."""
    drops = plan.config["drops"]
    tuned = plan.finetuning(model, plain_weights(plan, model))
    grid, baseline = (tuned["grid"], tuned["baseline"]) if tuned else plan.reference
    return (
        grid if grid in drops["grids"] else drops["grids"][0],
        baseline if baseline in drops["baselines"] else drops["baselines"][0],
        drops["outputs"][0],
    )


def _metric(plan: Plan, model: str, weights: str, combination: tuple[int, str, str]) -> str | None:
    found = plan.metrics_of(weights, model)
    return next((name for name, combined in found.items() if combined == combination), None)


def _settings(plan: Plan, model: str, weights: str) -> dict[str, Any]:
    settings = dict(plan.finetuning(model, weights) or {})
    return {"seed": plan.config["seed"], **settings}


def _tuned_for(plan: Plan, model: str, factor: str, value: Any) -> str:
    """Return the weights that are finetuned for a grid or baseline and else as the plain ones; "" for none."""
    plain = plain_weights(plan, model)
    if plain == PRETRAINED:
        return ""
    wanted = {**_settings(plan, model, plain), factor: value}
    found = [name for name in plan.weights if name != PRETRAINED and _settings(plan, model, name) == wanted]
    return min(found, key=lambda name: name != plain, default="")


def _seeds(plan: Plan, model: str) -> dict[str, str]:
    """Return the weights that differ from the plain ones in the seed of their finetuning alone, by seed."""
    plain = plain_weights(plan, model)
    if plain == PRETRAINED:
        return {}
    wanted = _settings(plan, model, plain)
    found = {f"seed {wanted['seed']}": plain}
    for name in plan.weights:
        settings = _settings(plan, model, name)
        if name != PRETRAINED and {**settings, "seed": wanted["seed"]} == wanted:
            found.setdefault(f"seed {settings['seed']}", name)
    return found


def _kinds_of_weights(plan: Plan, model: str) -> dict[str, str]:
    """Return weights before, during and after the plain finetuning: those for the same deletion by the same seed."""
    plain = _settings(plan, model, plain_weights(plan, model))

    def place(name: str) -> tuple[bool, float]:
        epoch = EPOCH.search(name)
        return name != PRETRAINED, float(epoch[1]) if epoch else float("inf")

    kept = [
        name
        for name in plan.weights
        if name == PRETRAINED
        or all(_settings(plan, model, name).get(key) == plain.get(key) for key in ("grid", "baseline", "seed"))
    ]
    return {name: name for name in sorted(kept, key=place)}


def _of_options(plan: Plan, weights: str) -> Iterator[Comparison]:
    """Yield metrics of one kind that differ in one option alone."""
    groups: dict[tuple[str, str, str], list[Level]] = {}
    for name, entry in plan.metrics.items():
        for option, value in entry.options.items():
            rest = json.dumps({key: kept for key, kept in entry.options.items() if key != option}, default=str)
            told = _told(option, value) if option != "grid" or value else "plain"
            level = told if len(told) <= LONGEST else name
            groups.setdefault((option, entry.metric.name, rest), []).append((level, weights, name, "raw"))
    for (option, kind, _), levels in groups.items():
        # Entries that differ in nothing have one level twice.
        yield from _if_varied(option, kind, list({level[0]: level for level in reversed(levels)}.values())[::-1])


def all_comparisons(plan: Plan) -> list[dict[str, Any]]:
    """Return the comparisons on all networks; those that are the same on several are told once."""
    found: dict[str, dict[str, Any]] = {}
    for dataset, model in plan.pairs():
        for factor, setting, reference, levels in comparisons(plan, model):
            told = {"factor": factor, "setting": setting, "reference": reference, "levels": list(map(list, levels))}
            entry = found.setdefault(digest(told), {**told, "networks": []})
            entry["networks"].append([dataset, model])
    return list(found.values())


def factors(plan: Plan) -> list[str]:
    """Return what the config varies, in the order of the tables."""
    return list(dict.fromkeys(entry["factor"] for entry in all_comparisons(plan)))


def compared_cases(plan: Plan) -> list[Case]:
    """Return the test cases whose scores are compared."""
    cases = [
        plan.case(dataset, model, weights, metric)
        for entry in all_comparisons(plan)
        for dataset, model in entry["networks"]
        for _, weights, metric, _ in entry["levels"]
    ]
    return list(dict.fromkeys(cases))


def plain_cases(plan: Plan) -> list[Case]:
    """Return the plain weights of every network with their single-deletion score."""
    cases = []
    for dataset, model in plan.pairs():
        weights = plain_weights(plan, model)
        found = plan.metrics_of(weights, model)
        metric = next(name for name in found if found[name] == _home(plan, model))
        cases.append(plan.case(dataset, model, weights, metric))
    return cases
