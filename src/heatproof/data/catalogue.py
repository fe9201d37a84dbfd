"""Every dataset, entered by importing the modules that define them."""

from heatproof.data import (  # noqa: F401
    cifar,
    digits,
    elpv,
    fashion_mnist,
    food101,
    image_folder,
    imagenet,
    parts,
    places365,
    watermarked,
)
from heatproof.data.registry import DATASETS

__all__ = ["DATASETS"]
