"""SIC, AIC, sensitivity-n, infidelity and max-sensitivity as registered metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from heatproof.core.subsets import SIZES
from heatproof.errors import HeatproofError
from heatproof.metrics.pic import POINTS, aic_scores, sic_scores
from heatproof.metrics.registry import Result, metric
from heatproof.metrics.responses.curves import TARGETS
from heatproof.metrics.responses.information_curves import InformationCurves
from heatproof.metrics.responses.map_changes import MapChanges
from heatproof.metrics.responses.subsets import Subsets
from heatproof.metrics.subsets import infidelity_scores, sensitivity_n_scores

PIC = "Kapishnikov et al., XRAI, 2019, section 4.1; Walker et al. (MAS) 2024, section 2.2"
UNDEFINED = (
    "the metric divides by what the image has of probability and entropy above the wholly blurred one, which is not "
    "positive here, or its probability is below min_prediction: targets that the model predicts avoid the first"
)
Target = Literal["label", "predicted"]


def _target_index(target: str) -> int:
    if target not in TARGETS:
        raise HeatproofError(f"target is {target!r}: take one of {', '.join(TARGETS)}.")
    return TARGETS.index(target)


@metric(
    "sic",
    needs="probability",
    higher_is_better=True,
    range=(0.0, 1.0),
    source=PIC,
    reads=InformationCurves,
    measures="information",
    undefined=UNDEFINED,
)
def softmax_information(
    pictures: dict[str, np.ndarray],
    *,
    target: Target = "label",
    exclude: str = "documented",
    min_prediction: float = 0.0,
    points: int = POINTS,
) -> Result:
    """SIC: area under the probability over the image's entropy; higher is better.

    The options and the result are those of `heatproof.metrics.pic.sic_scores`.
    """
    index = _target_index(target)
    return sic_scores(
        pictures["log_probability"][..., index],
        pictures["entropy"],
        exclude=exclude,
        min_prediction=min_prediction,
        points=points,
    )


@metric(
    "aic",
    needs="decision",
    higher_is_better=True,
    range=(0.0, 1.0),
    source=PIC,
    reads=InformationCurves,
    measures="information",
    undefined=UNDEFINED,
)
def accuracy_information(
    pictures: dict[str, np.ndarray],
    *,
    target: Target = "label",
    exclude: str = "documented",
    min_prediction: float = 0.0,
    points: int = POINTS,
) -> Result:
    """AIC: area under the accuracy over the image's entropy; higher is better.

    The options and the result are those of `heatproof.metrics.pic.aic_scores`.
    """
    index = _target_index(target)
    return aic_scores(
        pictures["log_probability"][..., index],
        pictures["decided"][..., index],
        pictures["entropy"],
        exclude=exclude,
        min_prediction=min_prediction,
        points=points,
    )


@metric(
    "sensitivity_n",
    measures="deletion of random subsets",
    higher_is_better=True,
    range=(-1.0, 1.0),
    source="Ancona et al., Towards better understanding of gradient-based attribution methods, 2018",
    reads=Subsets,
    undefined="for subsets of one size the map has the same sum in all, or all cost the same when they are deleted",
)
def sensitivity_n(
    maps: np.ndarray,
    drops: np.ndarray,
    masks: Sequence[np.ndarray],
    image_ids: Sequence[str],
    *,
    sizes: Sequence[float] = SIZES,
) -> Result:
    """Sensitivity-n: correlation of attribution in random subsets with the logit drop; higher is better.

    See `heatproof.metrics.subsets.sensitivity_n_scores`.
    """
    return sensitivity_n_scores(maps, drops, masks, image_ids, sizes=sizes)


@metric(
    "infidelity",
    measures="deletion of random subsets",
    higher_is_better=False,
    range=(0.0, np.inf),
    source="Yeh et al., On the (in)fidelity and sensitivity of explanations, 2019; captum.metrics.infidelity",
    reads=Subsets,
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
    """Infidelity: mean squared difference of subset attribution and logit drop; lower is better.

    See `heatproof.metrics.subsets.infidelity_scores`, which equals captum's infidelity for the same subsets.
    """
    return (*infidelity_scores(maps, drops, masks, image_ids, normalize=normalize), {})


@metric(
    "sensitivity_max",
    # It compares maps and reads no output of the network.
    needs="number",
    higher_is_better=False,
    range=(0.0, np.inf),
    source="Yeh et al. 2019; captum.metrics.sensitivity_max",
    reads=MapChanges,
)
def sensitivity_max(changes: np.ndarray) -> Result:
    """Max-sensitivity: largest relative change of the map under small image noise; lower is better.

    Needs ``explain``. See `heatproof.core.perturb.sensitivity.max_sensitivity`.
    """
    return changes, np.isfinite(changes), {}
