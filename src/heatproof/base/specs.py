"""Values that the jobs of several stages are given: how they run, datasets, trainings, responses and shards.

A stage (`heatproof.plan.stage`) is made of these, and so are the networks and explainers of
`heatproof.models.registry` and `heatproof.attribution.registry`. A job gets all
of it as JSON, and reads it back with the same types.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from heatproof.base.grids import Grid
from heatproof.base.provenance import Key, digest

NO_KEY = Key("", "")


def spec_file_name(stage: str, content: Mapping[str, Any]) -> str:
    """Return the name of the file that tells a job what to do.

    Parameters
    ----------
    stage
        Name of the stage.
    content
        ``run``, the class of the stage as ``module:name``, and ``spec``, its fields; the name has a digest of both.
    """
    return f"{stage}-{digest({key: content[key] for key in ('run', 'spec')})}.json"


def matches_its_name(path: str | Path, content: Mapping[str, Any]) -> bool:
    """Tell whether such a file says what its name says, so that no other content of the folder is executed."""
    if not isinstance(content.get("run"), str) or not isinstance(content.get("spec"), dict):
        return False
    reads = content.get("reads", {})
    keys = reads.values() if isinstance(reads, dict) else [None]
    if not all(isinstance(key, list) and len(key) == 2 for key in keys):
        return False
    name = Path(path).name
    return name == spec_file_name(name.rpartition("-")[0], content)


@dataclass(frozen=True)
class Runtime:
    """How jobs run, in ``HEATPROOF_MACHINE``; no part of any key.

    Attributes
    ----------
    batch_size
        Largest number of images in one network pass.
    threads
        Threads of PyTorch.
    device
        ``auto``, ``cpu``, ``cuda`` or ``mps``.
    compile
        Whether networks are compiled.
    deterministic
        Whether PyTorch uses deterministic algorithms alone.
    plugins
        Modules that a job imports before it starts.
    baselines
        Names of functions of the user's own that fill patches.
    """

    batch_size: int | Literal["auto"] = 64
    threads: int = 1
    device: str = "auto"
    compile: bool = False
    deterministic: bool = False
    plugins: list[str] = field(default_factory=list)
    baselines: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class DatasetSpec:
    """What opens a dataset.

    Attributes
    ----------
    kind
        Name in the table of datasets, or ``package.module:function``.
    module
        Module that enters it there.
    options, seed
        Arguments of its function.
    name
        Name that the config gives it.
    key, manifest
        Key of what the stage `prepare` leaves, and the path of its manifest.
    task
        One of `heatproof.base.tasks.TASKS`.
    rows
        What is a row of the evaluation split: ``label``, each label that a picture has, or each number of a regression;
        ``picture``, whatever its labels; or ``distinct``, a picture with its labels for a callable target. Of classes,
        the first two are the same.
    """

    kind: str
    module: str
    options: dict[str, Any]
    seed: int
    name: str = ""
    key: Key = NO_KEY
    manifest: str = ""
    task: str = "multiclass"
    rows: Literal["label", "picture", "distinct"] = "label"


@dataclass(frozen=True)
class Schedule:
    """Optimizer, learning rate schedule and augmentation of a training.

    Attributes
    ----------
    optimizer
        ``sgd`` (momentum), ``adam`` or ``adamw``.
    schedule
        ``step`` multiplies the learning rate by `decay` every `decay_every` epochs; ``cosine`` goes to zero.
    shift
        Images are moved by up to that many pixels either way, edges repeated; 0 leaves them.
    precision
        ``float32``, or ``bfloat16`` for activations and products of the training passes in bfloat16. Weights and steps
        are float32 either way, and so is validation, because the weights are used in float32.
    loss
        ``cross_entropy``; ``binary_cross_entropy``, the mean over classes or labels of each by itself; or
        ``squared_error``.
    random_horizontal_flip
        Probability with which an image is mirrored.
    """

    epochs: int
    batch_size: int
    optimizer: str
    lr: float
    momentum: float
    weight_decay: float
    schedule: str
    decay: float
    decay_every: int
    label_smoothing: float
    shift: int
    precision: str = "float32"
    loss: str = "cross_entropy"
    random_horizontal_flip: float = 0.0


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(Schedule):
    """Settings of a training.

    Attributes
    ----------
    seed
        Seeds the initial weights, the order of the images and every augmentation.
    devices
        Number of devices that share the training.
    labels
        ``given``; ``shuffled``, from which nothing can be learnt; or ``own``, the network's own answers.
    random_resized_crop
        Smallest share of a picture's area that a random crop has; 0 for the images as they are.
    """

    seed: int
    devices: int = 1
    labels: str = "given"
    random_resized_crop: float = 0.0


@dataclass(frozen=True, kw_only=True)
class FinetuningSettings(TrainingSettings):
    """Settings of a finetuning in the domain of patch deletion.

    Attributes
    ----------
    grid
        Of the patches, one of which an image loses.
    share
        Share of the images that lose a patch.
    baseline
        What a deleted patch is filled with.
    """

    grid: Grid
    share: float
    baseline: str


@dataclass(frozen=True)
class ResponseSpec:
    """A response: its kind, the module that defines it, and its settings."""

    kind: str
    module: str
    settings: dict[str, Any]


@dataclass(frozen=True)
class ShardRange:
    """The part of a store that a job makes.

    Attributes
    ----------
    number
        Number of the shard.
    size
        How many images each shard has.
    images
        Index of the first image of the shard, and that after the last one.
    """

    number: int
    size: int
    images: tuple[int, int]
