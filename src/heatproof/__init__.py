"""heatproof: benchmark attribution methods on your model and data, with confidence intervals."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heatproof import quality
    from heatproof.evaluation import evaluate

__version__ = "0.1.0"
__all__ = ["__version__", "evaluate", "quality"]


def __getattr__(name: str) -> object:
    # Late, since the workflow imports the package for every job and most of them need neither torch nor xarray.
    if name == "evaluate":
        from heatproof.evaluation import evaluate

        return evaluate
    if name == "quality":
        from importlib import import_module

        return import_module("heatproof.quality")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
