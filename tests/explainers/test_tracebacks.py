"""The traceback of an error in a network's forward crosses only the explainer's module of heatproof."""

import traceback
from pathlib import Path

import pytest
import torch

import heatproof
from heatproof.errors import NotApplicable
from heatproof.explainers.registry import EXPLAINERS

ROOT = Path(heatproof.__file__).parent
FEW = {"steps": 2, "samples": 2, "masks": 4, "baselines": 2}
# Explainers whose tracebacks cross a second module, with the reason.
MORE = {
    name: {"_attention"}
    for name in ("raw_attention", "attention_rollout", "attention_grad", "chefer_attention", "transition_attention")
}


class Broken(Exception):
    pass


def modules(error):
    """Return the modules of heatproof that a traceback crosses."""
    files = [Path(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(error.__traceback__)]
    return {file.stem for file in files if file.is_relative_to(ROOT)}


def broken_at(context, entry, call):
    """Return the error of an explainer if the network raises one in its `call`-th forward; None if it has fewer."""
    calls = []

    def fail(module, inputs):
        calls.append(None)
        if len(calls) == call:
            raise Broken

    layer = next(module for module in context.network.modules() if isinstance(module, torch.nn.Conv2d))
    handle = layer.register_forward_pre_hook(fail)
    try:
        entry.function(context, **{name: FEW[name] for name in FEW.keys() & entry.options.keys()})
    except Broken as error:
        return error
    except NotApplicable:
        return None
    finally:
        handle.remove()
    return None


@pytest.mark.parametrize(
    "name",
    # zennit runs a traced copy; an error in the network's code is raised during tracing and becomes a reason.
    sorted(name for name, entry in EXPLAINERS.items() if entry.uses_model and name != "lrp"),
)
def test_the_traceback_of_a_network_error_crosses_only_the_explainers_module(name, explain_digits):
    entry = EXPLAINERS[name]
    expected = entry.function.__module__.rpartition(".")[2]
    vit = "attention" in expected or "transformer" in expected
    special = {"bagnet": "cifar_bagnet", "bcos": "cifar_bcos_resnet20"}
    architecture = special.get(name, "small_vit" if vit else "cifar_resnet20")
    context = explain_digits(architecture, count=2)
    # With figures and sums, as in the applicability check and `explain`, some explainers run the network once more.
    context = type(context)(**{**vars(context), "figures": {}, "sums": {}})
    errors = [broken_at(context, entry, call) for call in (1, 2, 3, 4)]
    assert errors[0] is not None
    network = {"_resnet", "_vit", "_bagnet", "_bcos"}
    assert modules(errors[0]) - network == {expected} | MORE.get(name, set())
    for error in filter(None, errors):
        # One more module is allowed for the comparison of altered passes with the unaltered network.
        assert modules(error) - network - {"_unaltered"} == {expected} | MORE.get(name, set())
