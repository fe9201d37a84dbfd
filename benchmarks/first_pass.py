"""How much of heatproof a call runs before the network sees the first image: functions, modules and calls.

    python benchmarks/first_pass.py --out FOLDER
    PYTHONPATH=OTHER_CHECKOUT/src python benchmarks/first_pass.py
    python benchmarks/first_pass.py --list
    python benchmarks/first_pass.py --path

Counts the second `heatproof.evaluate("sds", ...)` in a process: 6 random images, random maps in an array, a grid of 4
patches a side. The networks are a linear one (3 × 32 × 32) and, unless `--small`, timm's ResNet-18 (3 × 64 × 64).

Counted are the Python functions of heatproof that this thread enters, by file and qualified name; a module is a file.
Frames such as `<lambda>` and `<genexpr>` are left out. All checks of the inputs count. A call is an entry into a
function; each step of a generator is one as well. "To the first pass" ends where the forward of the caller's network
begins for the first time, which is in a check. Frames are all frames of heatproof on the stack, with `<dictcomp>` and
the like: at the first pass, and at the last one, which is for the scores.

`--list` prints the functions to the first pass in the order of their first calls, with the number of calls for each
network. `--path` runs a job `attribute` of the workflow with one map, and counts functions, modules, and changes: calls
that lead from a function of one module into another module. Different changes are pairs of such functions. Files are
those that it opens to write, also those that it renames or removes.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import torch
from _shared import make_parser, module_of_workflow, print_table

import heatproof

PACKAGE = str(Path(heatproof.__file__).parent)
IMAGES, GRID = 6, 4

Function = tuple[str, str]


def function_of(code: CodeType) -> Function | None:
    """Return file and qualified name of a function of heatproof; None for other code and for frames without a name."""
    if not code.co_filename.startswith(PACKAGE) or code.co_name.startswith("<"):
        return None
    return code.co_filename[len(PACKAGE) + 1 :], code.co_qualname


def caller_of(frame: FrameType) -> Function | None:
    """Return the innermost function of heatproof that leads to a frame."""
    outer = frame.f_back
    while outer is not None:
        if function := function_of(outer.f_code):
            return function
        outer = outer.f_back
    return None


class Profile:
    """The functions of heatproof that are called, in order, and what was called before the forward of a network.

    Attributes
    ----------
    calls, calls_before
        Number of calls by function, in the order of the first calls: of all, and to the first pass.
    frames
        Number of frames of heatproof on the stack at each pass.
    changes
        Number of calls from one module into another, by caller and function.
    """

    def __init__(self, forward: CodeType | None = None) -> None:
        self.forward = forward
        self.calls: Counter[Function] = Counter()
        self.calls_before: Counter[Function] = Counter()
        self.frames: list[int] = []
        self.changes: Counter[tuple[Function, Function]] = Counter()

    def enter(self, frame: FrameType, event: str, argument: object) -> None:
        """Count a call, as a function for `sys.setprofile`."""
        if event != "call":
            return
        if frame.f_code is self.forward:
            if not self.frames:
                self.calls_before = self.calls.copy()
            self.frames.append(frames_of_heatproof(frame))
        if function := function_of(frame.f_code):
            self.calls[function] += 1

    def enter_and_compare(self, frame: FrameType, event: str, argument: object) -> None:
        """Count a call, and whether it leads into another module."""
        self.enter(frame, event, argument)
        function = function_of(frame.f_code)
        if event == "call" and function:
            caller = caller_of(frame)
            if caller and caller[0] != function[0]:
                self.changes[caller, function] += 1


def frames_of_heatproof(frame: FrameType) -> int:
    """Return the number of frames of heatproof on the stack, with those that have no name."""
    count = 0
    outer: FrameType | None = frame
    while outer is not None:
        count += outer.f_code.co_filename.startswith(PACKAGE)
        outer = outer.f_back
    return count


@contextmanager
def profiling(count: Callable[[FrameType, str, Any], None]) -> Iterator[None]:
    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(None)


def networks(small: bool) -> Iterator[tuple[str, torch.nn.Module, int]]:
    torch.manual_seed(0)
    yield "linear", torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 4)).eval(), 32
    if not small:
        import timm

        yield "resnet18", timm.create_model("resnet18", num_classes=10).eval(), 64


def profile_of(network: torch.nn.Module, size: int) -> Profile:
    """Profile the second call on a network."""
    images, targets = torch.rand(IMAGES, 3, size, size), torch.arange(IMAGES) % 4
    maps = np.random.default_rng(0).random((IMAGES, size, size), dtype=np.float32)
    profile = Profile(type(network).forward.__code__)
    for call in range(2):
        with profiling(profile.enter if call else ignore):
            heatproof.evaluate("sds", network, images, targets, maps, grid=GRID)
    return profile


def ignore(frame: FrameType, event: str, argument: object) -> None:
    """Count nothing."""


def modules_of(calls: Counter[Function]) -> int:
    return len({file for file, _ in calls})


def row(name: str, profile: Profile) -> dict[str, object]:
    return {
        "network": name,
        "functions to the first pass": len(profile.calls_before),
        "modules to the first pass": modules_of(profile.calls_before),
        "calls to the first pass": profile.calls_before.total(),
        "frames at the first pass": profile.frames[0],
        "frames at the last pass": profile.frames[-1],
        "functions": len(profile.calls),
        "modules": modules_of(profile.calls),
        "calls": profile.calls.total(),
        "share of calls to the first pass": profile.calls_before.total() / profile.calls.total(),
    }


def functions_in_order(profiles: dict[str, Profile]) -> list[dict[str, object]]:
    """Return a row for each function to the first pass, in the order of the first calls."""
    functions = dict.fromkeys(function for profile in profiles.values() for function in profile.calls_before)
    return [
        {"module": file, "function": name}
        | {f"calls, {network}": profile.calls_before[file, name] for network, profile in profiles.items()}
        for file, name in functions
    ]


CONFIG = {
    "datasets": ["digits"],
    "models": [{"small": {"architecture": "cifar_vgg11_bn", "options": {"width": 2}}}],
    "pretraining": {"epochs": 1},
    "finetuning": {"epochs": 1},
    "weights": ["finetuned"],
    "explainers": ["saliency", "random"],
    "metrics": [],
    "evaluation": {"images": 16, "accuracy_images": 16},
}


def profile_of_job() -> tuple[Profile, int]:
    """Profile the job that makes one map, after the jobs that it needs, and count the files that it wrote."""
    from device import jobs_of, working_in

    files_of_config, stage_module = module_of_workflow("config.files"), module_of_workflow("plan.stage")
    profile, written = Profile(), set[str]()

    def note_files(event: str, arguments: tuple[Any, ...]) -> None:
        flags = arguments[2] if event == "open" else 0
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and isinstance(arguments[0], str | os.PathLike):
            written.add(os.path.abspath(arguments[0]))

    with tempfile.TemporaryDirectory() as folder, working_in(folder):
        for stage, _, request in jobs_of(files_of_config.merge(files_of_config.default_config(), CONFIG)):
            plain = json.loads(json.dumps(request))
            job = stage_module.load_spec(plain["run"], plain["spec"])
            runtime = stage_module.Runtime(**plain["runtime"])
            if stage != "attribute":
                job.run(runtime)
                continue
            shard = job.shard
            job = type(job)(**{**vars(job), "shard": type(shard)(**{**vars(shard), "images": (0, 1)})})
            # Results are written in other threads, which are part of the path.
            threading.setprofile(profile.enter_and_compare)
            sys.addaudithook(note_files)
            with profiling(profile.enter_and_compare):
                job.run(runtime)
            threading.setprofile(None)
            break
        return profile, len([path for path in written if path.startswith(os.path.realpath(folder))])


def main() -> None:
    options = make_parser(__doc__)
    options.add_argument("--list", action="store_true", help="print the functions to the first pass")
    options.add_argument("--path", action="store_true", help="count a job of the workflow instead of a call")
    args = options.parse_args()
    warnings.simplefilter("ignore")
    if args.path:
        profile, written = profile_of_job()
        counts = {
            "functions": len(profile.calls),
            "modules": modules_of(profile.calls),
            "changes": profile.changes.total(),
            "different changes": len(profile.changes),
            "files written": written,
        }
        print_table([{"job": "attribute", **counts}], "path", args.out)
        return
    profiles = {name: profile_of(network, size) for name, network, size in networks(args.small)}
    if args.list:
        print_table(functions_in_order(profiles), "functions", args.out)
    print_table([row(name, profile) for name, profile in profiles.items()], "first_pass", args.out)


if __name__ == "__main__":
    main()
