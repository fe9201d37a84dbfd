"""Fill the tables of pages from docs/data: what stands between `<!-- name arguments -->` and `<!-- end -->`.

python docs/pages.py                                             from what is stored
python docs/pages.py baselines/digits=results "the run's command" with the tables of a run stored first

The functions are in docs/blocks, and say which files of a run are stored.
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import import_module, metadata
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))

import blocks  # noqa: E402 - where the line above says

MODULES = [import_module(f"blocks.{path.stem}") for path in sorted((DOCS / "blocks").glob("[!_]*.py"))]
FILES: dict[str, list[str]] = {}
BLOCKS: dict[str, Callable[..., str]] = {"made": blocks.provenance, "stored": blocks.stored}
for module in MODULES:
    FILES |= getattr(module, "FILES", {})
    BLOCKS |= getattr(module, "BLOCKS", {})
MARKED = re.compile(r"^(<!-- (\w+)((?: [\w./+-]+)*) -->)\n.*?(<!-- end -->)", re.S | re.M)
PAGES = [
    page
    for page in [*sorted(DOCS.glob("*.md")), DOCS.parent / "README.md", DOCS.parent / "benchmarks/README.md"]
    if MARKED.search(page.read_text(encoding="utf-8"))
]


def filled(text: str) -> str:
    """Return a page with the tables of the stored data in it."""
    return MARKED.sub(lambda match: f"{match[1]}\n{BLOCKS[match[2]](*match[3].split())}\n{match[4]}", text)


def store(name: str, results: Path, command: str) -> None:
    """Copy the tables of a run that pages read, and store its provenance."""
    folder = blocks.DATA / name
    folder.mkdir(parents=True, exist_ok=True)
    for source in FILES[name.partition("/")[0]]:
        shutil.copyfile(results / source, folder / Path(source).name)
    run = {
        "command": command,
        "date": datetime.fromtimestamp((results / source).stat().st_mtime, UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} CPU cores",
        "torch": metadata.version("torch").partition("+")[0],
    }
    (folder / "run.json").write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Store the tables of a run if one is named, and fill the pages."""
    if len(sys.argv) == 3:
        name, _, folder = sys.argv[1].partition("=")
        store(name, Path(folder), sys.argv[2])
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
