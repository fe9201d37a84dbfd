"""Only listed modules start processes, unpack archives or execute code that they read, each with a reason."""

from __future__ import annotations

import ast
from pathlib import Path

import heatproof

ROOT = Path(heatproof.__file__).parent
STARTS = {"subprocess", "multiprocessing", "torch.multiprocessing", "pty", "webbrowser", "runpy", "ctypes"}
UNPACKS = {"zipfile", "tarfile", "gzip", "bz2", "lzma", "zlib", "zstandard", "py7zr"}
RUNS = {"pickle", "cPickle", "_pickle", "dill", "joblib", "shelve", "marshal", "cloudpickle", "code", "codeop"}
PROGRAMS = {
    *("os.system", "os.popen", "os.fork", "os.forkpty", "os.startfile", "os.posix_spawn", "os.posix_spawnp"),
    *("asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell", "exec", "eval", "compile"),
}
REASONS = {
    "store/table_formats.py: zlib": "unpacks a table of labels that is packed with gzip, up to a bound",
    "workflow/commands/run.py: subprocess": "starts Snakemake on the Snakefile of the package or the one that is named",
    "workflow/start.py: subprocess": "starts the job that lists the images of a dataset again whose files changed",
    "testing/_side_effects.py: multiprocessing": "reads the start method, and sets it back; it starts nothing",
    "training/several_devices.py: multiprocessing": "a training on several devices is a process for each",
    "training/several_devices.py: torch.multiprocessing": "names the errors of those processes",
    "models/saved_by_torch.py: zipfile": "reads the list of parts of a checkpoint; compressed ones are refused",
    "models/saved_by_torch.py: torch.load": "weights alone, after a look at their shapes within bounds",
    "models/saved_by_torch.py: os.fork": "looks at the shapes of a checkpoint, within bounds of memory and time",
    "datasets/fashion_mnist.py: gzip": "unpacks the files of Fashion-MNIST, up to the size that they have",
    "datasets/imagenet.py: zlib": "looks at how large the variables of the devkit's table of classes are",
    "datasets/fashion_mnist.py: zlib": "names the error of damaged ones",
    "workflow/stages/_shards.py: zipfile": "lists the parts of a batch of a job's own journal; refuses compressed ones",
    "workflow/stages/_shards.py: np.load": "reads batches of a job's own journal as arrays alone",
}


def found_in(tree: ast.Module) -> set[str]:
    """Return imports and calls of a module that could start, unpack or execute what it reads."""
    calls: set[str] = set()
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        # Naming an exception executes nothing.
        if isinstance(node, ast.ImportFrom) and not all(alias.name.endswith("Error") for alias in node.names):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        watched = STARTS | UNPACKS | RUNS | {"pickletools", "concurrent.futures.ProcessPoolExecutor"}
        calls |= {name for name in names if name in watched or f"{name}.".startswith(("pickle.", "numpy.load."))}
        if not isinstance(node, ast.Call):
            continue
        called, keywords = ast.unparse(node.func), {word.arg: ast.unparse(word.value) for word in node.keywords}
        refused = keywords.get("allow_pickle") == "False"
        if (
            called in PROGRAMS
            or called.startswith(("os.exec", "os.spawn"))
            or called in ("torch.load", "torch.jit.load", "pd.read_pickle", "yaml.load", "yaml.unsafe_load", "np.load")
            or called.endswith(("extractall", "unpack_archive", "load_state_dict_from_url", "hub.load"))
            or keywords.get("pretrained") == "True"
        ):
            calls.add(called if called != "np.load" or refused else "np.load with pickles")
    return calls


def test_each_module_that_starts_programs_unpacks_or_executes_has_a_reason():
    calls_by_module = {
        f"{file.relative_to(ROOT).as_posix()}: {name}"
        for file in ROOT.rglob("*.py")
        for name in found_in(ast.parse(file.read_text(encoding="utf-8")))
    }
    assert calls_by_module == set(REASONS)


def test_the_search_finds_planted_secrets():
    source = """
import os, subprocess as s
from zipfile import ZipFile
from multiprocessing import Pool
from concurrent.futures import ProcessPoolExecutor
import pickle
from pickle import Unpickler
os.execv(a, b); np.load(x); np.load(x, allow_pickle=False); torch.load(x, weights_only=True); archive.extractall()
"""
    assert found_in(ast.parse(source)) == {
        *("subprocess", "zipfile", "multiprocessing", "concurrent.futures.ProcessPoolExecutor", "pickle"),
        *("pickle.Unpickler", "os.execv", "np.load with pickles", "np.load", "torch.load", "archive.extractall"),
    }
