"""Make the toy project and its plugin in tests/ importable."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "workflow")]
