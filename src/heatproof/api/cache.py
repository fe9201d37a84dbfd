"""A folder that keeps maps and responses, so that a call that was ended goes on, and nothing is made twice.

Below the folder stand, by digests: the network, what it answered (``0``, ``1``, … where its answers differ though its
weights are the same), and the method or the response, with everything that decides what comes out. There each batch is
one file, in which images are found by their content, name and class.
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

from heatproof.base.provenance import digest, library_versions
from heatproof.errors import HeatproofError, machine_fault
from heatproof.files.lock import LOCK, locked_folder
from heatproof.files.reading import printable_path, refuse_links_in, resolve_user_folder
from heatproof.inputs.identity import identity_of, network_identity, version_of
from heatproof.stores.array_cache import BatchFolder
from heatproof.stores.manifest import read_checksummed, write_checksummed

if TYPE_CHECKING:
    import torch

    from heatproof.models.adapter import AdaptedNetwork

MARK, KIND = "heatproof-cache.json", {"kind": "cache of heatproof", "version": 1}
VERDICTS = "verdicts.json"
# By how much the gradients of one network may differ, as a share: a unit near zero may switch by rounding.
GRADIENTS = 0.01
# Faults of the machine or of the installation: another call can do without them.
PASSING = (OSError, ImportError, MemoryError)


class InMemoryArrays:
    """Values of images by name, as `heatproof.stores.array_cache.BatchFolder` keeps them, in memory alone.

    Parameters
    ----------
    names
        Of all images that there will be.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.rows = {name: row for row, name in enumerate(names)}
        self.values: dict[str, np.ndarray] = {}
        self.costs = np.full((len(names), 2), np.nan)

    def missing(self, names: Sequence[str]) -> list[int]:
        """Return the rows of the images that have no values."""
        return [row for row, name in enumerate(names) if np.isnan(self.costs[self.rows[name], 0])]

    def add(self, names: Sequence[str], arrays: Mapping[str, np.ndarray], seconds: float, passes: int) -> None:
        """Keep the values of some images, arrays (images, …)."""
        rows = [self.rows[name] for name in names]
        for name, values in arrays.items():
            if name not in self.values:
                self.values[name] = np.empty((len(self.rows), *values.shape[1:]), values.dtype)
            self.values[name][rows] = values
        self.costs[rows] = seconds / len(rows), passes / len(rows)

    def read(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the values of images, arrays (images, …); of all of them without a copy."""
        rows = [self.rows[name] for name in names]
        if rows == list(range(len(self.rows))):
            return dict(self.values)
        return {name: values[rows] for name, values in self.values.items()}

    def cost(self, names: Sequence[str]) -> tuple[float, float]:
        """Return the mean of the seconds and the passes that an image took."""
        seconds, passes = self.costs[[self.rows[name] for name in names]].mean(0)
        return float(seconds), float(passes)


CachedArrays = BatchFolder | InMemoryArrays


@dataclass
class Verdicts:
    """Which images a method was found not to apply to, and which few images were found to tell that it does.

    Attributes
    ----------
    path
        Of the file that keeps them; None to keep nothing.
    """

    path: Path | None = None
    found: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        kept = None if self.path is None else read_checksummed(self.path)
        for one in (kept or {}).get("found", ()):
            kinds = {"images": list, "first": bool, "reason": str, "failed": bool}
            if isinstance(one, dict) and all(isinstance(one.get(name), kind) for name, kind in kinds.items()):
                self.found.append(one)

    def of(self, names: Sequence[str], first: Sequence[str]) -> tuple[str, bool] | None:
        """Return why a method does not apply to images, empty where it does, and whether it failed; None for open.

        Parameters
        ----------
        names, first
            All images, and the few that are looked at first.
        """
        every, applies = set(names), None
        for one in self.found:
            # A batch that failed fails again, whatever other images there are.
            if one["images"] == sorted(first) if one["first"] else every.issuperset(one["images"]):
                applies = one["reason"], one["failed"]
                if one["reason"]:
                    break
        return applies

    def add(self, names: Sequence[str], first: bool, error: Exception | None = None, failed: bool = False) -> None:
        """Keep what was found on some images, where it is no fault of the machine."""
        here: BaseException | None = error
        while here is not None:
            if isinstance(here, PASSING) or machine_fault(here):
                return
            here = here.__cause__
        reason = "" if error is None else str(error)
        self.found.append({"images": sorted(names), "first": first, "reason": reason, "failed": failed})
        if self.path is not None:
            write_checksummed(self.path, {"found": self.found})


@dataclass(frozen=True)
class Cache:
    """What a folder keeps of one network.

    Attributes
    ----------
    folder
        Of the network; None to keep everything in memory.
    """

    folder: Path | None = None

    def kept(
        self, kind: str, key: str, names: Sequence[str], arrays: Mapping[str, tuple[str, list[int]]] | None = None
    ) -> CachedArrays:
        """Return what is kept of a method or a response.

        Parameters
        ----------
        kind, key
            ``maps`` or ``responses``, and everything that decides the values, as a digest.
        names
            Of all images of the call.
        arrays
            What an image's values must be, name to dtype and shape, where it is known.
        """
        return InMemoryArrays(names) if self.folder is None else BatchFolder(self.folder / kind / key, arrays)

    def verdicts(self, key: str) -> Verdicts:
        """Return what is kept of the applicability of a method."""
        return Verdicts(None if self.folder is None else self.folder / "maps" / key / VERDICTS)


@contextmanager
def locked_cache(folder: Any) -> Iterator[Path | None]:
    """Hold the folder of a cache, which no other call may use meanwhile, and return where it really is.

    Parameters
    ----------
    folder
        As the caller gave it; None for no cache.

    Raises
    ------
    HeatproofError
        If it is no folder, has files of others, a link or a pipe in it, or another call uses it.
    """
    if folder is None:
        yield None
        return
    if not isinstance(folder, str | os.PathLike):
        raise HeatproofError(f"The cache is {type(folder).__name__}: give the path of a folder.")
    root = Path(os.path.abspath(resolve_user_folder(Path(folder).expanduser())))
    if root.exists() and not root.is_dir():
        raise HeatproofError(
            f"The cache {printable_path(root)} is a file: name a folder, which is made where there is none."
        )
    _refuse_others(root)
    with locked_folder(str(root), "cache"):
        if read_checksummed(root / MARK) != KIND:
            write_checksummed(root / MARK, KIND)
        yield root


def _refuse_others(root: Path) -> None:
    """Refuse a folder that is no cache of ours."""
    try:
        names = sorted(os.listdir(root))
    except FileNotFoundError:
        return
    except OSError as error:
        raise HeatproofError(
            machine_fault(error) or f"The cache {printable_path(root)} cannot be read ({error})."
        ) from None
    others = [name for name in names if name != LOCK and MARK not in name]
    if others and MARK not in names:
        raise HeatproofError(
            f"{printable_path(root)} is no cache of heatproof, as it has {printable_path(others[0])!r} in it: name a folder of its own "
            "for `cache`, which is empty or not there yet."
        )
    refuse_links_in(root)
    if (root / MARK).is_dir():
        raise HeatproofError(f"{printable_path(root / MARK)} is a folder, not a regular file: remove it.")
    # What is damaged is written again.
    if (read_checksummed(root / MARK) or KIND) != KIND:
        raise HeatproofError(
            f"The cache {printable_path(root)} was made by another version of heatproof: name another folder for `cache`."
        )


def network_cache(
    root: Path | None,
    network: AdaptedNetwork,
    few: torch.Tensor,
    digests: Sequence[str],
    asked: Sequence[str] = ("",),
    targets: torch.Tensor | None = None,
) -> Cache:
    """Return what a folder keeps of a network: of these weights, and of these logits and gradients of a few images.

    Parameters
    ----------
    root
        As `locked_cache` returns it.
    network
        Checked on `few`.
    few, digests
        Images (B, C, H, W), and their digests.
    asked
        What is asked of the network, as `heatproof.inputs.targets.TargetSpec.identity`.
    targets
        (B,) of a target function, whose numbers for these images are then taken in the place of logits; the digests
        have to tell them.
    """
    from heatproof.models.adapter import counted_as_check

    if root is None:
        return Cache()
    assert network.logits is not None, "the network is checked first"
    assert network.gradients is not None, "with gradients"
    # The check passes as many of them as it needs.
    few, digests = few[: len(network.logits)], digests[: len(network.logits)]
    passed = network.logits, network.gradients
    if targets is not None:
        with counted_as_check():
            passed = network.outputs_and_gradients(network.copy_to_device(few), targets[: len(few)])
    weights = root / digest(
        [network_identity(network.network), *_surroundings(network), *([] if asked == [""] else asked)]
    )
    numbers = sorted(int(one.name) for one in weights.glob("[0-9]*") if one.name.isdecimal())
    for number in numbers:
        folder = weights / str(number)
        known = BatchFolder(folder / "check")
        known.missing(known.names)
        if not known.names:
            # Nothing tells whose answers these maps are of.
            shutil.rmtree(folder)
        elif _answers_as(network, known, digests, passed, targets is None):
            return Cache(folder)
    folder = next(one for one in (weights / str(number) for number in count()) if not one.exists())
    arrays = {"images": network.copy_to_device(few), "logits": passed[0], "gradients": passed[1]}
    BatchFolder(folder / "check").add(digests, {key: one.cpu().numpy() for key, one in arrays.items()}, 0.0, 0)
    return Cache(folder)


def _surroundings(network: AdaptedNetwork) -> list[Any]:
    """Return what else decides the numbers that come out of a network, as plain values."""
    import torch

    from heatproof.models.memory import describe_device

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


def _has_gradients(network: AdaptedNetwork, now: torch.Tensor, then: torch.Tensor) -> bool:
    """Tell whether two gradients (B, C, H, W) are the same but for units that rounding switches on or off."""
    import torch

    now, then = now.cpu().double().nan_to_num(), then.double().nan_to_num()
    share = 0.2 if network.weights in (torch.float16, torch.bfloat16) else GRADIENTS
    return bool((now - then).norm() <= share * then.norm())


def _answers_as(
    network: AdaptedNetwork,
    known: BatchFolder,
    digests: Sequence[str],
    now: tuple[torch.Tensor, torch.Tensor],
    passes_others: bool,
) -> bool:
    """Tell whether a network answers as it did when its maps were kept.

    Parameters
    ----------
    network, known, digests
        The network, what is kept of its answers, and which images it was passed now.
    now
        Its answers to these, and their gradients.
    passes_others
        Whether it can be asked about the images that were passed then.
    """
    import torch

    from heatproof.models.adapter import counted_as_check

    shared = [one for one in dict.fromkeys(digests) if one in known.names]
    passed: tuple[torch.Tensor, torch.Tensor] | None
    if shared:
        kept, rows = known.read(shared), [list(digests).index(one) for one in shared]
        passed = now[0][rows], now[1][rows]
    elif not passes_others:
        return False
    else:
        kept, passed = known.read(known.names), None
        try:
            with counted_as_check():
                passed = network.outputs_and_gradients(network.copy_to_device(torch.from_numpy(kept["images"])))
        except Exception as error:
            # A network that was edited can fail in any way.
            if machine_fault(error):
                raise
    if passed is None or "gradients" not in kept:
        return False
    then = {name: torch.from_numpy(values) for name, values in kept.items()}
    return network.outputs_agree(passed[0], then["logits"]) and _has_gradients(network, passed[1], then["gradients"])


class MethodKeys:
    """Digests of everything that decides the maps of methods, but for the images.

    A method can keep something of its calls, as extractors keep activations and functions count. The object that a call
    left so is the method that it was before.
    """

    # By address, of objects that are alive: what a method was before a call, by what it was after it.
    _before: ClassVar[dict[int, tuple[weakref.ref[Any], dict[str, str]]]] = {}

    def __init__(self, network: Any) -> None:
        self._network = network
        self._told: list[tuple[str, Any, str]] = []

    def of(self, name: str, method: Any, *others: Any) -> str:
        """Return the digest of a method.

        Parameters
        ----------
        name
            For messages.
        method
            Name and options of an explainer; or an object of another library, or a function.
        others
            Of what else its maps follow, such as a seed.

        Raises
        ------
        HeatproofError
            If the method holds something that nothing tells from another one.
        """
        own = self._own(name, method)
        reference, before = self._before.get(id(method), (None, {}))
        if reference is not None and reference() is method:
            own = before.get(own, own)
        self._told.append((name, method, own))
        return digest([own, identity_of(others)])

    def _own(self, name: str, method: Any) -> str:
        try:
            return identity_of(method, self._network)
        except HeatproofError as error:
            raise HeatproofError(
                f"The method {name!r} cannot be kept in a cache, because {error}: take that out of the method, or "
                "leave `cache` out."
            ) from None

    def remember(self) -> None:
        """Note what the calls since then left of each method."""
        for name, method, then in self._told:
            # What a call has put into it can be something that nothing tells: it is made again then.
            with suppress(HeatproofError, TypeError):
                now = self._own(name, method)
                if now != then:
                    self._left_by(method)[now] = then

    def _left_by(self, method: Any) -> dict[str, str]:
        """Return what an object was before calls, by what it was after them."""
        address = id(method)
        reference, before = self._before.get(address, (None, {}))
        if reference is None or reference() is not method:

            def forget(_: Any) -> None:
                self._before.pop(address, None)

            before = {}
            self._before[address] = weakref.ref(method, forget), before
        return before
