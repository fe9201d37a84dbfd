"""Former name of `heatproof.core.grids`."""

from heatproof.core.grids import patch_sums as patch_sums
