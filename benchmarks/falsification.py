"""Three studies that falsify ways of judging attribution, on real digits with small networks; docs/falsification.md.

Retraining on images whose removed pixels betray the class, two datasets whose watermarks alone tell the class, and maps
that are crafted from knowing the watermarks; Li et al. 2024 (soundness and completeness), section 3, figures 1 to 3,
and appendices C and D.1, figures 10 and 12.

    python benchmarks/falsification.py --out docs/data/falsification && python docs/pages.py
"""

import time
from pathlib import Path

import numpy as np
import pandas as pd
import seaborn as sns
import torch
from _tell import parser
from matplotlib.figure import Figure

import heatproof
from heatproof.attribution.registry import EXPLAINERS, Explained
from heatproof.data.digits import digits
from heatproof.data.watermarked import BOX, STRIPES, watermarked
from heatproof.metrics.bootstrap import summarise
from heatproof.metrics.known_regions import attribution_share, pooled_maps, rect_maps
from heatproof.models.network import normalise
from heatproof.models.registry import ARCHITECTURES
from heatproof.models.resnet import FACTS
from heatproof.perturbation.class_masks import class_masks
from heatproof.report.results import save
from heatproof.training.loop import Examples, Schedule, fit, validate

SEED, EPOCHS = 0, 6
FACTS_OF_DIGITS = {"mean": (0.3054,) * 3, "std": (0.3768,) * 3, "size": None}
SPLITS = ("train", "validation", "evaluation")
# Pixels of a side: 9 of 1,024 pixels where 70 % are removed, and 49, about 5 %, where nothing else is.
BLOCK, EDGE = 3, 7
INTACT, MIDDLE, BOTH, ONLY = "intact", "middle removed", "middle and square removed", "square removed"
TITLES = {INTACT: INTACT, MIDDLE: "middle\nremoved", BOTH: "middle and\nsquare removed", ONLY: "square\nremoved"}
BLANK = "number on a blank canvas"
METHODS = {"grad_cam": {}, "integrated_gradients": {"steps": 20}, "deep_lift": {}}
FRACTIONS = (0.02, 0.05, *(tenth / 10 for tenth in range(1, 10)))


def read(data):
    """Return split to (images, labels)."""
    return {name: (data.images(name, 0, len(data.splits[name].labels)), data.splits[name].labels) for name in SPLITS}


def examples(images, labels):
    return Examples(normalise(images, FACTS_OF_DIGITS), torch.from_numpy(labels))


def trained(splits, epochs=None):
    """Return a ResNet-20 trained on the images of `train`."""
    torch.manual_seed(SEED)
    network = ARCHITECTURES["cifar_resnet20"].build(num_classes=10, width=8)
    schedule = Schedule(epochs or EPOCHS, 64, "sgd", 0.1, 0.9, 5e-4, "cosine", 0.1, 4, 0.0, 0)
    state, *_ = fit(network, examples(*splits["train"]), examples(*splits["validation"]), schedule, SEED)
    network.load_state_dict(state)
    return network.eval().requires_grad_(False)


def accuracy(network, images, labels):
    return validate(network, examples(images, labels), 64)[1]


def removed(splits, **how):
    """Return the splits with pixels replaced by the mean of the training images, as ROAR does."""
    mean = splits["train"][0].mean()
    return {
        name: (np.where(class_masks(labels, images.shape[-1], **how)[:, None], mean, images).astype(np.float32), labels)
        for name, (images, labels) in splits.items()
    }


def retraining(plain, original):
    """Return the accuracies of figures 1 and 10, and example images."""
    sets = {
        INTACT: plain,
        MIDDLE: removed(plain, share=0.7),
        BOTH: removed(plain, share=0.7, block=BLOCK),
        ONLY: removed(plain, share=EDGE**2 / 32**2, block=EDGE),
    }
    rows = []
    for name, splits in sets.items():
        network = original if name == INTACT else trained(splits)
        for tested in dict.fromkeys((name, INTACT)):
            rows.append(("retrained" if name != INTACT else "original", name, tested, network))
    rows += [("original", INTACT, name, original) for name in (MIDDLE, BOTH, ONLY)]
    found = [(*names, accuracy(network, *sets[names[-1]]["evaluation"])) for *names, network in rows]
    table = pd.DataFrame(found, columns=["network", "trained_on", "tested_on", "value"])
    return table.assign(study="retraining"), {name: one["evaluation"] for name, one in sets.items()}


def explain(network, images, labels):
    """Return method to maps (N, H, W), Rect and Pooling among them."""
    data = examples(images, labels)
    found = {}
    for name, options in METHODS.items():
        ids = tuple(map(str, range(len(images))))
        explained = Explained(network, network, FACTS, data.images, data.labels, ids, SEED)
        entry = EXPLAINERS[name]
        found[name] = entry.function(explained, **{**entry.options, **options})[name].detach().numpy()
    base = found["integrated_gradients"]
    return {**found, "rect": rect_maps(base, BOX), "pooling": pooled_maps(base, STRIPES)}


def watermarks(images):
    """Return Attr% of every method on the watermarks (figure 2); networks, images and maps of figures 3 and 12."""
    rows, kept = [], {}
    for mark, canvas in (("number", "digits"), ("stripes", "digits"), ("number", "blank")):
        data = watermarked(seed=SEED, mark=mark, canvas=canvas)
        name = mark if canvas == "digits" else BLANK
        splits = read(data)
        network = trained(splits, EPOCHS * (2 if mark == "number" else 1))
        right = accuracy(network, *splits["evaluation"])
        without = accuracy(network, data.plain("evaluation", 0, None), splits["evaluation"][1])
        rows += [(name, "accuracy", *[right] * 3), (name, "accuracy without the mark", *[without] * 3)]
        chosen, labels = (part[:images] for part in splits["evaluation"])
        maps = explain(network, chosen, labels)
        regions = data.part_masks("evaluation", 0, images).any(axis=1)
        for method, values in {**maps, "even": np.ones_like(maps["rect"])}.items():
            one = summarise(attribution_share(values, regions)[None], SEED)
            rows.append((name, method, *(float(one[key][0]) for key in ("mean", "ci_low", "ci_high"))))
        kept[name] = network, chosen, labels, maps
    columns = ["dataset", "method", "value", "ci_low", "ci_high"]
    return pd.DataFrame(rows, columns=columns).assign(study="watermarks"), kept


def road(cases):
    """Return the accuracy over the share of pixels that ROAD imputes, most relevant first (figure 3)."""
    rows = []
    for dataset, (network, images, labels, maps) in cases.items():
        data = examples(images, labels)
        for method in (*METHODS, "rect"):
            scored = heatproof.evaluate(
                "road_morf", network, data.images, data.labels, maps[method], seed=SEED, fractions=FRACTIONS
            )
            curve = scored["road"].mean("image").to_numpy()
            rows += [
                (dataset, method, share, value)
                for share, value in zip(FRACTIONS, curve[-len(FRACTIONS) :], strict=True)
            ]
    return pd.DataFrame(rows, columns=["dataset", "method", "removed", "value"]).assign(study="road")


def picture(axes, values, title, **how):
    axes.imshow(values, interpolation="nearest", **how)
    axes.set_title(title, size=7.5, pad=3)
    axes.set_axis_off()


def draw_retraining(table, samples):
    """Return figure 1: an image of each set, and the accuracies."""
    with sns.axes_style("whitegrid"):
        figure = Figure(figsize=(9.5, 3.6), layout="constrained", facecolor="white")
        left, right = figure.subfigures(1, 2, width_ratios=[1, 1.25])
        for row, axes in zip((0, 1, 2), left.subplots(3, 4), strict=True):
            for (name, (images, _)), one in zip(samples.items(), axes, strict=True):
                picture(one, images[row, 0], "" if row else TITLES[name], cmap="gray", vmin=0, vmax=1)
        axes = right.subplots()
        shown = table.assign(
            case=table["tested_on"].where(
                (table["trained_on"] == table["tested_on"]) | (table["network"] == "original"),
                table["tested_on"] + ", after " + table["trained_on"],
            )
        )
        sns.barplot(shown, y="case", x="value", hue="network", palette="colorblind", ax=axes)
        axes.bar_label(axes.containers[0], fmt="%.2f", size=7.5, padding=2)
        axes.bar_label(axes.containers[1], fmt="%.2f", size=7.5, padding=2)
        axes.set(xlabel="test accuracy", ylabel="tested on images", xlim=(0, 1.15))
        axes.tick_params(labelsize=7.5)
        sns.move_legend(axes, "lower center", bbox_to_anchor=(0.3, 1), ncols=2, title=None, frameon=False)
    return figure


def draw_watermarks(shares, curves, kept):
    """Return figures 2 and 3: images and maps, Attr%, and ROAD on marked and on plain digits."""
    colours = dict(zip((*METHODS, "rect", "pooling"), sns.color_palette("colorblind"), strict=False))
    with sns.axes_style("whitegrid"):
        figure = Figure(figsize=(9.5, 6.4), layout="constrained", facecolor="white")
        above, below = figure.subfigures(2, 1, height_ratios=[1, 0.95])
        left, right = above.subfigures(1, 2, width_ratios=[1, 0.9])
        for (mark, (_, images, _, maps)), axes in zip(kept.items(), left.subplots(2, 4), strict=True):
            shown = {"image": images[0, 0], "IG": np.abs(maps["integrated_gradients"][0]), "Rect": maps["rect"][0]}
            shown["Pooling"] = np.abs(maps["pooling"][0])
            for (title, values), one in zip(shown.items(), axes, strict=True):
                picture(one, values, f"{mark}: {title}", cmap="gray" if title == "image" else "viridis")
        axes = right.subplots()
        shares = shares[shares["dataset"] != BLANK]
        part = shares[~shares["method"].str.startswith(("accuracy", "even"))]
        sns.barplot(part, x="dataset", y="value", hue="method", palette=colours, ax=axes)
        for container in axes.containers:
            axes.bar_label(container, fmt="%.2f", size=6.5, padding=1)
        even = shares[shares["method"] == "even"]["value"]
        for place, value in enumerate(even):
            axes.hlines(value, place - 0.42, place + 0.42, color="0.2", linestyle=":", linewidth=1.2)
        axes.set(xlabel="watermark (dotted: an even map)", ylabel="Attr%", ylim=(0, 1.05))
        sns.move_legend(axes, "lower center", bbox_to_anchor=(0.5, 1), ncols=3, title=None, frameon=False, fontsize=7.5)
        panels = below.subplots(1, curves["dataset"].nunique(), sharey=True)
        for (dataset, one), axes in zip(curves.groupby("dataset", sort=False), panels, strict=True):
            sns.lineplot(one, x="removed", y="value", hue="method", marker="o", palette=colours, ax=axes)
            axes.set_title(f"ROAD on {dataset}", size=9.5, loc="left")
            axes.set(xlabel="share of pixels imputed (MoRF)", ylabel="accuracy: lower is better")
            axes.set_ylim(0, 1.03)
            axes.legend(frameon=False, fontsize=7.5)
    return figure


def run(images):
    """Run all studies and return the tidy table and both figures."""
    began = time.monotonic()
    plain = read(digits(seed=SEED))
    original = trained(plain)
    table, samples = retraining(plain, original)
    print(table.to_string(), f"\n{time.monotonic() - began:.0f} s", flush=True)
    shares, kept = watermarks(images)
    print(shares.to_string(), f"\n{time.monotonic() - began:.0f} s", flush=True)
    chosen, labels = (part[:images] for part in plain["evaluation"])
    cases = {"digits with a number": kept["number"], BLANK: kept.pop(BLANK)}
    cases["plain digits"] = original, chosen, labels, explain(original, chosen, labels)
    curves = road(cases)
    print(curves.pivot_table(index=["dataset", "method"], columns="removed", values="value").round(3).to_string())
    print(curves.groupby(["dataset", "method"])["value"].mean().round(3).to_string())
    print(f"{time.monotonic() - began:.0f} s, {time.process_time():.0f} s of the processor", flush=True)
    figures = draw_retraining(table, samples), draw_watermarks(shares, curves, kept)
    return pd.concat([table, shares, curves], ignore_index=True), *figures


if __name__ == "__main__":
    torch.set_num_threads(1)
    options = parser(__doc__).parse_args()
    EPOCHS = 1 if options.small else EPOCHS
    result, *pictures = run(4 if options.small else 100)
    out = options.out or Path("falsification")
    out.mkdir(parents=True, exist_ok=True)
    result.to_csv(out / "falsification.csv", index=False, float_format="%.6f")
    for figure, name in zip(pictures, ("retraining.png", "watermarks.png"), strict=True):
        save(figure, str(out / name))
