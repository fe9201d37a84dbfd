"""Random numbers that depend on seed, purpose and image id only, not on batch, shard, worker, order or device.

What belongs to an image is drawn by counter: Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers:
as easy as 1, 2, 3", 2011, where seed, purpose and image id are the key, and the place of a number is the counter.
No library draws it on every device: NumPy's Philox is another of the family, PyTorch's is for CUDA alone, with a key
for a whole batch.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
WORD = 0xFFFFFFFF
# Blocks of four numbers made at once: on a CPU what its caches hold, elsewhere what a few dozen megabytes hold.
BLOCKS_ON_CPU = 1 << 14
BLOCKS_ELSEWHERE = 1 << 20


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
    """Return a CPU generator, for training loops and libraries that take one."""
    import torch

    return torch.Generator().manual_seed(derive_seed(seed, purpose, image_id))


def numpy_generator(seed: int, purpose: str, image_id: str = "") -> np.random.Generator:
    """Return a NumPy generator for one purpose and one image."""
    import numpy as np

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
    """Draw whole numbers below 2³² for each image.

    Parameters
    ----------
    seed
        The workflow's seed.
    purpose
        What is drawn; two purposes never share a stream.
    image_ids
        N strings; ``[""]`` for one draw that is the same for all images.
    shape
        Of what is drawn for one image.
    start
        How many numbers of each image's stream are passed over.
    device
        Where they are made: the same numbers everywhere.

    Returns
    -------
    torch.Tensor
        (N, *shape) int64.
    """
    import torch

    def place(words: Sequence[torch.Tensor], out: torch.Tensor) -> None:
        torch.stack(list(words), -1, out=out)

    return _draw(_seeds(seed, purpose, image_ids), shape, start, device, torch.int64, place)


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
        They are drawn as float32, the default, and converted.
    """
    import torch

    def place(words: Sequence[torch.Tensor], out: torch.Tensor) -> None:
        for column, word in zip(out.unbind(-1), words, strict=True):
            column.copy_(word >> 8)
        out *= 2.0**-24

    drawn = _draw(_seeds(seed, purpose, image_ids), shape, start, device, torch.float32, place)
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

    Box and Muller, "A note on the generation of random normal deviates", 1958, which needs a fixed count of uniform
    numbers for each normal one, as nothing that rejects does. The largest magnitude is 6.8.

    Parameters
    ----------
    seed, purpose, image_ids, shape, start, device, dtype
        As in `counter_uniform`.
    """
    import torch

    def place(words: Sequence[torch.Tensor], out: torch.Tensor) -> None:
        for first in (0, 2):
            # Half a step more than zero: it has no logarithm.
            radius = words[first].float().mul_(2.0**-32).add_(2.0**-33).log_().mul_(-2).sqrt_()
            angle = words[first + 1].float().mul_(math.tau * 2.0**-32)
            torch.mul(radius, angle.cos(), out=out[..., first])
            torch.mul(radius, angle.sin_(), out=out[..., first + 1])

    drawn = _draw(_seeds(seed, purpose, image_ids), shape, start, device, torch.float32, place)
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
    """Draw whole numbers (N, *shape) from 0 to `below` - 1, at most 2³¹, for each image; see `counter_bits`."""
    if below > 2**31:
        raise ValueError(
            f"{below} numbers are more than 2³¹, so that their product with 32 bits would have more than 64."
        )
    return counter_bits(seed, purpose, image_ids, shape, start=start, device=device) * below >> 32


def counter_permutation(
    seed: int, purpose: str, image_ids: Sequence[str], count: int, *, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """Draw an order (N, count) of 0 … `count` - 1 for each image; see `counter_bits`."""
    # Devices agree on the order of equal numbers only if it is a stable one.
    return counter_bits(seed, purpose, image_ids, (count,), device=device).argsort(dim=1, stable=True)


def philox(counter: Sequence[Any], key: Sequence[Any]) -> list[Any]:
    """Return the four words that Philox4x32-10 makes of the four of a counter and the two of a key.

    Parameters
    ----------
    counter
        int64 below 2³², four NumPy arrays or four torch tensors of one shape; they are overwritten.
    key
        As the counter, or whole numbers, in shapes that broadcast to that of the counter.
    """
    import numpy as np
    import torch

    a, b, c, d = counter
    # Both have these functions; written into given memory, they take half the time.
    library: Any = torch if isinstance(a, torch.Tensor) else np
    p, q = library.empty_like(a), library.empty_like(a)
    for number in range(ROUNDS):
        left, right = ((word + number * step) & WORD for word, step in zip(key, KEY_STEPS, strict=True))
        library.multiply(a, MULTIPLIERS[0], out=p)
        library.multiply(c, MULTIPLIERS[1], out=q)
        # The upper halves of b and d are masked with the words that they go into, and so are the signs.
        for word, other, own, product in ((a, b, left, q), (c, d, right, p)):
            library.bitwise_right_shift(product, 32, out=word)
            word ^= other
            word ^= own
            word &= WORD
        b, q, d, p = q, b, p, d
    b &= WORD
    d &= WORD
    return [a, b, c, d]


def _seeds(seed: int, purpose: str, image_ids: Sequence[str]) -> torch.Tensor:
    import torch

    return torch.tensor([derive_seed(seed, purpose, name) for name in image_ids], dtype=torch.int64)


def _draw(
    seeds: torch.Tensor,
    shape: Sequence[int],
    start: int,
    device: torch.device | str,
    dtype: torch.dtype,
    place: Callable[[Sequence[torch.Tensor], torch.Tensor], None],
) -> torch.Tensor:
    """Return (N, *shape): what `place` makes, block by block, of the four words (rows, blocks) of each counter.

    `seeds` are (N,) int64, one an image.
    """
    import torch

    device, count = torch.device(device), math.prod(shape)
    first, passed_over = divmod(start, 4)
    blocks = -(-(passed_over + count) // 4)
    # A product of two words in PyTorch takes twice as long on a CPU.
    numpy = device.type == "cpu"
    keys: Any = seeds[:, None].numpy() if numpy else seeds[:, None].to(device)
    most = BLOCKS_ON_CPU if numpy else BLOCKS_ELSEWHERE
    drawn = torch.empty((len(seeds), blocks, 4), dtype=dtype, device=device)
    together = max(1, most // max(blocks, 1))
    for top in range(0, len(seeds), together):
        key = keys[top : top + together]
        for left in range(0, blocks, most):
            out = drawn[top : top + together, left : left + most]
            index: Any = torch.arange(first + left, first + left + out.shape[1], device=device).repeat(len(key), 1)
            index = index.numpy() if numpy else index
            words = philox([index & WORD, index >> 32, index * 0, index * 0], [key & WORD, key >> 32])
            place([torch.from_numpy(word) for word in words] if numpy else words, out)
    return drawn.flatten(1)[:, passed_over : passed_over + count].reshape(len(seeds), *shape)
