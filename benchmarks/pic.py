"""Performance information curves at 224×224 on resnet18: seconds per image, compared with the published procedure.

The yardstick follows the published procedure: SIC and AIC one after the other, one interpolation per channel, one
network pass per image. Its passes have one thread, because several threads were slower for single images where they had
to share cores; ours have all. The triangulation (Qhull) and the encoder (libwebp) determine the published numbers:
"both libraries" is their share of our time, which would remain if all other work cost nothing.

    python benchmarks/pic.py [--images N] [--threads T] --out FOLDER
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from time import perf_counter
from typing import Any

import numpy as np
import torch
from _shared import make_parser, print_table
from PIL import Image
from scipy.interpolate import griddata
from scipy.ndimage import gaussian_filter
from scipy.spatial import Delaunay
from sklearn.datasets import load_sample_images
from torchvision.models import resnet18

from heatproof.core.batch import Batch
from heatproof.core.passes import read_variants
from heatproof.core.perturb import pic

SIDE = 224
MEAN, STD = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])


class Split:
    """Seconds by part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def time(self, part: str, function: Callable[..., Any], *arguments: Any) -> Any:
        start = perf_counter()
        result = function(*arguments)
        self.seconds[part] = self.seconds.get(part, 0) + perf_counter() - start
        return result

    def row(self, procedure: str, images: int) -> dict[str, object]:
        seconds_by_part = {f"{part}, s an image": seconds / images for part, seconds in self.seconds.items()}
        return {"procedure": procedure, "s an image": sum(self.seconds.values()) / images, **seconds_by_part}


def photographs(count: int) -> np.ndarray:
    """Return crops of scikit-learn's two photographs, (N, 224, 224, 3) float32 in [0, 1]."""
    generator = np.random.default_rng(0)
    crops = []
    for number in range(count):
        photograph = load_sample_images().images[number % 2]
        top, left = (int(generator.integers(size - SIDE)) for size in photograph.shape[:2])
        crops.append(photograph[top : top + SIDE, left : left + SIDE])
    return np.stack(crops).astype(np.float32) / np.float32(255)


def by_channel(image: np.ndarray, mask: np.ndarray) -> np.ndarray:
    filled, positions, missing = image.copy(), np.argwhere(mask), np.argwhere(~mask)
    for channel in range(image.shape[2]):
        plane = image[..., channel]
        filled[..., channel][~mask] = griddata(positions, plane[mask], missing, "linear", plane.mean())
    return filled


def encoded(image: np.ndarray) -> int:
    file = BytesIO()
    Image.fromarray((image * np.float32(255)).astype(np.uint8)).save(file, "webp", lossless=True, quality=100)
    return file.tell()


def yardstick(
    network: torch.nn.Module, image: np.ndarray, one_map: np.ndarray, random: np.ndarray, split: Split
) -> Any:
    """Run the published procedure; return entropies, on which both procedures have to agree."""

    def passed(filled: np.ndarray) -> torch.Tensor:
        with torch.inference_mode():
            return network(torch.from_numpy((filled - MEAN) / STD).permute(2, 0, 1).unsqueeze(0))

    random = random.copy()
    random[np.ix_([0, -1], [0, -1])] = True
    sizes: list[int] = []
    for _ in ("SIC", "AIC"):
        sizes = []
        for mask in (random, *(pic.quantile_masks(one_map) | random), None):
            filled = image if mask is None else split.time("interpolation", by_channel, image, mask)
            sizes.append(split.time("WebP", encoded, filled))
            split.time("passes", passed, filled)
    return sizes


def triangulate(mask: np.ndarray) -> Delaunay:
    mask = mask.copy()
    mask[np.ix_([0, -1], [0, -1])] = True
    return Delaunay(np.argwhere(mask).astype(np.float64))


def run(count: int) -> list[dict[str, object]]:
    torch.manual_seed(0)
    network = resnet18().eval()
    crops = photographs(count)
    noise = np.random.default_rng(1).normal(size=crops.shape[:3])
    maps = np.stack([np.abs(gaussian_filter(values, 3) * 10 + values) for values in noise])
    images = torch.from_numpy((crops - MEAN) / STD).permute(0, 3, 1, 2).contiguous()
    ids = [str(number) for number in range(count)]
    random = pic.random_mask(SIDE, SIDE, 0)
    with torch.inference_mode():
        network(images[:1])

    def ours() -> dict[str, np.ndarray]:
        targets = torch.zeros(count, dtype=torch.int64)
        batch = Batch(network, network, None, images, targets, ids, 0)
        batches, variants, sizes = pic.pic_variants(batch, maps, mean=MEAN, std=STD, random_mask=random)
        return {**read_variants(batch, batches, variants), "entropy": np.array(sizes).reshape(-1, variants)}

    total, published, parts = Split(), Split(), Split()
    entropies = total.time("all", ours)["entropy"]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for crop, one_map, sizes in zip(crops, maps, entropies, strict=True):
        if yardstick(network, crop, one_map, random, published) != sizes.tolist():
            raise SystemExit("The two procedures disagree on an entropy, so their times are of different work.")
    torch.set_num_threads(threads)
    for crop, one_map in zip(crops, maps, strict=True):
        variants = []
        for mask in (random, *(pic.quantile_masks(one_map) | random)):
            variants.append(parts.time("interpolation", pic.interpolate, crop, mask))
            parts.time("triangulation", triangulate, mask)
        for variant in (*variants, crop):
            parts.time("WebP", pic.entropy, variant)
        batch = torch.from_numpy((np.stack([*variants, crop]) - MEAN) / STD).permute(0, 3, 1, 2).contiguous()
        with torch.inference_mode():
            parts.time("passes", network, batch)
    # This time is part of the interpolation's.
    parts.seconds["interpolation"] -= parts.seconds["triangulation"]
    print(f"{count} images, {torch.get_num_threads()} threads, {pic.encoder()}")
    ours_row, published_row = parts.row("ours, part after part", count), published.row("as published", count)
    libraries = parts.seconds["triangulation"] + parts.seconds["WebP"]
    ours_row["both libraries"] = libraries / sum(parts.seconds.values())
    together = total.seconds["all"]
    return [
        published_row,
        ours_row,
        {
            "procedure": "ours",
            "s an image": together / count,
            "times as fast": sum(published.seconds.values()) / together,
        },
    ]


if __name__ == "__main__":
    options = make_parser(__doc__)
    options.add_argument("--images", default=2, type=int)
    options.add_argument("--threads", default=torch.get_num_threads(), type=int)
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    print_table(run(1 if args.small else args.images), "pic", args.out)
