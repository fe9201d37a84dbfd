"""Fill the tables of claims.md, from the published numbers and from docs/data/claims.

python docs/claims.py             writes the page
python docs/claims.py --check     fails where the page says something else than the tables
python docs/claims.py RUN=results with claims.csv of a run stored first, as docs/data/claims/RUN.csv
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pandas as pd

from heatproof.claims.card import ordered_claims, published_table
from heatproof.claims.verdicts import UNTESTED

DOCS = Path(__file__).parent
PAGE, DATA = DOCS / "claims.md", DOCS / "data" / "claims"
WORDS = ["kept", "mended", "property test", "gone"]


def rows(cells: list[list[str]]) -> str:
    """Return a markdown table whose first row is the head."""
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return "\n".join([lines[0], "|" + " --- |" * len(cells[0]), *lines[1:]])


def told(value: float, low: float, high: float) -> str:
    """Return a value with its interval, where there is one."""
    if pd.isna(value):
        return ""
    text = f"{value:.3f}" if pd.isna(low) else f"{value:.3f} ({low:.3f} to {high:.3f})"
    return text.replace("-", "−")


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
            words = [f"`{entry.name}`", entry.sentence, entry.place, rule, told(value, low, high), verdict + reason]
            cells.append(words)
    return rows(cells)


def counted(name: str) -> str:
    """Return how many claims there are, and their verdicts on published numbers."""
    verdicts = published_table()["published_verdict"].value_counts()
    return f"{verdicts.sum()} claims, on published numbers: " + ", ".join(f"{n} {word}" for word, n in verdicts.items())


def earlier(name: str) -> str:
    """Return what became of the claims that an earlier list had."""
    table = pd.read_csv(DATA / "earlier.csv", keep_default_na=False)
    count = table["fate"].value_counts()
    head = f"{len(table)} earlier claims: " + ", ".join(f"{count[word]} {word}" for word in WORDS) + "."
    cells = [[f"`{one['claim']}`", one["fate"], one["what"]] for one in table.to_dict("records")]
    return head + "\n\n" + rows([["earlier claim", "", "now, or why not"], *cells])


def run(name: str) -> str:
    """Return the claims that a stored run could test."""
    table = pd.read_csv(DATA / f"{name}.csv")
    tested = table[table["verdict"] != UNTESTED]
    cells = [["claim", "verdict", "measured", "q", "published"]]
    for row in tested.to_dict("records"):
        value = told(row["value"], row["ci_low"], row["ci_high"])
        cells.append([f"`{row['claim']}`", row["verdict"], value, f"{row['q']:.3f}", row["published_verdict"]])
    return f"{len(tested)} of {len(table)} claims can be tested there.\n\n" + rows(cells)


BLOCKS = {function.__name__: function for function in (published, counted, earlier, run)}


def filled(text: str) -> str:
    """Return the page with its tables made anew."""

    def block(found: re.Match[str]) -> str:
        return f"{found[1]}\n{BLOCKS[found[2]](found[3])}\n{found[4]}"

    return re.sub(r"(<!-- (\w+) ([\w-]+) -->)\n.*?(<!-- end -->)", block, text, flags=re.S)


def main() -> None:
    """Write the page, or say that it is not what the tables are."""
    for given in [one for one in sys.argv[1:] if one != "--check"]:
        name, _, folder = given.partition("=")
        shutil.copyfile(Path(folder) / "claims.csv", DATA / f"{name}.csv")
    text = PAGE.read_text(encoding="utf-8")
    made = filled(text)
    if "--check" not in sys.argv:
        PAGE.write_text(made, encoding="utf-8")
    elif made != text:
        sys.exit("docs/claims.md says something else than its tables: run python docs/claims.py")


if __name__ == "__main__":
    main()
