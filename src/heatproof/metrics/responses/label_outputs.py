"""Outputs for every label of the intact images, which give the accuracy of networks with several labels."""

from __future__ import annotations

from dataclasses import replace

from heatproof.core.batch import Arrays, Batch
from heatproof.core.lazy import torch
from heatproof.metrics.responses.base import Contents, FirstBatch, NetworkResponse


class LabelOutputs(NetworkResponse):
    """Logits and probabilities of all labels for each intact image.

    Patch drops have outputs for the explained labels only, which are present. False positives need the outputs for
    absent labels as well.
    """

    kind = "answers"

    @property
    def variants(self) -> int:
        """Number of variants: the intact image only."""
        return 1

    def contents(self, images: Batch, name: str, first: FirstBatch) -> Contents:
        """Return the labels as the dimension ``variant``."""
        names = list(images.dataset.class_names)
        return Contents({"variant": len(names)}, {"variant": names})

    def run(self, batch: Batch) -> Arrays:
        """Run the network once on each image."""
        from heatproof.core.passes import read_outputs

        labels = torch.arange(batch.dataset.num_classes)
        every_label = replace(batch, targets=labels.expand(len(batch.image_ids), -1))
        return read_outputs(every_label, batch.intact_images())
