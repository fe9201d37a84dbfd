"""The record that `heatproof.finetune` leaves on a network, and the deleted patches that are in its domain."""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from heatproof.core.callables import named_parts
from heatproof.core.grids import Grid, as_grid
from heatproof.core.perturb.baselines import BASELINES
from heatproof.core.tasks import CALLABLE
from heatproof.metrics.single_deletion import PatchDeletion

# The attribute of a network that holds the record of its finetuning.
RECORD_ATTRIBUTE = "heatproof"
PRECISIONS = ("float64", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Domain:
    """The deleted patches that a network was finetuned on.

    Attributes
    ----------
    finetuned
        Grid and baseline of the finetuning; None if the network has no valid record of one.
    reason
        Reason why `finetuned` is None, as a part of a sentence; else empty.
    record
        The record that the finetuning left on the network; empty if there is none.
    """

    finetuned: PatchDeletion | None
    reason: str
    record: Mapping[str, Any]

    @property
    def reference(self) -> tuple[Grid, str]:
        """Default grid and baseline of metrics: those of the finetuning."""
        return (4, "zeros") if self.finetuned is None else (as_grid(self.finetuned.grid), self.finetuned.baseline)

    def complete(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a metric, completed with the baseline options or mean colour of the finetuning."""
        defaults: Mapping[str, Any] = {}
        if self.record and options.get("baseline") == self.record["baseline"]:
            defaults = self.record["baseline_options"]
        elif options.get("baseline") == "mean" and "colour" in self.record:
            defaults = {"value": list(self.record["colour"])}
        own_options = {
            key: value for key, value in (options.get("baseline_options") or {}).items() if value is not None
        }
        return {**options, "baseline_options": {**defaults, **own_options}} if defaults else dict(options)


def domain_of(model: Any, images: Any = None, task: str = "") -> Domain:
    """Return the deleted patches that a network was finetuned on.

    The record is valid for the weights and layers that the finetuning left, in any floating-point precision. A wrapper
    has no valid record, because it can change the meaning of a baseline value for the network inside, except for those
    of ``torch.compile`` and ``DataParallel``, which pass images and outputs on unchanged.

    Parameters
    ----------
    model
        Any callable.
    images
        The explained images (N, C, H, W). They must have the size of the finetuning's images, because patches of a grid
        have the same size only then. Images without a known shape, such as those of a folder, count as of that size.
    task
        ``multilabel``, ``regression`` or ``callable``; empty for classes. A network that was finetuned on given labels
        is in domain for their task only; one that was finetuned on its own outputs is in domain for every task.

    Returns
    -------
    Domain
        Grid and baseline of the finetuning, or the reason why there are none.
    """
    for _ in range(3):
        modules = getattr(model, "_modules", None)
        is_parallel = type(model).__name__ in ("DataParallel", "DistributedDataParallel")
        # `_modules` of a scripted module is not a dict.
        model = modules.get("module" if is_parallel else "_orig_mod", model) if isinstance(modules, dict) else model
    record = _record_of(model)
    if record is None:
        has_finetuned_part = any(_record_of(module) for _, module in named_parts(model))
        return Domain(
            None,
            "the network is no copy by heatproof.finetune, but has one as a part"
            if has_finetuned_part
            else ("the network has no record of a finetuning by heatproof.finetune"),
            {},
        )
    tensors = model.state_dict().values()
    # State dicts of quantised layers contain a dtype, which also has the attribute `is_floating_point`.
    dtypes = [
        str(tensor.dtype).removeprefix("torch.")
        for tensor in tensors
        if hasattr(tensor, "dtype") and tensor.is_floating_point()
    ]
    if not dtypes or record["weights"].get(dtypes[0]) != tensor_digest(tensors, dtypes[0]):
        return Domain(None, "the network has other weights than heatproof.finetune left", {})
    if record.get("layers") != layer_digest(model):
        return Domain(None, "the network has other layers than heatproof.finetune left", {})
    record_task = record.get("task", "")
    if record.get("labels") == "given" and record_task != task:
        descriptions = {"": "classes", CALLABLE: "a target function"}
        both_tasks = [descriptions.get(name, f"task={name!r}") for name in (record_task, task)]
        return Domain(None, "the network was finetuned on labels of {}, and asked about {}".format(*both_tasks), {})
    # Nested tensors have no shape; `read_inputs` refuses them.
    shape = () if getattr(images, "is_nested", False) else getattr(images, "shape", ())
    size, record_size = tuple(shape)[-2:], tuple(record["size"])
    if len(size) == 2 and size != record_size:
        sizes = " and these have ".join(f"{height}×{width}" for height, width in (record_size, size))
        return Domain(None, f"the network was finetuned on images of {sizes} pixels", {})
    return Domain(deletion_of(record), "", record)


def deletion_of(options: Mapping[str, Any]) -> PatchDeletion:
    """Return the deletion with a ``grid``, a ``baseline`` and the ``baseline_options``, completed by their defaults."""
    defaults = BASELINES[options["baseline"]].options
    options_used = {**defaults, **(options.get("baseline_options") or {})}
    if "grid" in options_used:
        options_used["grid"] = as_grid(options_used["grid"] or options["grid"])
    return PatchDeletion(as_grid(options["grid"]), options["baseline"], options_used)


def warn_out_of_domain(scored: Sequence[Mapping[str, Any]], domain: Domain) -> None:
    """Warn that scores requested as IDSDS are SDS, because their deleted patches may be out of domain.

    The warning points at the caller of the function that calls this one.

    Parameters
    ----------
    scored
        Options of the scores.
    domain
        Domain of the network.
    """
    if not scored:
        return
    deletions = " and ".join(dict.fromkeys(str(deletion_of(options)) for options in scored))
    reason = domain.reason
    if domain.finetuned is not None:
        own_deletion = str(domain.finetuned)
        reason = f"the network was finetuned with {own_deletion}" + (
            " of other options" if own_deletion == deletions else ""
        )
    warnings.warn(
        f"These scores are SDS and not IDSDS: {reason}, and patches are deleted with {deletions}, which may be "
        "outside of its domain.",
        stacklevel=3,
    )


def _record_of(model: Any) -> Mapping[str, Any] | None:
    record = getattr(model, "__dict__", {}).get(RECORD_ATTRIBUTE)
    return record if isinstance(record, Mapping) and "weights" in record else None


def layer_digest(model: torch.nn.Module) -> str:
    """Return a digest of the layers of a network with their settings, from its `repr` without memory addresses.

    The digest includes the code of hooks and of `forward` methods that were set on an instance, because these change
    what a layer computes.
    """
    descriptions = [repr(model)]
    for name, module in model.named_modules():
        for key in ("_forward_pre_hooks", "_forward_hooks"):
            descriptions += [f"{name}.{key}: {_code_of(hook)}" for hook in vars(module).get(key, {}).values()]
        descriptions += [f"{name}.{key}: {_code_of(value)}" for key, value in vars(module).items() if key == "forward"]
    return hashlib.blake2b(re.sub(r"0x[0-9a-fA-F]+", "", "\n".join(descriptions)).encode(), digest_size=8).hexdigest()


def _code_of(function: Any) -> str:
    """Return the name of a function with a digest of its code, which identify it in any process."""
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    kind = f"{type(function).__module__}.{type(function).__qualname__}"
    if code is None:
        return kind
    return f"{function.__module__}.{function.__qualname__} {hashlib.blake2b(code.co_code, digest_size=8).hexdigest()}"


def weight_digests(model: torch.nn.Module) -> dict[str, str]:
    """Return a digest of a network's weights and buffers in every floating-point precision."""
    return {name: tensor_digest(model.state_dict().values(), name) for name in PRECISIONS}


def tensor_digest(values: Iterable[Any], precision: str = "float32") -> str:
    """Return a digest, 16 hexadecimal digits, of tensors in a floating-point precision, and of other values."""
    checksum = hashlib.blake2b(digest_size=8)
    for value in values:
        if not isinstance(value, torch.Tensor):
            checksum.update(repr(value).encode())
            continue
        value = value.detach().cpu().contiguous()
        value = value.dequantize() if value.is_quantized else value
        value = value.to(getattr(torch, precision)) if value.is_floating_point() else value
        checksum.update(f"{tuple(value.shape)}".encode())
        checksum.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return checksum.hexdigest()
