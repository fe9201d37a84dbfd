"""Specs of the jobs up to the scores, which `heatproof.plan.jobs` builds, and what many specs have."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NotRequired, TypeAlias

# Not typing's: pydantic, which holds specs against these types, does not read that under Python 3.11.
from typing_extensions import ReadOnly, TypedDict

from heatproof.provenance import Key

# Of a stage that is not known.
Spec: TypeAlias = Mapping[str, object]
# Keyword arguments of a function that the config names, which may be the user's own.
Options: TypeAlias = dict[str, Any]


class Runtime(TypedDict):
    """How jobs run, in ``HEATPROOF_MACHINE``; read by every stage, and no part of any spec.

    Attributes
    ----------
    baselines
        Names of functions of the user's own that fill patches.
    """

    batch_size: int | Literal["auto"]
    threads: int
    device: str
    compile: NotRequired[bool]
    deterministic: NotRequired[bool]
    plugins: NotRequired[list[str]]
    baselines: NotRequired[list[str]]


# ---- what many specs have --------------------------------------------------------------------------------------------


class Keyed(TypedDict):
    """The key of a stage's results."""

    key: Key


class Written(Keyed):
    """A file that a stage writes, and its manifest."""

    output: str
    manifest: str


class Published(Keyed):
    """What `heatproof.manifest.publish_tables` reads: the key, and where the manifest is written."""

    manifest: str


class Where(TypedDict):
    """A network by its names in paths and tables."""

    dataset: str
    model: str
    weights: str


class CaseWhere(Where):
    """A test case by its names in paths and tables."""

    metric: str


class Normalisation(TypedDict):
    """Mean and standard deviation of each channel, for images in [0, 1]."""

    mean: Sequence[float]
    std: Sequence[float]


class Facts(Normalisation):
    """Input format of a network, as `heatproof.models.registry.InputFacts`; stages that read no CAM lack the layer."""

    size: Sequence[int] | None
    cam_layer: NotRequired[str | None]
    cam_reason: NotRequired[str]


class OpenedDataset(TypedDict):
    """What `heatproof.data.prepare.open_dataset` reads."""

    kind: str
    options: Options
    module: str
    seed: int


class DatasetSpec(OpenedDataset):
    """A dataset; read by the stage `prepare`, and a part of the specs of what opens it."""

    name: str
    key: Key
    manifest: str


class ModelSpec(TypedDict):
    """What builds a network; a part of the specs of what runs it."""

    name: str
    architecture: str
    module: str
    options: Options
    facts: Facts


class NetworkOf(TypedDict):
    """What builds a network, and the dataset that it is for."""

    dataset: DatasetSpec
    model: ModelSpec


class MethodRow(TypedDict):
    """A method of an explainer, with the index of its map in the explainer's store."""

    method: str
    index: int
    transform: str


class ToldResponse(TypedDict):
    """A response, as `heatproof.responses.base.Response.told` describes it."""

    kind: str
    module: str
    settings: Options


class Announced(TypedDict):
    """What `heatproof.attribution.make.stack_maps` reads of an explainer: the maps that it must return."""

    name: ReadOnly[str]
    maps: ReadOnly[Collection[str]]


class ExplainerEntry(TypedDict):
    """An explainer.

    Attributes
    ----------
    maps
        Names of its maps, and whether each is signed.
    grid
        That of the patches which its baseline fills.
    """

    name: str
    kind: str
    module: str
    maps: dict[str, bool]
    grid: NotRequired[int]


class Piece(TypedDict):
    """A shard of a store: its number, how many images a shard has, and from which image to which this one is."""

    shard: int
    shard_size: int
    images: Sequence[int]


# ---- weights ---------------------------------------------------------------------------------------------------------


class WeightsFiles(Written):
    """The files of weights, which all stages that make weights write."""

    history: str


class FetchSpec(WeightsFiles):
    """A checkpoint; read by the stages `fetch` and `fetch_start`, where the second has no dataset."""

    dataset: NotRequired[DatasetSpec]
    model: ModelSpec
    checkpoint: str
    sha256: str | None
    expected_accuracy: NotRequired[float]


class TrainingSettings(TypedDict):
    """Settings of a training; those that can be absent are what trainings did before there was a choice."""

    seed: int
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
    precision: NotRequired[str]
    devices: NotRequired[int]
    labels: NotRequired[str]
    loss: NotRequired[str]
    random_resized_crop: NotRequired[float]
    random_horizontal_flip: NotRequired[float]


class FinetuningSettings(TrainingSettings):
    """Settings of a finetuning, of which a share of the images lose a patch."""

    grid: int
    share: float
    baseline: str


class KeptEpochs(TypedDict):
    """Epochs whose weights a training keeps, and the file of them; no part of any key."""

    keep: NotRequired[list[int]]
    kept: NotRequired[str]


class TrainedWeights(WeightsFiles, KeptEpochs, NetworkOf):
    """Weights that are trained here.

    Attributes
    ----------
    first_epoch
        Set by `heatproof.training.stages.first_epoch`, which ends there; in no spec of the plan.
    """

    first_epoch: NotRequired[bool]


class PretrainSpec(TrainedWeights):
    """A training from random weights, or from those of `start`; read by the stage `pretrain`."""

    training: TrainingSettings
    start: NotRequired[str]
    upstream: NotRequired[Key]


class FinetuneSpec(TrainedWeights):
    """A training in the domain of patch deletion; read by the stage `finetune`."""

    training: FinetuningSettings
    pretrained: str
    upstream: Key


TrainSpec: TypeAlias = PretrainSpec | FinetuneSpec


class KeepEpochSpec(WeightsFiles):
    """The weights of one epoch of a finetuning; read by the stage `keep_epoch`."""

    epoch: int
    upstream: Key
    kept: str
    trained: str


# ---- what runs networks ----------------------------------------------------------------------------------------------


class MapsEntry(ExplainerEntry):
    """An explainer whose maps are made."""

    options: Options
    needs: list[str]
    key: Key
    store: str


class MapsOf(TypedDict):
    """What all maps of a network depend on, or of a dataset where explainers know no model.

    Attributes
    ----------
    model, weights
        None for explainers that know no model, whose specs also lack what is said of the passes.
    stored_as, sums_of
        The dtype of maps in their store, and the grid of ``patch_sums``, 0 for others.
    """

    dataset: DatasetSpec
    model: ModelSpec | None
    weights: str | None
    upstream: NotRequired[Key]
    seed: int
    target: NotRequired[str | int]
    precision: NotRequired[str]
    output: NotRequired[str]
    stored_as: str
    sums_of: int


class AttributeSpec(MapsOf, Piece):
    """A shard of maps; read by the stages `attribute` and `attribute_reference`."""

    explainers: list[MapsEntry]


class CurvesEntry(ExplainerEntry):
    """An explainer along whose maps a response is made."""

    options: Options
    maps_store: str
    uses_model: bool
    methods: list[MethodRow]
    key: Key


class Passes(NetworkOf):
    """What any run of a network depends on."""

    weights: str
    upstream: Key
    seed: int
    target: str | int
    precision: str


class AskedResponse(Passes):
    """A response of a network; the ``key`` is of one that needs no maps."""

    response: ToldResponse
    key: NotRequired[Key]


class StoredResponse(AskedResponse):
    """A response and its store, with ``{explainer}`` in the place of the name of each of several."""

    store: str


class ResponseSpec(StoredResponse, Piece):
    """A shard of a response; read by the stages `drops`, `curves`, `subsets`, `parts`, `channels` and `features`.

    Attributes
    ----------
    explainers, output, facts
        Of a response along maps alone, which can explain again: what is explained, and the format with the CAM layer.
    """

    explainers: NotRequired[list[CurvesEntry]]
    output: NotRequired[str]
    facts: NotRequired[Facts]


# ---- what `heatproof estimate` times ---------------------------------------------------------------------------------


class TimedWeights(NetworkOf):
    """Random weights for several files; read by `heatproof.estimate.child.weights`."""

    outputs: list[str]
    images: int


class TimedPrecision(TypedDict):
    """The precision of a network; read by `heatproof.estimate.child.resnet50`."""

    precision: str


class TimedTraining(NetworkOf):
    """What `heatproof.estimate.child.training` reads of the spec of weights, and how many images are timed."""

    training: TrainingSettings
    images: int
