"""The toy project of the stages' tests, and its plugin, are those of tests."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "workflow")]
