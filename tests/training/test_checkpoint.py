"""An interrupted training resumes after its last complete epoch, and ends with the same bytes."""

import logging
from dataclasses import replace

import pytest
import torch
from test_loop import SCHEDULE, examples
from torch import nn

from heatproof.training.journal import Journal
from heatproof.training.loop import TrainingRun, fit


class Killed(Exception):
    pass


def network():
    """Build a network with dropout, which draws from torch's global generator, and batch norm, which has buffers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten())
        return nn.Sequential(net, nn.Linear(64, 2)).to(memory_format=torch.channels_last)


def train(journal=None, epochs_until_kill=None, **change):
    """Train for six epochs of four batches each, with torch's generator as in a new process."""
    torch.manual_seed(5)
    batches = 0

    def augment(images, generator):
        nonlocal batches
        batches += 1
        if epochs_until_kill is not None and batches > 4 * epochs_until_kill + 2:
            raise Killed
        return images + 0.1 * torch.randn(images.shape, generator=generator)

    schedule = replace(SCHEDULE, shift=1, **change)
    trained = fit(network(), examples(64, 0), examples(32, 1, 2.0), schedule, 0, augment, TrainingRun([1, 5], journal))
    return trained, batches


def assert_same(trained, other):
    assert trained.history == other.history
    assert trained.saved_epochs.keys() == other.saved_epochs.keys() == {1, 5}
    for a, b in zip(
        [trained.best, *trained.saved_epochs.values()], [other.best, *other.saved_epochs.values()], strict=True
    ):
        assert a.keys() == b.keys()
        assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"optimizer": "adamw", "lr": 0.01, "schedule": "cosine"},
        {"optimizer": "adam", "lr": 0.01, "loss": "binary_cross_entropy", "random_horizontal_flip": 0.5},
    ],
    ids=["sgd, step", "adamw, cosine", "adam, flips"],
)
def test_a_training_interrupted_twice_ends_with_the_same_weights(tmp_path, change):
    uninterrupted, _ = train(**change)
    journal = Journal(tmp_path / "net.safetensors", "key")
    for epochs in (2, 1):
        with pytest.raises(Killed):
            train(journal, epochs, **change)
    again, batches = train(journal, **change)
    assert batches == 4 * 3, "three epochs were done"
    assert_same(again, uninterrupted)
    again, batches = train(journal, **change)
    assert batches == 0, "cut off between the last epoch and the writing of the weights"
    assert_same(again, uninterrupted)


def test_dropout_depends_on_the_state_of_the_generator():
    """Otherwise, the test above could not show that the generator's state is saved."""
    first, _ = train()
    torch.manual_seed(6)
    second = fit(network(), examples(64, 0), examples(32, 1, 2.0), replace(SCHEDULE, shift=1), 0)
    assert any(not torch.equal(first.best[name], second.best[name]) for name in first.best)


def flip(file):
    """Change one number of the network, which torch.load does not detect."""
    state = torch.load(file, weights_only=True)
    there = state["model"]["1.weight"].numpy().tobytes()
    file.write_bytes(file.read_bytes().replace(there, bytes([there[0] ^ 255]) + there[1:]))
    assert not torch.equal(torch.load(file, weights_only=True)["model"]["1.weight"], state["model"]["1.weight"])


DAMAGE = {
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-100]),
    "empty": lambda file: file.write_bytes(b""),
    "flipped": flip,
    "a pickle that runs code": lambda file: torch.save({"model": print}, file),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_journal_is_logged_and_training_starts_over(tmp_path, caplog, what):
    uninterrupted, _ = train()
    journal = Journal(tmp_path / "net.safetensors", "key")
    with pytest.raises(Killed):
        train(journal, 2)
    DAMAGE[what](journal.file)
    with caplog.at_level(logging.WARNING):
        again, batches = train(journal)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        f"the journal {journal.file} is damaged: the training starts from the first epoch"
    ]
    assert batches == 24
    assert_same(again, uninterrupted)


def test_each_key_has_a_journal_and_all_are_removed_together(tmp_path):
    journal, other = (Journal(tmp_path / "net.safetensors", key) for key in ("a", "b"))
    journal.save({"x": 1})
    assert other.load() is None
    assert journal.load() == {"x": 1}
    assert Journal(tmp_path / "net.2.safetensors", "a").load() is None
    other.remove()
    assert list(tmp_path.iterdir()) == []
