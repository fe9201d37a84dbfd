"""Metrics over responses that belong to no sequence: information curves, random subsets, and changed images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heatproof.metrics.curve import TARGETS
from heatproof.metrics.pic import POINTS, aic_scores, sic_scores
from heatproof.metrics.registry import Result, metric
from heatproof.metrics.subsets import infidelity_scores, sensitivity_n_scores
from heatproof.subsets import SAMPLES, SIZES

PIC = "Kapishnikov et al., XRAI, 2019, section 4.1; Walker et al. (MAS) 2024, section 2.2"
PICTURES = {"mean": None, "std": None, "thresholds": None, "masks": "rank", "random_mask": None}
SUBSETS = {"baseline": "zeros", "baseline_options": None, "samples": SAMPLES, "output": "logit"}


@metric("sic", higher_is_better=True, range=(0.0, 1.0), source=PIC, reads="pictures", settings=PICTURES)
def softmax_information(
    pictures: dict[str, np.ndarray],
    *,
    target: str = "predicted",
    exclude: str = "documented",
    min_prediction: float = 0.0,
    points: int = POINTS,
) -> Result:
    """Area under the softmax information curve, the probability over the picture's entropy: higher is better.

    Options and result as in `heatproof.metrics.pic.sic_scores`.
    """
    which = TARGETS.index(target)
    return sic_scores(
        pictures["log_probability"][..., which],
        pictures["entropy"],
        exclude=exclude,
        min_prediction=min_prediction,
        points=points,
    )


@metric("aic", higher_is_better=True, range=(0.0, 1.0), source=PIC, reads="pictures", settings=PICTURES)
def accuracy_information(
    pictures: dict[str, np.ndarray],
    *,
    target: str = "predicted",
    exclude: str = "documented",
    min_prediction: float = 0.0,
    points: int = POINTS,
) -> Result:
    """Area under the accuracy information curve, right or wrong over the picture's entropy: higher is better.

    Options and result as in `heatproof.metrics.pic.aic_scores`.
    """
    which = TARGETS.index(target)
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
    settings=SUBSETS,
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
    settings=SUBSETS,
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
    settings={"radius": 0.02, "samples": 10, "norm": 2.0},
)
def sensitivity_max(changes: np.ndarray) -> Result:
    """Largest relative change of the map among small random changes of the image: lower is better.

    Needs ``explain``; as in `heatproof.perturbation.sensitivity.max_sensitivity`.
    """
    return changes, np.isfinite(changes), {}
