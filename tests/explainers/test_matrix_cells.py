"""Explainers work on the kinds of networks that they declare: one small network of each family."""

import importlib.util
from pathlib import Path

import pytest
import torch
from torch.nn.functional import interpolate

SPEC = importlib.util.spec_from_file_location("matrix", Path(__file__).parents[2] / "benchmarks" / "matrix.py")
matrix = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(matrix)


# Each of these takes 15 seconds or more; networks of the other families are smaller.
LONG = {
    "torchvision:vgg11_bn",
    "torchvision:densenet121",
    "timm:maxvit_rmlp_pico_rw_256",
    "timm:deit_tiny_distilled_patch16_224",
    "timm:resnet10t",
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name in LONG else pytest.mark.slow) for name in matrix.SMALL]
)
def test_declared_explainers_work_on_a_small_network_of_each_family(name):
    if name.startswith("transformers:"):
        pytest.importorskip("transformers", reason="models of transformers need pip install transformers")
    table = matrix.row_by_row(name, matrix.SMALL[name], tried=False)
    declared = table[table["declared"]]
    assert len(declared) > 20
    # With random weights, few cells and few channels, some maps are zero after their ReLU.
    assert declared["works"].mean() >= 0.9, declared.loc[~declared["works"], ["explainer", "says"]].to_dict("records")


def test_there_are_thirty_published_architectures_of_each_library():
    libraries = [name.partition(":")[0] for name in matrix.NETWORKS]
    assert len(libraries) >= 30
    assert set(libraries) == {"torchvision", "timm", "transformers", "heatproof"}


def test_maps_that_are_not_enlarged_are_found():
    torch.manual_seed(0)
    maps = interpolate(torch.rand(2, 1, 7, 7), (64, 64), mode="bilinear", align_corners=False)[:, 0]
    assert matrix.missed_by_enlargement(maps, (7, 7)) < 1e-5
    assert matrix.missed_by_enlargement(torch.rand(2, 64, 64), (7, 7)) > 0.1
