"""Which packages may import which, read from the sources."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

import heatproof

ROOT = Path(heatproof.__file__).parent
# Each package may import the packages named here, and itself. A package stands below all that it imports.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    # ---- the library: tensors in, tensors out; independent of results folders and the workflow
    # Networks, batches, methods, perturbations, options, random numbers. Knows no file.
    "core": {"errors"},
    # Zarr stores and records; files from others are read here, and files are written, safely. Knows no workflow.
    "store": {"core", "errors"},
    "explainers": {"core", "errors"},
    # Arrays in, scores out; responses are what metrics read of a network.
    "metrics": {"core", "errors", "explainers"},
    "stats": {"core", "errors", "metrics"},
    "models": {"core", "errors", "store"},
    "datasets": {"core", "errors", "store"},
    "training": {"core", "datasets", "errors", "models", "store"},
    "claims": {"core", "metrics", "stats"},
    # Tables, figures and pages from data frames and plain values.
    "report": {"core", "datasets", "errors", "explainers", "metrics", "stats", "store"},
    # ---- what people call with a model in memory, or on the results of a run
    "api": {"core", "datasets", "errors", "explainers", "metrics", "report", "stats", "store", "training"},
    # Maps have the colours of the report.
    "plot": {"core", "errors", "report"},
    "quality": {"api", "errors", "metrics", "stats"},
    # Rules that explainers and metrics keep, heatproof's own or a user's.
    "testing": {"api", "core", "errors", "explainers", "metrics"},
    # ---- the workflow: a config becomes a plan, a plan jobs, jobs fill stores, stores become a report
    "workflow.config": {"core", "errors", "store"},
    # Reads the registries of the library without importing its code.
    "workflow.plan": {
        "core",
        "datasets",
        "errors",
        "explainers",
        "metrics",
        "models",
        "store",
        "workflow.config",
    },
    # One file for each stage: what its jobs are told, and what they do.
    "workflow.stages": {
        "claims",
        "core",
        "datasets",
        "errors",
        "explainers",
        "metrics",
        "models",
        "report",
        "stats",
        "store",
        "training",
        "workflow.plan",
    },
    "workflow": {
        "core",
        "datasets",
        "errors",
        "explainers",
        "metrics",
        "models",
        "store",
        "workflow.config",
        "workflow.plan",
        "workflow.stages",
    },
    "workflow.estimate": {
        "core",
        "datasets",
        "errors",
        "models",
        "store",
        "training",
        "workflow.config",
        "workflow.plan",
        "workflow.stages",
    },
    "workflow.commands": {
        "core",
        "datasets",
        "errors",
        "explainers",
        "metrics",
        "models",
        "report",
        "store",
        "workflow",
        "workflow.config",
        "workflow.estimate",
        "workflow.plan",
    },
    "__main__": {"core", "workflow.commands"},
}
# What CONTRIBUTING.md and the notebooks imported by an earlier name, for one release.
FORMER = {"attribution", "base", "data", "models.batch", "responses"}


def package_of(module: str) -> str:
    parts = module.split(".")
    below = ".".join(parts[1:3])
    return below if below in ALLOWED else parts[1]


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(("heatproof", *parts)).removesuffix(".__init__")


def imports(file: Path) -> set[str]:
    """Return every module that a file imports, wherever in it, type-checking imports left out."""
    names = set()
    pending = [ast.parse(file.read_text(encoding="utf-8"))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file}: imports are absolute"
            module = node.module or ""
            names.update(f"heatproof.{alias.name}" for alias in node.names) if module == "heatproof" else names.add(
                module
            )
        pending.extend(ast.iter_child_nodes(node))
    return names


def is_former(file: Path) -> bool:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return parts[0] in FORMER or ".".join(parts) in FORMER


FILES = [file for file in sorted(ROOT.rglob("*.py")) if not is_former(file)]
FORMER_FILES = [file for file in sorted(ROOT.rglob("*.py")) if is_former(file)]
MODULES = {module_name(file): imports(file) for file in FILES if file.name != "__init__.py"}
KNOWN = {name for module in MODULES for name in (module, module.rpartition(".")[0])}


def test_every_package_has_a_rule():
    assert {package_of(module) for module in MODULES} == set(ALLOWED)


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_a_package_imports_only_what_it_may(package):
    wrong = [
        f"{module} imports {name}"
        for module, names in MODULES.items()
        if package_of(module) == package
        for name in sorted(names)
        if name.startswith("heatproof.") and package_of(name) not in ALLOWED[package] | {package}
    ]
    assert wrong == []


def test_a_package_stands_below_all_that_it_imports():
    above: set[str] = set()
    for package, imported in ALLOWED.items():
        assert imported <= above, f"{package} may import what stands below it"
        above.add(package)


def test_the_page_on_the_architecture_has_this_table():
    page = (ROOT.parents[1] / "docs/architecture.md").read_text(encoding="utf-8")
    cells = [
        line.split("|")[1:4] for line in page.partition("\n## Packages\n")[2].splitlines() if line.startswith("| `")
    ]
    listed = {name.strip(" `"): {name.strip() for name in imported.split(",")} - {"–"} for name, _, imported in cells}
    low = {"core", "errors", "store"}
    expected = {package: allowed - low for package, allowed in ALLOWED.items() if not package.startswith("_")}
    assert list(listed) == list(expected)
    assert listed == expected


@pytest.mark.parametrize("file", FORMER_FILES, ids=module_name)
def test_a_former_name_holds_nothing_but_its_import(file):
    body = ast.parse(file.read_text(encoding="utf-8")).body
    assert isinstance(body[0], ast.Expr), "a docstring says where it is now"
    assert all(isinstance(node, ast.ImportFrom) for node in body[1:])


def test_no_module_imports_a_former_name():
    former = {module_name(file) for file in FORMER_FILES}
    assert {module: names & former for module, names in MODULES.items() if names & former} == {}


def test_every_allowed_import_is_used():
    """ALLOWED has no import that no module needs."""
    used: dict[str, set[str]] = {package: set() for package in ALLOWED}
    for module, names in MODULES.items():
        used[package_of(module)] |= {package_of(name) for name in names & KNOWN}
    assert {package: ALLOWED[package] - used[package] for package in ALLOWED if ALLOWED[package] - used[package]} == {}


def test_imports_have_no_cycle_including_those_for_types():
    graph = {}
    for file in FILES:
        code = file.read_text(encoding="utf-8").replace("if TYPE_CHECKING:", "if True:")
        imported = {
            name
            for node in ast.walk(ast.parse(code))
            if isinstance(node, ast.ImportFrom) and node.col_offset <= 4
            for name in (node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names))
        }
        graph[module_name(file)] = {name for name in imported if name.startswith("heatproof.")} - {module_name(file)}
    dependencies = {module: names & graph.keys() for module, names in graph.items()}
    graphlib.TopologicalSorter(dependencies).prepare()


def test_only_the_rules_import_snakemake():
    importing = [module for module, names in MODULES.items() if any(n.partition(".")[0] == "snakemake" for n in names)]
    assert importing == []


@pytest.mark.parametrize("part", ["stats", "report"])
def test_packages_that_only_read_arrays_import_no_network_library(part):
    heavy = {"torch", "torchvision", "timm", "captum", "torchcam", "safetensors"}
    wrong = {
        module: libraries
        for module, names in MODULES.items()
        if package_of(module) == part and (libraries := heavy & {name.partition(".")[0] for name in names})
    }
    assert wrong == {}


def test_only_the_store_opens_zarr():
    assert [module for module, names in MODULES.items() if any(n.partition(".")[0] == "zarr" for n in names)] == [
        "heatproof.store.zarr_store"
    ]


@pytest.mark.parametrize(
    ("part", "entries"),
    [
        ("metrics", ()),
        ("stats", ()),
        ("report", ()),
        (
            "planning",
            (
                "heatproof.workflow.plan.validate",
                "heatproof.workflow.reconcile",
                "heatproof.workflow.check",
                "heatproof.workflow.job",
                "heatproof.workflow.commands.cli",
                "heatproof.workflow.start",
            ),
        ),
    ],
)
def test_packages_and_planning_load_without_torch(part, entries):
    """Including indirect imports: jobs that score, and all processes of Snakemake, start fast."""
    modules = entries or sorted(module for module in MODULES if package_of(module) == part)
    program = "import sys, importlib\nfor name in sys.argv[1:]:\n importlib.import_module(name)\n"
    program += " assert 'torch' not in sys.modules, name\n"
    done = subprocess.run([sys.executable, "-c", program, *modules], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("file", [f for f in FILES if f.name == "__init__.py"], ids=lambda f: f.parent.name)
def test_packages_run_no_code(file):
    """A digest of code follows imports to modules and does not look into packages."""
    allowed = ast.Expr | ast.Assign
    if file.parent == ROOT or file.parent.name == "testing":
        # Public names are imported lazily, and no module of the workflow uses them.
        allowed = allowed | ast.ImportFrom | ast.If | ast.FunctionDef
    tree = ast.parse(file.read_text(encoding="utf-8"))
    assert all(isinstance(node, allowed) for node in tree.body)
    assert file.parent in (ROOT, ROOT / "testing") or imports(file) == set()


MOST_ARGUMENTS = 7
# Replaces torch.nn.functional.multi_head_attention_forward, and so has the same parameters.
AS_THEIRS = {"heatproof.explainers._function_rules._multi_head", "heatproof.explainers._function_rules._attention"}


def arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Return the parameters of a function that can be passed by position, and its required keywords.

    Keywords with a default are options, which a config, a command line or a user names one by one.
    """
    parameters = [*function.args.posonlyargs, *function.args.args]
    parameters += [
        argument
        for argument, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
        if default is None
    ]
    return [argument.arg for argument in parameters if argument.arg not in ("self", "cls")]


def test_no_function_has_many_arguments():
    functions = {
        f"{module_name(file)}.{node.name}"
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and len(arguments(node)) > MOST_ARGUMENTS
    }
    assert functions == AS_THEIRS


def test_the_plan_imports_no_stage():
    """Stages register themselves, so that a new one is declared in one place."""
    imported = {name for module, names in MODULES.items() if package_of(module) == "plan" for name in names}
    assert not [name for name in imported if name.startswith("heatproof.workflow.stages")]


def test_no_module_of_ours_is_imported_by_a_string():
    """A digest of code follows import statements only; names in configs and specs, and public names, are excepted."""
    callers = {
        module_name(file)
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and (getattr(node.func, "attr", None) or getattr(node.func, "id", None))
        in ("import_module", "__import__", "resolve_name")
        and any(
            isinstance(part, ast.Constant) and str(part.value).startswith("heatproof")
            for argument in node.args
            for part in ast.walk(argument)
        )
    }
    assert callers == {"heatproof"}
