"""Soundness and completeness (Li et al. 2024)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Annotated, Any, Literal

import numpy as np

from heatproof.core.options import Bounds
from heatproof.core.registry import look_up
from heatproof.core.sequences import Perturbation
from heatproof.core.tasks import Need
from heatproof.errors import HeatproofError
from heatproof.metrics.registry import Result, metric, need_of_output
from heatproof.metrics.responses.curves import ResponseCurve

SOURCE = "Li et al., A Dual-Perspective Approach to Evaluating Feature Attribution Methods, 2024, "
# Removed shares: 0.01, 0.02 … 0.99 in the paper's algorithm 3, and 0.03 … 0.98 in the published code.
SHARES = {
    "paper": tuple(round(0.01 * step, 5) for step in range(1, 100)),
    "code": tuple(round(0.01 * step, 5) for step in range(3, 99)),
}
THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def soundness_sequences(
    *,
    fractions: Sequence[float] | Literal["code", "paper"] | None = None,
    imputation: str = "road",
    noise: Annotated[float, Bounds(least=0)] = 0.01,
    baseline: str = "zeros",
    baseline_options: Mapping[str, Any] | None = None,
    ties: str = "random",
) -> dict[str, Perturbation]:
    """Return the sequence of soundness: LeRF by area.

    Raises
    ------
    HeatproofError
        If `fractions` is a string other than ``code`` and ``paper``.
    """
    word = "code" if fractions is None else fractions
    shares = look_up(SHARES, word, "list of fractions of soundness") if isinstance(word, str) else word
    return {
        "deletion": Perturbation(
            order="lerf",
            fractions=tuple(float(share) for share in shares),
            imputation=imputation,
            noise=noise,
            baseline=baseline,
            baseline_options=baseline_options or {},
            ties=ties,
        )
    }


def completeness_sequences(
    *,
    thresholds: Sequence[Annotated[float, Bounds(least=0, most=1)]] | None = None,
    rescale: bool = True,
    imputation: str = "road",
    noise: Annotated[float, Bounds(least=0)] = 0.01,
    baseline: str = "zeros",
    baseline_options: Mapping[str, Any] | None = None,
) -> dict[str, Perturbation]:
    """Return the sequence of completeness: MoRF by value."""
    shares = THRESHOLDS if thresholds is None else thresholds
    return {
        "deletion": Perturbation(
            # A sequence counts from the largest value of the map downwards; rounding makes 1 - 0.9 exactly 0.1.
            thresholds=tuple(sorted(round(1 - float(share), 12) for share in shares)),
            rescale=rescale,
            imputation=imputation,
            noise=noise,
            baseline=baseline,
            baseline_options=baseline_options or {},
        )
    }


def needs_of_soundness(options: Mapping[str, Any]) -> Need:
    """Return a probability also for a logit, because `level` and the first gain are measured from a performance of 0.

    The numbers of a regression have no such zero: soundness of negative numbers, or of numbers far from 0, has no
    meaning.
    """
    need = need_of_output(options)
    return "probability" if need == "number" else need


def false_attribution(
    performance: np.ndarray, added: np.ndarray, threshold: float, start: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """Accumulate false attribution, which does not raise the performance (appendix E, algorithm 3).

    Parameters
    ----------
    performance
        (S,) for the complete dataset, or (N, S) for each image, from the fewest visible pixels to the most.
    added
        (N, S): attribution of the pixels that each step adds.
    threshold
        A step that raises the performance by this much or less adds false attribution.
    start
        Count none until the performance, averaged over images, exceeds this; None to count from the first step.

    Returns
    -------
    before, after : numpy.ndarray
        (N, S): the false attribution that is counted before and after each step.
    """
    # The difference of two accuracies can deviate by rounding from the share of images that it represents.
    gains = np.round(np.diff(performance, axis=-1, prepend=0.0), 12)
    is_false = gains <= threshold
    if start is not None:
        is_false &= (performance if performance.ndim == 1 else performance.mean(axis=0)) > start
    after = np.cumsum(added * is_false, axis=1)
    return np.concatenate([np.zeros_like(after[:, :1]), after[:, :-1]], axis=1), after


def soundness_at_levels(performance: np.ndarray, ratio: np.ndarray, levels: Sequence[float]) -> np.ndarray:
    """Return the soundness at the step where the performance first reaches each level.

    Parameters
    ----------
    performance
        (S,) for the complete dataset, from the fewest visible pixels to the most.
    ratio
        (N, S): soundness of each image at each step.
    levels
        L levels of the performance.

    Returns
    -------
    numpy.ndarray
        (N, L); NaN for a level that is never reached.
    """
    reached = performance >= np.asarray(levels, dtype=np.float64)[:, None]
    return np.where(reached.any(axis=1), ratio[:, reached.argmax(axis=1)], np.nan)


@metric(
    "soundness",
    needs=needs_of_soundness,
    higher_is_better=True,
    range=(0.0, 1.0),
    source=SOURCE + "definition 4.8, section 4.2, algorithms 1 and 3",
    sequences=soundness_sequences,
    undefined="the images never reach the option `level` together, or the map shows nothing where they do",
    exempt={
        "does_not_depend_on_the_company": "it compares steps by the accuracy on all images",
        "prefers_known_effects": "a few images reach a level of accuracy in one step, with any map",
    },
)
def soundness(
    deletion: ResponseCurve,
    *,
    level: float = 0.5,
    output: str = "accuracy",
    target: str = "label",
    threshold: float = 0.01,
    start: float | None = None,
    counted: str = "at_once",
) -> Result:
    """Share of true attribution when the accuracy first reaches `level`; higher is better.

    Pixels are shown from the most relevant on, and the others are imputed. A step that raises the accuracy on the
    dataset by no more than `threshold` adds false attribution for every image, so that the score of an image depends on
    which images are scored together. With a probability or a logit this is decided for each image by itself, as in the
    published code. Negative values of a map count as zero.

    The option `fractions` lists the shares of pixels that are removed. By default, or with ``code``, they are the 96 of
    the published code, 0.98, 0.97 … 0.03, which also begins as the text of appendix E does; ``paper`` selects the 99 of
    algorithm 3, 0.99, 0.98 … 0.01. A step that adds exactly `threshold` adds false attribution, as in the published
    code; in algorithm 3 it adds true attribution.

    Parameters
    ----------
    deletion
        LeRF by area.
    level
        Performance at which the score is read. If it is never reached, all images are undefined.
    output, target
        Performance measure: the mean over images of the accuracy, or of the probability or logit of the target.
    threshold, start
        As in `false_attribution`; the published code has ``start=0.04``, the paper has none.
    counted
        When a step's false attribution is subtracted: ``at_once``, at this step, as in the paper, or ``next_step``, as
        in the published code.

    Returns
    -------
    score, valid : numpy.ndarray
        (N,) in [0, 1]; undefined for a map without positive values.
    curves : dict
        ``soundness`` (N, S) from the fewest visible pixels to the most, with ``performance`` and ``removed`` (S,), the
        performance on the dataset and the share of pixels removed.
    """
    if counted not in ("at_once", "next_step"):
        raise HeatproofError(f"counted is {counted!r}: take 'at_once' or 'next_step'.")
    if output != "logit" and not 0 <= level <= 1:
        raise HeatproofError(f"level is {level:g}, which no {output} reaches: take 0 to 1, or output: logit.")
    responses = deletion.read(output, target)[:, ::-1]
    if output == "accuracy" and 0 < threshold * len(responses) < 1:
        warnings.warn(
            f"With {len(responses)} images, a single image changes the accuracy by more than the threshold of "
            f"soundness, {threshold:g}, so that a step that gains one image adds true attribution: score at least "
            f"{ceil(1 / threshold)} images, or compare only results with the same number of images.",
            stacklevel=2,
        )
    performance = responses.mean(axis=0)
    total = deletion.arrays["total_positive"].astype(np.float64)[:, None]
    visible = np.maximum(total - deletion.arrays["positive"][:, ::-1], 0)
    # Where no pixel is shown, the difference of the sums can be above zero by rounding.
    visible = np.where(visible <= 1e-12 * total, 0, visible)
    compared = performance if output == "accuracy" else responses
    before, after = false_attribution(compared, np.diff(visible, axis=1, prepend=0.0), threshold, start)
    subtracted = after if counted == "at_once" else before
    ratio = np.clip((visible - subtracted) / np.where(visible > 0, visible, np.nan), 0, 1)
    score = soundness_at_levels(performance, ratio, [level])[:, 0]
    removed = deletion.fractions[0, ::-1]
    return score, np.isfinite(score), {"soundness": ratio, "performance": performance, "removed": removed}


@metric(
    "completeness",
    higher_is_better=True,
    range=(-1.0, 1.0),
    source=SOURCE + "definition 4.9, section 4.3, algorithms 2 and 4",
    sequences=completeness_sequences,
)
def completeness(
    deletion: ResponseCurve,
    *,
    at: float | None = None,
    thresholds: Sequence[float] | None = None,
    output: str = "accuracy",
    target: str = "label",
) -> Result:
    """Loss of accuracy when pixels above thresholds of the map are imputed; higher is better.

    The score is the mean over the thresholds 0.9 … 0.1 of algorithm 4, which the published code uses too, or the loss
    at the threshold `at`. Negative values of the map count as zero. The map is then scaled from its smallest to its
    largest value, as in the authors' scripts before they write maps to 8 bits, so that an offset changes nothing.
    Unlike a deletion by rank, the score depends on the values. ``rescale=False`` takes shares of the maximum, for maps
    that were scaled before they were modified (section 5.2).

    Parameters
    ----------
    deletion
        MoRF by value.
    at
        Threshold at which the loss is the score, one of `thresholds`; None for the mean over all of them.
    thresholds
        Thresholds of the curve, as shares of the map's largest value: pixels above each are imputed.
    output, target
        As in `soundness`.

    Returns
    -------
    score, valid : numpy.ndarray
        (N,) in [-1, 1] for accuracy and probability; undefined for a map without a pixel above a threshold: one without
        positive values, or a constant one.
    curves : dict
        ``completeness`` (N, S), the loss at each threshold, from 0.9 down to 0.1.
    """
    responses = deletion.read(output, target)
    loss = responses[:, :1] - responses[:, 1:]
    loss[deletion.arrays["changed"][:, -1] == 0] = np.nan
    if at is None:
        score = loss.mean(axis=1)
    else:
        levels = sorted((float(threshold) for threshold in thresholds or THRESHOLDS), reverse=True)
        if at not in levels:
            raise HeatproofError(f"completeness is read at {at:g}, which is none of its thresholds {levels}: name one.")
        score = loss[:, levels.index(at)]
    return score, np.isfinite(score), {"completeness": loss}
