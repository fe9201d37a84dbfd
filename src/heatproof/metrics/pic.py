"""Performance information curves (PIC; Kapishnikov et al. 2019): the scores SIC and AIC."""

from __future__ import annotations

import numpy as np

from heatproof.errors import HeatproofError

EXCLUDE = ("documented", "none")
POINTS = 1000


def information_axis(points: int = POINTS) -> np.ndarray:
    """Return the normalised entropies of the curve's points: (points + 1,) float64, equally spaced in [0, 1]."""
    if points < 1:
        raise HeatproofError(f"A curve needs at least 1 point, not {points}.")
    return np.append(np.linspace(0, 1, points, endpoint=False), 1.0)


def information_curves(
    entropy: np.ndarray, values: np.ndarray, ends: np.ndarray | None = None, *, points: int = POINTS
) -> np.ndarray:
    """Interpolate values at images of increasing entropy to curves over normalised entropy.

    Entropy and value are scaled so that the fully blurred image is 0 and the original 1, and are clipped to [0, 1].
    Each value is replaced by the largest one so far, in the order of thresholds; the points (0, 0) and (1, 1) are added
    last. Between points the curve is linear. Points of equal entropy keep that order.

    Parameters
    ----------
    entropy
        (N, V) bytes: fully blurred image, thresholds, original.
    values
        (N, V).
    ends
        (N, 2), the values that are scaled to 0 and to 1; by default those of the fully blurred image and the original.
    points
        Number of equal steps of the curve.

    Returns
    -------
    numpy.ndarray
        (N, points + 1) float64 in [0, 1]; a row is NaN where both entropies, or both ends, are equal.

    Raises
    ------
    HeatproofError
        If the shapes of the arrays do not match.

    Notes
    -----
    Kapishnikov et al., XRAI: Better Attributions Through Regions, ICCV 2019, section 4.1 (Performance Information
    Curves).
    """
    entropy, values = np.asarray(entropy, dtype=np.float64), np.asarray(values, dtype=np.float64)
    ends = values[:, [0, -1]] if ends is None else np.asarray(ends, dtype=np.float64)
    if entropy.ndim != 2 or entropy.shape != values.shape or entropy.shape[1] < 3 or ends.shape != (len(entropy), 2):
        raise HeatproofError(
            f"Entropies {entropy.shape}, values {values.shape} and ends {ends.shape} do not belong together: give "
            "entropies and values of shape (images, thresholds + 2), and ends of shape (images, 2)."
        )
    x = _normalise(entropy[:, 1:-1], entropy[:, :1], entropy[:, -1:])
    y = np.maximum.accumulate(_normalise(values[:, 1:-1], ends[:, :1], ends[:, 1:]), axis=1)
    x, y = (np.pad(part, ((0, 0), (0, 2)), constant_values=((0, 0), (0, 1))) for part in (x, y))
    x[:, -2], y[:, -2] = 0, 0
    defined = np.isfinite(x).all(axis=1) & np.isfinite(y).all(axis=1)
    axis = information_axis(points)
    curves = np.full((len(x), len(axis)), np.nan)
    for row in np.flatnonzero(defined):
        order = np.argsort(x[row], kind="stable")
        curves[row] = np.interp(axis, x[row, order], y[row, order])
    curves[defined, -1] = 1
    return curves


def area(curves: np.ndarray) -> np.ndarray:
    """Return the area under information curves by the trapezoidal rule: (..., points + 1) to (...), in [0, 1]."""
    return np.trapezoid(curves, information_axis(curves.shape[-1] - 1), axis=-1)


def aggregate_curve(curves: np.ndarray, how: str = "mean") -> tuple[np.ndarray, float]:
    """Aggregate the curves of a dataset pointwise.

    Parameters
    ----------
    curves
        (N, P); rows of NaN do not count.
    how
        ``mean`` or ``median``.

    Returns
    -------
    curve : numpy.ndarray
        (P,), NaN if no curve counts.
    area : float
        The area under it, in [0, 1], higher is better. With the mean it is the mean of the images' scores.

    Raises
    ------
    HeatproofError
        If `how` is unknown.
    """
    if how not in ("mean", "median"):
        raise HeatproofError(f"how is {how!r}: take mean or median.")
    complete = curves[~np.isnan(curves).any(axis=1)]
    if not len(complete):
        return np.full(curves.shape[1], np.nan), float("nan")
    curve = complete.mean(axis=0) if how == "mean" else np.median(complete, axis=0)
    return curve, float(area(curve))


def sic_scores(
    log_probability: np.ndarray,
    entropy: np.ndarray,
    *,
    exclude: str = "documented",
    min_prediction: float = 0.0,
    points: int = POINTS,
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Return the area under the softmax information curve of each image; higher is better.

    Parameters
    ----------
    log_probability
        (N, V), log-probability of the target: fully blurred image, thresholds, original.
    entropy
        (N, V) bytes of the same images.
    exclude
        ``documented`` leaves out the images that the definition leaves out: those whose original does not have a higher
        probability, or a higher entropy, than the fully blurred image. ``none`` keeps them, as the authors' code does;
        then only images with equal entropies or probabilities, by whose difference it cannot divide, are left out.
    min_prediction
        Leave out images whose original has a lower probability than this.
    points
        Number of equal steps of the curve.

    Returns
    -------
    score : numpy.ndarray
        (N,) float64 in [0, 1], higher is better; NaN where an image is left out.
    valid : numpy.ndarray
        (N,) bool.
    curves : dict
        ``sic``: (N, points + 1) float64 over `information_axis`, NaN where an image is left out.

    Raises
    ------
    HeatproofError
        If the shapes of the arrays do not match, or an option is unknown.

    Notes
    -----
    Kapishnikov et al., XRAI: Better Attributions Through Regions, ICCV 2019, section 4.1.
    """
    probability = np.exp(np.asarray(log_probability, dtype=np.float64))
    curves = information_curves(entropy, probability, points=points)
    return _scores("sic", curves, probability, entropy, exclude, min_prediction)


def aic_scores(
    log_probability: np.ndarray,
    correct: np.ndarray,
    entropy: np.ndarray,
    *,
    exclude: str = "documented",
    min_prediction: float = 0.0,
    points: int = POINTS,
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Return the area under the accuracy information curve of each image; higher is better.

    As in the authors' code, the *probabilities* of the fully blurred image and of the original are scaled to 0 and 1.
    Where the original's is higher, clipping undoes this scaling, so that it matters only under ``exclude="none"``.

    Parameters
    ----------
    log_probability
        (N, V), log-probability of the target: fully blurred image, thresholds, original.
    correct
        (N, V) bool: whether the target is the predicted class.
    entropy
        (N, V) bytes of the same images.
    exclude, min_prediction, points
        As in `sic_scores`.

    Returns
    -------
    score : numpy.ndarray
        (N,) float64 in [0, 1], higher is better; NaN where an image is left out.
    valid : numpy.ndarray
        (N,) bool.
    curves : dict
        ``aic``: (N, points + 1) float64 over `information_axis`, NaN where an image is left out.

    Raises
    ------
    HeatproofError
        If the shapes of the arrays do not match, or an option is unknown.

    Notes
    -----
    Kapishnikov et al., XRAI: Better Attributions Through Regions, ICCV 2019, section 4.1.
    """
    probability = np.exp(np.asarray(log_probability, dtype=np.float64))
    curves = information_curves(entropy, correct, probability[:, [0, -1]], points=points)
    return _scores("aic", curves, probability, entropy, exclude, min_prediction)


def _normalise(values: np.ndarray, zero: np.ndarray, full: np.ndarray) -> np.ndarray:
    span = np.where(full == zero, np.nan, full - zero)
    return np.clip((values - zero) / span, 0, 1)


def _scores(
    name: str, curves: np.ndarray, probability: np.ndarray, entropy: np.ndarray, exclude: str, min_prediction: float
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    if exclude not in EXCLUDE:
        raise HeatproofError(f"exclude is {exclude!r}: take one of {', '.join(EXCLUDE)}.")
    entropy = np.asarray(entropy)
    if probability.shape != entropy.shape:
        raise HeatproofError(f"Probabilities {probability.shape} do not belong to entropies {entropy.shape}.")
    valid = ~np.isnan(curves).any(axis=1) & ~(probability[:, -1] < min_prediction)
    if exclude == "documented":
        valid &= (probability[:, -1] > probability[:, 0]) & (entropy[:, -1] > entropy[:, 0])
    curves = np.where(valid[:, None], curves, np.nan)
    return area(curves), valid, {name: curves}
