import numpy as np
import pytest
from PIL import Image
from tiny_data import CONFIG, NAMED

from heatproof.errors import HeatproofError
from heatproof.report.figures import map_figure as module
from heatproof.report.figures.pictures import colour_limit, map_png
from heatproof.report.stores import _is_valid_made_by
from heatproof.workflow.commands.cli import main
from heatproof.workflow.commands.show_maps import show


def drawn(monkeypatch, *arguments, **options):
    """Call `show`, and return the panels that it drew."""
    seen = {}
    draw = module._figure

    def spy(pixels, panels, grid, drops, heading):
        seen.update(pixels=pixels, panels=panels, grid=grid, drops=drops, heading=heading)
        return draw(pixels, panels, grid, drops, heading)

    monkeypatch.setattr(module, "_figure", spy)
    show(*arguments, config=CONFIG, **options)
    return seen


def test_size_follows_the_number_of_panels(results, folder):
    show(folder, "0", ["gradient"], "few.png", config=CONFIG)
    show(folder, "0", ["gradient", "gradient_abs", "smooth", "variance", "random", "cam"], "many.png", config=CONFIG)
    few, many = Image.open("few.png").size, Image.open("many.png").size
    row = (module.PANEL + module.HEAD + module.NOTE) * module.DPI
    # Two panels need one row, seven need two.
    assert many[1] - few[1] == pytest.approx(row, abs=2)


def test_the_figure_draws_the_stored_maps(results, folder, monkeypatch):
    seen = drawn(monkeypatch, folder, "tiny-2", ["smooth", "smooth_abs", "random", "cam"], "a.png")
    smooth, absolute, random, cam = seen["panels"]
    np.testing.assert_array_equal(smooth.values, results["smooth"][2])
    np.testing.assert_array_equal(absolute.values, np.abs(results["smooth"][2]))
    np.testing.assert_array_equal(random.values, results["random"][2])
    assert cam.values is None
    assert cam.gap == "it has <b>no</b> layer"
    assert "image 2, tiny-2" in seen["heading"][1]
    assert "cat & dog" in seen["heading"][1]


def test_an_image_can_be_named_by_number_or_id(results, folder, monkeypatch):
    by_number = drawn(monkeypatch, folder, "0", ["gradient"], "a.png")
    by_id = drawn(monkeypatch, folder, NAMED, ["gradient"], "b.png")
    np.testing.assert_array_equal(by_number["pixels"], by_id["pixels"])


def test_without_names_all_maps_are_shown(results, folder, monkeypatch):
    seen = drawn(monkeypatch, f"{folder}/noise.zarr", "1", None, "a.png")
    assert [panel.method for panel in seen["panels"]] == ["smooth", "variance"]


def test_drops_are_drawn_on_their_grid(results, folder, monkeypatch):
    seen = drawn(monkeypatch, folder, "1", ["gradient"], "a.png", drops=True)
    assert seen["grid"] == 4
    assert seen["drops"].values.shape == (16,)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("0", ["gradeint"]), {}, r"did you mean 'gradient'\?"),
        (("9", ["gradient"]), {}, r"from 0 to 5"),
        (("tiny-22", ["gradient"]), {}, r"such as 'tiny-2'"),
        (("5", ["gradient"]), {}, r"4 of 6 images were computed"),
        (("0", ["gradient"]), {"grid": 5}, r"grid of 5 does not divide"),
        (("0", ["gradient"]), {"grid": 8, "drops": True}, r"no logit drops for grid 8"),
        (("0", ["gradient"]), {"grid": [4, 8], "drops": True}, r"no logit drops for grid 4x8"),
        (("0", ["gradient"]), {"grid": [4, 5]}, r"grid of \[4, 5\] does not divide"),
        (("0", ["gradient"]), {"grid": [4]}, r"grid must be .*\[rows, columns\]"),
    ],
)
def test_errors_are_one_sentence(results, folder, arguments, options, message):
    image, methods = arguments
    with pytest.raises(HeatproofError, match=message) as caught:
        show(folder, image, methods, "a.png", config=CONFIG, **options)
    assert "\n" not in str(caught.value)


def test_folders_without_maps_are_errors(results, folder, reference_folder):
    with pytest.raises(HeatproofError, match="no map store in results/maps/tiny itself"):
        show("results/maps/tiny", "0", None, "a.png")
    with pytest.raises(HeatproofError, match="do not use a model"):
        show(reference_folder, "0", ["random"], "a.png", drops=True)
    with pytest.raises(HeatproofError, match="cannot be drawn as"):
        show(folder, "0", ["gradient"], "a.docx", config=CONFIG)


def test_command_line_prints_the_path_or_one_line(results, folder, capsys):
    assert (
        main(
            ["maps", "show", folder, "--methods", "gradient,random", "--grid", "4", "--config", CONFIG, "-o", "out.png"]
        )
        == 0
    )
    assert capsys.readouterr().out == "out.png\n"
    assert main(["maps", "show", "nowhere"]) == 1
    assert capsys.readouterr().err.startswith("heatproof: There is no map store in nowhere")


def test_scale_ignores_outliers_and_zero_is_neutral(tmp_path):
    values = np.zeros((20, 20), np.float32)
    values[:, :10] = 1
    values[0, 0] = 1000
    assert colour_limit(values) == 1
    assert colour_limit(np.zeros((4, 4))) == 0
    sparse = np.zeros((20, 20))
    sparse[3, 3] = -2
    assert colour_limit(sparse) == 2
    for scale in (1, 1e-6, 1e6):
        path = tmp_path / "map.png"
        png, _ = map_png(values * scale, 96)
        path.write_bytes(png)
        pixels = np.asarray(Image.open(path).convert("RGB")).astype(int)
        # Zero is neutral at every scale, and positive values are red.
        assert (pixels[5, 15] > 240).all()
        assert pixels[5, 5, 0] > pixels[5, 5, 2] + 50


def test_large_maps_are_averaged_down():
    import io

    png, limit = map_png(np.ones((300, 150)), 96)
    assert Image.open(io.BytesIO(png)).size == (48, 96)
    assert limit == 1


def test_a_store_does_not_name_the_code_that_is_run(results, folder):
    with pytest.raises(HeatproofError, match="name your config with --config, because a store does not decide"):
        show(folder, "0", ["gradient"], "a.png")


@pytest.mark.parametrize(
    ("grid", "is_valid"),
    [(4, True), ([4, 8], True), (None, True), (0, False), ([4], False), ("4x8", False), (True, False)],
)
def test_a_store_with_an_invalid_grid_is_refused(grid, is_valid):
    assert _is_valid_made_by({"weights": "finetuned", "grid": grid, "baseline": "zeros"}) == is_valid


def test_drops_of_rows_and_columns_are_drawn_where_their_patches_are(results, folder, monkeypatch):
    drawn_at = []
    monkeypatch.setattr("matplotlib.axes.Axes.text", lambda self, x, y, *rest, **named: drawn_at.append((x, y)))
    show(folder, "0", ["gradient"], "a.png", config=CONFIG, grid=[2, 4])
    height, width = results["gradient"].shape[-2:]
    centres = [((c + 0.5) * width / 4 - 0.5, (r + 0.5) * height / 2 - 0.5) for r in range(2) for c in range(4)]
    np.testing.assert_allclose(drawn_at, centres)
