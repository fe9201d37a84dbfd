"""Which explainers apply to which of the small networks."""

from heatproof.explainers.registry import EXPLAINERS

ARCHITECTURES = ["cifar_resnet20", "cifar_vgg11_bn", "small_vit"]
ATTENTION = [
    name for name, entry in EXPLAINERS.items() if entry.function.__module__ == "heatproof.explainers.attention"
]
TRANSFORMERS = [*ATTENTION, "chefer_lrp"]
# The rules of `attn_lrp` also cover other networks, but `lrp` is meant for those.
VITS_ONLY = [*TRANSFORMERS, "attn_lrp"]
# These read the network itself, whichever output is explained.
INDEPENDENT_OF_OUTPUT = {
    "rise",
    "rise_uniform",
    "rise_grid",
    "raw_attention",
    "attention_rollout",
    "lrp",
    "iba",
    "input_iba",
}


# Explainers of intrinsically interpretable networks.
INTRINSIC = {"bagnet": ["cifar_bagnet"], "bcos": ["cifar_bcos_resnet20"]}


def networks_of(name):
    return ["small_vit"] if name in VITS_ONLY else INTRINSIC.get(name, ARCHITECTURES)


# These take a second on the smallest network, because they need many passes.
LONG = {"agi", "guided_ig", "input_iba", "is_cam", "ss_cam"}
PAIRS = [(name, architecture) for name in EXPLAINERS for architecture in networks_of(name)]
