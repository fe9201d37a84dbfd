"""Checks of a network on its first images, and other passes that only check or predict."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from heatproof.core.hooks import counted_as_check, hooks_of
from heatproof.core.network import Network, compilation_disabled
from heatproof.errors import HeatproofError, NotApplicable, first_line, machine_fault


def fails_inside(error: BaseException, network: nn.Module | None) -> bool:
    """Tell whether an exception was raised while a network ran."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return network is not None and any(frame.f_locals.get("self") is network for frame in frames)


# Arguments by which networks of images and texts take the text.
TEXT_ARGUMENTS = ("input_ids", "text", "texts", "tokens", "captions")


def other_arguments(module: nn.Module) -> list[str]:
    """Return the names of the arguments that a network needs beside images: required ones, and texts."""
    try:
        parameters = list(inspect.signature(module.forward).parameters.values())
    except (TypeError, ValueError):  # a scripted or compiled network
        return []
    texts = [parameter for parameter in parameters if parameter.name in TEXT_ARGUMENTS]
    required = [
        parameter
        for parameter in parameters[1:]
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    return list(dict.fromkeys(parameter.name for parameter in (*required, *texts)))


@contextmanager
def described_failures(images: torch.Tensor, module: nn.Module, *, from_elsewhere: bool = True) -> Iterator[None]:
    """Turn an exception of the network into a HeatproofError of one sentence.

    Parameters
    ----------
    images
        Images (B, C, H, W) that the network gets.
    module
        The network.
    from_elsewhere
        Whether exceptions that were not raised while the network ran are described as well; False where the context
        does more than run it.
    """
    try:
        yield
    except (HeatproofError, NotApplicable):
        raise
    except Exception as error:
        # The caller's network can raise any exception.
        if machine_fault(error) or not (from_elsewhere or fails_inside(error, module)):
            raise
        description = f"{type(error).__name__}: {first_line(error)[:200]}"
        remedy = "give images that it takes"
        if names := other_arguments(module):
            remedy = (
                f"it takes {' and '.join(names)} beside images, so give a module whose forward(images) passes them to "
                "it, and returns for example the similarity of each image to some texts"
            )
        if "size()[0]" in description:
            remedy = (
                "it was exported for one size of batch, so give the network itself, or export it with "
                "dynamic_shapes=({0: torch.export.Dim('batch')},)"
            )
        raise HeatproofError(
            f"The model fails on images of {tuple(images.shape[1:])} ({description}): {remedy}."
        ) from error


def check_loaded(module: nn.Module, images: torch.Tensor) -> int:
    """Check the network of a job as `check_attached` does, and return the number of images passed."""
    hooks = hooks_of(module)
    before = 0 if hooks is None else hooks.check_passes
    return check_attached(module, images).check_passes - before


def check_attached(module: nn.Module, images: torch.Tensor) -> Network:
    """Check the network of a job on its first images (B, C, H, W), and return it with its classes and logits.

    The network is in eval mode and has the hooks of `heatproof.core.network.attach`. An exception of the network is
    left as it is, for the traceback in a log.
    """
    hooks = hooks_of(module)
    assert hooks is not None, "`attach` attached them"
    network = Network(module, hooks, images.device)
    with compilation_disabled():
        network.check(images)
    return network


def pass_as_check(network: Network, images: torch.Tensor) -> torch.Tensor:
    """Return the numbers (B, K) of a network for images that are not explained; counted as a pass of a check.

    Raises
    ------
    HeatproofError
        If images have another precision than the weights, or the network fails on them.
    """
    network.check_precision(images)
    with described_failures(images, network.module), counted_as_check(), torch.no_grad():
        numbers: torch.Tensor = network.module(network.copy_to_device(images))
    return numbers
