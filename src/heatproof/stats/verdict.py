"""Conclusions from scores: a verdict, and a sentence that claims no more than was measured.

The workflow (``verdict.csv``, the page, the terminal) and `heatproof.choose` use the same rule, from scores of images
to the sentence.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from heatproof.core.class_order import MOSTLY_RIGHT
from heatproof.core.registry import join_names
from heatproof.metrics.single_deletion import PatchDeletion
from heatproof.stats.best import best_set
from heatproof.stats.consistency import MINIMUM_METHODS
from heatproof.stats.references import ReferenceComparison, compare_with_references

# Verdicts, the most severe first.
CHANCE, NONE_ABOVE_REFERENCES, OPEN, TOO_FEW, FOUND = (
    "at chance",
    "none above references",
    "open",
    "too few images",
    "found",
)
# Longer lists of methods are replaced by their number; reference maps are always named.
NAMED = 4
LIMITS_OF_DELETION = (
    "Deletion of single patches does not measure redundant evidence: where each of several patches suffices, it "
    "rejects even exact Shapley values. It also favours methods that delete regions themselves, because they compute "
    "nearly the same as the measure."
)


class Accuracy(NamedTuple):
    """The number of intact images on which a network is right, and the share of the most frequent class."""

    right: int
    images: int
    guess: float

    @property
    def p(self) -> float:
        """The probability that guessing the most frequent class is right at least as often."""
        return float(binomtest(self.right, self.images, min(self.guess, 1.0), alternative="greater").pvalue)

    @property
    def description(self) -> str:
        """The accuracy, as a part of a sentence."""
        return (
            f"it is right on {self.right} of {self.images} images, and the most frequent class has {self.guess:.0%} of "
            "them"
        )


class Guessing(NamedTuple):
    """The p-value of a network that guesses, for labels or numbers, with a description as a part of a sentence."""

    p: float
    description: str


@dataclass(frozen=True)
class MeasureVerdict:
    """Conclusions from one measure.

    Attributes
    ----------
    best
        Methods and reference maps that are not distinguishable from the best, the highest mean first; empty where there
        are too few cases.
    reason
        Why there are too few cases; "" otherwise.
    above
        Comparison of the methods with the reference maps.
    verdict, sentence
        As in `Verdict`, for this measure alone.
    """

    best: list[str]
    reason: str
    above: ReferenceComparison
    verdict: str
    sentence: str


@dataclass(frozen=True)
class Verdict:
    """Conclusions from all measures.

    Attributes
    ----------
    verdict
        ``at chance`` (the network is no better than guessing), ``none above references``, ``open`` (a reference map is
        not distinguishable from the best, or there are too few cases), ``too few images`` (the best method is higher
        than the reference maps, but not significantly) or ``found``. Of several measures, the most severe verdict.
    sentence
        The same as a sentence.
    best
        Members of the set of the best of at least one measure, the highest mean first.
    measures
        Conclusions from each measure, by its description.
    agreement
        Spearman correlation of the orders of the contenders by two measures, the mean over pairs; 1 for one measure.
    """

    verdict: str
    sentence: str
    best: list[str]
    measures: Mapping[str, MeasureVerdict]
    agreement: float = math.nan


def judge(
    scores: Mapping[str, pd.DataFrame],
    references: Collection[str],
    where: str,
    *,
    level: float,
    ablating: Collection[str] = (),
    accuracy: Accuracy | Guessing | None = None,
    right: int | None = None,
) -> Verdict:
    """Return the conclusions that the scores of images allow about the methods.

    Parameters
    ----------
    scores
        Description of each measure, such as that of `describe_deletion`, to its scores: a row per method, a column per
        image; higher is better, NaN where undefined. All have the same rows.
    references
        Rows that do not use the network.
    where
        The weights, as a part of a sentence: ``on the finetuned weights``.
    level
        Level of the set of the best, and of the comparison with the reference maps.
    ablating
        Rows of methods that delete regions, nearly as a measure of deletion does. They are excluded from the
        comparison.
    accuracy
        Accuracy of the network on intact images, and of guessing; None where labels are unknown.
    right
        Number of scored images on which the network predicts the explained class; None if unknown.

    Returns
    -------
    Verdict
    """
    rows = next(iter(scores.values()))
    excluded = sorted(set(ablating) & set(rows.index))
    # Sorted by name, which decides the order of methods with equal means.
    contenders = {by: table.drop(index=excluded).sort_index() for by, table in scores.items()}
    by_measure = {by: _judge_measure(by, table, references, where, level) for by, table in contenders.items()}
    each = pd.concat([table.mean(axis=1) for table in contenders.values()], axis=1)
    means, orders = each.mean(axis=1), each.rank().corr().to_numpy()
    agreement = float(orders[np.triu_indices(len(orders), 1)].mean()) if len(orders) > 1 else 1.0
    members = {name for measure in by_measure.values() for name in measure.best}
    best = [name for name in means.sort_values(ascending=False, kind="stable").index if name in members]
    if accuracy is not None and accuracy.p > 1 - level:
        sentence = f"This network is at chance: {accuracy.description}. Its maps cannot be judged."
        return Verdict(CHANCE, sentence, best, by_measure, agreement)
    methods = [name for name in means.dropna().index if name not in references]
    missing = [measure for measure in by_measure.values() if measure.verdict != FOUND]
    if missing:
        verdict = min(
            (measure.verdict for measure in missing), key=(CHANCE, NONE_ABOVE_REFERENCES, OPEN, TOO_FEW).index
        )
        sentence = " ".join(dict.fromkeys(measure.sentence for measure in missing))
    else:
        verdict = FOUND
        sentence = _describe_best(
            best, methods, _describe_measures(list(by_measure), agreement, where, alone=len(best) == 1), level
        )
        sentence += _describe_references(
            [measure.above for measure in by_measure.values()], best, references, rows.index
        )
        if right is not None:
            sentence += describe_low_accuracy(right, rows.shape[1])
    if excluded:
        alone = len(excluded) == 1
        sentence += f" {join_names(excluded)} {'is' if alone else 'are'} excluded, because "
        sentence += f"{'it deletes' if alone else 'they delete'} regions as the measure does."
    return Verdict(verdict, sentence, best, by_measure, agreement)


def _judge_measure(
    by: str, table: pd.DataFrame, references: Collection[str], where: str, level: float
) -> MeasureVerdict:
    """Return the conclusions from one measure."""
    inside, reason = best_set(table.to_numpy(dtype=np.float64), level=level)
    above = compare_with_references(table, references, level)
    means = table.mean(axis=1)
    order = means.sort_values(ascending=False, kind="stable").index
    chosen = set() if reason else set(table.index[np.asarray(inside, dtype=bool)])
    best = [name for name in order if name in chosen]
    methods = [name for name in best if name not in references]
    maps = [name for name in best if name in references]
    by = f"by {by}, {where}"
    if not above.best:
        return MeasureVerdict(
            best, reason, above, NONE_ABOVE_REFERENCES, f"Open: no method has a score on more than one image {by}."
        )
    if reason:
        return MeasureVerdict(best, reason, above, OPEN, f"Open: {reason}. Scored {by}.")
    if above.reference and not above.methods:
        pair = (
            f"{above.best} scores {_format_mean(means[above.best])}, and {above.reference}, which does not use the "
            f"network, {_format_mean(means[above.reference])}"
        )
        if math.isnan(above.needed):
            return MeasureVerdict(
                best,
                reason,
                above,
                NONE_ABOVE_REFERENCES,
                f"Open: no method is significantly above the reference maps {by}: {pair}.",
            )
        few = f"Open: {table.shape[1]} images are too few to distinguish methods from the reference maps {by}"
        return MeasureVerdict(
            best, reason, above, TOO_FEW, f"{few}: {pair}; about {int(above.needed)} images would suffice."
        )
    if maps:
        others = methods if len(methods) <= NAMED else [f"{len(methods)} methods"]
        nor = f"; nor can {join_names(others)}" if others else ""
        which = f"which {'does' if len(maps) == 1 else 'do'} not use the network"
        sentence = f"Open: {join_names(maps)}, {which}, cannot be distinguished from the best {by}{nor}."
        return MeasureVerdict(best, reason, above, OPEN, sentence)
    return MeasureVerdict(best, reason, above, FOUND, "")


def _describe_measures(measures: Sequence[str], agreement: float, where: str, *, alone: bool) -> str:
    """Return the part of a sentence that names the measures and the weights."""
    if len(measures) == 1:
        return f"by {measures[0]}, {where}"
    each = "each" if alone else "at least one"
    # A beginning that all measures share is written once.
    begin = os.path.commonprefix(list(measures)).rpartition(", ")[0]  # noqa: RUF071 - of characters
    begin = f"{begin}, " if begin else ""
    rest = join_names([description.removeprefix(begin) for description in measures])
    alike = f"whose rankings have a correlation of {agreement:.2f}"
    return f"by {each} of {len(measures)} measures ({begin}{rest}), {alike}, {where}"


def _describe_best(best: Sequence[str], methods: Sequence[str], by: str, level: float) -> str:
    """Return the sentence that names the best methods and their number."""
    if len(methods) == 1:
        return f"{best[0]} is the only method that was scored {by}."
    if len(best) == 1:
        subject = f"{best[0]} is the best of {len(methods)} methods"
    else:
        counted = f"{len(best)} of {len(methods)} methods"
        named = f"{counted} ({best[0]} has the highest mean)" if len(best) > NAMED else join_names(best)
        subject = f"{named} cannot be distinguished from the best"
        subject += "" if len(best) > NAMED else f" of {len(methods)} methods"
    return f"{subject}, at {level:.0%}, {by}."


def _describe_references(
    above: Sequence[ReferenceComparison], best: Sequence[str], references: Collection[str], rows: Collection[str]
) -> str:
    """Return the sentence on how many of the best methods are above the reference maps by every measure."""
    maps = sorted(set(rows) & set(references))
    if not maps:
        return " Without a reference map, it is unknown whether they are above a map that does not use the network."
    above_all = set(best).intersection(*(comparison.methods for comparison in above))
    if len(best) == 1:
        claim = "It is" if above_all else "It is not significantly"
    else:
        count = len(above_all)
        claim = f"{'All' if count == len(best) else count or 'None'} of these {'is' if count < 2 else 'are'}"
    named = f"the reference map{'s' * (len(maps) > 1)} {join_names(maps)}"
    return f" {claim} above {named}, which {'does' if len(maps) == 1 else 'do'} not use the network."


def disagreement(scores: pd.DataFrame) -> str:
    """Return a text on metrics that order the methods against deletion of single patches; "" where no metric does.

    Parameters
    ----------
    scores
        dataset, model, weights, metric, method, score (NaN where undefined) and higher_is_better.

    Returns
    -------
    str
        With Spearman's ρ of each such metric with IDSDS, or else SDS, over the methods of a network, averaged over
        networks.
    """
    correlations: dict[str, list[float]] = {}
    bases: dict[str, None] = {}
    for _, rows in scores.groupby(["dataset", "model", "weights"], sort=False):
        signed = rows["score"].where(rows["higher_is_better"].astype(bool), -rows["score"])
        wide = rows.assign(score=signed).pivot(index="method", columns="metric", values="score")
        base = next((name for name in ("idsds", "sds") if name in wide), None)
        if base is None:
            continue
        bases[base] = None
        for name, rho in wide.drop(columns=base).corrwith(wide[base], method="spearman").items():
            n_methods = wide[[name, base]].notna().all(axis=1).sum()
            if n_methods >= MINIMUM_METHODS and not math.isnan(rho):
                correlations.setdefault(str(name), []).append(rho)
    means = sorted((float(np.mean(rhos)), name) for name, rhos in correlations.items())
    opposed = [f"{name} (ρ {_format_mean(mean)})" for mean, name in means if mean < 0]
    if not opposed:
        return ""
    return (
        f"{join_names(opposed)} rank{'s' * (len(opposed) == 1)} the methods against {' and '.join(bases)}: the rank "
        "correlation ρ is negative. Such metrics measure different things, and κ over all metrics hides that. Decide "
        "which metric fits your question before you look at results (docs/conventions.md says what each one measures), "
        "and use the set of the best by that metric, or take a method that is in the sets of all metrics."
    )


def describe_deletion(deletion: PatchDeletion, family: str, output: str = "logit") -> str:
    """Describe a single-deletion score: ``deletion of single patches, grid 4, mean colour (IDSDS)``."""
    of = "" if output == "logit" else f", {output}"
    return f"deletion of single patches, {deletion}{of} ({family.upper()})"


def at_chance(right: int, images: int, guess: float, level: float) -> bool:
    """Return whether a network is not more often right than guessing the most frequent class.

    Parameters
    ----------
    right, images
        Number of intact images that it classifies correctly, and number of images.
    guess
        Share of the most frequent class.
    level
        1 minus the probability of calling a network that guesses better than chance.
    """
    return Accuracy(right, images, guess).p > 1 - level


def describe_low_accuracy(right: int, count: int, of_labels: bool = False) -> str:
    """Return a sentence on a network that is right on few explained images or labels; "" for any other network."""
    if right >= MOSTLY_RIGHT * count:
        return ""
    verb, what = ("finds", "labels") if of_labels else ("is right on", "images")
    return f" The network {verb} {right} of the {count} {what}."


def _format_mean(mean: float) -> str:
    """Return a mean with two decimals and a minus sign (U+2212), as on the pages."""
    return f"{round(mean, 2) + 0.0:.2f}".replace("-", "−")
