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

from heatproof.core.named_axes import is_labelled_array
from heatproof.core.options import short_repr
from heatproof.core.plain_values import as_plain_values
from heatproof.core.tasks import CALLABLE, describe_targets
from heatproof.errors import HeatproofError

if TYPE_CHECKING:
    from heatproof.api.inputs.source import Inputs

IMAGE_DIGEST = "image_digest"
# Coordinates of maps that do not explain a class: the task, and for target functions a digest of function and target.
TASK, TARGET_DIGEST = "task", "target_digest"
# Dimensions of the options of metrics that are arrays, in the order that metrics expect.
AXES = {
    "ranking": ("image", "pixel"),
    "masks": ("image", "part", "y", "x"),
    "removed": ("image", "part", "channel", "y", "x"),
    "drops": ("image", "part"),
    "random_mask": ("y", "x"),
}
# The argument of `heatproof.explain` for targets that are not classes, and the plural, by the first word of a target's
# description.
TASK_ARGUMENTS = {"label": "task='multilabel'", "output": "task='regression'", "target": "the target function"}
PLURALS = {"class": "classes", "label": "labels", "output": "outputs", "target": "numbers of a target function"}


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
            f"The {what} are labelled {_join_first(ids)} and the images have no ids: give {plain} if both have the "
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
            f"The {what} are labelled {_join_first(ids)} and have no image {short_repr(missing)}: give those of these "
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
            map_kind, scored_kind = _target_word(labels.kind), _target_word(images.kind)
            raise HeatproofError(
                f"The maps explain {PLURALS[map_kind]}, but {PLURALS[scored_kind]} are scored: "
                f"{_remedy(map_kind, scored_kind)}."
            )
        raise HeatproofError(
            f"The {what} are of other images than {short_repr(name)}, by their coordinate {IMAGE_DIGEST}: give the "
            f"images of these {what}, or {what}.drop_vars({IMAGE_DIGEST!r}) if they are the same images in another "
            "form."
        )
    return np.array(rows)


def align_to_images(name: str, values: Any, images: Inputs) -> Any:
    """Return an array option of a metric, such as ``masks``, in the order of the images and the dimensions of `AXES`.

    Raises
    ------
    HeatproofError
        As `match_rows` does, or if the dimensions have other names.
    """
    rows = match_rows(values, images, name)
    if is_labelled_array(values):
        axes, dims = AXES[name], tuple(map(str, values.dims))
        if sorted(dims) != sorted(axes):
            # The second dimension of a ranking is that of pixels, whatever its name.
            if not (len(dims) == len(axes) == 2 and "image" in dims):
                raise HeatproofError(
                    f"The {name} have the dimensions {', '.join(dims)}: name them {', '.join(axes)}, or give the "
                    "array without names in this order."
                )
            axes = ("image", next(dim for dim in dims if dim != "image"))
        values = values.transpose(*axes).values
    elif hasattr(values, "iloc"):
        values = values.to_numpy()
    values = as_plain_values(values, name)
    if (
        rows is None
        and images.image_numbers is not None
        and len(values) == images.num_images
        and AXES[name][0] == "image"
    ):
        # All labels of an image share its entry.
        return values[images.image_numbers]
    return values if rows is None else values[rows]


def align_options(options: dict[str, Any], images: Inputs, aligned_by_id: dict[int, Any]) -> dict[str, Any]:
    """Return the options of a metric, with arrays in the order of the images and parts in the order of the masks.

    Parameters
    ----------
    options
        Options of one metric.
    images
        The scored images.
    aligned_by_id
        Cache of aligned arrays by the `id` of the original. Metrics with the same array then share network passes.
    """
    arrays = {name: value for name, value in options.items() if name in AXES and value is not None}
    parts = _parts_of(arrays.get("masks"))
    aligned = dict(options)
    for name, value in arrays.items():
        value_parts = _parts_of(value)
        if parts is not None and value_parts is not None and value_parts != parts:
            if sorted(value_parts) != sorted(parts) or len(set(value_parts)) < len(value_parts):
                raise HeatproofError(
                    f"The {name} are of the parts {_join_first(value_parts)} and the masks of {_join_first(parts)}."
                )
            value = value.isel(part=[value_parts.index(part) for part in parts])
            aligned[name] = align_to_images(name, value, images)
            continue
        if id(value) not in aligned_by_id:
            aligned_by_id[id(value)] = align_to_images(name, value, images)
        aligned[name] = aligned_by_id[id(value)]
    return aligned


def select_option_rows(options: dict[str, Any], rows: Any, count: int) -> dict[str, Any]:
    """Return the options of a metric for a subset of the images.

    Parameters
    ----------
    options
        Options from `align_options`.
    rows
        Numbers of the selected images.
    count
        Number of images before the selection.
    """
    of_images = [name for name, axes in AXES.items() if axes[0] == "image" and options.get(name) is not None]
    for name in of_images:
        if len(options[name]) != count:
            raise HeatproofError(f"The {name} are of {len(options[name])} images and {count} are given: give one each.")
    return {**options, **{name: options[name][rows] for name in of_images}}


def _parts_of(values: Any) -> list[str] | None:
    if is_labelled_array(values) and "part" in values.dims and "part" in values.coords:
        return [str(name) for name in values.coords["part"].values.tolist()]
    return None


class ScoredTargets(NamedTuple):
    """The targets whose maps are scored.

    Attributes
    ----------
    explained
        Description of the target of each image, as in `heatproof.api.inputs.source.Inputs.explained`.
    words, remedy
        Subject and verb of a message about a target, and the remedy if maps explain another target.
    """

    explained: Sequence[str]
    words: str = "its target is"
    remedy: str = "give targets=maps['target'], or maps that explain these targets"


def check_explained(explained: Sequence[str], scored: ScoredTargets, ids: Sequence[str]) -> None:
    """Check that labelled maps explain the targets that are scored.

    Parameters
    ----------
    explained
        Description of the target that the map of each image explains.
    scored
        The scored targets.
    ids
        Image ids.

    Raises
    ------
    HeatproofError
        If a map explains another target; the message has the image and both targets.
    """
    if len(explained) != len(ids):
        # The check of the shape of the maps reports a different number of maps and images.
        return
    differs = [described != wanted for described, wanted in zip(explained, scored.explained, strict=True)]
    first = differs.index(True) if any(differs) else None
    if first is None:
        return
    map_target, scored_target = explained[first], scored.explained[first]
    kinds = [description.partition(" ")[0] for description in (map_target, scored_target)]
    if kinds[0] == kinds[1] == "target":
        raise HeatproofError(
            f"The map of image {ids[first]!r} explains another target than the one that is scored: give the target "
            f"function and the targets that it was made with, or maps.drop_vars({TARGET_DIGEST!r}) if they are the "
            "same in another form."
        )
    if kinds[0] != kinds[1]:
        raise HeatproofError(
            f"The map of image {ids[first]!r} explains {_without_digest(map_target)} and {scored.words} "
            f"{_without_digest(scored_target)}: {_remedy(*kinds)}."
        )
    number = scored_target.partition(" ")[2] if kinds[0] == "class" else scored_target
    raise HeatproofError(
        f"The map of image {ids[first]!r} explains {map_target} and {scored.words} {number}: {scored.remedy}."
    )


def _target_word(kind: str) -> str:
    return describe_targets(kind, [""], [""] if kind == CALLABLE else None)[0].strip()


def _remedy(theirs: str, ours: str) -> str:
    """Return the remedy for maps that explain another kind of target than the scored one."""
    if theirs in TASK_ARGUMENTS:
        return f"give {TASK_ARGUMENTS[theirs]}, as the maps were made with"
    return f"leave {TASK_ARGUMENTS[ours]} out, or give maps that were made with it"


def _without_digest(explained: str) -> str:
    return "a function of outputs" if explained.startswith("target ") else explained


def _numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def _join_first(names: Sequence[str]) -> str:
    text = ", ".join(repr(name) for name in names[:3])
    return f"{text}, …" if len(names) > 3 else text
