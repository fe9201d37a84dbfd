"""Tables of docs/claims.md, from the published numbers and from what is stored of runs."""

import pandas as pd

from blocks import DATA, interval, number, rows
from heatproof.claims.judge import ordered_claims, published_table
from heatproof.claims.verdicts import UNTESTED

FILES = {"claims": ["claims.csv"], "rank_claims": ["rank_claims.csv"]}
# What became of an earlier claim, as it is stored and as the page says it.
FATES = {"kept": "unchanged", "mended": "revised", "property test": "property test", "gone": "removed"}


def told(value: float, low: float, high: float) -> str:
    """Return a value with its interval, where there is one."""
    if pd.isna(value):
        return ""
    return number(value, 3) if pd.isna(low) else interval(value, low, high, digits=3)


def published(paper: str) -> str:
    """Return the claims of a paper with what its published numbers say."""
    table = published_table().set_index("claim")
    cells = [["claim", "statement", "place", "quantity and rule", "published", "verdict"]]
    for entry in ordered_claims():
        if entry.paper == paper:
            row = table.loc[entry.name]
            value, low, high = (row[f"published_{name}"] for name in ("value", "low", "high"))
            verdict = row["published_verdict"]
            reason = f": {row['published_reason'].removeprefix('because ')}" if verdict == UNTESTED else ""
            rule = f"{entry.quantity}: {'>' if entry.side == 'above' else '<'} {entry.limit:g}"
            if entry.opposite is not None:
                rule += f", contradicted {'<' if entry.side == 'above' else '>'} {entry.opposite:g}"
            words = [f"`{entry.name}`", entry.sentence, entry.place, rule, told(value, low, high), verdict + reason]
            cells.append(words)
    return rows(cells)


def counted(name: str) -> str:
    """Return how many claims there are, and their verdicts on published numbers."""
    verdicts = published_table()["published_verdict"].value_counts()
    return f"{verdicts.sum()} claims, on published numbers: " + ", ".join(f"{n} {word}" for word, n in verdicts.items())


def earlier(name: str) -> str:
    """Return what became of the claims that an earlier list had."""
    table = pd.read_csv(DATA / "claims/earlier.csv", keep_default_na=False)
    count = table["fate"].value_counts()
    head = f"{len(table)} earlier claims: " + ", ".join(f"{count[fate]} {word}" for fate, word in FATES.items())
    cells = [[f"`{one['claim']}`", FATES[one["fate"]], one["what"]] for one in table.to_dict("records")]
    return head + ".\n\n" + rows([["earlier claim", "result", "the claim that replaces it, or the reason"], *cells])


def run(name: str) -> str:
    """Return the claims that a stored run could test; those whose quantity has changed since are named, not shown."""
    table = pd.read_csv(DATA / "claims" / name / "claims.csv")
    now = {entry.name: entry.quantity for entry in ordered_claims()}
    tested = table[table["verdict"] != UNTESTED]
    same = tested["claim"].map(now) == tested["quantity"]
    cells = [["claim", "verdict", "measured", "q", "published"]]
    for row in tested[same].to_dict("records"):
        value = told(row["value"], row["ci_low"], row["ci_high"])
        cells.append([f"`{row['claim']}`", row["verdict"], value, f"{row['q']:.3f}", row["published_verdict"]])
    text = f"{len(tested)} of {len(table)} claims could be tested there.\n\n" + rows(cells)
    changed = ", ".join(f"`{claim}`" for claim in tested["claim"][~same])
    return text + (f"\n\nNot shown, because the quantity was redefined after this run: {changed}." if changed else "")


def rank_claims(name: str) -> str:
    """Return how often planted rankings passed a claim."""
    table = pd.read_csv(DATA / "rank_claims/rank_claims.csv", keep_default_na=False)
    verdicts = ["reproduced", "contradicted", "open", UNTESTED]
    cells = [["claim", "noise", "methods", "true range", *verdicts, "share of the ceiling", "ceiling", "runs"]]
    for row in table.to_dict("records"):
        claim = "differ" if "differ" in row["claim"] else "agree, above 0.7"
        order = {"": "", "one": ", one network", "chain": ", a chain"}[row["order"]]
        told = [f"{100 * float(row[one]):.1f} %" for one in verdicts]
        means = [number(float(row[one])) for one in ("value", "ceiling")] if row["value"] != "" else ["", ""]
        what = [claim, f"{row['noise']}, {row['shape']}", row["methods"], f"{row['range']:g}{order}"]
        cells.append([*what, *told, *means, str(row["runs"])])
    return rows(cells)


BLOCKS = {function.__name__: function for function in (published, counted, earlier, run, rank_claims)}
