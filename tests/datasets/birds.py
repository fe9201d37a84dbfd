"""A few drawn birds in the layout of FunnyBirds: dataset_*.json, images, part maps and images without parts."""

import itertools
import json
from pathlib import Path

import numpy as np
from PIL import Image

SIDE = 48
KINDS = {"beak": 4, "eye": 3, "foot": 4, "tail": 9, "wing": 6}
# Colour of each component in a part map, and its box in 48 pixels: top, left, bottom, right.
COMPONENTS = {
    "beak": [((255, 255, 0), (10, 36, 16, 46))],
    "eye": [((255, 255, 253), (8, 28, 12, 31)), ((255, 255, 254), (8, 33, 12, 36))],
    "foot": [((255, 0, 1), (34, 18, 44, 21)), ((255, 0, 2), (34, 24, 44, 27))],
    "tail": [((0, 0, 255), (22, 2, 28, 14))],
    "wing": [((0, 255, 1), (20, 16, 30, 22)), ((0, 255, 2), (20, 25, 30, 31))],
}
BODY, THING = (136, 136, 136), (204, 204, 207)


def paint(row, kinds, parts, hidden=()):
    """Return an image (48, 48, 4) of the bird with some of its parts, and its part map."""
    draw = np.random.default_rng(row)
    shift, ground, light = draw.integers(0, 4), draw.integers(60, 200, 3), draw.uniform(0.7, 1)
    image = np.full((SIDE, SIDE, 4), (*ground, 255), np.uint8)
    image[::7, :, :3] //= 2
    part_map = np.zeros((SIDE, SIDE, 4), np.uint8)
    part_map[..., 3] = 255
    image[:4, :9, :3], part_map[:4, :9, :3] = (200, 180, 20), THING
    body = slice(6 + shift, 36 + shift), slice(12, 38)
    image[(*body, slice(3))], part_map[(*body, slice(3))] = np.uint8(150 * light), BODY
    for part in parts:
        if part in hidden:
            continue
        for colour, (top, left, bottom, right) in COMPONENTS[part]:
            box = slice(top + shift, bottom + shift), slice(left, right)
            shade = np.random.default_rng([kinds[part], sorted(COMPONENTS).index(part)]).integers(0, 255, 3)
            image[(*box, slice(3))], part_map[(*box, slice(3))] = (shade * light).astype(np.uint8), colour
    return image, part_map


def save(path: Path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def write_birds(root, classes=3, train=4, test=2, hidden=None):
    """Write `FunnyBirds` into a folder, and return it; `hidden` lists invisible parts of test images."""
    folder, draw = Path(root) / "FunnyBirds", np.random.default_rng(0)
    folder.mkdir(parents=True)
    models = {part: [{"model": f"{part}{number:02d}.glb"} for number in range(count)] for part, count in KINDS.items()}
    kinds = [{part: int(draw.integers(count)) for part, count in KINDS.items()} for _ in range(classes)]
    (folder / "parts.json").write_text(json.dumps(models))
    class_entries = [{"class_idx": number, "parts": each} for number, each in enumerate(kinds)]
    (folder / "classes.json").write_text(json.dumps(class_entries))
    for mode, count in (("train", train), ("test", test)):
        entries = []
        for row in range(classes * count):
            label = row // count
            # Half of the training images lack random parts.
            missing = draw.permutation([*KINDS])[: draw.integers(6)] if mode == "train" and row % 2 else []
            parts = [part for part in KINDS if part not in missing]
            entry = {"class_idx": label, "camera_distance": 300, "bg_objects": "1,2,"}
            entry |= {f"{part}_model": models[part][kinds[label][part]]["model"] for part in parts}
            entries.append(entry | {f"{part}_model": "placeholder" for part in missing})
            number, seed = f"{label}/{row:06d}", row + 1000 * (mode == "test")
            unseen = (hidden or {}).get(row, ()) if mode == "test" else ()
            image, part_map = paint(seed, kinds[label], parts, unseen)
            save(folder / mode / f"{number}.png", image)
            save(folder / f"{mode}_part_map" / f"{number}.png", part_map)
            for size in range(6) if mode == "test" else ():
                for remaining in itertools.combinations(KINDS, size):
                    path = folder / "test_interventions" / number / f"body_{'_'.join(sorted(remaining))}.png"
                    save(path, paint(seed, kinds[label], remaining, unseen)[0])
            if mode == "test":
                save(folder / "test_interventions" / number / "background_interventions/0.png", image)
        (folder / f"dataset_{mode}.json").write_text(json.dumps(entries))
    return folder
