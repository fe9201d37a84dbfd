"""Print by how much logits of an image differ alone and in company, over networks of torchvision and timm.

``python benchmarks/rounding.py [tv:resnet18 timm:vit_tiny_patch16_224 …]``: random weights, 64 pixels or the fixed
size of a network, four precisions. The adapter's tolerance (`heatproof.models.adapter.TOLERANCE`) is held against it.
"""

import copy
import sys

import timm
import torch
import torchvision

from heatproof.models.adapter import TOLERANCE, adapted, largest_difference

NETWORKS = [
    "tv:resnet18",
    "tv:resnet50",
    "tv:vgg11_bn",
    "tv:densenet121",
    "tv:mobilenet_v2",
    "tv:mobilenet_v3_small",
    "tv:efficientnet_b0",
    "tv:shufflenet_v2_x1_0",
    "tv:squeezenet1_0",
    "tv:regnet_y_400mf",
    "tv:convnext_tiny",
    "tv:mnasnet1_0",
    "tv:googlenet",
    "timm:vit_tiny_patch16_224",
    "timm:deit_tiny_distilled_patch16_224",
    "timm:swin_tiny_patch4_window7_224",
    "timm:mixer_s32_224",
    "timm:resnet26d",
    "timm:efficientnet_lite0",
    "timm:regnetx_002",
    "timm:ghostnet_100",
    "timm:convnext_atto",
    "timm:poolformer_s12",
    "timm:pvt_v2_b0",
    "timm:levit_128s",
    "timm:mobilevit_xxs",
    "timm:xcit_nano_12_p16_224",
    "timm:cait_xxs24_224",
    "timm:coat_tiny",
    "timm:crossvit_9_240",
    "timm:maxvit_pico_rw_256",
    "timm:nf_resnet26",
    "timm:resnetv2_50",
    "timm:gernet_s",
    "timm:repvgg_a0",
    "timm:hardcorenas_a",
    "timm:tinynet_e",
    "timm:vgg11",
    "timm:skresnet18",
    "timm:botnet26t_256",
    "timm:lambda_resnet26t",
    "timm:edgenext_xx_small",
    "timm:fastvit_t8",
    "timm:efficientformer_l1",
    "timm:beit_base_patch16_224",
]


def build(name):
    library, _, model = name.partition(":")
    if library == "tv":
        return torchvision.models.get_model(model, weights=None, num_classes=10).eval(), 64
    network = timm.create_model(model, num_classes=10).eval()
    facts = network.default_cfg
    return network, facts["input_size"][1] if facts.get("fixed_input_size") else 64


def measured(network, images):
    """Return the largest difference alone and in company, and in two passes of one size, over the logits' spread."""
    with adapted(network, images) as found, torch.no_grad():
        together, again = (found.network(images) for _ in range(2))
        alone = torch.cat([found.network(one) for one in images.split(1)])
    spread = float(together.max() - together.min())
    return largest_difference(alone, together) / spread, largest_difference(again, together) / spread


def main(names):
    torch.manual_seed(0)
    rows = {dtype: [] for dtype in TOLERANCE}
    for name in names:
        network, size = build(name)
        images = torch.randn(4, 3, size, size)
        for dtype, found in rows.items():
            found.append((*measured(copy.deepcopy(network).to(dtype), images.to(dtype)), name))
    for dtype, found in rows.items():
        alone, again = (max(row[place] for row in found) for place in (0, 1))
        worst = max(found)[2]
        print(
            f"{dtype}: {len(found)} networks, {alone:.1e} alone ({worst}), {again:.1e} again, of {TOLERANCE[dtype]:g}"
        )


if __name__ == "__main__":
    main(sys.argv[1:] or NETWORKS)
