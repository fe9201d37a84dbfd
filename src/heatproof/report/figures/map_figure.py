"""The figure that `heatproof maps show` draws: an image and its attribution maps."""

from __future__ import annotations

import difflib
import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import Normal, withStroke

from heatproof.core.grids import Grid, as_grid, grid_shape, grid_sort_key, patch_sums
from heatproof.core.methods import ABS_SUFFIX, NO_MODEL, Method
from heatproof.core.registry import suggest_name
from heatproof.core.specs import DatasetSpec
from heatproof.core.tasks import task_provides
from heatproof.datasets.checks import open_dataset
from heatproof.errors import HeatproofError
from heatproof.metrics.arrays import spearman_rows
from heatproof.report.figures.drawing import (
    draw_colour_bar,
    draw_map,
    drawing_style,
    new_figure,
    panel_axes,
    plain_style,
    split_rows,
)
from heatproof.report.figures.pictures import COLOURS, PERCENTILE, channels_last, describe_channels, label_of
from heatproof.report.results import format_score, formatted, rounded
from heatproof.report.stores import StoreInfo, read_store_info, stores_below
from heatproof.store.reading import resolve_user_folder
from heatproof.store.rows import rows_of_store
from heatproof.store.stored_maps import stored_maps
from heatproof.store.writing import atomic_write
from heatproof.store.zarr_store import read

DPI = 150
# Inches. The frame is the space above and below all panels.
WIDTH, PANEL, GAP, FRAME, MARGIN = 5.5, 1.75, 0.22, 1.36, 0.3
HEAD, NOTE = 0.36, 0.3
SCALES = f"Each map has its own scale: colours are full at the {PERCENTILE:g}th percentile of its absolute values."


@dataclass(frozen=True)
class Panel:
    """The map of the image by one method, or the reason why the method is not applicable."""

    method: str
    values: np.ndarray | None
    gap: str | None = None


@dataclass(frozen=True)
class PatchDrops:
    """The drop of the output when each patch of the image is deleted.

    Attributes
    ----------
    grid, baseline
        The grid of the patches, and the baseline that replaces a deleted one.
    values
        (patches,), row by row: the output of the intact image less the output without the patch.
    logit
        The output of the intact image.
    answer
        The decision of the network, in words; "" for a regression.
    of
        The name of the output: ``logit``, or ``output`` for a regression.
    """

    grid: Grid
    baseline: str
    values: np.ndarray
    logit: float
    answer: str
    of: str = "logit"


def draw_maps(
    store: str | Path,
    image: str,
    methods: Sequence[str] | None,
    output: str | Path,
    dataset_of: Callable[[StoreInfo], DatasetSpec],
    *,
    grid: Grid | None = None,
    drops: bool = False,
) -> None:
    """Draw an image and its attribution maps.

    Parameters
    ----------
    store
        Path of a ``.zarr`` map store, or of the folder with the stores of a model. With a folder, `methods` can also
        name the reference maps of its dataset.
    image
        Number in the evaluation split, or image id.
    methods
        Names of methods, ``<map>`` or ``<map>_abs``. None draws all maps of the store without a transform.
    output
        Path of the figure. Its ending decides the format (png, svg, pdf).
    dataset_of
        Returns the spec of the dataset that a store was made from. It is called after the maps are read.
    grid
        Draw this grid of patches, an integer or (rows, columns), with the sum of each patch.
    drops
        Draw the cached logit drops of the patches too, on `grid` or on the only grid with cached drops, and the rank
        correlation of each map's patch sums with them.

    Raises
    ------
    HeatproofError
        If the store, the image, a method or the drops do not exist, or the grid does not divide the maps.
    """
    grid = None if grid is None else as_grid(grid)
    store = resolve_user_folder(store)
    stores = _open(store)
    first = next(iter(stores.values()))
    image_id = _image_id(first, str(image))
    panels = [_panel(stores, method, image_id) for method in methods or stores]
    dropped = _drops(first, store, image_id, grid) if drops else None
    grid = dropped.grid if dropped else grid
    pixels, label = _input(first, image_id, dataset_of)
    number = first.image_ids.index(image_id)
    whose = f"{first.model} · {first.weights} weights" if first.model else "reference maps, no model"
    heading = f"{first.made_by['dataset']['name']} · {whose}", f"image {number}, {image_id} · label {label}"
    _save(_figure(pixels, panels, grid, dropped, heading), Path(output))


# ---- content ---------------------------------------------------------------------------------------------------------


def _open(store: Path) -> dict[str, StoreInfo]:
    """Return the store of each map by its name: first those of the store or folder, then the reference maps."""
    store_paths = [path for path in stores_below(store) if path == store or path.parent == store]
    if not store_paths:
        below = sorted({str(path.parent) for path in stores_below(store)})
        hint = suggest_name(str(store), below) if below else "`heatproof maps ls` lists those that there are."
        raise HeatproofError(f"There is no map store in {store}{' itself' if below else ''}: {hint}")
    if store.suffix != ".zarr":
        store_paths += stores_below(store.parents[1] / NO_MODEL / NO_MODEL)
    stores: dict[str, StoreInfo] = {}
    for path in store_paths:
        stored = read_store_info(path)
        for name in stored.maps:
            stores.setdefault(name, stored)
    if not stores:
        raise HeatproofError(f"{store} holds no attribution maps: `heatproof maps ls` lists the stores that do.")
    return stores


def _image_id(stored: StoreInfo, image: str) -> str:
    if image.isdecimal() and int(image) < len(stored.image_ids):
        return stored.image_ids[int(image)]
    if image in stored.image_ids:
        return image
    close = difflib.get_close_matches(image, stored.image_ids, n=1)
    example = close[0] if close else stored.image_ids[0]
    raise HeatproofError(
        f"There is no image {image!r} in {stored.path}: give a number from 0 to {len(stored.image_ids) - 1}, or an id "
        f"such as {example!r}."
    )


def _panel(stores: dict[str, StoreInfo], method: str, image_id: str) -> Panel:
    # A map can have the name that the absolute values of another map have as a method.
    map_of_method = {f"{name}{ABS_SUFFIX}": (name, "abs") for name in stores}
    map_of_method |= {name: (name, "raw") for name in stores}
    if method not in map_of_method:
        raise HeatproofError(f"There is no method named {method!r} here: {suggest_name(method, map_of_method)}")
    name, transform = map_of_method[method]
    stored = stores[name]
    if stored.gap:
        return Panel(method, None, stored.gap)
    chosen = Method(method, index=stored.maps.index(name), transform=transform)
    return Panel(method, chosen.select_maps(stored_maps(stored.path, *_image_range(stored, image_id)))[0])


def _image_range(stored: StoreInfo, image_id: str) -> tuple[int, int]:
    if image_id not in stored.image_ids:
        raise HeatproofError(f"{stored.path} has no image {image_id!r}: it was made from another dataset.")
    number = stored.image_ids.index(image_id)
    if not stored.has(number):
        raise HeatproofError(
            f"{stored.path} has no values for image {number}, {image_id!r}: {stored.images} of {len(stored.image_ids)} "
            "images were computed; raise evaluation.images in the config for more."
        )
    return number, number + 1


def _input(stored: StoreInfo, image_id: str, dataset_of: Callable[[StoreInfo], DatasetSpec]) -> tuple[np.ndarray, str]:
    """Return the image (H, W, 3), and a text with the name of its label and how its channels are drawn."""
    dataset = open_dataset(dataset_of(stored))
    ids = dataset.splits["evaluation"].ids
    if image_id not in ids:
        raise HeatproofError(
            f"The dataset behind {stored.path} no longer has the image {image_id!r}: run the workflow."
        )
    number = ids.index(image_id)
    image = dataset.images("evaluation", number, number + 1)[0]
    drawn = describe_channels(len(image))
    return np.clip(channels_last(image), 0, 1), label_of(dataset, number) + (f" · image {drawn}" if drawn else "")


def _drops(stored: StoreInfo, store: Path, image_id: str, grid: Grid | None) -> PatchDrops:
    if stored.model is None:
        raise HeatproofError(f"The maps in {store} do not use a model and have no logit drops: name a model's folder.")
    folder = stored.path.parent
    # The maps are in results/maps/<dataset>/<model>/<weights>, the drops in results/drops/<dataset>/<model>/<weights>.
    root = folder.parents[3] / "drops" / folder.relative_to(folder.parents[2])
    stores = [read_store_info(path) for path in stores_below(root)]
    grids = sorted({other.made_by["grid"] for other in stores}, key=grid_sort_key)
    listed = ", ".join(map(str, grids))
    if not grids:
        raise HeatproofError(f"There are no logit drops in {root}: the workflow makes them.")
    if grid is None and len(grids) > 1:
        raise HeatproofError(f"There are logit drops for the grids {listed}: choose with --grid.")
    chosen = [other for other in stores if other.made_by["grid"] == (grid or grids[0])]
    if not chosen:
        remedy = "add it to drops.grids in the config."
        raise HeatproofError(f"There are no logit drops for grid {grid} in {root}, only for {listed}: {remedy}")
    # Zeros are the default baseline. The note below the panel names the baseline.
    drops = next((other for other in chosen if other.made_by["baseline"] == "zeros"), chosen[0])
    row_range = _image_range(drops, image_id)
    logit = read(drops.path, "logit", *row_range)[0].astype(np.float64)
    task = rows_of_store(str(drops.path), 0).task
    if task == "multilabel":
        answer = "label found" if logit[0] > 0 else "label not found"
    elif task_provides(task, "decision"):
        answer = f"predicted class {int(read(drops.path, 'predicted', *row_range)[0, 0])}"
    else:
        answer = ""
    of = "logit" if answer else "output"
    made_by = drops.made_by
    return PatchDrops(made_by["grid"], made_by["baseline"], logit[0] - logit[1:], float(logit[0]), answer, of)


# ---- drawing ---------------------------------------------------------------------------------------------------------


@plain_style
def _figure(
    pixels: np.ndarray, panels: list[Panel], grid: Grid | None, drops: PatchDrops | None, heading: tuple[str, str]
) -> Figure:
    # The numbers in patches do not shrink with the patches.
    side = max(PANEL, 0.4 * max(grid_shape(grid))) if grid else PANEL
    note = NOTE + (0.11 if grid else 0) + (0.11 if drops else 0)
    contents: list[Any] = ["input", *([drops] if drops else []), *panels]
    columns = min(len(contents), max(3, math.ceil(math.sqrt(len(contents) * 1.5))))
    rows = split_rows(contents, columns)
    height = FRAME + len(rows) * (side + HEAD + note)
    figure = new_figure(max(WIDTH, 2 * MARGIN + columns * (side + GAP)), height)
    figure.suptitle("\n".join(heading), x=0.02, ha="left", size=11, weight="bold")
    figure.supxlabel(SCALES, x=0.02, ha="left", size=6.5, color="0.35")
    laid = panel_axes(figure, rows)
    for axes, panel in laid:
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set(color="0.6", linewidth=0.6)
        if isinstance(panel, Panel):
            title, below = panel.method, _draw_map(axes, panel, grid, drops, side)
        elif isinstance(panel, PatchDrops):
            title, below = f"{panel.of} drop without patch", _draw_drops(axes, pixels, panel)
        else:
            title, below = "input image", ""
            axes.imshow(pixels, interpolation="nearest")
            _draw_grid(axes, pixels.shape[:2], grid or 1)
        # About 14 characters at 8 points fit into an inch. Names break behind an underscore.
        lines = textwrap.wrap(title.replace("_", "_ "), int(side * 14))
        axes.set_title("\n".join(lines).replace("_ ", "_"), size=8, pad=4, linespacing=1.0)
        axes.set_xlabel(below, size=6.5, color="0.35", labelpad=3, linespacing=1.15)
    bar: dict[str, Any] = {"ax": [axes for axes, _ in laid], "location": "bottom", "anchor": (0, 0)}
    draw_colour_bar(figure, shrink=0.4, aspect=26, **bar)
    return figure


def _draw_map(axes: Axes, panel: Panel, grid: Grid | None, drops: PatchDrops | None, side: float) -> str:
    """Draw a map, or the reason why there is none; return the text below the panel."""
    if panel.values is None:
        axes.set_facecolor("0.94")
        axes.set_box_aspect(1)
        reason = textwrap.fill(f"not applicable: {panel.gap}", int(side * 13))
        axes.text(0.5, 0.5, reason, size=6.5, color="0.3", ha="center", va="center", transform=axes.transAxes)
        return ""
    limit = draw_map(axes, panel.values)
    low, high = (formatted(value, ".2g") for value in (panel.values.min(), panel.values.max()))
    notes = [f"{low} to {high}, full colour ±{limit:.2g}" if limit else "zero everywhere"]
    if grid:
        sums = patch_sums(panel.values[None], grid)[0]
        notes.append("numbers are patch sums" + _draw_numbers(axes, sums, panel.values.shape, grid))
        if drops:
            correlation = spearman_rows(sums[None], drops.values[None])[0]
            notes.append(f"rank correlation with drops {format_score(correlation)}")
    return "\n".join(notes)


def _draw_drops(axes: Axes, pixels: np.ndarray, drops: PatchDrops) -> str:
    """Draw drops over the image in grey; return the text below the panel."""
    height, width = pixels.shape[:2]
    axes.imshow(0.55 + 0.45 * pixels.mean(-1), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    limit = float(np.abs(drops.values).max()) or 1.0
    tint, extent = drops.values.reshape(grid_shape(drops.grid)), (-0.5, width - 0.5, height - 0.5, -0.5)
    axes.imshow(tint, COLOURS, vmin=-limit, vmax=limit, alpha=0.55, extent=extent, interpolation="nearest")
    unit = _draw_numbers(axes, drops.values, (height, width), drops.grid)
    scaling = f", numbers{unit}" if unit else ""
    note = f"baseline {drops.baseline}{scaling}\n{drops.of} of the intact image {formatted(drops.logit, '.3g')}"
    return f"{note}\n{drops.answer}".rstrip()


def _draw_grid(axes: Axes, shape: tuple[int, ...], grid: Grid) -> None:
    # A dark line with a light outline is visible on any image.
    light = [withStroke(linewidth=1.4, foreground="white", alpha=0.35), Normal()]
    for draw, length, count in zip((axes.axhline, axes.axvline), shape, grid_shape(grid), strict=True):
        for step in range(1, count):
            draw(length * step / count - 0.5, color="0.25", linewidth=0.5, path_effects=light)


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _draw_numbers(axes: Axes, values: np.ndarray, shape: tuple[int, ...], grid: Grid) -> str:
    """Draw the grid and a number in each patch, all divided by one power of ten; return that factor as text."""
    largest = float(np.abs(values).max())
    power = math.floor(math.log10(largest)) if largest else 0
    power = 0 if power in (0, 1) else power
    _draw_grid(axes, shape, grid)
    light = [withStroke(linewidth=1.6, foreground="white")]
    counts = grid_shape(grid)
    for patch, value in enumerate(values):
        sides = zip(divmod(patch, counts[1]), shape, counts, strict=True)
        y, x = ((position + 0.5) * length / count - 0.5 for position, length, count in sides)
        axes.text(x, y, rounded(value / 10**power, 1), size=6.5, ha="center", va="center", path_effects=light)
    return f" ×10{str(power).translate(_RAISED)}" if power else ""


def _save(figure: Figure, output: Path) -> None:
    try:
        with drawing_style(), atomic_write(output) as aside:
            figure.savefig(aside, format=output.suffix[1:] or "png", dpi=DPI)
    except ValueError:
        endings = ", ".join(sorted(figure.canvas.get_supported_filetypes()))
        raise HeatproofError(f"{output} cannot be drawn as {output.suffix!r}: end it in one of {endings}.") from None
    except OSError as error:
        raise HeatproofError(f"{output} cannot be written ({error.strerror}).") from None
