"""`heatproof maps show`: an image beside its attribution maps."""

from __future__ import annotations

import difflib
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import Normal, withStroke

from heatproof.base.grids import Grid, as_grid, grid_shape, grid_sort_key, patch_sums
from heatproof.base.methods import ABS_SUFFIX, Method
from heatproof.base.registry import suggest_name
from heatproof.base.tasks import task_provides
from heatproof.data.checks import open_dataset
from heatproof.errors import HeatproofError
from heatproof.files.reading import resolve_user_folder
from heatproof.files.writing import atomic_write
from heatproof.metrics.arrays import spearman_rows
from heatproof.plan.folder import NO_MODEL
from heatproof.report.figures.drawing import broken, draw_colour_bar, draw_map, lay_out, look, new_figure, plain
from heatproof.report.figures.pictures import COLOURS, PERCENTILE, channels_last, describe_channels, label_of
from heatproof.report.results import formatted, rounded, score_told
from heatproof.report.stores import StoreInfo, dataset_of_store, read_store_info, stores_below
from heatproof.stores.rows import rows_of_store
from heatproof.stores.store import read
from heatproof.stores.stored_maps import stored_maps

DPI = 150
# Inches; the frame is what stands above and below all panels.
WIDTH, PANEL, GAP, FRAME, MARGIN = 5.5, 1.75, 0.22, 1.36, 0.3
HEAD, NOTE = 0.36, 0.3
SCALES = f"Each map has its own scale: colours are full at the {PERCENTILE:g}th percentile of its absolute values."


@dataclass(frozen=True)
class Panel:
    """One method's map of the image, or the reason why there is none."""

    method: str
    values: np.ndarray | None
    gap: str | None = None


@dataclass(frozen=True)
class Drops:
    """What the output of the image loses without each patch.

    Attributes
    ----------
    grid, baseline
        Of the patches.
    values
        (grid × grid,).
    logit
        Of the intact image.
    answer
        What the network decides, in words; "" where numbers are explained.
    of
        What is read: a logit, or the output that is explained.
    """

    grid: Grid
    baseline: str
    values: np.ndarray
    logit: float
    answer: str
    of: str = "logit"


def show(
    store: str | Path,
    image: str,
    methods: Sequence[str] | None,
    output: str | Path,
    *,
    grid: Grid | None = None,
    drops: bool = False,
    config: str | Path | None = None,
) -> None:
    """Draw an image beside its attribution maps.

    Parameters
    ----------
    store
        A ``.zarr`` map store, or the folder of a model's stores; with a folder, the reference maps of its dataset can
        be named too.
    image
        Number in the evaluation split, or image id.
    methods
        Names of methods, ``<map>`` or ``<map>_abs``; None for all maps of the store as they are.
    output
        Path of the picture; its ending decides the format (png, svg, pdf).
    grid
        Draw this grid of patches, a whole number or (rows, columns), with the sum of each patch.
    drops
        Draw the cached logit drops of the patches too, with `grid` or the only grid that there is, and the rank
        correlation of each map's patch sums with them.
    config
        The config that names the dataset, where that is code of one's own: what a store says of itself is not run.

    Raises
    ------
    HeatproofError
        If the store, the image, a method or the drops are not there, or the grid does not divide the maps.
    """
    grid = None if grid is None else as_grid(grid)
    store = resolve_user_folder(store)
    stores = _open(store)
    first = next(iter(stores.values()))
    image_id = _image_id(first, str(image))
    panels = [_panel(stores, method, image_id) for method in methods or stores]
    dropped = _drops(first, store, image_id, grid) if drops else None
    grid = dropped.grid if dropped else grid
    pixels, label = _input(first, image_id, config)
    number = first.image_ids.index(image_id)
    whose = f"{first.model} · {first.weights} weights" if first.model else "reference maps, no model"
    heading = f"{first.made_by['dataset']['name']} · {whose}", f"image {number}, {image_id} · label {label}"
    _save(_figure(pixels, panels, grid, dropped, heading), Path(output))


# ---- what is shown ---------------------------------------------------------------------------------------------------


def _open(store: Path) -> dict[str, StoreInfo]:
    """Map name to its store, those of the named store or folder first, then the reference maps."""
    own = [path for path in stores_below(store) if path == store or path.parent == store]
    if not own:
        below = sorted({str(path.parent) for path in stores_below(store)})
        hint = suggest_name(str(store), below) if below else "`heatproof maps ls` lists those that there are."
        raise HeatproofError(f"There is no map store in {store}{' itself' if below else ''}: {hint}")
    paths = own if store.suffix == ".zarr" else [*own, *stores_below(store.parents[1] / NO_MODEL / NO_MODEL)]
    stores: dict[str, StoreInfo] = {}
    for path in paths:
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
    # A map can be called like the absolute values of another one.
    known = {f"{name}{ABS_SUFFIX}": (name, "abs") for name in stores} | {name: (name, "raw") for name in stores}
    if method not in known:
        raise HeatproofError(f"There is no method named {method!r} here: {suggest_name(method, known)}")
    name, transform = known[method]
    stored = stores[name]
    if stored.gap:
        return Panel(method, None, stored.gap)
    shown = Method(method, stored.maps.index(name), transform)
    return Panel(method, shown.select_maps(stored_maps(stored.path, *_place(stored, image_id)))[0])


def _place(stored: StoreInfo, image_id: str) -> tuple[int, int]:
    if image_id not in stored.image_ids:
        raise HeatproofError(f"{stored.path} knows no image {image_id!r}: it was made from another dataset.")
    number = stored.image_ids.index(image_id)
    if not stored.has(number):
        raise HeatproofError(
            f"{stored.path} has no values for image {number}, {image_id!r}: {stored.images} of {len(stored.image_ids)} "
            "images were computed; raise evaluation.images in the config for more."
        )
    return number, number + 1


def _input(stored: StoreInfo, image_id: str, config: str | Path | None) -> tuple[np.ndarray, str]:
    """Return the image (H, W, 3), and what its label is called and how the image is drawn."""
    dataset = open_dataset(dataset_of_store(stored, config))
    ids = dataset.splits["evaluation"].ids
    if image_id not in ids:
        raise HeatproofError(
            f"The dataset behind {stored.path} no longer has the image {image_id!r}: run the workflow."
        )
    number = ids.index(image_id)
    image = dataset.images("evaluation", number, number + 1)[0]
    drawn = describe_channels(len(image))
    return np.clip(channels_last(image), 0, 1), label_of(dataset, number) + (f" · image {drawn}" if drawn else "")


def _drops(stored: StoreInfo, store: Path, image_id: str, grid: Grid | None) -> Drops:
    if stored.model is None:
        raise HeatproofError(f"The maps in {store} know no model, so there are no logit drops: name a model's folder.")
    folder = stored.path.parent
    # results/maps/<dataset>/<model>/<weights> stands beside results/drops/<dataset>/<model>/<weights>.
    root = folder.parents[3] / "drops" / folder.relative_to(folder.parents[2])
    found = [read_store_info(path) for path in stores_below(root)]
    grids = sorted({other.made_by["grid"] for other in found}, key=grid_sort_key)
    listed = ", ".join(map(str, grids))
    if not grids:
        raise HeatproofError(f"There are no logit drops in {root}: the workflow makes them.")
    if grid is None and len(grids) > 1:
        raise HeatproofError(f"There are logit drops for the grids {listed}: choose with --grid.")
    chosen = [other for other in found if other.made_by["grid"] == (grid or grids[0])]
    if not chosen:
        remedy = "add it to drops.grids in the config."
        raise HeatproofError(f"There are no logit drops for grid {grid} in {root}, only for {listed}: {remedy}")
    # Zeros are the default baseline; where there are several, the title says which one is shown.
    drops = next((other for other in chosen if other.made_by["baseline"] == "zeros"), chosen[0])
    place = _place(drops, image_id)
    logit = read(drops.path, "logit", *place)[0].astype(np.float64)
    task = rows_of_store(str(drops.path), 0).task
    if task == "multilabel":
        answer = "label found" if logit[0] > 0 else "label not found"
    elif task_provides(task, "decision"):
        answer = f"predicted class {int(read(drops.path, 'predicted', *place)[0, 0])}"
    else:
        answer = ""
    of = "logit" if answer else "output"
    made_by = drops.made_by
    return Drops(made_by["grid"], made_by["baseline"], logit[0] - logit[1:], float(logit[0]), answer, of)


# ---- how it is drawn -------------------------------------------------------------------------------------------------


@plain
def _figure(
    pixels: np.ndarray, panels: list[Panel], grid: Grid | None, drops: Drops | None, heading: tuple[str, str]
) -> Figure:
    # Numbers in patches need room, whatever the grid.
    side = max(PANEL, 0.4 * max(grid_shape(grid))) if grid else PANEL
    note = NOTE + (0.11 if grid else 0) + (0.11 if drops else 0)
    shown: list[Any] = ["input", *([drops] if drops else []), *panels]
    columns = min(len(shown), max(3, math.ceil(math.sqrt(len(shown) * 1.5))))
    rows = broken(shown, columns)
    height = FRAME + len(rows) * (side + HEAD + note)
    figure = new_figure(max(WIDTH, 2 * MARGIN + columns * (side + GAP)), height)
    figure.suptitle("\n".join(heading), x=0.02, ha="left", size=11, weight="bold")
    figure.supxlabel(SCALES, x=0.02, ha="left", size=6.5, color="0.35")
    laid = lay_out(figure, rows)
    for axes, panel in laid:
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set(color="0.6", linewidth=0.6)
        if isinstance(panel, Panel):
            title, said = panel.method, _draw_map(axes, panel, grid, drops, side)
        elif isinstance(panel, Drops):
            title, said = f"{panel.of} drop without patch", _draw_drops(axes, pixels, panel)
        else:
            title, said = "input image", ""
            axes.imshow(pixels, interpolation="nearest")
            _draw_grid(axes, pixels.shape[:2], grid or 1)
        # Characters that fit beside each other at 8 points; names break behind an underscore.
        lines = textwrap.wrap(title.replace("_", "_ "), int(side * 14))
        axes.set_title("\n".join(lines).replace("_ ", "_"), size=8, pad=4, linespacing=1.0)
        axes.set_xlabel(said, size=6.5, color="0.35", labelpad=3, linespacing=1.15)
    place: dict[str, Any] = {"ax": [axes for axes, _ in laid], "location": "bottom", "anchor": (0, 0)}
    draw_colour_bar(figure, shrink=0.4, aspect=26, **place)
    return figure


def _draw_map(axes: Axes, panel: Panel, grid: Grid | None, drops: Drops | None, side: float) -> str:
    """Draw a map, or why there is none; return what stands below it."""
    if panel.values is None:
        axes.set_facecolor("0.94")
        axes.set_box_aspect(1)
        reason = textwrap.fill(f"does not apply: {panel.gap}", int(side * 13))
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
            notes.append(f"rank correlation with drops {score_told(correlation)}")
    return "\n".join(notes)


def _draw_drops(axes: Axes, pixels: np.ndarray, drops: Drops) -> str:
    """Draw drops over a grey image; return what stands below them."""
    height, width = pixels.shape[:2]
    axes.imshow(0.55 + 0.45 * pixels.mean(-1), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    limit = float(np.abs(drops.values).max()) or 1.0
    tint, extent = drops.values.reshape(grid_shape(drops.grid)), (-0.5, width - 0.5, height - 0.5, -0.5)
    axes.imshow(tint, COLOURS, vmin=-limit, vmax=limit, alpha=0.55, extent=extent, interpolation="nearest")
    unit = _draw_numbers(axes, drops.values, (height, width), drops.grid)
    told = f", numbers{unit}" if unit else ""
    note = f"baseline {drops.baseline}{told}\n{drops.of} of the intact image {formatted(drops.logit, '.3g')}"
    return f"{note}\n{drops.answer}".rstrip()


def _draw_grid(axes: Axes, shape: tuple[int, ...], grid: Grid) -> None:
    # Dark on light, so that the lines are seen on any image.
    light = [withStroke(linewidth=1.4, foreground="white", alpha=0.35), Normal()]
    for draw, length, count in zip((axes.axhline, axes.axvline), shape, grid_shape(grid), strict=True):
        for step in range(1, count):
            draw(length * step / count - 0.5, color="0.25", linewidth=0.5, path_effects=light)


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _draw_numbers(axes: Axes, values: np.ndarray, shape: tuple[int, ...], grid: Grid) -> str:
    """Draw the grid and a number in each patch, all by one power of ten; return what to say of that power."""
    largest = float(np.abs(values).max())
    power = math.floor(math.log10(largest)) if largest else 0
    power = 0 if power in (0, 1) else power
    _draw_grid(axes, shape, grid)
    light = [withStroke(linewidth=1.6, foreground="white")]
    counts = grid_shape(grid)
    for patch, value in enumerate(values):
        sides = zip(divmod(patch, counts[1]), shape, counts, strict=True)
        y, x = ((place + 0.5) * length / count - 0.5 for place, length, count in sides)
        axes.text(x, y, rounded(value / 10**power, 1), size=6.5, ha="center", va="center", path_effects=light)
    return f" ×10{str(power).translate(_RAISED)}" if power else ""


def _save(figure: Figure, output: Path) -> None:
    try:
        with look(), atomic_write(output) as aside:
            figure.savefig(aside, format=output.suffix[1:] or "png", dpi=DPI)
    except ValueError:
        known = ", ".join(sorted(figure.canvas.get_supported_filetypes()))
        raise HeatproofError(f"{output} cannot be drawn as {output.suffix!r}: end it in one of {known}.") from None
    except OSError as error:
        raise HeatproofError(f"{output} cannot be written ({error.strerror}).") from None
