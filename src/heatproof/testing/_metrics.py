"""Rules that every metric has to follow."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from heatproof.api.evaluate import evaluate, recomputing, score_metrics
from heatproof.api.selected_metrics import SelectedMetric
from heatproof.core.batch import Batch
from heatproof.core.methods import methods_of
from heatproof.core.network import attach
from heatproof.core.output_reader import OutputReader
from heatproof.core.tasks import CALLABLE, TASKS, task_provides
from heatproof.errors import HeatproofError, NotApplicable
from heatproof.metrics.registry import METRICS, Metric
from heatproof.testing._networks import (
    DEFAULT_FORM,
    NON_SQUARE,
    SQUARE,
    Form,
    convolutional,
    random_images,
    tiny_network,
)
from heatproof.testing._rules import RuleBroken
from heatproof.testing._side_effects import (
    difference,
    files_left_by,
    network_state,
    process_changes,
    restored_process,
    seed_everything,
)

# Curves of logits are summed in float32.
CLOSE = 1e-5
# Smallest advantage of a perfect map that is not due to rounding.
CHANCE = 1e-6


@dataclass(frozen=True)
class MetricSubject:
    """A metric under test, and its options."""

    entry: Metric
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the metric, for messages."""
        return self.entry.name

    def selected(self, images: torch.Tensor, function: Callable[..., Any] | None = None) -> SelectedMetric:
        """Return the metric with complete options, and with another function if one is given."""
        entry = self.entry if function is None else replace(self.entry, function=function)
        inputs = {**caller_inputs(self.entry, images), **self.options}
        options = entry.reads.complete(entry.complete_options(inputs))
        return SelectedMetric(entry, options, entry.responses(options), entry.name)


class ScoringInputs(NamedTuple):
    """A network, N images with classes, names and maps (N, H, W), and a function that recomputes maps."""

    network: nn.Module
    images: torch.Tensor
    targets: torch.Tensor
    maps: np.ndarray
    ids: tuple[str, ...]
    explain: Callable[[torch.Tensor, torch.Tensor], Any] | None = None
    seed: int = 0
    batch_size: int = 64

    def select_images(self, rows: Sequence[int]) -> ScoringInputs:
        """Return the inputs for a subset of the images."""
        chosen = list(rows)
        return self._replace(
            images=self.images[chosen],
            targets=self.targets[chosen],
            maps=self.maps[chosen],
            ids=tuple(self.ids[row] for row in chosen),
        )


class Scores(NamedTuple):
    """Scores (N,), and whether each is defined (N,)."""

    score: np.ndarray
    valid: np.ndarray


def caller_inputs(entry: Metric, images: torch.Tensor) -> dict[str, Any]:
    """Return artificial inputs that only a caller has: the mean and std of images in [0, 1], and quarters as parts."""
    count, channels, height, width = images.shape
    masks = torch.zeros(count, 4, height, width, dtype=torch.bool)
    for part in range(4):
        row, column = divmod(part, 2)
        masks[:, part, row * height // 2 : (row + 1) * height // 2, column * width // 2 : (column + 1) * width // 2] = (
            True
        )
    removed = images[:, None] * ~masks[:, :, None]
    defaults = {"mean": [0.5] * channels, "std": [0.5] * channels, "masks": masks.numpy(), "removed": removed}
    return {name: defaults[name] for name in entry.reads.evaluate_only_options if name in defaults}


def smooth_maps(images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return maps that change smoothly with the image."""
    return (images + 2).sum(1) * (1 + targets[:, None, None])


def decisive_network(form: Form = DEFAULT_FORM, seed: int = 0) -> nn.Module:
    """Return a convolutional network that predicts several classes, and often another class for a changed image."""
    network, images = tiny_network(convolutional, form, seed), random_images(form, 32, seed=9)
    head = next(layer for layer in network.modules() if isinstance(layer, nn.Linear))
    head.weight *= 10
    head.bias.sub_(network(images).mean(0))
    return network


def erratic_maps(images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return maps that change completely if noise is added to the image."""
    return (images * 1e3).sin().sum(1)


def _recomputing(inputs: ScoringInputs, explain: Callable[..., torch.Tensor]) -> ScoringInputs:
    return inputs._replace(explain=explain, maps=explain(inputs.images, inputs.targets).numpy())


def scoring_inputs(form: Form = DEFAULT_FORM, count: int = 5, seed: int = 0) -> ScoringInputs:
    """Return a convolutional network, and images with random maps."""
    drawn, images = np.random.default_rng(seed), random_images(form, count, seed)
    network = decisive_network(form)
    return ScoringInputs(
        network,
        images,
        network(images).argmax(1),
        drawn.normal(size=(count, *form.size)).astype(np.float32),
        tuple(f"image {row}" for row in range(count)),
        smooth_maps,
    )


def known_effects(count: int = 6) -> tuple[ScoringInputs, np.ndarray]:
    """Return a linear network with images, and maps (N, H, W) of the contribution of each pixel to the target's logit.

    With rows and columns exchanged, a map is nearly its own negative, so that a metric that exchanges them is detected.
    """
    drawn, (height, width) = np.random.default_rng(0), SQUARE
    signs = np.sign(drawn.normal(size=(height, width)))
    signs = np.where(np.tri(height, dtype=bool), signs, signs.T)
    # The sum of effects of patches and of pixels, so that both matter.
    effects = np.kron(drawn.normal(size=(4, 4)), np.ones((4, 4))) + drawn.normal(size=(height, width))
    weights = signs * ((effects - effects.T) * 0.02 + 0.02)
    noise = drawn.uniform(-0.1, 0.1, size=(count, 3, height, width))
    images = signs * drawn.uniform(0.6, 0.9, size=(count, 1, 1, 1)) + noise
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * height * width, 2)).eval().requires_grad_(False)
    linear = network[1]
    assert isinstance(linear, nn.Linear)
    linear.weight[0] = torch.from_numpy(np.repeat(weights[None], 3, 0) / 3).float().flatten()
    linear.weight[1], linear.bias[:] = -linear.weight[0], 0.0
    ids = tuple(f"image {row}" for row in range(count))
    maps = (images * weights / 3).sum(1)
    targets = torch.zeros(count, dtype=torch.long)
    return ScoringInputs(
        network, torch.from_numpy(images).float(), targets, maps.astype(np.float32), ids, smooth_maps
    ), maps


def scores_of(subject: MetricSubject, inputs: ScoringInputs, function: Callable[..., Any] | None = None) -> Scores:
    """Return the scores of a metric, without the precautions by which heatproof preserves the environment."""
    selected = subject.selected(inputs.images, function)
    methods = methods_of({"map": False})
    if inputs.explain is not None:
        methods = [replace(method, explainer=recomputing(inputs.explain)) for method in methods]
    height, width = inputs.maps.shape[1:]
    batch = Batch(
        network=inputs.network,
        output=inputs.network,
        facts=None,
        images=inputs.images,
        targets=inputs.targets,
        image_ids=inputs.ids,
        seed=inputs.seed,
        batch_size=inputs.batch_size,
        maps=inputs.maps[:, None],
        methods=methods,
        inputs={"ranking": None},
        size=(height, width),
    )
    with torch.inference_mode():
        (result,) = score_metrics(batch, {subject.name: selected})[0][subject.name].values()
    return Scores(result["score"].values, result["valid"].values)


class MetricCall(NamedTuple):
    """A call of the metric's function: inputs before and after, the result, and a function that repeats it."""

    before: Any
    after: Any
    returned: Any
    again: Callable[[], Any]


def calls_of(subject: MetricSubject, inputs: ScoringInputs) -> list[MetricCall]:
    """Return the calls of the metric's function."""
    calls, function = [], subject.entry.function

    @functools.wraps(function)
    def spy(*arguments: Any, **options: Any) -> Any:
        before = copy.deepcopy((arguments, options))
        returned = function(*arguments, **options)
        copied = copy.deepcopy(before)
        calls.append(MetricCall(before, (arguments, options), returned, lambda: function(*copied[0], **copied[1])))
        return returned

    scores_of(subject, inputs, spy)
    return calls


def same(value: Any, other: Any) -> bool:
    """Tell whether two values are equal, including all nested values and arrays."""
    if isinstance(value, np.ndarray | torch.Tensor):
        first, second = np.asarray(value), np.asarray(other)
        return first.dtype == second.dtype and np.array_equal(first, second, equal_nan=first.dtype.kind in "fc")
    if isinstance(value, Mapping):
        return value.keys() == other.keys() and all(same(value[key], other[key]) for key in value)
    if isinstance(value, list | tuple):
        return len(value) == len(other) and all(map(same, value, other))
    if hasattr(value, "__dict__") and not callable(value):
        return all(same(value, vars(other)[key]) for key, value in vars(value).items())
    return callable(value) or value == other


def require_same(actual: Scores, expected: Scores, case: str, remedy: str, limit: float = CLOSE) -> None:
    """Refuse scores that differ by more than a share of their size, or that are defined for other images."""
    if not np.array_equal(actual.valid, expected.valid):
        raise RuleBroken(f"defined other scores {case}", remedy)
    difference = np.abs(actual.score - expected.score)[expected.valid]
    scale = np.maximum(1, np.abs(expected.score[expected.valid]))
    if len(difference) and not (difference / scale).max() <= limit:
        raise RuleBroken(f"gave scores that differ by {difference.max():.2g} {case}", remedy)


def returns_scores(subject: MetricSubject) -> None:
    """The function returns float64 scores (N,), whether each is defined, bool (N,), and named curves."""
    inputs = scoring_inputs()
    for call in calls_of(subject, inputs):
        if not isinstance(call.returned, tuple) or len(call.returned) not in (2, 3):
            raise RuleBroken(f"returned {type(call.returned).__name__}", "return scores, validity and a dict of curves")
        score, valid = (np.asarray(part) for part in call.returned[:2])
        if score.shape != (5,) or valid.shape != (5,):
            raise RuleBroken(
                f"returned scores {score.shape} and validity {valid.shape} for 5 images", "return one of each"
            )
        if score.dtype != np.float64 or valid.dtype != bool:
            raise RuleBroken(f"returned scores in {score.dtype} and validity in {valid.dtype}", "use float64 and bool")
        if not np.isfinite(score[valid]).all():
            raise RuleBroken("returned a score that is not finite as defined", "set its validity to False")
        if np.isfinite(score[~valid]).any():
            raise RuleBroken("returned a number where the score is undefined", "return NaN there")
        for name, curve in (call.returned[2] if len(call.returned) == 3 else {}).items():
            if np.ndim(curve) not in (1, 2) or (np.ndim(curve) == 2 and len(curve) != 5):
                raise RuleBroken(f"returned the curve {name!r} of shape {np.shape(curve)}", "return (N, S) or (S,)")


def leaves_its_inputs(subject: MetricSubject) -> None:
    """Maps and all other inputs are unchanged."""
    for count in (5, 2, 1):
        for call in calls_of(subject, scoring_inputs(count=count)):
            if not same(call.before, call.after):
                raise RuleBroken(f"wrote to its inputs, of {count} images", "work on copies")


def leaves_images_and_maps(subject: MetricSubject) -> None:
    """Images, classes and maps of the caller are unchanged."""
    inputs = scoring_inputs()
    before = copy.deepcopy(inputs[1:4])
    scores_of(subject, inputs)
    if not same(before, inputs[1:4]):
        raise RuleBroken("changed images, classes or maps", "let its response work on copies")


def leaves_the_network(subject: MetricSubject) -> None:
    """Weights, buffers, modes, hooks and attributes of the network are unchanged, and no pass runs in training mode."""
    inputs, modes = scoring_inputs(), []
    before = network_state(inputs.network)
    scores_of(subject, inputs)
    if changed := difference(before, network_state(inputs.network)):
        raise RuleBroken(f"left these otherwise: {', '.join(changed)}", "undo it in a finally clause")
    for module in inputs.network.modules():
        module.register_forward_pre_hook(lambda module, _: modes.append(module.training))
    scores_of(subject, inputs)
    if any(modes):
        raise RuleBroken("ran a part of the network in training mode", "leave the mode as it is")


def leaves_the_process(subject: MetricSubject) -> None:
    """Random states, modes and settings of torch and NumPy, filters and loggers are unchanged."""
    inputs = scoring_inputs()
    if changed := process_changes(lambda: scores_of(subject, inputs)):
        raise RuleBroken(
            f"left these otherwise: {', '.join(changed)}", "restore what it sets, and draw from its own seed"
        )


def leaves_no_file(subject: MetricSubject) -> None:
    """No file is written to the working folder, the home folder or the folder for temporary files."""
    inputs = scoring_inputs()
    if files := files_left_by(lambda: scores_of(subject, inputs)):
        raise RuleBroken(f"left {', '.join(files)}", "remove what it writes, or write nothing")


def is_repeatable(subject: MetricSubject) -> None:
    """The same inputs give the same scores, independently of the global random states and of earlier calls."""
    inputs, results = scoring_inputs(), []
    calls = calls_of(subject, inputs)
    for seed in (1, 2):
        with restored_process():
            seed_everything(seed)
            results.append(scores_of(subject, inputs))
        scores_of(subject, scoring_inputs(seed=1))
    require_same(results[0], results[1], "in a second call", "draw from the option `seed`", limit=0.0)
    for call in calls:
        if not same(call.again(), call.returned):
            raise RuleBroken("returned something else for copies of its inputs", "keep nothing between calls")


def follows_the_map(subject: MetricSubject) -> None:
    """Other maps have other scores."""
    inputs, other_inputs = scoring_inputs(), scoring_inputs(seed=1)
    if subject.selected(inputs.images).responses and _explains(subject, inputs):
        other_inputs = _recomputing(inputs, erratic_maps)
    else:
        other_inputs = inputs._replace(maps=other_inputs.maps)
    scores, other_scores = scores_of(subject, inputs), scores_of(subject, other_inputs)
    if same(scores, other_scores):
        raise RuleBroken("gave the same scores to other maps", "read the maps, and keep nothing between calls")


def _explains(subject: MetricSubject, inputs: ScoringInputs) -> bool:
    return any(response.recomputes_maps for response in subject.selected(inputs.images).responses.values())


def follows_the_network(subject: MetricSubject) -> None:
    """Another network, or other weights in the same network, give other scores."""
    inputs = scoring_inputs()
    if _explains(subject, inputs):
        raise NotApplicable("it reads what explains the network")
    expected, network = scores_of(subject, inputs), decisive_network(seed=1)
    if same(scores_of(subject, inputs._replace(network=network)), expected):
        raise RuleBroken(
            "gave the same scores for another network", "read a response of the network, and score it less coarsely"
        )
    inputs.network.load_state_dict(network.state_dict())
    fresh_scores = scores_of(subject, inputs._replace(network=network))
    require_same(
        scores_of(subject, inputs), fresh_scores, "for a network that had other weights", "keep nothing between calls"
    )


def does_not_depend_on_the_company(subject: MetricSubject) -> None:
    """An image has the same score alone, in another order, and among other images."""
    inputs = scoring_inputs()
    expected = scores_of(subject, inputs)
    for rows, case in (([3], "for an image alone"), ([4, 2, 0, 1, 3], "in another order"), ([1, 4], "in part")):
        expected_part = Scores(expected.score[rows], expected.valid[rows])
        require_same(scores_of(subject, inputs.select_images(rows)), expected_part, case, "reduce over images nowhere")


def does_not_depend_on_the_batch_size(subject: MetricSubject) -> None:
    """Scores are the same for any number of images in a pass, and no pass has more images."""
    inputs, sizes = scoring_inputs(), []
    expected = scores_of(subject, inputs)
    inputs.network.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    for size in (1, 3):
        sizes.clear()
        actual = scores_of(subject, inputs._replace(batch_size=size))
        require_same(actual, expected, f"with batch_size={size}", "reduce over images nowhere, and do not divide by N")
        # A single image may be passed with a copy of itself.
        if max(sizes, default=0) > max(size, 2):
            raise RuleBroken(f"passed {max(sizes)} images at once with batch_size={size}", "split what it passes")


def keeps_to_its_range(subject: MetricSubject) -> None:
    """Scores of good, bad, random and large maps lie in the registered range."""
    inputs, perfect = known_effects()
    low, high = subject.entry.range
    maps_by_case = {
        "known effects": perfect,
        "their negatives": -perfect,
        "random values": scoring_inputs().maps[:1],
        "large values": perfect * 1e6,
    }
    for case, maps in maps_by_case.items():
        result = scores_of(subject, inputs._replace(maps=np.broadcast_to(maps, perfect.shape).astype(np.float32)))
        inside = result.score[result.valid]
        if len(inside) and not (low - CLOSE <= inside.min() and inside.max() <= high + CLOSE):
            raise RuleBroken(
                f"scored {case} from {inside.min():.3g} to {inside.max():.3g}, outside of [{low}, {high}]",
                "register it with the range that it has",
            )


def prefers_known_effects(subject: MetricSubject) -> None:
    """On a linear network, the effects of pixels score better than random maps, and no worse than their negatives."""
    _prefers_effects(subject, *known_effects())


def prefers_known_effects_on_numbers(subject: MetricSubject) -> None:
    """Known effects also score best for regressions and callable targets with negative, large or increasing outputs."""
    options = {**subject.options, **({"output": "logit"} if "output" in subject.entry.options else {})}
    for task in (*TASKS, CALLABLE):
        if task_provides(task, "probability"):
            continue
        if unsupported_reason := subject.entry.unsupported_reason(task, options):
            raise NotApplicable(unsupported_reason)
        for scale, offset in ((1, -50), (100, 3000), (-1, -5)):
            inputs, maps = effects_on_numbers(task, scale, offset)
            # A number below that of the baseline may have no score, but a score must have the right order.
            _prefers_effects(replace(subject, options=options), inputs, maps, undefined=scale < 0)


def effects_on_numbers(task: str, scale: float, offset: float) -> tuple[ScoringInputs, np.ndarray]:
    """Return `known_effects` for a network with one output: the first logit times `scale`, plus `offset`."""
    inputs, maps = known_effects()
    _, linear = inputs.network.children()
    assert isinstance(linear, nn.Linear)
    number = nn.Linear(linear.in_features, 1)
    network = nn.Sequential(nn.Flatten(), number).eval().requires_grad_(False)
    number.weight[:], number.bias[:] = linear.weight[:1] * scale, offset
    of_first = (lambda output, targets: output[:, 0]) if task == CALLABLE else None
    attach(network, reader=OutputReader(function=of_first) if of_first else OutputReader(task))
    return inputs._replace(network=network, maps=(maps * scale).astype(np.float32)), maps * scale


def _prefers_effects(
    subject: MetricSubject, inputs: ScoringInputs, perfect: np.ndarray, *, undefined: bool = False
) -> None:
    sign = 1 if subject.entry.is_higher_better(subject.selected(inputs.images).options) else -1
    noise = np.random.default_rng(1).normal(size=perfect.shape)
    worse: dict[str, ScoringInputs] = {
        "their negatives": inputs._replace(maps=-inputs.maps),
        "random maps": inputs._replace(maps=noise.astype(np.float32)),
    }
    if _explains(subject, inputs):
        inputs, worse = _recomputing(inputs, smooth_maps), {"maps that jump": _recomputing(inputs, erratic_maps)}
    expected = scores_of(subject, inputs)
    if not expected.valid.any() and not undefined:
        raise RuleBroken(
            "gave no score to any map of known effects",
            "define it where maps and responses differ, also for negative outputs",
        )
    for case, other_inputs in worse.items():
        other_scores = scores_of(subject, other_inputs)
        defined = expected.valid & other_scores.valid
        gain = sign * (expected.score - other_scores.score)[defined]
        # A metric that only reads magnitudes scores known effects and their negatives alike.
        if len(gain) and not gain.mean() > (-CHANCE if "negatives" in case else CHANCE):
            raise RuleBroken(
                f"scored known effects worse than {case}, by {-gain.mean():.3g}",
                "check higher_is_better, its sign, and the order of rows and columns",
            )


def gains_nothing_by_constant_maps(subject: MetricSubject) -> None:
    """A constant map has no score, or none that is better than that of known effects."""
    inputs, _ = known_effects()
    if _explains(subject, inputs):
        raise NotApplicable("it reads maps that are made again")
    sign = 1 if subject.entry.is_higher_better(subject.selected(inputs.images).options) else -1
    expected = scores_of(subject, inputs)
    for value in (0.0, 1.0):
        result = scores_of(subject, inputs._replace(maps=np.full_like(inputs.maps, value)))
        defined = result.valid & expected.valid
        gain = sign * (result.score - expected.score)[defined]
        if len(gain) and gain.mean() > CHANCE:
            raise RuleBroken(
                f"scored a map that is {value:g} everywhere better than known effects, by {gain.mean():.3g}",
                "return NaN and validity False for it",
            )


def takes_maps_of_any_precision(subject: MetricSubject) -> None:
    """Maps in float64, in another memory order, and of integers have the same scores as in float32."""
    inputs = scoring_inputs()
    maps = np.random.default_rng(0).permuted(np.tile(np.arange(256, dtype=np.float32), (5, 1)), axis=1) - 100
    maps = maps.reshape(5, 16, 16)
    expected = scores_of(subject, inputs._replace(maps=maps))
    for case, converted in (
        ("in float64", maps.astype(np.float64)),
        ("in Fortran order", np.asfortranarray(maps)),
        ("of int64", maps.astype(np.int64)),
    ):
        require_same(
            scores_of(subject, inputs._replace(maps=converted)), expected, f"for maps {case}", "compute in float64"
        )


def takes_images_of_any_form(subject: MetricSubject) -> None:
    """A single image, non-square images, and one or four channels have scores, or their channels are refused."""
    for form, count in ((Form(), 1), (Form(NON_SQUARE), 2), (Form(channels=1), 2), (Form(channels=4, classes=5), 2)):
        try:
            result = scores_of(subject, scoring_inputs(form, count))
        except HeatproofError:
            if form.channels == 3:
                raise
            continue
        if result.score.shape != (count,):
            raise RuleBroken(f"scored {result.score.shape} for {count} images", "return one score for each image")


def scores_as_the_interface(subject: MetricSubject) -> None:
    """`heatproof.evaluate` returns the same scores, with its precautions for unusual callers."""
    if METRICS.get(subject.name) is not subject.entry:
        raise NotApplicable("it is not registered under its name")
    inputs = scoring_inputs()
    options: dict[str, Any] = {**caller_inputs(subject.entry, inputs.images), **subject.options}
    if _explains(subject, inputs):
        options["explain"] = inputs.explain
    expected = scores_of(subject, inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for context in (torch.enable_grad, torch.inference_mode):
            with context():
                images = (
                    inputs.images.clone().requires_grad_() if context is torch.enable_grad else inputs.images.clone()
                )
                result = evaluate(
                    subject.name, inputs.network, images, inputs.targets, inputs.maps, image_ids=inputs.ids, **options
                )
            actual = Scores(result["score"].values, result["valid"].values)
            require_same(
                actual, expected, f"from heatproof.evaluate under {context.__name__}", "read nothing but inputs"
            )


RULES = (
    returns_scores,
    leaves_its_inputs,
    leaves_images_and_maps,
    leaves_the_network,
    leaves_the_process,
    leaves_no_file,
    is_repeatable,
    follows_the_map,
    follows_the_network,
    does_not_depend_on_the_company,
    does_not_depend_on_the_batch_size,
    keeps_to_its_range,
    prefers_known_effects,
    prefers_known_effects_on_numbers,
    gains_nothing_by_constant_maps,
    takes_maps_of_any_precision,
    takes_images_of_any_form,
    scores_as_the_interface,
)
