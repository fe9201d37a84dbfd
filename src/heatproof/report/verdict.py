"""What a run found, in words: the methods that cannot be told from the best, or that it found nothing, and why."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import binomtest, norm, ttest_1samp

from heatproof.report.results import CASE, NETWORK, listed, rounded

COLUMNS = [*CASE, "verdict", "sentence", "best", "n_best", "n_above_references", "n_methods", "n_images"]
COLUMNS += ["images_needed"]
# Verdicts, the gravest first.
CHANCE, NOTHING, TOO_FEW, FOUND = "at chance", "none above references", "too few images", "found"
# Chance that the images which are named would tell the best method from the reference maps.
POWER = 0.8
# Below this share of images on which a network is right, a verdict on its explanations says so.
MOSTLY_RIGHT = 0.75
# Beyond so many times the images that were scored, a difference is none that matters.
MOST_TIMES = 100
NAMED = 4


@dataclass(frozen=True)
class Above:
    """How the methods of a test case stand to the reference maps.

    Attributes
    ----------
    methods
        Methods that are above every reference map, at the level of all of them together.
    best
        The method with the highest mean; "" where no method has a score.
    reference
        The reference map with the highest mean; "" where there is none.
    needed
        Images that would tell `best` from `reference`; NaN where its mean is no higher.
    """

    methods: list[str]
    best: str
    reference: str
    needed: float


def above_references(scores: pd.DataFrame, references: Collection[str], level: float) -> Above:
    """Test which methods are above every reference map, on the same images.

    A method is above them where its paired difference from each is positive, by one-sided t-tests; over the methods
    Holm's correction holds the chance of one false statement below 1 - `level`.

    Parameters
    ----------
    scores
        A row a method, a column an image; higher is better, NaN where undefined.
    references
        Methods that know no model.
    level
        One less the chance of a false statement.
    """
    from statsmodels.stats.multitest import multipletests

    known = scores[scores.notna().sum(axis=1) > 1]
    means = known.mean(axis=1)
    methods = [name for name in known.index if name not in references]
    rivals = [name for name in known.index if name in references]
    best = max(methods, key=means.__getitem__, default="")
    reference = max(rivals, key=means.__getitem__, default="")
    if not methods or not rivals:
        return Above(methods, best, reference, math.nan)
    chances = [max(_chance(known.loc[name] - known.loc[rival]) for rival in rivals) for name in methods]
    sure = multipletests(chances, alpha=1 - level, method="holm")[0]
    above = [name for name, is_sure in zip(methods, sure, strict=True) if is_sure]
    difference = (known.loc[best] - known.loc[reference]).dropna().to_numpy()
    needed = math.nan
    if len(difference) > 1 and difference.mean() > 0:
        reach = norm.ppf(1 - (1 - level) / len(methods)) + norm.ppf(POWER)
        needed = math.ceil((reach * difference.std(ddof=1) / difference.mean()) ** 2)
    return Above(above, best, reference, needed)


def _chance(differences: pd.Series) -> float:
    """Return the chance of so high a mean where there is no difference; 1 where nothing can be said."""
    known = differences.dropna().to_numpy()
    if len(known) < 2:
        return 1.0
    if np.ptp(known) == 0:
        return 0.0 if known[0] > 0 else 1.0
    return float(ttest_1samp(known, 0, alternative="greater").pvalue)


def at_chance(right: int, images: int, guess: float, level: float) -> bool:
    """Tell whether a network is no more often right than guessing the most frequent class is.

    Parameters
    ----------
    right, images
        Intact images that it classifies correctly, of how many.
    guess
        Share of the most frequent class.
    level
        One less the chance to call a network at chance better than that.
    """
    return binomtest(right, images, min(guess, 1.0), alternative="greater").pvalue > 1 - level


def verdicts(
    scores: pd.DataFrame,
    table: pd.DataFrame,
    accuracy: pd.DataFrame,
    references: Sequence[str],
    directions: Mapping[str, bool],
    level: float,
) -> pd.DataFrame:
    """Say for every test case what was found.

    Parameters
    ----------
    scores
        Tidy scores of images: dataset, model, weights, metric, method, image, score.
    table
        The rows of idsds_table.csv, of which ``in_best_set`` is read, and ``share_wrong`` where it is there.
    accuracy
        The rows of accuracy.csv.
    references
        Methods that know no model.
    directions
        Metric to whether higher is better.
    level
        Confidence level.

    Returns
    -------
    pandas.DataFrame
        `COLUMNS`: ``verdict`` is ``at chance`` (the network is no better than guessing), ``none above references``,
        ``too few images`` (the best method is higher, and cannot be told from the reference maps yet) or ``found``.
        ``best`` names the methods that cannot be told from the best, separated by spaces; ``images_needed`` is how many
        images would tell the best method from the reference maps with a chance of 0.8, at the difference that was
        found.
    """
    at = {tuple(row[key] for key in NETWORK): row for row in accuracy.to_dict("records")}
    rows = []
    for case, part in scores.groupby(CASE, sort=False):
        where = dict(zip(CASE, map(str, case), strict=True))
        sign = 1.0 if directions[where["metric"]] else -1.0
        wide = part.pivot(index="method", columns="image", values="score") * sign
        above = above_references(wide, references, level)
        chosen = table[(table[CASE].astype(str) == list(where.values())).all(axis=1)]
        best = chosen.loc[chosen["in_best_set"].astype(bool), "method"].tolist()
        methods = [name for name in wide.index if name not in references]
        network = {str(key): value for key, value in at[tuple(where[key] for key in NETWORK)].items()}
        verdict, sentence = _judge(above, best, methods, wide, network, level)
        if verdict == FOUND:
            sentence += _often_wrong(chosen, wide.shape[1])
        told = {"best": " ".join(best), "n_best": len(best), "n_above_references": len(above.methods)}
        told |= {"n_methods": len(methods), "n_images": wide.shape[1], "images_needed": above.needed}
        rows.append({**where, "verdict": verdict, "sentence": sentence, **told})
    return pd.DataFrame(rows, columns=COLUMNS).astype({"images_needed": "Int64"})


def _judge(
    above: Above, best: list[str], methods: list[str], wide: pd.DataFrame, network: Mapping[str, Any], level: float
) -> tuple[str, str]:
    images, seen = wide.shape[1], int(network["n_images"])
    right = round(network["top1_clean"] * seen)
    if at_chance(right, seen, network["majority"], level):
        return CHANCE, (
            f"This network is at chance: it is right on {right} of {seen} images, and the most frequent class has "
            f"{network['majority']:.0%} of them. Its explanations say nothing."
        )
    if not above.best:
        return NOTHING, "No method has a score on more than one image."
    if above.reference and not above.methods:
        means = wide.mean(axis=1)
        pair = (
            f"{above.best} scores {rounded(means[above.best], 2)}, and {above.reference}, which knows no model, "
            f"{rounded(means[above.reference], 2)}"
        )
        if math.isnan(above.needed) or above.needed > MOST_TIMES * images:
            return NOTHING, f"No method is above the reference maps: {pair}."
        return TOO_FEW, f"{images} images are too few to tell: {pair}; about {int(above.needed)} images would do."
    named = listed([*best[:NAMED], f"{len(best) - NAMED} more"] if len(best) > NAMED else best)
    rows = _counted(len(methods), len(wide) - len(methods))
    first = f"{named} is the best of {rows}" if len(best) == 1 else f"{named} cannot be told from the best, of {rows}"
    if not above.reference:
        return FOUND, f"{first}; without a reference map, nothing says whether that is better than knowing no model."
    count = len(above.methods)
    return FOUND, f"{first}; {count} {'is' if count == 1 else 'are'} above all reference maps."


def _counted(methods: int, references: int) -> str:
    """Say how many rows the table has, as the reference maps stand in it too."""
    told = f"{methods} method{'s' * (methods != 1)}"
    return f"{told} and {references} reference map{'s' * (references != 1)}" if references else told


def _often_wrong(table: pd.DataFrame, images: int) -> str:
    """Return a sentence on a network that is right on few of the explained images; empty for any other."""
    wrong = table["share_wrong"].max() if "share_wrong" in table else math.nan
    if not 1 - wrong < MOSTLY_RIGHT:
        return ""
    return f" The network is right on {round((1 - wrong) * images)} of the {images} images."
