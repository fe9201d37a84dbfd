"""A folder that caches maps and responses, so that an interrupted call resumes and no value is computed twice.

Subfolders are named by digests: the network; a number (``0``, ``1``, …) that separates networks with the same weights
but different outputs; and the method or the response with everything that determines its values. Each batch is one file
there, in which images are found by content, name and class.
"""

from __future__ import annotations

import os
import shutil
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from heatproof.api.inputs.identity import identity_of, network_identity, version_of
from heatproof.core.adaptive_batch_size import describe_device
from heatproof.core.hooks import counted_as_check
from heatproof.core.provenance import digest, library_versions
from heatproof.errors import HeatproofError, machine_fault
from heatproof.store.array_cache import BatchFolder
from heatproof.store.lock import LOCK, locked_folder
from heatproof.store.manifest import read_checksummed, write_checksummed
from heatproof.store.reading import printable_path, reason_of, refuse_links_in, resolve_user_folder

if TYPE_CHECKING:
    from heatproof.api.inputs.source import Inputs
    from heatproof.api.inputs.targets import TargetSpec
    from heatproof.core.network import Network

MARK_FILE, MARK_CONTENT = "heatproof-cache.json", {"kind": "cache of heatproof", "version": 1}
APPLICABILITY_FILE = "verdicts.json"
# Allowed relative difference of the gradients of one network: rounding may switch a unit near zero on or off.
GRADIENT_TOLERANCE = 0.01
# Faults of the machine or of the installation, which another call may not have.
TRANSIENT_ERRORS = (OSError, ImportError, MemoryError)


class InMemoryArrays:
    """Arrays of images by name, with the interface of `heatproof.store.array_cache.BatchFolder`, but only in memory.

    Parameters
    ----------
    names
        Names of all images.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.rows = {name: row for row, name in enumerate(names)}
        self.values: dict[str, np.ndarray] = {}
        self.costs = np.full((len(names), 2), np.nan)

    def missing(self, names: Sequence[str]) -> list[int]:
        """Return the rows of the images that have no values."""
        return [row for row, name in enumerate(names) if np.isnan(self.costs[self.rows[name], 0])]

    def add(self, names: Sequence[str], arrays: Mapping[str, np.ndarray], seconds: float, passes: int) -> None:
        """Store the values of images, arrays (images, …)."""
        rows = [self.rows[name] for name in names]
        for name, values in arrays.items():
            if name not in self.values:
                self.values[name] = np.empty((len(self.rows), *values.shape[1:]), values.dtype)
            self.values[name][rows] = values
        self.costs[rows] = seconds / len(rows), passes / len(rows)

    def read(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the values of images, arrays (images, …); without a copy if all images are requested."""
        rows = [self.rows[name] for name in names]
        if rows == list(range(len(self.rows))):
            return dict(self.values)
        return {name: values[rows] for name, values in self.values.items()}

    def cost(self, names: Sequence[str]) -> tuple[float, float]:
        """Return the mean seconds and passes for one image."""
        seconds, passes = self.costs[[self.rows[name] for name in names]].mean(0)
        return float(seconds), float(passes)


CachedArrays = BatchFolder | InMemoryArrays


@dataclass
class ApplicabilityRecords:
    """Results of applicability checks of a method: image sets for which it is, or is not, applicable.

    Attributes
    ----------
    path
        File that stores the records; None to store nothing.
    """

    path: Path | None = None
    records: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        stored = None if self.path is None else read_checksummed(self.path)
        for decision in (stored or {}).get("found", ()):
            kinds = {"images": list, "first": bool, "reason": str, "failed": bool}
            if isinstance(decision, dict) and all(isinstance(decision.get(name), kind) for name, kind in kinds.items()):
                self.records.append(decision)

    def find(self, names: Sequence[str], first: Sequence[str]) -> tuple[str, bool] | None:
        """Return why a method is not applicable to images and whether it failed; None if this is not known.

        The reason is empty if the method is applicable.

        Parameters
        ----------
        names, first
            All images, and the few that are checked first.
        """
        all_names, result = set(names), None
        for decision in self.records:
            # A batch that failed fails again, whatever the other images are.
            if decision["images"] == sorted(first) if decision["first"] else all_names.issuperset(decision["images"]):
                result = decision["reason"], decision["failed"]
                if decision["reason"]:
                    break
        return result

    def add(self, names: Sequence[str], first: bool, error: Exception | None = None, failed: bool = False) -> None:
        """Record the result of a check on images, unless a fault of the machine caused it."""
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, TRANSIENT_ERRORS) or machine_fault(cause):
                return
            cause = cause.__cause__
        reason = "" if error is None else str(error)
        self.records.append({"images": sorted(names), "first": first, "reason": reason, "failed": failed})
        if self.path is not None:
            write_checksummed(self.path, {"found": self.records})


@dataclass(frozen=True)
class Cache:
    """Cached results for one network.

    Attributes
    ----------
    folder
        Folder of the network; None to keep everything in memory.
    """

    folder: Path | None = None

    def arrays(
        self, kind: str, key: str, names: Sequence[str], arrays: Mapping[str, tuple[str, list[int]]] | None = None
    ) -> CachedArrays:
        """Return the cached arrays of a method or a response.

        Parameters
        ----------
        kind, key
            ``maps`` or ``responses``, and a digest of everything that determines the values.
        names
            Names of all images of the call.
        arrays
            The expected dtype and shape of an image's arrays by name, if they are known.
        """
        return InMemoryArrays(names) if self.folder is None else BatchFolder(self.folder / kind / key, arrays)

    def applicability(self, key: str) -> ApplicabilityRecords:
        """Return the recorded applicability checks of a method."""
        return ApplicabilityRecords(None if self.folder is None else self.folder / "maps" / key / APPLICABILITY_FILE)


@contextmanager
def locked_cache(folder: Any) -> Iterator[Path | None]:
    """Lock the folder of a cache against use by other calls, and yield its real path.

    Parameters
    ----------
    folder
        The folder as the caller passed it; None for no cache.

    Raises
    ------
    HeatproofError
        If it is not a folder, contains other files, a link or a pipe, or another call uses it.
    """
    if folder is None:
        yield None
        return
    if not isinstance(folder, str | os.PathLike):
        raise HeatproofError(f"The cache is {type(folder).__name__}: give the path of a folder.")
    root = Path(os.path.abspath(resolve_user_folder(folder)))
    if root.exists() and not root.is_dir():
        raise HeatproofError(
            f"The cache {printable_path(root)} is a file: name a folder, which is created if it does not exist."
        )
    _require_cache_folder(root)
    with locked_folder(str(root), "cache"), _named_failures(root):
        if read_checksummed(root / MARK_FILE) != MARK_CONTENT:
            write_checksummed(root / MARK_FILE, MARK_CONTENT)
        yield root


@contextmanager
def _named_failures(root: Path) -> Iterator[None]:
    """Turn an error of the system while a cache is written into one sentence; other errors are left as they are."""
    try:
        yield
    except OSError as error:
        if not isinstance(error.filename, str) or not Path(error.filename).is_relative_to(root):
            raise
        sentence = machine_fault(error) or f"The cache {printable_path(root)} cannot be written ({reason_of(error)})."
        raise HeatproofError(sentence) from error


def _require_cache_folder(root: Path) -> None:
    """Refuse a folder that is not a cache of heatproof."""
    try:
        names = sorted(os.listdir(root))
    except FileNotFoundError:
        return
    except OSError as error:
        raise HeatproofError(
            machine_fault(error) or f"The cache {printable_path(root)} cannot be read ({error})."
        ) from None
    others = [name for name in names if not name.endswith(LOCK) and MARK_FILE not in name]
    if others and MARK_FILE not in names:
        raise HeatproofError(
            f"{printable_path(root)} is not a cache of heatproof, because it contains {printable_path(others[0])!r}: "
            "name an empty or a new folder for `cache`."
        )
    refuse_links_in(root)
    if (root / MARK_FILE).is_dir():
        raise HeatproofError(f"{printable_path(root / MARK_FILE)} is a folder, not a regular file: remove it.")
    # A damaged file is written again.
    if (read_checksummed(root / MARK_FILE) or MARK_CONTENT) != MARK_CONTENT:
        raise HeatproofError(
            f"The cache {printable_path(root)} is from another version of heatproof: name another folder for `cache`."
        )


def network_cache(root: Path | None, inputs: Inputs, network: Network, target_spec: TargetSpec) -> Cache:
    """Return the cache of a network, identified by its weights and by its logits and gradients for a few images.

    The numbers of a target function replace the logits.

    Parameters
    ----------
    root
        As `locked_cache` yields it.
    inputs
        The images.
    network
        The network, checked on the first of them.
    target_spec
        The task or target function.
    """
    if root is None:
        return Cache()
    assert network.logits is not None, "the network is checked first"
    assert network.gradients is not None, "with gradients"
    # The check passed only as many images as it needed.
    rows = inputs.probe_rows[: len(network.logits)]
    probes, digests = inputs.read(rows), [inputs.digests[row] for row in rows]
    outputs, target_identity = (network.logits, network.gradients), target_spec.identity(network.module)
    if target_spec.target is not None:
        assert inputs.target_digests is not None, "a target function has targets"
        digests = [digest([inputs.digests[row], inputs.target_digests[row]]) for row in rows]
        with counted_as_check():
            targets = inputs.explained_targets[rows].to(network.device)
            outputs = network.outputs_and_gradients(network.copy_to_device(probes), targets)
    network_folder = root / digest(
        [
            network_identity(network.module),
            *_environment(network),
            *([] if target_identity == [""] else target_identity),
        ]
    )
    numbers = sorted(int(path.name) for path in network_folder.glob("[0-9]*") if path.name.isdecimal())
    for number in numbers:
        folder = network_folder / str(number)
        cached = BatchFolder(folder / "check")
        cached.missing(cached.names)
        if not cached.names:
            # Without outputs the maps cannot be assigned to a network.
            shutil.rmtree(folder)
        elif _outputs_agree(network, cached, digests, outputs, target_spec.target is None):
            return Cache(folder)
    folder = next(path for path in (network_folder / str(number) for number in count()) if not path.exists())
    arrays = {"images": network.copy_to_device(probes), "logits": outputs[0], "gradients": outputs[1]}
    BatchFolder(folder / "check").add(digests, {key: array.cpu().numpy() for key, array in arrays.items()}, 0.0, 0)
    return Cache(folder)


def _environment(network: Network) -> list[Any]:
    """Return everything else that determines the outputs of a network, as plain values."""
    settings: list[Any] = [
        str(network.hooks.autocast),
        str(torch.get_default_dtype()),
        torch.get_float32_matmul_precision(),
    ]
    if network.device.type == "cuda":
        backends = torch.backends.cudnn
        settings += [torch.version.cuda, backends.version(), backends.allow_tf32, backends.deterministic]
    versions = {"heatproof": version_of("heatproof"), "python": list(sys.version_info[:3]), **library_versions()}
    return [versions, describe_device(network.device), *settings]


def _gradients_agree(network: Network, current: torch.Tensor, earlier: torch.Tensor) -> bool:
    """Tell whether two gradients (B, C, H, W) agree, except for units that rounding switches on or off."""
    current, earlier = current.cpu().double().nan_to_num(), earlier.double().nan_to_num()
    share = 0.2 if network.weights in (torch.float16, torch.bfloat16) else GRADIENT_TOLERANCE
    return bool((current - earlier).norm() <= share * earlier.norm())


def _outputs_agree(
    network: Network,
    cached: BatchFolder,
    digests: Sequence[str],
    current: tuple[torch.Tensor, torch.Tensor],
    passes_others: bool,
) -> bool:
    """Tell whether the outputs of a network are those that it had when its maps were cached.

    Parameters
    ----------
    network, cached, digests
        The network, its cached outputs, and the digests of the images that it was passed now.
    current
        Its outputs for these images, and their gradients.
    passes_others
        Whether the network can be passed the images that are in the cache.
    """
    shared = [key for key in dict.fromkeys(digests) if key in cached.names]
    outputs: tuple[torch.Tensor, torch.Tensor] | None
    if shared:
        cached_arrays, rows = cached.read(shared), [list(digests).index(key) for key in shared]
        outputs = current[0][rows], current[1][rows]
    elif not passes_others:
        return False
    else:
        cached_arrays, outputs = cached.read(cached.names), None
        try:
            with counted_as_check():
                outputs = network.outputs_and_gradients(
                    network.copy_to_device(torch.from_numpy(cached_arrays["images"]))
                )
        except Exception as error:
            # An edited network can fail in any way.
            if machine_fault(error):
                raise
    if outputs is None or "gradients" not in cached_arrays:
        return False
    earlier = {name: torch.from_numpy(values) for name, values in cached_arrays.items()}
    return network.outputs_agree(outputs[0], earlier["logits"]) and _gradients_agree(
        network, outputs[1], earlier["gradients"]
    )


class MethodKeys:
    """Digests of everything that determines the maps of methods, except the images.

    A method can store state during its calls, such as activations of an extractor or a counter. After a call, such an
    object still has the digest that it had before the call.
    """

    # By address of live objects: the digest of a method before a call, by its digest after the call.
    _before: ClassVar[dict[int, tuple[weakref.ref[Any], dict[str, str]]]] = {}

    def __init__(self, network: Any) -> None:
        self._network = network
        self._requested: list[tuple[str, Any, str]] = []

    def of(self, name: str, method: Any, *others: Any) -> str:
        """Return the digest of a method.

        Parameters
        ----------
        name
            Name of the method, for error messages.
        method
            Name and options of an explainer; or an object of another library, or a function.
        others
            Everything else that the maps depend on, such as a seed.

        Raises
        ------
        HeatproofError
            If the method holds an object whose content cannot be identified.
        """
        key = self._digest(name, method)
        reference, before = self._before.get(id(method), (None, {}))
        if reference is not None and reference() is method:
            key = before.get(key, key)
        self._requested.append((name, method, key))
        return digest([key, identity_of(others)])

    def _digest(self, name: str, method: Any) -> str:
        try:
            return identity_of(method, self._network)
        except HeatproofError as error:
            raise HeatproofError(
                f"The method {name!r} cannot be kept in a cache, because {error}: take that out of the method, or "
                "leave `cache` out."
            ) from None

    def remember(self) -> None:
        """Record the digest that each method has after the calls."""
        for name, method, earlier in self._requested:
            # If the content that a call left cannot be identified, the maps are computed again.
            with suppress(HeatproofError, TypeError):
                current = self._digest(name, method)
                if current != earlier:
                    self._digests_before(method)[current] = earlier

    def _digests_before(self, method: Any) -> dict[str, str]:
        """Return a mapping from the digest of an object after calls to its digest before them."""
        address = id(method)
        reference, before = self._before.get(address, (None, {}))
        if reference is None or reference() is not method:

            def forget(_: Any) -> None:
                self._before.pop(address, None)

            before = {}
            self._before[address] = weakref.ref(method, forget), before
        return before
