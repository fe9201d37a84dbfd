"""Build networks, load their weights, and normalise their input."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save

from heatproof.core.network import attach
from heatproof.core.output_reader import OutputReader
from heatproof.errors import HeatproofError, machine_fault
from heatproof.models.registry import ARCHITECTURES, ModelSpec
from heatproof.models.weight_names import describe_misfits
from heatproof.models.weights_file import max_file_size, read_safetensors, require_finite
from heatproof.store.writing import atomic_write, refuse_links

if TYPE_CHECKING:
    from heatproof.core.specs import Runtime


def configure_torch(runtime: Runtime) -> torch.device:
    """Set the number of threads and deterministic algorithms, and return the device."""
    torch.set_num_threads(runtime.threads)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    # TF32 has 10 bits of mantissa, too few for logit drops, which are differences.
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    if runtime.deterministic:
        # cuBLAS requires this variable before its first product.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    requested = runtime.device
    if requested == "auto":
        requested = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    elif requested == "cuda" and not torch.cuda.is_available():
        raise HeatproofError("The config sets device: cuda, but no GPU is visible: set device to auto or cpu.")
    elif requested == "mps" and not torch.backends.mps.is_available():
        raise HeatproofError("The config sets device: mps, but there is no Apple GPU: set device to auto or cpu.")
    return torch.device(requested)


def build_network(
    spec: ModelSpec, num_classes: int, seed: int = 0, reader: OutputReader | None = None
) -> torch.nn.Module:
    """Build the network of a model spec in channels_last layout, with weights drawn from the seed.

    Parameters
    ----------
    spec
        Spec of the model.
    num_classes
        Number of outputs.
    seed
        Seed of the weights.
    reader
        Reader of the outputs; None reads logits of classes.

    Returns
    -------
    torch.nn.Module
        The network, with the hooks of `heatproof.core.network.attach`.

    Raises
    ------
    HeatproofError
        If the builder does not return a torch.nn.Module.
    """
    build = ARCHITECTURES.load_callable(spec.architecture, spec.module)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build(num_classes, **spec.options)
    if not isinstance(network, torch.nn.Module):
        raise HeatproofError(
            f"The architecture {spec.architecture!r} returned a {type(network).__name__}: "
            "it must return a torch.nn.Module."
        )
    attach(network, reader=reader or OutputReader(classes=num_classes))
    return network.to(memory_format=torch.channels_last)


def build_without_weights(spec: ModelSpec, num_classes: int) -> torch.nn.Module:
    """Build a network without drawing its weights, which takes seconds, unless its builder computes with them."""
    try:
        with warnings.catch_warnings(action="ignore"), torch.device("meta"):
            return build_network(spec, num_classes)
    except Exception:  # a builder that computes with its weights can fail in any way
        return build_network(spec, num_classes)


def load_network(
    spec: ModelSpec,
    num_classes: int,
    weights: str | Path,
    device: torch.device,
    precision: str = "float32",
    reader: OutputReader | None = None,
) -> torch.nn.Module:
    """Build a network with weights from a file, in eval mode, without gradients of parameters."""
    network = build_with_weights(spec, num_classes, weights, reader)
    return set_precision(network.to(device).eval().requires_grad_(False), precision, device)


def build_with_weights(
    spec: ModelSpec, num_classes: int, weights: str | Path, reader: OutputReader | None = None
) -> torch.nn.Module:
    """Build a network with weights from a file.

    A binary classifier has one output, or two if its weights have two, without any other setting.
    """
    network = build_network(spec, num_classes, reader=reader)
    try:
        load_weights(network, weights)
    except HeatproofError as error:
        if reader is None or reader.configured_task != "binary":
            raise
        network = build_network(spec, 2, reader=reader)
        try:
            load_weights(network, weights)
        except HeatproofError:
            raise error from None
    return network


def find_head(spec: ModelSpec) -> set[str]:
    """Return the names of the weights whose shapes depend on the number of classes.

    Raises
    ------
    HeatproofError
        If there are none.
    """
    two_classes, three_classes = (build_network(spec, classes).state_dict() for classes in (2, 3))
    head = {
        name
        for name, value in two_classes.items()
        if name not in three_classes or three_classes[name].shape != value.shape
    }
    if not head:
        raise HeatproofError(
            f"The architecture {spec.architecture!r} builds the same network for any number of classes: it has no "
            "head to retrain, so leave transfer out."
        )
    return head


def load_weights(
    network: torch.nn.Module,
    path: str | Path,
    skip: Collection[str] = (),
    label: str | None = None,
    suggest_remedy: Callable[[], str] | None = None,
) -> None:
    """Load a safetensors file into a network.

    Parameters
    ----------
    network
        Network that gets the weights.
    path
        Path of the file.
    skip
        Names of weights that are not loaded; the network keeps its own.
    label
        Name of the weights in messages; None for the path.
    suggest_remedy
        Function that returns the remedy for weights that do not fit; None for a general remedy.

    Raises
    ------
    HeatproofError
        If the file is missing, damaged, or does not fit, or a weight is NaN or infinite.
    """
    label = label or str(path)
    try:
        state = read_safetensors(refuse_links(path), label, most=max_file_size(network))
    except (OSError, SafetensorError) as error:
        raise HeatproofError(
            machine_fault(error)
            or f"The weights {path} cannot be read ({error}): remove them with `rm {path}` if they are there, and run "
            "your snakemake command with this path as its target."
        ) from None
    network_state = network.state_dict()
    state |= {name: network_state[name] for name in skip}
    require_finite(state, network_state, label)
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        problem = describe_misfits(state, network_state) or " ".join(str(error).split())[:300]
        remedy = (
            suggest_remedy()
            if suggest_remedy
            else "check the model's architecture and options, and the number of classes"
        )
        raise HeatproofError(f"The weights {label} do not fit the network ({problem}): {remedy}.") from None


def save_weights(state: Mapping[str, torch.Tensor], path: str | Path) -> None:
    """Write weights as safetensors, atomically."""
    # Clones, because safetensors refuses tensors that share memory, as tied weights do.
    plain = torch.contiguous_format
    copies = {name: value.detach().cpu().clone(memory_format=plain) for name, value in state.items()}
    with atomic_write(path) as aside:
        # Not save_file, whose errors do not distinguish a full disk from other causes.
        aside.write_bytes(save(copies))


PRECISIONS = ("float32", "tf32", "bfloat16")


def set_precision(network: torch.nn.Module, precision: str, device: torch.device) -> torch.nn.Module:
    """Set the precision of a network's passes; weights, inputs, outputs and input gradients stay float32.

    The network is changed in place, so that its layers keep their names for CAMs and hooks.

    Parameters
    ----------
    network
        Network from images (B, C, H, W) to logits.
    precision
        ``float32``; ``tf32``, products of NVIDIA's tensor cores with 10 bits of mantissa, which has no effect on
        other devices; or ``bfloat16``, PyTorch's autocast with 7 bits of mantissa.
    device
        Device of the network.

    Returns
    -------
    torch.nn.Module
        The same network.
    """
    if precision == "tf32":
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cuda.matmul.allow_tf32 = True
    elif precision == "bfloat16":
        kind = type(network)
        # A class instead of an instance attribute, because copies of the network would share a bound method.
        network.__class__ = type(kind.__name__, (_Autocast, kind), {"__module__": kind.__module__})
    return network


class _Autocast(torch.nn.Module):
    """Mixin that runs the forward pass of the next class under autocast."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        device = next(self.parameters()).device.type
        with torch.autocast(device, dtype=torch.bfloat16):
            outputs = super().forward(*inputs, **named)
        return outputs.float() if isinstance(outputs, torch.Tensor) else outputs
