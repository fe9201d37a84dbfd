"""The identity of functions, objects and networks, by which the cache stores their results."""

import importlib
import sys
import threading
import types

import numpy as np
import pytest

import heatproof
from heatproof.api.inputs.identity import identity_of
from heatproof.errors import HeatproofError
from heatproof.store import array_cache as batches

ONE, OTHER = "images.sum(1)", "images.sum(1) * 2"
FUNCTION = "def method(model, images, targets):\n    return "


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """Import edited user modules, and return the method of one of them."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    written = set()
    modules = {name: sys.modules.get(name) for name in ("profile", "own")}

    def read(modules):
        for name, text in modules.items():
            path = tmp_path / f"{name.replace('.', '/')}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            written.add(name)
        for name in [*written, *(name.partition(".")[0] for name in written)]:
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module(next(iter(modules))).method

    yield read
    for name in [*written, *(name.partition(".")[0] for name in written)]:
        sys.modules.pop(name, None)
    sys.modules.update({name: module for name, module in modules.items() if module is not None})


MODULES = {
    "a module with the name of one of Python's": lambda code: {"profile": FUNCTION + code},
    "a value of a module": lambda code: {
        "own": "import others\n" + FUNCTION + "images.sum(1) * others.SETTINGS['scale']",
        "others": f"SETTINGS = {{'scale': {len(code)}}}",
    },
    "an object of a module": lambda code: {
        "own": "import others\n" + FUNCTION + "images.sum(1) * others.SCALE.value",
        "others": f"class Scale:\n    pass\nSCALE = Scale()\nSCALE.value = {len(code)}",
    },
    "a module that a module imports": lambda code: {
        "own": "import others\n" + FUNCTION + "others.helper(images)",
        "others": "import further\ndef helper(images):\n    return further.helper(images)",
        "further": f"def helper(images):\n    return {code}",
    },
    "an import in a function": lambda code: {
        "own": "def method(model, images, targets):\n    from others import helper\n    return helper(images)",
        "others": f"def helper(images):\n    return {code}",
    },
    "a module of a package": lambda code: {
        "own": "import pack.inner\n" + FUNCTION + "pack.inner.helper(images)",
        "pack.inner": f"def helper(images):\n    return {code}",
    },
    "a module of a package, imported in a function": lambda code: {
        "own": "def method(model, images, targets):\n    from pack import inner\n    return inner.helper(images)",
        "pack.inner": f"def helper(images):\n    return {code}",
    },
}


@pytest.mark.parametrize("case", MODULES)
def test_an_edited_module_is_noticed_and_an_equal_one_is_not(case, imported):
    first, again, edited = (identity_of(imported(MODULES[case](code))) for code in (ONE, ONE, OTHER))
    assert first == again != edited


def run(text, names=None):
    space = {} if names is None else names
    exec(text, space)
    return space["method"]


def with_attribute(value):
    def method(model, images, targets):
        return images.sum(1) * method.scale

    method.scale = value
    return method


def named_as_of_torch(text):
    method = run(FUNCTION + text)
    method.__module__ = "torch.nn.functional"
    return method


CLASS = "class Method:\n    def __call__(self, model, images, targets):\n        return {}\nmethod = Method()"
PAIRS = {
    "a function that was run as text": (run(FUNCTION + ONE), run(FUNCTION + OTHER)),
    "a class that was run as text": (run(CLASS.format(ONE)), run(CLASS.format(OTHER))),
    "a class of a notebook": tuple(run(CLASS.format(code), {"__name__": "__main__"}) for code in (ONE, OTHER)),
    "an attribute of a function": (with_attribute(1), with_attribute(2)),
    "constants in other brackets": (lambda: print((1, 2), 3), lambda: print(1, (2, 3))),
}


@pytest.mark.parametrize("case", PAIRS)
def test_different_functions_have_different_identities(case):
    first, other = PAIRS[case]
    assert identity_of(first) == identity_of(first) != identity_of(other)


def test_a_function_that_claims_a_library_module_is_identified_by_its_code(imported):
    def identity_of_text(text):
        method = imported({"own": FUNCTION + text})
        method.__module__ = "torch.nn.functional"
        return identity_of(method)

    assert identity_of_text(ONE) == identity_of_text(ONE) != identity_of_text(OTHER)


def test_unidentifiable_attributes_of_a_module_are_ignored():
    module = types.ModuleType("beside")
    module.lock, module.generator = threading.Lock(), np.random.default_rng()
    assert identity_of(module)
    with pytest.raises(HeatproofError, match="cannot be identified"):
        identity_of({"lock": module.lock})


def test_a_full_disk_is_one_sentence_and_cached_batches_remain(network, images, targets, tmp_path, monkeypatch):
    write, left = batches.atomic_write, iter(range(3))

    def written(path):
        if next(left, None) is None:
            raise OSError(28, "No space left on device")
        return write(path)

    def call():
        return heatproof.explain(network, images, targets, "saliency", batch_size=3, cache=tmp_path / "cache")

    monkeypatch.setattr(batches, "atomic_write", written)
    with pytest.raises(HeatproofError, match="full"):
        call()
    monkeypatch.undo()
    count = len(list(tmp_path.rglob("maps/*/*.batch")))
    assert count == 2
    right = heatproof.explain(network, images, targets, "saliency")
    np.testing.assert_allclose(call()["attribution"], right["attribution"], atol=1e-6)
