"""Rules that every metric keeps."""

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

from heatproof._testing.networks import (
    DEFAULT_FORM,
    NON_SQUARE,
    SQUARE,
    Form,
    convolutional,
    random_images,
    tiny_network,
)
from heatproof._testing.rules import RuleBroken
from heatproof._testing.surroundings import (
    difference,
    files_left_by,
    network_state,
    process_changes,
    restored_process,
    seed_everything,
)
from heatproof.api.evaluate import SelectedMetric, evaluate, score_metrics
from heatproof.base.methods import methods_of
from heatproof.base.tasks import CALLABLE, TASKS, task_provides
from heatproof.errors import HeatproofError, NotApplicable
from heatproof.metrics.registry import METRICS, Metric
from heatproof.models.adapter import attach
from heatproof.models.output_reader import OutputReader
from heatproof.responses.base import Batch, MethodMaps, NetworkRun

# Curves of logits are sums in float32.
CLOSE = 1e-5
# Of a perfect map above others, in shares of what scores differ.
CHANCE = 1e-6


@dataclass(frozen=True)
class MetricSubject:
    """A metric under test, and its options."""

    entry: Metric
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """For messages."""
        return self.entry.name

    def selected(self, images: torch.Tensor, function: Callable[..., Any] | None = None) -> SelectedMetric:
        """Return the metric with all options, and another function where one is given."""
        entry = self.entry if function is None else replace(self.entry, function=function)
        given = {**caller_inputs(self.entry, images), **self.options}
        options = entry.reads.complete(entry.complete_options(given))
        return SelectedMetric(entry, options, entry.responses(options), entry.name)


class ScoringInputs(NamedTuple):
    """A network, N images with classes, names and maps (N, H, W), and what recomputes maps."""

    network: nn.Module
    images: torch.Tensor
    targets: torch.Tensor
    maps: np.ndarray
    ids: tuple[str, ...]
    explain: Callable[[torch.Tensor, torch.Tensor], Any] | None = None
    seed: int = 0
    batch_size: int = 64

    def select_images(self, rows: Sequence[int]) -> ScoringInputs:
        """Return the same for some of the images."""
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
    """Return inputs that only a caller has: the colours of images in [0, 1], and quarters of images as parts."""
    count, channels, height, width = images.shape
    masks = torch.zeros(count, 4, height, width, dtype=torch.bool)
    for part in range(4):
        row, column = divmod(part, 2)
        masks[:, part, row * height // 2 : (row + 1) * height // 2, column * width // 2 : (column + 1) * width // 2] = (
            True
        )
    removed = images[:, None] * ~masks[:, :, None]
    known = {"mean": [0.5] * channels, "std": [0.5] * channels, "masks": masks.numpy(), "removed": removed}
    return {name: known[name] for name in entry.reads.evaluate_only_options if name in known}


def smooth_maps(images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return maps that follow an image smoothly."""
    return (images + 2).sum(1) * (1 + targets[:, None, None])


def decisive_network(form: Form = DEFAULT_FORM, seed: int = 0) -> nn.Module:
    """Return a convolutional network that answers several classes, and another one for many changed images."""
    network, images = tiny_network(convolutional, form, seed), random_images(form, 32, seed=9)
    head = next(layer for layer in network.modules() if isinstance(layer, nn.Linear))
    head.weight *= 10
    head.bias.sub_(network(images).mean(0))
    return network


def erratic_maps(images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return maps that noise in an image changes altogether."""
    return (images * 1e3).sin().sum(1)


def _recomputing(given: ScoringInputs, explain: Callable[..., torch.Tensor]) -> ScoringInputs:
    return given._replace(explain=explain, maps=explain(given.images, given.targets).numpy())


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
    """Return a linear network and images, and maps (N, H, W) of what each pixel adds to the target's logit.

    With rows and columns exchanged a map is nearly its own negative, so that a metric that exchanges them is found.
    """
    drawn, (height, width) = np.random.default_rng(0), SQUARE
    signs = np.sign(drawn.normal(size=(height, width)))
    signs = np.where(np.tri(height, dtype=bool), signs, signs.T)
    # Of patches and of pixels, so that both have effects.
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


def scores_of(subject: MetricSubject, given: ScoringInputs, function: Callable[..., Any] | None = None) -> Scores:
    """Return what the metric answers, without the care that heatproof takes of its surroundings."""
    selected = subject.selected(given.images, function)
    network_run = NetworkRun(
        open_network=lambda: given.network,
        device=torch.device("cpu"),
        batch_size=given.batch_size,
        seed=given.seed,
        explain=None if given.explain is None else functools.partial(_recomputed, given.explain),
        caller_inputs={"ranking": None},
    )
    method_maps = MethodMaps(given.maps[:, None], methods_of({"map": False}))
    with torch.inference_mode():
        batch = Batch(given.images, given.targets, given.ids)
        (found,) = score_metrics(network_run, batch, {subject.name: selected}, method_maps)[subject.name].values()
    return Scores(found["score"].values, found["valid"].values)


def _recomputed(
    explain: Callable[..., Any], method_maps: MethodMaps, method: Any, batch: Batch
) -> Callable[..., torch.Tensor]:
    return lambda images, targets: torch.as_tensor(explain(images.clone(), targets))


class MetricCall(NamedTuple):
    """A call of the metric's function: its inputs before and after, what it returned, and how to call it again."""

    before: Any
    after: Any
    returned: Any
    again: Callable[[], Any]


def calls_of(subject: MetricSubject, given: ScoringInputs) -> list[MetricCall]:
    """Return what the metric's function is given, and what it returns."""
    seen, function = [], subject.entry.function

    @functools.wraps(function)
    def spy(*inputs: Any, **options: Any) -> Any:
        before = copy.deepcopy((inputs, options))
        returned = function(*inputs, **options)
        kept = copy.deepcopy(before)
        seen.append(MetricCall(before, (inputs, options), returned, lambda: function(*kept[0], **kept[1])))
        return returned

    scores_of(subject, given, spy)
    return seen


def same(one: Any, other: Any) -> bool:
    """Tell whether two values are equal in all of their parts, and arrays in all of their values."""
    if isinstance(one, np.ndarray | torch.Tensor):
        left, right = np.asarray(one), np.asarray(other)
        return left.dtype == right.dtype and np.array_equal(left, right, equal_nan=left.dtype.kind in "fc")
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, "__dict__") and not callable(one):
        return all(same(value, vars(other)[key]) for key, value in vars(one).items())
    return callable(one) or one == other


def require_same(found: Scores, wanted: Scores, what: str, remedy: str, limit: float = CLOSE) -> None:
    """Refuse scores that differ by more than a share of their size, or are defined for other images."""
    if not np.array_equal(found.valid, wanted.valid):
        raise RuleBroken(f"defined other scores {what}", remedy)
    difference = np.abs(found.score - wanted.score)[wanted.valid]
    scale = np.maximum(1, np.abs(wanted.score[wanted.valid]))
    if len(difference) and not (difference / scale).max() <= limit:
        raise RuleBroken(f"gave scores that differ by {difference.max():.2g} {what}", remedy)


def returns_scores(subject: MetricSubject) -> None:
    """The function returns float64 scores (N,), whether each is defined, bool (N,), and curves with a name each."""
    given = scoring_inputs()
    for one in calls_of(subject, given):
        if not isinstance(one.returned, tuple) or len(one.returned) not in (2, 3):
            raise RuleBroken(f"returned {type(one.returned).__name__}", "return scores, validity and a dict of curves")
        score, valid = (np.asarray(part) for part in one.returned[:2])
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
        for name, curve in (one.returned[2] if len(one.returned) == 3 else {}).items():
            if np.ndim(curve) not in (1, 2) or (np.ndim(curve) == 2 and len(curve) != 5):
                raise RuleBroken(f"returned the curve {name!r} of shape {np.shape(curve)}", "return (N, S) or (S,)")


def leaves_its_inputs(subject: MetricSubject) -> None:
    """Maps and all other inputs are as before."""
    for count in (5, 2, 1):
        for one in calls_of(subject, scoring_inputs(count=count)):
            if not same(one.before, one.after):
                raise RuleBroken(f"wrote to its inputs, of {count} images", "work on copies")


def leaves_images_and_maps(subject: MetricSubject) -> None:
    """Images, classes and maps that the caller gave are as before."""
    given = scoring_inputs()
    before = copy.deepcopy(given[1:4])
    scores_of(subject, given)
    if not same(before, given[1:4]):
        raise RuleBroken("changed images, classes or maps", "let its response work on copies")


def leaves_the_network(subject: MetricSubject) -> None:
    """Weights, buffers, modes, hooks and attributes of the network are as before, and no pass trains."""
    given, modes = scoring_inputs(), []
    before = network_state(given.network)
    scores_of(subject, given)
    if changed := difference(before, network_state(given.network)):
        raise RuleBroken(f"left these otherwise: {', '.join(changed)}", "undo it in a finally clause")
    for module in given.network.modules():
        module.register_forward_pre_hook(lambda module, _: modes.append(module.training))
    scores_of(subject, given)
    if any(modes):
        raise RuleBroken("ran a part of the network in training mode", "leave the mode as it is")


def leaves_the_process(subject: MetricSubject) -> None:
    """Random states, modes and settings of torch and NumPy, filters and loggers are as before."""
    given = scoring_inputs()
    if changed := process_changes(lambda: scores_of(subject, given)):
        raise RuleBroken(
            f"left these otherwise: {', '.join(changed)}", "restore what it sets, and draw from its own seed"
        )


def leaves_no_file(subject: MetricSubject) -> None:
    """Nothing is written to the working folder, the home folder or the folder for temporary files."""
    given = scoring_inputs()
    if left := files_left_by(lambda: scores_of(subject, given)):
        raise RuleBroken(f"left {', '.join(left)}", "remove what it writes, or write nothing")


def is_repeatable(subject: MetricSubject) -> None:
    """The same inputs give the same scores, whatever the global random states and the scores before."""
    given, found = scoring_inputs(), []
    calls = calls_of(subject, given)
    for seed in (1, 2):
        with restored_process():
            seed_everything(seed)
            found.append(scores_of(subject, given))
        scores_of(subject, scoring_inputs(seed=1))
    require_same(found[0], found[1], "in a second call", "draw from the option `seed`", limit=0.0)
    for one in calls:
        if not same(one.again(), one.returned):
            raise RuleBroken("returned something else for copies of its inputs", "keep nothing between calls")


def follows_the_map(subject: MetricSubject) -> None:
    """Other maps have other scores."""
    given, other = scoring_inputs(), scoring_inputs(seed=1)
    if subject.selected(given.images).responses and _explains(subject, given):
        other = _recomputing(given, erratic_maps)
    else:
        other = given._replace(maps=other.maps)
    one, another = scores_of(subject, given), scores_of(subject, other)
    if same(one, another):
        raise RuleBroken("gave the same scores to other maps", "read the maps, and keep nothing between calls")


def _explains(subject: MetricSubject, given: ScoringInputs) -> bool:
    return any(response.recomputes_maps for response in subject.selected(given.images).responses.values())


def follows_the_network(subject: MetricSubject) -> None:
    """Another network, or another class, gives other scores."""
    given = scoring_inputs()
    if _explains(subject, given):
        raise NotApplicable("it reads what explains the network")
    wanted, network = scores_of(subject, given), decisive_network(seed=1)
    if same(scores_of(subject, given._replace(network=network)), wanted):
        raise RuleBroken("gave the same scores for another network", "read a response of the network")
    given.network.load_state_dict(network.state_dict())
    fresh = scores_of(subject, given._replace(network=network))
    require_same(scores_of(subject, given), fresh, "for a network that had other weights", "keep nothing between calls")


def does_not_depend_on_the_company(subject: MetricSubject) -> None:
    """An image has the same score alone, in another order, and among other images."""
    given = scoring_inputs()
    wanted = scores_of(subject, given)
    for rows, what in (([3], "for an image alone"), ([4, 2, 0, 1, 3], "in another order"), ([1, 4], "in part")):
        expected = Scores(wanted.score[rows], wanted.valid[rows])
        require_same(scores_of(subject, given.select_images(rows)), expected, what, "reduce over images nowhere")


def does_not_depend_on_the_batch_size(subject: MetricSubject) -> None:
    """Scores are the same for any number of images in a pass, and no pass has more."""
    given, sizes = scoring_inputs(), []
    wanted = scores_of(subject, given)
    given.network.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    for size in (1, 3):
        sizes.clear()
        found = scores_of(subject, given._replace(batch_size=size))
        require_same(found, wanted, f"with batch_size={size}", "reduce over images nowhere, and do not divide by N")
        # A single image may travel with its copy.
        if max(sizes, default=0) > max(size, 2):
            raise RuleBroken(f"passed {max(sizes)} images at once with batch_size={size}", "split what it passes")


def keeps_to_its_range(subject: MetricSubject) -> None:
    """Scores of good, bad, random and large maps lie in the registered range."""
    given, perfect = known_effects()
    low, high = subject.entry.range
    tried = {
        "known effects": perfect,
        "their negatives": -perfect,
        "random values": scoring_inputs().maps[:1],
        "large values": perfect * 1e6,
    }
    for what, maps in tried.items():
        found = scores_of(subject, given._replace(maps=np.broadcast_to(maps, perfect.shape).astype(np.float32)))
        inside = found.score[found.valid]
        if len(inside) and not (low - CLOSE <= inside.min() and inside.max() <= high + CLOSE):
            raise RuleBroken(
                f"scored {what} from {inside.min():.3g} to {inside.max():.3g}, outside of [{low}, {high}]",
                "register it with the range that it has",
            )


def prefers_known_effects(subject: MetricSubject) -> None:
    """On a linear network the effects of pixels score better than random maps, and no worse than their negatives."""
    _prefers_effects(subject, *known_effects())


def prefers_known_effects_on_numbers(subject: MetricSubject) -> None:
    """The same for a regression and a callable target, whose numbers are negative, large, or rise without patches."""
    options = {**subject.options, **({"output": "logit"} if "output" in subject.entry.options else {})}
    for task in (*TASKS, CALLABLE):
        if task_provides(task, "probability"):
            continue
        if unsupported_reason := subject.entry.unsupported_reason(task, options):
            raise NotApplicable(unsupported_reason)
        for scale, offset in ((1, -50), (100, 3000), (-1, -5)):
            given, maps = effects_on_numbers(task, scale, offset)
            # Below its baseline a number can be without a score, but not be scored the wrong way round.
            _prefers_effects(replace(subject, options=options), given, maps, undefined=scale < 0)


def effects_on_numbers(task: str, scale: float, offset: float) -> tuple[ScoringInputs, np.ndarray]:
    """Return `known_effects` of a network whose number is the first logit times `scale`, plus `offset`."""
    given, maps = known_effects()
    _, linear = given.network.children()
    assert isinstance(linear, nn.Linear)
    number = nn.Linear(linear.in_features, 1)
    network = nn.Sequential(nn.Flatten(), number).eval().requires_grad_(False)
    number.weight[:], number.bias[:] = linear.weight[:1] * scale, offset
    of_first = (lambda output, targets: output[:, 0]) if task == CALLABLE else None
    attach(network, reader=OutputReader(function=of_first) if of_first else OutputReader(task))
    return given._replace(network=network, maps=(maps * scale).astype(np.float32)), maps * scale


def _prefers_effects(
    subject: MetricSubject, given: ScoringInputs, perfect: np.ndarray, *, undefined: bool = False
) -> None:
    sign = 1 if subject.entry.is_higher_better(subject.selected(given.images).options) else -1
    noise = np.random.default_rng(1).normal(size=perfect.shape)
    others: dict[str, ScoringInputs] = {
        "their negatives": given._replace(maps=-given.maps),
        "random maps": given._replace(maps=noise.astype(np.float32)),
    }
    if _explains(subject, given):
        given, others = _recomputing(given, smooth_maps), {"maps that jump": _recomputing(given, erratic_maps)}
    wanted = scores_of(subject, given)
    if not wanted.valid.any() and not undefined:
        raise RuleBroken("gave no score to any map of known effects", "define it where maps and responses differ")
    for what, other in others.items():
        found = scores_of(subject, other)
        both = wanted.valid & found.valid
        gain = sign * (wanted.score - found.score)[both]
        # A metric of magnitudes alone cannot tell them from their negatives.
        if len(gain) and not gain.mean() > (-CHANCE if "negatives" in what else CHANCE):
            raise RuleBroken(
                f"scored known effects worse than {what}, by {-gain.mean():.3g}",
                "check higher_is_better, its sign, and the order of rows and columns",
            )


def gains_nothing_by_constant_maps(subject: MetricSubject) -> None:
    """A map with one value everywhere has no score, or none that is better than that of known effects."""
    given, _ = known_effects()
    if _explains(subject, given):
        raise NotApplicable("it reads maps that are made again")
    sign = 1 if subject.entry.is_higher_better(subject.selected(given.images).options) else -1
    wanted = scores_of(subject, given)
    for value in (0.0, 1.0):
        found = scores_of(subject, given._replace(maps=np.full_like(given.maps, value)))
        both = found.valid & wanted.valid
        gain = sign * (found.score - wanted.score)[both]
        if len(gain) and gain.mean() > CHANCE:
            raise RuleBroken(
                f"scored a map that is {value:g} everywhere better than known effects, by {gain.mean():.3g}",
                "return NaN and validity False for it",
            )


def takes_maps_of_any_precision(subject: MetricSubject) -> None:
    """Maps in float64, of another memory order, and of whole numbers score as the same values in float32."""
    given = scoring_inputs()
    maps = np.random.default_rng(0).permuted(np.tile(np.arange(256, dtype=np.float32), (5, 1)), axis=1) - 100
    maps = maps.reshape(5, 16, 16)
    wanted = scores_of(subject, given._replace(maps=maps))
    for what, other in (
        ("in float64", maps.astype(np.float64)),
        ("in Fortran order", np.asfortranarray(maps)),
        ("of int64", maps.astype(np.int64)),
    ):
        require_same(scores_of(subject, given._replace(maps=other)), wanted, f"for maps {what}", "compute in float64")


def takes_images_of_any_form(subject: MetricSubject) -> None:
    """One image, images that are not square, one channel and four: a score of each, or colours are refused in words."""
    for form, count in ((Form(), 1), (Form(NON_SQUARE), 2), (Form(channels=1), 2), (Form(channels=4, classes=5), 2)):
        try:
            found = scores_of(subject, scoring_inputs(form, count))
        except HeatproofError:
            if form.channels == 3:
                raise
            continue
        if found.score.shape != (count,):
            raise RuleBroken(f"scored {found.score.shape} for {count} images", "return one score for each image")


def scores_as_the_interface(subject: MetricSubject) -> None:
    """`heatproof.evaluate` gives the same scores, with what it does for odd callers."""
    if METRICS.get(subject.name) is not subject.entry:
        raise NotApplicable("it is not registered under its name")
    given = scoring_inputs()
    more: dict[str, Any] = {**caller_inputs(subject.entry, given.images), **subject.options}
    if _explains(subject, given):
        more["explain"] = given.explain
    wanted = scores_of(subject, given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for context in (torch.enable_grad, torch.inference_mode):
            with context():
                images = given.images.clone().requires_grad_() if context is torch.enable_grad else given.images.clone()
                said = evaluate(
                    subject.name, given.network, images, given.targets, given.maps, image_ids=given.ids, **more
                )
            found = Scores(said["score"].values, said["valid"].values)
            require_same(found, wanted, f"from heatproof.evaluate under {context.__name__}", "read nothing but inputs")


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
