"""Every explainer, metric and public function leaves the process as it was.

Random states, grad mode, threads, the start method of multiprocessing, loggers, filters of warnings, figures,
environment and more. Each group of calls is a process of its own, because what a first call fixes stays fixed.
"""

import json
import subprocess
import sys
from pathlib import Path

import calls
import pytest

SCRIPT = Path(calls.__file__)


def changes_in(group):
    done = subprocess.run([sys.executable, SCRIPT, group], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("group", [group for group in calls.GROUPS if group != "planted"])
def test_a_call_leaves_the_process_as_it_was(group):
    changes = changes_in(group)
    assert list(changes) == list(calls.GROUPS[group])
    assert {name: changed for name, changed in changes.items() if changed} == {}


def test_what_a_call_leaves_is_found():
    assert all(left in changed for left, changed in changes_in("planted").items())


def test_the_groups_have_every_explainer_metric_and_public_function():
    called = {name for group in calls.GROUPS.values() for name in group}
    assert {*calls.EXPLAINER_NAMES, *calls.METRIC_NAMES, *calls.PUBLIC} <= called
    assert len(called) >= 85
