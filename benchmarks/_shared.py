"""Options that all benchmarks share, and the output of their tables."""

import argparse
from pathlib import Path

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
