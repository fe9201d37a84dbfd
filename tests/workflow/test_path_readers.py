"""Every command and function that takes a path refuses the same invalid files; docs/security.md has a table.

    python tests/workflow/test_path_readers.py FOLDER

makes a run in FOLDER, and writes the table into the page.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "security")]

from path_readers import output_of, run_in_a_process  # noqa: E402
from snakemake_project import MICRO, Project, clone  # noqa: E402

import heatproof  # noqa: E402
from heatproof.workflow.commands import cli  # noqa: E402
from heatproof.workflow.commands import run as running  # noqa: E402

pytestmark = pytest.mark.workflow
PAGE = Path(__file__).parents[2] / "docs" / "security.md"
BEGIN, END = "<!-- path readers: written by tests/workflow/test_path_readers.py -->\n", "<!-- path readers end -->"

# ---- replacements of a file ------------------------------------------------------------------------------------------


def missing(path: Path, content: bytes) -> None:
    pass


def pipe(path: Path, content: bytes) -> None:
    os.mkfifo(path)


def folder(path: Path, content: bytes) -> None:
    path.mkdir()


def link(path: Path, content: bytes) -> None:
    aside = path.with_name(f"{path.name}.elsewhere")
    aside.write_bytes(content)
    path.symlink_to(aside)


def large(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.truncate(2**33)


def cut(path: Path, content: bytes) -> None:
    path.write_bytes(content[: len(content) // 2])


def other_type(path: Path, content: bytes) -> None:
    path.write_text('{"files": 5, "key": [], "format": 4}')


CHECKS = {
    "missing": missing,
    "a pipe": pipe,
    "a folder": folder,
    "a link": link,
    "of 8 GiB": large,
    "truncated": cut,
    "of another type": other_type,
}
CHOSEN, NO_DIGEST, NOT_MADE = "link followed", "not detected", "treated as missing"
RECOMPUTED = "recomputed"
IN_JOB, IN_CHECK = "read by a job, which refuses it", "left to `heatproof check`"
BY_SNAKEMAKE = "refused by Snakemake's process"


@dataclass(frozen=True)
class PathReader:
    """A command or function, the file that is replaced, and the reason if a check is not applicable."""

    file: str
    open: Callable[[], object]
    exempt: Mapping[str, str] = field(default_factory=dict)


def command(*arguments: str) -> Callable[[], object]:
    """Return a command of the command line, without Snakemake."""

    def run() -> object:
        running._start = lambda *_, **__: None
        Path("a.yaml").unlink(missing_ok=True)
        values = vars(cli._parser().parse_args(arguments))
        command = cli.resolve_name(values.pop("run"))
        return command(*values.pop("paths", ()), **values)

    return run


def open_part(part: str, name: str) -> Callable[[], object]:
    def read() -> object:
        stored = getattr(heatproof.open("results"), part)[name]
        return stored if part in ("tables", "scores") else stored.load()

    return read


def in_memory(function: str) -> Callable[[], object]:
    """Return a call of `heatproof.explain` or `heatproof.choose` with the cache that `prepared` filled."""

    def call() -> object:
        import torch

        # A fork has no threads of its parent.
        torch.set_num_threads(1)
        torch.manual_seed(0)
        network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 3)).eval()
        images = torch.rand(16, 3, 8, 8)
        if function == "explain":
            return heatproof.explain(network, images, [0] * 16, "saliency", cache="cache").load()
        return str(heatproof.choose(network, images, [0] * 16, ["saliency"], cache="cache", progress=False))

    return call


CONFIG = {"a link": CHOSEN, "truncated": NO_DIGEST}
STORE, CASE = "results/maps/digits/vgg/finetuned/saliency", "results/scores/digits/vgg/finetuned/idsds"
SHARD = f"{STORE}.zarr/attribution/c/0/0/0/0"
MAPS = open_part("maps", "digits/vgg/finetuned/saliency")
MANIFEST_MISSING = {"missing": NOT_MADE}
INIT = ("init", "photos", "--model", "cifar_vgg11_bn")
TABLE, TABLES = "results/idsds_table.csv", "results/tables.json"
PATH_READERS: dict[str, PathReader] = {
    **{
        f"{' '.join(words)} CONFIG": PathReader("micro.yaml", command(*words, "micro.yaml"), CONFIG)
        for words in (["check"], ["status"], ["report"], ["prune"], ["estimate"])
    },
    "run -n CONFIG": PathReader(
        "micro.yaml", command("run", "-n", "micro.yaml"), {**CONFIG, "of another type": BY_SNAKEMAKE}
    ),
    "list --config CONFIG": PathReader("micro.yaml", command("list", "methods", "--config", "micro.yaml"), CONFIG),
    "maps show --config CONFIG": PathReader(
        "micro.yaml", command("maps", "show", str(Path(STORE).parent), "--config", "micro.yaml"), CONFIG
    ),
    "init --checkpoint FILE": PathReader(
        "weights.safetensors",
        command(
            "init", "photos", "--model", "cifar_vgg11_bn", "--checkpoint", "weights.safetensors", "--out", "a.yaml"
        ),
        {"a link": CHOSEN, **dict.fromkeys(("of 8 GiB", "truncated", "of another type"), IN_JOB), "missing": IN_CHECK},
    ),
    "rank TABLE": PathReader("table.csv", command("rank", "table.csv"), {"a link": CHOSEN, "truncated": NO_DIGEST}),
    "rank RESULTS, a table": PathReader(TABLE, command("rank", "results")),
    "rank RESULTS, a manifest": PathReader(TABLES, command("rank", "results")),
    "status, a manifest": PathReader(TABLES, command("status", "micro.yaml"), MANIFEST_MISSING),
    "status, the last run": PathReader("results/.last_run.json", command("status")),
    "prune, a manifest": PathReader(TABLES, command("prune", "micro.yaml"), MANIFEST_MISSING),
    "maps ls, metadata": PathReader(f"{STORE}.zarr/zarr.json", command("maps", "ls")),
    "maps show, a shard": PathReader(SHARD, command("maps", "show", f"{STORE}.zarr")),
    "maps show, metadata": PathReader(f"{STORE}.zarr/attribution/zarr.json", command("maps", "show", f"{STORE}.zarr")),
    "open, a table": PathReader(TABLE, open_part("tables", "idsds_table")),
    "open, manifest of a table": PathReader(TABLES, open_part("tables", "idsds_table")),
    "open, scores": PathReader(f"{CASE}.parquet", open_part("scores", "digits/vgg/finetuned/idsds")),
    "open, manifest of scores": PathReader(f"{CASE}.json", open_part("scores", "digits/vgg/finetuned/idsds")),
    "open, a shard": PathReader(SHARD, MAPS),
    "open, manifest of a store": PathReader(f"{STORE}.0.json", MAPS, MANIFEST_MISSING),
    "open, metadata of a store": PathReader(f"{STORE}.zarr/zarr.json", MAPS),
    "open, names of images": PathReader(f"{STORE}.zarr/image_id/c/0", MAPS),
    **{
        f"{function}, a batch of the cache": PathReader(
            "cache/**/*.batch",
            in_memory(function),
            dict.fromkeys(("missing", "of 8 GiB", "truncated", "of another type"), RECOMPUTED),
        )
        for function in ("explain", "choose")
    },
    **{
        f"{function}, the file that marks a cache": PathReader(
            "cache/heatproof-cache.json",
            in_memory(function),
            dict.fromkeys(("of 8 GiB", "truncated", "of another type"), RECOMPUTED),
        )
        for function in ("explain", "choose")
    },
}


def cell(project: Project, name: str, check: str) -> str:
    """Return the result of opening a replaced file: ``refused``, ``reported``, or why the check is not applicable."""
    reader = PATH_READERS[name]
    if check in reader.exempt:
        return reader.exempt[check]
    path = min(project.folder.glob(reader.file))
    content = path.read_bytes()
    path.unlink()
    try:
        CHECKS[check](path, content)
        result, trace, seconds, memory = run_in_a_process(lambda: {"answer": output_of(reader.open)}, project.folder)
    finally:
        if path.is_symlink() or path.exists():
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        path.with_name(f"{path.name}.elsewhere").unlink(missing_ok=True)
        path.write_bytes(content)
    assert not trace, f"{name}, {check}: {trace}"
    assert seconds < 60, f"{name}, {check}: {seconds:.0f} s"
    assert memory < 2**31, f"{name}, {check}: {memory / 2**20:.0f} MiB"
    message = result["answer"]
    # The message must name the file, or the config, store, table or folder that it belongs to.
    names = [path.name, path.name.partition(".")[0], reader.file, "the config", "results", "cache"]
    if not any(name in message for name in names):
        raise AssertionError(f"{name}, {check}: {message[-500:]}")
    if message.startswith("sentence: "):
        return "refused"
    assert "damaged" in message or "link" in message, f"{name}, {check}: {message[-500:]}"
    return "reported"


def _output_by_name(work: Callable[[], object]) -> dict[str, str]:
    return {"answer": output_of(work)}


def prepared(project: Project) -> Project:
    """Add a table, weights and photographs to a finished project."""
    project.write_config()
    (project.folder / "table.csv").write_text("method,score\na,1\nb,2\nc,3\n")
    weights = next(project.folder.glob("results/weights/digits/vgg/*.safetensors"))
    (project.folder / "weights.safetensors").write_bytes(weights.read_bytes())
    for function in ("explain", "choose"):
        run_in_a_process(partial(_output_by_name, in_memory(function)), project.folder)
    from PIL import Image

    for number in range(12):
        image_file = project.folder / f"photos/{'ab'[number % 2]}/{number}.png"
        image_file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), (20 * number, 0, 0)).save(image_file)
    return project


@pytest.fixture
def received(finished: Project, tmp_path: Path) -> Project:
    return prepared(finished.copy(tmp_path / "project"))


def rows_of_the_page() -> dict[str, list[str]]:
    text = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    lines = [line.strip("| ").split(" | ") for line in text.strip().splitlines()[2:]]
    return {line[0].strip("`"): line[1:] for line in lines}


def test_every_command_and_function_that_takes_a_path_has_a_row():
    choices = next(action.choices for action in cli._parser()._actions if action.choices)
    covered = {name.split()[0].rstrip(",") for name in PATH_READERS}
    assert set(choices) <= covered
    takes = {
        name
        for name in heatproof.__all__
        if inspect.isfunction(function := getattr(heatproof, name))
        and any("Path" in str(parameter.annotation) for parameter in inspect.signature(function).parameters.values())
    }
    assert takes <= covered
    assert list(rows_of_the_page()) == list(PATH_READERS)


@pytest.mark.slow
def test_a_subset_of_cells_agrees_with_the_page(received):
    """Every third command or function is tested with one check, so that every check is used."""
    page = rows_of_the_page()
    for number, name in list(enumerate(PATH_READERS))[::3]:
        check = number % len(CHECKS)
        assert cell(received, name, list(CHECKS)[check]) == page[name][check], name


@pytest.mark.long
@pytest.mark.parametrize("name", PATH_READERS)
def test_every_cell_equals_that_of_the_page(received, name):
    assert [cell(received, name, check) for check in CHECKS] == rows_of_the_page()[name]


def write(project: Project) -> None:
    """Write the table into the page."""
    lines = [f"| command or function | {' | '.join(CHECKS)} |", f"| --- |{' --- |' * len(CHECKS)}"]
    for name in PATH_READERS:
        cells = []
        for check in CHECKS:
            try:
                cells.append(cell(project, name, check))
            except AssertionError as error:
                # Report all errors at once.
                cells.append(f"**{error}**")
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    table = "\n".join(lines)
    PAGE.write_text(f"{before}{BEGIN}{table}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    finished_project = Project(Path(sys.argv[1]).resolve(), MICRO)
    if not (finished_project.folder / "results").exists():
        clone(finished_project.folder)
        finished_project.run()
    write(prepared(finished_project))
