"""Snakemake's own report, which people publish: it names no place and nobody."""

from __future__ import annotations

import base64
import getpass
import os
import re
from pathlib import Path

import pytest

pytestmark = [pytest.mark.workflow, pytest.mark.slow]


def test_the_report_and_the_results_name_neither_folders_nor_the_machine(project):
    project.run("all")
    project.run("all", "--report", "r.html")
    page = (project.folder / "r.html").read_text(encoding="utf-8")
    inside = [base64.b64decode(data) for data in re.findall(r"data:[^\"',]*;base64,([A-Za-z0-9+/]+=*)", page)]
    written = [file.read_bytes() for file in (project.folder / "results").rglob("*") if file.is_file()]
    places = {
        str(project.folder),
        str(project.folder.parent),
        str(Path.home()),
        f"{os.uname().nodename}.{getpass.getuser()}",
    }
    for text in [page.encode(), *inside, *written]:
        assert not [place for place in places if len(place) > len("/root") and place.encode() in text]
