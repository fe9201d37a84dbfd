"""Only `heatproof.store.reading` opens files from untrusted sources; other modules that open files need a reason."""

import ast
from pathlib import Path

import heatproof

ROOT = Path(heatproof.__file__).parent
# Functions and methods that open a file by its path, or read it into objects.
OPENERS = {
    *("open", "fdopen", "FileIO", "mmap", "memmap", "urlopen", "urlretrieve"),
    *("read_text", "read_bytes", "read_csv", "read_parquet", "read_json", "read_pickle", "read_excel", "read_table"),
    *("loadtxt", "genfromtxt", "fromfile", "ZipFile", "is_zipfile", "TarFile", "unpack_archive"),
    *("open_array", "open_group", "open_zarr", "open_consolidated", "ParquetFile", "safe_open", "load_file"),
    *("safe_load", "full_load", "unsafe_load", "copyfile", "copytree"),
}
# Names among these that are functions of heatproof and use `files.reading`, and `load` of modules that read files.
OUR_READERS = {"read_below", "read_bytes", "read_json", "read_text", "read_table", "read_parquet"}
LOADERS = {
    "torch.load",
    "np.load",
    "numpy.load",
    "json.load",
    "yaml.load",
    "pickle.load",
    "pickle.loads",
    "shutil.copy",
}

GUARDED_READER = "it is the door"
PACKAGE = "files that come with heatproof or an installed library"
WRITES = "what it writes itself, under a name that nobody knows"
ALLOWED = {
    "store.reading": GUARDED_READER,
    "store.writing": WRITES,
    "store.array_cache": WRITES,
    "store.zarr_store": "Zarr, after the digests of all that it opens; what it writes itself",
    "store.table_formats": "bytes that went through the door",
    "core.provenance": PACKAGE,
    "core.registry": PACKAGE,
    "report.results": PACKAGE,
    "report.page.page": PACKAGE,
    "workflow.commands.list_names": PACKAGE,
    "claims.published_numbers": PACKAGE,
    "datasets.digits": PACKAGE,
    "datasets.open_image": "Pillow, over a file that the door opened",
    "datasets.cifar": "a regular file of a known size, looked at before",
    "models.saved_by_torch": "weights, over a file that the door opened",
    "models.weights_file": "weights, by libraries that load no code, after a look at sizes",
    "models.checkpoint_files": "a download, into a file of its own",
    "training.journal": WRITES,
    "training.several_devices": "reports of its own processes, in a folder of its own",
    "core.signals": "the null device",
    "workflow.stages._shards": "batches of the journal, over a file that the door opened; what it writes itself",
    "store.source_files": WRITES,
}


def own_functions(tree: ast.Module) -> set[str]:
    """Return names that a module imports from heatproof, or defines."""
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("heatproof"):
            functions |= {alias.asname or alias.name for alias in node.names}
    return functions


def openings(tree: ast.Module) -> list[str]:
    """Return the calls of a module that open a file."""
    ours, calls = own_functions(tree), []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        name = called.rpartition(".")[2]
        is_own = (called in ours) or called.startswith(("self.", "cls."))
        if (name in OPENERS and not is_own) or called in LOADERS:
            calls.append(f"line {node.lineno}: {called}")
    return calls


def modules() -> dict[str, ast.Module]:
    files = sorted(ROOT.rglob("*.py"))
    return {
        ".".join(file.relative_to(ROOT).with_suffix("").parts): ast.parse(file.read_text(encoding="utf-8"))
        for file in files
    }


def test_only_files_reading_and_modules_with_reasons_open_files():
    calls_by_module = {name: openings(tree) for name, tree in modules().items()}
    assert {name: calls for name, calls in calls_by_module.items() if calls and name not in ALLOWED} == {}
    assert sorted(name for name in ALLOWED if not calls_by_module[name]) == []


def test_the_search_finds_calls_that_open_files():
    code = "from heatproof.store.reading import read_bytes\nopen(p)\np.read_text()\nread_bytes(p)\npd.read_csv(p)"
    assert [call.rpartition(" ")[2] for call in openings(ast.parse(code))] == ["open", "p.read_text", "pd.read_csv"]
