"""Write docs/gaps.md: which explainer applies to which small network of heatproof, and why not.

    python docs/gaps.py > docs/gaps.md

The script runs every explainer that uses the network on a few digits and a small, briefly trained network of each kind.
It runs DeepLIFT and LRP on published networks too, with random weights, and with trained ones if the extra
`efficientnet` is installed.
"""

import re

import torch

from heatproof.core.batch import ApplicabilityFigure, Batch
from heatproof.datasets.digits import digits
from heatproof.datasets.probe_images import PROBE_IMAGES
from heatproof.errors import HeatproofError, NotApplicable
from heatproof.explainers.explaining import check_limits
from heatproof.explainers.registry import EXPLAINERS
from heatproof.models.packaged import find_packaged
from heatproof.models.registry import ARCHITECTURES
from heatproof.models.weight_names import match_names

NETWORKS = [
    "cifar_resnet20",
    "cifar_resnet20_fixup",
    "cifar_resnet20_nobias",
    "cifar_vgg11_bn",
    "cifar_vgg11",
    "cifar_vgg11_nobias",
    "small_vit",
    "cifar_bagnet",
    "cifar_bcos_resnet20",
]
# Of Meta-Rank's six networks (section 4.1), those with overlapping pools, concatenations, gates or other activations.
PUBLISHED = {
    "ResNet-18": ("torchvision_model", "resnet18"),
    "ResNet-50": ("torchvision_model", "resnet50"),
    "DenseNet-121": ("torchvision_model", "densenet121"),
    "EfficientNet-B2": ("torchvision_model", "efficientnet_b2"),
    "EfficientNet-B2 of timm": ("timm_model", "efficientnet_b2"),
    "EfficientNet-Lite0 of timm": ("timm_model", "tf_efficientnet_lite0"),
}
SUMS = {"deep_lift": "convergence_delta", "lrp": "conservation_error"}
FEW = {
    "steps": 4,
    "prior_steps": 2,
    "layer_steps": 4,
    "samples": 2,
    "masks": 20,
    "stride": 0.25,
    "grid": 4,
    "baselines": 3,
}
HEAD = """# Which explainer applies to which of heatproof's small networks

This page lists which explainers apply to the small networks that heatproof contains
([models.md](models.md#small-networks-for-32-pixel-images)), and the reasons where they do not.
For published networks, see [matrix.md](matrix.md). For your network, `heatproof check` reports the same.

In short, on these networks:

- Gradients, integrated gradients, class activation maps, and methods that mask or perturb the image apply to all.
  Reference maps need no network.
- Attention methods apply to the vision transformer only; `attn_lrp` applies everywhere except to the B-cos network.
- `bagnet` and `bcos` apply to the networks of their kind only.
- Guided backprop, deconvolution, DeepLIFT and LRP do not apply to the vision transformer and the B-cos network.

In tables of results, a method that is not applicable has a row with its reason and without a score.

## Explainers and networks

Each cell of the table is "yes", or the number of the reason in the list below it. Explainers with equal cells share a
row.
"""
REASONS = """
The list has the reasons in the words of tables and messages. Some reasons state an error as a multiple of an output,
and its limit. Read them as follows; other networks have other errors:

- "0.49 of the largest change of an output, above 0.01": the error is 49 % of the largest change of an output between
  the baseline and the image; 1 % is allowed.
- "8.8e+04 of the largest logit, above 0.001": the error is 88,000 times the largest logit; a thousandth is allowed.
- "differs from the logits by 1 of the largest logit": the error is 100 % of the largest logit.

A reason that ends with "as BagNet's are" or "as B-cos networks are" names a property that only those networks have.
"""
SECOND = """
## Sums of DeepLIFT and LRP on published networks

DeepLIFT and LRP guarantee that a map sums to a known number ([methods.md](methods.md#sums-that-methods-promise)). The
table shows the largest error of this sum over 4 crops of photographs:

- DeepLIFT (zero baseline): as a share of the largest change of an output between the baseline and the image; the
  limit is 0.01;
- LRP: as a share of the largest logit; the limit is 0.001.
"""
LAST = """
All errors are below the limits, so both methods are applicable to these networks.

## How this was measured

`python docs/gaps.py` writes this page. It runs every explainer on digits, with a small, briefly trained network of each
kind. In the second table, published architectures with random weights run in float64, so that the errors contain almost
no rounding. Three batches of noise first set the statistics of their batch norms. EfficientNet-Lite0 with trained
weights runs in float32.
"""


def first_digits(split: str, count: int) -> tuple[torch.Tensor, torch.Tensor, tuple[str, ...]]:
    """Return the first digits of a split, in [-1, 1], with labels and ids."""
    dataset = digits(seed=0)
    images = torch.from_numpy(dataset.images(split, 0, count)) * 2 - 1
    return images, torch.from_numpy(dataset.splits[split].labels[:count]), dataset.splits[split].ids[:count]


def trained(name: str) -> torch.nn.Module:
    """Return a network of a kind after two passes over 256 digits."""
    options = {"width": 8} if name.startswith("cifar_") else {}
    torch.manual_seed(0)
    network = ARCHITECTURES[name].build(10, **options)
    images, labels, _ = first_digits("train", 256)
    optimiser = torch.optim.AdamW(network.parameters(), 3e-3)
    for _ in range(2):
        for batch in torch.randperm(len(images)).split(32):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(network(images[batch]), labels[batch]).backward()
            optimiser.step()
    return network.eval().requires_grad_(False)


def reason(explainer: str, architecture: str, network: torch.nn.Module) -> str | None:
    """Return why an explainer is not applicable, or None if it is."""
    entry = EXPLAINERS[explainer]
    facts = ARCHITECTURES[architecture].facts
    images, labels, ids = first_digits("evaluation", PROBE_IMAGES)
    figures: dict[str, ApplicabilityFigure] = {}
    context = Batch(
        network,
        network,
        facts,
        images,
        labels,
        ids,
        seed=0,
        batch_size=64,
        background=lambda n: first_digits("train", n)[0],
        figures=figures,
    )
    try:
        few = {name: FEW[name] for name in entry.options if name in FEW and (entry.family, name) != ("cam", "grid")}
        maps = entry.function(context, **few)
        check_limits(figures, torch.stack(list(maps.values()), 1).numpy())
    except NotApplicable as gap:
        return str(gap)
    return None


def sample(side: int, count: int = PROBE_IMAGES) -> torch.Tensor:
    """Return crops of scikit-learn's photographs, (N, 3, side, side)."""
    from sklearn.datasets import load_sample_images

    images = [torch.from_numpy(photograph.copy()) for photograph in load_sample_images().images]
    photographs = torch.stack(images).permute(0, 3, 1, 2)
    crops = [photographs[:, :, :400, start : start + 400] for start in range(0, 240, 480 // count)]
    return torch.nn.functional.interpolate(torch.cat(crops)[:count].float() / 127.5 - 1, (side, side), mode="bilinear")


def measured(network: torch.nn.Module, images: torch.Tensor) -> list[str]:
    """Return the errors of the sums that DeepLIFT and LRP promise, or why they are not applicable."""
    cells = []
    with torch.no_grad():
        targets = network(images).argmax(1)
    for name, figure in SUMS.items():
        figures: dict[str, ApplicabilityFigure] = {}
        ids = tuple(map(str, range(len(images))))
        context = Batch(network, network, None, images, targets, ids, seed=0, figures=figures)
        try:
            EXPLAINERS[name].function(context)
        except NotApplicable as gap:
            cells.append(
                f"not applicable: {figures[figure].value:.1g}" if figure in figures else f"not applicable: {gap}"
            )
        else:
            cells.append(f"{figures[figure].value:.0e}")
    return cells


def untrained(architecture: str, name: str) -> torch.nn.Module:
    """Return a published network with random weights, whose batch norms have seen three batches."""
    torch.manual_seed(0)
    network = ARCHITECTURES[architecture].build(1000, name=name).train()
    with torch.no_grad():
        for _ in range(3):
            network(torch.randn(8, 3, 96, 96))
    return network.eval().requires_grad_(False).double()


def published() -> list[list[str]]:
    """Return the rows of published networks, in double precision, so that errors are not rounding."""
    rows = []
    for title, (architecture, name) in PUBLISHED.items():
        rows.append([title, "random", *measured(untrained(architecture, name), sample(96).double())])
    trained = ARCHITECTURES["timm_model"].build(1000, name="tf_efficientnet_lite0")
    try:
        state = torch.load(find_packaged("package:efficientnet_lite0"), map_location="cpu")
    except HeatproofError:
        return rows
    trained.load_state_dict(match_names(state, trained.state_dict(), tuple)[0])
    rows.append(["EfficientNet-Lite0 of timm", "trained", *measured(trained.eval().requires_grad_(False), sample(224))])
    return rows


def page(cells: dict[str, list[str]], notes: list[str], published_rows: list[list[str]]) -> str:
    """Return the page: the cells of each explainer, the reasons that they count, and the rows of published networks."""
    sharing: dict[tuple[str, ...], list[str]] = {}
    for name, outcomes in cells.items():
        sharing.setdefault(tuple(outcomes), []).append(f"`{name}`")
    rows = [["explainers", *(f"`{name.removeprefix('cifar_')}`" for name in NETWORKS)], ["---"] * (len(NETWORKS) + 1)]
    rows += [[", ".join(names), *outcomes] for outcomes, names in sharing.items()]
    sums = [["network", "weights", "error of DeepLIFT", "error of LRP"], ["---"] * 4, *published_rows]
    tables = ["\n".join("| " + " | ".join(row) + " |" for row in table) for table in (rows, sums)]
    reasons = "\n".join(f"{number}. {note}." for number, note in enumerate(notes, start=1))
    return "\n".join([HEAD, tables[0], REASONS, reasons, SECOND, tables[1], LAST.rstrip("\n")])


def main() -> None:
    """Print the page."""
    networks = {name: trained(name) for name in NETWORKS}
    notes: list[str] = []
    cells: dict[str, list[str]] = {}
    for name, entry in EXPLAINERS.items():
        if not entry.uses_model:
            continue
        cells[name] = []
        for architecture, network in networks.items():
            why = reason(name, architecture, network)
            if why is None:
                cells[name].append("yes")
                continue
            # Reasons that differ only in their figures share a note.
            plain = re.sub(r"(?<![\w])\d[\d.e+-]*", "…", why)
            patterns = [re.sub(r"(?<![\w])\d[\d.e+-]*", "…", note) for note in notes]
            if plain not in patterns:
                notes.append(why)
                patterns.append(plain)
            cells[name].append(f"{patterns.index(plain) + 1}")
    print(page(cells, notes, published()))


if __name__ == "__main__":
    main()
