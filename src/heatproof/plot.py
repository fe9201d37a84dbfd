"""Pictures of what the API returns: maps, curves and orders; matplotlib axes in, matplotlib axes out."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from heatproof.base.named_axes import is_labelled_array
from heatproof.base.options import short_repr
from heatproof.errors import HeatproofError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Letters beside each other over a picture.
LINE = 28


def maps(
    made: Any, image: int | str = 0, picture: Any = None, axes: Sequence[Axes] | None = None, *, overlay: float = 0.0
) -> list[Axes]:
    """Draw the maps of one image side by side, each on its own scale, in the colours of all pictures of heatproof.

    Positive values, which speak for the class, are red, negative ones blue, and zero is near-white. Colours are full at
    the 99th percentile of the absolute values of each map. A colour bar says so.

    Parameters
    ----------
    made
        What `heatproof.explain` returns, or maps of a run (`heatproof.open`).
    image
        Its number, or its name.
    picture
        The image itself, (C, H, W) or (H, W), which is drawn first; its values are stretched to what a screen shows.
    axes
        One for each, the picture's first; by default a new figure. The colour bar takes its room from them.
    overlay
        How much of the picture, in grey, is seen through its maps: from 0, none of it, to 1, nothing but it.

    Returns
    -------
    list of matplotlib.axes.Axes

    Raises
    ------
    HeatproofError
        If there is no such image, the picture is not one of the maps' size, `overlay` is not a share or has no picture,
        or there are too few axes.
    """
    import matplotlib.pyplot as plt

    from heatproof.report.figures.drawing import draw_colour_bar, draw_map

    if not 0 <= overlay <= 1:
        raise HeatproofError(f"overlay is {overlay}: give a share from 0 to 1.")
    if overlay and picture is None:
        raise HeatproofError("Maps cannot be laid over a picture that is not given: give `picture`, or no `overlay`.")
    row = _row(made, image)
    if "map" in made.dims:
        # As a store of a run has them.
        made = made.rename({"map": "method"})
    if "method" not in made.dims:
        made = made.expand_dims("method")
    of_image = made["attribution"].isel(image=row).transpose("method", "y", "x").values
    reasons = made["reason"].values if "reason" in made else np.full(made.sizes["method"], "")
    rows = zip(made["method"].values, of_image, np.atleast_1d(reasons), strict=True)
    drawn = [(str(name), values) for name, values, why in rows if not why]
    names = [name for name, _ in drawn]
    first = 0 if picture is None else 1
    count = len(names) + first
    if axes is None:
        axes = plt.subplots(1, count, figsize=(2.1 * count, 2.4), squeeze=False, layout="constrained")[1][0]
    if len(axes) < count:
        raise HeatproofError(f"{count} pictures are to be drawn, and there are {len(axes)} axes: give more.")
    if picture is not None:
        shape = made.sizes["y"], made.sizes["x"]
        pixels, said = _pixels(_of_image(picture, str(made["image"].values[row])), shape)
        axes[0].imshow(pixels, cmap="gray", interpolation="nearest")
        title = str(made["image"].values[row])
        axes[0].set_title("\n".join([title, *textwrap.wrap(said, LINE)]), size=9)
    for (name, values), one in zip(drawn, list(axes)[first:], strict=False):
        if overlay:
            one.imshow(pixels if pixels.ndim == 2 else pixels.mean(-1), cmap="gray", interpolation="nearest")
        draw_map(one, values, alpha=1 - overlay)
        one.set_title(name, size=9)
    for one in axes:
        one.set_axis_off()
    if names:
        draw_colour_bar(axes[0].figure, ax=list(axes), shrink=0.8, aspect=26, pad=0.02)
    return list(axes)


def curves(result: Any, name: str | None = None, ax: Axes | None = None, band: bool = True) -> Axes:
    """Draw the mean response curve of each method over the share of the pixels that is changed.

    Parameters
    ----------
    result
        Of `heatproof.evaluate` by a metric that has curves.
    name
        Which of its curves; by default its first.
    ax
        Where; by default a new figure.
    band
        Whether the standard error over images is shaded.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    HeatproofError
        If the result has no curves, or none of that name.
    """
    if not hasattr(result, "data_vars"):
        raise HeatproofError(f"The result is {type(result).__name__}: give that of one metric of heatproof.evaluate.")
    known = [
        str(key) for key, values in result.data_vars.items() if values.dims[-1:] == ("step",) and "image" in values.dims
    ]
    if not known:
        raise HeatproofError(f"The metric {result.attrs.get('metric', '')!r} has no curves to draw.")
    name = name or known[0]
    if name not in known:
        raise HeatproofError(f"The result has no curve {name!r}: take one of {', '.join(known)}.")
    ax = _axes(ax)
    values = result[name] if "method" in result[name].dims else result[name].expand_dims("method")
    at = result["share"].values if "share" in result.coords else np.arange(values.sizes["step"])
    methods = values["method"].values.tolist() if "method" in values.coords else [None]
    for method, own in zip(methods, values.transpose("method", ...).values, strict=False):
        own = own[~np.isnan(own).any(1)]
        if not len(own):
            continue
        mean, error = own.mean(0), own.std(0, ddof=1) / np.sqrt(len(own)) if len(own) > 1 else np.zeros(own.shape[1])
        (line,) = ax.plot(at, mean, label=method)
        if band:
            ax.fill_between(at, mean - error, mean + error, color=line.get_color(), alpha=0.2, linewidth=0)
    ax.set(xlabel="share of the pixels that is changed" if "share" in result.coords else "step", ylabel=name)
    if "method" in values.coords:
        ax.legend(fontsize=8, frameon=False)
    return ax


def order(found: Any, measure: str | None = None, ax: Axes | None = None) -> Axes:
    """Draw the scores of methods with their intervals, best at the top; those in the set of the best are filled.

    Parameters
    ----------
    found
        What `heatproof.choose` or `heatproof.compare` returns.
    measure
        Of a choice; by default its first.
    ax
        Where; by default a new figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    HeatproofError
        If it is something else, or has no such measure.
    """
    table = getattr(found, "table", None)
    if table is None:
        raise HeatproofError(
            f"The order is {type(found).__name__}: give what heatproof.choose or heatproof.compare returns."
        )
    if "kappa" in table:
        score, low, high, inside, label = "kappa", "ci_low", "ci_high", "in_best_set", "κ of Meta-Rank"
    else:
        score = label = measure or next(iter(found.measures))
        if score not in found.measures:
            raise HeatproofError(f"There is no measure {score!r}: take one of {', '.join(found.measures)}.")
        low, high, inside = f"{score}, low", f"{score}, high", "in_set"
    # Whether a method is inside is missing where there is no interval.
    shown = table[table[score].notna()].sort_values(score).assign(filled=table[inside].eq(True).fillna(False))
    ax = _axes(ax)
    for place, row in enumerate(shown.to_dict("records")):
        filled = "C0" if row["filled"] else "white"
        ax.plot([row[low], row[high]], [place, place], color="C0", linewidth=1.2)
        ax.plot(row[score], place, "o", markerfacecolor=filled, markeredgecolor="C0", markersize=5)
    # Of a choice, what has a score and a reason nonetheless.
    outside = shown["reason"] != "" if "reason" in shown else np.zeros(len(shown), dtype=bool)
    ax.set_yticks(range(len(shown)), shown["method"].where(~outside, shown["method"] + " (no contender)"))
    ax.axvline(0, color="0.8", linewidth=0.8, zorder=0)
    ax.set(xlabel=f"{label}, higher is better")
    return ax


def _axes(ax: Axes | None) -> Axes:
    import matplotlib.pyplot as plt

    return plt.subplots(layout="constrained")[1] if ax is None else ax


def _row(made: Any, image: int | str) -> int:
    if "attribution" not in getattr(made, "data_vars", ()):
        raise HeatproofError(f"The maps are {type(made).__name__}: give what heatproof.explain returns.")
    names = [str(name) for name in made["image"].values.tolist()]
    if isinstance(image, int | np.integer) and -len(names) <= image < len(names):
        return int(image)
    if not isinstance(image, str) or image not in names:
        raise HeatproofError(f"There is no image {short_repr(image)}: give a number below {len(names)}, or a name.")
    return int(names.index(image))


def _of_image(picture: Any, name: str) -> Any:
    """Return a labelled picture (an xarray.DataArray) with its dimensions in our order; anything else as it is."""
    if not is_labelled_array(picture):
        return picture
    known = picture.coords.get("image")
    if "image" in picture.dims:
        if known is None or name not in list(map(str, known.values.tolist())):
            raise HeatproofError(f"The picture has no image {name!r}: give that of the maps that are drawn.")
        picture = picture.isel(image=list(map(str, known.values.tolist())).index(name))
    elif known is not None and str(known.item()) != name:
        raise HeatproofError(f"The picture is of image {str(known.item())!r} and the maps are of {name!r}: give one.")
    order = [axis for axis in ("channel", "y", "x") if axis in picture.dims]
    return picture.transpose(*order).values if len(order) == picture.ndim else picture.values


def _pixels(picture: Any, size: tuple[int, int]) -> tuple[np.ndarray, str]:
    """Return a picture (H, W) or (H, W, C) in [0, 1], and how it is drawn where it has other than one or three C."""
    pixels = np.asarray(picture, dtype=np.float64)
    if pixels.ndim not in (2, 3) or pixels.shape[-2:] != size or pixels.shape[0] < 1:
        raise HeatproofError(
            f"The picture has the shape {pixels.shape}: give one of (channels, {size[0]}, {size[1]}), such as "
            "images[0]."
        )
    from heatproof.report.figures.pictures import describe_channels

    drawn = describe_channels(len(pixels)) if pixels.ndim == 3 else ""
    pixels = pixels.mean(axis=0) if drawn else pixels
    low, high = pixels.min(), pixels.max()
    pixels = (pixels - low) / (high - low if high > low else 1)
    return (pixels.transpose(1, 2, 0) if pixels.ndim == 3 else pixels), drawn
