"""Explainers that integrate gradients along adaptive paths: guided IG and AGI.

No available library computes them for batches in torch: `saliency`, by the authors of guided integrated gradients,
takes one NumPy image at a time and uses a keyword that NumPy 2.4 has removed. Tests compare with it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from heatproof.core.batch import Batch
from heatproof.core.input_facts import InputFacts, normalisation_of
from heatproof.core.lazy import torch
from heatproof.core.options import Bounds, Count
from heatproof.core.randomness import counter_permutation
from heatproof.core.shares import count_of_share
from heatproof.core.tasks import EXCLUSIVE, TASK_NAMES
from heatproof.errors import NotApplicable, is_out_of_memory
from heatproof.explainers._batches import as_leaf, pad_single_image_passes, require, split_batch
from heatproof.explainers._quadrature import completeness_passes, select_targets
from heatproof.explainers.registry import explainer


@explainer("guided_ig", family="adaptive", sums_to="the output at the image minus the output at the baseline")
def guided_ig(
    context: Batch,
    *,
    steps: Count = 200,
    fraction: Annotated[float, Bounds(above=0, most=1)] = 0.25,
    max_dist: Annotated[float, Bounds(least=0, most=1)] = 0.02,
    anchors: Annotated[int, Bounds(least=0)] = 0,
    rule: Literal["trapezoid", "left"] = "trapezoid",
) -> dict[str, torch.Tensor]:
    """Guided integrated gradients: from a zero baseline, values with small gradients move first.

    Kapishnikov et al., "Guided integrated gradients: an adaptive path method for removing noise", 2021, section 4. A
    value is one channel of one pixel. Every step covers the same share of the L1 distance between baseline and image.
    A map sums to the output at the image minus the output at the baseline, up to the error of `rule`. An image takes
    `steps` + `anchors` + 1 network passes, or `steps` with the left rule, each with a gradient.

    Parameters
    ----------
    context
        The batch.
    steps
        Number of steps of the path, with one gradient each.
    fraction
        Share of all values that move together: those with the smallest absolute gradients among the values that are not
        at the end of their range. If they do not cover the step, the next ones follow. With 1 the path is straight.
    max_dist
        Largest distance of a value from the straight path, ahead or behind, as a share of its total change: 0 is the
        straight path, 1 is no bound. The authors' later library has this bound instead of anchors.
    anchors
        Number of equidistant points of the straight path that the path must pass, as in the paper. Each segment between
        two of them is a separate path with its share of the steps, and `max_dist` refers to the segment.
    rule
        Quadrature along a step. ``trapezoid`` averages the gradients at both ends; ``left`` takes the gradient at the
        start, as the authors' library does. That gradient is small, because the step was chosen for it, so maps of
        networks with ReLUs miss much of the change of the output for any number of steps.

    Returns
    -------
    dict
        ``guided_ig``: (N, H, W), any sign, in units of the output, higher is more relevant.

    Raises
    ------
    HeatproofError
        If an option is out of its range, or there are fewer steps than segments.
    """
    require(0 < fraction <= 1, f"Guided integrated gradients need a fraction above 0 and at most 1, not {fraction}.")
    require(0 <= max_dist <= 1, f"Guided integrated gradients need a max_dist from 0 to 1, not {max_dist}.")
    require(anchors >= 0, f"Guided integrated gradients need at least 0 anchors, not {anchors}.")
    require(
        steps > anchors,
        f"Guided integrated gradients need a step for each of {anchors + 1} segments, not {steps}: raise steps.",
    )
    require(
        rule in ("trapezoid", "left"), f"Guided integrated gradients know the rules trapezoid and left, not {rule}."
    )
    segments = anchors + 1
    maps = []
    for part in split_batch(context):
        images = part.images.detach()
        total = torch.zeros_like(images)
        for segment in range(segments):
            share = steps * (segment + 1) // segments - steps * segment // segments
            total += follow_small_gradients(
                part, images * (segment / segments), images / segments, share, fraction, max_dist, rule
            )
        maps.append(total.sum(1))
        if part.sums is not None:
            output = pad_single_image_passes(part.output)
            with completeness_passes(part):
                part.note_sum(select_targets(output(images) - output(torch.zeros_like(images)), part.targets))
    return {"guided_ig": torch.cat(maps)}


def follow_small_gradients(
    part: Batch,
    start: torch.Tensor,
    change: torch.Tensor,
    steps: int,
    fraction: float,
    max_dist: float,
    rule: str = "trapezoid",
) -> torch.Tensor:
    """Integrate gradients along a guided path from `start` to `start + change`, (N, C, H, W)."""
    from captum.attr import Saliency

    method = Saliency(pad_single_image_passes(part.output))

    def differentiate(progress: torch.Tensor) -> torch.Tensor:
        points = start + progress.view_as(change) * change
        return method.attribute(as_leaf(points), target=part.targets, abs=False).detach().flatten(1)

    distances = change.abs().flatten(1)
    together = count_of_share(fraction, distances.shape[1] - 1) + 1
    progress, total = torch.zeros_like(distances), torch.zeros_like(distances)
    gradients = differentiate(progress)
    for step in range(1, steps + 1):
        last = step == steps
        moved = (
            torch.ones_like(progress)
            if last
            else move_values(progress, distances, gradients.abs(), step / steps, together, max_dist)
        )
        after = gradients if last and rule == "left" else differentiate(moved)
        total += (moved - progress) * (gradients if rule == "left" else (gradients + after) / 2)
        progress, gradients = moved, after
    return total.view_as(change) * change


def move_values(
    progress: torch.Tensor,
    distances: torch.Tensor,
    steepness: torch.Tensor,
    share: float,
    together: int,
    max_dist: float,
) -> torch.Tensor:
    """Return the progress (N, values) of each value after a step, as a share of its total change.

    Parameters
    ----------
    progress
        (N, values), the progress before the step.
    distances
        (N, values), the absolute total change of each value.
    steepness
        (N, values), absolute gradients. Values with the smallest ones move first, and equal ones together.
    share
        Share of an image's summed distances to reach by the step.
    together
        Number of values that move at a time.
    max_dist
        Largest difference of the progress of a value from `share`.
    """
    furthest = min(share + max_dist, 1.0)
    moved = progress.clamp(min=max(share - max_dist, 0.0))
    missing = share * distances.sum(1) - (moved * distances).sum(1)
    movable = (moved < furthest) & (distances > 0)
    steepness = steepness.masked_fill(~movable, torch.inf)
    ordered = steepness.sort(1).values
    count = ordered.shape[1]
    ranked = torch.zeros_like(missing, dtype=torch.long)
    # Each image moves its values in order of steepness, a group at a time, until it has covered the missing distance.
    for _ in range(-(-count // together)):
        if not bool((missing > 0).any()):
            break
        threshold = ordered.gather(1, (ranked + together - 1).clamp(max=count - 1)[:, None])
        chosen = movable & (steepness <= threshold)
        possible = torch.where(chosen, furthest - moved, 0)
        reachable = (possible * distances).sum(1)
        fraction_used = (missing / reachable.clamp(min=torch.finfo(reachable.dtype).tiny)).clamp(0, 1)
        moved = moved + fraction_used[:, None] * possible
        missing = missing - reachable
        movable = movable & ~chosen
        ranked = (steepness <= threshold).sum(1)
    return moved


@explainer("agi", family="adaptive")
def agi(
    context: Batch,
    *,
    steps: Count = 20,
    epsilon: Annotated[float, Bounds(above=0, most=1)] = 0.05,
    topk: Count = 20,
) -> dict[str, torch.Tensor]:
    """Adversarial gradient integration: along steepest ascents from the image to false classes.

    Pan, Li and Zhu, "Explaining deep neural network models with adversarial gradient integration", 2021, algorithms 1
    and 2. A path steps by the sign of the gradient of a false class's probability, which is also that of its logarithm,
    until the network predicts that class or the steps are used up. The map is the sum over all steps of all paths of
    minus the gradient of the target output times the step. On a linear network it sums to the decrease of the target
    output, summed over paths. With ReLUs it does not, however small the steps are, because paths oscillate where a ReLU
    switches. As in the paper, the false classes of each image are drawn uniformly; they are not the most likely ones.
    An image takes at most `topk` · `steps` network passes with two gradients each, and one pass to count the classes.

    Parameters
    ----------
    context
        The batch.
    steps
        Largest number of steps of a path.
    epsilon
        Size of a step in each value of the image before normalisation, in which images are in [0, 1]; paths stay in
        this range.
    topk
        Number of false classes to draw, or all if there are fewer. The name is that in the authors' code.

    Returns
    -------
    dict
        ``agi``: (N, H, W), any sign, in units of the output, higher is more relevant.

    Raises
    ------
    NotApplicable
        If the network has only one class, or its classes do not exclude each other.
    HeatproofError
        If an option is out of its range.
    """
    require(steps >= 1, f"Adversarial gradient integration needs at least 1 step, not {steps}.")
    require(
        0 < epsilon <= 1, f"Adversarial gradient integration needs an epsilon above 0 and at most 1, not {epsilon}."
    )
    require(topk >= 1, f"Adversarial gradient integration needs at least 1 false class, not {topk}.")
    with torch.no_grad():
        classes = pad_single_image_passes(context.network)(context.images[:1]).shape[1]
    if context.task not in EXCLUSIVE:
        raise NotApplicable(f"it needs classes that exclude the target, and {TASK_NAMES[context.task]} has none")
    if classes < 2:
        raise NotApplicable("the network has a single class, and the method needs another one")
    paths = min(topk, classes - 1)
    maps = []
    # As many images as fit in a network pass with all their paths, but at least one, to bound memory.
    for part in split_batch(context, max(1, context.batch_size // paths)):
        images = part.images.detach().repeat_interleave(paths, 0)
        targets = part.targets.repeat_interleave(paths)
        false_classes = draw_false_classes(part, classes, paths).flatten()
        size = part.batch_size
        integrals = [
            follow_ascent(part, *chunk, steps, epsilon)
            for chunk in zip(images.split(size), targets.split(size), false_classes.split(size), strict=True)
        ]
        maps.append(torch.cat(integrals).sum(1).unflatten(0, (-1, paths)).sum(1))
    return {"agi": torch.cat(maps)}


def draw_false_classes(context: Batch, classes: int, count: int) -> torch.Tensor:
    """Draw `count` distinct classes (N, count) for each image from all classes but its target."""
    drawn = counter_permutation(
        context.seed, "false classes of agi", context.image_ids, classes - 1, device=context.images.device
    )[:, :count]
    return drawn + (drawn >= context.targets[:, None])


def follow_ascent(
    context: Batch,
    images: torch.Tensor,
    targets: torch.Tensor,
    false_classes: torch.Tensor,
    steps: int,
    epsilon: float,
) -> torch.Tensor:
    """Return −gradient of the target output × step, summed over the path of each image, (N, C, H, W)."""
    facts = context.facts or InputFacts()
    scale = normalisation_of(facts, images.shape[1])
    mean, std = (torch.tensor(values).to(images)[:, None, None] for values in scale)
    lowest, highest, step = -mean / std, (1 - mean) / std, epsilon / std
    total = torch.zeros_like(images)
    points, walking = images, torch.arange(len(images), device=images.device)
    for _ in range(steps):
        predicted, ascent, gradients = differentiate_classes(context, points, targets[walking], false_classes[walking])
        is_walking = predicted != false_classes[walking]
        # A path that has reached its class takes no further pass.
        walking, points = walking[is_walking], points[is_walking]
        if not len(walking):
            break
        next_points = (points + step * ascent[is_walking].sign()).clamp(lowest, highest)
        total[walking] -= (next_points - points) * gradients[is_walking]
        points = next_points
    return total


def differentiate_classes(
    context: Batch, points: torch.Tensor, targets: torch.Tensor, false_classes: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return predictions (N,), and gradients of the false class's log-probability and of the target output."""
    points = as_leaf(points)
    with torch.enable_grad():
        logits = pad_single_image_passes(context.network)(points)
    probabilities = logits.detach().softmax(1)
    classes = probabilities.shape[1]
    # The gradient of the log-probability has the same sign as that of the probability, but does not underflow.
    upward = torch.nn.functional.one_hot(false_classes, classes) - probabilities
    target_mask = torch.nn.functional.one_hot(targets, classes).to(probabilities)
    if context.output is not context.network:
        target_mask = probabilities.gather(1, targets[:, None]) * (target_mask - probabilities)
    ascent, gradients = differentiate_logits(logits, points, torch.stack([upward, target_mask]))
    return logits.detach().argmax(1), ascent, gradients


def differentiate_logits(logits: torch.Tensor, points: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return gradients (M, N, C, H, W) of M sums of the logits with weights (M, N, K)."""
    # One batched backward pass gives the last layer at least four rows. With two or three, PyTorch adds in another
    # order on the CPU, and the sign of a gradient near zero would depend on the batch.
    try:
        return torch.autograd.grad(logits, points, weights, retain_graph=True, is_grads_batched=True)[0]
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
    # A custom backward function of the network may not support batched gradients.
    return torch.stack([torch.autograd.grad(logits, points, row, retain_graph=True)[0] for row in weights])
