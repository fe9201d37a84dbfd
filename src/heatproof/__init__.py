"""heatproof: benchmark attribution methods on your model and data, with confidence intervals."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heatproof import plot, quality, testing
    from heatproof.api.choice import Choice
    from heatproof.api.choose import choose
    from heatproof.api.compare import compare
    from heatproof.api.evaluate import evaluate
    from heatproof.api.explain import explain
    from heatproof.api.finetune import finetune
    from heatproof.api.results import Results, open
    from heatproof.errors import HeatproofError, NotApplicable

__version__ = "0.2.0"
# Late, since the workflow imports the package for every job and most of them need neither torch nor xarray.
_FOUND_IN = {
    "Choice": "api.choice",
    "HeatproofError": "errors",
    "NotApplicable": "errors",
    "Results": "api.results",
    "choose": "api.choose",
    "compare": "api.compare",
    "evaluate": "api.evaluate",
    "explain": "api.explain",
    "finetune": "api.finetune",
    "open": "api.results",
}
_MODULES = ("plot", "quality", "testing")
__all__ = [
    "Choice",
    "HeatproofError",
    "NotApplicable",
    "Results",
    "__version__",
    "choose",
    "compare",
    "evaluate",
    "explain",
    "finetune",
    "open",
    "plot",
    "quality",
    "testing",
]


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"heatproof.{name}")
    if name in _FOUND_IN:
        return getattr(import_module(f"heatproof.{_FOUND_IN[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
