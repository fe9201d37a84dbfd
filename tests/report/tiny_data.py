"""A tiny dataset, which stores name like a custom dataset of a user: package.module:callable."""

from pathlib import Path

import numpy as np

from heatproof.core.dataset import Split
from heatproof.core.provenance import Key
from heatproof.core.specs import DatasetSpec

SIZE, COUNT, IMAGES, CLASSES = 16, 6, 4, ("cat & dog", "<script>alert(1)</script>")
NAMED = "<script>alert(2)</script>.png"


class Tiny:
    """Coloured noise of two classes."""

    num_classes = 2
    class_names = CLASSES

    def __init__(self, seed):
        ids = (NAMED, *(f"tiny-{number}" for number in range(1, COUNT)))
        self.splits = {"evaluation": Split(ids, np.arange(COUNT, dtype=np.int64) % 2)}
        self._pixels = np.random.default_rng(seed).random((COUNT, 3, SIZE, SIZE), dtype=np.float32)

    def images(self, split, start, stop):
        return self._pixels[start:stop]


def tiny(*, seed):
    return Tiny(seed)


DATASET = DatasetSpec("tiny_data:tiny", "tiny_data", {}, 0, "tiny", Key("config", "code"))
# The config by which a user names the dataset.
CONFIG = str(Path(__file__).with_name("tiny.yaml"))
