"""Match the rows of labelled arrays, such as maps, targets or rankings, to images.

Rows are matched by the content of the images if the array has the coordinate ``image_digest``, as results of
`heatproof.explain` have, otherwise by image ids that the caller passed. Ids that count from 0 cannot be used: they are
the same whether a caller has reordered images and maps together, or only the maps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from heatproof.api.inputs.explained_targets import TARGET_DIGEST, TASK, describe_other_task
from heatproof.core.named_axes import is_labelled_array
from heatproof.core.options import short_repr
from heatproof.core.tasks import CALLABLE, describe_targets
from heatproof.errors import HeatproofError

if TYPE_CHECKING:
    from heatproof.api.inputs.source import Inputs

IMAGE_DIGEST = "image_digest"


class Labels(NamedTuple):
    """The labels of the rows of an array.

    Attributes
    ----------
    ids
        Image ids; None without a coordinate ``image``.
    digests
        Digests of the contents of the images; None without a coordinate for them.
    targets
        Explained classes or other targets; None without a coordinate for them.
    is_default
        Whether the ids are the default index of a pandas table.
    kind
        The task if targets are not classes; else empty.
    target_digests
        Digests of the targets of a target function; else None.
    """

    ids: list[str] | None
    digests: list[str] | None
    targets: np.ndarray | None
    is_default: bool = False
    kind: str = ""
    target_digests: list[str] | None = None

    @property
    def explained(self) -> list[str] | None:
        """Description of the target of each row, as in `heatproof.api.inputs.source.Inputs.explained`, or None."""
        if self.targets is None or (self.kind == CALLABLE and self.target_digests is None):
            return None
        return describe_targets(self.kind, self.targets.tolist(), self.target_digests)


def labels_of(values: Any) -> Labels | None:
    """Return the labels of an xarray.DataArray with a dimension image, or of a pandas table; None without labels."""
    if hasattr(values, "iloc") and hasattr(values, "index"):
        ids = [str(name) for name in values.index.tolist()]
        # Every new table has an index that counts the rows.
        return Labels(ids, None, None, type(values.index).__name__ == "RangeIndex" and ids == _numbers(len(ids)))
    if not is_labelled_array(values) or "image" not in values.dims:
        return None

    def labels_along_image(name: str) -> np.ndarray | None:
        if name not in values.coords:
            return None
        coordinate = values.coords[name]
        if name != "image" and coordinate.ndim == 0:
            return np.full(values.sizes["image"], coordinate.values)
        return coordinate.values if coordinate.dims == ("image",) else None

    names, digests, of_targets, kind = (
        labels_along_image("image"),
        labels_along_image(IMAGE_DIGEST),
        labels_along_image(TARGET_DIGEST),
        labels_along_image(TASK),
    )
    if names is None and digests is None:
        return None
    return Labels(
        None if names is None else [str(name) for name in names.tolist()],
        None if digests is None else [str(digest) for digest in digests.tolist()],
        labels_along_image("target"),
        kind="" if kind is None or not len(kind) else str(kind[0]),
        target_digests=None if of_targets is None else [str(digest) for digest in of_targets.tolist()],
    )


def match_rows(values: Any, images: Inputs, what: str, explained: Sequence[str] | None = None) -> np.ndarray | None:
    """Return the row of labelled values that belongs to each image; None if rows are in the order of the images.

    Parameters
    ----------
    values
        Argument of a caller; the rows of one without labels are in the order of the images.
    images
        The images and their ids.
    what
        Name of the argument, for messages.
    explained
        Description of the explained target of each image, which distinguishes maps of equal images.

    Raises
    ------
    HeatproofError
        If the labels are those of other images, or do not determine the image of each row.
    """
    labels = labels_of(values)
    if labels is None:
        return None
    if labels.digests is not None:
        return _match_by_content(labels, images, what, explained)
    ids = labels.ids or []
    if ids == images.ids:
        return None
    if not images.is_named:
        if labels.is_default:
            return None
        plain = f"{what}.to_numpy()" if hasattr(values, "iloc") else f"image_ids={what}['image'].values"
        raise HeatproofError(
            f"The {what} are labelled {join_first(ids)} and the images have no ids: give {plain} if both have the "
            "same order, or pass image_ids."
        )
    places = {name: row for row, name in enumerate(ids)}
    missing = next((name for name in images.ids if name not in places), None)
    if labels.is_default:
        if missing is not None:
            return None
        raise HeatproofError(
            f"The index of the {what} counts from 0, and the images have these numbers as names in another order: give "
            f"{what}.to_numpy() if both have the same order, or an index with the names of the images."
        )
    if len(places) < len(ids):
        twice = next(name for name in ids if ids.count(name) > 1)
        raise HeatproofError(f"The {what} have the image {short_repr(twice)} twice: give each image once.")
    if missing is not None:
        raise HeatproofError(
            f"The {what} are labelled {join_first(ids)} and have no image {short_repr(missing)}: give those of these "
            "images, or an array without labels in their order."
        )
    return np.array([places[name] for name in images.ids])


def _match_by_content(labels: Labels, images: Inputs, what: str, explained: Sequence[str] | None) -> np.ndarray:
    """Match rows by the content of images; rows of equal images by explained target and id, then in order."""
    their_digests: list[tuple[Any, ...]] = list(zip(labels.digests or (), strict=True))
    our_digests: list[tuple[Any, ...]] = list(zip(images.digests, strict=True))
    count, their_count = len(our_digests), len(their_digests)
    their_targets = None if explained is None else labels.explained
    theirs_explained = [None] * their_count if their_targets is None else their_targets
    ours_explained = [None] * count if their_targets is None or explained is None else list(explained)
    their_ids = [None] * their_count if labels.ids is None else labels.ids
    our_ids = [None] * count if labels.ids is None else images.ids
    unused, rows = set(range(their_count)), [-1] * count
    for with_class, with_name in ((True, True), (True, False), (False, True), (False, False)):
        rest = defaultdict(list)
        for row in sorted(unused, reverse=True):
            key = their_digests[row], with_class and theirs_explained[row], with_name and their_ids[row]
            rest[key].append(row)
        for image in range(count):
            rows_left = rest.get(
                (our_digests[image], with_class and ours_explained[image], with_name and our_ids[image])
            )
            if rows[image] < 0 and rows_left:
                rows[image] = rows_left.pop()
                unused.discard(rows[image])
    # An image that occurs more often than its maps uses the same map again.
    reusable = {
        (digest, kind): row for row, (digest, kind) in enumerate(zip(their_digests, theirs_explained, strict=True))
    }
    rows = [
        reusable.get((our_digests[image], ours_explained[image]), -1) if row < 0 else row
        for image, row in enumerate(rows)
    ]
    if -1 in rows:
        name = images.ids[rows.index(-1)]
        if what == "maps" and labels.targets is not None and labels.kind != images.kind:
            # With several labels, only images that have some are rows, so the tasks may differ rather than the images.
            raise HeatproofError(describe_other_task(labels.kind, images.kind))
        raise HeatproofError(
            f"The {what} are of other images than {short_repr(name)}, by their coordinate {IMAGE_DIGEST}: give the "
            f"images of these {what}, or {what}.drop_vars({IMAGE_DIGEST!r}) if they are the same images in another "
            "form."
        )
    return np.array(rows)


def _numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def join_first(names: Sequence[str]) -> str:
    """Return the first three names, for a message."""
    text = ", ".join(repr(name) for name in names[:3])
    return f"{text}, …" if len(names) > 3 else text
