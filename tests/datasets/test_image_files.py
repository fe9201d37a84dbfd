"""Image files are read as torchvision reads them, and errors name unreadable files."""

import numpy as np
import pytest
from PIL import Image
from torchvision.transforms import InterpolationMode, v2

from heatproof.datasets.image_files import image_reader, read_image
from heatproof.errors import HeatproofError


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest", "lanczos"])
@pytest.mark.parametrize("shape", [(40, 61), (61, 40), (33, 33), (20, 47), (90, 35)])
@pytest.mark.parametrize(("size", "shorter"), [(28, 32), (33, 33), (15, 40)])
def test_resizing_and_cropping_are_those_of_torchvision(tmp_path, shape, size, shorter, interpolation):
    noise = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.png")
    transform = v2.Compose([v2.Resize(shorter, InterpolationMode(interpolation)), v2.CenterCrop(size)])
    expected = np.asarray(transform(Image.fromarray(noise))).transpose(2, 0, 1) / 255
    read = read_image(tmp_path / "a.png", size, shorter, interpolation)
    assert read.dtype == np.float32
    np.testing.assert_allclose(read, expected, atol=1e-6)


def test_images_are_resized_to_eight_sevenths_of_the_size_by_default(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (64, 80, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.png")
    default = image_reader(28, None, "bilinear")([tmp_path / "a.png"])
    np.testing.assert_array_equal(default[0], read_image(tmp_path / "a.png", 28, 32))


@pytest.mark.parametrize("mode", ["L", "1", "P", "RGBA", "CMYK", "LA", "I;16"])
def test_every_image_mode_becomes_three_channels(tmp_path, mode):
    grey = np.linspace(0, 255, 400).astype(np.uint8).reshape(20, 20)
    if mode == "I;16":
        # Meaningless low bytes, which a truncation to 8 bits would use.
        image = Image.fromarray(grey.astype(np.uint16) * 257 // 100 * 100)
        assert image.mode == mode
    else:
        image = Image.fromarray(grey).convert(mode)
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    image.save(path)
    read = read_image(path, 20, 20)
    assert read.shape == (3, 20, 20)
    np.testing.assert_array_equal(read[0], read[2])
    if mode not in ("1", "CMYK"):
        np.testing.assert_allclose(read[1], grey / 255, atol=0.6 / 255 if mode == "I;16" else 1e-6)


def test_grey_of_unknown_range_is_refused(tmp_path):
    Image.fromarray(np.linspace(-3, 900, 400, dtype=np.float32).reshape(20, 20)).save(tmp_path / "a.tif")
    with pytest.raises(HeatproofError, match=r"a\.tif cannot be read .*kind 'F', whose range is not known"):
        read_image(tmp_path / "a.tif", 8, 8)


def test_incomplete_image_files_are_refused(tmp_path):
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(tmp_path / "whole.jpg")
    (tmp_path / "half.jpg").write_bytes((tmp_path / "whole.jpg").read_bytes()[:900])
    (tmp_path / "text.jpg").write_text("hello")
    for name in ("half.jpg", "text.jpg"):
        with pytest.raises(HeatproofError, match=rf"{name} cannot be read \(.+\): repair or remove it"):
            read_image(tmp_path / name, 8, 8)
    with pytest.raises(HeatproofError, match=r"none\.jpg does not exist: unpack the dataset completely"):
        read_image(tmp_path / "none.jpg", 8, 8)


def test_a_crop_larger_than_the_resized_image_is_refused():
    with pytest.raises(HeatproofError, match="resize is 200 and size 224"):
        image_reader(224, 200, "bilinear")


@pytest.mark.parametrize(
    ("side", "shorter", "words"), [(28, 28, "not resized"), (20, 28, "scaled up to 28"), (64, 32, "resized to 32")]
)
def test_only_larger_images_are_resized_with_a_margin(tmp_path, side, shorter, words):
    noise = np.random.default_rng(0).integers(0, 256, (4, side, side, 3), dtype=np.uint8)
    for number, image in enumerate(noise):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    # One image of another size, which is read like the others of its dataset.
    Image.fromarray(np.zeros((90, 80, 3), dtype=np.uint8)).save(tmp_path / "9.png")
    paths = sorted(tmp_path.iterdir())
    fitted = image_reader(28, None, "bilinear").fitted(paths)
    assert fitted.shorter == shorter
    assert words in fitted.describe(paths)
    if side == 28:
        np.testing.assert_allclose(fitted(paths[:4]) * 255, noise.transpose(0, 3, 1, 2), atol=1e-3)
    assert image_reader(28, 32, "bilinear").fitted(paths).shorter == 32
