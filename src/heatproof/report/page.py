"""The frame of every HTML page: one file, no network, light and dark, all names escaped."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"

FRAME = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{{ title }}</title>
{% block head %}{% endblock %}
<style>
:root {
  color-scheme: light dark;
  --ground: #fff; --text: #1d2430; --quiet: #5b6472; --line: #dde1e7; --band: #f5f6f8; --strong: #0b62a3;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #14171c; --text: #e4e7ec; --quiet: #9aa3b0; --line: #2f3540; --band: #1c2027; --strong: #7cb8ec;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; padding: 1.5rem; background: var(--ground); color: var(--text);
  font: 14px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
}
h1 { font-size: 1.35rem; margin: 0 0 .3rem; }
h2 { font-size: 1.1rem; margin: 1.6rem 0 .5rem; }
p { margin: 0 0 .6rem; max-width: 62rem; }
.quiet { color: var(--quiet); }
table { border-collapse: separate; border-spacing: 0; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { font-weight: 600; }
th[scope="row"], .left { text-align: left; }
th[scope="row"] { position: sticky; left: 0; background: var(--ground); font-weight: 500; z-index: 1; }
tbody tr:hover > * { background: var(--band); }
{% block style %}{% endblock %}
</style>
</head>
<body>
<h1>{{ title }}</h1>
{% block body %}{% endblock %}
</body>
</html>
"""


def render(template: str, **values: Any) -> str:
    """Fill a template that extends ``frame``; every value is escaped.

    Parameters
    ----------
    template
        Jinja text.
    values
        What it names; ``title`` among them.
    """
    return _environment().from_string(template).render(**values)


def render_file(name: str, **values: Any) -> str:
    """Fill a template that stands in a file of the folder ``templates``, as `render` does."""
    return _environment().get_template(name).render(**values)


@cache
def _environment() -> Environment:
    from jinja2 import ChoiceLoader, DictLoader, Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=ChoiceLoader([DictLoader({"frame": FRAME}), FileSystemLoader(TEMPLATES)]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
