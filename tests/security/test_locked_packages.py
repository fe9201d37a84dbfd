"""The container image is built from archives with known SHA-256, and the lock file has all required packages."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "envs/lock.txt").read_text()
LOCKED_PACKAGE = re.compile(
    r"(?P<name>[a-z0-9.-]+)(?:\[[a-z,-]+\])?==(?P<version>[^ ;]+)(?: ; [^\\\n]+)? \\\n"
    r"(?: {4}--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+"
)


def test_each_archive_has_a_digest_and_no_address():
    assert LOCKED_PACKAGE.sub("", LOCK) == "", "nothing but names, versions and digests"
    assert len(list(LOCKED_PACKAGE.finditer(LOCK))) > 100


def test_the_lock_has_all_requirements_of_package_and_build():
    locked = {}
    for locked_package in LOCKED_PACKAGE.finditer(LOCK):
        locked.setdefault(canonicalize_name(locked_package["name"]), []).append(locked_package["version"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for text in (*project["project"]["dependencies"], *project["build-system"]["requires"]):
        requirement = Requirement(text)
        versions = locked[canonicalize_name(requirement.name)]
        assert all(requirement.specifier.contains(version) for version in versions), text


def test_the_container_image_is_built_from_the_lock_only():
    installs = re.findall(r"pip install [^&\n\\]*", (ROOT / "envs/Dockerfile").read_text())
    assert [set(re.findall(r"--[a-z-]+", command)) - {"--no-cache-dir"} for command in installs] == [
        {"--require-hashes", "--requirement"},
        {"--no-deps", "--no-build-isolation"},
    ]
