"""The container image is built from archives with known SHA-256, and the lock file has all required packages."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "envs/lock.txt").read_text()
ONE = re.compile(
    r"(?P<name>[a-z0-9.-]+)(?:\[[a-z,-]+\])?==(?P<version>[^ ;]+)(?: ; [^\\\n]+)? \\\n"
    r"(?: {4}--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+"
)


def test_each_archive_has_its_digest_and_no_place():
    assert ONE.sub("", LOCK) == "", "nothing but names, versions and digests"
    assert len(list(ONE.finditer(LOCK))) > 100


def test_the_lock_has_all_requirements_of_package_and_build():
    locked = {}
    for one in ONE.finditer(LOCK):
        locked.setdefault(canonicalize_name(one["name"]), []).append(one["version"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for text in (*project["project"]["dependencies"], *project["build-system"]["requires"]):
        asked = Requirement(text)
        versions = locked[canonicalize_name(asked.name)]
        assert all(asked.specifier.contains(version) for version in versions), text


def test_the_image_is_built_of_the_lock_alone():
    installs = re.findall(r"pip install [^&\n\\]*", (ROOT / "envs/Dockerfile").read_text())
    assert [set(re.findall(r"--[a-z-]+", one)) - {"--no-cache-dir"} for one in installs] == [
        {"--require-hashes", "--requirement"},
        {"--no-deps", "--no-build-isolation"},
    ]
