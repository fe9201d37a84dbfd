"""Images of torch loaders and datasets, and of any other iterable of batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
)

from heatproof.api.inputs.arrays import IMAGE_KEYS, check_images, is_pil
from heatproof.api.inputs.class_targets import check_targets
from heatproof.api.inputs.source import READ_BATCH_SIZE, Inputs, source_of_tensor
from heatproof.core.named_axes import is_labelled_array
from heatproof.core.plain_values import as_plain_values
from heatproof.core.state import preserve_random_states
from heatproof.errors import HeatproofError, first_line, is_out_of_memory

LABEL_KEYS = ("label", "labels", "target", "targets", "y", "class", "classes", "class_id")
# Parts of custom keys of labels, such as "fine_label".
LABEL_WORDS = ("label", "target", "class")
# Number of images that are read repeatedly to detect random augmentation, and how often. Of most augmentations, about
# one of ten thousand is missed.
REPEATED_IMAGES, REPETITIONS = 4, 4


@dataclass(frozen=True, eq=False)
class LoaderInfo:
    """The labels and the order of a loader.

    Attributes
    ----------
    labels
        Function that returns the label of each image, a tensor or list of length N; None without labels. Its argument
        says whether labels must be classes, which some datasets list without reading images.
    is_shuffled
        Whether iteration over the loader has another order than its dataset.
    """

    labels: Any
    is_shuffled: bool = False


class AmbiguousLabelKeys(tuple[str, ...]):
    """Keys of several kinds of labels, one of which may be the classes."""

    __slots__ = ()


def is_loader(images: Any) -> bool:
    """Return whether an argument is an iterable of images: a loader, a dataset, a generator or a list of batches."""
    if isinstance(images, DataLoader | Dataset):
        return True
    if isinstance(images, list | tuple):
        first = images[0] if images else None
        if isinstance(first, list | tuple) and first and isinstance(first[0], torch.Tensor):
            return first[0].ndim in (3, 4)
        # A list of batches is concatenated. A list of single images is refused: the caller has to stack it.
        return isinstance(first, Mapping) or (isinstance(first, torch.Tensor) and first.ndim == 4)
    is_other_type = isinstance(images, str | bytes | Mapping | set | frozenset | np.ndarray | torch.Tensor)
    if is_other_type or is_labelled_array(images) or hasattr(images, "data_vars") or hasattr(images, "iloc"):
        return False
    return isinstance(images, Iterable) and not is_pil(images)


def read_loader(images: Any) -> tuple[Inputs, LoaderInfo]:
    """Return the images of a loader, and its labels and order.

    Raises
    ------
    HeatproofError
        If it has no images, images of different shapes, or images that differ each time they are read.
    """
    if isinstance(images, list | tuple) and _holds_samples(images):
        images = DataLoader(images, batch_size=READ_BATCH_SIZE)  # type: ignore[arg-type]
    if isinstance(images, Dataset) and not isinstance(images, IterableDataset):
        images = DataLoader(images, batch_size=READ_BATCH_SIZE)
    has_numbers = isinstance(images, DataLoader) and not isinstance(images.dataset, IterableDataset)
    return _read_by_number(images) if has_numbers and images.batch_sampler is not None else _read_all(images)


def _holds_samples(images: Sequence[Any]) -> bool:
    first = split_batch(images[0])[0]
    return getattr(first, "ndim", 0) == 3


def _read_by_number(loader: Any) -> tuple[Inputs, LoaderInfo]:
    dataset = loader.dataset
    with preserved_random_states(loader), loader_errors("in its sampler"):
        places, is_shuffled = _places(loader)
    if not places:
        raise HeatproofError("The loader has no images: give one with at least one image.")
    if len(set(places)) < len(places):
        raise HeatproofError(
            "The loader's sampler selects an image twice, for example with replacement: give a loader without "
            "`sampler`."
        )
    names = _file_names(dataset)
    ids = [str(number) if names is None else names[number] for number in places]

    def read_batch(rows: Sequence[int]) -> tuple[torch.Tensor, Any]:
        numbers = [places[row] for row in rows]
        with loader_errors(f"on image {ids[rows[0]]!r}" if len(rows) == 1 else f"on images from {ids[rows[0]]!r}"):
            read_together = getattr(dataset, "__getitems__", None)
            samples = read_together(numbers) if read_together is not None else [dataset[number] for number in numbers]
            _check_equal_shapes(samples, [ids[row] for row in rows])
            images, labels = split_batch(loader.collate_fn([_plain_sample(sample) for sample in samples]))
        images = check_images(images)
        if len(images) != len(rows):
            raise HeatproofError(
                f"The loader returns {len(images)} images for {len(rows)} numbers: let its dataset return one image "
                "for each number."
            )
        return images, labels

    shapes: list[tuple[int, ...]] = []

    def read(rows: Sequence[int]) -> torch.Tensor:
        images = read_batch(rows)[0]
        shapes[1:] = [tuple(images.shape[1:])]
        if shapes[0] != shapes[-1]:
            raise HeatproofError(
                f"The image {ids[rows[0]]!r} has the shape {shapes[-1]}, and others {shapes[0]}: resize all to one."
            )
        return images

    repeated = spread_rows(len(ids))
    refuse_random(read, repeated, ids, "The loader")

    def labels(must_be_classes: bool) -> Any:
        with preserved_random_states():
            probe_labels = read_batch(repeated)[1]
            if probe_labels is None:
                return None
            _check_label_keys(probe_labels)
            listed = _listed_targets(dataset) if must_be_classes else None
            if must_be_classes:
                probe_classes = check_targets(probe_labels, len(repeated))
            if listed is not None:
                targets = check_targets([listed[number] for number in places], len(places))
                if bool((targets[repeated] == probe_classes).all()):
                    return targets
            batches_of_rows = [
                range(low, min(low + READ_BATCH_SIZE, len(ids))) for low in range(0, len(ids), READ_BATCH_SIZE)
            ]
            label_batches = [_in_rows(read_batch(rows)[1], len(rows)) for rows in batches_of_rows]
        return _joined(label_batches)

    return Inputs(ids, read, is_named=names is not None), LoaderInfo(labels, is_shuffled)


def _plain_sample(sample: Any) -> Any:
    """Return a sample whose arrays have no mask and torch's byte order, because torch's `collate_fn` drops a mask."""
    if type(sample) is dict:
        return {key: _plain_sample(part) for key, part in sample.items()}
    if type(sample) in (list, tuple):
        return type(sample)(_plain_sample(part) for part in sample)
    return as_plain_values(sample, "images") if isinstance(sample, np.ndarray) else sample


def _places(loader: Any) -> tuple[list[int], bool]:
    """Return the numbers of the images that a loader selects, and whether their order changes."""
    count = len(loader.dataset)
    is_plain_batching = type(loader.batch_sampler) is BatchSampler
    # A loader that is given a batch sampler has a `sampler` of its own, which it does not use.
    sampler = loader.batch_sampler.sampler if is_plain_batching else loader.sampler
    if is_plain_batching and isinstance(sampler, SequentialSampler):
        return list(range(count)), False
    if (
        is_plain_batching
        and isinstance(sampler, RandomSampler)
        and sampler.num_samples == count
        and not sampler.replacement
    ):
        return list(range(count)), True
    if is_plain_batching and isinstance(sampler, SubsetRandomSampler):
        return sorted(map(int, sampler.indices)), True
    first, second = (
        [
            int(number)
            for number in (sampler if is_plain_batching else (row for batch in loader.batch_sampler for row in batch))
        ]
        for _ in range(2)
    )
    # An unknown sampler that shuffles: take the order of the dataset, which does not change.
    return (first, False) if first == second else (sorted(first), True)


def spread_rows(count: int) -> list[int]:
    """Return numbers of a few images, from the first of `count` to the last, that are read repeatedly."""
    return sorted({round(number * (count - 1) / (REPEATED_IMAGES - 1)) for number in range(REPEATED_IMAGES)})


def refuse_random(read: Any, rows: Sequence[int], ids: Sequence[str], what: str) -> None:
    """Check that images are the same each time they are read.

    Parameters
    ----------
    read
        Function from row numbers to images.
    rows
        Numbers of the images to read repeatedly.
    ids
        Image ids, for messages.
    what
        Subject of the message, such as "The loader".

    Raises
    ------
    HeatproofError
        If an image changes; the message names it.
    """
    with preserved_random_states():
        first = read(rows)
        for repetition in range(max(REPETITIONS, 16 // len(rows)) - 1):
            # Every second time in reverse order, because `collate_fn` may sort the samples.
            second = read(rows) if repetition % 2 else read(rows[::-1]).flip(0)
            for row, before, after in zip(rows, first, second, strict=True):
                if not torch.equal(before.nan_to_num(), after.nan_to_num()):
                    raise HeatproofError(
                        f"{what} returns another image {ids[row]!r} each time that it is read: remove random "
                        "augmentation from its transform, and sorting from its `collate_fn`."
                    )


def _read_all(batches: Iterable[Any]) -> tuple[Inputs, LoaderInfo]:
    """Read all batches into memory."""
    images: list[torch.Tensor] = []
    labels: list[Any] = []
    with preserved_random_states(batches), loader_errors("during iteration"):
        for batch in batches:
            batch_images, batch_labels = split_batch(batch)
            if getattr(batch_images, "ndim", 0) == 3 and _is_number(batch_labels):
                # The loader yields single samples instead of batches.
                batch_images, batch_labels = batch_images[None], [int(batch_labels)]
            # A generator may reuse one array for all batches.
            batch_images, batch_labels = check_images(batch_images).clone(), deepcopy(batch_labels)
            if images and batch_images.shape[1:] != images[0].shape[1:]:
                shapes = f"{tuple(images[0].shape[1:])} and {tuple(batch_images.shape[1:])}"
                raise HeatproofError(f"The images of the loader have the shapes {shapes}: resize all to one.")
            images.append(batch_images)
            labels.append(batch_labels)
    if not images:
        raise HeatproofError(
            "The loader has no images: give one with at least one; a generator can be iterated over only once."
        )
    all_images = torch.cat(images)

    def all_labels(must_be_classes: bool) -> Any:
        if any(part is None for part in labels):
            return None
        _check_label_keys(labels[0])
        return _joined(labels)

    return source_of_tensor(all_images), LoaderInfo(all_labels)


def _is_number(value: Any) -> bool:
    return np.ndim(value) == 0 and np.asarray(value).dtype.kind in "iu"


def _check_label_keys(labels: Any) -> None:
    if isinstance(labels, AmbiguousLabelKeys):
        raise HeatproofError(
            f"The loader gives {' and '.join(labels)}, which can all be the classes: give `targets`, or name one of "
            f"them {LABEL_KEYS[0]!r}."
        )


def split_batch(batch: Any) -> tuple[Any, Any]:
    """Return images and labels of a batch or sample; the labels are None if it has none."""
    if isinstance(batch, Mapping) or (hasattr(batch, "keys") and hasattr(batch, "__getitem__")):
        keys = list(batch.keys())
        image_key = next((key for key in IMAGE_KEYS if key in keys), None)
        label_keys = [key for key in keys if key != image_key and any(word in str(key).lower() for word in LABEL_WORDS)]
        label_key = next((key for key in LABEL_KEYS if key in keys), label_keys[0] if len(label_keys) == 1 else None)
        ambiguous = AmbiguousLabelKeys(map(str, label_keys)) if label_key is None and label_keys else None
        if image_key is None:
            raise HeatproofError(
                f"The loader gives {', '.join(map(str, keys)) or 'nothing'}: name its images {IMAGE_KEYS[0]!r} or "
                f"{IMAGE_KEYS[2]!r}, and their labels {LABEL_KEYS[0]!r}."
            )
        return batch[image_key], ambiguous if label_key is None else batch[label_key]
    if isinstance(batch, list | tuple) and batch:
        return batch[0], batch[1] if len(batch) > 1 else None
    return batch, None


@contextmanager
def loader_errors(when: str) -> Iterator[None]:
    """Convert exceptions of a loader, which is user code, to a HeatproofError with one sentence."""
    try:
        yield
    except Exception as error:
        if isinstance(error, HeatproofError) or is_out_of_memory(error):
            raise
        reason = first_line(error)
        if "PIL" in reason:
            raise HeatproofError(
                "The loader's dataset returns PIL images: give it transform=torchvision.transforms.ToTensor(), and "
                "normalise as the model expects."
            ) from error
        raise HeatproofError(
            f"The loader fails {when} ({type(error).__name__}: {reason[:200]}): try next(iter(loader)), and repair it."
        ) from error


@contextmanager
def preserved_random_states(loader: Any = None) -> Iterator[None]:
    """Restore the random states of torch, NumPy and Python, and those of the generators of a loader, on exit.

    Iteration over a loader draws a seed.
    """
    holders = (loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None))
    generators = {
        id(generator): generator
        for holder in holders
        if isinstance(generator := getattr(holder, "generator", None), torch.Generator)
    }
    states = [(generator, generator.get_state()) for generator in generators.values()]
    try:
        with preserve_random_states():
            yield
    finally:
        for generator, state in states:
            generator.set_state(state)


def _check_equal_shapes(samples: Sequence[Any], ids: Sequence[str]) -> None:
    shapes: dict[tuple[int, ...], str] = {}
    for name, sample in zip(ids, samples, strict=True):
        shape = getattr(split_batch(sample)[0], "shape", None)
        if shape is not None:
            shapes.setdefault(tuple(shape), name)
    if len(shapes) > 1:
        (first_shape, first), (second_shape, second) = list(shapes.items())[:2]
        raise HeatproofError(
            f"The images {first!r} and {second!r} of the loader have the shapes {first_shape} and {second_shape}: "
            "resize all to one."
        )


def _in_rows(part: Any, count: int) -> Any:
    """Return the labels of a batch with one row per image.

    torch's `collate_fn` turns the lists of numbers of a batch into a list of columns, one tensor for each.

    Raises
    ------
    HeatproofError
        If there are as many tensors as images, so that a tensor could be a row or a column.
    """
    if not isinstance(part, list | tuple) or not part:
        return part
    if not all(isinstance(column, torch.Tensor) and column.shape == (count,) for column in part):
        return part
    if len(part) == count > 1:
        raise HeatproofError(
            f"The loader gives {count} tensors of {count} labels for {count} images, so that a tensor can belong to an "
            "image or to a label: return the labels of each image as one tensor."
        )
    return torch.stack(list(part), 1)


def _joined(parts: Sequence[Any]) -> Any:
    if all(isinstance(part, torch.Tensor) for part in parts):
        return torch.cat([part.reshape(-1) if part.ndim == 0 else part for part in parts])
    return [label for part in parts for label in (part.tolist() if hasattr(part, "tolist") else part)]


def _listed_targets(dataset: Any) -> Sequence[Any] | None:
    """Return the list of labels of a torchvision dataset, which avoids reading the images, or None."""
    inner = getattr(dataset, "dataset", None)
    if inner is not None and hasattr(dataset, "indices"):
        listed = _listed_targets(inner)
        return None if listed is None else [listed[number] for number in dataset.indices]
    listed = getattr(dataset, "targets", None)
    if listed is None or getattr(dataset, "target_transform", None) is not None or len(listed) != len(dataset):
        return None
    return listed.tolist() if hasattr(listed, "tolist") else listed


def _file_names(dataset: Any) -> list[str] | None:
    """Return the paths, relative to the root, of a dataset such as torchvision's ImageFolder; None without paths."""
    inner = getattr(dataset, "dataset", None)
    if inner is not None and hasattr(dataset, "indices"):
        names = _file_names(inner)
        return None if names is None else [names[number] for number in dataset.indices]
    samples, root = getattr(dataset, "samples", None), getattr(dataset, "root", None)
    if not (isinstance(samples, list) and isinstance(root, str | Path) and len(samples) == len(dataset)):
        return None
    try:
        names = [Path(sample[0]).relative_to(root).as_posix() for sample in samples]
    except (TypeError, ValueError, IndexError, KeyError):
        return None
    return names if len(set(names)) == len(names) else None
