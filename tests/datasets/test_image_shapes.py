"""Images that are not square, have one channel or all bands: cropping, resizing and errors."""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from heatproof.core.options import as_size_option, check_options, height_and_width
from heatproof.datasets.checks import check_dataset, check_image_files
from heatproof.datasets.image_files import CROP_DRAWS, crop_box, image_reader, read_image
from heatproof.datasets.image_folder import image_folder
from heatproof.errors import HeatproofError

RNG = np.random.default_rng(0)


def noise(*shape):
    return RNG.integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("shape", [(40, 61), (61, 40), (96, 128), (128, 96), (33, 90)])
@pytest.mark.parametrize(("size", "box"), [((24, 32), (27, 37)), ((32, 24), (32, 24)), ((10, 40), (15, 60))])
def test_an_image_is_resized_to_cover_the_box_and_cropped_at_the_centre(tmp_path, shape, size, box, interpolation):
    pixels = noise(*shape, 3)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    scale = max(box[0] / shape[0], box[1] / shape[1])
    # The limiting side has exactly the length of the box, and the other one is rounded down.
    resized = [max(side, int(length * scale + 1e-9)) for side, length in zip(box, shape, strict=True)]
    mode = v2.InterpolationMode(interpolation)
    transform = v2.Compose([v2.Resize(resized, mode), v2.CenterCrop(size)])
    expected = np.asarray(transform(Image.fromarray(pixels))).transpose(2, 0, 1) / 255
    read = read_image(tmp_path / "a.png", size, box, interpolation)
    assert read.shape == (3, *size)
    np.testing.assert_allclose(read, expected, atol=1e-6)


def test_a_square_as_a_pair_or_a_number_gives_identical_images(tmp_path):
    Image.fromarray(noise(50, 71, 3)).save(tmp_path / "a.png")
    paths = [tmp_path / "a.png"]
    for number, pair in ((32, [32, 32]), (50, [50, 50])):
        of_number, of_pair = image_reader(number, None, "bilinear"), image_reader(pair, None, "bilinear")
        assert of_number == of_pair
        np.testing.assert_array_equal(of_number.fitted(paths)(paths), of_pair.fitted(paths)(paths))
        assert of_number.describe(paths) == of_pair.describe(paths)
    of_number, of_pair = image_reader(32, 40, "bicubic"), image_reader([32, 32], [40, 40], "bicubic")
    np.testing.assert_array_equal(of_number(paths), of_pair(paths))
    draws = np.random.default_rng(1).random(CROP_DRAWS)
    np.testing.assert_array_equal(of_number.crop(paths[0], draws, 0.2), of_pair.crop(paths[0], draws, 0.2))
    assert crop_box(50, 71, draws, 0.2) == crop_box(50, 71, draws, 0.2, 1)


@pytest.mark.parametrize(
    ("side", "box", "words"),
    [
        ((96, 128), (96, 128), "96×128 pixels: not resized, 96×128 at the centre"),
        ((48, 64), (96, 128), "48×64 pixels: scaled up to cover 96×128, 96×128 at the centre"),
        ((192, 256), (110, 146), "192×256 pixels: resized to cover 110×146, 96×128 at the centre"),
        # Its height is that of the crop, so that it is not enlarged.
        ((96, 400), (96, 128), "96×400 pixels: not resized, 96×128 at the centre"),
    ],
)
def test_only_larger_images_are_resized_with_a_margin(tmp_path, side, box, words):
    for number in range(3):
        Image.fromarray(noise(*side, 3)).save(tmp_path / f"{number}.png")
    paths = sorted(tmp_path.glob("*.png"))
    fitted = image_reader([96, 128], None, "bilinear").fitted(paths)
    assert fitted.box == box
    assert fitted.describe(paths) == words
    assert fitted(paths).shape == (3, 3, 96, 128)
    assert fitted.crop(paths[0], np.random.default_rng(0).random(CROP_DRAWS), 0.1).shape == (1, 3, 96, 128)


def test_images_of_the_requested_shape_are_not_resized(tmp_path):
    pixels = noise(12, 20, 3)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    fitted = image_reader([12, 20], None, "bilinear").fitted([tmp_path / "a.png"])
    np.testing.assert_allclose(fitted([tmp_path / "a.png"])[0], pixels.transpose(2, 0, 1) / 255, atol=1e-7)


def test_resize_as_a_number_is_the_shorter_side_of_the_box():
    assert image_reader([96, 128], 120, "bilinear").box == (120, 160)
    assert image_reader([96, 128], [100, 200], "bilinear").box == (100, 200)
    for resize, message in (
        (90, "resize is 90 and size"),
        ([100, 120], r"resize is \[100, 120\] and size \[96, 128\]"),
    ):
        with pytest.raises(HeatproofError, match=message):
            image_reader([96, 128], resize, "bilinear")


def test_crops_have_the_shape_of_the_images():
    """Crops for square images have ratios from 3:4 to 4:3, those for images with ratio 2:1 from 3:2 to 8:3."""
    drawn = np.random.default_rng(0).random((400, CROP_DRAWS))
    boxes = np.array([crop_box(300, 600, draws, 0.1, 2) for draws in drawn])
    shapes = boxes[:, 3] / boxes[:, 2]
    assert 1.5 - 0.1 < shapes.min() < 1.6
    assert 2.5 < shapes.max() < 8 / 3 + 0.1
    assert (boxes[:, 0] + boxes[:, 2] <= 300).all()
    assert (boxes[:, 1] + boxes[:, 3] <= 600).all()


def test_the_size_of_a_rotated_image_follows_exif_if_it_is_applied(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(noise(30, 50, 3)).save(tmp_path / "a.jpg", exif=exif)
    assert image_reader(8, None, "bilinear").size_of(tmp_path / "a.jpg") == (30, 50)
    assert image_reader(8, None, "bilinear", apply_exif=True).size_of(tmp_path / "a.jpg") == (50, 30)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([96], r"must be a list of 2 .*, not \[96\]"),
        ([96, 0], "must be a list of 2"),
        ([96, 128, 3], "must be a list of 2"),
        (0, "must be a whole number of at least 1 and of at most 8192( or null)?, not 0"),
        ("96x128", "must be a whole number .* or a list of 2"),
    ],
)
@pytest.mark.parametrize("key", ["size", "resize"])
def test_invalid_sizes_are_refused(key, value, message):
    with pytest.raises(HeatproofError, match=message):
        check_options(image_folder, {"root": ".", key: value}, "dataset 'photos'", keywords=("seed",))


def test_sizes_are_written_as_they_are_read():
    assert [as_size_option(height_and_width(size)) for size in (8, [8, 8], (8, 9))] == [8, 8, [8, 9]]


# ---- channels --------------------------------------------------------------------------------------------------------


def folder_of(top, save, count=6):
    """Write a folder of two classes; `save(path without extension)` writes an image."""
    for name in ("ant", "bee"):
        (top / name).mkdir(parents=True)
        for number in range(count):
            save(top / name / str(number))
    return str(top)


def opened(root, channels="all", size=(12, 20), **options):
    return image_folder(seed=0, root=root, size=list(size), channels=channels, evaluation=0.5, **options)


def png(mode):
    def save(path):
        bands = {"L": (), "LA": (2,), "RGB": (3,), "RGBA": (4,)}[mode]
        Image.fromarray(noise(12, 20, *bands), mode).save(path.with_suffix(".png"))

    return save


@pytest.mark.parametrize(("mode", "bands"), [("L", 1), ("LA", 2), ("RGB", 3), ("RGBA", 4)])
@pytest.mark.parametrize("channels", [1, 3, "all"])
def test_images_have_the_requested_channels(tmp_path, mode, bands, channels):
    dataset = opened(folder_of(tmp_path / "p", png(mode)), channels)
    images = dataset.images("evaluation", 0, 2)
    assert images.shape == (2, bands if channels == "all" else channels, 12, 20)
    check_image_files(dataset, "p")
    check_dataset(dataset, "p")
    first = np.asarray(Image.open(dataset.image_files("evaluation")[0])).reshape(12, 20, bands).transpose(2, 0, 1)
    if channels == "all":
        np.testing.assert_allclose(images[0], first / 255, atol=1e-7)
    if bands == 1:
        np.testing.assert_allclose(images[0], np.repeat(first, images.shape[1], 0) / 255, atol=1e-7)


def test_grey_of_a_colour_image_equals_that_of_pillow(tmp_path):
    dataset = opened(folder_of(tmp_path / "p", png("RGB")), 1)
    grey = np.asarray(Image.open(dataset.image_files("evaluation")[0]).convert("L"))
    np.testing.assert_allclose(dataset.images("evaluation", 0, 1)[0, 0], grey / 255, atol=1e-7)
    assert "p: 12 of 12 in colour: made grey" in check_image_files(dataset, "p")


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32", "float64"])
@pytest.mark.parametrize("bands", [None, 1, 2, 5])
@pytest.mark.parametrize("size", [(12, 20), (6, 10)])
def test_arrays_are_read_as_images(tmp_path, dtype, bands, size):
    full = {"uint8": 255, "uint16": 65535}.get(dtype)
    shape = (12, 20) if bands is None else (bands, 12, 20)

    def save(path):
        values = RNG.random(shape) if full is None else RNG.integers(0, full + 1, shape)
        np.save(f"{path}.npy", values.astype(dtype))

    dataset = opened(folder_of(tmp_path / "p", save), size=size)
    check_image_files(dataset, "p")
    check_dataset(dataset, "p")
    images = dataset.images("evaluation", 0, 3)
    assert images.shape == (3, bands or 1, *size)
    values = np.load(dataset.image_files("evaluation")[1]).reshape(-1, 12, 20) / (full or 1)
    if size == (12, 20):
        np.testing.assert_allclose(images[1], values, atol=1e-6)
    # Downscaling averages, whatever the number of bits.
    assert np.abs(images[1].mean((1, 2)) - values.mean((1, 2))).max() < 0.05


def test_the_pages_of_a_tiff_are_channels(tmp_path):
    pages = {}

    def save(path):
        several = [Image.fromarray(noise(12, 20)) for _ in range(5)]
        several[0].save(path.with_suffix(".tif"), save_all=True, append_images=several[1:])
        pages[str(path.with_suffix(".tif"))] = np.stack([np.asarray(page) for page in several])

    dataset = opened(folder_of(tmp_path / "p", save))
    check_image_files(dataset, "p")
    files = dataset.image_files("evaluation")
    images = dataset.images("evaluation", 0, len(files))
    np.testing.assert_allclose(images, np.stack([pages[str(file)] for file in files]) / 255, atol=1e-7)


def test_grey_of_16_bits_keeps_its_precision_with_all_channels(tmp_path):
    values = RNG.integers(0, 65536, (12, 20)).astype(np.uint16)
    root = folder_of(tmp_path / "p", lambda path: Image.fromarray(values).save(path.with_suffix(".png")))
    np.testing.assert_allclose(opened(root).images("evaluation", 0, 1)[0, 0], values / 65535, atol=1e-6)
    np.testing.assert_allclose(opened(root, 1).images("evaluation", 0, 1)[0, 0], values / 65535, atol=0.6 / 255)


def _palette(path):
    Image.fromarray(noise(12, 20, 3)).quantize(8).save(path.with_suffix(".png"))


def _moving(path):
    image = Image.fromarray(noise(12, 20))
    image.save(path.with_suffix(".gif"), save_all=True, append_images=[Image.fromarray(noise(12, 20))])


def _colour_pages(path):
    pages = [Image.fromarray(noise(12, 20, 3)) for _ in range(2)]
    pages[0].save(path.with_suffix(".tif"), save_all=True, append_images=pages[1:])


def array(values):
    return lambda path: np.save(f"{path}.npy", values)


@pytest.mark.parametrize(
    ("save", "message"),
    [
        (_palette, "kind 'P', whose bands are not numbers from none to full: save it as a .npy"),
        (_moving, "2 images one after the other: save it as a .npy file of shape"),
        (_colour_pages, "its 2 pages are not of one band and one size each"),
        (array(noise(12, 20, 5)), r"it is an array of shape \(12, 20, 5\), and \(channels, height, width\) is read"),
        (array(RNG.integers(0, 9, (2, 12, 20))), "an array of int64, whose range is not known"),
        (array(RNG.random((2, 12, 20)) * 300), "it has values from .* they must lie in \\[0, 1\\]"),
        (array(np.full((2, 12, 20), np.nan)), "they must lie in \\[0, 1\\]"),
        (array(noise(3, 2, 12, 20)), r"array of shape \(3, 2, 12, 20\): save one of shape"),
        (lambda path: (path.with_suffix(".npy")).write_bytes(b"\x93NUMPY"), "cannot be read"),
        (lambda path: np.save(f"{path}.npy", np.array([{}], dtype=object)), "array of object, whose range"),
    ],
)
def test_ambiguous_image_files_are_refused_by_name(tmp_path, save, message):
    dataset = opened(folder_of(tmp_path / "p", save))
    with pytest.raises(HeatproofError, match=message):
        check_image_files(dataset, "p")
    with pytest.raises(HeatproofError, match=message if message != "cannot be read" else r"0\.npy|\d\.npy"):
        dataset.images("evaluation", 0, 1)


def test_a_truncated_array_is_refused(tmp_path):
    root = folder_of(tmp_path / "p", array(noise(2, 12, 20)))
    content = (tmp_path / "p/ant/3.npy").read_bytes()
    (tmp_path / "p/ant/3.npy").write_bytes(content[:-9])
    with pytest.raises(HeatproofError, match=r"3\.npy \(its array has 480 bytes, and the file 471 of them\)"):
        check_image_files(opened(root), "p")


def test_images_with_different_numbers_of_channels_are_refused(tmp_path):
    root = folder_of(tmp_path / "p", png("RGB"))
    png("L")(tmp_path / "p/bee/1")
    dataset = opened(root)
    with pytest.raises(HeatproofError, match=r"11 of 3 channels, such as .* and 1 of 1 channels, such as .*bee/1\.png"):
        check_image_files(dataset, "p")
    with pytest.raises(HeatproofError, match=r"has [13] channels, and .* has [13]: remove one of them"):
        [dataset.images(split, 0, 20) for split in dataset.splits]
    assert opened(root, 3).images("train", 0, 20).shape[1] == 3


def test_arrays_are_ignored_if_three_channels_are_requested(tmp_path):
    root = folder_of(tmp_path / "p", png("RGB"))
    array(noise(3, 12, 20))(tmp_path / "p/ant/more")
    assert sum(len(split) for split in opened(root, 3).splits.values()) == 12
    assert sum(len(split) for split in opened(root).splits.values()) == 13


def test_a_table_can_name_arrays(tmp_path):
    rows = ["file,label"]
    for number in range(12):
        array(noise(5, 12, 20))(tmp_path / str(number))
        rows.append(f"{number}.npy,{'ab'[number % 2]}")
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    assert opened(str(tmp_path), labels="labels.csv").images("train", 0, 2).shape == (2, 5, 12, 20)


def test_arrays_are_cropped(tmp_path):
    dataset = opened(folder_of(tmp_path / "p", array(noise(5, 40, 60))))
    crop = dataset.random_crop("train", 0, np.random.default_rng(0).random(CROP_DRAWS), 0.2)
    assert crop.shape == (1, 5, 12, 20)
    assert torch.from_numpy(crop).isfinite().all()


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_array_is_read_or_refused_with_a_message(tmp_path, seed):
    drawn = np.random.default_rng(seed)
    array(noise(3, 8, 9))(tmp_path / "a")
    content = bytearray((tmp_path / "a.npy").read_bytes())
    for _ in range(drawn.integers(1, 4)):
        content[drawn.integers(0, 128)] = drawn.integers(0, 256)
    (tmp_path / "a.npy").write_bytes(content[: drawn.integers(20, len(content) + 1)] if seed % 2 else content)
    try:
        (image,) = image_reader([8, 9], None, "bilinear", channels="all")([tmp_path / "a.npy"])
    except HeatproofError as error:
        message = str(error)
    else:
        assert image.shape[1:] == (8, 9)
        return
    assert "a.npy cannot be read (" in message


def test_a_header_that_promises_gigabytes_is_refused_by_the_length_of_the_file(tmp_path):
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (3, 8000000, 900000), }".ljust(117) + b"\n"
    (tmp_path / "b.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"0" * 99)
    with pytest.raises(HeatproofError, match="its array has 21,600,000,000,000 bytes, and the file 99"):
        image_reader(8, None, "bilinear", channels="all")([tmp_path / "b.npy"])


def test_a_tiff_that_pillow_cannot_read_is_refused_with_a_remedy(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    tifffile.imwrite(tmp_path / "a.tif", noise(12, 20, 5), photometric="minisblack", planarconfig="contig")
    with pytest.raises(HeatproofError, match=r"a TIFF that Pillow does not read, .*: save it as a \.npy file of shape"):
        image_reader(8, None, "bilinear", channels="all")([tmp_path / "a.tif"])
