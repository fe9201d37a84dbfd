"""Seeds and random numbers depend only on seed, purpose and image, and are the same on every machine."""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from heatproof.core.randomness import (
    counter_bits,
    counter_integers,
    counter_normal,
    counter_permutation,
    counter_uniform,
    derive_seed,
    numpy_generator,
    philox,
    torch_generator,
)


def test_seeds_have_fixed_values():
    """Published numbers depend on these seeds."""
    assert derive_seed(0, "rise masks") == 6811335599302766059
    assert derive_seed(0, "random baseline", "digits-0001") == 7353360614306042668


def test_no_two_streams_coincide():
    parts = itertools.product([0, 1, 11], ["a", "b", "a1", ""], ["", "1", "a", "x"])
    seeds = [derive_seed(*part) for part in parts]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_boundaries_between_seed_and_texts_matter():
    assert derive_seed(1, "1a") != derive_seed(11, "a")
    assert derive_seed(0, "ab", "c") != derive_seed(0, "a", "bc")


def test_generators_leave_the_global_ones_alone():
    numpy_before, torch_before = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    drawn = [numpy_generator(3, "x", "i").random(4), torch.rand(4, generator=torch_generator(3, "x", "i")).numpy()]
    again = [numpy_generator(3, "x", "i").random(4), torch.rand(4, generator=torch_generator(3, "x", "i")).numpy()]
    np.testing.assert_array_equal(drawn[0], again[0])
    np.testing.assert_array_equal(drawn[1], again[1])
    np.testing.assert_array_equal(np.random.get_state()[1], numpy_before)  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), torch_before)


VECTORS = [
    # Random123, tests/kat_vectors, philox4x32 of 10 rounds: counter, key, words.
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]
DRAWS = {
    "bits": counter_bits,
    "uniform": counter_uniform,
    "normal": counter_normal,
    "integers": lambda *arguments, **options: counter_integers(*arguments, 1000, **options),
}
IDS = [f"image-{number}" for number in range(9)]


@pytest.mark.parametrize("library", [np.array, torch.tensor])
def test_philox_matches_the_published_test_vectors(library):
    counter, key, words = (
        [library(column)[None] for column in zip(*part, strict=True)] for part in zip(*VECTORS, strict=True)
    )
    for word, expected in zip(philox(counter, key), words, strict=True):
        np.testing.assert_array_equal(word, expected)


def test_counter_bits_have_fixed_values():
    assert counter_bits(0, "x", ["i"], (5,))[0].tolist() == [3589669372, 336186513, 3386662172, 471571204, 2734918389]


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
class TestDraws:
    @pytest.fixture(autouse=True)
    def small_parts(self, monkeypatch):
        """Draw several images at once, and then several parts of an image."""
        monkeypatch.setattr("heatproof.core.randomness.BLOCKS_ON_CPU", 8)

    @pytest.mark.parametrize("shape", [(), (3,), (2, 5), (3, 7, 5)])
    def test_batches_and_order_change_nothing(self, draw, shape):
        complete = draw(1, "x", IDS, shape)
        assert complete.shape == (9, *shape)
        for size in (1, 7):
            parts = [draw(1, "x", IDS[low : low + size], shape) for low in range(0, 9, size)]
            assert torch.equal(torch.cat(parts), complete)
        assert torch.equal(draw(1, "x", IDS[::-1], shape).flip(0), complete)

    @pytest.mark.parametrize("start", [0, 1, 4, 35, 63, 2**34 + 3])
    def test_an_offset_skips_the_first_numbers(self, draw, start):
        complete = draw(1, "x", IDS, (100,), start=start - start % 32)
        assert torch.equal(draw(1, "x", IDS, (60,), start=start), complete[:, start % 32 :][:, :60])

    def test_the_number_of_blocks_at_once_changes_nothing(self, draw, monkeypatch):
        small = draw(1, "x", IDS, (3, 7, 5))
        monkeypatch.setattr("heatproof.core.randomness.BLOCKS_ON_CPU", 1 << 14)
        assert torch.equal(draw(1, "x", IDS, (3, 7, 5)), small)

    def test_seed_purpose_and_image_matter(self, draw):
        streams = [draw(seed, purpose, ["i", "j"], (50,)) for seed in (0, 1) for purpose in ("x", "y")]
        flat = torch.cat(streams)
        assert len(flat.unique(dim=0)) == 8

    def test_empty_draws_have_empty_shapes(self, draw):
        assert draw(1, "x", [], (2,)).shape == (0, 2)
        assert draw(1, "x", IDS, (0,)).shape == (9, 0)


def test_numpy_and_torch_give_the_same_bits():
    index = np.arange(1000) * 4_294_967
    device_numbers = [index & 0xFFFFFFFF, index >> 32, index % 7, index % 11]
    tensors = philox([torch.tensor(word) for word in device_numbers], [12345, 67890])
    for ours, theirs in zip(philox(device_numbers, [12345, 67890]), tensors, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_uniform_numbers_are_uniform():
    drawn = counter_uniform(0, "x", IDS, (20_000,))
    assert drawn.dtype == torch.float32
    assert 0 <= drawn.min() < 1e-4
    assert 1 - 1e-4 < drawn.max() < 1
    assert stats.kstest(drawn.flatten().numpy(), "uniform").pvalue > 1e-3
    assert counter_uniform(0, "x", IDS, (2,), dtype=torch.float64).dtype == torch.float64


def test_normal_numbers_are_normal():
    drawn = counter_normal(0, "x", IDS, (20_000,)).double()
    assert abs(drawn.mean()) < 0.01
    assert abs(drawn.var() - 1) < 0.02
    assert 4 < drawn.abs().max() < 6.8
    assert stats.kstest(drawn.flatten().numpy(), "norm").pvalue > 1e-3


def test_streams_are_independent():
    """Test images, purposes, and the neighbours in one stream, which come from one block."""
    several = torch.cat([counter_normal(0, purpose, IDS[:3], (40_000,)) for purpose in ("x", "y")])
    neighbours = several[0].reshape(-1, 4).T
    for rows in (several, neighbours, several.square(), neighbours.square()):
        correlations = torch.corrcoef(rows) - torch.eye(len(rows))
        assert correlations.abs().max() < 4.5 / rows.shape[1] ** 0.5


def test_extreme_bits_give_finite_numbers(monkeypatch):
    ends = [0, 0xFFFFFFFF]
    monkeypatch.setattr("heatproof.core.randomness.philox", lambda counter, key: [np.array([ends])] * 4)
    assert counter_normal(0, "x", ["i"], (8,)).isfinite().all()
    assert (counter_uniform(0, "x", ["i"], (8,)) < 1).all()


def test_integers_are_uniform():
    drawn = counter_integers(0, "x", IDS, (7_000,), 7)
    counts = torch.bincount(drawn.flatten())
    assert len(counts) == 7
    assert stats.chisquare(counts).pvalue > 1e-3


def test_permutations_are_uniform():
    drawn = counter_permutation(0, "x", IDS, 50)
    assert torch.equal(drawn.sort(1).values, torch.arange(50).expand(9, -1))
    assert torch.equal(counter_permutation(0, "x", IDS[4:5], 50), drawn[4:5])
    firsts = counter_permutation(0, "x", [str(number) for number in range(5000)], 5)[:, 0]
    assert stats.chisquare(torch.bincount(firsts)).pvalue > 1e-3


def test_equal_bits_keep_their_order(monkeypatch):
    monkeypatch.setattr("heatproof.core.randomness.counter_bits", lambda *device_numbers, **options: torch.zeros(1, 40))
    assert counter_permutation(0, "x", ["i"], 40)[0].tolist() == list(range(40))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_devices_agree():
    for draw in (counter_bits, counter_uniform):
        assert torch.equal(draw(0, "x", IDS, (3, 7, 5), device="cuda").cpu(), draw(0, "x", IDS, (3, 7, 5)))
    torch.testing.assert_close(
        counter_normal(0, "x", IDS, (3, 7, 5), device="cuda").cpu(), counter_normal(0, "x", IDS, (3, 7, 5))
    )
