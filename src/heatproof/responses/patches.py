"""Former name of `heatproof.metrics.responses.patches`."""

from heatproof.metrics.responses.patches import Patches as Patches
