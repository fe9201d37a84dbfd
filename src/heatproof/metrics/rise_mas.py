"""RISE and MAS: areas under insertion and deletion curves; MAS adds an alignment penalty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from heatproof.core.options import PatchGrid
from heatproof.core.sequences import Perturbation
from heatproof.core.tasks import Need
from heatproof.errors import HeatproofError
from heatproof.metrics.arrays import area
from heatproof.metrics.deletion import step_options
from heatproof.metrics.registry import Result, metric, need_of_output
from heatproof.metrics.responses.curves import ResponseCurve

# The published blur kernels: that of RISE, and that of the scripts with which MAS was evaluated.
RISE_BLUR = {"sigma": 5.0, "size": 11, "kernel": "reflected"}
MAS_BLUR = {**RISE_BLUR, "sigma": 11.0}
RISE = "Petsiuk et al., RISE, 2018, section 4.2"
MAS = "Walker et al., Attribution Quality Metrics with Magnitude Alignment, 2024, section 4"
NO_GAIN = (
    "the metric divides by the target's output for the image minus that for the baseline, which is not positive here: "
    "targets that a classifier predicts avoid it, and of numbers metrics that divide by nothing"
)


def sequences_of(*modes: str, blur: Mapping[str, Any] = RISE_BLUR, magnitude: bool = False) -> Any:
    """Return the function that turns options into sequences of insertion, deletion or both.

    A sequence has 32 equal steps by default. In both papers an image of N × N pixels has N steps of N pixels (MAS,
    sections 2.2 and 4.1): ``step_size=224`` at 224 × 224.

    Parameters
    ----------
    modes
        ``insertion``, ``deletion``.
    blur
        Default options of the blur of the image into which pixels are inserted.
    magnitude
        Rank by the magnitudes of the map, so that a map with signs and its absolute values have the same score.
    """

    def sequences(
        *,
        order: str = "morf",
        steps: int | None = None,
        step_size: int | None = None,
        fractions: Sequence[float] | None = None,
        grid: PatchGrid | None = None,
        baseline: str | None = None,
        baseline_options: Mapping[str, Any] | None = None,
        ties: str = "random",
    ) -> dict[str, Perturbation]:
        sequences_by_name = {}
        for mode in modes:
            # The papers insert into a blurred image and delete to zero. A configured baseline applies to both modes;
            # options without a baseline are options of the blur.
            fill, options = baseline, baseline_options or {}
            if baseline is None and mode == "insertion":
                fill, options = "blur", {**blur, **options}
            elif baseline is None and "insertion" in modes:
                options = {}
            sequences_by_name[mode] = Perturbation(
                mode=mode,
                order=order,
                magnitude=magnitude,
                grid=grid,
                baseline=fill or "zeros",
                baseline_options=options,
                ties=ties,
                **step_options(steps, step_size, fractions, 32, grid),
            )
        return sequences_by_name

    return sequences


def needs_of_scaled(options: Mapping[str, Any]) -> Need:
    """Return a probability where a curve that falls below its baseline is divided by a negative difference.

    That reverses the curve, and with it the sign of the score. Probabilities in published results are treated this way;
    for a regression or a callable target the negative of the correct map would rank first.
    """
    is_reversed = options["inverted"] == "scaled" and options.get("monotone", True)
    return "probability" if is_reversed and need_of_output(options) == "number" else need_of_output(options)


def normalised_response(
    curve: ResponseCurve, mode: str, output: str, target: str, inverted: str = "undefined"
) -> np.ndarray:
    """Scale a response curve so that the baseline is 0 and the image 1, clip it, and make it monotone.

    Parameters
    ----------
    curve
        A curve whose ends are the image and the complete baseline.
    mode
        ``insertion`` rises (running maximum), ``deletion`` falls (running minimum).
    output, target
        As in `ResponseCurve.read`.
    inverted
        Treatment of images whose response is not above that of the baseline: ``undefined``, or ``scaled``, which
        divides by the negative difference, as the published code does.

    Returns
    -------
    numpy.ndarray
        (N, S) in [0, 1]; NaN for an image where it is undefined.

    Raises
    ------
    HeatproofError
        If `inverted` is unknown, or the curve does not reach from the image to the baseline.
    """
    if inverted not in ("undefined", "scaled"):
        raise HeatproofError(f"inverted is {inverted!r}: take 'undefined' or 'scaled'.")
    ends = curve.fractions[:, [0, -1]]
    if not (np.all(ends[:, 0] == 0) and np.all(ends[:, 1] == 1)):
        raise HeatproofError("Curves of RISE and MAS must begin at fraction 0 and end at fraction 1.")
    responses = curve.read(output, target)
    first, last = responses[:, :1], responses[:, -1:]
    baseline, image = (first, last) if mode == "insertion" else (last, first)
    gain = image - baseline
    undefined = (gain == 0) if inverted == "scaled" else (gain <= 0)
    scaled = np.clip((responses - baseline) / np.where(gain == 0, np.nan, gain), 0, 1)
    running = np.maximum if mode == "insertion" else np.minimum
    return np.where(undefined, np.nan, running.accumulate(scaled, axis=1))


def density(curve: ResponseCurve, mode: str) -> np.ndarray:
    """Return the share of the map's magnitude that is visible at each point (MAS, equation 2).

    Returns
    -------
    numpy.ndarray
        (N, S) in [0, 1], rising for insertion and falling for deletion; NaN for a map of zeros.
    """
    total = curve.arrays["total_magnitude"][:, None].astype(np.float64)
    share = np.clip(curve.arrays["magnitude"] / np.where(total == 0, np.nan, total), 0, 1)
    return share if mode == "insertion" else 1 - share


def apply_alignment_penalty(normalised: np.ndarray, densities: np.ndarray, mode: str) -> np.ndarray:
    """Apply the alignment penalty, which is subtracted from insertion and added to deletion (MAS, equations 3 to 5, 7).

    The result is clipped to [0, 1] and then stretched to this range.

    Parameters
    ----------
    normalised, densities
        (N, S), from `normalised_response` and `density`.
    mode
        ``insertion`` or ``deletion``.

    Returns
    -------
    numpy.ndarray
        (N, S) in [0, 1]; NaN where either input is undefined, or where the curve is flat.
    """
    penalty = np.abs(normalised - densities)
    corrected = np.clip(normalised - penalty if mode == "insertion" else normalised + penalty, 0, 1)
    low = corrected.min(axis=1, keepdims=True)
    spread = corrected.max(axis=1, keepdims=True) - low
    return (corrected - low) / np.where(spread == 0, np.nan, spread)


def _rise(curve: ResponseCurve, mode: str, output: str, target: str, monotone: bool, inverted: str) -> np.ndarray:
    return normalised_response(curve, mode, output, target, inverted) if monotone else curve.read(output, target)


def _area(curves: np.ndarray, curve: ResponseCurve) -> Any:
    scores = area(curves, at=curve.fractions)
    return scores, np.isfinite(scores)


@metric(
    "rise_insertion",
    measures="incremental insertion",
    higher_is_better=True,
    order="morf",
    range=(0.0, 1.0),
    source=RISE,
    sequences=sequences_of("insertion"),
    undefined=NO_GAIN,
    needs=needs_of_scaled,
)
def rise_insertion(
    insertion: ResponseCurve,
    *,
    output: str = "probability",
    target: str = "label",
    monotone: bool = False,
    inverted: str = "undefined",
) -> Result:
    """RISE insertion: area under the probability while pixels replace the blurred image; higher is better.

    The trapezoid rule over the inserted shares, in 32 equal steps. The paper inserts as many pixels per step as the
    image is wide, ``step_size=224`` at 224 × 224. ``monotone=True`` scales the curve to its ends and takes the running
    maximum, which is called RISE in the comparisons of the MAS paper; these also rank by magnitude, which gives the
    score of the absolute map. For ``inverted`` see `normalised_response`.

    Returns
    -------
    score, valid : numpy.ndarray
        (N,), in [0, 1].
    curves : dict
        ``insertion`` (N, S).
    """
    curve = _rise(insertion, "insertion", output, target, monotone, inverted)
    return *_area(curve, insertion), {"insertion": curve}


@metric(
    "rise_deletion",
    measures="incremental deletion",
    derived_from=("deletion_morf",),
    higher_is_better=False,
    order="morf",
    range=(0.0, 1.0),
    source=RISE,
    sequences=sequences_of("deletion"),
    undefined=NO_GAIN,
    needs=needs_of_scaled,
)
def rise_deletion(
    deletion: ResponseCurve,
    *,
    output: str = "probability",
    target: str = "label",
    monotone: bool = False,
    inverted: str = "undefined",
) -> Result:
    """RISE deletion: area under the probability while pixels are deleted in MoRF order; lower is better.

    The options and the result are those of `rise_insertion`, with the running minimum in place of the maximum; the
    curve is ``deletion``.
    """
    curve = _rise(deletion, "deletion", output, target, monotone, inverted)
    return *_area(curve, deletion), {"deletion": curve}


@metric(
    "rise_difference",
    derived_from=("rise_insertion", "rise_deletion"),
    higher_is_better=True,
    order="morf",
    range=(-1.0, 1.0),
    source=MAS + ".2, equation 6, for RISE",
    sequences=sequences_of("insertion", "deletion"),
    undefined=NO_GAIN,
    needs=needs_of_scaled,
)
def rise_difference(
    insertion: ResponseCurve,
    deletion: ResponseCurve,
    *,
    output: str = "probability",
    target: str = "label",
    monotone: bool = False,
    inverted: str = "undefined",
) -> Result:
    """RISE insertion minus deletion, in [-1, 1]; higher is better. Options as in `rise_insertion`."""
    insertion_curve = _rise(insertion, "insertion", output, target, monotone, inverted)
    deletion_curve = _rise(deletion, "deletion", output, target, monotone, inverted)
    score = area(insertion_curve, at=insertion.fractions) - area(deletion_curve, at=deletion.fractions)
    return score, np.isfinite(score), {"insertion": insertion_curve, "deletion": deletion_curve}


def _mas(curve: ResponseCurve, mode: str, output: str, target: str, inverted: str) -> dict[str, np.ndarray]:
    responses, densities = normalised_response(curve, mode, output, target, inverted), density(curve, mode)
    return {
        f"{mode}_model_response": responses,
        f"{mode}_density_response": densities,
        f"{mode}_alignment_penalty": np.abs(responses - densities),
        f"{mode}_mas": apply_alignment_penalty(responses, densities, mode),
    }


@metric(
    "mas_insertion",
    measures="incremental insertion",
    higher_is_better=True,
    order="morf",
    range=(0.0, 1.0),
    source=MAS + ".2, equation 4",
    sequences=sequences_of("insertion", blur=MAS_BLUR, magnitude=True),
    undefined=NO_GAIN,
    needs=needs_of_scaled,
)
def mas_insertion(
    insertion: ResponseCurve, *, output: str = "probability", target: str = "label", inverted: str = "undefined"
) -> Result:
    """MAS insertion: area of the monotone insertion curve minus its alignment penalty; higher is better.

    Pixels are ordered by the magnitude of the map, on which the density is based as well (section 4.1), so that a map
    and its negative have the same score. There are 32 equal steps; the paper has N steps of N pixels on an image of N ×
    N (sections 2.2 and 4.1), ``step_size=224`` at 224 × 224. Insertion begins at the blurred image of the authors'
    evaluation scripts, with standard deviation 11. The score is undefined for a map of zeros, and for an image whose
    response is not above that of its baseline (see ``inverted`` of `normalised_response`).

    Returns
    -------
    score, valid : numpy.ndarray
        (N,), in [0, 1].
    curves : dict
        ``insertion_model_response``, ``insertion_density_response``, ``insertion_alignment_penalty`` and
        ``insertion_mas``, (N, S) each.
    """
    curves = _mas(insertion, "insertion", output, target, inverted)
    return *_area(curves["insertion_mas"], insertion), curves


@metric(
    "mas_deletion",
    measures="incremental deletion",
    higher_is_better=False,
    order="morf",
    range=(0.0, 1.0),
    source=MAS + ".2, equation 5",
    sequences=sequences_of("deletion", blur=MAS_BLUR, magnitude=True),
    undefined=NO_GAIN,
    needs=needs_of_scaled,
)
def mas_deletion(
    deletion: ResponseCurve, *, output: str = "probability", target: str = "label", inverted: str = "undefined"
) -> Result:
    """MAS deletion: area of the monotone deletion curve plus its alignment penalty; lower is better.

    The options and curves are those of `mas_insertion`, with names that begin with ``deletion``.
    """
    curves = _mas(deletion, "deletion", output, target, inverted)
    return *_area(curves["deletion_mas"], deletion), curves


@metric(
    "mas_difference",
    derived_from=("mas_insertion", "mas_deletion"),
    higher_is_better=True,
    order="morf",
    range=(-1.0, 1.0),
    source=MAS + ".2, equation 6",
    sequences=sequences_of("insertion", "deletion", blur=MAS_BLUR, magnitude=True),
    undefined=NO_GAIN,
    needs=needs_of_scaled,
)
def mas_difference(
    insertion: ResponseCurve,
    deletion: ResponseCurve,
    *,
    output: str = "probability",
    target: str = "label",
    inverted: str = "undefined",
) -> Result:
    """MAS insertion minus deletion, in [-1, 1]; higher is better. Options and curves as in `mas_insertion`."""
    curves = _mas(insertion, "insertion", output, target, inverted)
    curves |= _mas(deletion, "deletion", output, target, inverted)
    insertion_curve, deletion_curve = curves["insertion_mas"], curves["deletion_mas"]
    score = area(insertion_curve, at=insertion.fractions) - area(deletion_curve, at=deletion.fractions)
    return score, np.isfinite(score), curves
