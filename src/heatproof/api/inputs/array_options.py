"""Options of metrics that are arrays, such as masks of parts, in the order of the images."""

from __future__ import annotations

from typing import Any

from heatproof.api.inputs.labels import join_first, match_rows
from heatproof.api.inputs.source import Inputs
from heatproof.core.named_axes import is_labelled_array
from heatproof.core.plain_values import as_plain_values
from heatproof.errors import HeatproofError

# Dimensions of the options of metrics that are arrays, in the order that metrics expect.
AXES = {
    "ranking": ("image", "pixel"),
    "masks": ("image", "part", "y", "x"),
    "removed": ("image", "part", "channel", "y", "x"),
    "drops": ("image", "part"),
    "random_mask": ("y", "x"),
}


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
                    f"The {name} are of the parts {join_first(value_parts)} and the masks of {join_first(parts)}."
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
