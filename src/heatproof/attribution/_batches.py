"""Former name of `heatproof.explainers._batches`."""

from heatproof.explainers._batches import as_leaf as as_leaf
from heatproof.explainers._batches import pad_single_image_passes as pad_single_image_passes
from heatproof.explainers._batches import split_batch as split_batch
