"""Batch sizes that are halved when memory runs out, and remembered."""

import traceback
import weakref

import pytest
import torch
from network_responses import padded as padded_network

from heatproof.core.adaptive_batch_size import AdaptiveBatchSize
from heatproof.errors import HeatproofError
from heatproof.store.reading import read_json
from heatproof.store.writing import write_json
from heatproof.workflow.stages._batch_size_file import BatchSizeFile


class Greedy(torch.nn.Module):
    """Runs out of memory with more than a number of images."""

    def __init__(self, fits):
        super().__init__()
        self.fits, self.seen = fits, []

    def forward(self, images):
        self.seen.append(len(images))
        if len(images) > self.fits:
            raise torch.OutOfMemoryError("out of memory")
        return images.flatten(1).cumsum(1)


def test_batches_are_halved_when_memory_runs_out(caplog):
    caplog.set_level("INFO", logger="heatproof")
    images = torch.arange(7 * 3.0).reshape(7, 3, 1, 1)
    greedy = Greedy(2)
    padded = padded_network(greedy, 8)
    torch.testing.assert_close(padded(images), images.flatten(1).cumsum(1), rtol=0, atol=0)
    assert greedy.seen == [8, 4, 2, 2, 2, 2]
    assert len([r for r in caplog.records if "continuing with" in r.message]) == 2
    greedy.seen.clear()
    padded(images)
    assert greedy.seen == [2, 2, 2, 2], "the size that fitted is remembered"
    assert padded.passes == 16, "passes that came to nothing are none"


def pass_padded(module, size, file, device, images):
    network = padded_network(module, size)
    network.batch_sizes["passes"] = AdaptiveBatchSize("net", file, device)
    return network(images)


def test_one_image_that_does_not_fit_is_an_error():
    with pytest.raises(HeatproofError, match="a batch size of 1"):
        padded_network(Greedy(0), 4)(torch.zeros(4, 3, 1, 1))


def test_a_later_job_starts_with_the_batch_size_that_fitted(tmp_path):
    file = BatchSizeFile(tmp_path / "maps" / "rise")
    file.path.parent.mkdir()
    first, second = Greedy(3), Greedy(3)
    images = torch.zeros(8, 3, 1, 1)
    pass_padded(first, 8, file, "cuda", images)
    pass_padded(second, 8, file, "cuda", images)
    assert first.seen[:3] == [8, 4, 2]
    assert second.seen == [2, 2, 2, 2]
    third = Greedy(8)
    pass_padded(third, 8, file, "cpu", images)
    assert third.seen == [8], "another device, another memory"


def test_a_cpu_starts_with_the_full_batch_size_again(tmp_path):
    file = BatchSizeFile(tmp_path / "rise")
    pass_padded(Greedy(1), 4, file, "cpu", torch.zeros(4, 3, 1, 1))
    assert not file.path.exists()


@pytest.mark.parametrize("wrong", [{"cuda": "many"}, {"cuda": 0}, {"cuda": -4}, {}, {"cuda": None}])
def test_an_invalid_batch_size_file_is_ignored(tmp_path, wrong):
    file = BatchSizeFile(tmp_path / "net")
    write_json(file.path, wrong)
    assert AdaptiveBatchSize("net", file, "cuda").batch_size is None


def test_a_smaller_batch_size_of_the_config_takes_precedence(tmp_path):
    file = BatchSizeFile(tmp_path / "net")
    write_json(file.path, {"cuda": 4})
    assert [attempt.size for attempt in AdaptiveBatchSize("net", file, "cuda").attempts(2)] == [2]
    assert read_json(file.path) == {"cuda": 4}


def test_an_unwritable_folder_does_not_stop_a_job(tmp_path):
    adaptive_size = AdaptiveBatchSize("net", BatchSizeFile(tmp_path / "gone" / "deep" / "net"), "cuda")
    (tmp_path / "gone").write_text("a file, no folder")

    sizes = []
    for attempt in adaptive_size.attempts(4):
        with attempt as size:
            sizes.append(size)
            if size > 1:
                raise torch.OutOfMemoryError("out of memory")
    assert sizes == [4, 2, 1]


def test_an_attempt_suppresses_out_of_memory_errors():
    sizes, failed = [], []

    def run(size):
        # The tensors of a failed pass are released before the next one runs.
        assert all(tensor() is None for tensor in failed)
        sizes.append(size)
        tensor = torch.zeros(size)
        failed.append(weakref.ref(tensor))
        if size > 2:
            raise torch.OutOfMemoryError("out of memory")
        return size

    adaptive_size = AdaptiveBatchSize("net")
    for attempt in adaptive_size.attempts(8):
        with attempt as size:
            output = run(size)
    assert (output, sizes) == (2, [8, 4, 2])
    assert [attempt.size for attempt in adaptive_size.attempts(8)] == [2], "the size that fitted is remembered"


def test_other_errors_have_no_frames_of_the_attempts():
    def run():
        for attempt in AdaptiveBatchSize("net").attempts(8):
            with attempt:
                raise RuntimeError("shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="shapes") as caught:
        run()
    assert {frame.f_code.co_filename for frame, _ in traceback.walk_tb(caught.value.__traceback__)} == {__file__}
