"""How many images a second go through a ResNet-50 on GPUs with a name, as others measured and published it."""

from __future__ import annotations

from heatproof.errors import HeatproofError
from heatproof.registry import nearest

NVIDIA = "NVIDIA, DeepLearningExamples, ResNet-50 v1.5 for PyTorch, inference"
SCALED = f"{NVIDIA}; the A100's from its training against the V100's there"
TIMM = "timm, results/benchmark-infer-amp-nchw"
# Images of 224 pixels a second in large batches, by precision; half precision stands for bfloat16.
GPUS: dict[str, tuple[dict[str, float], str]] = {
    "t4": ({"float32": 428, "bfloat16": 1198}, NVIDIA),
    "v100": ({"float32": 1261, "bfloat16": 3382}, NVIDIA),
    "a100": ({"tf32": 1261 * 938 / 367, "bfloat16": 3382 * 2470 / 1200}, SCALED),
    "rtx3090": ({"bfloat16": 3219}, f"{TIMM}-pt240-cu124"),
    "rtx4090": ({"bfloat16": 4218}, f"{TIMM}-pt240-cu124"),
    "rtx5090": ({"bfloat16": 6356}, f"{TIMM}-pt291-cu130"),
}


def throughput(name: str, precision: str) -> tuple[float, str]:
    """Return the images a second that go through a ResNet-50 on a GPU, and the source.

    Parameters
    ----------
    name
        A key of `GPUS`.
    precision
        ``float32``, ``tf32`` or ``bfloat16``.

    Raises
    ------
    HeatproofError
        If there is no such GPU here, or no number of it in this precision.
    """
    if name not in GPUS:
        raise HeatproofError(
            f"--as-if {name}: no published throughput of such a GPU is stored here, {nearest(name, GPUS)} For any "
            "other device give one of your own as MODEL=N."
        )
    rates, source = GPUS[name]
    if precision not in rates:
        raise HeatproofError(
            f"--as-if {name}: its published throughput is in {' and '.join(rates)}, and the config's precision is "
            f"{precision}: set precision to one of these, or give a throughput of your own as MODEL=N."
        )
    return rates[precision], source
