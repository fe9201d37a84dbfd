"""Base classes of responses: outputs of a network for perturbed images, cached and shared by metrics.

The class of a kind of response declares its settings, the arrays of its store, how the network is run on a batch of
images, and which inputs metrics get from the result. The workflow and `heatproof.evaluate` use the same classes. The
workflow imports this module and those of the kinds when it builds its plan without torch, so they import the code that
runs networks only inside `run` and similar methods.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from heatproof.core.batch import Arrays, Batch
from heatproof.core.grids import Grid, normalise_grid_settings
from heatproof.core.integer_types import as_dtype, widen_dtype
from heatproof.core.provenance import digest
from heatproof.core.registry import select_options
from heatproof.core.specs import ResponseSpec
from heatproof.errors import HeatproofError, NotApplicable

if TYPE_CHECKING:
    from heatproof.core.lazy import torch

Explain = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]
Options = Mapping[str, Any]
# Opens the network of a job, and returns the batch of its first image.
FirstBatch = Callable[[], Batch]
# Outputs that keep the precision of a float64 network.
EXACT_OUTPUTS = ("logit", "log_probability")

KINDS: dict[str, type[Response]] = {}
"""Name to class of every kind of response; a class is registered when it is defined."""


@dataclass(frozen=True)
class Array:
    """Specification of one array of a store.

    Attributes
    ----------
    dims
        Dimensions after ``image``.
    dtype
        The dtype of the values.
    chunk_by_image
        Whether each image is a chunk of its own.
    is_class_number
        Whether the values are class numbers. The dtype is widened if the number of classes requires it.
    """

    dims: tuple[str, ...]
    dtype: str = "float32"
    chunk_by_image: bool = False
    is_class_number: bool = False

    def dtype_for(self, classes: int) -> str:
        """Return the dtype of the values for a number of classes."""
        return widen_dtype(self.dtype, classes - 1) if self.is_class_number else self.dtype


@dataclass(frozen=True)
class Contents:
    """Sizes of the dimensions of a store, labels of some of them, and the reason if the response does not apply."""

    sizes: Mapping[str, int]
    coordinates: Mapping[str, Sequence[str]] = field(default_factory=dict)
    unsupported_reason: str | None = None


@dataclass(frozen=True, eq=False)
class Response(ABC):
    """A response that is computed once and shared by metrics. Subclasses with a `kind` are registered in `KINDS`.

    Attributes
    ----------
    settings
        The settings that define the response, as JSON-compatible values. A baseline is in ``baseline`` and
        ``baseline_options``, a grid of patches in ``grid``.
    kind
        Name of the kind in specs and manifests.
    rule
        Name of the workflow rule that computes the response.
    needs_maps
        Whether the response depends on the maps of an explainer; otherwise it depends only on the network.
    array_specs
        Name to specification of each array of the store.
    needs_intact
        Whether the network must first be run on the intact images.
    recomputes_maps
        Whether maps are recomputed on changed images.
    orders_pixels
        Whether pixels change in the order of a map, which a caller can replace by a ranking.
    evaluate_only_options
        Options that only `heatproof.evaluate` has; the workflow takes their values from the model and the dataset.
    argument
        Default argument of a metric's function that receives the response.
    options
        Function whose keyword-only arguments are the options of the metrics that read the response; None if each metric
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
            existing_module = KINDS.get(cls.kind, cls).__module__
            if existing_module != cls.__module__:
                raise HeatproofError(
                    f"There is a response {cls.kind!r} in {existing_module}: enter yours under another kind."
                )
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
        """Name in paths, which is unique for the settings."""
        return "_".join(self.name_parts) + "-" + digest([self.kind, dict(self.settings)])[:8]

    @property
    def name_parts(self) -> list[str]:
        """Readable parts of the name, which a digest of the settings follows."""
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
        options_function
            The ``sequences`` of the metric, or otherwise the `options` of the class.
        options
            All options of the metric.
        sizes
            Heights and widths of the images, if known.

        Raises
        ------
        HeatproofError
            If the options are invalid for the sizes.
        """
        cls.check(options)
        own_options = select_options(options_function, options)
        return {
            cls.argument: cls(
                {k: plain(v) for k, v in own_options.items() if k not in (*cls.evaluate_only_options, "output")}
            )
        }

    @classmethod  # noqa: B027
    def check(cls, options: Options) -> None:
        """Check constraints on several options, which annotations cannot express."""

    @classmethod
    def complete(cls, options: Options, reference: tuple[Grid, str] = (4, "zeros")) -> dict[str, Any]:
        """Return the options, completed with `reference`, the grid and baseline of the finetuning."""
        return dict(options)

    def environment(self) -> dict[str, str]:
        """Return further dependencies of the response, such as the version of an encoder, by name."""
        return {}

    @abstractmethod
    def contents(self, images: Batch, name: str, first: FirstBatch) -> Contents:
        """Return the dimensions of the store.

        Parameters
        ----------
        images
            The images without their pixels: their dataset and size, and the methods of a map response.
        name
            Name of the dataset in the config.
        first
            Function that opens the network and returns the batch of the first image.

        Raises
        ------
        HeatproofError
            If the dataset lacks what the response needs.
        """

    @abstractmethod
    def run(self, batch: Batch) -> Arrays:
        """Run the network of a batch of N images on changed images, and return the arrays of the store.

        `respond` calls this method; it provides `Batch.intact` for responses with `needs_intact`. A map response reads
        `Batch.maps` and `Batch.methods`.

        Returns
        -------
        mapping
            Name to array (N, …). Arrays that are not in `array_specs` are not stored.

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
            If an integer exceeds the dtype of its array.
        """
        converted = {name: np.asarray(values) for name, values in arrays.items()}
        for name in converted.keys() & self.array_specs.keys():
            classes = 1 + int(converted[name].max(initial=0)) if self.array_specs[name].is_class_number else 1
            converted[name] = as_dtype(
                converted[name], self.array_specs[name].dtype_for(classes), f"The array {name!r}"
            )
        return converted

    def points_of(self, other: Response) -> list[int] | None:
        """Return the indices of another response's points among the points of this one; None if some are missing."""
        return None

    @property
    def fineness(self) -> int:
        """Number of points at which others can read the response, which overrides `points_of`; 0 if it does not."""
        return 0

    def needed_arrays(self, output: str) -> Sequence[str]:
        """Return the names of the arrays that a metric of an output (``logit`` or ``probability``) reads."""
        return list(self.array_specs)

    def images_at_once(self, shard_size: int) -> int | None:
        """Return the number of images that a metric scores at a time; None for all."""
        return shard_size

    def inputs(self, argument: str, arrays: Arrays, batch: Batch, output: str) -> dict[str, Any]:
        """Return the arguments of a metric's function, by name; the default is the arrays.

        Parameters
        ----------
        argument
            Argument of the metric's function that receives the response.
        arrays
            The arrays that `needed_arrays` lists, for N images; those of a map response for one method, at the points
            that the metric reads (`at_points`).
        batch
            The N images, of which ids, targets, size, seed and task are read.
        output
            Output of the network that the metric reads, ``logit`` or ``probability``, unless its function selects it.
        """
        return {argument: arrays}

    def synthetic_arrays(self, size: tuple[int, int]) -> Arrays | None:
        """Return synthetic arrays for two images, with which the options of a metric are checked, or None."""
        return None

    def missing_inputs(self, batch: Batch) -> str | None:
        """Return a description of the missing inputs of `heatproof.evaluate`; None if no input is missing."""
        return None

    @property
    def spec(self) -> ResponseSpec:
        """The spec of the response, from which `response_of` builds it in a job."""
        return ResponseSpec(self.kind, type(self).__module__, dict(self.settings))


class NetworkResponse(Response):
    """Response that needs no maps; most kinds have logits and probabilities for variants of each image."""

    rule = "subsets"
    needs_maps = False
    argument = "drops"
    array_specs: ClassVar[Mapping[str, Array]] = {"logit": Array(("variant",)), "log_probability": Array(("variant",))}

    @property
    def variants(self) -> int:
        """Number of variants of an image, including the intact one."""
        raise NotImplementedError

    def extra_inputs(self, arrays: Arrays, batch: Batch) -> dict[str, Any]:
        """Return further arguments of a metric's function, besides the drops."""
        return {}

    def contents(self, images: Batch, name: str, first: FirstBatch) -> Contents:
        """Return the dimensions of the store."""
        return Contents({"variant": self.variants})

    def inputs(self, argument: str, arrays: Arrays, batch: Batch, output: str) -> dict[str, Any]:
        """Return the drops (N, variants - 1), and the arguments of `extra_inputs`."""
        return {argument: drops_of(arrays, output), **self.extra_inputs(arrays, batch)}

    def needed_arrays(self, output: str) -> Sequence[str]:
        """Return the name of the array of the output, in a list."""
        return [output_array(output)]


class MapResponse(Response):
    """Response that needs maps: quantities at the points of a sequence, for every method of an explainer.

    Attributes
    ----------
    quantities
        Names of the quantities at every point.
    """

    rule = "curves"
    needs_maps = True
    array_specs: ClassVar[Mapping[str, Array]] = {"response": Array(("method", "quantity", "point"), "float64")}
    quantities: ClassVar[tuple[str, ...]]

    @abstractmethod
    def points(self, size: tuple[int, int]) -> int:
        """Return the number of points."""

    @abstractmethod
    def as_argument(self, quantities: Arrays, batch: Batch) -> Any:
        """Return the argument of a metric's function from the quantities (N, points)."""

    def contents(self, images: Batch, name: str, first: FirstBatch) -> Contents:
        """Return the dimensions of the store."""
        names = [method.name for method in images.methods]
        sizes = {"method": len(names), "quantity": len(self.quantities), "point": self.points(images.size)}
        return Contents(sizes, {"method": names, "quantity": list(self.quantities)})

    def maps_by_method(self, batch: Batch) -> Iterator[tuple[np.ndarray, Explain | None]]:
        """Yield the maps (N, H, W) of each method, and the function that recomputes them or None.

        The loop over methods is in `run` of each kind, so that the traceback of an error in the network crosses few
        modules.
        """
        assert batch.maps is not None, "a map response needs maps"
        for method in batch.methods:
            explain = None
            if self.recomputes_maps and method.makes_maps:
                # Imported here, because responses that recompute no maps do not need the explainers.
                from heatproof.explainers.explaining import recomputed_maps

                explain = recomputed_maps(method, batch)
            yield method.select_maps(batch.maps), explain

    def stack_methods(self, by_method: Sequence[Arrays]) -> Arrays:
        """Return the array of the store from the quantities of each method.

        A quantity has the shape (N, points), (N, 1) for one value per image, or () for one value for all images.
        """
        arrays = [np.broadcast_arrays(*(values[name] for name in self.quantities)) for values in by_method]
        return {"response": np.stack([np.stack(values, axis=1) for values in arrays], axis=1)}

    def images_at_once(self, shard_size: int) -> int | None:
        """Return None, because some scores depend on all images."""
        return None

    def inputs(self, argument: str, arrays: Arrays, batch: Batch, output: str) -> dict[str, Any]:
        """Return the argument of one method."""
        by_quantity = {name: arrays["response"][:, number] for number, name in enumerate(self.quantities)}
        return {argument: self.as_argument(by_quantity, batch)}


class IntactOutputs(NetworkResponse):
    """Outputs for the intact images, which responses with `needs_intact` share; no metric reads them alone."""

    rule = "intact"
    array_specs: ClassVar[Mapping[str, Array]] = {}
    argument = "intact"

    def run(self, batch: Batch) -> Arrays:
        """Run the network once on each image."""
        from heatproof.core.passes import intact_responses

        return intact_responses(batch)


def respond(response: Response, batch: Batch) -> dict[str, np.ndarray]:
    """Run the network of a batch on the images of a response.

    If memory runs out, the network is run again with half the batch size.

    Parameters
    ----------
    response
        The response.
    batch
        N images with their network; for a map response also maps and methods. Without `Batch.intact`, responses that
        need the outputs for intact images run the network on these first.

    Returns
    -------
    dict
        Name to array (N, …), in the dtypes of the store; logits of a float64 network keep their precision, so that
        drops are exact.

    Raises
    ------
    NotApplicable
        If the response does not apply to the changed images.
    HeatproofError
        If the network returns a value that is not finite, or memory runs out with a batch size of 1.
    """
    arrays: Arrays = {}
    for attempt in batch.attempts("responses"):
        with attempt as size:
            sized = replace(batch, batch_size=size)
            if response.needs_intact and batch.intact is None:
                sized = replace(sized, intact=IntactOutputs().run(sized))
            arrays = response.run(sized)
    exact = {name: arrays[name] for name in EXACT_OUTPUTS if name in arrays and arrays[name].dtype == np.float64}
    return {**response.cast(arrays), **exact}


def respond_batches(
    response: Response, batches: Iterable[Batch]
) -> Iterator[tuple[Batch, dict[str, np.ndarray] | NotApplicable, float, int]]:
    """Respond to one batch after another; callers read the images of a batch when they yield it, and store the arrays.

    Yields
    ------
    batch : Batch
        The batch.
    arrays : dict or NotApplicable
        As `respond` returns them, or the reason why the response does not apply to the batch.
    seconds : float
        Time since the last batch was stored, including the time to wait for images.
    passes : int
        Number of images that went through the network.
    """
    began = time.monotonic()
    for batch in batches:
        before, arrays = batch.adapted.passes, dict[str, np.ndarray]()
        reason: NotApplicable | None = None
        try:
            arrays = respond(response, batch)
        except NotApplicable as error:
            reason = error
        yield batch, reason or arrays, time.monotonic() - began, batch.adapted.passes - before
        began = time.monotonic()


def response_of(spec: ResponseSpec) -> Response:
    """Return the response of a spec, `Response.spec`; only the module of its kind is imported."""
    import_module(spec.module)
    return KINDS[spec.kind](spec.settings)


def shared_responses(responses: Iterable[Response]) -> dict[Response, tuple[Response, list[int] | None]]:
    """Choose the response to compute for each response: itself, or the finest one that contains its points.

    Returns
    -------
    dict
        Response to a pair: the response to compute, and the indices of the points to read from it, None for all.
    """
    unique = list(dict.fromkeys(responses))
    chosen: dict[Response, tuple[Response, list[int] | None]] = {}
    for response in unique:
        finer = [(other, points) for other in unique if (points := other.points_of(response)) is not None]
        chosen[response] = max(finer, key=lambda pair: pair[0].fineness) if finer else (response, None)
    return chosen


def at_points(arrays: Arrays, index: int, points: Sequence[int] | None = None) -> Arrays:
    """Return the arrays of a map response for one method, at some of the points; None for all."""
    chosen = slice(None) if points is None else list(points)
    return {name: values[:, index][..., chosen] for name, values in arrays.items()}


def output_array(output: str) -> str:
    """Return the name of the array that has an output of the network.

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
        # A caller of `heatproof.evaluate` passed the drops.
        return arrays["drops"]
    values = arrays[output_array(output)].astype(np.float64)
    values = values if output == "logit" else np.exp(values)
    return values[:, :1] - values[:, 1:]


def plain(value: Any) -> Any:
    """Return an option as a JSON-compatible value."""
    return list(value) if isinstance(value, tuple) else value.tolist() if isinstance(value, np.ndarray) else value
