"""What a network says of every label of the intact images, which says how good it is on networks of several labels."""

from __future__ import annotations

from collections.abc import Sequence

from heatproof.responses.base import Along, Arrays, Batch, Contents, NetworkResponse, Session


class Answers(NetworkResponse):
    """Logits and probabilities of all labels for each intact image.

    Patch drops hold the labels that are explained, which are present: how often a network says so of absent ones needs
    these.
    """

    kind = "answers"

    @property
    def variants(self) -> int:
        """The intact image alone."""
        return 1

    def contents(self, session: Session, size: tuple[int, int], names: Sequence[str]) -> Contents:
        """Return the labels, which stand in the place of variants."""
        names = list(session.dataset.class_names)
        return Contents({"variant": len(names)}, {"variant": names})

    def run(self, session: Session, batch: Batch, along: Along | None) -> Arrays:
        """Run the network once on each image."""
        import torch

        labels = torch.arange(session.dataset.num_classes)
        query = session.query(batch, labels.expand(len(batch.ids), -1))
        return query.read(
            (query.like_images(chunk), torch.arange(rows.start, rows.stop, device=query.device))
            for rows, chunk, _ in query.chunks()
        )
