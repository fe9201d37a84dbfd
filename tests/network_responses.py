"""Outputs of a network for perturbed images, computed in one call."""

import numpy as np
import torch

from heatproof.core.batch import Batch
from heatproof.core.network import Network
from heatproof.core.passes import read_variants
from heatproof.core.perturb.patches import patch_variants
from heatproof.core.perturb.pic import pic_variants
from heatproof.core.perturb.subsets import subset_variants


class FunctionModule(torch.nn.Module):
    """A network without weights that is written as a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.eval()

    def forward(self, images):
        return self.function(images)


def batch_of(network, images, targets, image_ids, seed=0, batch_size=64):
    """Return a batch of images for a network that needs no preparation."""
    return Batch(network, network, None, images, targets, image_ids, seed, batch_size)


def padded(module, size):
    """Return a network whose passes have one number of images."""
    network = Network.of(module.eval())
    network.pad(size)
    return network


def patch_responses(batch, *arguments, **options):
    return read_variants(batch, *patch_variants(batch, *arguments, **options))


def subset_responses(batch, *arguments, **options):
    return read_variants(batch, *subset_variants(batch, *arguments, **options))


def pic_responses(batch, *arguments, **options):
    batches, variants, entropies = pic_variants(batch, *arguments, **options)
    return {**read_variants(batch, batches, variants), "entropy": np.array(entropies).reshape(-1, variants)}
