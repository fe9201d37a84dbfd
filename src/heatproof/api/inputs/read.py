"""Convert images, targets and ids that a caller passes in any form to an `Inputs`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from heatproof.api.inputs.arrays import check_finite, check_ids, check_images, is_pil
from heatproof.api.inputs.folders import read_folder
from heatproof.api.inputs.labels import labels_of
from heatproof.api.inputs.loaders import LoaderInfo, is_loader, read_loader
from heatproof.api.inputs.pictures import has_transform, is_pictures, read_pictures
from heatproof.api.inputs.source import Inputs, source_of_tensor
from heatproof.api.inputs.targets import TargetSpec, align_targets, assign_targets, labels_of_maps
from heatproof.core.named_axes import is_labelled_array
from heatproof.core.options import short_repr
from heatproof.core.registry import suggest_name
from heatproof.core.tasks import CALLABLE
from heatproof.errors import HeatproofError

if TYPE_CHECKING:
    from heatproof.core.network import Network

Transform = Callable[[Any], Any]


def read_inputs(
    model: Any,
    images: Any,
    targets: Any = None,
    image_ids: Any = None,
    *,
    classes: Any = None,
    transform: Transform | None = None,
    maps: Any = None,
    network: Network | None = None,
    target_spec: TargetSpec | None = None,
    pairs: bool = True,
) -> Inputs:
    """Return the images of a caller with their ids and targets.

    Parameters
    ----------
    model
        The model. One of timm has a transform for the image files of a folder.
    images
        A float tensor or array (N, C, H, W), an xarray.DataArray, a torch DataLoader or dataset, any other iterable of
        batches, which is read once into memory, a list of pictures or of paths of image files, or the path of a folder
        of image files.
    targets
        Targets as in `heatproof.explain`. None for the targets that `maps` explain, or else the labels that come with
        the images, or else the predictions of the network.
    image_ids
        N ids; None for the ids that come with the images, or else "0", "1", ….
    classes
        Class numbers, or names of class folders; images with other targets are left out.
    transform
        For a folder or a list of pictures, a function from a PIL image to a tensor (C, H, W).
    maps
        Maps that are scored on the images.
    network
        Network whose predictions are the targets if nothing else determines them; None to leave such targets open.
    target_spec
        The task or the target function; by default classes.
    pairs
        Whether every pair of an image and one of its labels is a row.

    Returns
    -------
    Inputs
        The images. The values of images in memory are checked here, those of others when they are read.

    Raises
    ------
    HeatproofError
        For the first invalid argument; the message is one sentence with the remedy.
    """
    source, loaded = _source(model, images, transform)
    if loaded is not None and loaded.is_shuffled and not (targets is None and image_ids is None):
        which = "image_ids" if targets is None else "targets"
        raise HeatproofError(
            f"The loader shuffles its images, so that the order of the {which} is undefined: give one with "
            "shuffle=False."
        )
    if image_ids is not None:
        ids = check_ids(image_ids, len(source))
        if is_labelled_array(images) and source.is_named and ids != source.ids:
            raise HeatproofError(
                "The ids in image_ids differ from the coordinate image of the images: leave image_ids out, or "
                "give images.drop_vars('image')."
            )
        source = replace(source, ids=ids, is_named=True)
    if source.is_checked:
        check_finite(source.images, source.ids)
    target_spec = target_spec or TargetSpec()
    are_given = targets is not None
    if targets is None and maps is not None:
        targets = labels_of_maps(maps, source, target_spec, network)
    elif targets is not None:
        targets = align_targets(targets, source, target_spec, network)
    if targets is None:
        targets = _targets_of_images(source, model, loaded, target_spec)
    source = assign_targets(source, targets, target_spec, network, pairs)
    if are_given and source.kind == "regression" and source.targets is not None:
        _warn_of_unused_targets(source)
    return source if classes is None else _select_classes(source, classes)


def _source(model: Any, images: Any, transform: Transform | None) -> tuple[Inputs, LoaderInfo | None]:
    if isinstance(images, str | Path):
        return read_folder(images, model, transform), None
    if isinstance(images, list | tuple) and not images:
        raise HeatproofError(f"The {type(images).__name__} of images is empty: give at least one image.")
    if is_pictures(images) and (transform is not None or has_transform(model)):
        return read_pictures(images, model, transform), None
    if transform is not None and is_pil(images):
        raise HeatproofError("The images are a PIL image: give [images], a list of pictures, with the `transform`.")
    if transform is not None:
        raise HeatproofError(
            "`transform` reads image files and a list of pictures, and the images are "
            f"{type(images).__name__}: leave it out."
        )
    if is_loader(images):
        return read_loader(images)
    labels = labels_of(images)
    checked = check_images(images)
    names = None if labels is None or labels.ids is None else check_ids(labels.ids, len(checked))
    return source_of_tensor(checked, names), None


def _warn_of_unused_targets(source: Inputs) -> None:
    """Warn the caller of a function of the API if targets are values of a regression and select none of its outputs."""
    if source.labels is None or not torch.equal(source.explained_targets.double(), source.labels):
        warnings.warn(
            "The targets are not used, because the number itself that a regression returns is explained: leave them "
            "out, or select one of several outputs by whole numbers.",
            stacklevel=4,
        )


def _targets_of_images(source: Inputs, model: Any, loaded: LoaderInfo | None, target_spec: TargetSpec) -> Any:
    """Return the targets that come with the images, or None."""
    if loaded is not None:
        return loaded.labels(not target_spec.kind)
    outputs = getattr(model, "num_classes", None)
    has_class_folders = source.class_names and not target_spec.kind
    if has_class_folders and isinstance(outputs, int) and outputs != len(source.class_names):
        raise HeatproofError(
            f"The folder has {len(source.class_names)} class folders and the model {outputs} outputs, so that the "
            "numbers of the folders are not classes of the model: give `targets`, one class number for each image in "
            "the order of their paths."
        )
    # Folder numbers are not the values of a regression.
    return None if target_spec.kind == "regression" else source.targets


def _select_classes(source: Inputs, classes: Any) -> Inputs:
    """Return the images whose target is one of the listed classes or labels."""
    if source.kind in ("regression", CALLABLE):
        raise HeatproofError("`classes` selects classes or labels, and the explained targets have none: leave it out.")
    listed = classes.tolist() if hasattr(classes, "tolist") else classes
    if isinstance(listed, str | bytes | Mapping) or not isinstance(listed, Iterable):
        raise HeatproofError(
            f"classes is {short_repr(classes)}: give a list of class numbers, as classes=[{short_repr(listed)}]."
        )
    selected = {}
    for name in listed:
        number = name
        if isinstance(name, str):
            if not source.class_names:
                raise HeatproofError(
                    f"classes has the name {name!r}, and only a folder of class folders has names of classes: give "
                    "numbers."
                )
            if name not in source.class_names:
                raise HeatproofError(f"There is no class folder {name!r}: {suggest_name(name, source.class_names)}")
            number = source.class_names.index(name)
        elif isinstance(name, bool | np.bool_) or not isinstance(name, int | np.integer):
            raise HeatproofError(f"classes has {short_repr(name)}: give class numbers, as classes=[0, 3].")
        selected[int(number)] = name
    if not selected:
        raise HeatproofError("classes is empty: name at least one class, or leave it out for all images.")
    if source.targets is None:
        raise HeatproofError("The images have no targets to take classes from: give `targets`.")
    numbers = source.targets.tolist()
    missing = next((name for number, name in selected.items() if number not in set(numbers)), None)
    if missing is not None:
        raise HeatproofError(f"No image has the class {missing!r}, which `classes` names: leave it out.")
    return source.take([row for row, number in enumerate(numbers) if number in selected])
