"""The documentation is built without a warning, and has no broken internal link."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]


class Page(HTMLParser):
    """The links of a page, and the anchors that it has."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = {""}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        self.anchors.add(values.get("id") or "")
        if tag == "a":
            self.anchors.add(values.get("name") or "")
            self.links.add(values.get("href") or "")


@pytest.mark.slow
def test_the_site_is_built_without_broken_links(tmp_path):
    pytest.importorskip("myst_nb", reason="the site needs pip install 'heatproof[docs]'")
    site = tmp_path / "site"
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-d",
        str(tmp_path / "cache"),
        "docs",
        str(site),
    ]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html")}
    broken = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            is_anchor = target in pages and unquote(parts.fragment) in pages[target].anchors
            if not (is_anchor or (target.is_file() and target not in pages)):
                broken.append(f"{path.relative_to(site.resolve())} → {link}")
    assert not broken, broken[:20]
    choice = (site / "generated/heatproof.api.choose.html").read_text(encoding="utf-8")
    assert "Find the methods that cannot be distinguished from the best" in re.sub(r"<[^>]+>", "", choice)
    assert "data:image/png" in (site / "notebooks/your_own_model.html").read_text(encoding="utf-8") or list(
        (site / "_images").glob("*.png")
    )
