"""The text that `heatproof maps ls` prints. It imports no plan, so that it is fast in folders of thousands of files."""

from __future__ import annotations

import math
import sys
from pathlib import Path

from heatproof.errors import HeatproofError
from heatproof.report.stores import StoreInfo, read_store_info, stores_below
from heatproof.store.publishing import escaped
from heatproof.workflow.commands.plain_text import in_columns, kind_with_options

# First word of the last column for a store that cannot be read.
DAMAGED = "damaged"


def print_stores(folder: str | Path) -> None:
    """Print one line for each store in a folder and its subfolders.

    A line has the path, the number of images, the shape, the bytes, the maps, and the explainer or response.

    Raises
    ------
    HeatproofError
        If there is no store, or, after all lines are printed, if a store cannot be read.
    """
    rows = [tuple(escaped(cell, keep="") for cell in _store_row(path)) for path in stores_below(folder)]
    if not rows:
        remedy = "a run of the workflow writes them" if Path(folder).is_dir() else "is it the folder that you mean?"
        raise HeatproofError(f"There is no .zarr store in {folder}: {remedy} (results/maps holds attribution maps).")
    header = ("store", "images", "shape", "bytes", "maps", "made by", "")
    sys.stdout.write("\n".join(in_columns([header, *rows], right=(1, 2, 3))) + "\n")
    damaged = sum(row[-1].startswith(DAMAGED) for row in rows)
    if damaged:
        raise HeatproofError(f"{damaged} of {len(rows)} stores cannot be read: the last column says why.")


def _store_row(path: Path) -> tuple[str, ...]:
    try:
        return _readable_row(path)
    except HeatproofError as error:
        wrong = str(error)
    except Exception as error:
        # A store from elsewhere can be damaged in any way, and the other stores must still be listed.
        wrong = f"it is not as heatproof writes stores ({type(error).__name__}: {error})"
    return (str(path), "?", "?", "?", "", "", f"{DAMAGED}: {wrong}")


def _readable_row(path: Path) -> tuple[str, ...]:
    stored = read_store_info(path)
    return (
        str(path),
        f"{stored.images}/{len(stored.image_ids)}",
        "×".join(map(str, stored.shape)),
        _bytes(stored.size),
        ",".join(stored.maps) or "-",
        _made_by(stored),
        f"not applicable: {stored.gap}" if stored.gap else "",
    )


def _made_by(stored: StoreInfo) -> str:
    made_by = stored.made_by
    if "explainer" in made_by:
        return kind_with_options(made_by["explainer"]["kind"], made_by["explainer"]["options"])
    return kind_with_options("patch drops", {key: made_by[key] for key in ("grid", "baseline") if key in made_by})


def _bytes(size: float) -> str:
    power = min(int(math.log10(max(size, 1)) // 3), 3)
    size, unit = size / 1000**power, ("B", "kB", "MB", "GB")[power]
    return f"{size:.1f} {unit}" if power and size < 10 else f"{size:.0f} {unit}"
