"""Any metric on any torch classifier, without the workflow and its stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from heatproof.errors import HeatproofError
from heatproof.metrics.catalogue import METRICS
from heatproof.metrics.curve import ResponseCurve
from heatproof.metrics.registry import Metric
from heatproof.registry import look_up

if TYPE_CHECKING:
    import torch
    import xarray

COMMON = ("seed", "batch_size", "device", "image_ids", "ranking", "explain")


def evaluate(metric: str, model: Any, images: torch.Tensor, targets: Any, maps: Any, **options: Any) -> xarray.Dataset:
    """Score attribution maps with one metric.

    Parameters
    ----------
    metric
        A name of `heatproof list metrics`, for example ``"mas_insertion"``.
    model
        A classifier in eval mode: images (B, C, H, W) to logits (B, K).
    images
        (N, C, H, W), normalised as the model expects. What makes channels_last faster is kept.
    targets
        (N,) integers, the labels. Metrics with ``target="predicted"`` read the class predicted for the intact image.
    maps
        (N, H, W), tensor or array, higher is more relevant, channels summed.
    **options
        Of the metric, in one vocabulary: ``grid``, ``baseline``, ``order``, ``steps``, ``step_size`` or ``fractions``,
        ``imputation``, ``target``, ``output`` and the metric's own; and of every metric:

        - ``seed`` (0), for ties, noise and random baselines;
        - ``batch_size`` (64), images in one network pass;
        - ``device``, where the model is (left out: where its parameters are);
        - ``image_ids``, N names that seed what is drawn per image (left out: "0", "1", …);
        - ``ranking`` (N, H × W), pixels from most to least relevant, instead of the map's order;
        - ``explain``, images and targets to maps, where a map is updated along the way.

        ``part_deletion`` is told the parts: ``masks`` (N, K, H, W) bool, true where each is visible, and ``removed``
        (N, K, C, H, W), the images without each part, normalised as the images are; or ``drops`` (N, K) instead of it.

    Returns
    -------
    xarray.Dataset
        ``score`` (image) float64, NaN where undefined; ``valid`` (image) bool; the metric's curves over (image, step)
        under their names; the metric, its direction, range, source and all options as attributes.

    Raises
    ------
    HeatproofError
        One sentence: no such metric or option, inputs that do not belong together, a value that is not finite, a
        label the model has no class for, a model that returns anything but logits.

    Examples
    --------
    >>> import torch, heatproof
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 4)).eval()
    >>> images, labels = torch.rand(5, 3, 8, 8), torch.tensor([0, 1, 2, 3, 0])
    >>> scores = heatproof.evaluate("rise_deletion", model, images, labels, torch.rand(5, 8, 8), steps=8)
    >>> scores["score"].shape, scores["deletion"].dims
    ((5,), ('image', 'step'))
    """
    entry = look_up(METRICS, metric, "metric")
    given = {key: options.pop(key) for key in COMMON if key in options}
    chosen = _options(entry, options)
    images, labels, values, ids = _inputs(images, targets, maps, given.get("image_ids"))
    batch_size = given.get("batch_size", 64)
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise HeatproofError(f"batch_size is {batch_size!r}: it has to be a whole number, at least 1.")
    ranking = given.get("ranking")
    case = _Case(
        model=model,
        images=images,
        labels=labels,
        maps=values,
        ids=ids,
        seed=int(given.get("seed", 0)),
        batch_size=batch_size,
        device=given.get("device") or _device_of(model, images),
        ranking=None if ranking is None else np.asarray(ranking),
        explain=given.get("explain"),
    )
    inputs = _READERS[entry.reads](entry, chosen, case)
    score, valid, curves = entry.score(inputs, chosen)
    return _dataset(entry, chosen | {"seed": case.seed, "batch_size": batch_size}, ids, score, valid, curves)


def _options(entry: Metric, options: dict[str, Any]) -> dict[str, Any]:
    if entry.reads != "patches":
        return entry.fill_in(options)
    known = {**entry.options, "grid": 4, "baseline": "zeros", "baseline_options": None, "output": "logit"}
    unknown = [key for key in options if key not in known]
    if unknown:
        entry.fill_in({unknown[0]: None})
    return {**known, **options}


def _inputs(images: Any, targets: Any, maps: Any, image_ids: Sequence[str] | None) -> tuple[Any, Any, Any, list[str]]:
    import torch

    if not isinstance(images, torch.Tensor) or images.ndim != 4 or not images.is_floating_point():
        what = f"{images.dtype} {tuple(images.shape)}" if isinstance(images, torch.Tensor) else type(images).__name__
        raise HeatproofError(f"The images are {what}: give a float tensor (images, channels, height, width).")
    if not len(images):
        raise HeatproofError("There are no images: give at least one.")
    labels = torch.as_tensor(targets)
    if labels.shape != (len(images),) or labels.is_floating_point() or labels.dtype == torch.bool:
        raise HeatproofError(
            f"The targets are {labels.dtype} {tuple(labels.shape)}: give one class number for each of the "
            f"{len(images)} images."
        )
    values = maps.detach().cpu().numpy() if isinstance(maps, torch.Tensor) else np.asarray(maps)
    ids = [str(number) for number in range(len(images))] if image_ids is None else [str(name) for name in image_ids]
    if len(ids) != len(images) or len(set(ids)) != len(ids):
        raise HeatproofError(f"image_ids has to name each of the {len(images)} images once.")
    bad = (~torch.isfinite(images.flatten(1))).any(1).nonzero().flatten().tolist()
    if bad:
        raise HeatproofError(f"Image {ids[bad[0]]!r} has a value that is not finite: leave it out.")
    from heatproof.perturbation.curves import check_maps

    check_maps(values, images, ids)
    if not np.issubdtype(values.dtype, np.floating):
        # Whole numbers have no thirds, and unsigned ones no negatives.
        values = values.astype(np.float64)
    return images, labels.long(), values, ids


def _device_of(model: Any, images: torch.Tensor) -> Any:
    parameters = getattr(model, "parameters", None)
    first = next(parameters(), None) if callable(parameters) else None
    return images.device if first is None else first.device


@dataclass(frozen=True)
class _Case:
    """What is scored, checked."""

    model: Any
    images: torch.Tensor
    labels: torch.Tensor
    maps: np.ndarray
    ids: list[str]
    seed: int
    batch_size: int
    device: Any
    ranking: np.ndarray | None
    explain: Any

    def intact(self) -> tuple[dict[str, np.ndarray], torch.Tensor]:
        """Return the responses to the intact images, and the label and the predicted class of each (N, 2)."""
        import torch

        from heatproof.perturbation.responses import intact_responses

        read = intact_responses(self.model, self.images, self.labels, self.ids, self.batch_size, self.device)
        return read, torch.stack([self.labels.cpu(), torch.from_numpy(read["predicted"])], dim=1)


def _patches(entry: Metric, options: dict[str, Any], case: _Case) -> dict[str, Any]:
    from heatproof.perturbation.responses import patch_responses

    read = patch_responses(
        case.model,
        case.images,
        case.labels,
        case.ids,
        options["grid"],
        options["baseline"],
        case.seed,
        case.batch_size,
        baseline_options=options["baseline_options"],
        truncate=options.get("truncate", False),
        device=case.device,
    )
    return {"maps": case.maps, "drops": _drops(read, options["output"]), "grid": options["grid"]}


def _drops(read: dict[str, np.ndarray], output: str) -> np.ndarray:
    if output not in ("logit", "probability"):
        raise HeatproofError(f"output is {output!r}: take 'logit' or 'probability'.")
    values = read["logit" if output == "logit" else "log_probability"].astype(np.float64)
    values = values if output == "logit" else np.exp(values)
    return values[:, :1] - values[:, 1:]


def _curves(entry: Metric, options: dict[str, Any], case: _Case) -> dict[str, Any]:
    from heatproof.perturbation.curves import response_curves

    perturbations = entry.perturbations(options)
    intact, classes = case.intact()
    read = response_curves(
        case.model,
        case.images,
        case.maps,
        classes,
        case.ids,
        perturbations,
        seed=case.seed,
        batch_size=case.batch_size,
        device=case.device,
        intact=intact,
        ranking=case.ranking,
        explain=case.explain,
    )
    pixels = case.maps.shape[1] * case.maps.shape[2]
    return {name: ResponseCurve(arrays, classes.numpy(), pixels) for name, arrays in read.items()}


def _pictures(entry: Metric, options: dict[str, Any], case: _Case) -> dict[str, Any]:
    from heatproof.perturbation.pic import THRESHOLDS, pic_responses

    channels = case.images.shape[1]
    _, classes = case.intact()
    read = pic_responses(
        case.model,
        case.images,
        case.maps,
        classes,
        case.ids,
        mean=[0.0] * channels if options["mean"] is None else options["mean"],
        std=[1.0] * channels if options["std"] is None else options["std"],
        thresholds=THRESHOLDS if options["thresholds"] is None else options["thresholds"],
        seed=case.seed,
        batch_size=case.batch_size,
        device=case.device,
        ranking=case.ranking,
        random_mask=options["random_mask"],
        masks=options["masks"],
    )
    return {"pictures": {**read, "classes": classes.numpy()}}


def _subsets(entry: Metric, options: dict[str, Any], case: _Case) -> dict[str, Any]:
    from heatproof.perturbation.subsets import subset_responses
    from heatproof.subsets import subset_masks

    masks = subset_masks(
        case.ids, case.maps.shape[1], case.maps.shape[2], options["sizes"], options["samples"], case.seed
    )
    read = subset_responses(
        case.model,
        case.images,
        case.labels,
        case.ids,
        masks,
        options["baseline"],
        case.seed,
        case.batch_size,
        baseline_options=options["baseline_options"],
        device=case.device,
    )
    return {"maps": case.maps, "drops": _drops(read, options["output"]), "masks": masks, "image_ids": case.ids}


def _parts(entry: Metric, options: dict[str, Any], case: _Case) -> dict[str, Any]:
    masks, drops = options["masks"], options["drops"]
    if masks is None or (drops is None) == (options["removed"] is None):
        raise HeatproofError(
            f"The metric {entry.name!r} needs `masks` (images, parts, height, width), and either `removed`, the images "
            "without each part (images, parts, channels, height, width), or `drops` (images, parts)."
        )
    if drops is None:
        import torch

        from heatproof.perturbation.parts import part_responses

        removed = torch.as_tensor(options["removed"])
        read = part_responses(
            case.model, case.images, removed, case.labels, case.ids, case.batch_size, device=case.device
        )
        drops = _drops(read, options["output"])
    return {"maps": case.maps, "drops": _array(drops), "masks": _array(masks), "image_ids": case.ids}


def _array(values: Any) -> np.ndarray:
    """Return a tensor, wherever it is, or anything else as an array."""
    return values.detach().cpu().numpy() if hasattr(values, "detach") else np.asarray(values)


def _explanations(entry: Metric, options: dict[str, Any], case: _Case) -> dict[str, Any]:
    import torch

    from heatproof.perturbation.sensitivity import max_sensitivity

    if case.explain is None:
        raise HeatproofError(f"The metric {entry.name!r} needs `explain`, which makes maps of changed images.")
    changes, _ = max_sensitivity(
        case.explain,
        case.images,
        case.labels,
        case.ids,
        case.seed,
        options["radius"],
        options["samples"],
        options["norm"],
        batch_size=case.batch_size,
        intact=torch.from_numpy(case.maps),
    )
    return {"changes": changes}


_READERS = {
    "patches": _patches,
    "curves": _curves,
    "pictures": _pictures,
    "subsets": _subsets,
    "parts": _parts,
    "explanations": _explanations,
}


def _dataset(
    entry: Metric, options: dict[str, Any], ids: list[str], score: np.ndarray, valid: np.ndarray, curves: Any
) -> xarray.Dataset:
    import xarray

    variables: dict[str, Any] = {"score": ("image", score), "valid": ("image", valid)}
    for name, values in curves.items():
        variables[name] = (("image", "step") if values.ndim == 2 else ("step",), values)
    plain = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in options.items()
        if value is not None and not isinstance(value, dict) and not hasattr(value, "shape")
    }
    attributes = {
        "metric": entry.name,
        "higher_is_better": int(entry.higher(options)),
        "range": list(entry.range),
        "source": entry.source,
        "undefined": int((~valid).sum()),
        **{key: int(v) if isinstance(v, bool) else v for key, v in plain.items()},
    }
    return xarray.Dataset(variables, coords={"image": ids}, attrs=attributes)
