"""Targets of images for a network in memory: classes, labels, outputs of a regression, or a target function.

In every case, the target of an image becomes the number of a column that
`heatproof.core.output_reader.OutputReader` returns: a class, a label, an output of a regression, or the number of a
unique target of a target function.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from heatproof.api.inputs.class_targets import check_targets
from heatproof.api.inputs.first_images import predict_classes
from heatproof.api.inputs.identity import identity_of
from heatproof.api.inputs.labels import labels_of, match_rows
from heatproof.api.inputs.maps import explained_classes, methods_of_maps
from heatproof.core.first_images import pass_as_check
from heatproof.core.named_axes import is_labelled_array
from heatproof.core.options import short_repr
from heatproof.core.output_reader import OutputReader
from heatproof.core.plain_values import as_plain_values
from heatproof.core.provenance import digest
from heatproof.core.tasks import CALLABLE, EXCLUSIVE, check_task, distinct_targets
from heatproof.errors import HeatproofError
from heatproof.explainers.registry import EXPLAINERS

if TYPE_CHECKING:
    from heatproof.api.inputs.source import Inputs
    from heatproof.core.network import Network

Target = Callable[[Any, Any], "torch.Tensor"]
OUTPUT_EXAMPLE = "target=lambda output, targets: output[:, 0]"


@dataclass(frozen=True)
class TargetSpec:
    """Specification of the explained output: the task of the network, or a target function.

    Attributes
    ----------
    task
        One of `heatproof.core.tasks.TASKS`; None for classes.
    target
        Function from the network's output and the targets of a batch to one number for each image; None without one.
    """

    task: str | None = None
    target: Target | None = None

    def __post_init__(self) -> None:
        check_task(self.task)
        if self.target is not None and not callable(self.target):
            raise HeatproofError(
                f"The target is {short_repr(self.target)}: give a function of a network's output and the targets of "
                "its images that returns one number for each image, and classes as `targets`."
            )
        if self.target is not None and self.task is not None:
            raise HeatproofError(
                f"A target function determines what is explained, whatever the task of the network: leave task="
                f"{self.task!r} out."
            )

    @property
    def kind(self) -> str:
        """``multilabel``, ``regression``, or ``callable`` for a target function; empty for classes."""
        if self.target is not None:
            return CALLABLE
        return "" if self.task in (None, *EXCLUSIVE) else str(self.task)

    def reader(self) -> OutputReader:
        """Return the reader of the network's output; `assign_targets` sets the targets of a target function in it."""
        return OutputReader(self.task, self.target)

    def identity(self, network: Any) -> list[str]:
        """Return strings that identify this target specification in every process.

        Raises
        ------
        HeatproofError
            If the state of the target function cannot be read.
        """
        if self.target is None:
            return [self.kind]
        try:
            return [CALLABLE, identity_of(self.target, network)]
        except HeatproofError as error:
            raise HeatproofError(
                f"Maps of the target function cannot be cached, because {error}: remove that from the function, or "
                "leave `cache` out."
            ) from None


def _identity_or_address(value: Any, network: Any = None) -> str:
    """Return a digest of a value; its type and memory address if its state cannot be read."""
    try:
        return identity_of(value, network)
    except HeatproofError:
        return f"{type(value).__name__} at {id(value)}"


def assign_targets(
    source: Inputs, targets: Any, target_spec: TargetSpec, network: Network | None, pairs: bool = True
) -> Inputs:
    """Return the images with the explained column of each.

    Parameters
    ----------
    source
        The images.
    targets
        Targets in the order of the images, as `heatproof.explain` takes them, or None.
    target_spec
        The task or the target function.
    network
        Network whose predictions are the targets if `targets` is None, and whose reader receives the unique targets of
        a target function. None to leave such targets open.
    pairs
        Whether every pair of an image and one of its labels is a row.

    Raises
    ------
    HeatproofError
        If the targets are invalid for the task or the target function.
    """
    source = replace(source, kind=target_spec.kind, targets=None, is_labelled=False)
    if target_spec.target is not None:
        return _with_function_targets(source, targets, target_spec.target, network)
    _check_no_methods(targets)
    if target_spec.kind == "regression":
        return _with_regression_targets(source, targets, network)
    if targets is None:
        if network is None:
            return source
        return replace(source, targets=predict_classes(network, source))
    if target_spec.kind == "multilabel":
        array = _as_array(targets)
        if getattr(array, "ndim", 1) == 2:
            if hasattr(targets, "columns") and not source.class_names:
                source = replace(source, class_names=tuple(map(str, targets.columns)))
            return _with_label_rows(source, multi_hot(array, len(source)), pairs)
        if isinstance(array, list | tuple | dict) and not np.all(
            [isinstance(number, int | np.integer) for number in array]
        ):
            raise HeatproofError(
                f"The targets are {type(targets).__name__} of {type(next(iter(array), None)).__name__}: give one "
                "column for each label, 1 where an image has it, 0 where it has not and -1 where that is not known."
            )
        targets = array
    return replace(source, targets=check_targets(targets, len(source)), is_labelled=True)


def _check_no_methods(targets: Any) -> None:
    """Refuse methods in the place of targets, which stand before the methods."""
    names = targets.tolist() if isinstance(targets, np.ndarray) and targets.dtype.kind in "UO" else targets
    names = [names] if isinstance(names, str) or callable(names) else names
    if not isinstance(names, list | tuple | dict) or not names:
        return
    if all(isinstance(name, str) and name in EXPLAINERS for name in names):
        raise HeatproofError(f"The targets are names of methods: did you mean methods={short_repr([*names])}?")
    if all(callable(name) or _names_methods(name) for name in names):
        raise HeatproofError("The targets are methods, which come after the targets: did you mean methods=[…]?")


def _names_methods(value: Any) -> bool:
    """Tell whether a value is the name of a method, or a mapping from such names, as `heatproof.explain` takes."""
    names = [value] if isinstance(value, str) else value
    return (
        isinstance(names, list | dict)
        and bool(names)
        and all(isinstance(name, str) and name in EXPLAINERS for name in names)
    )


def _as_array(targets: Any) -> Any:
    """Return targets as plain values of an array or a tensor if possible; the dimension of images comes first."""
    if is_labelled_array(targets):
        other_dims = [dim for dim in targets.dims if dim != "image"]
        targets = (targets.transpose("image", *other_dims) if "image" in targets.dims else targets).values
    if hasattr(targets, "iloc"):
        targets = targets.to_numpy()
    targets = as_plain_values(targets, "targets")
    if isinstance(targets, list | tuple) and targets and _is_row(targets[0]):
        with suppress(TypeError, ValueError):
            return np.asarray([row.detach().cpu().numpy() if hasattr(row, "detach") else row for row in targets])
    return targets


def _is_row(row: Any) -> bool:
    return isinstance(row, list | tuple | np.ndarray) or (hasattr(row, "detach") and row.ndim > 0)


def _floats(array: np.ndarray) -> np.ndarray:
    """Return numbers of any shape as float64; missing values of pandas become NaN."""
    if array.dtype.kind == "O":
        array = np.where(pd.isna(array), np.nan, array)
    return array.astype(np.float64)


def multi_hot(values: Any, count: int) -> torch.Tensor:
    """Return the labels of images, (N, K) int8: 1 present, 0 absent, -1 unknown.

    Raises
    ------
    HeatproofError
        If a value is none of these or NaN, or the number of rows is not N.
    """
    try:
        labels = values if isinstance(values, torch.Tensor) else torch.as_tensor(_floats(np.asarray(values)))
    except (TypeError, ValueError):
        raise HeatproofError(
            "The targets are no numbers: give 1 where an image has a label, 0 where it has not, and -1 where that is "
            "not known."
        ) from None
    labels = (labels if labels.layout == torch.strided else labels.to_dense()).detach().cpu().double()
    labels = torch.where(labels.isnan(), -1.0, labels)
    if len(labels) != count:
        raise HeatproofError(
            f"The targets have {len(labels)} rows and there are {count} images: give one row for each."
        )
    other = labels[(labels != 0) & (labels != 1) & (labels != -1)]
    if len(other):
        raise HeatproofError(
            f"The targets have the value {float(other[0]):g}: give 1 where an image has a label, 0 where it has not, "
            "and -1 or NaN where that is not known."
        )
    return labels.to(torch.int8)


def _with_label_rows(source: Inputs, labels: torch.Tensor, pairs: bool) -> Inputs:
    """Return a source with a row for every pair of an image and one of its labels."""
    source = replace(source, labels=labels, is_labelled=True)
    if not pairs:
        return source
    rows, columns = (labels == 1).nonzero(as_tuple=True)
    left_out = len(source) - len(rows.unique())
    if not len(rows):
        raise HeatproofError("No image has a label, so there is nothing to explain: give targets with at least one 1.")
    if left_out:
        warnings.warn(
            f"{left_out} of the {len(source)} images have no label, and are left out.", stacklevel=CALLER_STACKLEVEL
        )
    return replace(source.take(rows.tolist()), targets=columns, image_numbers=rows.tolist(), num_images=len(source))


# From `_of_labels` through `assign_targets` and `read_inputs` to the caller of a function of the API.
CALLER_STACKLEVEL = 5


def _with_regression_targets(source: Inputs, targets: Any, network: Network | None) -> Inputs:
    """Return the images with the explained output: the only one, or those that integer targets select."""
    values = None
    if targets is not None:
        values = _regression_values(_as_array(targets), len(source))
        source = replace(source, labels=values.double().cpu(), is_labelled=True)
    if network is None:
        return source
    count = pass_as_check(network, source.read([0])).shape[1]
    if count == 1:
        return replace(source, targets=torch.zeros(len(source), dtype=torch.int64))
    if values is None or values.ndim != 1 or values.is_floating_point():
        raise HeatproofError(
            f"The model returns {count} numbers for each image: select the explained one by integer targets, as "
            f"torch.full(({len(source)},), 0), or by {OUTPUT_EXAMPLE}."
        )
    return replace(source, targets=values.cpu().long())


def _regression_values(values: Any, count: int) -> torch.Tensor:
    """Return the values (N,) or (N, K) of a regression as a tensor."""
    try:
        array = np.asarray(values) if not isinstance(values, torch.Tensor) else values
        if not isinstance(array, torch.Tensor) and array.dtype.kind == "O":
            array = _floats(array)
        values = torch.as_tensor(array).detach()
    except (TypeError, ValueError, RuntimeError):
        raise HeatproofError(
            f"The targets of task='regression' are {type(values).__name__}: give one number for each of the {count} "
            "images."
        ) from None
    values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if values.is_complex() or values.dtype == torch.bool or values.ndim not in (1, 2) or len(values) != count:
        raise HeatproofError(
            f"The targets of task='regression' are {values.dtype} {tuple(values.shape)}: give one number for each of "
            f"the {count} images."
        )
    return values


def _with_function_targets(source: Inputs, targets: Any, function: Target, network: Network | None) -> Inputs:
    """Return the images with the number of the unique target of each."""
    array = _as_array(targets)
    if isinstance(array, np.ndarray) and array.dtype.kind in "biuf":
        # The target function receives tensors.
        targets = torch.from_numpy(np.array(array))
    elif not isinstance(targets, list | tuple):
        targets = array
    unique_targets, numbers = distinct_targets(targets, len(source))
    model = None
    if network is not None:
        network.reader.targets, model = unique_targets, network.module
    function_identity = _identity_or_address(function, model)
    digests = [digest([function_identity, _identity_or_address(target)]) for target in unique_targets]
    return replace(
        source,
        targets=torch.from_numpy(numbers),
        unique_targets=unique_targets,
        target_digests=[digests[number] for number in numbers.tolist()],
        is_labelled=targets is not None,
    )


def reported_targets(source: Inputs) -> np.ndarray:
    """Return the targets (N,) as they appear in results.

    These are column numbers, or for a target function its targets if all are integers or all are strings. Other targets
    of a target function are numbered in the order of their first image.
    """
    assert source.targets is not None, "read_inputs found them"
    columns = source.targets.cpu().numpy()
    if source.kind != CALLABLE:
        return columns
    targets = [target.item() if getattr(target, "ndim", 1) == 0 else target for target in source.unique_targets]
    for kinds in ((int,), (str,)):
        if all(isinstance(target, kinds) and not isinstance(target, bool) for target in targets):
            return np.array(targets)[columns]
    return columns


def labels_of_maps(maps: Any, source: Inputs, target_spec: TargetSpec, network: Network | None) -> Any:
    """Return the targets that labelled maps explain, as `assign_targets` takes them; None if maps have no targets.

    With several labels, these are all labels of an image that maps explain.
    """
    if target_spec.kind == CALLABLE:
        return None
    source = replace(source, kind=target_spec.kind)
    if target_spec.kind != "multilabel":
        return explained_classes(maps, source)
    for values in methods_of_maps(maps):
        if (labels := _labels_from_pairs(values, source, network)) is not None:
            return labels
    return explained_classes(maps, source)


def align_targets(targets: Any, source: Inputs, target_spec: TargetSpec, network: Network | None) -> Any:
    """Return labelled targets in the order of the images, and targets without labels unchanged.

    Raises
    ------
    HeatproofError
        If their labels are those of other images.
    """
    # Such targets can be the coordinate of maps, which has a row for each label of an image.
    can_be_pairs = target_spec.kind == "multilabel" and is_labelled_array(targets) and targets.ndim == 1
    if can_be_pairs and (labels := _labels_from_pairs(targets, source, network)) is not None:
        return labels
    rows = match_rows(targets, source, "targets")
    if rows is None:
        return targets
    return targets.isel(image=rows) if is_labelled_array(targets) else targets.iloc[rows]


def _labels_from_pairs(values: Any, source: Inputs, network: Network | None) -> np.ndarray | None:
    """Return the labels (N, K) of each image from labelled values, matched by content; None if they have none."""
    labels = labels_of(values)
    if labels is None or labels.digests is None or labels.targets is None or network is None:
        return None
    if labels.targets.dtype.kind not in "iu" or not set(source.digests) & set(labels.digests):
        return None
    rows_by_digest: dict[str, list[int]] = {}
    for row, image_digest in enumerate(source.digests):
        rows_by_digest.setdefault(image_digest, []).append(row)
    width = max(pass_as_check(network, source.read([0])).shape[1], int(labels.targets.max(initial=0)) + 1)
    multi_hot_labels = np.zeros((len(source), width), dtype=np.int8)
    for image_digest, label in zip(labels.digests, labels.targets.tolist(), strict=True):
        multi_hot_labels[rows_by_digest.get(image_digest, []), label] = 1
    return multi_hot_labels
