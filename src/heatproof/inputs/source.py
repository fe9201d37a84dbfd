"""Images by number, wherever they come from, with the name and the class of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from heatproof.base.tasks import describe_targets
from heatproof.inputs.arrays import check_finite

if TYPE_CHECKING:
    import torch

# Images that are read at once where all are gone through.
READ_BATCH_SIZE = 64


@dataclass(frozen=True, eq=False)
class ImageSource:
    """Images of a caller.

    Attributes
    ----------
    ids
        N names.
    rows
        Function from row numbers to these images, (B, C, H, W); callers read by `read`.
    targets
        (N,) int64, the class of each; None where nothing says it.
    is_named
        Whether the names are the caller's own or those of files, and no numbers of ours.
    is_labelled
        Whether targets were given or come with the images; otherwise they are what the network predicts.
    is_checked
        Whether all values are known to be finite; otherwise this is seen when they are read.
    class_names
        Of a folder of class folders, in the order of their numbers, or of the columns of a table of labels; else empty.
    kind
        The task where targets are no classes that exclude each other, or ``callable``: a label, an output, or the
        number of a distinct target of a function. Empty for classes.
    labels
        What was given of each image in the place of a class: (N, K) int8 of several labels, 1 present, 0 absent and -1
        unknown; or numbers of a regression, (N,) or (N, K) float64. Else None.
    pictures
        For each row the number of the image that was given, where rows are pairs of an image and a label; else None.
    given
        How many images were given.
    distinct, target_digests
        Distinct targets of a function, and for each image what tells its function and target from others.
    """

    ids: list[str]
    rows: Callable[[Sequence[int]], torch.Tensor]
    targets: torch.Tensor | None = None
    is_named: bool = False
    is_labelled: bool = False
    is_checked: bool = False
    class_names: tuple[str, ...] = ()
    kind: str = ""
    labels: torch.Tensor | None = None
    pictures: list[int] | None = None
    given: int = 0
    unique_targets: Any = (None,)
    target_digests: list[str] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, rows: Sequence[int]) -> torch.Tensor:
        """Return some of the images, (B, C, H, W); those of a tensor share its memory.

        Raises
        ------
        HeatproofError
            If they cannot be read, or a value is not finite.
        """
        images = self.rows(rows)
        if not self.is_checked:
            check_finite(images, [self.ids[row] for row in rows])
        return images

    @cached_property
    def images(self) -> torch.Tensor:
        """All images at once, (N, C, H, W)."""
        return self.read(range(len(self)))

    @cached_property
    def digests(self) -> list[str]:
        """A digest of the content of each image; see `heatproof.inputs.finetuned.image_digests`."""
        from heatproof.inputs.finetuned import image_digests

        return [digest for _, part in self.batches() for digest in image_digests(part)]

    @property
    def explained(self) -> list[str]:
        """What is explained of each image, in words that are those of maps of the same alone."""
        assert self.targets is not None, "read_inputs found them"
        return describe_targets(self.kind, self.targets.tolist(), self.target_digests)

    @property
    def has_label_rows(self) -> bool:
        """Whether rows of one picture with other targets are rows of its labels, and no copies."""
        return bool(self.kind)

    def batches(self, size: int = READ_BATCH_SIZE) -> Iterator[tuple[range, torch.Tensor]]:
        """Yield row numbers and images of one batch after another."""
        for low in range(0, len(self), size):
            rows = range(low, min(low + size, len(self)))
            yield rows, self.read(rows)

    def take(self, rows: Sequence[int]) -> ImageSource:
        """Return a part of the images, with the names that they had."""
        chosen = list(rows)

        def read(inner: Sequence[int]) -> torch.Tensor:
            return self.rows([chosen[row] for row in inner])

        return replace(
            self,
            ids=[self.ids[row] for row in chosen],
            rows=read,
            targets=None if self.targets is None else self.targets[chosen],
            labels=None if self.labels is None else self.labels[chosen],
            pictures=None if self.pictures is None else [self.pictures[row] for row in chosen],
            target_digests=None if self.target_digests is None else [self.target_digests[row] for row in chosen],
        )


def source_of_tensor(images: torch.Tensor, names: list[str] | None = None) -> ImageSource:
    """Return a source of images that are in memory and whose values are finite."""

    def rows(wanted: Sequence[int]) -> torch.Tensor:
        # A slice keeps the memory format, and copies nothing.
        if isinstance(wanted, range) and wanted.step == 1:
            return images[wanted.start : wanted.stop]
        return images[list(wanted)]

    ids = [str(number) for number in range(len(images))] if names is None else names
    return ImageSource(ids, rows, is_named=names is not None, is_checked=True)
