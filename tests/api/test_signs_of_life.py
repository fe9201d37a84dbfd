"""Without a terminal, a long call writes a line in half a minute: images done, of how many, and minutes left."""

import re
import subprocess
import sys

import pytest
import torch
from torch import nn

import heatproof
from heatproof.core import batches

pytestmark = pytest.mark.filterwarnings("ignore")
LINE = re.compile(
    r"(?P<step>[\w ]+): (?P<done>\d+) of (?P<total>\d+) images, "
    r"(about (?P<left>\d+\.\d) min left|(?P<far>\d+\.\d) min so far)"
)

# Seconds that the network has taken; copies of the network share it.
NOW = [0.0]


class Slow(nn.Module):
    """A network of which every pass of a batch takes 20 seconds, by the clock of the tests."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 4))

    def forward(self, images):
        NOW[0] += 20
        return self.layers(images)


def pixels(count):
    return torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(1))


# The call, and the number of images of its first step, each counted once for every method or response.
CALLS = {
    "explain": (
        lambda network, **options: heatproof.explain(
            network, pixels(12), None, ["saliency", "input_x_gradient"], batch_size=2, **options
        ),
        "maps of 2 methods",
        24,
    ),
    "evaluate": (
        lambda network, **options: heatproof.evaluate(
            ["sds", "deletion_morf"], network, pixels(12), None, pixels(12).sum(1), batch_size=16, grid=4, **options
        ),
        "scores by 2 metrics",
        24,
    ),
    "choose": (
        lambda network, **options: heatproof.choose(network, pixels(16), None, ["saliency"], batch_size=2, **options),
        "maps of 3 methods",
        24,
    ),
    "finetune": (
        lambda network, **options: heatproof.finetune(
            network, pixels(20), torch.arange(20) % 4, epochs=2, batch_size=2, **options
        ),
        "finetuning for 2 epochs",
        32,
    ),
}


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    NOW[0] = 0.0
    monkeypatch.setattr(batches, "time", type("Clock", (), {"monotonic": staticmethod(lambda: NOW[0])}))


@pytest.mark.parametrize("call", CALLS)
def test_a_long_call_shows_that_it_lives(call, capsys):
    function, step, total = CALLS[call]
    function(Slow().eval())
    lines = [LINE.fullmatch(line) for line in capsys.readouterr().err.splitlines()]
    assert lines
    assert all(lines)
    of_step = [line for line in lines if line["step"] == step]
    assert {int(line["total"]) for line in of_step} == {total}
    # `choose` scores two halves of the images by the same steps.
    done = [int(line["done"]) for line in of_step][: len(of_step) // (2 if call == "choose" else 1)]
    assert done == sorted(done)
    assert any(0 < count < total for count in done)
    left = [float(line["left"]) for line in of_step if line["left"]]
    assert left[-1] < left[0] or call == "choose"


@pytest.mark.parametrize("call", CALLS)
def test_without_progress_nothing_is_written(call, capsys):
    CALLS[call][0](Slow().eval(), progress=False)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("call", CALLS)
def test_a_short_call_writes_nothing(call, capsys):
    network = Slow().eval()
    network.forward = network.layers.forward
    CALLS[call][0](network)
    assert capsys.readouterr().err == ""


def test_requested_progress_starts_at_once_and_has_the_right_units(capsys):
    heatproof.explain(Slow().eval(), pixels(1), None, "saliency", progress=True)
    assert capsys.readouterr().err.splitlines()[0] == "maps of 1 method: 0 of 1 image"


def test_a_bar_leaves_the_start_method_and_no_thread():
    code = (
        "import io, multiprocessing, sys, threading\n"
        "sys.stderr = type('Terminal', (io.StringIO,), {'isatty': lambda self: True})()\n"
        "from heatproof.core import batches\n"
        "threads = threading.enumerate()\n"
        "assert list(batches.track([5, 6], 'maps', unit='batch')) == [5, 6]\n"
        "with batches.count_images('maps', 2) as counted:\n"
        "    counted.add(2)\n"
        "assert 'maps' in sys.stderr.getvalue()\n"
        "assert threading.enumerate() == threads\n"
        "multiprocessing.set_start_method('spawn')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
