"""The documentation as a site: `pip install -e '.[docs]' && sphinx-build -W --keep-going docs site`.

Pages in docs/site stand for a file of the repository outside docs, and links to such files lead to them.
"""

import os
import re
import shutil
from importlib import metadata
from pathlib import Path

project = "heatproof"
author = "The heatproof developers"
version = release = metadata.version("heatproof")

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
html_theme = "furo"
html_title = f"heatproof {release}"
html_static_path = ["site/static"]
html_css_files = ["site.css"]
exclude_patterns = ["blocks", "data/**/*.md", "data/**/README*"]
templates_path = ["templates"]

# Notebooks are shown with the output that is stored with them; a slow test runs them.
nb_execution_mode = "off"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
default_role = "literal"
autosummary_generate = True
# Pages of modules that are no longer there would stay from an earlier build, and fail.
shutil.rmtree(Path(__file__).parent / "generated", ignore_errors=True)
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True

DOCS = Path(__file__).parent
ROOT = DOCS.parent
OUTSIDE = {
    "README.md": "site/start",
    "CONTRIBUTING.md": "site/contributing",
    "CHANGELOG.md": "site/changes",
    "SECURITY.md": "site/reporting",
    "config/README.md": "site/config",
    "benchmarks/README.md": "site/benchmarks",
}
FILES = {page: file for file, page in OUTSIDE.items()}
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#\s:]+)((?:#[^)\s]*)?)\)")
IMAGE = re.compile(r"(!\[[^\]]*\]\()([^)#\s:]+)\)")


def within_the_site(app: object, page: str, source: list[str]) -> None:
    """Put in the text of a file outside docs, and point links at pages of the site."""
    here = ROOT / FILES[page] if page in FILES else DOCS / f"{page}.md"
    if not here.is_file():
        return
    base = (DOCS / page).parent

    def relative(target: Path) -> str:
        return Path(os.path.relpath(target, base)).as_posix()

    def link(match: re.Match[str]) -> str:
        target = (here.parent / match[2]).resolve()
        if target.is_relative_to(ROOT) and (path := target.relative_to(ROOT).as_posix()) in OUTSIDE:
            return f"[{match[1]}]({relative(DOCS / OUTSIDE[path])}.md{match[3]})"
        inside = target.is_relative_to(DOCS) and target.suffix in (".md", ".ipynb")
        # A file of the repository that is no page.
        return f"[{match[1]}]({relative(target)}{match[3]})" if inside or not target.exists() else match[1]

    def image(match: re.Match[str]) -> str:
        return f"{match[1]}{relative((here.parent / match[2]).resolve())})"

    source[0] = IMAGE.sub(image, LINK.sub(link, here.read_text(encoding="utf-8")))


def setup(app: object) -> None:
    """Register the hook above."""
    app.connect("source-read", within_the_site)
