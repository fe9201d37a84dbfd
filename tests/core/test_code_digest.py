"""Edits of files that change a digest of code. Each digest is computed in a new process, on a copy."""

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import heatproof
from heatproof.core import provenance

HEADER = "import json, sys\nsys.path[:0] = sys.argv[1:3]\nfrom heatproof.core.provenance import code_digest\n"
STAGES = {
    "score": ["heatproof.workflow.stages.score", "heatproof.metrics.single_deletion"],
    "attribute": ["heatproof.workflow.stages.attribute", "heatproof.explainers.gradient"],
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
        "if TYPE_CHECKING:\n    from heatproof.datasets import digits\n"
        "def explain(explained):\n"
        "    from heatproof.explainers._batches import draw_per_image\n    return {'mine': 1}\n"
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


def test_edits_of_docstrings_comments_and_type_imports_change_no_digest(project, untouched):
    for file in (project / "src/heatproof").rglob("*.py"):
        text = file.read_text()
        assert text.startswith('"""')
        file.write_text('"""Edited. ' + text[3:].replace("\n\n", "\n\n\n") + "\n# A comment at the end.\n")
    edit(project, "src/heatproof/workflow/stages/score.py", '"""Write the scores', '"""Write all the scores')
    edit(
        project,
        "src/heatproof/store/writing.py",
        "if TYPE_CHECKING:\n",
        "if TYPE_CHECKING:\n    import heatproof.core.grids\n",
    )
    assert digests(project) == untouched


# An edit, and the modules whose digests it changes.
EDITS = {
    "of the module itself": (
        "src/heatproof/workflow/stages/score.py",
        "log = logging",
        "log = _log = logging",
        {"score"},
    ),
    "two imports away": (
        "src/heatproof/metrics/arrays.py",
        "import numpy as np",
        "import numpy as np\nEDITED = 1",
        {"score"},
    ),
    "of a constant": (
        "src/heatproof/workflow/stages/_explaining.py",
        "return probabilities(",
        "return +probabilities(",
        {"attribute"},
    ),
    "of what a function imports when it runs": (
        "src/heatproof/models/_resnet.py",
        "import torch\n",
        "import torch\nEDITED = 1\n",
        {"resnet"},
    ),
    "of what everything stands on": (
        "src/heatproof/core/randomness.py",
        "digest_size=8",
        "digest_size=16",
        # The ResNet does not draw random numbers itself.
        {"attribute", "score", "user"},
    ),
    "of an unrelated family": (
        "src/heatproof/explainers/cam.py",
        "from __future__ import annotations\n",
        "from __future__ import annotations\nEDITED = 1\n",
        set(),
    ),
    "of a type-checking import's module": (
        "src/heatproof/datasets/digits.py",
        "num_classes = 10",
        "num_classes = 9",
        set(),
    ),
    "of a user's module": ("user/userland/explain.py", "'mine': 1", "'mine': 2", {"user"}),
    "of what a user's module imports of ours": (
        "src/heatproof/explainers/_batches.py",
        "import torch\n",
        "import torch\nEDITED = 1\n",
        {"attribute", "user"},
    ),
    "of what a user's module imports of theirs": ("user/userland/other.py", "x = 1", "x = 2", set()),
}


@pytest.mark.parametrize("what", EDITS)
def test_an_edit_changes_the_digests_of_modules_that_import_it(project, untouched, what):
    path, old, new, whose = EDITS[what]
    edit(project, path, old, new)
    after = digests(project)
    assert {name for name in STAGES if after[name] != untouched[name]} == whose


def test_the_else_branch_of_type_checking_is_part_of_the_digest(project):
    path = "user/userland/explain.py"
    digits = "    from heatproof.datasets import digits\n"
    edit(project, path, digits, digits + "else:\n    digits = 1\n")
    before = digests(project)
    edit(project, path, "digits = 1", "digits = 2")
    assert digests(project)["user"] != before["user"]


class Reference(ast.NodeTransformer):
    """An independent implementation that removes, node by node, the parts that a digest leaves out."""

    def visit(self, node):
        node = super().visit(node)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(getattr(first.value, "value", None), str):
                node.body = node.body[1:] or [ast.Pass()]
        return node

    def visit_If(self, node):
        self.generic_visit(node)
        return (
            node.orelse if "TYPE_CHECKING" in (getattr(node.test, "id", ""), getattr(node.test, "attr", "")) else node
        )


def all_modules():
    root = Path(heatproof.__file__).parent
    for path in sorted(root.rglob("*.py")):
        names = ("heatproof", *path.relative_to(root).with_suffix("").parts)
        yield ".".join(names[:-1] if names[-1] == "__init__" else names), path


def test_digests_are_those_of_trees_without_docstrings_and_type_imports():
    for module, path in all_modules():
        tree = ast.parse(ast.unparse(ast.parse(path.read_text(encoding="utf-8"))))
        assert provenance.read_source(module).digest == provenance.digest_of_tree(Reference().visit(tree)), module


def test_different_trees_have_different_digests():
    """Values of other types, additional parts, and the same words in other places give other digests."""
    programs = ["a = 1", "a = '1'", "a = True", "a = None", "b = 1", "a += 1", "a: int = 1", "a(1)", "a(b=1)", "a[1]"]
    programs += ["def a(b, c): pass", "def a(b, /, c): pass", "def a(b, *, c): pass", "def a(b, *c): pass"]
    programs += [
        "if a: b\nc",
        "if a:\n    b\n    c",
        "if a: b\nelse: c",
        "return_ = a, b",
        "return_ = [a, b]",
        "f(a, b)",
        "f((a, b))",
    ]
    programs += [
        "f'{a}b'",
        "f'{a}{b}'",
        "f'{a!r}'",
        "f'{a:b}'",
        "x = yield",
        "x = [a for a in b]",
        "x = (a for a in b)",
        "-1",
        "- 2",
    ]
    digests = {provenance.digest_of_tree(ast.parse(program)) for program in programs}
    assert len(digests) == len(programs)


ODD = """
if typing.TYPE_CHECKING:
    import heatproof.core.grids
elif TYPE_CHECKING:
    import heatproof.store.zarr_store
else:
    import heatproof.errors
def only_said():
    "A docstring."
class Empty:
    if TYPE_CHECKING:
        import heatproof.core.grids
match 1:
    case 1:
        try:
            import heatproof.core.randomness
        except ImportError:
            def inner():
                "A docstring."
                return lambda: "no docstring"
        finally:
            from heatproof import no_such_name
            from heatproof.workflow.stages import _shards
"""


def test_nested_blocks_are_stripped():
    tree, imports = ast.parse(ODD), set()
    provenance._strip(tree, imports)
    assert ast.unparse(tree) == ast.unparse(Reference().visit(ast.parse(ODD)))
    assert {name for name in imports if provenance.source_path(name)} == {
        "heatproof",
        "heatproof.errors",
        "heatproof.core.randomness",
        "heatproof.workflow.stages",
        "heatproof.workflow.stages._shards",
    }


def test_each_file_is_parsed_once(monkeypatch):
    parsed = []
    parse = ast.parse
    monkeypatch.setattr(
        ast, "parse", lambda text, *arguments, **options: parsed.append(text) or parse(text, *arguments, **options)
    )
    for cached in (provenance.read_source, provenance._digest_of):
        cached.cache_clear()
    first = [provenance.code_digest(modules) for modules in STAGES.values()]
    assert len(parsed) == len(set(parsed)) > 20
    assert [provenance.code_digest(modules) for modules in STAGES.values()] == first
    assert len(parsed) == len(set(parsed))


def test_a_missing_module_has_no_source():
    assert provenance.source_path("no_such_package.module") is None
    assert provenance.source_path("heatproof.no_such_module") is None
    assert provenance.code_digest(["heatproof.errors"]) != provenance.code_digest(
        ["heatproof.errors", "no_such_package"]
    )
