"""All claims: importing this module fills the table."""

from heatproof.claims import idsds  # noqa: I001 - the order of the card
from heatproof.claims import design, reproduction, consistency, magnitude, dual
from heatproof.claims.registry import CLAIMS, PAPERS

__all__ = ["CLAIMS", "PAPERS", "consistency", "design", "dual", "idsds", "magnitude", "reproduction"]
