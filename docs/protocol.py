"""Print the table of docs/protocol.md from what the protocol checks found.

snakemake --cores 2 --configfile config/protocol.yaml -- results/checks/summary.csv
python docs/protocol.py results/checks/summary.csv
"""

import sys

import pandas as pd


def main(path: str) -> None:
    """Print a row for every factor and setting: means over models and pairs of levels."""
    summary = pd.read_csv(path)
    heads = [
        "convention",
        "setting",
        "ρ, mean",
        "lowest (interval)",
        "ρ of halves, same · other",
        "moved by more than 3",
    ]
    print("| " + " | ".join([*heads, "first kept"]) + " |")
    print("|" + " --- |" * (len(heads) + 1))
    for (factor, setting), rows in summary.groupby(["factor", "setting"], sort=False):
        low = rows.loc[rows["spearman"].idxmin()]
        kept = int((rows["first"] == rows["other_first"]).sum())
        interval = f"{low['spearman']:.2f} ({low['spearman_low']:.2f} to {low['spearman_high']:.2f})"
        print(
            f"| {factor} | {setting} | {rows['spearman'].mean():.2f} | {interval}: {low['level']}, "
            f"{low['other_level']}, {low['model']} | "
            f"{rows['halves_same'].mean():.2f} · {rows['halves_other'].mean():.2f} | "
            f"{rows['n_moved'].sum()} of {rows['n_methods'].sum()} | {kept} of {len(rows)} |"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
