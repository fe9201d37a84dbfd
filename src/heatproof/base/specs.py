"""Former name of `heatproof.core.specs`."""

from heatproof.core.specs import Runtime as Runtime
