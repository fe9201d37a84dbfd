"""What is stored for docs/null_control.md."""

from collections.abc import Callable

FILES = {"null_control": ["null_control/concluded.csv", "null_control/false_differences.csv"]}
BLOCKS: dict[str, Callable[..., str]] = {}
