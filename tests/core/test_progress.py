"""Progress in a job's log."""

import io
import logging

import pytest

from heatproof.core import batches


class Clock:
    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(batches, "time", clock)
    return clock


@pytest.mark.parametrize("kind", [list, iter])
def test_a_log_has_periodic_lines_with_rate_and_time_left(kind, clock, caplog):
    caplog.set_level(logging.INFO, "heatproof.core.batches")
    seen = []
    for item in batches.track(kind(range(8)), "maps", unit="batch", total=8):
        seen.append(item)
        clock.now += 4
    assert seen == list(range(8))
    assert caplog.messages == [
        "maps: 3 of 8 batches, 0.25 batches/s, 20 s left",
        "maps: 6 of 8 batches, 0.25 batches/s, 8 s left",
        "maps: 8 batches in 32.0 s",
    ]


def test_without_a_length_there_is_no_time_left(clock, caplog):
    caplog.set_level(logging.INFO, "heatproof.core.batches")
    for _ in batches.track(iter(range(3)), "maps"):
        clock.now += 11
    assert caplog.messages[0] == "maps: 1 item, 0.09 items/s"


def test_an_error_propagates_and_no_completion_is_logged(clock, caplog):
    caplog.set_level(logging.INFO, "heatproof.core.batches")
    with pytest.raises(ZeroDivisionError):
        list(batches.track((1 / number for number in (1, 0)), "maps"))
    assert caplog.messages == []


def test_a_terminal_gets_a_bar(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stderr", terminal)
    assert list(batches.track([5, 6], "maps", unit="batch")) == [5, 6]
    assert "maps" in terminal.getvalue()
