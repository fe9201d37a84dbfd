"""The reader of a network's outputs on a dataset."""

from __future__ import annotations

import torch

from heatproof.core.dataset import Dataset
from heatproof.core.output_reader import OutputReader
from heatproof.core.registry import import_callable, is_reference
from heatproof.core.specs import DatasetSpec
from heatproof.datasets.rows import Rows, unwrap_rows


def reader_of_dataset(spec: DatasetSpec, dataset: Dataset, target: str | int = "label") -> OutputReader:
    """Return the reader of a network's outputs on a dataset; its `classes` is the number of outputs to build.

    Parameters
    ----------
    spec, dataset
        Spec of the dataset, and the opened dataset.
    target
        The target of a run; a callable target is read in place of classes.

    Returns
    -------
    OutputReader
        A reader for the task of the dataset, or for the callable target.
    """
    outputs = 1 if spec.task == "binary" else unwrap_rows(dataset).num_classes
    if isinstance(dataset, Rows) and dataset.targets is not None and is_reference(str(target)):
        function = import_callable(str(target), "target")
        return OutputReader(function=function, targets=torch.from_numpy(dataset.targets), classes=outputs)
    # Without a task, a network with one output is binary and is read as two classes, whatever the config names it.
    return OutputReader(None if spec.task == "multiclass" else spec.task, classes=outputs)
