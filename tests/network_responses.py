"""Outputs of a network for perturbed images, computed in one call."""

import numpy as np

from heatproof.perturbation.patches import patch_variants
from heatproof.perturbation.pic import pic_variants
from heatproof.perturbation.subsets import subset_variants


def patch_responses(query, *arguments, **options):
    return query.run(*patch_variants(query, *arguments, **options))


def subset_responses(query, *arguments, **options):
    return query.run(*subset_variants(query, *arguments, **options))


def pic_responses(query, *arguments, **options):
    batches, variants, entropies = pic_variants(query, *arguments, **options)
    return {**query.run(batches, variants), "entropy": np.array(entropies).reshape(-1, variants)}
