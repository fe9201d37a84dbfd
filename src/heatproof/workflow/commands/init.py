"""`heatproof init`: write a config for a folder of photographs and a network, to run as it is or to edit."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from heatproof.core.grids import patch_count
from heatproof.core.input_facts import InputFacts
from heatproof.core.options import as_size_option, height_and_width
from heatproof.core.registry import is_reference, look_up
from heatproof.core.specs import DatasetSpec
from heatproof.core.tasks import task_provides
from heatproof.datasets.image_files import image_files_below
from heatproof.datasets.label_search import FoundTable, find_labels
from heatproof.datasets.open_image import image_file_size
from heatproof.datasets.registry import DATASETS
from heatproof.datasets.rows import as_rows
from heatproof.errors import HeatproofError
from heatproof.models.from_transformers import CONFIG, PROCESSOR, has_file, read_json_file
from heatproof.models.packaged import is_file
from heatproof.models.preprocessing import preprocessing
from heatproof.models.published import look_up_architecture
from heatproof.models.registry import ModelSpec
from heatproof.store.publishing import escaped
from heatproof.store.reading import require_utf8
from heatproof.store.strict_yaml import dump
from heatproof.store.writing import write_text
from heatproof.workflow.config.files import default_config, merge
from heatproof.workflow.estimate.account import format_bytes, jobs_to_tables, map_bytes
from heatproof.workflow.plan import resolve
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.validate import make_plan

# `LIBRARY:NAME` is short for the architecture of a library with the option `name`.
LIBRARIES = {"timm": "timm_model", "torchvision": "torchvision_model", "transformers": "transformers_model"}
DROPS, CURVES = 500, 64
# Number of image files whose sizes are read.
LOOKED_AT = 200
# Largest aspect ratio of images that are not cropped to squares.
MOST_OBLONG = 4
# Number of classes that a sentence names.
NAMED = 4
# Patch grids in the order in which they are chosen; the paper uses 4.
GRIDS = (4, 5, 3, 7, 6, 8, 2)
# Cheap explainers of several families, and the reference maps.
EXPLAINERS: list[Any] = [
    "saliency",
    "input_x_gradient",
    {"integrated_gradients": {"steps": 20}},
    "grad_cam",
    "layer_cam",
    "random",
    "edges",
]
HEAD = """\
# Written by `heatproof init` for {photos}: {classes}; {splits} images.
# Image files: shorter sides of at least {smallest} pixels, median {middle}, of {count} inspected files.
# {model}: images of {size} pixels, normalised with mean {mean} and deviation {deviation}.
# Grids that divide them: {grids}
# Cost: {jobs} jobs to the tables; {passes:,} passes for patch drops; {maps} of maps.
# `heatproof estimate` times a few images here and prints the hours; config/README.md explains every key.
"""
OWN_WEIGHTS = "Check mean and std of the model: the weights must have been trained with them."


def init(
    photos: str,
    model: str,
    out: str = "mine.yaml",
    checkpoint: str | None = None,
    *,
    labels: str | None = None,
    task: str | None = None,
    columns: Sequence[str] = (),
) -> str:
    """Write a config for photographs and a network, and return the next commands as text.

    Parameters
    ----------
    photos
        Folder for the dataset `image_folder`.
    model
        ``timm:NAME``, ``torchvision:NAME``, ``transformers:FOLDER``, ``package.module:function`` for a function that
        builds a network, or an architecture of heatproof.
    out
        Path of the config.
    checkpoint
        File or address of weights. If their head has as many outputs as there are classes, it is used; otherwise a new
        head is trained. Without a checkpoint, the network is trained from scratch.
    labels
        A table of labels, or ``folders`` for one folder for each class; by default, they are searched in the folder and
        next to it.
    task
        ``binary``, ``multiclass``, ``multilabel`` or ``regression``; by default, it is inferred from the labels.
    columns
        Columns of the table, such as ``label=diagnosis``; several columns for the label have one class each.

    Raises
    ------
    HeatproofError
        If the file exists, the layout of the folder is not supported, or the network is unknown.
    """
    if os.path.lexists(out):
        raise HeatproofError(f"{out} is there: give another name with --out, or remove it.")
    require_utf8(photos, "folder")
    require_utf8(checkpoint or "", "file")
    settings, published, name = read_model(model)
    if checkpoint and is_file(checkpoint) and not Path(checkpoint).expanduser().is_file():
        raise HeatproofError(f"There is no file {checkpoint}: --checkpoint is a file of weights, or its address.")
    facts, is_known = facts_of(settings)
    top = Path(photos).expanduser()
    table = find_labels(top, labels, task, _columns_of(columns)) if top.is_dir() else None
    of_labels: dict[str, Any] = table.options if table else {"task": task} if task else {}
    dataset = look_up(DATASETS, "image_folder", "dataset").load(seed=0, root=photos, **of_labels)
    sizes = sizes_below(top)
    sides = [min(size) for size in sizes]
    middle = round(median(sides))
    published_size = published.pop("size", None)
    height, width = facts.size or (height_and_width(published_size) if published_size else _fitting(sizes))
    grids = _grids(height, width)
    counts = {name: len(dataset.splits[name]) for name in ("train", "validation", "evaluation")}
    spec = DatasetSpec("image_folder", "", {}, 0, task=getattr(dataset, "task", "multiclass"))
    # Rows are scored, not images: an image with several labels has one row for each.
    scored = len(as_rows(dataset, spec).splits["evaluation"])
    _require_enough(photos, dataset.num_classes, counts, scored)
    trained: dict[str, Any] = {"checkpoint": checkpoint} if checkpoint else {}
    head = _Head("", False, {})
    if checkpoint:
        order = "labels of the table" if table else "sorted folder names"
        head = _read_head(settings, checkpoint, order, dataset)
        trained |= {} if head.is_kept else {"transfer": True}
    if checkpoint or not is_known:
        # Given explicitly, because heatproof's architectures do not know the preprocessing of other people's weights.
        trained |= {"mean": list(facts.mean), "std": list(facts.std)}
    config: dict[str, Any] = {
        "datasets": [
            {
                "photographs": {
                    "dataset": "image_folder",
                    "root": photos,
                    **of_labels,
                    "size": as_size_option((height, width)),
                    **published,
                    **head.labels,
                }
            }
        ],
        "models": [{name: {key: value for key, value in {**settings, **trained}.items() if value}}],
        "weights": ["pretrained", "finetuned"],
        "evaluation": {
            "images": {"drops": min(DROPS, scored), "curves": min(CURVES, scored)},
            "accuracy_images": 0,
        },
        "drops": {"grids": grids[:1], "baselines": ["mean"]},
        "explainers": EXPLAINERS,
        "metrics": _metrics_of(spec.task),
        "report": {"all_metrics": False},
        "batch_size": 64 if max(height, width) <= 64 else 16,
    }
    config["finetuning"] = {"grid": grids[0], "epochs": 10, "batch_size": 32}
    if not head.is_kept:
        config["pretraining"] = {"epochs": 10 if checkpoint else 30, "batch_size": 32, "lr": 0.01}
    plan = make_plan(merge(default_config(), config))
    variants = sum(patch_count(grid) + 1 for grid in plan.config["drops"]["grids"])
    comments = HEAD.format(
        # Escaped, because text after a line break would not be part of the comment.
        photos=escaped(photos, keep=""),
        classes=_describe_task(getattr(dataset, "task", "multiclass"), dataset.num_classes),
        splits=", ".join(f"{count} {split}" for split, count in counts.items()),
        smallest=min(sides),
        middle=middle,
        count=len(sides),
        model=escaped(model, keep=""),
        size=f"{height}×{width}",
        mean=_listed(facts.mean),
        deviation=_listed(facts.std),
        grids=", ".join(map(str, sorted(grids))),
        jobs=len(jobs_to_tables(Graph(plan), False)),
        passes=plan.drop_images * variants * len(list(plan.networks())),
        maps=format_bytes(map_bytes(plan)),
    )
    scratch = f"It trains {name} from scratch: give published weights with --checkpoint{_weights_of(settings)}."
    weights = OWN_WEIGHTS if checkpoint else scratch
    comments += f"# {OWN_WEIGHTS}\n" if checkpoint or not is_known else ""
    comments += f"# {head.sentence}\n" if head.sentence else ""
    comments += "".join(f"# {line}\n" for line in _describe_table(table))
    write_text(out, comments + dump(config))
    quoted = shlex.quote(out)
    published_size = [
        f"{out} is written. {weights}",
        *([head.sentence] if head.sentence else []),
        *_describe_table(table),
        "Next:",
    ]
    commands = (f"check {quoted}", f"estimate {quoted}", f"run {quoted} --cores 2")
    return "\n".join([*published_size, *(f"  heatproof {command}" for command in commands)])


def _metrics_of(task: str) -> list[Any]:
    """Return further metrics; they read the logit for tasks without probabilities."""
    names = ("deletion_morf", "deletion_lerf")
    return [name if task_provides(task, "probability") else {name: {"output": "logit"}} for name in names]


def _columns_of(arguments: Sequence[str]) -> dict[str, Any]:
    """Return options of the dataset from arguments ``what=name``."""
    columns: dict[str, list[str]] = {}
    for argument in arguments:
        what, _, name = argument.partition("=")
        if not name:
            raise HeatproofError(f"--column {argument}: write what it is and its name, such as label=diagnosis.")
        columns.setdefault(what, []).append(name)
    return {what: names if len(names) > 1 else names[0] for what, names in columns.items()}


def _describe_task(task: str, count: int) -> str:
    kinds = {"regression": "numbers", "multilabel": f"{count} labels, several per image"}
    return kinds.get(task, f"{count} classes")


def _describe_table(table: FoundTable | None) -> list[str]:
    """Return lines for comments on a table of labels."""
    if table is None:
        return []
    lines = [*(f"{note}." for note in table.table.notes), *(f"Assumed: {sentence}." for sentence in table.assumptions)]
    return [escaped(" ".join(line.split()), keep="") for line in lines]


class _Head(NamedTuple):
    """The use of the head of a checkpoint.

    Attributes
    ----------
    sentence
        A sentence for the user; "" if nothing is known about the head.
    is_kept
        Whether the head is used; otherwise a new one is trained.
    labels
        Options of the dataset that map labels to outputs of the head.
    """

    sentence: str
    is_kept: bool
    labels: dict[str, Any]


def _read_head(settings: dict[str, Any], checkpoint: str, named: str, dataset: Any) -> _Head:
    """Inspect the head of a checkpoint, and set the options of the network with which its other weights fit."""
    from heatproof.models.heads import inspect_head

    classes = list(dataset.class_names)
    # A binary task has one output for two classes.
    outputs = 1 if dataset.task == "binary" else len(classes)
    local = Path(checkpoint).expanduser()
    if not is_file(checkpoint):
        return _Head("", False, {})
    entry = None if is_reference(settings["architecture"]) else look_up_architecture(settings["architecture"])
    module = entry.build.__module__ if entry else settings["architecture"].partition(":")[0]
    spec = ModelSpec(settings["architecture"], module, settings["options"])
    labels = _labels_of(settings, classes)
    try:
        head = inspect_head(spec, local, labels.get("num_outputs", outputs))
    except Exception:  # a builder or a library can raise any exception, which `heatproof check` reports
        return _Head("", False, {})
    settings["options"] = head.options or settings["options"]
    names = [escaped(name, keep="") for name in classes[:NAMED]]
    order = ", ".join(names) + (", …" if len(classes) > NAMED else "")
    file = escaped(Path(checkpoint).name, keep="")
    if head.fits and labels:
        return _Head(f"{file} keeps its head, and its config names the class of each output.", True, labels)
    if head.fits:
        return _Head(
            f"{file} keeps its head: it has an output for each of the {len(classes)} classes, taken in the order of "
            f"the {named} ({order}); expected_accuracy in the model's settings, such as 0.9, checks that.",
            True,
            {},
        )
    if head.outputs is None:
        return _Head("", False, {})
    replaced = (
        f"{file} has {head.outputs} output{'s' * (head.outputs != 1)}, and there are {len(classes)} classes: a new "
        "head is trained (transfer: true)"
    )
    mapping = f"outputs: {{{escaped(classes[0], keep='')}: number, …}} and num_outputs: {head.outputs}"
    among = f"; where the classes are among the {head.outputs}, give the dataset {mapping} instead"
    return _Head(f"{replaced}{among if head.outputs > len(classes) else ''}.", False, {})


def _weights_of(settings: Mapping[str, Any]) -> str:
    """Return the path of the weights of a transformers model, as the end of a sentence; "" if there are none."""
    folder = settings["options"].get("name", "") if settings["architecture"] == LIBRARIES["transformers"] else ""
    weights = Path(folder) / "model.safetensors"
    return f", as {escaped(str(weights), keep='')}" if folder and has_file(folder, weights.name) else ""


def _labels_of(settings: Mapping[str, Any], classes: Sequence[str]) -> dict[str, Any]:
    """Return dataset options that map labels to outputs, if the config of a transformers model names all classes."""
    if settings["architecture"] != LIBRARIES["transformers"]:
        return {}
    id_to_label = read_json_file(settings["options"]["name"], CONFIG).get("id2label")
    labels: dict[str, Any] = id_to_label if isinstance(id_to_label, dict) else {}
    names = {str(name): number for number, name in labels.items()}
    try:
        outputs = {name: int(names[name]) for name in classes}
    except (KeyError, ValueError):
        return {}
    return {"outputs": outputs, "num_outputs": len(labels)}


def _require_enough(photos: str, classes: int, counts: Mapping[str, int], scored: int) -> None:
    """Raise an error if fewer than two rows would be scored.

    Raises
    ------
    HeatproofError
        With the numbers of images.
    """
    if counts["evaluation"] < 2:
        raise HeatproofError(
            f"{photos} has {sum(counts.values())} images of {classes} classes, which leaves {counts['evaluation']} "
            "to be scored, and at least two are needed: add images, about ten for each class."
        )
    if scored < 2:
        raise HeatproofError(
            f"The {counts['evaluation']} images of {photos} that are to be scored have {scored} label(s) that are "
            "present, and at least two are needed: add images with labels."
        )


def read_model(model: str) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Return the settings of a model, the preprocessing of its published weights as dataset options, and its name.

    No weights are loaded.
    """
    library, _, name = model.partition(":")
    if not name:
        return {"architecture": model, "options": {}}, {}, model
    if library in LIBRARIES:
        settings: dict[str, Any] = {"architecture": LIBRARIES[library], "options": {"name": name}}
        # Raises an error if the name is wrong.
        facts_of(settings)
        return settings, preprocessing(**settings), escaped(Path(name).name.partition(".")[0], keep="")
    try:
        # Imports the function, as for any config.
        resolve.read_model(model, {"architecture": model, "datasets": []}, default_config())
    except HeatproofError as error:
        raise HeatproofError(
            f"--model {model}: write timm:NAME, torchvision:NAME, transformers:FOLDER, package.module:function or an "
            f"architecture of heatproof. {error}"
        ) from None
    return {"architecture": model, "options": {}}, {}, library.rpartition(".")[2]


def facts_of(settings: Mapping[str, Any]) -> tuple[InputFacts, bool]:
    """Return the facts about the input of a network, and whether its mean and deviation are known."""
    architecture, options = settings["architecture"], settings["options"]
    if is_reference(architecture):
        return InputFacts(), False
    is_known = architecture != LIBRARIES["transformers"] or has_file(options["name"], PROCESSOR)
    return look_up_architecture(architecture).facts_for(options, () if is_known else ("mean", "std")), is_known


def sizes_below(folder: Path) -> list[tuple[int, int]]:
    """Return height and width, in pixels, of a sample of the image files below a folder, from their headers."""
    files = image_files_below(folder)
    sizes = []
    # Evenly spaced, so that the sample has all classes.
    for image in files[:: max(len(files) // LOOKED_AT, 1)]:
        # The dataset reports image files that cannot be opened.
        with suppress(HeatproofError):
            sizes.append(image_file_size(folder / image.path))
    if not sizes:
        raise HeatproofError(f"No image below {folder} can be opened.")
    return sizes


def _fitting(sizes: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return an input size, height and width, for a network that accepts any.

    If all images have one size, it has their aspect ratio; otherwise it is a square. The shorter side is at most 224
    pixels, and both sides are multiples of 16, or of 8 if they are short.
    """
    middle = round(median(min(size) for size in sizes))
    height, width = sizes[0] if len(set(sizes)) == 1 else (middle, middle)
    if max(height, width) > MOST_OBLONG * min(height, width):
        height = width = middle
    scale = min(1, 224 / min(height, width))
    return _multiple(round(height * scale)), _multiple(round(width * scale))


def _grids(height: int, width: int) -> list[Any]:
    """Return the square grids that divide images, the best first; if there are none, a grid of rows and columns.

    Raises
    ------
    HeatproofError
        If neither height nor width can be divided.
    """
    rows, columns = _divisors(height), _divisors(width)
    both = [grid for grid in rows if grid in columns]
    if not both and not rows + columns:
        raise HeatproofError(f"Images of {height}×{width} pixels have no patch grid: take a network of another size.")
    return both or [[next(iter(rows), 1), next(iter(columns), 1)]]


def _divisors(length: int) -> list[int]:
    """Return the numbers of patches that divide a side, those of `GRIDS` first."""
    divisors = [count for count in range(2, min(length, 33)) if length % count == 0]
    return sorted(divisors, key=lambda count: (GRIDS.index(count) if count in GRIDS else len(GRIDS), count))


def _multiple(side: int) -> int:
    return max(side - side % (16 if side >= 64 else 8), 8)


def _listed(values: Iterable[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
