"""Four tiny datasets in the layouts of their unpacked archives, with an image file of each unusual kind.

Red of each image is the number of its class times 20, for 12 classes, so that a wrong label is seen in the pixels.
"""

import io
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat

DISHES = ["apple_pie", "baby_back_ribs", "waffles"]
SCENES = ["/a/airfield", "/a/apartment_building/outdoor", "/z/zen_garden"]
# Number in the devkit, WordNet id, words and children; the numbers do not follow the order of the ids.
SYNSETS = [
    (1, "n02119789", "kit fox, Vulpes macrotis", 0),
    (2, "n02012849", "crane", 0),
    (3, "n01440764", "tench, Tinca tinca", 0),
    (4, "n03126707", "crane", 0),
    (1001, "n00001740", "entity", 3),
]
LEAVES = sorted(wnid for _, wnid, _, children in SYNSETS if not children)
# Classes of RESISC45 in alphabetical order.
PLACES = [
    "airplane",
    "airport",
    "baseball_diamond",
    "basketball_court",
    "beach",
    "bridge",
    "chaparral",
    "church",
    "circular_farmland",
    "cloud",
    "commercial_area",
    "dense_residential",
    "desert",
    "forest",
    "freeway",
    "golf_course",
    "ground_track_field",
    "harbor",
    "industrial_area",
    "intersection",
    "island",
    "lake",
    "meadow",
    "medium_residential",
    "mobile_home_park",
    "mountain",
    "overpass",
    "palace",
    "parking_lot",
    "railway",
    "railway_station",
    "rectangular_farmland",
    "river",
    "roundabout",
    "runway",
    "sea_ice",
    "ship",
    "snowberg",
    "sparse_residential",
    "stadium",
    "storage_tank",
    "tennis_court",
    "terrace",
    "thermal_power_station",
    "wetland",
]


def draw_image(label: int, height: int, width: int, seed: int = 0) -> Image.Image:
    """Return an image whose red channel encodes the class, and whose green and blue channels are smooth noise."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
    pixels = np.array(Image.fromarray(coarse).resize((width, height), Image.Resampling.BILINEAR))
    pixels[..., 0] = 20 * (label % 12)
    return Image.fromarray(pixels)


def save(path: Path, label: int, seed: int, height: int = 72, width: int = 80, kind: str = "JPEG") -> None:
    """Save an image as an RGB or ``CMYK`` JPEG, or as a ``PNG``, under any file name."""
    image, options = draw_image(label, height, width, seed), {"format": "JPEG", "quality": 100, "subsampling": 0}
    if kind == "CMYK":
        image = image.convert("CMYK")
    if kind == "PNG":
        options = {"format": "PNG"}
    content = io.BytesIO()
    image.save(content, **options)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.getvalue())


def food101(root: Path, train: int = 10, test: int = 4) -> dict[str, int]:
    """Unpack food-101.tar.gz; return the labels of its test images by id."""
    meta, labels = root / "food-101" / "meta", {}
    meta.mkdir(parents=True)
    for part, first, count in (("train", 1000, train), ("test", 2000, test)):
        ids = [f"{dish}/{first + 7 * number}" for dish in DISHES for number in range(count)]
        (meta / f"{part}.txt").write_text("".join(f"{image_id}\n" for image_id in ids))
        for row, image_id in enumerate(ids):
            label = DISHES.index(image_id.partition("/")[0])
            # In the dataset, the longer side always has 512 pixels.
            save(root / "food-101" / "images" / f"{image_id}.jpg", label, row, *((72, 96), (96, 72))[row % 2])
            labels |= {image_id: label} if part == "test" else {}
    (meta / "classes.txt").write_text("\n".join(DISHES))
    (meta / "labels.txt").write_text("Apple pie\nBaby back ribs\nWaffles")
    return labels


def places365(root: Path, train: int = 5, val: int = 8) -> dict[str, int]:
    """Unpack filelist_places365-standard.tar and the small images; return the labels of its validation set by id."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "categories_places365.txt").write_text("".join(f"{scene} {label}\n" for label, scene in enumerate(SCENES)))
    listed = [(f"{scene}/{n:08d}.jpg", label) for label, scene in enumerate(SCENES) for n in range(1, train + 1)]
    held_out = [(f"Places365_val_{n:08d}.jpg", (2 * n) % 3) for n in range(1, val + 1)]
    for name, part, pairs in (("train_standard", "data_256", listed), ("val", "val_256", held_out)):
        (root / f"places365_{name}.txt").write_text("".join(f"{path} {label}\n" for path, label in pairs))
        for row, (path, label) in enumerate(pairs):
            save(root / part / path.removeprefix("/"), label, row)
    (root / "places365_test.txt").write_text("Places365_test_00000001.jpg\n")
    return dict(held_out)


def imagenet(root: Path, train: int = 5, val: int = 8) -> dict[str, int]:
    """Unpack the archives of ILSVRC 2012 and the devkit; return the labels of its validation set by id."""
    numbers = {wnid: number for number, wnid, *_ in SYNSETS}
    for label, wnid in enumerate(LEAVES):
        for image_number in range(train):
            # One image file of ImageNet is a PNG and 22 are CMYK, all of them with this ending.
            kind = {0: "PNG", 1: "CMYK"}.get(image_number, "JPEG")
            save(root / "train" / wnid / f"{wnid}_{17 * image_number + 3}.JPEG", label, image_number, kind=kind)
    data = root / "ILSVRC2012_devkit_t12" / "data"
    data.mkdir(parents=True)
    columns = ("ILSVRC2012_ID", "WNID", "words", "gloss", "num_children", "children", "wordnet_height")
    synsets = np.zeros((len(SYNSETS), 1), dtype=[(name, object) for name in (*columns, "num_train_images")])
    for row, (number, wnid, words, children) in enumerate(SYNSETS):
        below = np.arange(1, children + 1, dtype=float)
        synsets[row, 0] = (float(number), wnid, words, "gloss", float(children), below, float(bool(children)), 1300.0)
    savemat(data / "meta.mat", {"synsets": synsets})
    truth = [LEAVES[(3 * image_number) % len(LEAVES)] for image_number in range(val)]
    (data / "ILSVRC2012_validation_ground_truth.txt").write_text("".join(f"{numbers[wnid]}\n" for wnid in truth))
    for image_number, wnid in enumerate(truth):
        save(root / "val" / f"ILSVRC2012_val_{image_number + 1:08d}.JPEG", LEAVES.index(wnid), image_number)
    return {f"ILSVRC2012_val_{image_number + 1:08d}": LEAVES.index(wnid) for image_number, wnid in enumerate(truth)}


def resisc45(root: Path, images: int = 5) -> dict[str, int]:
    """Unpack NWPU-RESISC45.rar, which has one split; return the labels of all images by id."""
    labels = {}
    for label, scene in enumerate(PLACES):
        for number in range(1, images + 1):
            name = f"{scene}/{scene}_{number:03d}.jpg"
            save(root / "NWPU-RESISC45" / name, label, number, 64, 64)
            labels[name] = label
    return labels


# Functions that unpack each dataset, by the name of its reader.
UNPACKED = {"imagenet": imagenet, "places365": places365, "food101": food101, "resisc45": resisc45}
