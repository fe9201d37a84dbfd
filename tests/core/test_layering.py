"""Who may import whom, read from the sources."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

import heatproof

ROOT = Path(heatproof.__file__).parent
BASE = {
    "errors",
    "class_order",
    "named_axes",
    "whole_numbers",
    "ending",
    "randomness",
    "batches",
    "registry",
    "provenance",
    "storage",
    "grids",
    "tasks",
    "methods",
    "sequences",
    "subsets",
    "options",
    "folder",
    "typed",
    "specs",
    "stage",
}
# What each part may import of the others. Parts of the base are listed one by one: nothing in them looks up.
ALLOWED = {
    "errors": set(),
    # Whether labels have the numbers of a network's outputs.
    "class_order": set(),
    # Arrays of users whose dimensions have names.
    "named_axes": {"errors"},
    "whole_numbers": {"errors"},
    # What tells a network, or a method of the user's, from another one.
    "identity": {"errors", "provenance"},
    # How a process ends when it is asked to.
    "ending": {"errors"},
    # Values that jobs of several stages are given.
    "specs": {"grids", "provenance"},
    "randomness": set(),
    "batches": set(),
    "provenance": set(),
    "registry": {"errors"},
    "figures": {"registry"},
    "folder": set(),
    # What a stage is; and the stages, which the plan makes jobs of, with what their jobs run.
    "stage": {"folder", "provenance", "registry", "specs", "typed"},
    "stages": BASE
    | {
        "attribution",
        "claims",
        "data",
        "figures",
        "guard",
        "metrics",
        "models",
        "perturbation",
        "plan",
        "ranking",
        "report",
        "responses",
        "training",
    },
    "grids": {"errors"},
    # What a network is for, and what it gives.
    "tasks": {"errors"},
    # A map of an explainer, with its signs or without.
    "methods": set(),
    "sequences": {"errors", "randomness", "grids"},
    "subsets": {"errors", "randomness"},
    "options": {"errors", "grids", "registry"},
    # All that is read from and written to a disk.
    "storage": {"errors", "provenance", "grids", "methods", "typed"},
    "typed": set(),
    "config_types": {"errors", "grids", "options", "registry"},
    "config_files": {"errors", "options", "registry", "storage"},
    "config": {"errors", "registry", "config_files", "config_types"},
    "data": BASE,
    "shards": BASE | {"data"},
    "models": BASE | {"data"},
    "perturbation": BASE | {"data", "models", "shards"},
    # Baselines of explainers are those of perturbations.
    "attribution": BASE | {"data", "models", "shards", "perturbation"},
    "training": BASE | {"data", "models", "perturbation"},
    # Both sides meet here: what a network says of perturbed images, and maps from explainers.
    "responses": BASE | {"data", "models", "shards", "attribution", "perturbation"},
    "metrics": BASE | {"responses"},
    # What a finetuning left on a user's network.
    "finetuned": BASE | {"metrics", "models", "perturbation"},
    # What callers give as images, targets, ids and maps.
    "inputs": BASE | {"data", "finetuned", "identity", "models", "perturbation"},
    # Without the workflow: a user's model, images and maps to scores.
    "evaluation": BASE
    | {"attribution", "data", "finetuned", "inputs", "models", "metrics", "perturbation", "responses"},
    # What people call with a model in memory, or on the results of a run.
    "api": BASE
    | {
        "attribution",
        "data",
        "evaluation",
        "finetuned",
        "identity",
        "inputs",
        "methods",
        "metrics",
        "models",
        "perturbation",
        "ranking",
        "report",
        "responses",
        "training",
    },
    # Maps have the colours of the report.
    "plot": {"errors", "named_axes", "options", "report"},
    "_study": BASE | {"data", "evaluation", "inputs", "metrics", "models", "perturbation", "responses"},
    "quality": BASE | {"_study", "metrics", "ranking"},
    # Rules that explainers and metrics keep, of heatproof's own or of the user's.
    "testing": {"errors", "registry", "_testing"},
    "_testing": BASE | {"api", "attribution", "evaluation", "metrics", "models", "responses"},
    "ranking": BASE | {"metrics"},
    # `list` prints what a config can name; the catalogues below are tables of names.
    "report": BASE | {"data", "figures", "metrics", "ranking", "config", "config_files", "plan"},
    # Published claims, tested on scores alone.
    "claims": BASE | {"metrics", "ranking"},
    "plan": BASE
    | {
        "config",
        "config_files",
        "config_types",
        "data",
        "figures",
        "models",
        "attribution",
        "perturbation",
        "metrics",
        "responses",
    },
    "adopt": {"errors", "provenance", "plan", "storage"},
    "changes": {"adopt", "plan", "provenance", "storage"},
    # Shows what a results folder records, and runs nothing of it.
    "last_run": BASE | {"config_files", "plan"},
    "bundle": BASE | {"adopt", "last_run", "plan"},
    "diff": BASE | {"bundle", "report"},
    "running": BASE | {"adopt", "changes", "config_files", "last_run", "plan"},
    "prune": BASE | {"adopt", "config_files", "plan", "estimate", "storage"},
    # Reads names and headers; a library of networks is imported where its names are asked for.
    "new_config": BASE | {"config_files", "data", "estimate", "models", "plan"},
    "accept": {"adopt", "shards", "plan", "provenance", "training", "storage"},
    # On a few images, before any job: imports what it tries only where there is something to try.
    "trial": BASE | {"data", "models", "attribution", "metrics", "perturbation", "plan", "responses"},
    "check": BASE | {"attribution", "changes", "config_files", "plan", "models", "perturbation", "trial"},
    "workflow": {
        "ending",
        "errors",
        "provenance",
        "specs",
        "stage",
        "plan",
        "adopt",
        "changes",
        "check",
        "last_run",
        "storage",
    },
    "terminal": {"ending", "errors", "options", "plan", "storage", "registry", "stage"},
    # A job finds its function by name: what it is of decides what is loaded.
    "guard": {"errors", "storage", "stage", "ranking"},
    "job": {"ending", "errors", "provenance", "registry", "perturbation", "specs", "stage", "storage"},
    # Runs jobs as they are, each in a process of its own; only that process imports torch.
    "estimate": BASE
    | {"attribution", "config_files", "data", "models", "training", "responses", "plan", "stages", "workflow"},
    "cli": {
        "errors",
        "grids",
        "options",
        "job",
        "check",
        "accept",
        "prune",
        "new_config",
        "running",
        "bundle",
        "diff",
        "config_files",
        "plan",
        "workflow",
        "report",
        "estimate",
        "storage",
    },
    "__main__": {"cli", "ending"},
}
TABLES_OF_NAMES = {"heatproof.attribution.registry", "heatproof.models.registry"}


def part_of(module: str) -> str:
    name = module.split(".")[1]
    return "plan" if name.startswith("plan") else name


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(("heatproof", *parts)).removesuffix(".__init__")


def imports(file: Path) -> set[str]:
    """Return every module that a file imports, wherever in it, type-checking imports left out."""
    found = set()
    pending = [ast.parse(file.read_text(encoding="utf-8"))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file}: imports are absolute"
            module = node.module or ""
            found.update(f"heatproof.{alias.name}" for alias in node.names) if module == "heatproof" else found.add(
                module
            )
        pending.extend(ast.iter_child_nodes(node))
    return found


FILES = sorted(ROOT.rglob("*.py"))
MODULES = {module_name(file): imports(file) for file in FILES if file.parent != ROOT or file.name != "__init__.py"}


def test_every_part_has_a_rule():
    assert {part_of(module) for module in MODULES} == set(ALLOWED)


@pytest.mark.parametrize("part", sorted(ALLOWED))
def test_a_part_imports_only_what_it_may(part):
    wrong = [
        f"{module} imports {name}"
        for module, names in MODULES.items()
        if part_of(module) == part
        for name in sorted(names)
        if name.startswith("heatproof.") and part_of(name) not in ALLOWED[part] | {part}
        if not (part == "report" and name in TABLES_OF_NAMES)
    ]
    assert wrong == []


def test_imports_make_no_circle_even_those_for_types_alone():
    graph = {}
    for file in FILES:
        code = file.read_text(encoding="utf-8").replace("if TYPE_CHECKING:", "if True:")
        found = {
            name
            for node in ast.walk(ast.parse(code))
            if isinstance(node, ast.ImportFrom) and node.col_offset <= 4
            for name in (node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names))
        }
        graph[module_name(file)] = {name for name in found if name.startswith("heatproof.")} - {module_name(file)}
    known = {module: names & graph.keys() for module, names in graph.items()}
    graphlib.TopologicalSorter(known).prepare()


def test_nothing_but_its_terminal_imports_snakemake():
    found = [module for module, names in MODULES.items() if any(n.partition(".")[0] == "snakemake" for n in names)]
    assert found == ["heatproof.terminal"]


@pytest.mark.parametrize("part", ["metrics", "ranking", "report"])
def test_no_network_library_in_what_only_reads_arrays(part):
    heavy = {"torch", "torchvision", "timm", "captum", "torchcam", "safetensors"}
    wrong = {
        module: found
        for module, names in MODULES.items()
        if part_of(module) == part and (found := heavy & {name.partition(".")[0] for name in names})
    }
    assert wrong == {}


def test_only_the_store_opens_zarr():
    assert [module for module, names in MODULES.items() if any(n.partition(".")[0] == "zarr" for n in names)] == [
        "heatproof.storage.store"
    ]


@pytest.mark.parametrize(
    ("part", "entries"),
    [
        ("metrics", ()),
        ("ranking", ()),
        ("report", ()),
        (
            "planning",
            (
                "heatproof.plan.validate",
                "heatproof.adopt",
                "heatproof.check",
                "heatproof.job",
                "heatproof.cli",
                "heatproof.workflow",
            ),
        ),
    ],
)
def test_loads_without_torch(part, entries):
    """Also through what they import: a job that scores starts in a moment, and so does every Snakemake process."""
    modules = entries or sorted(module for module in MODULES if part_of(module) == part)
    program = "import sys, importlib\nfor name in sys.argv[1:]:\n importlib.import_module(name)\n"
    program += " assert 'torch' not in sys.modules, name\n"
    done = subprocess.run([sys.executable, "-c", program, *modules], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("file", [f for f in FILES if f.name == "__init__.py"], ids=lambda f: f.parent.name)
def test_packages_run_no_code(file):
    """A digest of code follows imports to modules and does not look into packages."""
    allowed = ast.Expr | ast.Assign
    if file.parent == ROOT:
        # What the package offers to its users is found late, and nothing of the workflow asks for it.
        allowed = allowed | ast.ImportFrom | ast.If | ast.FunctionDef
    tree = ast.parse(file.read_text(encoding="utf-8"))
    assert all(isinstance(node, allowed) for node in tree.body)
    assert file.parent == ROOT or imports(file) == set()


MOST_ARGUMENTS = 7
# Called in the place of torch.nn.functional.multi_head_attention_forward, with all that it takes.
AS_THEIRS = {"heatproof.attribution._functions._multi_head"}


def arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Return what a function must or can be told by position, and the keywords that it must be told.

    Keywords with a default are options, which a config, a command line or a user names one by one.
    """
    given = [*function.args.posonlyargs, *function.args.args]
    given += [
        one for one, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True) if default is None
    ]
    return [one.arg for one in given if one.arg not in ("self", "cls")]


def test_what_takes_many_arguments_takes_a_type():
    found = {
        f"{module_name(file)}.{node.name}"
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and len(arguments(node)) > MOST_ARGUMENTS
    }
    assert found == AS_THEIRS


def test_the_graph_knows_no_stage():
    """Stages enter themselves, so that a new one is said in one place."""
    known = {name for module, names in MODULES.items() if part_of(module) == "plan" for name in names}
    assert not [name for name in known if name.startswith("heatproof.stages")]


def test_no_module_of_ours_is_imported_by_a_string():
    """A digest of code follows import statements; names that a config or a spec gives, and public names, are others."""
    found = {
        module_name(file)
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and (getattr(node.func, "attr", None) or getattr(node.func, "id", None))
        in ("import_module", "__import__", "resolve_name")
        and any(
            isinstance(one, ast.Constant) and str(one.value).startswith("heatproof")
            for given in node.args
            for one in ast.walk(given)
        )
    }
    assert found == {"heatproof"}
