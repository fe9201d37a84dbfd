"""Every claim, entered by importing the modules of this package that define one."""

from heatproof.claims.registry import CLAIMS, PAPERS
from heatproof.registry import load_modules

load_modules("heatproof.claims", "claim")

# The order of the card: paper by paper.
_ordered = sorted(CLAIMS.items(), key=lambda item: list(PAPERS).index(item[1].paper))
CLAIMS.clear()
CLAIMS.update(_ordered)

__all__ = ["CLAIMS", "PAPERS"]
