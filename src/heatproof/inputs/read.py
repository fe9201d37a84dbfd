"""What a caller gives as images, targets and ids, in any form, as one `ImageSource`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from heatproof.base.named_axes import is_labelled_array
from heatproof.base.options import short_repr
from heatproof.base.registry import suggest_name
from heatproof.base.tasks import CALLABLE
from heatproof.errors import HeatproofError
from heatproof.inputs.arrays import check_finite, check_ids, check_images
from heatproof.inputs.folders import read_folder
from heatproof.inputs.labels import labels_of
from heatproof.inputs.loaders import LoaderInfo, is_loader, read_loader
from heatproof.inputs.source import ImageSource, source_of_tensor
from heatproof.inputs.targets import TargetSpec, align_targets, assign_targets, labels_of_maps

if TYPE_CHECKING:
    from heatproof.models.adapter import AdaptedNetwork

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
    network: AdaptedNetwork | None = None,
    target_spec: TargetSpec | None = None,
    pairs: bool = True,
) -> ImageSource:
    """Return the images of a caller with their names and targets.

    Parameters
    ----------
    model
        One of timm says how pictures of a folder are read.
    images
        A float tensor or array (N, C, H, W), an xarray.DataArray, a torch DataLoader or data set, any other iterable of
        batches, which is read once into memory, or a folder of pictures.
    targets
        As in `heatproof.explain`; None for what `maps` say they explain, else for the labels that come with the images,
        else for what the network answers.
    image_ids
        N names; None for those that come with the images, else "0", "1", ….
    classes
        Numbers of classes, or names of class folders: only images whose target is one of these are kept.
    transform
        Of a folder: a function from a PIL picture to a tensor (C, H, W).
    maps
        That are scored on the images.
    network
        Whose answer is explained where nothing says a target; None to leave such targets open.
    question
        The task, or the target function; by default classes. Its `reader` reads the network.
    pairs
        Whether every pair of an image and a label that it has is a row.

    Returns
    -------
    ImageSource
        Of images in memory all values are checked; others are checked when they are read.

    Raises
    ------
    HeatproofError
        One sentence for the first thing that is wrong, with what to write in its place.
    """
    source, loaded = _source(model, images, transform)
    if loaded is not None and loaded.is_shuffled and not (targets is None and image_ids is None):
        which = "image_ids" if targets is None else "targets"
        raise HeatproofError(
            f"The loader shuffles its images, so that the order of the {which} is open: give one with shuffle=False."
        )
    if image_ids is not None:
        ids = check_ids(image_ids, len(source))
        if is_labelled_array(images) and source.is_named and ids != source.ids:
            raise HeatproofError(
                "The names in image_ids are others than the coordinate image of the images: leave image_ids out, or "
                "give images.drop_vars('image')."
            )
        source = replace(source, ids=ids, is_named=True)
    if source.is_checked:
        check_finite(source.images, source.ids)
    target_spec = target_spec or TargetSpec()
    if targets is None and maps is not None:
        targets = labels_of_maps(maps, source, target_spec, network)
    elif targets is not None:
        targets = align_targets(targets, source, target_spec, network)
    if targets is None:
        targets = _own_targets(source, model, loaded, target_spec)
    source = assign_targets(source, targets, target_spec, network, pairs)
    return source if classes is None else _of_classes(source, classes)


def _source(model: Any, images: Any, transform: Transform | None) -> tuple[ImageSource, LoaderInfo | None]:
    if isinstance(images, str | Path):
        return read_folder(images, model, transform), None
    if transform is not None:
        raise HeatproofError(
            f"`transform` reads the pictures of a folder, and the images are {type(images).__name__}: leave it out."
        )
    if is_loader(images):
        return read_loader(images)
    known = labels_of(images)
    checked = check_images(images)
    names = None if known is None or known.ids is None else check_ids(known.ids, len(checked))
    return source_of_tensor(checked, names), None


def _own_targets(source: ImageSource, model: Any, loaded: LoaderInfo | None, target_spec: TargetSpec) -> Any:
    """Return the targets that come with images; None where none do."""
    if loaded is not None:
        return loaded.labels(not target_spec.kind)
    outputs = getattr(model, "num_classes", None)
    own = source.class_names and not target_spec.kind
    if own and isinstance(outputs, int) and outputs != len(source.class_names):
        raise HeatproofError(
            f"The folder has {len(source.class_names)} class folders and the model {outputs} outputs, so that the "
            "numbers of the folders are no classes of the model: give `targets`, one class number for each picture "
            "in the order of their paths."
        )
    # The number of a folder is no number that a regression learns.
    return None if target_spec.kind == "regression" else source.targets


def _of_classes(source: ImageSource, classes: Any) -> ImageSource:
    """Return the images whose target is one of some classes or labels."""
    if source.kind in ("regression", CALLABLE):
        raise HeatproofError("`classes` names classes or labels, and what is explained has none: leave it out.")
    listed = classes.tolist() if hasattr(classes, "tolist") else classes
    if isinstance(listed, str | bytes | Mapping) or not isinstance(listed, Iterable):
        raise HeatproofError(
            f"classes is {short_repr(classes)}: give a list of class numbers, as classes=[{short_repr(listed)}]."
        )
    wanted = {}
    for one in listed:
        number = one
        if isinstance(one, str):
            if not source.class_names:
                raise HeatproofError(
                    f"classes has the name {one!r}, and only a folder of class folders has names of classes: give "
                    "numbers."
                )
            if one not in source.class_names:
                raise HeatproofError(f"There is no class folder {one!r}: {suggest_name(one, source.class_names)}")
            number = source.class_names.index(one)
        elif isinstance(one, bool | np.bool_) or not isinstance(one, int | np.integer):
            raise HeatproofError(f"classes has {short_repr(one)}: give class numbers, as classes=[0, 3].")
        wanted[int(number)] = one
    if not wanted:
        raise HeatproofError("classes is empty: name at least one class, or leave it out for all images.")
    if source.targets is None:
        raise HeatproofError("The images have no targets to take classes from: give `targets`.")
    numbers = source.targets.tolist()
    missing = next((name for number, name in wanted.items() if number not in set(numbers)), None)
    if missing is not None:
        raise HeatproofError(f"No image has the class {missing!r}, which `classes` names: leave it out.")
    return source.take([row for row, number in enumerate(numbers) if number in wanted])
