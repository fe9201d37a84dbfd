"""Registry of metrics."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from heatproof.core.options import normalise_grid_options, option_choices
from heatproof.core.registry import Registry, RegistryEntry, options_of, select_options, suggest_name
from heatproof.core.tasks import NEEDS, Need, task_provides, unsupported_reason
from heatproof.errors import HeatproofError
from heatproof.metrics.responses.base import Response
from heatproof.metrics.responses.curves import Curves
from heatproof.metrics.responses.patches import Patches

if TYPE_CHECKING:
    from heatproof.core.sequences import Perturbation

Result = tuple[np.ndarray, np.ndarray, Mapping[str, np.ndarray]]
MetricFunction = Callable[..., Any]
SequencesFunction = Callable[..., "Mapping[str, Perturbation]"]
NeedsFunction = Callable[[Mapping[str, Any]], Need]
# What a metric needs of the network, by the value of its option `output`.
NEED_OF_OUTPUT: dict[str, Need] = {"logit": "number", "probability": "probability", "accuracy": "decision"}


@dataclass(frozen=True)
class Metric(RegistryEntry):
    """A metric: a pure function from maps, drops, response curves and labels to scores, with its description.

    Attributes
    ----------
    name
        The key in the config.
    function
        Function of the arrays in `inputs`, in that order, and of the options as keyword arguments. It returns the score
        of each image, (N,) float64, NaN where undefined; whether it is defined, (N,) bool; and a dict of curves by
        name, (N, S) each or (S,) for the complete dataset, empty if the metric has none.
    inputs
        Inputs that the metric reads, for example ``("maps", "drops", "grid")``; the workflow reads nothing else.
    higher_is_better
        Direction of the score.
    range
        Smallest and largest possible score.
    source
        Paper, section and equation.
    options
        Default of every option, including the options of the responses.
    reads
        Kind of response that the metric reads.
    options_function
        A function whose keyword-only arguments are the options of the responses: `sequences` of a metric over curves,
        otherwise `options` of the kind of response.
    order
        Order of deletion for which `higher_is_better` applies; with the other order the direction is reversed. None if
        the metric has no such option.
    measures
        Property of a map that the metric measures; several metrics may share it. "" where no other metric measures it.
    derived_from
        Metrics from which this score follows: one metric that has the same score under another name, or several that it
        combines. Where these are in a ranking, this one is not a test case of its own.
    undefined
        Why an image has no score for reasons other than the map, as a part of a sentence; "" where none is known.
    exempt
        Rules of `heatproof.testing` that the metric breaks by its definition, by name, and the reason.
    declared_needs
        What the metric reads of the network, where that does not follow from its option `output`; see `needs`.
    """

    name: str
    function: MetricFunction
    inputs: tuple[str, ...]
    higher_is_better: bool
    range: tuple[float, float]
    source: str
    options: Mapping[str, Any]
    reads: type[Response]
    options_function: Callable[..., Any]
    order: str | None = None
    measures: str = ""
    derived_from: tuple[str, ...] = ()
    undefined: str = ""
    exempt: Mapping[str, str] = field(default_factory=dict)
    declared_needs: Need | NeedsFunction | None = None

    @property
    def is_custom(self) -> bool:
        """Whether the function is defined outside of heatproof."""
        return not self.function.__module__.startswith("heatproof.")

    def is_higher_better(self, options: Mapping[str, Any]) -> bool:
        """Return whether higher is better with these options."""
        reverse = self.order is not None and options.get("order", self.order) != self.order
        return self.higher_is_better != reverse

    def reads_magnitudes(self, options: Mapping[str, Any] | None = None) -> bool:
        """Return whether the metric reads only the magnitudes of a map, as its perturbation sequences declare.

        A map with signs and its absolute values then have the same score, and count as one method.

        Parameters
        ----------
        options
            Options of the metric; missing ones have their defaults.
        """
        if not issubclass(self.reads, Curves):
            return False
        responses = self.responses({**self.options, **(options or {})}).values()
        return all(bool(response.settings.get("magnitude")) for response in responses)

    @property
    def scores_each_image(self) -> bool:
        """Whether the score of an image does not depend on the other images that are scored with it."""
        return "does_not_depend_on_the_company" not in self.exempt

    def needs(self, options: Mapping[str, Any] | None = None) -> Need:
        """Return what the metric reads of the network with these options; missing ones have their defaults.

        This is `declared_needs` where it is set, and otherwise follows from the option `output`: a logit is any number,
        and the accuracy follows from a class decision.

        Returns
        -------
        str
            ``number``, ``probability`` or ``decision``.

        Raises
        ------
        HeatproofError
            If the value of `output` is unknown.
        """
        completed = {**self.options, **(options or {})}
        if callable(self.declared_needs):
            return self.declared_needs(completed)
        return self.declared_needs or need_of_output(completed)

    def unsupported_reason(self, task: str, options: Mapping[str, Any] | None = None) -> str | None:
        """Return why the metric does not apply to a task, and which option to set; None where it applies.

        Parameters
        ----------
        task
            One of `heatproof.core.tasks.TASKS`, or ``callable``.
        options
            Options of the metric; missing ones have their defaults.
        """
        applies_to_logit = "output" in self.options and task_provides(
            task, self.needs({**(options or {}), "output": "logit"})
        )
        return unsupported_reason(task, self.needs(options), "set `output: logit`" if applies_to_logit else "")

    def complete_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the given options, completed by the defaults.

        Raises
        ------
        HeatproofError
            If an option is unknown.
        """
        for key in options:
            if key not in self.options:
                raise HeatproofError(
                    f"The metric {self.name!r} has no option {key!r}: {suggest_name(key, self.options)}"
                )
        functions = filter(None, (self.options_function, self.function, self.reads.options))
        return {**self.options, **normalise_grid_options(options, *functions)}

    def responses(self, options: Mapping[str, Any], sizes: Iterable[tuple[int, int]] = ()) -> dict[str, Response]:
        """Return the responses that these options need, by the argument that takes each; see `from_options`."""
        return self.reads.from_options(self.options_function, options, sizes)

    def score(self, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> Result:
        """Call the function with its inputs and options; a custom metric gets copies, because it may write to them.

        Parameters
        ----------
        inputs
            Inputs by argument of the function, and ``image_ids``, N strings.
        options
            All options.

        Returns
        -------
        score : numpy.ndarray
            (N,) float64, NaN where the function marks the score as undefined or where it is not finite.
        valid : numpy.ndarray
            (N,) bool.
        curves : dict
            By name, (N, S) each or (S,).

        Raises
        ------
        HeatproofError
            If the function returns anything but scores, their validity and, optionally, curves.
        """
        arguments, metric_options = [inputs[name] for name in self.inputs], select_options(self.function, options)
        if self.is_custom:
            # The function may write to its arguments, which other metrics read as well.
            arguments, metric_options = deepcopy(arguments), deepcopy(metric_options)
        result = self.function(*arguments, **metric_options)
        if not (isinstance(result, tuple) and len(result) in (2, 3)):
            raise HeatproofError(
                f"The metric {self.name!r} returned a {type(result).__name__}: return the scores (N,), whether each is "
                "defined (N,) and, if it has any, a dict of curves."
            )
        score, defined = _filled(result[0], np.nan, np.float64), _filled(result[1], False, bool)
        count = len(inputs["image_ids"])
        if not score.shape == defined.shape == (count,):
            raise HeatproofError(
                f"The metric {self.name!r} returned scores of shape {score.shape} and their validity of shape "
                f"{defined.shape} for {count} images: return one of each for every image."
            )
        valid = defined & np.isfinite(score)
        curves = {name: _curve(values) for name, values in (result[2] if len(result) == 3 else {}).items()}
        return np.where(valid, score, np.nan), valid, curves


def _filled(values: Any, fill: Any, dtype: Any) -> np.ndarray:
    """Return values as an array, with `fill` where they are masked: a masked score is undefined, as NaN is."""
    return np.ma.filled(np.ma.asarray(values, dtype=dtype), fill)


def _curve(values: Any) -> np.ndarray:
    return _filled(values, np.nan, np.float64) if np.ma.isMaskedArray(values) else np.asarray(values)


def need_of_output(options: Mapping[str, Any]) -> Need:
    """Return what the options `output` and `target` need of a network; the predicted class needs a decision.

    Raises
    ------
    HeatproofError
        If the value of `output` is unknown.
    """
    output = options["output"]
    if output not in NEED_OF_OUTPUT:
        raise HeatproofError(f"output is {output!r}: take one of {', '.join(NEED_OF_OUTPUT)}.")
    return "decision" if options.get("target") == "predicted" else NEED_OF_OUTPUT[output]


def outputs_of(metric: Metric) -> list[str]:
    """Return the outputs of the network that a metric can read, the default first; [""] if it has no such option."""
    if "output" not in metric.options:
        return [""]
    allowed = {**option_choices(metric.options_function), **option_choices(metric.function)}.get(
        "output", list(NEED_OF_OUTPUT)
    )
    return sorted(allowed, key=lambda output: output != metric.options["output"])


METRICS: Registry[Metric] = Registry("heatproof.metrics", "metric")


def metric(
    name: str,
    *,
    higher_is_better: bool,
    range: tuple[float, float],
    source: str,
    sequences: SequencesFunction | None = None,
    order: str | None = None,
    reads: type[Response] = Patches,
    measures: str = "",
    derived_from: tuple[str, ...] = (),
    undefined: str = "",
    exempt: Mapping[str, str] | None = None,
    needs: Need | NeedsFunction | None = None,
) -> Callable[[MetricFunction], MetricFunction]:
    """Register a function as a metric.

    Its positional arguments are the inputs, its keyword-only arguments the options.

    Parameters
    ----------
    name
        The key in the config.
    higher_is_better, range, source, order, measures, derived_from, undefined, exempt
        See `Metric`.
    sequences
        Function from options to the perturbation sequences whose response curves the metric reads, by the name of the
        argument that takes each; the metric then reads `Curves`.
    reads
        The kind of response, a subclass of `heatproof.metrics.responses.base.Response`.
    needs
        What the metric reads of the network: ``number``, ``probability``, ``decision``, or a function of all options
        that returns one of them. By default it follows from the option `output`.

    Raises
    ------
    HeatproofError
        If another module has registered a metric of that name, or if the options of the responses or the needs of the
        metric are not declared.

    Examples
    --------
    A metric that correlates patch attribution with patch drops:

    >>> @metric("my_sds", needs="number", higher_is_better=True, range=(-1.0, 1.0), source="mine")
    ... def my_sds(maps, drops, grid):
    ...     score = spearman_rows(patch_sums(maps, grid), drops)
    ...     return score, ~np.isnan(score)
    """
    if sequences is not None:
        reads = Curves
    if not (isinstance(reads, type) and issubclass(reads, Response)):
        raise HeatproofError(
            f"The metric {name!r} reads {reads!r}: give a subclass of heatproof.metrics.responses.base.Response."
        )
    options_function = sequences or reads.options
    if options_function is None:
        raise HeatproofError(f"The metric {name!r} reads {reads.__name__}, and so needs `sequences`.")

    def register(function: MetricFunction) -> MetricFunction:
        existing = METRICS.get(name)
        if existing is not None and existing.function.__module__ != function.__module__:
            raise HeatproofError(
                f"There is a metric {name!r} in {existing.function.__module__}: register yours under another name."
            )
        metric_options = options_of(function)
        options = options_of(options_function) | metric_options
        if not (needs in NEEDS or callable(needs) or (needs is None and "output" in options)):
            raise HeatproofError(
                f"The metric {name!r} does not say what it reads of the network: give @metric `needs`, one of "
                f"{', '.join(NEEDS)}, or give the metric an option `output`."
            )
        METRICS[name] = Metric(
            name=name,
            function=function,
            inputs=tuple(name for name in inspect.signature(function).parameters if name not in metric_options),
            higher_is_better=higher_is_better,
            range=range,
            source=source,
            options=MappingProxyType(options),
            reads=reads,
            options_function=options_function,
            order=order,
            measures=measures,
            derived_from=derived_from,
            undefined=undefined,
            exempt=MappingProxyType(dict(exempt or {})),
            declared_needs=needs,
        )
        return function

    return register
