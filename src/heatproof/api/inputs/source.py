"""Images of any origin, read by row number, with the id and the target of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from heatproof.api.inputs.arrays import check_finite
from heatproof.api.inputs.finetuned import tensor_digest
from heatproof.api.inputs.identity import identity_of
from heatproof.core.provenance import digest
from heatproof.core.tasks import describe_targets
from heatproof.datasets.probe_images import is_blank, probe_rows

if TYPE_CHECKING:
    from heatproof.core.batch import Batch

# Number of images per read when iterating over all images.
READ_BATCH_SIZE = 64


@dataclass(frozen=True, eq=False)
class Inputs:
    """Images of a caller, with ids and targets.

    Attributes
    ----------
    ids
        N image ids.
    load_rows
        Function from row numbers to images (B, C, H, W), without a check; use `read`.
    targets
        (N,) int64, the class of each image, or the column of the network's output; None if unknown.
    is_named
        Whether ids are those of the caller or of files; otherwise they are numbers of images.
    is_labelled
        Whether the caller passed targets, or they come with the images; otherwise the network predicted them.
    is_checked
        Whether all values are known to be finite; otherwise `read` checks them.
    class_names
        Names of class folders in the order of their numbers, or of the columns of a table of labels; else empty.
    kind
        ``multilabel``, ``regression`` or ``callable`` if targets are not classes but labels, outputs, or numbers of
        unique targets of a target function; empty for classes.
    labels
        Labels (N, K) int8 of ``multilabel``, 1 present, 0 absent and -1 unknown; or the values of a regression, (N,) or
        (N, K) float64. Else None.
    image_numbers
        For rows that are pairs of an image and a label, the number of the image of each row; else None.
    num_images
        Number of images, for rows that are pairs of an image and a label.
    unique_targets, target_digests
        Unique targets of a target function, and for each image a digest of the function and its target.
    """

    ids: list[str]
    load_rows: Callable[[Sequence[int]], torch.Tensor]
    targets: torch.Tensor | None = None
    is_named: bool = False
    is_labelled: bool = False
    is_checked: bool = False
    class_names: tuple[str, ...] = ()
    kind: str = ""
    labels: torch.Tensor | None = None
    image_numbers: list[int] | None = None
    num_images: int = 0
    unique_targets: Any = (None,)
    target_digests: list[str] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, rows: Sequence[int]) -> torch.Tensor:
        """Return the images (B, C, H, W) of the given rows; images of a tensor share its memory.

        Raises
        ------
        HeatproofError
            If they cannot be read, or a value is not finite.
        """
        images = self.load_rows(rows)
        if not self.is_checked:
            check_finite(images, [self.ids[row] for row in rows])
        return images

    @property
    def explained_targets(self) -> torch.Tensor:
        """(N,) targets that are explained."""
        assert self.targets is not None, "read_inputs found them"
        return self.targets

    @cached_property
    def probe_rows(self) -> list[int]:
        """Rows of the few images that decide whether a method is applicable."""
        return probe_rows(self.digests, lambda row: is_blank(self.read([row])[0]))

    @cached_property
    def keys(self) -> list[str]:
        """For each image a digest of its content, its name, which seeds random numbers, and its target."""
        digests, probe = self.digests, self.read([0])
        if probe.element_size() > 4:
            # Digests of images are computed from float32, which would confuse images of higher precision.
            digests = [identity_of(image) for _, part in self.batches() for image in part]
        targets = self.explained if self.kind else self.explained_targets.tolist()
        return [digest([str(probe.dtype), *parts]) for parts in zip(digests, self.ids, targets, strict=True)]

    @cached_property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        height, width = self.read([0]).shape[2:]
        return height, width

    def batch(self, template: Batch, rows: Sequence[int]) -> Batch:
        """Return a batch of the images of some rows, with the network and the settings of a template."""
        network = template.adapted
        return replace(
            template,
            images=network.copy_to_device(self.read(rows)),
            targets=self.explained_targets[rows].to(network.device),
            image_ids=tuple(self.ids[row] for row in rows),
        )

    @cached_property
    def images(self) -> torch.Tensor:
        """All images at once, (N, C, H, W)."""
        return self.read(range(len(self)))

    @cached_property
    def digests(self) -> list[str]:
        """A digest of the content of each image; see `heatproof.api.inputs.finetuned.tensor_digest`."""
        return [tensor_digest([image]) for _, part in self.batches() for image in part]

    @property
    def explained(self) -> list[str]:
        """Description of the target of each image, which is equal for two maps only if they explain the same target."""
        assert self.targets is not None, "read_inputs found them"
        return describe_targets(self.kind, self.targets.tolist(), self.target_digests)

    @property
    def has_label_rows(self) -> bool:
        """Whether rows of one image with different targets are its labels, and not copies of the image."""
        return bool(self.kind)

    def batches(self, size: int = READ_BATCH_SIZE) -> Iterator[tuple[range, torch.Tensor]]:
        """Yield the row numbers and images of each batch."""
        for low in range(0, len(self), size):
            rows = range(low, min(low + size, len(self)))
            yield rows, self.read(rows)

    def renamed(self, ids: list[str]) -> Inputs:
        """Return the images with other ids."""
        renamed = replace(self, ids=ids)
        vars(renamed)["digests"] = self.digests
        return renamed

    def take(self, rows: Sequence[int]) -> Inputs:
        """Return the source of the selected rows, which keep their ids."""
        chosen = list(rows)

        def read(inner: Sequence[int]) -> torch.Tensor:
            return self.load_rows([chosen[row] for row in inner])

        taken = replace(
            self,
            ids=[self.ids[row] for row in chosen],
            load_rows=read,
            targets=None if self.targets is None else self.targets[chosen],
            labels=None if self.labels is None else self.labels[chosen],
            image_numbers=None if self.image_numbers is None else [self.image_numbers[row] for row in chosen],
            target_digests=None if self.target_digests is None else [self.target_digests[row] for row in chosen],
        )
        if "digests" in vars(self):
            # Reading images again could take long.
            vars(taken)["digests"] = [self.digests[row] for row in chosen]
        return taken


def source_of_tensor(images: torch.Tensor, names: list[str] | None = None) -> Inputs:
    """Return the source of a tensor of images whose values are known to be finite."""

    def rows(numbers: Sequence[int]) -> torch.Tensor:
        # A slice keeps the memory format and does not copy.
        if isinstance(numbers, range) and numbers.step == 1:
            return images[numbers.start : numbers.stop]
        return images[list(numbers)]

    ids = [str(number) for number in range(len(images))] if names is None else names
    return Inputs(ids, rows, is_named=names is not None, is_checked=True)
