"""Registry of datasets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from heatproof.core.dataset import Dataset
from heatproof.core.options import height_and_width
from heatproof.core.registry import Registry, RegistryEntry, options_of


@dataclass(frozen=True)
class DatasetEntry(RegistryEntry):
    """A registered dataset loader.

    Attributes
    ----------
    load
        Loader: ``load(seed=…, **options)`` returns a `Dataset`.
    size
        Height and width of the images; None if the option `size` sets it, or images are fitted to the model.
    count
        Function: ``count(**options)`` returns the number of evaluation images without loading an image, and raises
        HeatproofError if the folder does not exist. None if there is no fast way.
    parts
        Whether the loaded dataset is also a `HasParts`.
    """

    name: str
    load: Callable[..., Dataset]
    size: tuple[int, int] | None
    options: Mapping[str, Any]
    count: Callable[..., int] | None = None
    parts: bool = False

    code: ClassVar[str] = "load"

    def image_size(self, options: Mapping[str, Any]) -> tuple[int, int] | None:
        """Return height and width of the images for the options in a config; None if unknown.

        The option `size` is the side of square images, or height and width.
        """
        size = options.get("size", self.options.get("size"))
        return self.size if size is None else height_and_width(size)


DATASETS: Registry[DatasetEntry] = Registry("heatproof.datasets", "dataset")


def dataset(
    name: str, size: tuple[int, int] | None, count: Callable[..., int] | None = None, *, parts: bool = False
) -> Callable[[Callable[..., Dataset]], Callable[..., Dataset]]:
    """Register a loader as a dataset; its keyword-only arguments, except `seed`, are the options.

    Parameters
    ----------
    name, size
        See `DatasetEntry`.
    count
        See `DatasetEntry`. By default, the loader lists the evaluation split, which reads no image.
    parts
        See `DatasetEntry`.

    Examples
    --------
    >>> @dataset("squares", size=(32, 32))
    ... def squares(*, seed: int, images: int = 100) -> Dataset:
    ...     return Squares(seed, images)
    """

    def enter(load: Callable[..., Dataset]) -> Callable[..., Dataset]:
        options = {option: default for option, default in options_of(load).items() if option != "seed"}
        counted = count or (lambda **options: len(load(seed=0, **options).splits["evaluation"]))
        DATASETS[name] = DatasetEntry(name, load, size, MappingProxyType(options), counted, parts)
        return load

    return enter
