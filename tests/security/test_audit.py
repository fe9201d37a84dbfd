"""The audit fails if there are known vulnerabilities, and names a service that does not respond."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

AUDIT = Path(__file__).parents[2] / ".ci/audit"
# Replaces Python: an environment whose pip installs nothing, and whose pip-audit has a given output.
PYTHON = """#!/usr/bin/env bash
case "$1 $2" in
    "-m venv")
        mkdir -p "$3/bin"
        printf '#!/usr/bin/env bash\\n[ "$PIP" = works ] || { echo "no route"; exit 1; }\\n' >"$3/bin/pip"
        cp "$ANSWER" "$3/bin/pip-audit"
        chmod +x "$3/bin/pip" "$3/bin/pip-audit" ;;
    "-m pip") echo "pillow==10.0.0" ;;
    *) exec "$REAL" "$@" ;;
esac
"""
ADVISORIES = """#!/usr/bin/env bash
while [ "$1" != --output ]; do [ "$1" != --requirement ] || asked="$2"; shift; done
case "$asked" in */known.txt) echo "$KNOWN" >"$2" ;; *) echo "$FOUND" >"$2" ;; esac
"""
KNOWN = '{"dependencies": [{"vulns": [{"id": "CVE-2022-40897"}]}]}'


@pytest.fixture
def audit(tmp_path):
    for name, text in (("python", PYTHON), ("answer", ADVISORIES)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def run(listed, flaws=(), pip="works"):
        report = {"dependencies": [{"name": "pillow", "version": "10.0.0", "vulns": list(flaws)}]}
        settings = {"ANSWER": str(tmp_path / "answer"), "REAL": sys.executable, "PIP": pip, "KNOWN": listed}
        environment = {**os.environ, **settings, "FOUND": json.dumps(report)}
        return subprocess.run([AUDIT, tmp_path / "python"], env=environment, capture_output=True, text=True)

    return run


def test_a_known_vulnerability_fails_the_audit(audit):
    done = audit(KNOWN, [{"id": "CVE-2023-44271", "fix_versions": ["10.0.1"]}])
    assert done.returncode == 1
    assert "pillow 10.0.0: CVE-2023-44271, mended in 10.0.1" in done.stdout


def test_packages_without_a_known_vulnerability_pass_the_audit(audit):
    done = audit(KNOWN)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "audit: 1 of 1 packages audited, 0 known vulnerabilities"


@pytest.mark.parametrize(
    ("pip", "service"),
    [("works", "the PyPI vulnerability service (https://pypi.org/pypi/"), ("fails", "the package index did not give")],
)
def test_the_audit_names_a_service_that_does_not_respond(audit, pip, service):
    done = audit("", pip=pip)
    assert done.returncode == 0
    (sentence,) = done.stdout.splitlines()
    assert "nothing was checked" in sentence
    assert service in sentence
