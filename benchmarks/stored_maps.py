"""Effect of storing maps as float16: IDSDS and SDS of a finished run, scored again from the same maps.

    python benchmarks/stored_maps.py RESULTS --out FOLDER

Reads the maps and patch drops of a run with float32 maps, converts the maps as `attribution.stored_as: float16` does,
and scores both; no network is needed. The table has a row for each network and metric.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from _shared import make_parser, print_table
from scipy.stats import rankdata

from heatproof.metrics.single_deletion import single_deletion_scores
from heatproof.store.stored_maps import encode_maps, stored_maps
from heatproof.store.zarr_store import describe_store, read


def as_float16(maps: np.ndarray) -> np.ndarray:
    """Return maps as they are read from a store of float16."""
    encoded = encode_maps(maps, "float16")
    return encoded["attribution"].astype(np.float16).astype(np.float32) * encoded["scale"][:, :, None, None]


def compare(results: Path, table: Path, images: int) -> pd.DataFrame:
    """Return the changes of scores and ranks of one test case."""
    case = pd.read_parquet(table)
    where = case.loc[0, ["dataset", "model", "weights"]].tolist()
    drops = str(next((results / "drops" / Path(*where)).glob("*.zarr")))
    logit = read(drops, "logit", 0, images)
    grid = round((logit.shape[1] - 1) ** 0.5)
    means = {}
    for store in sorted((results / "maps" / Path(*where)).glob("*.zarr")):
        if not (Path(f"{str(store)[:-5]}.0.json")).is_file():
            continue
        try:
            maps = stored_maps(store, 0, images).values
        except Exception as error:  # a method that is not applicable has no values
            print(f"{store.name}: {error}", file=sys.stderr)
            continue
        for index, name in enumerate(describe_store(store)["coordinates"]["map"]):
            for of, values in (("raw", lambda values: values), ("abs", np.abs)):
                pair = []
                for maps_in_format in (maps, as_float16(maps)):
                    score, valid = single_deletion_scores(
                        values(maps_in_format[:, index]), logit[:, :1] - logit[:, 1:], grid
                    )
                    pair.append(np.where(valid, score, np.nan))
                means[f"{name} {of}"] = (*[np.nanmean(scores) for scores in pair], np.nanmax(np.abs(pair[0] - pair[1])))
    both = np.array(list(means.values()))
    ranks = [rankdata(-both[:, column]) for column in (0, 1)]
    return pd.DataFrame(
        [
            {
                **dict(zip(("dataset", "model", "weights"), where, strict=True)),
                "metric": case.loc[0, "metric"],
                "methods": len(both),
                "images": images,
                "largest_difference": np.abs(both[:, 0] - both[:, 1]).max(),
                "largest_difference_of_an_image": both[:, 2].max(),
                "ranks_changed": int((ranks[0] != ranks[1]).sum()),
            }
        ]
    )


if __name__ == "__main__":
    options = make_parser(__doc__)
    options.add_argument("results", type=Path)
    args = options.parse_args()
    tables = [
        compare(args.results, table, pd.read_parquet(table)["image"].nunique())
        for metric in ("idsds", "sds")
        for table in sorted(args.results.glob(f"scores/*/*/*/{metric}.parquet"))
    ]
    print_table(pd.concat(tables, ignore_index=True), "stored_maps", args.out)
