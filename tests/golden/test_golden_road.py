"""ROAD's imputation without noise, against values of code that uses ROAD."""

import numpy as np
import pytest
import torch

from heatproof.core.perturb.road import impute, impute_sequence
from heatproof.core.sequences import Perturbation, first_changed


@pytest.mark.parametrize("order", ["morf", "lerf"])
@pytest.mark.parametrize("area", [0.3, 0.7])
def test_imputed_images_equal_the_stored_ones(golden, order, area):
    stored = golden("road")
    images = torch.from_numpy(golden("data")["x"][:12])
    removed = torch.from_numpy(stored[f"area{area}__{order}__mask_kept"] == 0)
    expected = stored[f"area{area}__{order}__imputed"]
    np.testing.assert_allclose(impute(images, removed), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("order", ["morf", "lerf"])
def test_masks_and_images_of_a_sequence_equal_the_stored_ones(golden, order):
    stored = golden("road")
    images, ids = torch.from_numpy(golden("data")["x"][:12]), [str(number) for number in range(12)]
    perturbation = Perturbation(order=order, fractions=(0.3, 0.7), imputation="road")
    first = first_changed(perturbation, stored["smap"], ids, seed=0)
    sequence = impute_sequence(images, torch.from_numpy(first), 2, noise=0.0, seed=0, image_ids=ids)
    for point, (area, imputed) in enumerate(zip((0.3, 0.7), sequence, strict=True)):
        assert np.array_equal(first > point, stored[f"area{area}__{order}__mask_kept"] == 1)
        np.testing.assert_allclose(imputed, stored[f"area{area}__{order}__imputed"], rtol=0, atol=2e-6)
