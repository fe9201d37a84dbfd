"""Former name of `heatproof.core.options`."""

from heatproof.core.options import Bounds as Bounds
