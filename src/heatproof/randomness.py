"""Seeds that depend on purpose and image id only, not on batch, shard, worker or order."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import torch


def derive_seed(seed: int, purpose: str, image_id: str = "") -> int:
    """Return a 63-bit seed for one purpose and one image.

    Parameters
    ----------
    seed
        The workflow's seed.
    purpose
        What is drawn, for example ``"rise masks"``; two purposes never share a stream.
    image_id
        The image, where the draw is per image.
    """
    text = f"{seed}\x1f{purpose}\x1f{image_id}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def torch_generator(seed: int, purpose: str, image_id: str = "") -> torch.Generator:
    """Return a CPU generator; draws are made on the CPU and moved, so that every device sees the same."""
    import torch

    return torch.Generator().manual_seed(derive_seed(seed, purpose, image_id))


def numpy_generator(seed: int, purpose: str, image_id: str = "") -> np.random.Generator:
    """Return a NumPy generator for one purpose and one image."""
    import numpy as np

    return np.random.default_rng(derive_seed(seed, purpose, image_id))
