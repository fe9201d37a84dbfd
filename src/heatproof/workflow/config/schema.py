"""The config: types, bounds, defaults and descriptions of all keys, and its validation.

``python docs/config.py`` generates the JSON schema in ``workflow/schemas`` and the tables of ``config/README.md`` from
these classes.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Tag, ValidationError, create_model
from pydantic_core import ErrorDetails

from heatproof.core.registry import colliding_name, is_reference, suggest_name
from heatproof.errors import HeatproofError
from heatproof.workflow.config import types
from heatproof.workflow.config.files import Config, merge
from heatproof.workflow.config.removed import without_removed_keys
from heatproof.workflow.config.types import (
    ONE_VALUE,
    SEVERAL_VALUES,
    Entries,
    ImagesPerBatch,
    NumberOrAuto,
    OneOrSeveral,
    Precision,
)

# The value of a key that has no default and is not set.
UNSET: Any = None


class Section(BaseModel):
    """A section of the config. Types are strict: a string is not a number, and 64.0 is not an integer."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)

    def plain(self) -> Config:
        """Return the section as a mapping, without keys that have no value, unless the config sets them to null."""
        return {key: _plain(value) for key, value in self if value is not None or key in self.model_fields_set}


def _plain(value: Any) -> Any:
    if isinstance(value, Section):
        return value.plain()
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else copy.copy(value)


class Training(Section):
    """Settings of a training."""

    epochs: types.Epochs
    """Passes over the training images."""
    batch_size: Annotated[int, Field(ge=2, le=types.MAXIMUM_IN_BATCH)]
    """Images in one step."""
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """`sgd`, with momentum, `adam`, or `adamw`."""
    lr: types.Positive
    """Learning rate at the start."""
    momentum: Annotated[float, Field(ge=0, le=1)] = 0.9
    """Momentum of SGD."""
    weight_decay: Annotated[float, Field(ge=0, le=1000)]
    """Weight decay."""
    schedule: Literal["step", "cosine"]
    """`step` multiplies the rate by `decay` every `decay_every` epochs, `cosine` lowers it to zero."""
    decay: types.Positive = 0.1
    """Factor of the step schedule."""
    decay_every: types.Epochs = 10
    """Epochs between steps of the step schedule."""
    loss: Literal["auto", "cross_entropy", "binary_cross_entropy", "squared_error"] = "auto"
    """`cross_entropy` over the classes, or `binary_cross_entropy` of every class against the others, as B-cos networks
    are trained. `auto` follows the dataset's `task`: `cross_entropy` for classes, `binary_cross_entropy` of every known
    label for several labels, and `squared_error` for numbers, in units of their standard deviation."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Label smoothing in [0, 1)."""
    labels: Literal["true", "shuffled"] = "true"
    """`shuffled` trains on labels in random order, as a null control: such a network has learnt nothing that an
    explanation could show (`docs/null_control.md`)."""
    shift: Annotated[int, Field(ge=0, le=8192)] = 0
    """Largest random shift of training images, in pixels per direction."""
    random_resized_crop: types.Share = 0.0
    """Smallest share of a training image's area that a random crop covers; crops are resized to the size of the images.
    As torchvision's `RandomResizedCrop`, whose default is 0.08. 0 for no crops."""
    random_horizontal_flip: types.Share = 0.0
    """Probability with which a training image is mirrored, as in torchvision's `RandomHorizontalFlip`, whose default is
    0.5."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of the training passes: `float32`, or `bfloat16` to save time and memory. Weights, optimizer steps and
    validation stay in float32. Later stages use the top-level `precision`."""
    devices: types.Devices = 1
    """Number of GPUs of one node that share each batch; on a CPU, processes. More than 1 needs `pip install
    "heatproof[multi-gpu]"` and a `batch_size` of at least two images per device; see `docs/devices.md`."""
    seed: types.Seed = UNSET
    """Seed of this training, for example to finetune twice. Default: the top-level `seed`."""


class Pretraining(Training):
    """Training from scratch, for models without a `checkpoint`, or from the checkpoint with `transfer: true`."""

    epochs: Annotated[int, Field(ge=0, le=100_000)] = 30
    """Passes over the training images; 0 uses the initial weights of the model: random ones, or those that your own
    architecture loads itself."""
    keep: Annotated[list[types.Epochs], types.Distinct] = []
    """Epochs whose weights are saved as well, counted from 1; `[]` for none. Each becomes an entry of the weights, such
    as `finetuned_epoch4` or `pretrained_epoch50`, and is scored. For `pretraining`, `pretrained` must be among the
    weights, and the models must be trained here."""
    batch_size: Annotated[int, Field(ge=2, le=types.MAXIMUM_IN_BATCH)] = 128
    lr: types.Positive = 0.1
    weight_decay: Annotated[float, Field(ge=0, le=1000)] = 0.0005
    schedule: Literal["step", "cosine"] = "cosine"


class Finetuning(Training):
    """In-domain finetuning with patch deletion (Hesse et al. 2024, section 3)."""

    grid: types.Grid = 4
    """Grid of patches, one of which is deleted in each selected image: a number of patches along one side, or `[rows,
    columns]`."""
    baseline: types.Baseline = UNSET
    """What replaces the deleted patch. Default: the first of `drops.baselines`."""
    labels: Literal["auto", "true", "shuffled", "own"] = "auto"  # type: ignore[assignment]
    """As in `pretraining`; with `own` the network learns from its own outputs: its output for the image without a patch
    is trained towards its earlier output for the intact image (the softmax; with several labels the sigmoid of each; a
    number unchanged). No labels are read (`docs/self_taught.md`). `auto` is `true`, or `own` if `target` is a function;
    the complete output is learnt then."""
    share: types.Share = 0.5
    """Share of the training images in which a patch is deleted."""
    keep: Annotated[list[types.Epochs], types.Distinct] = []
    """Epochs whose weights are saved as well, as for `pretraining`."""
    epochs: types.Epochs = 30
    batch_size: Annotated[int, Field(ge=2, le=types.MAXIMUM_IN_BATCH)] = 256
    lr: types.Positive = 0.001
    weight_decay: Annotated[float, Field(ge=0, le=1000)] = 0.0001
    schedule: Literal["step", "cosine"] = "step"


def describe(section: type[Section], key: str) -> str:
    """Return the description of a key; a section that only changes the default inherits it."""
    fields = (getattr(base, "model_fields", {}).get(key) for base in section.__mro__)
    return next(" ".join(field.description.split()) for field in fields if field and field.description)


def _overrides(name: str, base: type[Training], *without: str) -> type[Section]:
    """Return a section with the keys of `base`, all of them optional."""
    fields: dict[str, Any] = {}
    for key, field in base.model_fields.items():
        if key not in without:
            fields[key] = (field.rebuild_annotation(), Field(default=None, description=describe(base, key)))
    return create_model(name, __base__=Section, __doc__=f"Overrides of `{base.__name__.lower()}`.", **fields)


PretrainingOverrides = _overrides("PretrainingOverrides", Pretraining, "keep")
FinetuningOverrides = _overrides("FinetuningOverrides", Finetuning, "keep")
WeightsSettings = _overrides("WeightsSettings", Finetuning)


class ModelSettings(Section):
    """Settings of one model."""

    architecture: Annotated[str, types.NameOf("architecture")] = UNSET
    """A known architecture (`heatproof list models`, `docs/models.md`), or `package.module:callable` that takes
    `num_classes` and returns a `torch.nn.Module`. Default: the entry's name."""
    options: dict[str, Any] = UNSET
    """Options of the architecture, for example `{width: 8}`."""
    datasets: list[str] = UNSET
    """Names of the datasets on which the model is evaluated. Default: all."""
    checkpoint: Annotated[str, Field(min_length=1)] = UNSET
    """File or URL of pretrained weights, instead of training from scratch: safetensors, or a format that
    `torch.load(weights_only=True)` reads. `package:NAME` reads them from an installed package (`docs/models.md`)."""
    sha256: types.Digest = UNSET
    """SHA-256 of the checkpoint, or at least its first 8 digits, as in the names of published files. Required for a
    URL."""
    expected_accuracy: Annotated[float, Field(gt=0, le=1)] = UNSET
    """Accuracy in [0, 1] that the checkpoint is known to have. If the accuracy on validation images is lower by more
    than 0.05, the run stops before any job and reports the mistake that explains it: normalisation, order of channels
    or classes, or resizing of the images."""
    transfer: bool = UNSET
    """`true` starts `pretraining` from the checkpoint without its classification head, for weights that were trained on
    other classes. The head, all weights whose shapes depend on the number of classes, is initialised at random."""
    mean: Annotated[list[Annotated[float, Field(ge=0, le=1)]], types.ChannelNumbers] = UNSET
    """Channel means for normalising input in [0, 1]. Default: the architecture's. They must be those that the weights
    were trained with; the baseline `zeros` is zero after normalisation."""
    std: Annotated[list[Annotated[float, Field(ge=1e-6, le=1000)]], types.ChannelNumbers] = UNSET
    """Channel standard deviations for normalising input in [0, 1], as `mean`."""
    cam_layer: str | None = None
    """Submodule that class activation maps read. Default: the architecture's, or if it has none (`null`) the last
    submodule with a spatial grid, which is found automatically; `heatproof check` shows it."""
    pretraining: PretrainingOverrides = UNSET  # type: ignore[valid-type]
    """Overrides of `pretraining` for this model."""
    finetuning: FinetuningOverrides = UNSET  # type: ignore[valid-type]
    """Overrides of `finetuning` for this model."""


class ImagesOfResponses(Section):
    """Numbers of images for each kind of response, if they differ."""

    drops: types.Images
    """Images of IDSDS and SDS, and of metrics that read only patch drops or maps."""
    curves: types.Images = UNSET
    """Images of metrics that read responses along every method's map, which are the most expensive. Default: those of
    `drops`."""
    subsets: types.Images = UNSET
    """Images of metrics that read responses to random subsets. Default: those of `curves`."""
    parts: types.Images = UNSET
    """Images of metrics that read responses to images without a part. Default: those of `curves`."""


class Evaluation(Section):
    """Number of images that are scored."""

    images: Annotated[
        Annotated[types.Images, Tag(ONE_VALUE)] | Annotated[ImagesOfResponses, Tag(SEVERAL_VALUES)], OneOrSeveral
    ] = 64
    """Number of evaluation images that are explained and scored. If an image has several labels or numbers, it has a
    row for each of them, and the number counts rows. Raise it for narrower intervals; only the new images are computed.
    A mapping sets a number for each kind of response, as in `{drops: 500, curves: 64}`; further kinds are `subsets` and
    `parts`, which default to `curves`. Every metric is scored on the first images of the same order: a metric that
    reads several kinds on the smallest of their numbers, a metric with its own option `images` on that number. Maps are
    made for the largest number. If no config sets the number, it is at most the number of images of each dataset."""
    only_correct: bool = False
    """Whether to score a network only on the images that it classifies correctly when they are intact, as the authors
    of MAS do. The share of the other images is reported next to the scores in either case."""
    balanced: bool = False
    """Whether to score a network on equally many images of each class that has any images: on the first ones of each
    class."""
    accuracy_images: Annotated[int, Field(ge=0, le=types.MAXIMUM_IMAGES)] = 0
    """Number of evaluation images with patch drops, for `accuracy.csv`; never fewer than `images`. More images are
    cheap, because they need no maps. If no config sets the number, it is at most the number of images of each
    dataset."""


class PrecisionOfStages(Section):
    """Precision of the networks in each stage, if it differs."""

    maps: Precision = "float32"
    """Attribution maps."""
    drops: Precision = "float32"
    """Patch drops, features and channels."""
    curves: Precision = "float32"
    """Responses along every method's map."""
    subsets: Precision = "float32"
    """Responses to random subsets."""
    parts: Precision = "float32"
    """Responses to images without a part."""


class Drops(Section):
    """Patch drops that are cached and scored, for every combination of grid and baseline."""

    grids: Annotated[list[types.Grid], types.Distinct, Field(min_length=1)] = [4]
    """Grids of patches, each a number of patches along one side of the image, or `[rows, columns]`, as in `[4, [4,
    8]]`; 4 corresponds to P = 16 in the paper. Rows must divide the height of the images, columns the width."""
    baselines: Annotated[list[types.Baseline], types.Distinct, Field(min_length=1)] = ["mean"]
    """What replaces a deleted patch: `mean`, the mean colour of the training images, or of the evaluation images if
    there are no training images; `zeros` (after normalisation), which is the mean colour only if `mean` and `std` are
    those of the data; `black`, zero before normalisation; `background`, the median colour of the image's border;
    `neighbours`, in-painting from the patch's border; `blur`; `random`; or your own as `package.module:callable`
    (`docs/protocol.md`)."""
    outputs: Annotated[list[Literal["logit", "probability"]], types.Distinct, Field(min_length=1)] = ["logit"]
    """Output whose drops are scored: the target's `logit`, its softmax `probability`, or both. Names of probability
    scores end in `_probability`. Needs no further network passes."""


class Attribution(Section):
    """Settings of the attribution maps."""

    output: Literal["logit", "probability"] = "logit"
    """Output that is explained: the label's `logit` or `probability`. Maps of the two have different scales."""
    stored_as: Literal["float32", "float16", "patch_sums"] = "float32"
    """Format of stored maps: `float16` takes half of the disk space and holds 11 significant bits of each value down to
    a sixteen-thousandth of the largest value of the map; `docs/stores.md` says by how much scores change. `patch_sums`
    holds sums over the patches of `drops.grids`, for IDSDS and SDS, whose scores stay exactly the same. Recomputes the
    maps."""
    tolerance: Annotated[float, Field(gt=0, le=1000)] | Literal["own"] = "own"
    """Allowed relative error of the sum that a method guarantees for its maps; with a larger error the explainer is not
    applicable. It holds for DeepLift, Deep SHAP, LRP, BagNet, B-cos and `chefer_lrp`, if their option `tolerance` is
    `null`; `own` is the limit of each method (`docs/methods.md`). `results/applicability.csv` has the measured
    errors."""


class Scores(Section):
    """Summary statistics of scores."""

    bootstrap: Annotated[int, Field(ge=10, le=1_000_000)] = 1000
    """Number of bootstrap resamples of images (scores) and of test cases (Meta-Rank)."""
    level: Annotated[float, Field(gt=0, lt=1)] = 0.95
    """Confidence level of the intervals."""
    least_coverage: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Share of the images on which a method has to be defined to be ranked; below it, its score is reported without a
    rank."""


class Similarity(Section):
    """How networks before and after finetuning are compared (Hesse et al. 2024, section 4.1)."""

    images: types.Images | None = None
    """Number of images that are compared; at most the number of explained images, because maps are compared as well.
    The table has the number in `n`. Default: at most 512. More images recompute the comparison, and take one network
    pass for each new image."""
    channels: Annotated[list[types.Layer], types.Distinct] = []
    """Channels whose most exciting images are compared, by the names of their layers: `layer4.2.conv3:15` is channel 15
    of a layer, and `layer4` compares all channels of the layer and draws three of them at equal steps. A layer that a
    model does not have is skipped for that model; it is an error if no model has it. `[]` for the layer that CAMs
    read."""


class Leaderboard(Section):
    """Meta-Rank of selected metrics and methods, as in its paper: `results/ranking/leaderboard.csv`."""

    metrics: Annotated[list[str], types.Distinct] = []
    """Metrics whose test cases count, by their names in tables, even if another metric stands for one. `snakemake all`
    builds the leaderboard, and the page shows it, if the list is not empty; `[]` for no leaderboard."""
    methods: Annotated[list[str], types.Distinct] = []
    """Methods that are ranked, by their names in tables, such as `saliency_abs`; `[]` for all."""
    independent: Literal["network", "case"] = "case"
    """The unit that counts once: each test `case`, which is a dataset, a model, its weights and a metric, as in the
    paper (Duan et al. 2024, section 4.2); or a `network`, as in `results/meta_rank.csv`, whose intervals account for
    test cases of one network that rank alike."""


class Report(Section):
    """Content of figures and pages; scores do not depend on it."""

    images: Annotated[int, Field(ge=0, le=10_000)] = 4
    """Number of images on the page of maps and on the index page; 0 for none. More images make the pages larger."""
    all_metrics: bool = False
    """Whether `snakemake all` computes all `metrics`, the claims card, `results/ranking` and `results/similarity`, and
    the index page shows them with the response curves. `false` restricts both to the patch drops, which need far fewer
    network passes."""


class Settings(Section):
    """Settings of a run. Every key has a default; config/config.yaml is a complete example."""

    seed: types.Seed = 0
    """Seed of all random numbers. Change it to measure the effect of chance; everything is recomputed."""
    plugins: list[str] = []
    """Your own modules, such as `my_package.module`, that register explainers, metrics, models, datasets, claims or
    figures. The plan and every job import them. Installed packages declare theirs as entry points of the group
    `heatproof` instead."""
    baselines: Annotated[list[types.Baseline], types.Distinct] = []
    """Baselines as an axis of the run: for each finetuned weights, one variant is finetuned in the domain of each
    baseline, from the same pretraining, and drops, responses and scores are computed on that variant. The first
    baseline has the plain names and replaces `finetuning.baseline` and `drops.baselines`; the others are a suffix, as
    in `finetuned_zeros`. `results/baselines.csv` compares them. `[]` for the single baseline of `finetuning`."""
    target: Annotated[str | int, BeforeValidator(types.validate_target)] = "label"
    """What is explained and scored, the same for all maps and metrics: `label`, `predicted` (the class that the network
    predicts for the intact image), or one class for all images, by its number. With several labels, `label` is each
    label that an image has; for a regression, each number. Any other number for an image is defined by your function
    `package.module:function`, which takes the network's complete output and the labels of the batch and returns one
    number for each image (`docs/protocol.md#a-function-of-the-output-as-target`)."""
    training_seeds: Annotated[int, Field(ge=1, le=1000)] = 1
    """Number of networks of each kind: each model is trained this many times with different seeds, as `resnet20`,
    `resnet20_seed1` and so on. Intervals of a ranking then include the effect of chance in training, and
    `results/ranking/variance.csv` reports its size. Published weights are finetuned this many times."""
    datasets: Annotated[dict[str, dict[Any, Any]], Entries("dataset")] = {"digits": {}}
    """Datasets by name. `dataset` is the kind, and `task` the task of a network on it: `binary`, one output for two
    classes; `multiclass`; `multilabel`, if an image can have several labels; or `regression`, numbers. Default: the
    task that the loader declares, or else `multiclass`. Further settings are options of its loader; see
    [docs/datasets.md](../docs/datasets.md)."""
    evaluation: Evaluation = Evaluation()
    models: Annotated[dict[str, ModelSettings], Entries("architecture")] = {"cifar_resnet20": ModelSettings()}
    """Models by name; their settings are below."""
    weights: Annotated[dict[str, WeightsSettings], Entries("weights")] = {  # type: ignore[valid-type]
        "pretrained": WeightsSettings(),
        "finetuned": WeightsSettings(),
    }
    """Which weights are scored. `pretrained` is the model without finetuning. All others are finetuned, and the
    settings of an entry override `finetuning`."""
    pretraining: Pretraining = Pretraining()
    finetuning: Finetuning = Finetuning()
    drops: Drops = Drops()
    attribution: Attribution = Attribution()
    explainers: Annotated[dict[str, dict[Any, Any]], Entries("explainer")] = {"saliency": {}, "input_x_gradient": {}}
    """Explainers by name. Settings besides `explainer`, the kind, are its options. Include the reference maps `random`
    and `edges`, which do not use the model. `randoms`, `gaussians`, `entropies`, `edge_detectors` and `frequencies` are
    36 more reference maps; add them if response curves are cheap, or for IDSDS alone."""
    metrics: Annotated[dict[str, dict[Any, Any]], Entries("metric", least=0)] = {}
    """Metrics in `results/scores.csv` besides IDSDS and SDS; see below."""
    scores: Scores = Scores()
    similarity: Similarity = Similarity()
    leaderboard: Leaderboard = Leaderboard()
    report: Report = Report()
    shard_size: ImagesPerBatch = 256
    """Images in one job. Lower it to distribute a large evaluation over more jobs; the stores are recomputed."""
    attribution_jobs: Literal["together", "apart"] = "together"
    """`together` computes all maps of a model and shard in one job, and each response curve for all maps in another;
    `apart` uses one job per explainer. Use `apart` on a cluster."""
    batch_size: Annotated[
        Annotated[ImagesPerBatch, Tag(ONE_VALUE)] | Annotated[Literal["auto"], Tag(SEVERAL_VALUES)], NumberOrAuto
    ] = 64
    """Images in one network pass; `auto` starts with 512 on an NVIDIA GPU, and 64 on a CPU. Halved if memory runs out.
    Reruns nothing."""
    threads: types.Devices = 1
    """CPU threads per job, independent of `--cores` because float sums depend on it. Reruns nothing."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """`auto` uses a GPU if one is allocated to the job, else the CPU. Reruns nothing."""
    precision: Annotated[
        Annotated[Precision, Tag(ONE_VALUE)] | Annotated[PrecisionOfStages, Tag(SEVERAL_VALUES)], OneOrSeveral
    ] = "float32"
    """Precision of the networks in drops, maps and responses: `float32`, `tf32` (NVIDIA's tensor cores) or `bfloat16`
    (autocast). A mapping sets one for each stage, as in `{maps: bfloat16, curves: bfloat16}`; further stages are
    `drops`, `subsets` and `parts`, and the default is `float32`. Lower precision is faster and changes scores slightly
    (`docs/devices.md`). Recomputes these stages."""
    compile: bool = False
    """Whether to use `torch.compile` in stages without hooks: drops and responses. Worthwhile for jobs of many minutes.
    Reruns nothing."""
    deterministic: bool = False
    """Whether to forbid nondeterministic algorithms on a GPU. On a CPU results are always bitwise reproducible. Reruns
    nothing."""
    budget: types.Time = "none"
    """How long a run may take, such as `2h` or `15min`, or `none`: `heatproof estimate` prints the numbers of images
    that fit on the machine where it runs. It neither stops nor reruns anything."""


def normalise(config: Mapping[str, Any]) -> Config:
    """Check a config, fill in defaults, and turn its lists of entries into mappings.

    Returns
    -------
    dict
        ``datasets``, ``models``, ``weights``, ``explainers`` and ``metrics`` are {name: settings}, in the order of the
        config.

    Raises
    ------
    HeatproofError
        One sentence for the first problem.
    """
    try:
        settings, _ = without_removed_keys(config)
        return _expand_baselines(_with_labels(Settings.model_validate(settings).plain()))
    except ValidationError as error:
        raise HeatproofError(_sentence(error.errors(include_url=False)[0])) from None


def _with_labels(config: Config) -> Config:
    """Fill in what finetunings learn: the true labels, or the network's own outputs if the target is a callable."""
    default = "own" if is_reference(str(config["target"])) else "true"
    finetunings = [config["finetuning"], *config["weights"].values()]
    finetunings += [model["finetuning"] for model in config["models"].values() if "finetuning" in model]
    for settings in finetunings:
        if settings.get("labels") == "auto":
            settings["labels"] = default
    return config


def _expand_baselines(config: Config) -> Config:
    """Expand the axis of baselines: drops with each baseline, and a variant of each finetuned weights in its domain."""
    first, *further = config["baselines"] or config["drops"]["baselines"]
    if not config["baselines"]:
        return {**config, "finetuning": {"baseline": first, **config["finetuning"]}}
    weights: dict[str, Config] = {}
    for name, settings in config["weights"].items():
        weights[name] = settings
        if name == "pretrained" or "baseline" in settings:
            continue
        for baseline in further:
            variant = f"{name}_{baseline.rpartition(':')[2]}"
            if existing := colliding_name(variant, config["weights"]):
                raise HeatproofError(
                    f"The weights {existing!r} have the name that `baselines` gives to {name!r}: rename them."
                )
            weights[variant] = {**settings, "baseline": baseline}
    expanded = merge(config, {"finetuning": {"baseline": first}, "drops": {"baselines": config["baselines"]}})
    return {**expanded, "weights": weights}


def shorten_baseline_names(config: Any, replaced: dict[str, None], is_baseline: bool = False) -> Any:
    """Return a config in which every reference to a user's baseline is replaced by the name of the callable.

    Add the references to `replaced`. Names of baselines are parts of paths and tables, where
    ``package.module:callable`` is not allowed.
    """
    if isinstance(config, Mapping):
        kinds = {"baseline": str, "baselines": list}
        return {
            key: shorten_baseline_names(value, replaced, isinstance(value, kinds.get(key, ())))
            for key, value in config.items()
        }
    if isinstance(config, list):
        return [shorten_baseline_names(value, replaced, is_baseline) for value in config]
    if is_baseline and isinstance(config, str) and ":" in config:
        replaced[config] = None
        return config.rpartition(":")[2]
    return config


def _sentence(error: ErrorDetails) -> str:
    """Describe an error of pydantic in one sentence."""
    # For a key with several types, pydantic includes the type that it tried.
    loc = [
        key
        for key in error["loc"]
        if not str(key).startswith("constrained-") and key not in (ONE_VALUE, SEVERAL_VALUES)
    ]
    inside: Any = Settings
    location = "the config"
    if loc[0] in ("models", "weights"):
        location, inside = f"{loc[0]}: {loc[1]}", ModelSettings if loc[0] == "models" else WeightsSettings
        loc = loc[2:]
    value = error["input"]
    if error["type"] in ("extra_forbidden", "invalid_key"):
        *section, unknown = loc
        for key in section:
            inside = _section_in(inside.model_fields[key].annotation)
        under = f" under {'.'.join(map(str, section))!r}" if section else ""
        return f"There is no key {unknown!r}{under} in {location}: {suggest_name(str(unknown), inside.model_fields)}"
    key_path = f"{'.'.join(map(str, loc))!r} in {location}"
    if error["type"] == "literal_error" and isinstance(value, str):
        allowed = re.findall(r"'(\w+)'", error["ctx"]["expected"])
        return f"{key_path} cannot be {value!r}: {suggest_name(value, allowed)}"
    if error["type"] == "twice":
        return f"{key_path} {error['msg']}."
    return f"{key_path} must be {_expected(error)}, not {value!r}{_hint(error, value)}."


def _section_in(annotation: Any) -> Any:
    """Return the section among the types of a key; the last one if there are several."""
    if hasattr(annotation, "model_fields"):
        return annotation
    return next(filter(None, map(_section_in, reversed(get_args(annotation)))), None)


def _hint(error: ErrorDetails, value: Any) -> str:
    if "mean" in error["loc"] and isinstance(value, int | float) and value > 1:
        return ": images have values in [0, 1], so divide mean and std by 255"
    try:
        written = error["type"] in ("int_type", "float_type") and isinstance(value, str) and f"{float(value):g}"
    except ValueError:
        return ""
    return " (a text: leave out quotes, and write 1e-3 as 1.0e-3)" if written else ""


EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "finite_number": "a finite number",
    "bool": "true or false",
    "string": "a text",
    "list": "a list",
    "dict": "a mapping",
    "model": "a mapping of keys to values",
    "greater_than_equal": "at least {ge}",
    "greater_than": "above {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "below {lt}",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
    "string_too_short": "a text of at least {min_length} character",
    "string_pattern_mismatch": "of the form {pattern}",
    "literal_error": "one of {expected}",
}


def _expected(error: ErrorDetails) -> str:
    kind = error["type"]
    words = EXPECTED.get(kind) or EXPECTED.get(kind.partition("_")[0])
    return words.format(**error.get("ctx", {})) if words else error["msg"].removeprefix("Input should be ")
