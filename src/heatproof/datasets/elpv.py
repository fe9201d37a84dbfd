"""Dataset `elpv`: photographs of solar cells, from the package elpv-dataset."""

from __future__ import annotations

import importlib.util
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from heatproof.core.options import Bounds, Side
from heatproof.datasets.image_files import Interpolation, find_folder, image_reader
from heatproof.datasets.lazy import FileList, LazyDataset
from heatproof.datasets.registry import dataset
from heatproof.errors import HeatproofError
from heatproof.store.reading import read_list

NAMES = {
    "defective": ("functional", "defective"),
    "probability": ("0", "1/3", "2/3", "1"),
    "module": ("mono", "poly"),
}
HOW = "install it with pip install 'heatproof[elpv]', or get https://github.com/zae-bayern/elpv-dataset"


@dataset("elpv", size=None)
def elpv(
    *,
    seed: int,
    root: str | None = None,
    target: Literal["defective", "probability", "module"] = "defective",
    threshold: Annotated[float, Bounds(above=0, most=1)] = 0.5,
    size: Side = 224,
    interpolation: Interpolation = "bilinear",
    validation: float = 0.1,
    evaluation: float = 0.2,
) -> LazyDataset:
    """2,624 electroluminescence photographs of solar cells, 300×300 grey, with defects; needs heatproof[elpv].

    The licence of the images is CC BY-NC-SA 4.0, which excludes commercial use. Images are resized without cropping,
    because a crack can be at the edge. Cells of one solar module can be in different splits, because the labels do not
    identify modules.

    Parameters
    ----------
    seed
        Seed of the split.
    root
        The folder with ``labels.csv`` and ``images``; None for that of the package.
    target
        The classes: ``defective``, whether the cell has a defect; ``probability``, the annotated probability of a
        defect (four steps); or ``module``, the type of the solar module.
    threshold
        Lowest probability of a defect with which a cell counts as defective.
    size, interpolation
        Side in pixels to which images are resized, and the interpolation.
    validation, evaluation
        Fraction of every class for these splits. The authors define no splits.

    Raises
    ------
    HeatproofError
        If the package or the folder is missing, or its labels are invalid.

    References
    ----------
    Deitsch et al., Automatic classification of defective photovoltaic module cells in electroluminescence images, Solar
    Energy 185 (2019).
    """
    folder = find_folder(
        _of_package() if root is None else root,
        ("data", "elpv_dataset/data", "src/elpv_dataset/data"),
        ("labels.csv", "images"),
        "elpv",
        HOW,
    )
    return LazyDataset(
        NAMES[target],
        {"train": partial(_list_cells, folder, target, threshold)},
        image_reader(size, size, interpolation),
        seed=seed,
        shares={"validation": validation, "evaluation": evaluation},
        list_files=lambda: [folder / "labels.csv"],
    )


def _of_package() -> str:
    # The package is not imported, because its own loader decodes every image.
    module_spec = importlib.util.find_spec("elpv_dataset")
    if module_spec is None or not module_spec.submodule_search_locations:
        raise HeatproofError(f"The dataset elpv needs the package elpv-dataset, which is not installed: {HOW}.")
    return next(iter(module_spec.submodule_search_locations))


def _list_cells(folder: Path, target: str, threshold: float) -> FileList:
    paths: list[str] = []
    labels: list[int] = []
    for line in read_list(folder / "labels.csv").splitlines():
        try:
            path, text, kind = line.split()
            probability = float(text)
            step = round(probability * 3)
            label = {
                "defective": int(probability >= threshold),
                "probability": step,
                "module": NAMES["module"].index(kind),
            }[target]
            if not 0 <= step <= 3:
                raise ValueError(text)
        except ValueError:
            raise HeatproofError(
                f"{folder / 'labels.csv'} has the line {line!r}, which is not a path, a probability and a kind of "
                "module: get it again."
            ) from None
        paths.append(path)
        labels.append(label)
    return FileList(
        [Path(path).stem for path in paths], np.array(labels, dtype=np.int64), [folder / path for path in paths]
    )
