"""Write docs/gaps.md: which explainer applies to which embedded network, and why not.

    python docs/gaps.py > docs/gaps.md

Every explainer that uses the model is run on a few digits and a small, briefly trained network of every kind.
"""

import re

import torch

from heatproof.attribution.applicability import IMAGES, check_limits
from heatproof.attribution.registry import EXPLAINERS, Explained, Figure
from heatproof.data.digits import digits
from heatproof.errors import NotApplicable
from heatproof.models.registry import ARCHITECTURES

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
FEW = {"steps": 4, "samples": 2, "masks": 20, "stride": 0.25, "grid": 4, "baselines": 3}
HEAD = """# Which explainer applies to which network

This page lists which explainers apply to which embedded networks, and the reasons of gaps. `python docs/gaps.py` writes
it by running every explainer on digits and on a small, briefly trained network of every kind; a test compares the page.
In result tables, a gap is a row with a reason and without a score. Figures in reasons depend on the network. Reference
maps, which do not use a model, always apply and are not listed.
"""


def pictures(split: str, count: int) -> tuple[torch.Tensor, torch.Tensor, tuple[str, ...]]:
    """Return the first digits of a split, in [-1, 1], with labels and ids."""
    dataset = digits(seed=0)
    images = torch.from_numpy(dataset.images(split, 0, count)) * 2 - 1
    return images, torch.from_numpy(dataset.splits[split].labels[:count]), dataset.splits[split].ids[:count]


def trained(name: str) -> torch.nn.Module:
    """Return a network of a kind after two passes over 256 digits."""
    options = {"width": 8} if name.startswith("cifar_") else {}
    torch.manual_seed(0)
    network = ARCHITECTURES[name].build(10, **options)
    images, labels, _ = pictures("train", 256)
    optimiser = torch.optim.AdamW(network.parameters(), 3e-3)
    for _ in range(2):
        for batch in torch.randperm(len(images)).split(32):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(network(images[batch]), labels[batch]).backward()
            optimiser.step()
    return network.eval().requires_grad_(False)


def reason(explainer: str, architecture: str, network: torch.nn.Module) -> str | None:
    """Return why an explainer does not apply; None where it does."""
    entry = EXPLAINERS[explainer]
    facts = ARCHITECTURES[architecture].facts
    if "cam_layer" in entry.needs and facts.cam_layer is None:
        return facts.cam_reason
    images, labels, ids = pictures("evaluation", IMAGES)
    figures: dict[str, Figure] = {}
    explained = Explained(
        network,
        network,
        facts,
        images,
        labels,
        ids,
        seed=0,
        batch_size=64,
        background=lambda n: pictures("train", n)[0],
        figures=figures,
    )
    try:
        maps = entry.function(explained, **{name: FEW[name] for name in entry.options if name in FEW})
        check_limits(figures, torch.stack(list(maps.values()), 1).numpy())
    except NotApplicable as gap:
        return str(gap)
    return None


def main() -> None:
    """Print the page."""
    networks = {name: trained(name) for name in NETWORKS}
    notes: list[str] = []
    rows = []
    for name, entry in EXPLAINERS.items():
        if not entry.uses_model:
            continue
        cells = []
        for architecture, network in networks.items():
            why = reason(name, architecture, network)
            if why is None:
                cells.append("yes")
                continue
            # Reasons that differ by their figures alone are one note.
            plain = re.sub(r"(?<![\w])\d[\d.e+-]*", "…", why)
            known = [re.sub(r"(?<![\w])\d[\d.e+-]*", "…", note) for note in notes]
            if plain not in known:
                notes.append(why)
                known.append(plain)
            cells.append(f"{known.index(plain) + 1}")
        rows.append(f"| `{name}` | " + " | ".join(cells) + " |")
    print(HEAD)
    print("| explainer | " + " | ".join(f"`{name.removeprefix('cifar_')}`" for name in NETWORKS) + " |")
    print("| --- |" + " --- |" * len(NETWORKS))
    print("\n".join(rows))
    print()
    print("\n".join(f"{number}. {note}." for number, note in enumerate(notes, start=1)))


if __name__ == "__main__":
    main()
