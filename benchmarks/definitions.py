"""Largest difference between explainers and their definitions, on networks of unusual constructions.

A definition is written by hand, with `autograd.Function`s, on a twin of the network that neither writes in place nor
shares modules (tests/explainers/definitions.py; definitions_lrp_cam.py for LRP and class activation maps). The
difference is a share of the largest value of the defined map; for a method that does not apply, the row has the reason.
With another version of heatproof on the path, that version is measured.

    python benchmarks/definitions.py --out docs/data/definitions
    PYTHONPATH=OTHER_CHECKOUT/src python benchmarks/definitions.py --out docs/data/definitions_before
"""

import importlib.util
import sys
import warnings
from pathlib import Path

import torch
from _shared import make_parser, print_table

from heatproof.core.input_facts import InputFacts
from heatproof.explainers import registry


def load(name):
    """Import a module of the tests."""
    path = Path(__file__).parents[1] / "tests" / "explainers" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


by_hand, of_layers = load("definitions"), load("definitions_lrp_cam")
OF_LAYERS = ["lrp", *of_layers.OF_GRADIENTS, *of_layers.OF_SCORES]
IMAGES, BASELINES = 16, 4


def maps_of(explainer, network, images, targets, background):
    """Return the maps (N, H, W) of an explainer; Grad-CAM uses the stem."""
    ids = tuple(map(str, range(len(images))))
    context = registry.ExplainContext(
        *(network, network, InputFacts(cam_layer="stem"), images, targets, ids),
        seed=0,
        background=lambda count: background[:count],
    )
    options = {"baselines": len(background)} if explainer == "deep_shap" else of_layers.OPTIONS.get(explainer, {})
    return registry.EXPLAINERS[explainer].function(context, **options)[explainer]


def compared(explainer, construction, count):
    """Return a row: difference and correlation of an explainer's maps and the defined ones, or the reason."""
    network, images = by_hand.network_of(construction), by_hand.images_of(count)
    background = by_hand.images_of(BASELINES, seed=2)
    targets = torch.arange(count) % 4
    if explainer in OF_LAYERS:
        steps = by_hand.CONSTRUCTIONS[construction].steps
        expected = of_layers.defined(explainer, network, steps, by_hand.Rules, images, targets)
    else:
        expected = by_hand.defined(explainer, construction, network, images, targets, background)
    row = {"explainer": explainer, "construction": construction, "difference": None, "correlation": None, "reason": ""}
    try:
        maps = maps_of(explainer, network, images, targets, background)
    except Exception as error:  # an error of an earlier version is its result
        return {**row, "reason": f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"}
    both = torch.stack([maps.flatten(), expected.flatten()])
    return {
        **row,
        "difference": float((maps - expected).abs().max() / expected.abs().max()),
        "correlation": float(torch.corrcoef(both)[0, 1]),
    }


def main():
    args = make_parser(__doc__).parse_args()
    warnings.simplefilter("ignore")
    count, names = (2, ["plain", "residual, in-place"]) if args.small else (IMAGES, list(by_hand.CONSTRUCTIONS))
    print_table(
        [compared(explainer, name, count) for name in names for explainer in (*by_hand.EXPLAINERS, *OF_LAYERS)],
        "definitions",
        args.out,
    )


if __name__ == "__main__":
    main()
