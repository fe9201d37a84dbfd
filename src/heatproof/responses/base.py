"""Base classes of responses: outputs of a network for perturbed images, cached and shared by metrics.

A kind of response is a class that declares all of it: its settings, the arrays of its store, how the network is run on
a batch of images, and what metrics get of the result. The same declaration serves the workflow and
`heatproof.evaluate`. The workflow reads this module and those of the kinds while it builds its plan, so they import
torch, and the code that runs networks, only within the functions that run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from heatproof.base.grids import Grid, normalise_grid_settings
from heatproof.base.methods import Method
from heatproof.base.provenance import digest
from heatproof.base.registry import select_options
from heatproof.base.specs import ResponseSpec
from heatproof.base.whole_numbers import as_dtype, widen_dtype
from heatproof.errors import HeatproofError

if TYPE_CHECKING:
    import torch

    from heatproof.models.registry import InputFacts
    from heatproof.perturbation.batching import Query

Arrays = Mapping[str, np.ndarray]
Explain = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]
Options = Mapping[str, Any]

KINDS: dict[str, type[Response]] = {}
"""Every kind of response, entered where its class is defined."""


@dataclass(frozen=True)
class Array:
    """One array of a store: its dimensions after ``image``, its dtype, and whether each image is a chunk.

    Attributes
    ----------
    of_classes
        Whether its values are numbers of classes, of which there can be more than the dtype holds: it is wider then.
    """

    dims: tuple[str, ...]
    dtype: str = "float32"
    chunk_by_image: bool = False
    is_class_number: bool = False

    def dtype_for(self, classes: int) -> str:
        """Return the dtype of its values where there are so many classes."""
        return widen_dtype(self.dtype, classes - 1) if self.is_class_number else self.dtype


@dataclass(frozen=True)
class Contents:
    """Dimensions of a store, coordinates of some of them, and the reason if the response does not apply."""

    sizes: Mapping[str, int]
    coordinates: Mapping[str, Sequence[str]] = field(default_factory=dict)
    unsupported_reason: str | None = None


@dataclass(frozen=True)
class Batch:
    """A batch of images.

    Attributes
    ----------
    images
        Images (N, C, H, W), normalised.
    labels
        (N,) int64.
    ids
        N strings.
    first
        Index of the first image in the evaluation split.
    intact
        Outputs for the intact images, for responses with `needs_intact`.
    """

    images: torch.Tensor
    labels: torch.Tensor
    ids: Sequence[str]
    first: int = 0
    intact: Arrays | None = None

    def from_row(self, row: int) -> Batch:
        """Return the images from a row on."""
        intact = self.intact and {name: values[row:] for name, values in self.intact.items()}
        return Batch(self.images[row:], self.labels[row:], self.ids[row:], self.first + row, intact)

    def with_target(self, target: str | int) -> Batch:
        """Return the batch with the class that a run explains and scores in the place of the labels."""
        import torch

        if target == "label":
            return self
        if target == "predicted":
            return replace(self, labels=self.targets[:, 1].to(self.labels))
        return replace(self, labels=torch.full_like(self.labels, int(target)))

    @cached_property
    def targets(self) -> torch.Tensor:
        """The label, and the class predicted for the intact image, or the label where there are none: (N, 2) int64."""
        import torch

        assert self.intact is not None, "a response that reads the predicted class must set `needs_intact`"
        labels, predicted = self.labels.cpu(), torch.from_numpy(self.intact["predicted"])
        return torch.stack([labels, torch.where(predicted < 0, labels, predicted)], dim=1)


@dataclass(frozen=True)
class MethodMaps:
    """Input of a map response: maps (N, maps, H, W) of one explainer, its methods and its name."""

    maps: np.ndarray
    methods: Sequence[Method]
    explainer: str = ""


@dataclass(frozen=True)
class NetworkRun:
    """A network and the settings of its passes.

    Attributes
    ----------
    open_network
        Function that returns the network, images (B, C, H, W) to logits (B, K); called on first use.
    device
        Device of the network.
    batch_size
        The largest number of images in one network pass.
    seed
        The workflow's seed.
    facts
        Input format of the model; None if unknown.
    dataset, dataset_name
        Dataset of the images and its name; None for `heatproof.evaluate`.
    explain
        Returns the function that recomputes maps of a method for the images of a batch; None if unavailable.
    caller_inputs
        Inputs that only callers of `heatproof.evaluate` give, by option name.
    """

    open_network: Callable[[], Any]
    device: Any
    batch_size: int
    seed: int
    facts: InputFacts | None = None
    dataset: Any = None
    dataset_name: str = ""
    explain: Callable[[MethodMaps, Method, Batch], Explain] | None = None
    caller_inputs: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def network(self) -> Any:
        """The network."""
        return self.open_network()

    def normalised(self, images: np.ndarray) -> torch.Tensor:
        """Return images (N, C, H, W) in [0, 1] as the network expects them."""
        from heatproof.models.network import normalise

        assert self.facts is not None, "only the workflow has images that are not normalised"
        return normalise(images, self.facts)

    def query(self, batch: Batch, targets: torch.Tensor | None = None) -> Query:
        """Return the query that functions in `perturbation` take, with labels as targets by default."""
        from heatproof.perturbation.batching import Query

        targets = batch.labels if targets is None else targets
        return Query(self.network, batch.images, targets, batch.ids, self.seed, self.batch_size, self.device)


@dataclass(frozen=True)
class ScoredImages:
    """Images that a metric scores: ids, labels (N,), height and width in pixels, the seed, and the network's task."""

    ids: Sequence[str]
    labels: np.ndarray
    size: tuple[int, int]
    seed: int
    task: str = "multiclass"


@dataclass(frozen=True)
class MetricInput:
    """Reading of a response by a metric: argument, points and output.

    Attributes
    ----------
    argument
        Argument of the metric's function that takes the response.
    response
        The response.
    points
        Indices of the points that are read; None for all.
    output
        Output of the network that is read, unless the metric's function chooses it.
    """

    argument: str
    response: Response
    points: list[int] | None = None
    output: str = "logit"

    def inputs(self, arrays: Arrays, images: ScoredImages, index: int = 0) -> dict[str, Any]:
        """Return the inputs of the metric's function, by argument.

        Parameters
        ----------
        arrays
            Arrays that the response lists as `needed_arrays`, for N images.
        images
            The N images.
        index
            Index of the method in the store, for a map response.
        """
        return self.response.inputs(self, arrays, images, index)


@dataclass(frozen=True, eq=False)
class Response(ABC):
    """A response that is computed once and shared. Subclasses with a `kind` are registered in `KINDS`.

    Attributes
    ----------
    settings
        Settings that define the response, as plain values; the baseline is in ``baseline`` and ``baseline_options``, a
        grid of patches in ``grid``.
    kind
        Name of the kind in specs and manifests.
    rule
        Rule of the workflow that computes the response.
    along_maps
        Whether the response depends on the maps of an explainer, or on the network only.
    holds
        Arrays of the store.
    needs_intact
        Whether the network is first run on the intact images.
    explains
        Whether maps are recomputed on changed images.
    orders_pixels
        Whether pixels go in the order of a map, for which a ranking can be given.
    in_memory
        Options of `heatproof.evaluate` only; the workflow takes them from the model and the dataset.
    argument
        Default argument of a metric's function that takes the response.
    options
        Function whose keyword-only arguments are the options of metrics that read the response; None if each metric
        defines its own. It is never called. ``output`` selects the output that is read, and is not a setting.
    """

    settings: Options = field(default_factory=dict)

    kind: ClassVar[str] = ""
    rule: ClassVar[str]
    needs_maps: ClassVar[bool]
    array_specs: ClassVar[Mapping[str, Array]]
    needs_intact: ClassVar[bool] = False
    recomputes_maps: ClassVar[bool] = False
    orders_pixels: ClassVar[bool] = False
    argument: ClassVar[str]
    evaluate_only_options: ClassVar[tuple[str, ...]] = ()
    options: ClassVar[Callable[..., None] | None] = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", normalise_grid_settings(self.settings))

    def __init_subclass__(cls) -> None:
        if cls.__dict__.get("kind"):
            known = KINDS.get(cls.kind, cls).__module__
            if known != cls.__module__:
                raise HeatproofError(f"There is a response {cls.kind!r} in {known}: enter yours under another kind.")
            KINDS[cls.kind] = cls

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Response) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @cached_property
    def _identity(self) -> tuple[str, str]:
        return self.kind, repr(sorted(self.settings.items()))

    @cached_property
    def name(self) -> str:
        """Name in paths, derived from the settings."""
        return "_".join(self.name_parts) + "-" + digest([self.kind, dict(self.settings)])[:8]

    @property
    def name_parts(self) -> list[str]:
        """Readable prefix of the name."""
        return [self.kind]

    @property
    def uses_hooks(self) -> bool:
        """Whether the response uses hooks, which a compiled network does not support."""
        return self.recomputes_maps

    @classmethod
    def from_options(
        cls, options_function: Callable[..., Any], options: Options, sizes: Iterable[tuple[int, int]] = ()
    ) -> dict[str, Response]:
        """Return the responses that a metric with these options reads, by argument name.

        Parameters
        ----------
        asks
            The metric's ``sequences``, or else the class's `options`.
        options
            All options of the metric.
        sizes
            Height and width of the images, if known.

        Raises
        ------
        HeatproofError
            If the options do not fit.
        """
        cls.check(options)
        own = select_options(options_function, options)
        return {
            cls.argument: cls({k: plain(v) for k, v in own.items() if k not in (*cls.evaluate_only_options, "output")})
        }

    @classmethod  # noqa: B027
    def check(cls, options: Options) -> None:
        """Check combinations of options that annotations cannot express."""

    @classmethod
    def complete(cls, options: Options, reference: tuple[Grid, str] = (4, "zeros")) -> dict[str, Any]:
        """Complete the options with the grid and baseline of the finetuning, `reference`."""
        return dict(options)

    def environment(self) -> dict[str, str]:
        """Return further dependencies of the response, such as the version of an encoder."""
        return {}

    @abstractmethod
    def contents(self, network_run: NetworkRun, size: tuple[int, int], names: Sequence[str]) -> Contents:
        """Return the dimensions of the store for images of this size and methods of these names."""

    @abstractmethod
    def run(self, network_run: NetworkRun, batch: Batch, method_maps: MethodMaps | None) -> Arrays:
        """Run the network on a batch of N images, and return the arrays of the store.

        Parameters
        ----------
        session
            The network and the settings of its passes.
        batch
            The images.
        along
            Maps of the images for a response that needs them, else None.

        Returns
        -------
        mapping
            Name to array (N, …). Arrays of other names than those in `array_specs` are not stored.

        Raises
        ------
        NotApplicable
            If the response does not apply to the changed images.
        """

    def cast(self, arrays: Arrays) -> dict[str, np.ndarray]:
        """Return the arrays in the dtypes of the store.

        Raises
        ------
        HeatproofError
            If a whole number is beyond that of its array.
        """
        made = {name: np.asarray(values) for name, values in arrays.items()}
        for name in made.keys() & self.array_specs.keys():
            classes = 1 + int(made[name].max(initial=0)) if self.array_specs[name].is_class_number else 1
            made[name] = as_dtype(made[name], self.array_specs[name].dtype_for(classes), f"The array {name!r}")
        return made

    def points_of(self, other: Response) -> list[int] | None:
        """Return the indices of another response's points in this one; None if this one lacks some."""
        return None

    @property
    def fineness(self) -> int:
        """Number of shares along a sequence, 0 for none; the finest response that serves another is used."""
        return len(self.settings.get("fractions") or ())

    def needed_arrays(self, output: str) -> Sequence[str]:
        """Return the names of the arrays that a metric over an output reads."""
        return list(self.array_specs)

    def images_at_once(self, shard_size: int) -> int | None:
        """Return the number of images that a metric scores at a time; None for all."""
        return shard_size

    def inputs(self, metric_input: MetricInput, arrays: Arrays, images: ScoredImages, index: int) -> dict[str, Any]:
        """Return the inputs of a metric's function; see `MetricInput.inputs`. By default the arrays."""
        return {metric_input.argument: arrays}

    def synthetic_arrays(self, size: tuple[int, int]) -> Arrays | None:
        """Return synthetic arrays for two images, on which the options of a metric are checked; None for none."""
        return None

    def missing_inputs(self, network_run: NetworkRun) -> str | None:
        """Return, in words, which inputs of `heatproof.evaluate` are missing; None if none are."""
        return None

    @property
    def spec(self) -> ResponseSpec:
        """What describes the response to a job."""
        return ResponseSpec(self.kind, type(self).__module__, dict(self.settings))


class NetworkResponse(Response):
    """Response that needs no maps: as a rule logits and probabilities of variants of each image."""

    rule = "subsets"
    needs_maps = False
    argument = "drops"
    array_specs: ClassVar[Mapping[str, Array]] = {"logit": Array(("variant",)), "log_probability": Array(("variant",))}

    @property
    def variants(self) -> int:
        """Number of variants of an image, including the intact one."""
        raise NotImplementedError

    def beside(self, arrays: Arrays, images: ScoredImages) -> dict[str, Any]:
        """Return the inputs of a metric's function besides the drops."""
        return {}

    def contents(self, network_run: NetworkRun, size: tuple[int, int], names: Sequence[str]) -> Contents:
        """Return the dimensions of the store."""
        return Contents({"variant": self.variants})

    def inputs(self, metric_input: MetricInput, arrays: Arrays, images: ScoredImages, index: int) -> dict[str, Any]:
        """Return the drops (N, variants - 1), and the inputs of `beside`."""
        return {metric_input.argument: drops_of(arrays, metric_input.output), **self.beside(arrays, images)}

    def needed_arrays(self, output: str) -> Sequence[str]:
        """Return the name of the array of the output."""
        return [output_array(output)]


class MapResponse(Response):
    """Response that needs maps: quantities at the points of a sequence, for every method of an explainer.

    Attributes
    ----------
    quantities
        What is known at every point.
    """

    rule = "curves"
    needs_maps = True
    array_specs: ClassVar[Mapping[str, Array]] = {"response": Array(("method", "quantity", "point"), "float64")}
    quantities: ClassVar[tuple[str, ...]]

    @abstractmethod
    def points(self, size: tuple[int, int]) -> int:
        """Return the number of points."""

    @abstractmethod
    def as_argument(self, quantities: Arrays, images: ScoredImages) -> Any:
        """Return the input of a metric's function from quantities (N, points)."""

    def contents(self, network_run: NetworkRun, size: tuple[int, int], names: Sequence[str]) -> Contents:
        """Return the dimensions of the store."""
        sizes = {"method": len(names), "quantity": len(self.quantities), "point": self.points(size)}
        return Contents(sizes, {"method": list(names), "quantity": list(self.quantities)})

    def maps_by_method(
        self, network_run: NetworkRun, batch: Batch, method_maps: MethodMaps | None
    ) -> Iterator[tuple[np.ndarray, Explain | None]]:
        """Yield the maps (N, H, W) of each method, and what recomputes them if the response `recomputes_maps`, else None.

        A `run` loops over the methods itself, so that an error in the network is traced through few modules.
        """
        assert method_maps is not None, "a response along maps needs the maps"
        for method in method_maps.methods:
            explain = (
                network_run.explain(method_maps, method, batch)
                if self.recomputes_maps and network_run.explain
                else None
            )
            yield method.select_maps(method_maps.maps), explain

    def stack_methods(self, every: Sequence[Arrays]) -> Arrays:
        """Return the array of the store from the quantities of each method.

        A quantity is (N, points), or has one value for all points of an image, (N, 1), or one for all images.
        """
        arrays = [np.stack(np.broadcast_arrays(*(one[name] for name in self.quantities)), axis=1) for one in every]
        return {"response": np.stack(arrays, axis=1)}

    def images_at_once(self, shard_size: int) -> int | None:
        """Return None, because some scores depend on all images."""
        return None

    def inputs(self, metric_input: MetricInput, arrays: Arrays, images: ScoredImages, index: int) -> dict[str, Any]:
        """Return the argument of one method."""
        chosen = slice(None) if metric_input.points is None else metric_input.points
        values = arrays["response"]
        of = {name: values[:, index, number][:, chosen] for number, name in enumerate(self.quantities)}
        return {metric_input.argument: self.as_argument(of, images)}


def response_of(spec: ResponseSpec) -> Response:
    """Return the response that `Response.spec` describes; imports only the module of its kind."""
    import_module(spec.module)
    return KINDS[spec.kind](spec.settings)


def shared_responses(responses: Iterable[Response]) -> dict[Response, tuple[Response, list[int] | None]]:
    """Choose the response that serves each response: itself, or the finest one that contains its points.

    Returns
    -------
    dict
        Response to the one that serves it and the points to read; None for all of them.
    """
    unique = list(dict.fromkeys(responses))
    chosen: dict[Response, tuple[Response, list[int] | None]] = {}
    for response in unique:
        finer = [(other, points) for other in unique if (points := other.points_of(response)) is not None]
        chosen[response] = max(finer, key=lambda candidate: candidate[0].fineness, default=(response, None))
    return chosen


def output_array(output: str) -> str:
    """Return the name of the array from which an output of the network is read.

    Raises
    ------
    HeatproofError
        If there is no such output.
    """
    if output not in ("logit", "probability"):
        raise HeatproofError(f"output is {output!r}: take 'logit' or 'probability'.")
    return "logit" if output == "logit" else "log_probability"


def drops_of(arrays: Arrays, output: str) -> np.ndarray:
    """Return the drop of each variant from the intact image, (N, V - 1) float64."""
    if "drops" in arrays:
        # The caller gave them.
        return arrays["drops"]
    values = arrays[output_array(output)].astype(np.float64)
    values = values if output == "logit" else np.exp(values)
    return values[:, :1] - values[:, 1:]


def plain(value: Any) -> Any:
    """Return an option as a JSON-compatible value."""
    return list(value) if isinstance(value, tuple) else value.tolist() if isinstance(value, np.ndarray) else value
