"""Map the classes of a folder to outputs of a network that has further classes or another order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from heatproof.datasets.lazy import FileList
from heatproof.errors import HeatproofError

IMAGENET = "imagenet"
LISTED_CLASSES = 3


class OutputNumbers:
    """Mapping from the classes of a folder to the output numbers of a network.

    Parameters
    ----------
    classes
        Classes of the folder, in the order of their labels.
    outputs
        ``imagenet`` if classes are WordNet ids, or a mapping from class to output number.
    count
        Number of outputs of the network; None for ``imagenet``, which has 1,000.

    Raises
    ------
    HeatproofError
        If a class has no output, two classes have the same, or an output number is out of range.
    """

    def __init__(self, classes: Sequence[str], outputs: str | Mapping[str, int], count: int | None) -> None:
        if isinstance(outputs, str):
            by_class, self.names = _imagenet(outputs)
            if count not in (None, len(self.names)):
                raise HeatproofError(f"num_outputs is {count}, and ImageNet has {len(self.names)}: leave it out.")
        else:
            if count is None:
                raise HeatproofError(
                    "`outputs` maps classes to outputs of a network, and num_outputs does not say how many it has: add "
                    "it, such as num_outputs: 1000."
                )
            # YAML reads classes that consist of digits as numbers.
            by_class = {str(name): number for name, number in outputs.items()}
            by_number = {number: name for name, number in by_class.items()}
            self.names = tuple(by_number.get(number, f"output {number}") for number in range(count))
        missing = [name for name in classes if name not in by_class]
        if missing:
            whose = "are not WordNet ids of ImageNet" if isinstance(outputs, str) else "are not in `outputs`"
            raise HeatproofError(
                f"{len(missing)} of {len(classes)} classes {whose}: "
                f"{', '.join(missing[:LISTED_CLASSES])}{' …' if len(missing) > LISTED_CLASSES else ''}. Rename or add "
                f"them, or give `outputs` as {{class: number}}."
            )
        self.numbers = np.array([by_class[name] for name in classes], dtype=np.int64)
        if self.numbers.min() < 0 or self.numbers.max() >= len(self.names):
            raise HeatproofError(
                f"`outputs` has numbers from {self.numbers.min()} to {self.numbers.max()}, and a network of "
                f"{len(self.names)} outputs has 0 to {len(self.names) - 1}: correct `outputs` or num_outputs."
            )
        if len(np.unique(self.numbers)) < len(self.numbers):
            raise HeatproofError("`outputs` gives one output to two classes: give each its own, or join their folders.")

    def relabel(self, listed: FileList) -> FileList:
        """Return the file list with output numbers as labels."""
        if listed.labels.ndim == 1:
            return listed._replace(labels=self.numbers[listed.labels])
        # Labels that the table does not have are unknown.
        labels = np.full((len(listed.labels), len(self.names)), -1, dtype=listed.labels.dtype)
        labels[:, self.numbers] = listed.labels
        return listed._replace(labels=labels)


def _imagenet(outputs: str) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return WordNet id to output number, and the names of the outputs, for networks of ImageNet-1k."""
    if outputs != IMAGENET:
        raise HeatproofError(f"`outputs` is {outputs!r}: it may be {IMAGENET}, or a mapping {{class: output number}}.")
    from timm.data import ImageNetInfo

    info = ImageNetInfo()
    ids = info.label_names()
    words = [info.label_name_to_description(wnid, detailed=False).partition(",")[0] for wnid in ids]
    # Two classes are called "crane".
    names = tuple(f"{word} ({wnid})" if words.count(word) > 1 else word for word, wnid in zip(words, ids, strict=True))
    return {wnid: number for number, wnid in enumerate(ids)}, names
