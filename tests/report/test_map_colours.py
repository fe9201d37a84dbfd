"""Positive relevance has the same colour in all figures. The map is positive on the left and negative on the right."""

import io
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

import heatproof
from heatproof.report.figures import drawing, map_figure, montage, pictures

SIDE = 32
MAP = np.ones((SIDE, SIDE), dtype=np.float32)
MAP[:, SIDE // 2 :] = -1
SOURCE = Path(heatproof.__file__).parent


def pixels_of(figure, axes):
    """Return the colour (RGB) that is drawn in the left and in the right half of axes."""
    FigureCanvasAgg(figure).draw()
    drawn = np.asarray(figure.canvas.buffer_rgba())[..., :3].astype(int)
    box = axes.get_window_extent()
    # Pixels away from the lines of a grid and the numbers in its patches.
    row = drawn.shape[0] - round(box.y0 + 0.6 * box.height)
    return [drawn[row, round(box.x0 + share * box.width)] for share in (0.1, 0.9)]


def explained(values):
    dims = ("method", "image", "y", "x")
    return xr.Dataset({"attribution": (dims, values[None, None])}, {"method": ["m"], "image": ["i"]})


def plotted(**options):
    *_, axes = heatproof.plot.maps(explained(MAP), **options)
    return axes.figure, axes


def overlaid():
    image = np.ones((SIDE, SIDE))
    image[0, 0] = 0
    return plotted(picture=image, overlay=0.4)


def maps_show():
    figure = map_figure._figure(np.zeros((SIDE, SIDE, 3)), [map_figure.Panel("m", MAP)], None, None, ("", ""))
    return figure, figure.axes[1]


def drops():
    """Draw the drops of patches over the image: on the left, deleting a patch lowers the output."""
    patch_drops = map_figure.PatchDrops(2, "mean", np.array([1.0, -1, 1, -1]), 1.0, 0)
    figure = map_figure._figure(np.ones((SIDE, SIDE, 3)), [map_figure.Panel("m", MAP)], None, patch_drops, ("", ""))
    return figure, figure.axes[1]


def montaged():
    scores, means = pd.DataFrame([[0.5]], ["m"], ["i"]), pd.Series({"m": 0.5})
    figure = montage.draw_montage(np.zeros((1, 3, SIDE, SIDE)), {"m": MAP[None]}, means, scores, "title")
    return figure, next(axes for axes in figure.axes if axes.images and axes.images[0].get_array().shape == MAP.shape)


def on_pages():
    """Draw the small maps of the index page and of the page of maps."""
    figure = Figure()
    axes = figure.add_axes((0, 0, 1, 1))
    axes.imshow(Image.open(io.BytesIO(pictures.map_png(MAP, SIDE)[0])).convert("RGB"))
    return figure, axes


DRAWINGS = (plotted, maps_show, montaged, on_pages)


@pytest.mark.parametrize("draw", DRAWINGS, ids=lambda draw: draw.__name__)
def test_a_map_has_the_same_colours_everywhere(draw, monkeypatch):
    left, right = pixels_of(*draw())
    positive, negative = (np.array(colormaps[pictures.COLOURS](end)[:3]) * 255 for end in (1.0, 0.0))
    np.testing.assert_allclose(left, positive, atol=2)
    np.testing.assert_allclose(right, negative, atol=2)
    assert left[0] > left[2], "positive is red"
    assert right[2] > right[0], "negative is blue"


@pytest.mark.parametrize("draw", [drops, overlaid])
def test_the_hues_are_the_same_over_an_image(draw):
    left, right = pixels_of(*draw())
    assert left[0] > left[2] + 30, "positive is red"
    assert right[2] > right[0] + 30, "negative is blue"


@pytest.mark.parametrize("draw", [plotted, overlaid, maps_show, montaged])
def test_a_colour_bar_has_labels_at_its_ends(draw):
    figure, _ = draw()
    FigureCanvasAgg(figure).draw()
    every = [axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]
    assert drawing.COLOUR_BAR_LABELS in [[label.get_text() for label in axis.get_ticklabels()] for axis in every]


def test_a_map_without_signs_is_white_to_red():
    (axes,) = heatproof.plot.maps(explained(np.maximum(MAP, 0)))
    left, right = pixels_of(axes.figure, axes)
    assert left[0] > left[2]
    assert right.min() > 240


def test_all_maps_are_drawn_with_one_colour_map():
    """Another module that draws maps, or with another colour map, fails here and has to be tested above."""
    named, users = {}, set()
    for path in SOURCE.rglob("*.py"):
        text, name = path.read_text(encoding="utf-8"), path.relative_to(SOURCE).as_posix()
        users |= {name} if re.search(r"\bdraw_map\(|\bmap_png\(", text) else set()
        for colour_map in re.findall(r"cmap\"?[=:] ?\"?(\w+)", text):
            named.setdefault(colour_map, set()).add(name)
    assert named.keys() == {"COLOURS", "gray", "viridis_r"}
    assert named["viridis_r"] == {"report/figures/overview.py"}, "shares of 0 to 1"
    assert users - {"report/figures/drawing.py", "report/figures/pictures.py"} == {
        "plot.py",
        "report/figures/map_figure.py",
        "report/figures/montage.py",
        "report/page/data.py",
        "report/figures/sorting.py",
    }


def test_an_overlay_needs_an_image_and_an_opacity():
    with pytest.raises(heatproof.HeatproofError, match="pass `picture`"):
        plotted(overlay=0.5)
    with pytest.raises(heatproof.HeatproofError, match="a share from 0 to 1"):
        plotted(picture=MAP, overlay=2)
