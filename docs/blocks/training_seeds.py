"""Tables of docs/training_seeds.md."""

import pandas as pd

from blocks import DATA, number, rows

FILES = {"training_seeds": ["idsds_table.csv", "ranking/variance.csv"]}


def deviations(name: str) -> str:
    """Return the standard deviations of scores by where they come from."""
    table = pd.read_csv(DATA / "training_seeds" / name / "variance.csv")
    wide = table.pivot_table(index="method", columns="component", values="variance", sort=False) ** 0.5
    components = ["network", "seed", "image", "residual"]
    names = {"network": "due to the kind of network", "residual": "residual"}
    cells = [["method", *(names.get(component, f"due to the {component}") for component in components)]]
    for method, row in wide.iterrows():
        cells.append([f"`{method}`", *(f"{row[component]:.2f}" for component in components)])
    return rows(cells)


def half_width(name: str) -> str:
    """Return the median half-width of the intervals over images, for comparison."""
    table = pd.read_csv(DATA / "training_seeds" / name / "idsds_table.csv")
    width = ((table["ci_high"] - table["ci_low"]) / 2).median()
    images = table["n_images"].max()
    half = f"half of the width of the 95 % interval of a mean score over {images} images"
    return f"For comparison, {half} is {number(width)} (median over methods and networks)."


def seeds(name: str) -> str:
    """Return the range of scores over training seeds, and how often a method is in the set of the best."""
    table = pd.read_csv(DATA / "training_seeds" / name / "idsds_table.csv")
    table["kind"] = table["model"].str.replace(r"_seed\d+$", "", regex=True)
    cells = [["network", "method", "lowest score", "highest score", "in the set of the best"]]
    for (kind, method), part in table.groupby(["kind", "method"], sort=False):
        low, high = (number(value) for value in (part["score"].min(), part["score"].max()))
        cells.append([kind, f"`{method}`", low, high, f"{part['in_best_set'].sum()} of {len(part)}"])
    return rows(cells)


BLOCKS = {function.__name__: function for function in (deviations, half_width, seeds)}
