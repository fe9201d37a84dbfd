"""Parts of the specs of jobs: datasets, trainings, responses and shards; and the runtime settings of jobs.

Stages (`heatproof.workflow.plan.stage`) have fields of these types. A job gets its spec as JSON, and reads it back with
the same types.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from heatproof.core.grids import Grid
from heatproof.core.provenance import Key, digest

NO_KEY = Key("", "")
PRETRAINED = "pretrained"


class NetworkName(NamedTuple):
    """Names of a network that is scored: a model with certain weights, on a dataset."""

    dataset: str
    model: str
    weights: str


def layer_and_channel(named: str) -> tuple[str, int | None]:
    """Split ``layer:channel`` into layer and channel; the channel is None for all channels of a layer."""
    layer, _, channel = named.partition(":")
    return layer, int(channel) if channel else None


def spec_file_name(stage: str, content: Mapping[str, Any]) -> str:
    """Return the name of the spec file of a job.

    Parameters
    ----------
    stage
        Name of the stage.
    content
        ``run``, the class of the stage as ``module:name``, and ``spec``, its fields. The name contains a digest of
        both.
    """
    return f"{stage}-{digest({key: content[key] for key in ('run', 'spec')})}.json"


def matches_its_name(path: str | Path, content: Mapping[str, Any]) -> bool:
    """Return whether the content of a spec file matches the digest in its name.

    A job executes what its spec says, so that a file with another content must not be accepted.
    """
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
    """Settings of how jobs run, from the environment variable ``HEATPROOF_MACHINE``. They are not part of keys.

    Attributes
    ----------
    batch_size
        Largest number of images in a network pass.
    threads
        Number of threads of PyTorch.
    device
        ``auto``, ``cpu``, ``cuda`` or ``mps``.
    compile
        Whether networks are compiled.
    deterministic
        Whether PyTorch uses only deterministic algorithms.
    plugins
        Modules that a job imports before it starts.
    baselines
        User's functions that fill patches, as ``package.module:function``.
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
    """The spec of a dataset.

    Attributes
    ----------
    kind
        Name in the registry of datasets, or ``package.module:function``.
    module
        Module of its loader.
    options, seed
        Arguments of its loader.
    name
        Name in the config.
    key, manifest
        Key of the results of the stage `prepare`, and the path of their manifest.
    task
        One of `heatproof.core.tasks.TASKS`.
    rows
        What a row of the evaluation split is: ``label``, an image with one of its labels, or with one number of a
        regression; ``picture``, an image with whatever labels it has; or ``distinct``, an image with its labels for a
        callable target. For datasets of classes, the first two are the same.
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
        Images are shifted at random by up to this number of pixels in each direction, and edges are repeated; 0 for no
        shift.
    precision
        ``float32`` or ``bfloat16``. With bfloat16, activations and products of the training passes are in bfloat16;
        weights, optimizer steps and validation stay in float32, because the weights are used in float32.
    loss
        ``cross_entropy``; ``binary_cross_entropy``, the mean over classes or labels of their binary cross-entropies; or
        ``squared_error``.
    random_horizontal_flip
        Probability of mirroring an image.
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
        ``given``; ``shuffled``, from which nothing can be learnt; or ``own``, the network's own outputs.
    random_resized_crop
        Smallest share of the area of an image that a random crop has; 0 for no crops.
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
        Patch grid; one patch of an image is deleted.
    share
        Share of the images in which a patch is deleted.
    baseline
        Baseline that fills a deleted patch.
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
    """The shard of a store that a job computes.

    Attributes
    ----------
    number
        Number of the shard.
    size
        Number of images in a shard.
    images
        Position of the first image of the shard, and the position after its last image.
    """

    number: int
    size: int
    images: tuple[int, int]
