"""Plots of the results of the API: maps, curves and orders of methods, drawn on matplotlib axes."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np

from heatproof.core.named_axes import is_labelled_array
from heatproof.core.options import short_repr
from heatproof.errors import HeatproofError
from heatproof.report.figures.drawing import draw_colour_bar, draw_map
from heatproof.report.figures.pictures import describe_channels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Characters that fit on a line of a title.
TITLE_WIDTH = 28


def maps(
    made: Any, image: int | str = 0, picture: Any = None, axes: Sequence[Axes] | None = None, *, overlay: float = 0.0
) -> list[Axes]:
    """Draw the maps of one image side by side, each on its own scale, in the colours of all figures of heatproof.

    Positive values, which support the class, are red, negative values are blue, and zero is near-white. Colours
    saturate at the 99th percentile of the absolute values of each map. A colour bar explains this.

    Parameters
    ----------
    made
        The result of `heatproof.explain`, or maps of a run (`heatproof.open`).
    image
        Index or name of the image.
    picture
        The image itself, (C, H, W) or (H, W), which is drawn first. Its values are rescaled to the range of the
        display.
    axes
        One for each drawn image, starting with `picture`; by default a new figure. The colour bar takes space from
        them.
    overlay
        Opacity of the image, in grey, under its maps: 0 shows only the maps, 1 only the image.

    Returns
    -------
    list of matplotlib.axes.Axes

    Raises
    ------
    HeatproofError
        If the image does not exist, no method has a map of it, `picture` has another size than the maps, `overlay` is
        not in [0, 1] or lacks a picture, or there are too few axes.

    Examples
    --------
    >>> import torch, heatproof
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 4)).eval()
    >>> images = torch.rand(2, 3, 8, 8)
    >>> maps = heatproof.explain(model, images, torch.tensor([0, 1]), ["saliency"])
    >>> axes = heatproof.plot.maps(maps, image=1, picture=images[1])
    >>> len(axes)
    2
    """
    if not 0 <= overlay <= 1:
        raise HeatproofError(f"overlay is {overlay}: give a share from 0 to 1.")
    if overlay and picture is None:
        raise HeatproofError("`overlay` needs the image under the maps: pass `picture`, or leave `overlay` out.")
    row = _row(made, image)
    if "map" in made.dims:
        # Stores of a run name the dimension so.
        made = made.rename({"map": "method"})
    if "method" not in made.dims:
        made = made.expand_dims("method")
    map_values = made["attribution"].isel(image=row).transpose("method", "y", "x").values
    reasons = made["reason"].values if "reason" in made else np.full(made.sizes["method"], "")
    rows = zip(made["method"].values, map_values, np.atleast_1d(reasons), strict=True)
    drawn_maps = [(str(name), values) for name, values, reason in rows if not reason]
    if not drawn_maps:
        reason = next(iter(np.atleast_1d(reasons)), "the maps are of no method")
        raise HeatproofError(f"No method has a map of this image to draw, because {reason}.")
    names = [name for name, _ in drawn_maps]
    first = 0 if picture is None else 1
    count = len(names) + first
    if axes is None:
        axes = plt.subplots(1, count, figsize=(2.1 * count, 2.4), squeeze=False, layout="constrained")[1][0]
    if len(axes) < count:
        raise HeatproofError(f"{count} images need {count} axes, and {len(axes)} were passed: pass more.")
    if picture is not None:
        shape = made.sizes["y"], made.sizes["x"]
        pixels, description = _pixels(_of_image(picture, str(made["image"].values[row])), shape)
        axes[0].imshow(pixels, cmap="gray", interpolation="nearest")
        title = str(made["image"].values[row])
        axes[0].set_title("\n".join([title, *textwrap.wrap(description, TITLE_WIDTH)]), size=9)
    for (name, values), ax in zip(drawn_maps, list(axes)[first:], strict=False):
        if overlay:
            ax.imshow(pixels if pixels.ndim == 2 else pixels.mean(-1), cmap="gray", interpolation="nearest")
        draw_map(ax, values, alpha=1 - overlay)
        ax.set_title(name, size=9)
    for ax in axes:
        ax.set_axis_off()
    draw_colour_bar(axes[0].figure, ax=list(axes), shrink=0.8, aspect=26, pad=0.02)
    return list(axes)


def curves(result: Any, name: str | None = None, ax: Axes | None = None, band: bool = True) -> Axes:
    """Draw the mean response curve of each method over the share of the pixels that is changed.

    Parameters
    ----------
    result
        Result of `heatproof.evaluate` for a metric that has curves.
    name
        Name of the curve; by default the first.
    ax
        Axes to draw on; by default a new figure.
    band
        Whether to shade the standard error over images.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    HeatproofError
        If the result has no curves, or no curve of that name.
    """
    if not hasattr(result, "data_vars"):
        raise HeatproofError(
            f"The result is {type(result).__name__}: pass the result of heatproof.evaluate for one metric."
        )
    curve_names = [
        str(key) for key, values in result.data_vars.items() if values.dims[-1:] == ("step",) and "image" in values.dims
    ]
    if not curve_names:
        raise HeatproofError(f"The metric {result.attrs.get('metric', '')!r} has no curves to draw.")
    name = name or curve_names[0]
    if name not in curve_names:
        raise HeatproofError(f"The result has no curve {name!r}: take one of {', '.join(curve_names)}.")
    ax = _axes(ax)
    values = result[name] if "method" in result[name].dims else result[name].expand_dims("method")
    positions = result["share"].values if "share" in result.coords else np.arange(values.sizes["step"])
    methods = values["method"].values.tolist() if "method" in values.coords else [None]
    for method, method_curves in zip(methods, values.transpose("method", ...).values, strict=False):
        method_curves = method_curves[~np.isnan(method_curves).any(1)]
        if not len(method_curves):
            continue
        mean, error = (
            method_curves.mean(0),
            method_curves.std(0, ddof=1) / np.sqrt(len(method_curves))
            if len(method_curves) > 1
            else np.zeros(method_curves.shape[1]),
        )
        (line,) = ax.plot(positions, mean, label=method)
        if band:
            ax.fill_between(positions, mean - error, mean + error, color=line.get_color(), alpha=0.2, linewidth=0)
    ax.set(xlabel="share of the pixels that is changed" if "share" in result.coords else "step", ylabel=name)
    if "method" in values.coords:
        ax.legend(fontsize=8, frameon=False)
    return ax


def order(found: Any, measure: str | None = None, ax: Axes | None = None) -> Axes:
    """Draw the scores of methods with their intervals, best at the top; methods in the best set are filled.

    Parameters
    ----------
    found
        Result of `heatproof.choose` or `heatproof.compare`.
    measure
        Measure of a choice; by default the first.
    ax
        Axes to draw on; by default a new figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    HeatproofError
        If `found` is another object, or has no such measure.
    """
    table = getattr(found, "table", None)
    if table is None:
        raise HeatproofError(
            f"The order is {type(found).__name__}: pass the result of heatproof.choose or heatproof.compare."
        )
    if "kappa" in table:
        score, low, high, inside, label = "kappa", "ci_low", "ci_high", "in_best_set", "κ of Meta-Rank"
    else:
        score = label = measure or next(iter(found.measures))
        if score not in found.measures:
            raise HeatproofError(f"There is no measure {score!r}: take one of {', '.join(found.measures)}.")
        low, high, inside = f"{score}, low", f"{score}, high", "in_set"
    # The column is missing where there is no interval.
    displayed = table[table[score].notna()].sort_values(score).assign(filled=table[inside].eq(True).fillna(False))
    ax = _axes(ax)
    for position, row in enumerate(displayed.to_dict("records")):
        filled = "C0" if row["filled"] else "white"
        ax.plot([row[low], row[high]], [position, position], color="C0", linewidth=1.2)
        ax.plot(row[score], position, "o", markerfacecolor=filled, markeredgecolor="C0", markersize=5)
    # In a choice, a method that is not a contender has a score and a reason.
    outside = displayed["reason"] != "" if "reason" in displayed else np.zeros(len(displayed), dtype=bool)
    ax.set_yticks(range(len(displayed)), displayed["method"].where(~outside, displayed["method"] + " (excluded)"))
    ax.axvline(0, color="0.8", linewidth=0.8, zorder=0)
    ax.set(xlabel=f"{label}, higher is better")
    return ax


def _axes(ax: Axes | None) -> Axes:
    return plt.subplots(layout="constrained")[1] if ax is None else ax


def _row(made: Any, image: int | str) -> int:
    if "attribution" not in getattr(made, "data_vars", ()):
        raise HeatproofError(f"The maps are {type(made).__name__}: pass the result of heatproof.explain.")
    if "image" not in made.dims:
        raise HeatproofError("The maps are of one image, without a dimension 'image': select it with isel(image=[0]).")
    names = [str(name) for name in made["image"].values.tolist()]
    if isinstance(image, int | np.integer) and -len(names) <= image < len(names):
        return int(image)
    if not isinstance(image, str) or image not in names:
        raise HeatproofError(f"There is no image {short_repr(image)}: give a number below {len(names)}, or a name.")
    return int(names.index(image))


def _of_image(picture: Any, name: str) -> Any:
    """Return a labelled image (an xarray.DataArray) with its dimensions in standard order; other arrays unchanged."""
    if not is_labelled_array(picture):
        return picture
    coordinate = picture.coords.get("image")
    if "image" in picture.dims:
        if coordinate is None or name not in list(map(str, coordinate.values.tolist())):
            raise HeatproofError(f"`picture` has no image {name!r}: pass the image whose maps are drawn.")
        picture = picture.isel(image=list(map(str, coordinate.values.tolist())).index(name))
    elif coordinate is not None and str(coordinate.item()) != name:
        raise HeatproofError(
            f"`picture` is image {str(coordinate.item())!r}, but the maps are of {name!r}: pass the same image."
        )
    order = [axis for axis in ("channel", "y", "x") if axis in picture.dims]
    return picture.transpose(*order).values if len(order) == picture.ndim else picture.values


def _pixels(picture: Any, size: tuple[int, int]) -> tuple[np.ndarray, str]:
    """Return an image (H, W) or (H, W, C) in [0, 1], and how it is drawn if C is neither one nor three."""
    pixels = np.asarray(picture, dtype=np.float64)
    if pixels.ndim not in (2, 3) or pixels.shape[-2:] != size or pixels.shape[0] < 1:
        raise HeatproofError(
            f"The picture has the shape {pixels.shape}: give one of (channels, {size[0]}, {size[1]}), such as "
            "images[0]."
        )
    drawn = describe_channels(len(pixels)) if pixels.ndim == 3 else ""
    pixels = pixels.mean(axis=0) if drawn else pixels
    low, high = pixels.min(), pixels.max()
    pixels = (pixels - low) / (high - low if high > low else 1)
    return (pixels.transpose(1, 2, 0) if pixels.ndim == 3 else pixels), drawn
