"""Former name of `heatproof.core.batch`."""

from heatproof.core.batch import Batch as Batch
