"""Every explainer on published architectures at their native size: which cells are declared, which work, and why not.

Weights are random, with norms calibrated on photographs. A cell works if maps are finite and not constant, every figure
of the check on the first images is within its limit, a class activation map is an enlargement of its layer's grid, and
the maps of the same network with other random weights differ. A cell that is not declared is tried once where it is
cheap. Options are the cheapest that show this, and Score-CAM and similar explainers use only the first channels of
their layer. A network whose table exists is not run again, except for the rows of `--explainers`, which replace the
existing ones.

    python benchmarks/matrix.py --out docs/data/matrix && python docs/pages.py
    python benchmarks/matrix.py --out docs/data/matrix --only torchvision:resnet18 timm:vit_tiny_patch16_224
    python benchmarks/matrix.py --out docs/data/matrix --explainers lrp guided_backprop

`--meta-rank` runs the eight methods of Meta-Rank with their default options on the six networks of its paper, as
config/paper_meta_rank.yaml builds them:

    python benchmarks/matrix.py --out docs/data/meta_rank_cells --meta-rank && python docs/pages.py
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn
from torch.nn.functional import interpolate

from heatproof.claims.meta_rank import METHODS_OF_PAPER
from heatproof.core.batch import ApplicabilityFigure, Batch
from heatproof.core.input_facts import InputFacts
from heatproof.errors import HeatproofError, NotApplicable
from heatproof.explainers._cells import Cells
from heatproof.explainers._layers import grid_layer
from heatproof.explainers._network_traits import NetworkTraits, inspect_network
from heatproof.explainers.explaining import check_limits
from heatproof.explainers.registry import EXPLAINERS, Explainer
from heatproof.models.registry import ARCHITECTURES

# Library, name in it, and for transformers the options in which the published network differs from the defaults.
NETWORKS: dict[str, dict[str, Any]] = {
    "torchvision:resnet18": {},
    "timm:vit_tiny_patch16_224": {},
    "timm:swin_tiny_patch4_window7_224": {},
    "torchvision:vgg11_bn": {},
    "torchvision:densenet121": {},
    "torchvision:efficientnet_b0": {},
    "torchvision:mobilenet_v2": {},
    "torchvision:regnet_y_400mf": {},
    "timm:convnext_atto": {},
    "timm:deit_tiny_distilled_patch16_224": {},
    "timm:eva02_tiny_patch14_224": {},
    "transformers:ViT": {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768},
    "heatproof:bagnet33": {},
    "heatproof:cifar_bcos_resnet20": {},
    "torchvision:googlenet": {},
    "torchvision:resnext50_32x4d": {},
    "torchvision:vit_b_32": {},
    "transformers:Swin": {},
    "transformers:CLIP": {},
    "timm:beit_base_patch16_224": {},
    "timm:maxvit_tiny_tf_224": {},
    "torchvision:inception_v3": {},
    "torchvision:resnet50": {},
    "torchvision:vgg16": {},
    "torchvision:mobilenet_v3_large": {},
    "torchvision:regnet_x_400mf": {},
    "torchvision:squeezenet1_1": {},
    "torchvision:shufflenet_v2_x1_0": {},
    "torchvision:mnasnet1_0": {},
    "torchvision:convnext_tiny": {},
    "torchvision:swin_t": {},
    "timm:tf_efficientnet_lite0": {},
    "timm:convnextv2_atto": {},
    "timm:poolformer_s12": {},
    "timm:mixer_s16_224": {},
    "timm:deit3_small_patch16_224": {},
    "timm:mobilevit_xxs": {},
    "transformers:DeiT": {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768},
    "transformers:Dinov2": {"hidden_size": 384, "num_attention_heads": 6},
    "transformers:ResNet": {},
}
# The networks of Meta-Rank, section 4.1, each at its published size.
META_RANK: dict[str, dict[str, Any]] = {
    "timm:resnet18": {},
    "timm:resnet50": {},
    "timm:inception_v4": {},
    "torchvision:vgg19": {},
    "timm:efficientnet_b2": {"size": 288},
    "timm:densenet121": {},
}
# One network of each family for tests, as small as it is published or can be built.
SMALL: dict[str, dict[str, Any]] = {
    "timm:resnet10t": {"size": 64},
    "torchvision:vgg11_bn": {"size": 64},
    "torchvision:densenet121": {"size": 64},
    "timm:efficientnet_b0": {"size": 64},
    "timm:mobilenetv2_035": {"size": 64},
    "timm:regnetx_002": {"size": 64},
    "timm:convnext_atto": {"size": 64},
    "timm:vit_tiny_patch16_224": {"size": 64, "img_size": 64},
    "timm:deit_tiny_distilled_patch16_224": {"size": 64, "img_size": 64},
    "timm:swin_tiny_patch4_window7_224": {"size": 64, "img_size": 64, "embed_dim": 24, "depths": (2, 2, 2, 2)},
    "timm:beit_base_patch16_224": {"size": 64, "img_size": 64, "embed_dim": 48, "depth": 3, "num_heads": 3},
    "timm:eva02_tiny_patch14_224": {"size": 56, "img_size": 56, "depth": 3},
    "timm:maxvit_rmlp_pico_rw_256": {"size": 64, "img_size": 64},
    "transformers:CLIP": {
        "size": 64,
        "image_size": 64,
        "hidden_size": 48,
        "num_attention_heads": 3,
        "num_hidden_layers": 3,
    },
    "heatproof:cifar_bagnet": {"size": 32},
    "heatproof:cifar_bcos_resnet20": {"size": 32},
}
FEW: dict[str, Any] = {
    "steps": 4,
    "prior_steps": 2,
    "layer_steps": 2,
    "samples": 2,
    "masks": 16,
    "stride": 0.25,
    "baselines": 4,
    "topk": 2,
    "cells": 4,
}
FEW_OF: dict[str, dict[str, Any]] = {
    "feature_ablation": {"grid": 4},
    # Where the output saturates before the end of the path, 4 steps can miss the complete sum of a map.
    "left_integrated_gradients": {"steps": 16},
    # Four steps are too few to change the result.
    "extremal_perturbation": {"steps": 30, "areas": (0.1,), "spacing": 1 / 16, "learning_rate": 0.1},
}
CHANNELS = 16
ENLARGED = {"grad_cam", "grad_cam_pp", "xgrad_cam", "layer_cam", "smooth_grad_cam_pp", "hires_cam"}
ENLARGED |= {"score_cam", "ss_cam", "is_cam", "iba"}
# Explainers that need one or two passes, so that they are also tried where they are not declared.
CHEAP = {"guided_backprop", "deconvolution", "guided_grad_cam", "deep_lift", "lrp", "attn_lrp", "chefer_lrp", "bagnet"}
CHEAP |= {"raw_attention", "attention_rollout", "attention_grad", "chefer_attention", "bcos", "grad_cam"}
# Largest rounding error, as a share of the largest value, and the smallest change of a map by other weights.
SAME, CHANGED = 1e-3, 1e-2
COLUMNS = ["network", "found", "explainer", "declared", "works", "says", "seconds"]


class Logits(nn.Module):
    """A network of transformers whose output is an object with logits, or an image tower with a linear head."""

    def __init__(self, inner: nn.Module, head: nn.Module | None = None) -> None:
        super().__init__()
        self.inner, self.head = inner, head

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (N, K)."""
        outputs = self.inner(pixel_values=images)
        return outputs.logits if self.head is None else self.head(outputs.pooler_output)


def build(name: str, spec: dict[str, Any], seed: int) -> tuple[nn.Module, InputFacts, int]:
    """Return a network with random weights, its facts, and its native image size."""
    library, _, architecture = name.partition(":")
    options = dict(spec)
    size = options.pop("size", None)
    facts = InputFacts()
    torch.manual_seed(seed)
    if library == "timm":
        import timm

        network = timm.create_model(architecture, **options)
        size = size or network.default_cfg["input_size"][-1]
    elif library == "torchvision":
        import torchvision

        auxiliary = {"aux_logits": False} if architecture in ("googlenet", "inception_v3") else {}
        network = torchvision.models.get_model(architecture, weights=None, **auxiliary, **options)
        size = size or (299 if architecture == "inception_v3" else 224)
    elif library == "transformers":
        network = _of_transformers(architecture, options)
        size = size or 224
    else:
        network, facts = ARCHITECTURES[architecture].build(1000, **options), ARCHITECTURES[architecture].facts
        size = size or (32 if architecture.startswith("cifar_") else 224)
    return _prepared(network, size), facts, size


def _of_transformers(architecture: str, options: dict[str, Any]) -> nn.Module:
    import transformers

    if architecture == "CLIP":
        tower = transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**options))
        return Logits(tower, nn.Linear(tower.config.hidden_size, 1000))
    config = getattr(transformers, f"{architecture}Config")(num_labels=1000, **options)
    return Logits(getattr(transformers, f"{architecture}ForImageClassification")(config))


def _prepared(network: nn.Module, size: int) -> nn.Module:
    for parameter in network.parameters():
        # Heads that are initialised to zero pass no gradient on.
        if parameter.ndim == 2 and not parameter.any():
            nn.init.normal_(parameter, std=0.02)
        # Layer scales are initialised far below their trained values, so that the logits hardly depend on the image.
        if parameter.ndim <= 3 and 0 < float(parameter.min()) == float(parameter.max()) < 0.5:
            nn.init.ones_(parameter)
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    if norms:
        # With the initial moments of the norms, activations vanish or grow from layer to layer.
        for norm in norms:
            norm.momentum = None
            norm.train()
        with torch.no_grad():
            network.train()(photographs(size, 4))
    return network.eval().requires_grad_(False)


def photographs(side: int, count: int) -> torch.Tensor:
    """Return crops of scikit-learn's photographs, (N, 3, side, side) in [-1, 1]."""
    from sklearn.datasets import load_sample_images

    both = [torch.from_numpy(photograph.copy()) for photograph in load_sample_images().images]
    two = torch.stack(both).permute(0, 3, 1, 2)
    crops = torch.cat([two[:, :, :400, start : start + 400] for start in range(0, 240, 60)])[:count]
    return interpolate(crops.float() / 127.5 - 1, (side, side), mode="bilinear")


@contextmanager
def few_channels() -> Iterator[None]:
    """Restrict Score-CAM and similar explainers to the first channels, because each channel costs passes."""
    from torchcam.methods import ScoreCAM

    original = ScoreCAM._get_weights

    def first(self: Any, *arguments: Any, **keywords: Any) -> Any:
        self.hook_a = [features[:, :CHANNELS] for features in self.hook_a]
        return original(self, *arguments, **keywords)

    ScoreCAM._get_weights = first  # type: ignore[method-assign]
    try:
        yield
    finally:
        ScoreCAM._get_weights = original  # type: ignore[method-assign]


def explained_by(network: nn.Module, facts: InputFacts, size: int, figures: dict[str, ApplicabilityFigure]) -> Batch:
    """Return two photographs to explain, whose targets are the predicted classes."""
    images = photographs(size, 2)
    with torch.no_grad():
        targets = network(images).argmax(1)
    return Batch(
        network,
        network,
        facts,
        images,
        targets,
        ("one", "two"),
        seed=0,
        batch_size=8,
        # Other images than the explained ones, whose deviation from their own moments is always small.
        background=lambda count: photographs(size, 8)[2:][:count],
        figures=figures,
    )


def maps_of(entry: Explainer, context: Batch, default_options: bool = False) -> torch.Tensor:
    """Return the maps (2, M, H, W) of an explainer, with few steps, samples and masks or with its default options."""
    cheap_options = {name: FEW[name] for name in entry.options if name in FEW} | FEW_OF.get(entry.name, {})
    cheap_options = {} if default_options else cheap_options
    with few_channels():
        return torch.stack(list(entry.function(context, **cheap_options).values()), 1).detach().float()


def check(entry: Explainer, maps: torch.Tensor, context: Batch, traits: NetworkTraits) -> list[str]:
    """Return the checks that maps passed, as text.

    Raises
    ------
    NotApplicable
        If a check failed.
    """
    if not bool(maps.isfinite().all()):
        raise NotApplicable("its maps are not finite")
    assert context.figures is not None
    check_limits(context.figures, maps.numpy())
    passed = [f"{name} {value:.1e}" for name, (value, limit, _) in context.figures.items() if limit is not None]
    if entry.name in ENLARGED:
        assert traits.layout is not None
        with grid_layer(context) as (output, layer, _name), torch.no_grad():
            # A pass shows where the cells lie.
            output(context.images)
            missed = missed_by_enlargement(maps[:, 0], traits.layout.grid, layer.cells)
        if missed > SAME:
            raise NotApplicable(f"its maps are no enlargement of {traits.layout.grid[0]}×{traits.layout.grid[1]} cells")
        passed.append(f"grid {traits.layout.grid[0]}×{traits.layout.grid[1]}")
    return passed


def _scaled(maps: torch.Tensor) -> torch.Tensor:
    """Return maps minus their mean, as shares of their largest deviation from it."""
    centred = maps - maps.mean((2, 3), keepdim=True)
    return centred / centred.abs().amax((2, 3), keepdim=True).clamp_min(torch.finfo(maps.dtype).tiny)


def missed_by_enlargement(maps: torch.Tensor, grid: tuple[int, int], cells: Cells | None = None) -> float:
    """Return the part of maps (N, H, W) that no bilinear enlargement of a grid yields, as a share of the maximum.

    The cells lie where `cells` says, or else are stretched over the image.
    """
    sides = []
    for count, pixels, axis in zip(grid, maps.shape[1:], cells or (None, None), strict=True):
        if axis is None:
            enlargement = interpolate(torch.eye(count)[None], pixels, mode="linear", align_corners=False)[0].double()
        else:
            enlargement = axis.rescale(count).weights(pixels).mT.double()
        sides.append(enlargement.pinverse() @ enlargement)
    enlarged = sides[0].mT @ maps.double() @ sides[1]
    return float((enlarged - maps).abs().max() / maps.abs().max())


def cell(
    entry: Explainer,
    declared: bool,
    networks: list[Callable[[], Batch]],
    traits: NetworkTraits,
    default_options: bool = False,
) -> tuple[bool, str]:
    """Return whether an explainer works on a network, and the checks that it passed or the reason for the failure."""
    context = networks[0]()
    try:
        maps = maps_of(entry, context, default_options)
        passed = check(entry, maps, context, traits)
        if declared:
            other = maps_of(entry, networks[1](), default_options)
            if float((_scaled(other) - _scaled(maps)).abs().amax()) < CHANGED:
                return False, "its maps are the same with other random weights"
            passed.append("other weights, other maps")
    except (HeatproofError, NotApplicable) as reason:
        return False, " ".join(str(reason).split())
    except Exception as error:
        # A user would get the same error of the library: it is the reason.
        return False, f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    return True, "; ".join(passed)


def row_by_row(
    name: str,
    spec: dict[str, Any],
    explainers: list[str] | None = None,
    tried: bool = True,
    default_options: bool = False,
) -> pd.DataFrame:
    """Return the table of one network, a row for every explainer that uses the model.

    Parameters
    ----------
    name, given
        As in `NETWORKS`.
    explainers
        Names of explainers to run; None for all.
    tried
        Whether cheap explainers that are not declared are tried too.
    whole
        Whether to use the default options of explainers instead of few steps.
    """
    built = [build(name, spec, seed) for seed in (0, 1)]
    traits = inspect_network(built[0][0], photographs(built[0][2], 2), built[0][1].cam_layer)
    networks = [lambda each=each: explained_by(*each, figures={}) for each in built]
    rows = []
    for entry in EXPLAINERS.values():
        declared = bool(entry.applies_to & traits.kinds)
        if not entry.uses_model or (explainers and entry.name not in explainers):
            continue
        began = time.monotonic()
        works, outcome = (
            cell(entry, declared, networks, traits, default_options)
            if declared or (tried and entry.name in CHEAP)
            else (False, "not declared")
        )
        rows.append([name, str(traits), entry.name, declared, works, outcome, round(time.monotonic() - began, 1)])
        print(
            f"  {entry.name}: {'works' if works else 'no'} {'' if declared else '(not declared) '}{outcome}", flush=True
        )
    return pd.DataFrame(rows, columns=COLUMNS)


def main() -> None:
    """Run the networks that have no table yet, and print the totals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", help="these networks")
    parser.add_argument("--explainers", nargs="+", help="these explainers, also where a table is there")
    parser.add_argument("--small", action="store_true", help="one small network and the cheap explainers")
    parser.add_argument("--meta-rank", action="store_true", help="the networks and methods of Meta-Rank, in full")
    args = parser.parse_args()
    default_explainers = sorted(CHEAP) if args.small else list(METHODS_OF_PAPER) if args.meta_rank else None
    warnings.filterwarnings("ignore")
    networks = {"timm:vit_tiny_patch16_224": SMALL["timm:vit_tiny_patch16_224"]} if args.small else NETWORKS
    networks = META_RANK if args.meta_rank else networks
    args.out.mkdir(parents=True, exist_ok=True)
    for name, options in networks.items():
        path = args.out / f"{name.replace(':', '.')}.csv"
        there = pd.read_csv(path) if path.is_file() else None
        if (there is not None and not args.explainers) or (args.only and name not in args.only):
            continue
        print(name, flush=True)
        new_rows = row_by_row(name, options, args.explainers or default_explainers, default_options=args.meta_rank)
        if there is not None:
            old_rows = there[~there["explainer"].isin(new_rows["explainer"])]
            order = {explainer: number for number, explainer in enumerate(EXPLAINERS)}
            new_rows = pd.concat([old_rows, new_rows]).sort_values("explainer", key=lambda names: names.map(order))
        new_rows.to_csv(path, index=False)
    table = pd.concat([pd.read_csv(path) for path in sorted(args.out.glob("*.csv"))])
    declared = table[table["declared"]]
    print(
        f"{table['network'].nunique()} networks: {len(declared)} cells declared, {declared['works'].sum()} work, "
        f"{declared['works'].mean():.1%}; {table['seconds'].sum() / 60:.1f} minutes"
    )


if __name__ == "__main__":
    main()
