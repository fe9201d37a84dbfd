"""Preprocessing of published networks, as declared by timm, torchvision and model folders of transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from heatproof.core.options import as_size_option
from heatproof.models.from_transformers import PROCESSOR, has_file, is_valid_side, read_json_file

# Names of the interpolations that datasets support, by value of `PIL.Image.Resampling`.
RESAMPLING = {2: "bilinear", 3: "bicubic"}


def preprocessing(architecture: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the preprocessing of an architecture's published weights, without loading weights.

    Parameters
    ----------
    architecture
        Name of an architecture of heatproof.
    options
        Its options.

    Returns
    -------
    dict
        ``size`` (side of a square, or height and width), ``resize`` (shorter side, or height and width that are
        covered) and ``interpolation``, options of the dataset `image_folder`; empty if nothing is known.
    """
    read_options = KINDS.get(architecture)
    return read_options(options["name"]) if read_options else {}


def preprocessing_differences(architecture: str, options: Mapping[str, Any], dataset: Mapping[str, Any]) -> list[str]:
    """Return the options of a dataset, ``name: value``, that would match the preprocessing of the published weights.

    Parameters
    ----------
    architecture, options
        As in `preprocessing`.
    dataset
        Current options of the dataset, including defaults.

    Returns
    -------
    list of str
        One entry ``name: value`` for each option with another value; empty if nothing differs.
    """
    published = preprocessing(architecture, options)
    return [f"{key}: {value}" for key, value in published.items() if dataset.get(key, value) != value]


def _timm(name: str) -> dict[str, Any]:
    import timm

    cfg = timm.get_pretrained_cfg(name)
    if cfg is None:
        return {}
    sides = cfg.input_size[1:]
    resized = as_size_option([round(side / cfg.crop_pct) for side in sides])
    return {"size": as_size_option(sides), "resize": resized, "interpolation": _usable(cfg.interpolation)}


def _torchvision(name: str) -> dict[str, Any]:
    from torchvision.models import get_model_weights

    transforms = get_model_weights(name).DEFAULT.transforms()
    return {
        "size": transforms.crop_size[0],
        "resize": transforms.resize_size[0],
        "interpolation": _usable(transforms.interpolation.value),
    }


def _transformers(name: str) -> dict[str, Any]:
    # If the config sets mean and std, the folder may have no image processor.
    processor = read_json_file(name, PROCESSOR) if has_file(name, PROCESSOR) else {}
    edge = _sides(processor.get("size"))
    cut = _sides(processor.get("crop_size")) if processor.get("do_center_crop") else None
    size = cut or edge
    if size is None or edge is None:
        return {}
    share: Any = processor.get("crop_pct")
    if cut or type(share) not in (int, float) or not 0.01 <= share <= 1:
        share = 1
    resize = [max(round(side / share), least) for side, least in zip(edge, size, strict=True)]
    filter_ = processor.get("resample")
    return {
        "size": as_size_option(size),
        "resize": as_size_option(resize),
        "interpolation": RESAMPLING.get(filter_, "bilinear") if type(filter_) is int else "bilinear",
    }


def _sides(processor: Any) -> tuple[int, int] | None:
    """Return height and width; a shortest edge or a single number is the side of a square."""
    if isinstance(processor, Mapping):
        height = processor.get("shortest_edge", processor.get("height"))
        processor = (height, height if "shortest_edge" in processor else processor.get("width", height))
    height, width = processor if isinstance(processor, tuple) else (processor, processor)
    return (height, width) if is_valid_side(height) and is_valid_side(width) else None


def _usable(interpolation: str) -> str:
    return interpolation if interpolation in RESAMPLING.values() else "bilinear"


KINDS: dict[str, Callable[[str], dict[str, Any]]] = {
    "timm_model": _timm,
    "torchvision_model": _torchvision,
    "transformers_model": _transformers,
}
