"""Outputs for every label of the intact images, which give the accuracy of networks with several labels."""

from __future__ import annotations

from collections.abc import Sequence

from heatproof.responses.base import Arrays, Batch, Contents, MethodMaps, NetworkResponse, NetworkRun


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

    def contents(self, network_run: NetworkRun, size: tuple[int, int], names: Sequence[str]) -> Contents:
        """Return the labels as the dimension ``variant``."""
        names = list(network_run.dataset.class_names)
        return Contents({"variant": len(names)}, {"variant": names})

    def run(self, network_run: NetworkRun, batch: Batch, method_maps: MethodMaps | None) -> Arrays:
        """Run the network once on each image."""
        import torch

        labels = torch.arange(network_run.dataset.num_classes)
        query = network_run.query(batch, labels.expand(len(batch.ids), -1))
        return query.read(
            (query.match_layout(chunk), torch.arange(rows.start, rows.stop, device=query.device))
            for rows, chunk, _ in query.chunks()
        )
