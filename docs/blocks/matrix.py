"""Tables of docs/matrix.md, from the tables that benchmarks/matrix.py writes, one for each network."""

import re

import pandas as pd

from blocks import DATA, number, rows


def _cells() -> pd.DataFrame:
    return pd.concat([pd.read_csv(path) for path in sorted((DATA / "matrix").glob("*.csv"))], ignore_index=True)


def matrix_sums() -> str:
    """Return how many pairs of explainer and network are declared, and how many of them work."""
    cells = _cells()
    declared, tried = cells[cells["declared"]], cells[~cells["declared"] & (cells["says"] != "not declared")]
    share = number(100 * declared["works"].mean(), 1)
    return (
        f"{cells['explainer'].nunique()} explainers were tried on {cells['network'].nunique()} networks. Each "
        f"explainer declares for which kinds of network it is meant. In {len(declared)} pairs of an explainer and a "
        f"network, the explainer is meant for the network (declared pairs); {declared['works'].sum()} of them "
        f"({share} %) work. We also tried {len(tried)} undeclared pairs; {tried['works'].sum()} of them work."
    )


FOUND = re.compile(
    r"layer for CAMs (?P<layer>\S+), (?P<grid>\d+×\d+)(?: of tokens after (?P<prefix>\d+) prefix token\(s\))? "
    r"\(.*?\); (?P<attention>.*)"
)


def matrix_networks() -> str:
    """Return, for each network, the layers that explainers use, and how many of the declared explainers work."""
    heads = ["network", "layer for CAMs", "grid of this layer", "tokens before the patches", "attention blocks"]
    table = [[*heads, "declared explainers", "of these, working"]]
    for network, part in _cells().groupby("network"):
        works = part.loc[part["declared"], "works"]
        match = FOUND.fullmatch(part["found"].iloc[0])
        attention = match["attention"].replace("no attention blocks", "–").replace("attention block(s) ", "")
        layers = [f"`{match['layer']}`", match["grid"], match["prefix"] or "–", attention]
        table.append([f"`{network}`", *layers, f"{len(works)}", f"{works.sum()}"])
    return rows(table)


def matrix_explainers() -> str:
    """Return the networks on which explainers are declared and work; explainers with equal numbers share a row."""
    table = [
        ["explainers", "networks: declared", "networks: declared and working", "networks: not declared, but working"]
    ]
    names: dict[tuple[int, int, int], list[str]] = {}
    for explainer, part in _cells().groupby("explainer", sort=False):
        works = (part["declared"] & part["works"]).sum()
        beyond = (part["works"] & ~part["declared"]).sum()
        names.setdefault((part["declared"].sum(), works, beyond), []).append(f"`{explainer}`")
    for counts in sorted(names, reverse=True):
        table.append([", ".join(names[counts]), *map(str, counts)])
    return rows(table)


# Messages of the earlier versions that made the stored tables, and their words today.
REWORDED = {
    "which has no ReLU modules": "because it calls no ReLU",
    "which calls no ReLU": "because it calls no ReLU",
    "are the same with other random weights": "do not change when other random weights are drawn",
    "is not one linear map of each image": "is not a linear function of each image",
    "of timm's, whose rules these are": "of timm, for which its rules are written",
    "the relevance that the maps and the network's constants have and the logits differ by": (
        "the relevance of the maps and of the network's constants differs from the logits by"
    ),
    "LRP's maps and the logits that they should sum to differ by": "the sums of LRP's maps differ from the logits by",
    "which is no plain VisionTransformer": "which is not a plain VisionTransformer",
    "stand in no module with `num_prefix_tokens` and timm's `patch_embed`, as VisionTransformer has them, so that its "
    "tokens cannot be told apart": (
        "are in no module with `num_prefix_tokens` and `patch_embed`, as in timm's VisionTransformer, so that its "
        "patch tokens cannot be identified"
    ),
    "which no grid of patches makes: it is within windows, or tokens are pooled on the way": (
        "which form no grid of patches: attention is within windows, or tokens are pooled"
    ),
}


def _reword(reason: str) -> str:
    for old, new in REWORDED.items():
        reason = reason.replace(old, new)
    return reason


def matrix_gaps(declared: str) -> str:
    """Return the reasons of the declared ("yes") or other ("no") pairs that were tried and do not work."""
    cells = _cells()
    failed = cells[~cells["works"] & (cells["says"] != "not declared") & (cells["declared"] == (declared == "yes"))]
    reasons = [_reword(reason) for reason in failed["says"]]
    # Reasons that differ only in their numbers share a row.
    failed = failed.assign(says=reasons, plain=[re.sub(r"(?<![\w])\d[\d.e+-]*", "…", reason) for reason in reasons])
    table = [["reason (with the numbers of the example)", "explainers (number of networks)", "example"]]
    for _, part in failed.groupby("plain", sort=False):
        counts = ", ".join(f"`{name}` ({count})" for name, count in part.groupby("explainer").size().items())
        first = part.iloc[0]
        example = f"`{first['network']}`, `{first['explainer']}`"
        table.append([str(first["says"]).replace("|", "\\|"), counts, example])
    return rows(table)


def meta_rank_cells() -> str:
    """Return the eight methods of Meta-Rank on its six networks, and the reason of each cell that is missing."""
    paths = sorted((DATA / "meta_rank_cells").glob("*.csv"))
    cells = pd.concat([pd.read_csv(path) for path in paths], ignore_index=True)
    networks = list(cells["network"].unique())
    table = [["explainer", *(f"`{name}`" for name in networks)]]
    for explainer, part in cells.groupby("explainer", sort=False):
        by_network = part.set_index("network")
        texts = [
            "works" if by_network.at[name, "works"] else _reword(str(by_network.at[name, "says"])) for name in networks
        ]
        table.append([f"`{explainer}`", *texts])
    return f"{cells['works'].sum()} of {len(cells)} cells work.\n\n{rows(table)}"


BLOCKS = {
    function.__name__: function
    for function in (matrix_sums, matrix_networks, matrix_explainers, matrix_gaps, meta_rank_cells)
}
