"""Options that all benchmarks share, and the output of their tables."""

import argparse
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pandas as pd


def make_parser(doc: str) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="store tables and figures there")
    parser.add_argument("--small", action="store_true", help="the smallest size, to see that it runs")
    return parser


def print_table(rows: pd.DataFrame | list[dict[str, object]], name: str, out: Path | None) -> None:
    """Print a table, and store it as OUT/NAME.csv if a folder is given."""
    table = pd.DataFrame(rows)
    print(table.to_string(index=False, float_format="{:.4g}".format), flush=True)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        table.to_csv(out / f"{name}.csv", index=False, float_format="%.4g")


def module_of_workflow(name: str) -> ModuleType:
    """Return a module below `heatproof.workflow`, which stood in the package itself until 0.3.0."""
    name_now = f"heatproof.workflow.{name}"
    is_there = find_spec(name_now.rpartition(".")[0]) is not None
    return import_module(name_now if is_there else f"heatproof.{name}")
