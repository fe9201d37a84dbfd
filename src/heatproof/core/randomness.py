"""Random numbers that depend only on seed, purpose and image id, not on batch, shard, worker, order or device.

Numbers for an image are drawn by counter, with Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random
numbers: as easy as 1, 2, 3", 2011. Seed, purpose and image id form the key, and the position of a number is the
counter. It is implemented here because no library draws the same numbers on every device: NumPy's Philox is another
member of the family, and PyTorch's exists only for CUDA, with one key for a whole batch.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from heatproof.core.lazy import torch

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
WORD = 0xFFFFFFFF
# Blocks of four numbers that are computed at once: on a CPU as many as fit its caches, elsewhere a few dozen megabytes.
BLOCKS_ON_CPU = 1 << 14
BLOCKS_ELSEWHERE = 1 << 20


def derive_seed(seed: int, purpose: str, image_id: str = "") -> int:
    """Return a 63-bit seed for one purpose and one image.

    Parameters
    ----------
    seed
        The seed of the workflow.
    purpose
        What the numbers are for, for example ``"rise masks"``; two purposes never share a stream.
    image_id
        The image, if each image has its own numbers.
    """
    text = f"{seed}\x1f{purpose}\x1f{image_id}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def torch_generator(seed: int, purpose: str, image_id: str = "") -> torch.Generator:
    """Return a CPU generator, for training loops and for libraries that take one."""
    return torch.Generator().manual_seed(derive_seed(seed, purpose, image_id))


def numpy_generator(seed: int, purpose: str, image_id: str = "") -> np.random.Generator:
    """Return a NumPy generator for one purpose and one image."""
    return np.random.default_rng(derive_seed(seed, purpose, image_id))


def counter_bits(
    seed: int,
    purpose: str,
    image_ids: Sequence[str],
    shape: Sequence[int],
    *,
    start: int = 0,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """Draw integers below 2³² for each image.

    Parameters
    ----------
    seed
        The seed of the workflow.
    purpose
        What the numbers are for; two purposes never share a stream.
    image_ids
        N strings; ``[""]`` for one draw that all images share.
    shape
        Shape of the numbers for one image.
    start
        How many numbers of each image's stream to skip.
    device
        Where the numbers are computed; they are the same on every device.

    Returns
    -------
    torch.Tensor
        (N, *shape) int64.
    """

    def write(words: Sequence[torch.Tensor], out: torch.Tensor) -> None:
        torch.stack(list(words), -1, out=out)

    return _draw(_seeds(seed, purpose, image_ids), shape, start, device, torch.int64, write)


def counter_uniform(
    seed: int,
    purpose: str,
    image_ids: Sequence[str],
    shape: Sequence[int],
    *,
    start: int = 0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Draw multiples of 2⁻²⁴, uniform in [0, 1), for each image; exactly the same on every device.

    Parameters
    ----------
    seed, purpose, image_ids, shape, start, device
        As in `counter_bits`.
    dtype
        The numbers are drawn as float32, the default, and converted.
    """

    def write(words: Sequence[torch.Tensor], out: torch.Tensor) -> None:
        for column, word in zip(out.unbind(-1), words, strict=True):
            column.copy_(word >> 8)
        out *= 2.0**-24

    drawn = _draw(_seeds(seed, purpose, image_ids), shape, start, device, torch.float32, write)
    return drawn.to(dtype or torch.float32)


def counter_normal(
    seed: int,
    purpose: str,
    image_ids: Sequence[str],
    shape: Sequence[int],
    *,
    start: int = 0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Draw from the standard normal distribution for each image; devices differ in the last bits of a logarithm.

    The method is that of Box and Muller, "A note on the generation of random normal deviates", 1958. It takes a fixed
    number of uniform numbers for each normal one, unlike methods based on rejection. The largest magnitude is 6.8.

    Parameters
    ----------
    seed, purpose, image_ids, shape, start, device, dtype
        As in `counter_uniform`.
    """

    def write(words: Sequence[torch.Tensor], out: torch.Tensor) -> None:
        for first in (0, 2):
            # Half a step is added, because zero has no logarithm.
            radius = words[first].float().mul_(2.0**-32).add_(2.0**-33).log_().mul_(-2).sqrt_()
            angle = words[first + 1].float().mul_(math.tau * 2.0**-32)
            torch.mul(radius, angle.cos(), out=out[..., first])
            torch.mul(radius, angle.sin_(), out=out[..., first + 1])

    drawn = _draw(_seeds(seed, purpose, image_ids), shape, start, device, torch.float32, write)
    return drawn.to(dtype or torch.float32)


def counter_integers(
    seed: int,
    purpose: str,
    image_ids: Sequence[str],
    shape: Sequence[int],
    below: int,
    *,
    start: int = 0,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """Draw integers (N, *shape) from 0 to `below` - 1 for each image; `below` is at most 2³¹. See `counter_bits`."""
    if below > 2**31:
        raise ValueError(
            f"{below} numbers are more than 2³¹, so that their product with 32 bits would have more than 64."
        )
    return counter_bits(seed, purpose, image_ids, shape, start=start, device=device) * below >> 32


def counter_permutation(
    seed: int, purpose: str, image_ids: Sequence[str], count: int, *, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """Draw a permutation (N, count) of 0 … `count` - 1 for each image; see `counter_bits`."""
    # Devices agree on the order of equal numbers only if the sort is stable.
    return counter_bits(seed, purpose, image_ids, (count,), device=device).argsort(dim=1, stable=True)


def philox(counter: Sequence[Any], key: Sequence[Any]) -> list[Any]:
    """Return the four words that Philox4x32-10 computes from the four words of a counter and the two of a key.

    Parameters
    ----------
    counter
        int64 below 2³², four NumPy arrays or four torch tensors of one shape; they are overwritten.
    key
        As the counter, or integers, in shapes that broadcast to that of the counter.
    """
    a, b, c, d = counter
    # Both libraries have these functions; writing into existing memory takes half the time.
    library: Any = torch if isinstance(a, torch.Tensor) else np
    p, q = library.empty_like(a), library.empty_like(a)
    for number in range(ROUNDS):
        left, right = ((word + number * step) & WORD for word, step in zip(key, KEY_STEPS, strict=True))
        library.multiply(a, MULTIPLIERS[0], out=p)
        library.multiply(c, MULTIPLIERS[1], out=q)
        # The upper halves and the signs of b and d are masked together with the words that they are combined into.
        for word, counter_word, key_word, product in ((a, b, left, q), (c, d, right, p)):
            library.bitwise_right_shift(product, 32, out=word)
            word ^= counter_word
            word ^= key_word
            word &= WORD
        b, q, d, p = q, b, p, d
    b &= WORD
    d &= WORD
    return [a, b, c, d]


def _seeds(seed: int, purpose: str, image_ids: Sequence[str]) -> torch.Tensor:
    return torch.tensor([derive_seed(seed, purpose, name) for name in image_ids], dtype=torch.int64)


def _draw(
    seeds: torch.Tensor,
    shape: Sequence[int],
    start: int,
    device: torch.device | str,
    dtype: torch.dtype,
    write: Callable[[Sequence[torch.Tensor], torch.Tensor], None],
) -> torch.Tensor:
    """Return the numbers (N, *shape) that `write` computes, block by block, from the four words of each counter.

    `seeds` are (N,) int64, one for each image. `write` gets words (rows, blocks) and writes into its second argument.
    """
    device, count = torch.device(device), math.prod(shape)
    first, skipped = divmod(start, 4)
    blocks = -(-(skipped + count) // 4)
    # On a CPU, multiplying words in PyTorch takes twice as long as in NumPy.
    numpy = device.type == "cpu"
    keys: Any = seeds[:, None].numpy() if numpy else seeds[:, None].to(device)
    blocks_at_once = BLOCKS_ON_CPU if numpy else BLOCKS_ELSEWHERE
    drawn = torch.empty((len(seeds), blocks, 4), dtype=dtype, device=device)
    rows_at_once = max(1, blocks_at_once // max(blocks, 1))
    for first_row in range(0, len(seeds), rows_at_once):
        key = keys[first_row : first_row + rows_at_once]
        for first_block in range(0, blocks, blocks_at_once):
            out = drawn[first_row : first_row + rows_at_once, first_block : first_block + blocks_at_once]
            index: Any = torch.arange(first + first_block, first + first_block + out.shape[1], device=device).repeat(
                len(key), 1
            )
            index = index.numpy() if numpy else index
            words = philox([index & WORD, index >> 32, index * 0, index * 0], [key & WORD, key >> 32])
            write([torch.from_numpy(word) for word in words] if numpy else words, out)
    return drawn.flatten(1)[:, skipped : skipped + count].reshape(len(seeds), *shape)
