"""The shipped profiles mean the same in every Snakemake that is allowed."""

import re
from pathlib import Path

import pytest
import yaml
from humanfriendly import parse_timespan
from snakemake.resources import Resource

PROFILES = sorted((Path(__file__).parents[2] / "profiles").glob("*/"))
# Also lines that a user makes valid by removing the "# ".
TIME = re.compile(r"^[^\n#]*#?[^\n#]*\bruntime: ([^,}\n]+)", re.MULTILINE)
TIMES = [
    (folder.name, time.strip()) for folder in PROFILES for time in TIME.findall((folder / "config.yaml").read_text())
]


@pytest.mark.parametrize("folder", PROFILES, ids=lambda folder: folder.name)
def test_a_profile_has_one_file(folder):
    """Snakemake 9.14 reads config.yaml alone; 9.27 reads profile.yaml or that, as the folder lists them."""
    assert [path.name for path in folder.iterdir()] == ["config.yaml"]
    assert isinstance(yaml.safe_load((folder / "config.yaml").read_text()), dict)


def test_times_were_read():
    assert len(TIMES) >= 3


@pytest.mark.parametrize(("profile", "time"), TIMES)
def test_times_have_a_unit_and_grow_with_each_attempt(profile, time):
    """Some versions read a number as minutes and others as seconds (report 4039), and some fail at braces."""
    assert not set(time) & set("{}")
    first, second = (eval(time, {"attempt": attempt, "str": str}) for attempt in (1, 2))
    assert re.fullmatch(r"\d+m", first)
    assert parse_timespan(second) == 2 * parse_timespan(first) >= 7200
    assert Resource("runtime", first).value == int(first[:-1]), "minutes"
