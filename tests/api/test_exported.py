"""Programs of `torch.export` are used if possible, and otherwise refused with a sentence that names the remedy."""

import numpy as np
import pytest
import torch
from torch.export import Dim, export

import heatproof
from heatproof.errors import HeatproofError

IMAGES = torch.randn(18, 3, 8, 8, generator=torch.Generator().manual_seed(0))
MAPS = np.random.default_rng(0).random((18, 8, 8))


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 3)
    ).eval()


CALLS = {
    "explain": lambda model: heatproof.explain(model, IMAGES, None, ["saliency"]),
    "choose": lambda model: heatproof.choose(model, IMAGES, None, ["saliency"]),
    "evaluate": lambda model: heatproof.evaluate("sds", model, IMAGES, None, MAPS, grid=2, baseline="zeros"),
}


@pytest.mark.parametrize("call", CALLS)
def test_an_exported_program_is_refused(call):
    with pytest.raises(
        HeatproofError, match=r"is an ExportedProgram, which cannot be called: give the network .* model\.module"
    ):
        CALLS[call](export(network(), (IMAGES[:4],)))


@pytest.mark.parametrize("call", CALLS)
def test_a_module_for_one_batch_size_is_refused_with_the_remedy(call):
    with pytest.raises(
        HeatproofError, match=r"exported for one size of batch, so give the network itself, or export it"
    ):
        CALLS[call](export(network(), (IMAGES[:4],)).module())


def test_a_module_for_any_batch_size_has_the_maps_of_the_network():
    program = export(network(), (IMAGES[:4],), dynamic_shapes=({0: Dim("batch")},)).module()
    of_program, of_network = (CALLS["explain"](model)["attribution"].values for model in (program, network()))
    np.testing.assert_allclose(of_program, of_network, rtol=1e-5, atol=1e-6)
