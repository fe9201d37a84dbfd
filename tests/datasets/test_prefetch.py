"""Prefetching gives the same images as reading in turn."""

import threading

import pytest
import torch

from heatproof.core.batches import prefetch

CPU = torch.device("cpu")


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_items_come_in_order_with_their_results(count):
    read = prefetch(lambda item: torch.tensor(item * item), range(count), CPU)
    assert [(item, int(images)) for item, images in read] == [(item, item * item) for item in range(count)]


def test_the_next_item_is_read_while_the_current_one_is_used():
    begun = [threading.Event() for _ in range(3)]
    for item, _ in prefetch(lambda item: begun[item].set(), range(3), CPU):
        if item < 2:
            assert begun[item + 1].wait(timeout=30)


def test_an_error_is_raised_at_its_item():
    def read(item):
        if item == 2:
            raise ValueError("broken")
        return item

    seen = []
    with pytest.raises(ValueError, match="broken"):
        seen.extend(item for item, _ in prefetch(read, range(4), CPU))
    assert seen == [0, 1]


@pytest.mark.parametrize(("device", "pinned"), [("cuda", True), ("cpu", False), ("mps", False)])
def test_images_for_a_gpu_are_pinned(device, pinned):
    class Images:
        def pin_memory(self):
            return "pinned"

    ((_, images),) = prefetch(lambda _: Images(), [0], torch.device(device))
    assert (images == "pinned") is pinned
