"""Published pages load nothing, and execute only their own script."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import heatproof
from heatproof.report.results import render

TEMPLATES = Path(heatproof.__file__).parent / "report/templates"
EVIL = "</td><script>document.title='pwned'</script><img src=//evil.example/x onerror=alert(1)>"
CHECKS = {
    "title": EVIL,
    "factors": [{"factor": EVIL, "uri": "data:,", "shows": EVIL, "conclusion": EVIL, "rows": []}],
}
GALLERY = {
    "title": EVIL,
    "side": 8,
    "scale": EVIL,
    "colours": ["red", "blue"],
    "numbers": None,
    "methods": [{"method": EVIL, "reference": False}],
    "datasets": [
        {
            "name": EVIL,
            "drawn": EVIL,
            "size": [8],
            "images": [{"id": EVIL, "label": EVIL, "uri": "data:,"}],
            "networks": [{"model": EVIL, "weights": EVIL, "metrics": []}],
            "cells": [[[{"gap": EVIL}]]],
        }
    ],
}


class Reader(HTMLParser):
    """Policies, scripts and links of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.policies: list[str] = []
        self.scripts: list[str] = []
        self.links: list[dict[str, str | None]] = []
        self.order: list[str] = []
        self.inside = False
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.order.append(values.get("http-equiv", tag))
        if values.get("http-equiv") == "Content-Security-Policy":
            self.policies.append(values["content"])
        if tag == "a":
            self.links.append(values)
        self.inside = tag == "script" and values.get("type") != "application/json"
        if self.inside:
            assert "nonce" not in values
            assert "src" not in values
            self.scripts.append("")

    def handle_data(self, data):
        if self.inside:
            self.scripts[-1] += data

    def handle_endtag(self, tag):
        self.inside = False


def directives(policy: str) -> dict[str, list[str]]:
    return {name: values for name, *values in (part.split() for part in policy.split(";") if part.strip())}


@pytest.mark.parametrize(("template", "values"), [("checks.html", CHECKS), ("gallery.html", GALLERY)])
def test_the_policy_of_a_page_without_scripts_allows_none(template, values):
    page = Reader(render(template, **values))
    (policy,) = page.policies
    allowed = directives(policy)
    assert allowed["default-src"] == ["'none'"]
    assert "script-src" not in allowed
    assert page.scripts == []
    assert page.order.index("Content-Security-Policy") < page.order.index("title")


def test_the_policy_of_a_page_allows_only_its_own_script(tmp_path):
    """The policy is computed from the installed script, so that no text in a cell can permit another one."""
    script = (TEMPLATES / "index_script.html").read_text(encoding="utf-8")
    page = Reader(render("checks.html", script="index_script.html", **CHECKS))
    (policy,) = page.policies
    digest = "'sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() + "'"
    assert directives(policy)["script-src"] == [digest, "blob:"]
    assert page.scripts == [script]
    assert "{{" not in script
    assert "{%" not in script


def test_every_template_of_a_page_has_the_policy_of_the_frame():
    pages = [path for path in TEMPLATES.glob("*.html") if path.name not in ("frame.html", "index_script.html")]
    assert len(pages) == 5
    for path in pages:
        assert path.read_text(encoding="utf-8").startswith('{% extends "frame.html" %}')


def test_pages_load_nothing_and_their_links_send_no_referrer():
    policy = directives(Reader(render("checks.html", **CHECKS)).policies[0])
    assert not [value for values in policy.values() for value in values if "http" in value or "*" in value]
    for path in TEMPLATES.glob("*.html"):
        text = path.read_text(encoding="utf-8")
        for link in re.findall(r"<a [^>]*>", text):
            assert 'href="#' in link or 'rel="noopener"' in link, f"{path.name}: {link}"
        assert not re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", text)
    assert all(link["rel"] == "noopener" for link in Reader(render("checks.html", **CHECKS)).links)


def test_the_same_page_has_the_same_bytes():
    assert render("gallery.html", **GALLERY) == render("gallery.html", **GALLERY)
