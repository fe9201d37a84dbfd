"""Metrics over responses that belong to no sequence: information curves, random subsets, and changed images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np

from heatproof.bounds import Bounds, Count
from heatproof.errors import HeatproofError
from heatproof.metrics.curve import TARGETS
from heatproof.metrics.pic import POINTS, aic_scores, sic_scores
from heatproof.metrics.registry import Result, metric
from heatproof.metrics.subsets import infidelity_scores, sensitivity_n_scores
from heatproof.subsets import SAMPLES, SIZES

PIC = "Kapishnikov et al., XRAI, 2019, section 4.1; Walker et al. (MAS) 2024, section 2.2"
Target = Literal["label", "predicted"]


def picture_settings(
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    thresholds: Sequence[Annotated[float, Bounds(above=0, most=1)]] | None = None,
    masks: Literal["rank", "quantile"] = "rank",
    random_mask: np.ndarray | None = None,
) -> None:
    """Take the options of `heatproof.perturbation.pic.pic_responses`."""


def subset_settings(
    *,
    sizes: Sequence[Annotated[float, Bounds(above=0, below=1)]] = SIZES,
    samples: Annotated[int, Bounds(least=3)] = SAMPLES,
    baseline: str = "zeros",
    baseline_options: Mapping[str, Any] | None = None,
    output: Literal["logit", "probability"] = "logit",
) -> None:
    """Take the options of `heatproof.subsets.subset_masks` and of the responses."""


def change_settings(
    *,
    radius: Annotated[float, Bounds(least=0)] = 0.02,
    samples: Count = 10,
    norm: Annotated[float, Bounds(least=1)] = 2.0,
) -> None:
    """Take the options of `heatproof.perturbation.sensitivity.max_sensitivity`."""


def _which(target: str) -> int:
    if target not in TARGETS:
        raise HeatproofError(f"target is {target!r}: take one of {', '.join(TARGETS)}.")
    return TARGETS.index(target)


@metric("sic", higher_is_better=True, range=(0.0, 1.0), source=PIC, reads="pictures", settings=picture_settings)
def softmax_information(
    pictures: dict[str, np.ndarray],
    *,
    target: Target = "predicted",
    exclude: str = "documented",
    min_prediction: float = 0.0,
    points: int = POINTS,
) -> Result:
    """Area under the softmax information curve, the probability over the picture's entropy: higher is better.

    Options and result as in `heatproof.metrics.pic.sic_scores`.
    """
    which = _which(target)
    return sic_scores(
        pictures["log_probability"][..., which],
        pictures["entropy"],
        exclude=exclude,
        min_prediction=min_prediction,
        points=points,
    )


@metric("aic", higher_is_better=True, range=(0.0, 1.0), source=PIC, reads="pictures", settings=picture_settings)
def accuracy_information(
    pictures: dict[str, np.ndarray],
    *,
    target: Target = "predicted",
    exclude: str = "documented",
    min_prediction: float = 0.0,
    points: int = POINTS,
) -> Result:
    """Area under the accuracy information curve, right or wrong over the picture's entropy: higher is better.

    Options and result as in `heatproof.metrics.pic.aic_scores`.
    """
    which = _which(target)
    return aic_scores(
        pictures["log_probability"][..., which],
        pictures["predicted"] == pictures["classes"][:, which, None],
        pictures["entropy"],
        exclude=exclude,
        min_prediction=min_prediction,
        points=points,
    )


@metric(
    "sensitivity_n",
    higher_is_better=True,
    range=(-1.0, 1.0),
    source="Ancona et al., Towards better understanding of gradient-based attribution methods, 2018",
    reads="subsets",
    settings=subset_settings,
)
def sensitivity_n(
    maps: np.ndarray,
    drops: np.ndarray,
    masks: Sequence[np.ndarray],
    image_ids: Sequence[str],
    *,
    sizes: Sequence[float] = SIZES,
) -> Result:
    """Mean correlation of the attribution in random subsets with what the model loses without them: higher is better.

    As in `heatproof.metrics.subsets.sensitivity_n_scores`.
    """
    return sensitivity_n_scores(maps, drops, masks, image_ids, sizes=sizes)


@metric(
    "infidelity",
    higher_is_better=False,
    range=(0.0, np.inf),
    source="Yeh et al., On the (in)fidelity and sensitivity of explanations, 2019; captum.metrics.infidelity",
    reads="subsets",
    settings=subset_settings,
)
def infidelity(
    maps: np.ndarray,
    drops: np.ndarray,
    masks: Sequence[np.ndarray],
    image_ids: Sequence[str],
    *,
    sizes: Sequence[float] = SIZES,
    normalize: bool = True,
) -> Result:
    """Mean squared difference of the attribution in random subsets from what the model loses: lower is better.

    As in `heatproof.metrics.subsets.infidelity_scores`, which equals captum's for the same subsets.
    """
    return (*infidelity_scores(maps, drops, masks, image_ids, normalize=normalize), {})


@metric(
    "sensitivity_max",
    higher_is_better=False,
    range=(0.0, np.inf),
    source="Yeh et al. 2019; captum.metrics.sensitivity_max",
    reads="explanations",
    settings=change_settings,
)
def sensitivity_max(changes: np.ndarray) -> Result:
    """Largest relative change of the map among small random changes of the image: lower is better.

    Needs ``explain``; as in `heatproof.perturbation.sensitivity.max_sensitivity`.
    """
    return changes, np.isfinite(changes), {}
