"""Difference of an image's logits alone and in a batch, over networks of torchvision and timm.

Random weights, 64 pixels or the fixed size of a network, four precisions; as shares of the spread of the logits. The
adapter's tolerance (`heatproof.core.rounding.TOLERANCE`) is based on these numbers.

    python benchmarks/rounding.py --out docs/data/rounding
"""

import copy

import timm
import torch
import torchvision
from _shared import make_parser, print_table

from heatproof.core.network import prepare_network
from heatproof.core.rounding import TOLERANCE, largest_difference

TORCHVISION = """
    resnet18 resnet50 vgg11_bn densenet121 mobilenet_v2 mobilenet_v3_small efficientnet_b0 shufflenet_v2_x1_0
    squeezenet1_0 regnet_y_400mf convnext_tiny mnasnet1_0 googlenet
"""
TIMM = """
    vit_tiny_patch16_224 deit_tiny_distilled_patch16_224 swin_tiny_patch4_window7_224 mixer_s32_224 resnet26d
    efficientnet_lite0 regnetx_002 ghostnet_100 convnext_atto poolformer_s12 pvt_v2_b0 levit_128s mobilevit_xxs
    xcit_nano_12_p16_224 cait_xxs24_224 coat_tiny crossvit_9_240 maxvit_pico_rw_256 nf_resnet26 resnetv2_50
    gernet_s repvgg_a0 hardcorenas_a tinynet_e vgg11 skresnet18 botnet26t_256 lambda_resnet26t edgenext_xx_small
    fastvit_t8 efficientformer_l1 beit_base_patch16_224
"""
NETWORKS = [f"tv:{name}" for name in TORCHVISION.split()] + [f"timm:{name}" for name in TIMM.split()]


def build(name):
    library, _, model = name.partition(":")
    if library == "tv":
        return torchvision.models.get_model(model, weights=None, num_classes=10).eval(), 64
    network = timm.create_model(model, num_classes=10).eval()
    facts = network.default_cfg
    return network, facts["input_size"][1] if facts.get("fixed_input_size") else 64


def measured(network, images):
    """Return the largest differences alone and in a batch, and in two equal passes, over the logits' spread."""
    with prepare_network(network, images) as prepared, torch.no_grad():
        together, again = (prepared.module(images) for _ in range(2))
        alone = torch.cat([prepared.module(image) for image in images.split(1)])
    spread = float(together.max() - together.min())
    return largest_difference(alone, together) / spread, largest_difference(again, together) / spread


def main():
    options = make_parser(__doc__)
    options.add_argument("networks", nargs="*", help="tv:resnet18 timm:vit_tiny_patch16_224 …; by default 45 of them")
    args = options.parse_args()
    torch.manual_seed(0)
    rows = {dtype: [] for dtype in TOLERANCE}
    for name in ["tv:squeezenet1_0"] if args.small else args.networks or NETWORKS:
        network, size = build(name)
        images = torch.randn(4, 3, size, size)
        for dtype, measurements in rows.items():
            measurements.append((*measured(copy.deepcopy(network).to(dtype), images.to(dtype)), name))
    table_rows = [
        {
            "precision": str(dtype).removeprefix("torch."),
            "networks": len(measurements),
            "alone": max(measurements)[0],
            "of": max(measurements)[2],
            "again": max(row[1] for row in measurements),
            "tolerance": TOLERANCE[dtype],
        }
        for dtype, measurements in rows.items()
    ]
    print_table(table_rows, "rounding", args.out)


if __name__ == "__main__":
    main()
