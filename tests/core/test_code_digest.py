"""Which edits of which files a digest of code notices. Each digest is taken in a process of its own, on a copy."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import heatproof

HEADER = "import json, sys\nsys.path[:0] = sys.argv[1:3]\nfrom heatproof.provenance import code_digest\n"
STAGES = {
    "score": ["heatproof.metrics.score", "heatproof.metrics.single_deletion"],
    "attribute": ["heatproof.attribution.make", "heatproof.attribution.gradient"],
    "resnet": ["heatproof.models.resnet"],
    "user": ["userland.explain"],
}


def digests(folder: Path) -> dict[str, str]:
    program = HEADER + "print(json.dumps({k: code_digest(v) for k, v in json.loads(sys.argv[3]).items()}))"
    arguments = [str(folder / "src"), str(folder / "user"), json.dumps(STAGES)]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def copy_to(folder: Path) -> Path:
    shutil.copytree(
        Path(heatproof.__file__).parent, folder / "src/heatproof", ignore=shutil.ignore_patterns("__pycache__")
    )
    user = folder / "user/userland"
    user.mkdir(parents=True)
    (user / "__init__.py").touch()
    (user / "other.py").write_text("x = 1\n")
    (user / "explain.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "from userland import other\n"
        "if TYPE_CHECKING:\n    from heatproof.data import digits\n"
        "def explain(explained):\n    from heatproof.attribution._parts import parts\n    return {'mine': 1}\n"
    )
    return folder


@pytest.fixture
def project(tmp_path):
    return copy_to(tmp_path)


@pytest.fixture(scope="module")
def untouched(tmp_path_factory):
    return digests(copy_to(tmp_path_factory.mktemp("untouched")))


def edit(project: Path, path: str, old: str, new: str) -> None:
    file = project / path
    text = file.read_text()
    assert old in text, f"{path} has changed: give this test another place to edit"
    file.write_text(text.replace(old, new, 1))


def test_edits_that_change_nothing_that_runs(project, untouched):
    for file in (project / "src/heatproof").rglob("*.py"):
        text = file.read_text()
        assert text.startswith('"""')
        file.write_text('"""Edited. ' + text[3:].replace("\n\n", "\n\n\n") + "\n# A comment at the end.\n")
    edit(project, "src/heatproof/metrics/score.py", '"""Write the scores', '"""Write all the scores')
    edit(project, "src/heatproof/store.py", "if TYPE_CHECKING:\n", "if TYPE_CHECKING:\n    import heatproof.grids\n")
    assert digests(project) == untouched


# What is edited, and whose digests that changes.
EDITS = {
    "of the module itself": ("src/heatproof/metrics/score.py", "COLUMNS = [", "COLUMNS = COLS = [", {"score"}),
    "two imports away": (
        "src/heatproof/metrics/correlation.py",
        "import numpy as np",
        "import numpy as np\nEDITED = 1",
        {"score"},
    ),
    "of a constant": ("src/heatproof/attribution/make.py", "softmax(1)", "softmax(-1)", {"attribute"}),
    "of what a function imports when it runs": (
        "src/heatproof/models/_resnet.py",
        "import torch\n",
        "import torch\nEDITED = 1\n",
        {"resnet"},
    ),
    "of what everything stands on": (
        "src/heatproof/randomness.py",
        "digest_size=8",
        "digest_size=16",
        # The ResNet draws nothing itself.
        {"attribute", "score", "user"},
    ),
    "of an unrelated family": (
        "src/heatproof/attribution/cam.py",
        "from __future__ import annotations\n",
        "from __future__ import annotations\nEDITED = 1\n",
        set(),
    ),
    "of a type-checking import's module": (
        "src/heatproof/data/digits.py",
        "num_classes = 10",
        "num_classes = 9",
        set(),
    ),
    "of a user's module": ("user/userland/explain.py", "'mine': 1", "'mine': 2", {"user"}),
    "of what a user's module imports of ours": (
        "src/heatproof/attribution/_parts.py",
        "import torch\n",
        "import torch\nEDITED = 1\n",
        {"attribute", "user"},
    ),
    "of what a user's module imports of theirs": ("user/userland/other.py", "x = 1", "x = 2", set()),
}


@pytest.mark.parametrize("what", EDITS)
def test_an_edit_changes_the_digests_of_what_runs_it(project, untouched, what):
    path, old, new, whose = EDITS[what]
    edit(project, path, old, new)
    after = digests(project)
    assert {name for name in STAGES if after[name] != untouched[name]} == whose


def test_the_other_branch_of_type_checking_counts(project):
    path = "user/userland/explain.py"
    digits = "    from heatproof.data import digits\n"
    edit(project, path, digits, digits + "else:\n    digits = 1\n")
    before = digests(project)
    edit(project, path, "digits = 1", "digits = 2")
    assert digests(project)["user"] != before["user"]


def test_a_module_that_is_not_there_has_no_code():
    from heatproof.provenance import code_digest, source_path

    assert source_path("no_such_package.module") is None
    assert source_path("heatproof.no_such_module") is None
    assert code_digest(["heatproof.errors"]) != code_digest(["heatproof.errors", "no_such_package"])
