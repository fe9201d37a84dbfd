"""Tables of docs/similarity.md."""

import pandas as pd

from blocks import DATA, number, rows

FILES = {"similarity": ["similarity/similarity.csv"]}
QUANTITIES = {
    "softmax": "difference of the label's probability",
    "disagreement": "share of images with another predicted class",
    "maps": "difference of maps",
    "map_ranks": "ρ of the pixels of maps",
    "exciting": "share of the nine most activating images that both networks have in common",
    "accuracy_change": "change of accuracy",
}
DISPLAYED_MAPS = ("grad_cam", "integrated_gradients", "rise")


def similar(name: str) -> str:
    """Return the range over pairs of networks of each quantity, before and after finetuning and of unrelated ones."""
    table = pd.read_csv(DATA / "similarity" / name / "similarity.csv")
    table = table[table["map"].isna() | table["map"].isin(DISPLAYED_MAPS)]
    cells = [["quantity", "same model, before and after finetuning", "two different models"]]
    for (quantity, map_name), part in table.groupby(["quantity", table["map"].fillna("")], sort=False):
        if quantity not in QUANTITIES:
            continue
        ranges = []
        for kind in ("finetuning", "unrelated"):
            values = part.loc[part["pair"] == kind, "value"]
            ranges.append(f"{number(values.min())} to {number(values.max())}" if len(values) else "")
        cells.append([QUANTITIES[quantity] + (f": `{map_name}`" if map_name else ""), *ranges])
    chance = table["chance"].dropna()
    share = f"{100 * chance.mean():.0f} %"
    sentence = f"\n\nBy chance, two unrelated channels would have {share} of these images in common."
    return rows(cells) + (sentence if len(chance) else "")


def least_alike(name: str) -> str:
    """Return the maps that finetuning changes most."""
    table = pd.read_csv(DATA / "similarity" / name / "similarity.csv")
    table = table[(table["pair"] == "finetuning") & (table["quantity"] == "map_ranks")].nsmallest(3, "value")
    maps = [f"`{row['map']}` on {row['model']}, ρ {number(row['value'])}" for row in table.to_dict("records")]
    return f"Finetuning changes these maps most: {'; '.join(maps)}."


BLOCKS = {function.__name__: function for function in (similar, least_alike)}
