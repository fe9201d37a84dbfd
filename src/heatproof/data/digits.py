"""Former name of `heatproof.datasets.digits`."""

from heatproof.datasets.digits import digits as digits
