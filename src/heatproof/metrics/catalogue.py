"""Every metric, entered by importing the modules of this package that define one."""

from importlib import import_module
from pathlib import Path

from heatproof.metrics.registry import METRICS

for _file in sorted(Path(__file__).parent.glob("*.py")):
    # The other modules cost seconds to import, which every process of a plan would pay.
    if "\n@metric(" in _file.read_text(encoding="utf-8"):
        import_module(f"heatproof.metrics.{_file.stem}")

__all__ = ["METRICS"]
