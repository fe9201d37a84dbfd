"""The selection of a config: datasets, models, weights, methods, metrics and images, and which belong together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

from heatproof.core.batch import SAME_AS_DROPS
from heatproof.core.grids import Grid
from heatproof.core.methods import Method, MethodSpec, all_methods
from heatproof.core.options import defining_module
from heatproof.core.registry import fold_name, import_callable, is_reference
from heatproof.core.specs import PRETRAINED, NetworkName, layer_and_channel
from heatproof.core.tasks import CALLABLE
from heatproof.errors import HeatproofError
from heatproof.metrics.registry import METRICS
from heatproof.metrics.responses.base import Response, shared_responses
from heatproof.metrics.responses.label_outputs import LabelOutputs
from heatproof.metrics.responses.patches import Patches
from heatproof.metrics.responses.subsets import Channels
from heatproof.metrics.single_deletion import GridAndBaseline, base_name, metric_name
from heatproof.models.packaged import is_file
from heatproof.workflow.config.files import Config
from heatproof.workflow.plan.folder import Folder
from heatproof.workflow.plan.metrics import MetricChoice, read_metric
from heatproof.workflow.plan.resolve import DatasetChoice, ModelChoice, read_dataset, read_explainer, read_model

# Means over this many images are stable; maps of more images would only take memory.
SIMILARITY_IMAGES = 512
# The response from which the accuracy of a network with several labels is computed.
ANSWERS = LabelOutputs()
# Far above any real config; planning more networks would take minutes and gigabytes.
MOST_NETWORKS = 10_000


# Compared by identity, because methods are cached by plan and called thousands of times.
@dataclass(frozen=True, eq=False)
class Selection:
    """The selection of a normalised config, and the results folder."""

    config: Config
    results: Folder = field(default_factory=Folder)

    @cached_property
    def datasets(self) -> dict[str, DatasetChoice]:
        """Name of each dataset to its entry."""
        return {name: read_dataset(name, dict(settings)) for name, settings in self.config["datasets"].items()}

    @cached_property
    def target_function(self) -> str:
        """The callable target, as ``package.module:function``; "" if the target is a class."""
        target = str(self.config["target"])
        if is_reference(target):
            import_callable(target, "target")
            return target
        return ""

    @property
    def target_modules(self) -> list[str]:
        """Modules whose code determines the target: that of a callable target."""
        target = self.target_function
        return [defining_module(import_callable(target, "target"), target)] if target else []

    def task_of(self, dataset: str) -> str:
        """Return the task of a network on a dataset: that of the dataset, or ``callable`` for a callable target."""
        return CALLABLE if self.target_function else self.datasets[dataset]["task"]

    def unsupported_reason(self, dataset: str, metric: str) -> str | None:
        """Return the reason why a metric of the config is not applicable on a dataset; None if it is applicable."""
        if metric not in self.metrics:
            return None
        entry = self.metrics[metric]
        return entry.metric.unsupported_reason(self.task_of(dataset), entry.options)

    def reads_response(self, dataset: str, response: Response) -> bool:
        """Return whether a response is read on a dataset, by an applicable metric or the table of accuracy."""
        if response == ANSWERS:
            return self.task_of(dataset) == "multilabel"
        return any(
            self.shared_responses[read][0] == response
            for name, entry in self.metrics.items()
            if not self.unsupported_reason(dataset, name)
            for read in entry.responses.values()
        )

    @cached_property
    def explainers(self) -> dict[str, MethodSpec]:
        """Name of each explainer to its entry, in the order of the config."""
        entries = {name: read_explainer(name, dict(settings)) for name, settings in self.config["explainers"].items()}
        makers: dict[str, str] = {}
        for entry in entries.values():
            for method in entry.methods:
                if (other := makers.setdefault(fold_name(method.name), entry.name)) != entry.name:
                    raise HeatproofError(
                        f"The explainers {other!r} and {entry.name!r} both make the method {method.name!r}: "
                        "rename one of them."
                    )
        return entries

    @cached_property
    def models(self) -> dict[str, ModelChoice]:
        """Name of each model to its entry."""
        entries = {name: read_model(name, settings, self.config) for name, settings in self.config["models"].items()}
        if (count := len(entries) * self.config["training_seeds"]) > MOST_NETWORKS:
            raise HeatproofError(
                f"The config has {count:,} networks by `models` and `training_seeds`: lower one of the two, so that "
                f"they are at most {MOST_NETWORKS:,}."
            )
        files = {fold_name(name): name for name in entries}
        for entry in list(entries.values()):
            for number in range(1, self.config["training_seeds"]):
                name = f"{entry.name}_seed{number}"
                if other := files.get(fold_name(name)):
                    raise HeatproofError(
                        f"The model {other!r} has the name that `training_seeds` gives to {entry.name!r}: rename it."
                    )
                pretraining, finetuning = (
                    {**settings, "seed": settings.get("seed", self.config["seed"]) + number}
                    for settings in (entry.pretraining, entry.finetuning)
                )
                entries[name] = replace(
                    entry, name=name, kind=entry.name, pretraining=pretraining, finetuning=finetuning
                )
        return entries

    @property
    def kinds(self) -> dict[str, str]:
        """Name of each model to its entry in the config; models of one entry differ in their training seeds."""
        return {name: model.kind for name, model in self.models.items()}

    def fetched_models(self) -> list[str]:
        """Return the models whose weights are an unchanged checkpoint."""
        return [name for name, model in self.models.items() if model.checkpoint and not model.transfer]

    def transferred_models(self) -> list[str]:
        """Return the models whose training begins with a checkpoint."""
        return [name for name, model in self.models.items() if model.transfer]

    def trained(self) -> list[str]:
        """Return the models that are trained here, from scratch or from a checkpoint."""
        return [name for name in self.models if name not in self.fetched_models()]

    def checkpoint_file(self, model: str) -> list[str]:
        """Return a list with the checkpoint of a model if it is a file; otherwise an empty list."""
        checkpoint = self.models[model].checkpoint
        return [checkpoint] if checkpoint and is_file(checkpoint) else []

    @cached_property
    def weights(self) -> list[str]:
        """Names of the weights that are scored, for every model: every entry, and the epochs that it keeps."""
        names: list[str] = []
        for entry in self.config["weights"]:
            names += [
                entry,
                *(name for name, (weights_of_epoch, _) in self.saved_epochs.items() if weights_of_epoch == entry),
            ]
        return names

    def finetuned(self) -> list[str]:
        """Return the names of the weights that are finetuned; those of their kept epochs come with them."""
        return [name for name in self.config["weights"] if name != PRETRAINED]

    def trainings(self) -> list[tuple[str, str]]:
        """Return (model, weights) of all that is trained here."""
        from_scratch = [(model, PRETRAINED) for model in self.trained()]
        return from_scratch + list(product(self.models, self.finetuned()))

    def keep(self, weights: str) -> list[int]:
        """Return after how many epochs a training keeps its weights, ascending."""
        if weights == PRETRAINED:
            return sorted(self.config["pretraining"]["keep"]) if PRETRAINED in self.config["weights"] else []
        return sorted(self.config["weights"][weights].get("keep", self.config["finetuning"]["keep"]))

    @cached_property
    def saved_epochs(self) -> dict[str, tuple[str, int]]:
        """Name of the weights of every kept epoch to the entry that it is of, and the epoch."""
        epochs, files = {}, {fold_name(name): name for name in self.config["weights"]}
        for entry in self.config["weights"]:
            for epoch in self.keep(entry):
                name = f"{entry}_epoch{epoch}"
                if other := files.get(fold_name(name)):
                    raise HeatproofError(
                        f"The weights {other!r} have the name that epoch {epoch} of {entry!r} gets by `keep`: rename "
                        "them."
                    )
                epochs[name] = (entry, epoch)
        return epochs

    @cached_property
    def model_explainers(self) -> list[str]:
        """Names of the explainers that use the model."""
        return [name for name, entry in self.explainers.items() if entry.uses_model]

    @cached_property
    def reference_explainers(self) -> list[str]:
        """Names of the explainers that do not use the model; their maps are computed once for each dataset."""
        return [name for name, entry in self.explainers.items() if not entry.uses_model]

    @cached_property
    def methods(self) -> dict[str, Method]:
        """Name of each method to the method, grouped by explainer."""
        return {method.name: method for method in all_methods(self.explainers.values())}

    @property
    def reference_methods(self) -> list[str]:
        """Names of the methods that do not use the model."""
        return [name for name, method in self.methods.items() if not method.uses_model]

    def explainer_options(self, explainer: str, baseline: str = "") -> dict[str, Any]:
        """Return the options of an explainer.

        An option `baseline` that is to follow the patch drops becomes `baseline`, or by default the baseline of the
        finetuning. An option `tolerance` that is None becomes the tolerance of the config.
        """
        options = dict(self.explainers[explainer].options)
        if options.get("baseline") == SAME_AS_DROPS:
            options["baseline"] = baseline or self.config["finetuning"]["baseline"]
        limit = self.config["attribution"]["tolerance"]
        if limit != "own" and "tolerance" in options and options["tolerance"] is None:
            options["tolerance"] = limit
        return options

    @property
    def combinations(self) -> list[GridAndBaseline]:
        """Every grid with every baseline."""
        return list(product(self.config["drops"]["grids"], self.baselines))

    def combinations_on(self, weights: str, model: str) -> list[GridAndBaseline]:
        """Return the combinations with which certain weights are scored.

        If the config varies baselines, finetuned weights are scored only with their own baseline.
        """
        return [pair for pair in self.combinations if pair[1] in self._domains(weights, model)]

    def _domains(self, weights: str, model: str) -> list[str]:
        """Return the baselines with which certain weights are scored."""
        tuned = self.finetuning(model, weights)
        if tuned and self.config["baselines"] and tuned["baseline"] in self.baselines:
            return [tuned["baseline"]]
        return self.baselines

    def intact_drops(self, network: NetworkName) -> Patches:
        """Return the patch drops whose store also provides the outputs of a network for the intact images."""
        grid, baseline = self.combinations_on(network.weights, network.model)[0]
        return Patches({"grid": grid, "baseline": baseline})

    @property
    def baselines(self) -> list[str]:
        """Baselines of the patch drops."""
        return list(self.config["drops"]["baselines"])

    @cached_property
    def images_of_kinds(self) -> dict[str, int]:
        """Kind of response to the number of images of the metrics that read it."""
        images = self.config["evaluation"]["images"]
        by_kind: dict[str, int] = images if isinstance(images, dict) else {"drops": images}
        drops, curves = by_kind["drops"], by_kind.get("curves", by_kind["drops"])
        return {"drops": drops, "curves": curves, **{kind: by_kind.get(kind, curves) for kind in ("subsets", "parts")}}

    def images_of(self, metric: str) -> int:
        """Return the number of images on which a metric is scored, by the name of the metric in tables."""
        if metric not in self.metrics:
            return self.images_of_kinds["drops"]
        entry = self.metrics[metric]
        return entry.images or min(self.images_of_kinds[kind] for kind in entry.kinds)

    @cached_property
    def images(self) -> int:
        """Number of images that are explained: the largest number on which a metric is scored."""
        return max([self.images_of_kinds["drops"], *map(self.images_of, self.metrics)])

    def describe_images(self) -> str:
        """Return a phrase on how many images are scored."""
        kinds = {self.images_of_kinds["drops"]: ["patch drops"]}
        for name in self.metrics:
            kinds.setdefault(self.images_of(name), []).append(name)
        if len(kinds) == 1:
            return f"{self.images} images"
        return ", ".join(f"{count} images for {' and '.join(names)}" for count, names in kinds.items())

    @cached_property
    def _response_images(self) -> dict[str, int]:
        """Name of each response to the largest number of images of a metric of the config that reads it."""
        images: dict[str, int] = {}
        for name, entry in self.metrics.items():
            for read in entry.responses.values():
                response = self.shared_responses[read][0].name
                images[response] = max(images.get(response, 0), self.images_of(name))
        return images

    def response_images(self, response: Response) -> int:
        """Return the number of images of a response."""
        more = {"drops": self.drop_images, "features": self.drop_images, "channels": self.similarity_images}
        if response == ANSWERS:
            return self.drop_images
        return more[response.rule] if response.rule in more else self._response_images.get(response.name, self.images)

    def precision_of(self, stage: str) -> str:
        """Return the precision of the networks in a stage: ``maps``, or the rule of a response."""
        precision = self.config["precision"]
        if isinstance(precision, str):
            return precision
        return str(precision.get({"features": "drops", "channels": "drops"}.get(stage, stage), "float32"))

    @property
    def drop_images(self) -> int:
        """Number of images of the patch drops."""
        return max(self.images, self.config["evaluation"]["accuracy_images"])

    @property
    def similarity_images(self) -> int:
        """Number of images on which the similarity of networks is computed."""
        images = self.config["similarity"].get("images")
        return min(images, self.images) if images else min(self.images_of_kinds["drops"], SIMILARITY_IMAGES)

    @property
    def channels(self) -> Channels:
        """The response with activations of channels, for the similarity of networks; it has all channels of a layer."""
        layers = list(
            dict.fromkeys(layer for layer, _ in map(layer_and_channel, self.config["similarity"]["channels"]))
        )
        return Channels({"layers": layers} if layers else {})

    def shards(self, images: int) -> list[int]:
        """Return the numbers of the shards that contain the first `images` images."""
        return list(range(-(-images // self.config["shard_size"])))

    def pairs(self) -> list[tuple[str, str]]:
        """Return every pair of a dataset and a model that is for it."""
        return [(dataset, model) for dataset in self.datasets for model in self.models_of(dataset)]

    def networks(self) -> Iterator[NetworkName]:
        """Yield every network that is scored: dataset, model, weights."""
        for (dataset, model), weights in product(self.pairs(), self.weights):
            # Published weights do not depend on the seed, so that copies for other training seeds have the same.
            if weights != PRETRAINED or self.models[model].kind == model or model not in self.fetched_models():
                yield NetworkName(dataset, model, weights)

    def size_of(self, dataset: str, model: str) -> tuple[int, int] | None:
        """Return height and width of the input of a model on a dataset; None if not known."""
        return self.models[model].facts.size or self.datasets[dataset]["size"]

    def channels_of(self, dataset: str, model: str) -> int:
        """Return the number of channels of images, from the options of the dataset or the model, or from its mean."""
        stated = (self.datasets[dataset]["options"].get("channels"), self.models[model].options.get("channels"))
        return next((count for count in stated if isinstance(count, int)), len(self.models[model].facts.mean))

    def models_of(self, dataset: str) -> list[str]:
        """Return the models for a dataset."""
        return [name for name, model in self.models.items() if dataset in model.datasets]

    def metrics_of(self, weights: str, model: str) -> dict[str, tuple[Grid, str, str]]:
        """Return the single-deletion metrics of certain weights: name to (grid, baseline, output).

        The metric is IDSDS if and only if deleted patches are in the domain of the weights.
        """
        finetuning = self.finetuning(model, weights)
        # A finetuning in which no image loses a patch does not put deleted patches into the domain.
        deletes = finetuning is not None and finetuning["share"] > 0
        domain = (finetuning["grid"], finetuning["baseline"]) if finetuning is not None and deletes else None
        return {
            metric_name(domain, *pair, self.reference, output): (*pair, output)
            for pair in self.combinations_on(weights, model)
            for output in self.config["drops"]["outputs"]
        }

    @property
    def reference(self) -> GridAndBaseline:
        """Grid and baseline of the finetuning, whose metrics have names without a suffix."""
        return self.config["finetuning"]["grid"], self.config["finetuning"]["baseline"]

    @cached_property
    def metrics(self) -> dict[str, MetricChoice]:
        """Name of each metric of the config to its entry, without those of single deletion."""
        sizes = sorted({size for pair in self.pairs() if (size := self.size_of(*pair))})
        entries: dict[str, MetricChoice] = {}
        grid, plain = self.reference
        for name, settings in self.config["metrics"].items():
            entries[name] = read_metric(name, dict(settings), sizes, self.reference, self.config["target"])
            for other in self.config["baselines"][1:] if entries[name].domain == plain else ():
                variant, settings = f"{name}_{other}", {"metric": name, **settings}
                entry = read_metric(variant, settings, sizes, (grid, other), self.config["target"])
                if entry.domain == other:
                    entries[variant] = entry
        for name, entry in entries.items():
            if base_name(name) in ("idsds", "sds"):
                raise HeatproofError(f"The metric {name!r} has a name that `drops` gives: take another one.")
            for response in entry.responses.values():
                pair = response.settings.get("grid"), response.settings.get("baseline")
                if response.rule == Patches.rule and pair not in self.combinations:
                    raise HeatproofError(
                        f"The metric {name!r} reads patch drops of grid {pair[0]} and baseline {pair[1]!r}, and there "
                        "are none: name both in `drops`."
                    )
        return entries

    def metrics_on(self, weights: str, model: str) -> list[str]:
        """Return the metrics of the config with which certain weights are scored, without those of other domains."""
        domains = {None, *self._domains(weights, model)}
        return [name for name, entry in self.metrics.items() if not self.config["baselines"] or entry.domain in domains]

    def entry(self, model: str, weights: str, metric: str) -> MetricChoice:
        """Return a metric of the config, or one of single deletion with a name from `metrics_of`."""
        if metric in self.metrics:
            return self.metrics[metric]
        grid, baseline, output = self.metrics_of(weights, model)[metric]
        responses = {Patches.argument: Patches({"grid": grid, "baseline": baseline})}
        description = METRICS[base_name(metric)]
        return MetricChoice(
            metric, description, {"truncate": False}, responses, description.function.__module__, output
        )

    @cached_property
    def shared_responses(self) -> dict[Response, tuple[Response, list[int] | None]]:
        """Each response that a metric reads to the response that is computed for it, and the points of it to read."""
        return shared_responses(response for entry in self.metrics.values() for response in entry.responses.values())

    def responses_of_rule(self, rule: str) -> dict[str, Response]:
        """Return the responses of a rule that metrics of the config read, by name."""
        return {response.name: response for response, _ in self.shared_responses.values() if response.rule == rule}

    @cached_property
    def method_responses(self) -> dict[str, Response]:
        """Responses that are computed for every method, by name."""
        return self.responses_of_rule("curves")

    @cached_property
    def model_responses(self) -> dict[str, Response]:
        """Responses that are computed once for a network, by name, without those of patches and parts."""
        of_labels = [ANSWERS] if any(self.reads_response(dataset, ANSWERS) for dataset in self.datasets) else []
        return self.responses_of_rule("subsets") | {response.name: response for response in of_labels}

    @property
    def part_metrics(self) -> list[str]:
        """Names of the metrics that read responses to removed parts of an object."""
        return [name for name, entry in self.metrics.items() if "parts" in entry.kinds]

    def finetuning(self, model: str, weights: str) -> dict[str, Any] | None:
        """Return the settings of the finetuning of certain weights; None for `pretrained`.

        Weights of a saved epoch have the settings of their complete training.
        """
        entry = self.saved_epochs[weights][0] if weights in self.saved_epochs else weights
        if entry == PRETRAINED:
            return None
        settings = {**self.models[model].finetuning, **self.config["weights"][entry]}
        # It does not change the training, only which epochs are saved.
        settings.pop("keep")
        return settings

    def training_task(self, dataset: str, model: str, weights: str) -> str:
        """Return the task of the training of certain weights.

        It is that of the dataset, unless the training imitates the network's own outputs for a callable target.
        """
        tuned = self.finetuning(model, weights)
        imitates_outputs = tuned is not None and tuned["labels"] == "own"
        return self.task_of(dataset) if imitates_outputs else self.datasets[dataset]["task"]

    def training(self, model: str, weights: str) -> Mapping[str, Any]:
        """Return the settings of the training of certain weights: of their finetuning, or else of the pretraining."""
        return self.finetuning(model, weights) or self.models[model].pretraining

    def training_devices(self, model: str, weights: str) -> int:
        """Return the number of devices that share the training of certain weights."""
        return int(self.training(model, weights)["devices"])
