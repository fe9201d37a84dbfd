"""Odd checkpoints of many kinds, and the table of their messages in odd_checkpoints.md: run this file to print it."""

import logging
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from heatproof.core.specs import DatasetSpec
from heatproof.errors import HeatproofError
from heatproof.models.network import build_network
from heatproof.models.registry import ModelSpec
from heatproof.workflow.stages.fetch import Fetch

MODEL = ModelSpec("cifar_vgg11_bn", "heatproof.models.vgg", {"width": 2})
DIGITS = DatasetSpec("digits", "heatproof.datasets.digits", {}, 0, "digits")
State = dict[str, torch.Tensor]


def _prefixed(state: State, prefix: str) -> State:
    return {prefix + name: value for name, value in state.items()}


def _renamed(state: State) -> State:
    """Return the weights with other names: layers of a kind are counted, classifiers are called fc."""
    return {f"layer{number}.{name.rpartition('.')[2]}": value for number, (name, value) in enumerate(state.items())}


def _ruined(state: State) -> State:
    name = next(name for name, value in state.items() if value.is_floating_point())
    return {**state, name: torch.full_like(state[name], float("nan"))}


def _without(state: State, part: str) -> State:
    return {name: value for name, value in state.items() if part not in name}


def _bytes(content: bytes) -> Callable[[State, Path], None]:
    return lambda state, path: path.write_bytes(content) and None


def _torch(change: Callable[[State], Any]) -> Callable[[State, Path], None]:
    return lambda state, path: torch.save(change(state), path)


def _cut_off(state: State, path: Path) -> None:
    save_file({name: value.contiguous() for name, value in state.items()}, path)
    path.write_bytes(path.read_bytes()[:-500])


KINDS: dict[str, tuple[str, Callable[[State, Path], None]]] = {
    "parallel.pth": ("of DataParallel", _torch(lambda state: {"state_dict": _prefixed(state, "module.")})),
    "lightning.ckpt": (
        "of Lightning, with a loss and settings",
        _torch(
            lambda state: {
                "state_dict": {**_prefixed(state, "model."), "loss.weight": torch.ones(10)},
                "hyper_parameters": {"lr": 0.1},
                "epoch": 3,
            }
        ),
    ),
    "compiled.pt": ("of a compiled network", _torch(lambda state: _prefixed(state, "_orig_mod."))),
    "averaged.pth": (
        "a state and its average",
        _torch(lambda state: {"state_dict": state, "state_dict_ema": _ruined(state)}),
    ),
    "others_names.th": ("of another code base", _torch(lambda state: {"state_dict": _renamed(state)})),
    "other_classes.pth": (
        "for seven classes",
        _torch(lambda state: build_network(MODEL, 7).state_dict()),
    ),
    "other_width.pth": (
        "of a wider network",
        _torch(lambda state: build_network(replace(MODEL, options={"width": 4}), 10).state_dict()),
    ),
    "half.pth": ("without a part of the network", _torch(lambda state: _without(state, "features.4"))),
    "nan.pth": ("of a training that diverged", _torch(_ruined)),
    "optimizer.pt": ("an optimizer alone", _torch(lambda state: {"optimizer": {"lr": 0.1}, "epoch": 3})),
    "model.pth": ("a whole pickled network", lambda state, path: torch.save(build_network(MODEL, 10), path)),
    "cut_off.safetensors": ("a download that was cut off", _cut_off),
    "page.pth": ("a web page", _bytes(b"<html>404 not found</html>")),
    "empty.pth": ("an empty file", _bytes(b"")),
}


class _Recorder(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def message_about(name: str, folder: Path) -> str:
    """Write an odd checkpoint into a folder, and return the message about it."""
    path = folder / name
    KINDS[name][1](build_network(MODEL, 10).state_dict(), path)
    recorder, log = _Recorder(), logging.getLogger("heatproof.workflow.stages._checkpoint")
    before = log.level
    log.addHandler(recorder)
    log.setLevel(logging.INFO)
    try:
        Fetch(dataset=DIGITS, model=MODEL, checkpoint=str(path), sha256=None).check()
        done = [sentence.partition(": ")[2] for sentence in recorder.messages]
        message = f"It is read: {done[0]}." if done else "It is read."
    except HeatproofError as error:
        message = str(error)
    finally:
        log.removeHandler(recorder)
        log.setLevel(before)
    return message.replace(f"{folder}/", "").replace("|", "/")


def table() -> str:
    """Return the rows of the table in odd_checkpoints.md."""
    with tempfile.TemporaryDirectory() as folder:
        rows = [f"| `{name}` | {what} | {message_about(name, Path(folder))} |" for name, (what, _) in KINDS.items()]
    return "\n".join(["| file | content | message |", "| --- | --- | --- |", *rows])


if __name__ == "__main__":
    print(table())
