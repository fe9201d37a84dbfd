"""Flip one bit in each kind of file of a finished run, run again, and print which were noticed and repaired.

    python tests/faults/flips.py [--seed 0] [--bits 1] [--csv flips.csv]

Every bit is flipped in its own copy of the run. A flip is noticed if the next run reports the file as damaged, and
repaired if all files then have the bytes of the finished run. The exit status is 1 if one is not both.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

from run import undisturbed
from toy_workflow import Run

UNREAD = re.compile(r"\.(lock|tsv|log)$|/\.")


def kind_of(name: str) -> str:
    """Return the kind of a file of the results folder: its stage, and the kind of its content."""
    stage = name.split("/")[1]
    _, _, inside = name.partition(".zarr/")
    if inside:
        return f"{stage}: {re.sub(r'/c/.*', '/c/…', inside)}"
    if stage.count("."):
        return stage
    return f"{stage}: *{''.join(re.sub(r'^[0-9]+$', 'N', s) for s in (Path(name).suffixes[-2:] or ['']))}"


def kinds_of(run: Run) -> dict[str, list[str]]:
    """Return every kind of file of a run, with its files."""
    kinds: dict[str, list[str]] = {}
    for path in sorted(run.results.rglob("*")):
        name = path.relative_to(run.folder).as_posix()
        if path.is_file() and path.stat().st_size and not UNREAD.search(name):
            kinds.setdefault(kind_of(name), []).append(name)
    return kinds


def flip(run: Run, name: str, draw: random.Random) -> None:
    """Change one bit of a file, but not in white space of JSON."""
    path = run.folder / name
    content = bytearray(path.read_bytes())
    position = draw.choice([position for position, byte in enumerate(content) if not bytes([byte]).isspace()])
    content[position] ^= 1 << draw.randrange(8)
    path.write_bytes(content)
    run.strike([name])


def outcome(finished_run: Run, folder: Path, name: str, draw: random.Random) -> tuple[bool, bool, str]:
    """Return whether a flip is noticed, whether it is repaired, and the message."""
    run = finished_run.copy(folder)
    flip(run, name, draw)
    ended = run.run()
    message = next((line for line in ended.output.splitlines() if "damaged" in line or "different configs" in line), "")
    expected, left = finished_run.bytes(), run.bytes()
    same = ended.status == 0 and all(left.get(file) == expected[file] for file in expected)
    # A manifest that is made again is undamaged, but has other times.
    return bool(message), same, message or ended.output[-200:]


def flips(bits: int, seed: int, every: int = 1) -> list[Mapping[str, object]]:
    """Return a row for each kind of file, or for every n-th kind."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="flips-") as temporary:
        finished_run = undisturbed(Path(temporary) / "whole")
        for kind, names in islice(kinds_of(finished_run).items(), 0, None, every):
            draw = random.Random(f"{seed} {kind}")
            noticed = healed = 0
            message = ""
            for number in range(bits):
                folder = Path(temporary) / f"copy-{number}"
                folder.mkdir()
                is_noticed, two, message = outcome(finished_run, folder, draw.choice(names), draw)
                noticed, healed = noticed + is_noticed, healed + two
                shutil.rmtree(folder)
            counts = {"files": len(names), "flips": bits, "noticed": noticed, "healed": healed}
            rows.append({"kind": kind, **counts, "said": message})
            print("{kind:<46}{files:>6}{flips:>6}{noticed:>8}{healed:>8}".format_map(rows[-1]), flush=True)
            if noticed < bits or healed < bits:
                print(f"    {message}", flush=True)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bits", type=int, default=1, help="flips in each kind of file")
    parser.add_argument("--every", type=int, default=1, help="one kind of file of so many")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--markdown", action="store_true", help="a table by stage")
    options = parser.parse_args(arguments)
    rows = flips(options.bits, options.seed, options.every)
    total = {key: sum(int(str(row[key])) for row in rows) for key in ("files", "flips", "noticed", "healed")}
    if options.markdown:
        print("| files of | kinds of file | bits flipped | detected | repaired |\n| --- | --- | --- | --- | --- |")
        for stage in dict.fromkeys(str(row["kind"]).partition(":")[0] for row in rows):
            of = [row for row in rows if str(row["kind"]).partition(":")[0] == stage]
            counts = [sum(int(str(row[key])) for row in of) for key in ("flips", "noticed", "healed")]
            print(f"| {stage} | {len(of)} | {counts[0]} | {counts[1]} | {counts[2]} |")
    print(f"{len(rows)} kinds: {total}")
    if options.csv:
        import pandas as pd

        pd.DataFrame(rows).drop(columns="said").to_csv(options.csv, index=False)
    return int(total["noticed"] < total["flips"] or total["healed"] < total["flips"])


if __name__ == "__main__":
    sys.exit(main())
