"""Tables and commands of docs/papers.md, from docs/data/papers.yaml."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from textwrap import fill

import pandas as pd
import yaml

from blocks import DATA, rows

FILES = {"papers_small": ["papers_small.csv"]}


@dataclass(frozen=True)
class Row:
    """A figure, table or section of a paper; docs/data/papers.yaml explains the fields."""

    part: str
    shows: str
    configs: tuple[str, ...] = ()
    target: str = ""
    here: str = ""
    differs: str = ""

    @property
    def states(self) -> tuple[str, ...]:
        """The states: a small run makes it, the command at the paper's size is planned, or it is not made."""
        here, planned = ("runs here",) if self.here else (), ("planned",) if self.configs else ()
        return here + planned or ("not made",)


def papers() -> dict[str, list[Row]]:
    """Return the rows of every paper."""
    entries_of = yaml.safe_load((DATA / "papers.yaml").read_text(encoding="utf-8"))
    return {
        paper: [Row(**{**entry, "configs": tuple(entry.get("configs", ()))}) for entry in entries]
        for paper, entries in entries_of.items()
    }


def folder(configs: tuple[str, ...]) -> str:
    """Return the folder that separates the results of configs from those of others."""
    return configs[-1].removeprefix("paper_")


def command(configs: tuple[str, ...], target: str) -> str:
    """Return the command that makes a file at a paper's size."""
    files = " ".join(f"config/{name}.yaml" for name in configs)
    # On two lines, so that the file is visible without scrolling.
    return f"snakemake --profile profiles/slurm --configfile {files} \\\n  --directory {folder(configs)} -- {target}"


def paper_table(paper: str) -> str:
    """Return the file of each figure, table and section, the differences from the paper, and what is not made."""
    cells, not_made = [["in the paper", "file", "small run", "what differs"]], []
    for row in papers()[paper]:
        if row.states == ("not made",):
            not_made.append(f"- {row.part}: {row.shows}. {row.differs}")
            continue
        target, here = (f"`{name}`" if name else "" for name in (row.target, row.here))
        cells.append([f"{row.part}: {row.shows}", target, here, row.differs])
    return "\n".join([rows(cells), *(["", "Not made:", "", *not_made] if not_made else [])])


def paper_commands(paper: str) -> str:
    """Return the command of each combination of configs, after the names of the figures and tables that it makes."""
    titles: dict[str, list[str]] = {}
    targets = papers()[paper]
    several = Counter(row.part for row in targets)
    for row in targets:
        if row.configs:
            # A section has several results, and a figure may be made in parts.
            is_named = row.part.startswith("section") or several[row.part] > 1
            title = f"{row.part} ({row.shows})" if is_named else row.part
            titles.setdefault(command(row.configs, "FILE"), []).append(title)
    heads = (fill(", ".join(parts), 100, initial_indent="# ", subsequent_indent="# ") for parts in titles.values())
    return "```bash\n" + "\n\n".join(f"{head}\n{line}" for head, line in zip(heads, titles, strict=True)) + "\n```"


def papers_small() -> str:
    """Return a row for each combination of configs: the size of the small run, and the number of files made."""
    table = pd.read_csv(DATA / "papers_small/papers_small.csv")
    cells = [["configs", "networks", "images", "files listed on this page", "files made", "seconds"]]
    for name, part in table.groupby("configs", sort=False):
        first = part.iloc[0]
        configs = ", ".join(f"`{config}`" for config in str(name).split("+"))
        counts = [str(first["networks"]), str(first["images"]), str(len(part)), str(int(part["made"].sum()))]
        cells.append([configs, *counts, f"{part['seconds'].sum():.0f}"])
    return rows(cells)


BLOCKS = {"paper_table": paper_table, "paper_commands": paper_commands, "papers_small": papers_small}
