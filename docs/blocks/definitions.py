"""The sentences of docs/matrix.md that compare maps with definitions, from the tables of benchmarks/definitions.py."""

import pandas as pd

from blocks import DATA

ROUNDING = 1e-6


def definitions_sums(before: str, after: str) -> str:
    """Return how many maps agree with their definitions, in this version and in an earlier one."""
    old, new = (pd.read_csv(DATA / name / "definitions.csv") for name in (before, after))
    counts = [
        ((table["difference"] < ROUNDING).sum(), (table["difference"] >= ROUNDING).sum(), table["reason"].notna().sum())
        for table in (old, new)
    ]
    (_, old_wrong, old_missing), (agree, wrong, missing) = counts
    refused = new[new["reason"].notna()]
    names = ", ".join(
        f"`{explainer}` on the construction `{construction}`"
        for explainer, construction in zip(refused["explainer"], refused["construction"], strict=True)
    )
    return (
        f"{new['explainer'].nunique()} explainers were compared on {new['construction'].nunique()} tiny networks. Of "
        f"{len(new)} pairs, {agree} agree with the definition up to rounding, {wrong} differ, and {missing} is not "
        f"applicable ({names}).\n\n"
        f"The comparison finds faults: in an earlier version, which disabled in-place operations, {old_wrong} pairs "
        f"differed and {old_missing} were not applicable."
    )


BLOCKS = {"definitions_sums": definitions_sums}
