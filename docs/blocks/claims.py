"""Tables of docs/claims.md and docs/simulations.md, from the published numbers and from stored runs."""

import pandas as pd

from blocks import DATA, interval, number, rows
from heatproof.claims.judge import ordered_claims, published_table
from heatproof.claims.verdicts import CONTRADICTED, OPEN, REPRODUCED, UNTESTED

# Words of quantities in stored runs, and the words for the same quantities today.
REWORDED = {
    "its own map's IDSDS less that of": "IDSDS of the intrinsic map minus IDSDS of",
    "Spearman correlation, over networks, of accuracy with the best IDSDS": (
        "Spearman correlation of accuracy and best IDSDS over networks"
    ),
    " less ": " minus ",
}
# Reasons of published_table, in short, and their words on the page.
REASONS = {
    "1 published network has no interval; the value satisfies the rule": (
        "the numbers are from 1 network, so there is no interval over networks; the value alone satisfies the rule"
    ),
}
FILES = {"claims": ["claims.csv"], "rank_claims": ["rank_claims.csv"]}


def format_value(value: float, low: float, high: float) -> str:
    """Return a value with its interval, if it has one."""
    if pd.isna(value):
        return ""
    return number(value, 3) if pd.isna(low) else interval(value, low, high, digits=3)


def published(paper: str) -> str:
    """Return the claims of a paper with their verdicts on its published numbers, and the reasons below the table."""
    table = published_table().set_index("claim")
    reasons: dict[str, str] = {}
    cells = []
    for entry in ordered_claims():
        if entry.paper == paper:
            row = table.loc[entry.name]
            value, low, high = (row[f"published_{name}"] for name in ("value", "low", "high"))
            verdict = row["published_verdict"]
            if verdict == UNTESTED:
                reason = row["published_reason"].removeprefix("because ")
                reason = REASONS.get(reason, reason)
                verdict = f"not testable ({reasons.setdefault(reason, 'abcdef'[len(reasons)])})"
            rule = f"{entry.side} {entry.limit:g}".replace("-", "−")
            if entry.opposite is not None:
                rule += f" (contradicted if {'below' if entry.side == 'above' else 'above'} {entry.opposite:g})"
            words = [
                f"`{entry.name}`",
                entry.sentence,
                entry.place,
                entry.quantity,
                rule,
                format_value(value, low, high),
                verdict,
            ]
            cells.append(words)
    head = ["claim", "statement", "place in the paper", "quantity", "the claim holds if it is"]
    head += ["published value", "verdict"]
    if len(reasons) == 1 and not any(words[5] for words in cells):
        # Nothing was tested: two columns would say the same in every row.
        text = f"None of these claims is testable on published numbers: {next(iter(reasons))}."
        return text + "\n\n" + rows([words[:5] for words in [head, *cells]])
    below = [f"- ({letter}) {reason}." for reason, letter in reasons.items()]
    return rows([head, *cells]) + ("\n\nReasons why a claim is not testable:\n\n" + "\n".join(below) if below else "")


def counted(name: str) -> str:
    """Return how many claims there are, and their verdicts on published numbers."""
    verdicts = published_table()["published_verdict"]
    return f"Verdicts on published numbers: of {len(verdicts)} claims, {list_verdicts(verdicts)}."


def list_verdicts(verdicts: pd.Series) -> str:
    """Return how many claims have each verdict, as a part of a sentence."""
    counts = {word: int((verdicts == word).sum()) for word in (REPRODUCED, CONTRADICTED, OPEN, UNTESTED)}
    words = {UNTESTED: "not testable"}
    parts = [f"{n} {'is' if n == 1 else 'are'} {words.get(word, word)}" for word, n in counts.items() if n]
    return ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1]


def run(name: str) -> str:
    """Return the claims that a stored run tested; those whose quantity changed since then are only listed."""
    table = pd.read_csv(DATA / "claims" / name / "claims.csv")
    now = {entry.name: entry for entry in ordered_claims()}
    tested = table[table["verdict"] != UNTESTED]
    quantities = tested["quantity"]
    for old, new in REWORDED.items():
        quantities = quantities.str.replace(old, new, regex=False)
    same = tested["claim"].map({name: entry.quantity for name, entry in now.items()}) == quantities
    cells = [["claim", "statement", "verdict of this run", "measured", "q", "verdict on published numbers"]]
    for row in tested[same].to_dict("records"):
        value = format_value(row["value"], row["ci_low"], row["ci_high"])
        words = [f"`{row['claim']}`", now[row["claim"]].sentence, row["verdict"], value]
        cells.append([*words, f"{row['q']:.3f}", row["published_verdict"]])
    text = f"The run could test {len(tested)} of the {len(table)} claims that existed at its time. "
    changed = ", ".join(f"`{claim}`" for claim in tested["claim"][~same])
    if changed:
        text += f"The table omits the claims whose quantity was redefined after the run: {changed}. "
    return text + f"Of the other {same.sum()} claims, {list_verdicts(tested.loc[same, 'verdict'])}.\n\n" + rows(cells)


def rank_claims(name: str) -> str:
    """Return how often simulated rankings passed a claim."""
    table = pd.read_csv(DATA / "rank_claims/rank_claims.csv", keep_default_na=False)
    verdicts = ["reproduced", "contradicted", "open", UNTESTED]
    cells = [
        ["claim", "noise", "methods", "true range of ρ", *verdicts, "mean share of the ceiling", "mean ceiling", "runs"]
    ]
    for row in table.to_dict("records"):
        claim = "differ" if "differ" in row["claim"] else "agree, above 0.7"
        order = {"": "", "one": ", one network", "chain": ", a chain"}[row["order"]]
        shares = [f"{100 * float(row[verdict]):.1f} %" for verdict in verdicts]
        means = [number(float(row[column])) for column in ("value", "ceiling")] if row["value"] != "" else ["", ""]
        what = [claim, f"{row['noise']}, {row['shape']}", row["methods"], f"{row['range']:g}{order}"]
        cells.append([*what, *shares, *means, str(row["runs"])])
    return rows(cells)


BLOCKS = {function.__name__: function for function in (published, counted, run, rank_claims)}
