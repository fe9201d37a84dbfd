"""Reduced precision (TF32, bfloat16): faster passes, slightly different scores."""

from __future__ import annotations

from typing import Any

import torch

PRECISIONS = ("float32", "tf32", "bfloat16")


def set_precision(network: torch.nn.Module, precision: str, device: torch.device) -> torch.nn.Module:
    """Set the precision of a network's passes; weights, inputs, outputs and input gradients stay float32.

    The network is changed in place, so that its layers keep their names for CAMs and hooks.

    Parameters
    ----------
    network
        Images (B, C, H, W) to logits.
    precision
        ``float32``; ``tf32``, products of NVIDIA's tensor cores with 10 bits of mantissa, which changes nothing on
        other devices; or ``bfloat16``, PyTorch's autocast with 7 bits of mantissa.
    device
        Device of the network.

    Returns
    -------
    torch.nn.Module
        The network.
    """
    if precision == "tf32":
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cuda.matmul.allow_tf32 = True
    elif precision == "bfloat16":
        kind = type(network)
        # A class, and not a function in the instance, which a copy of the network would share with it.
        network.__class__ = type(kind.__name__, (_Lower, kind), {"__module__": kind.__module__})
    return network


class _Lower(torch.nn.Module):
    """Mixin that runs the forward pass of the next class under autocast."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        device = next(self.parameters()).device.type
        with torch.autocast(device, dtype=torch.bfloat16):
            outputs = super().forward(*inputs, **named)
        return outputs.float() if isinstance(outputs, torch.Tensor) else outputs
