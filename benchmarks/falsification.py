"""Three studies that falsify ways of judging attribution, on real digits with small networks; docs/falsification.md.

Retraining on images whose removed pixels reveal the class, two datasets in which only watermarks reveal the class, and
maps that are crafted from knowledge of the watermarks; Li et al. 2024 (soundness and completeness), section 3, figures
1 to 3, and appendices C and D.1, figures 10 and 12.

    python benchmarks/falsification.py --out docs/data/falsification && python docs/pages.py
    python benchmarks/falsification.py --photographs CIFAR10 --out docs/data/falsification && python docs/pages.py

The second command is appendix C with black pixels, on photographs only: on digits black is the background, so that it
removes nothing there, which is measured too. CIFAR10 is a folder with train/<class>/ and test/<class>/.

Everything is repeated for each seed, which determines the split, the labels, the watermarks and the training. Each kind
of images of each seed is a cell, which is stored in OUT/cells as soon as it is finished: after an interruption the same
command continues with the missing cells. The folder is removed when the table is complete.
"""

import shutil
import time
from pathlib import Path

import numpy as np
import pandas as pd
import seaborn as sns
import torch
from _shared import make_parser
from matplotlib.figure import Figure
from scipy.stats import ttest_1samp

import heatproof
from heatproof.core.batch import Batch
from heatproof.core.input_facts import InputFacts
from heatproof.core.normalise import normalise
from heatproof.core.perturb.class_masks import class_masks
from heatproof.core.specs import Schedule
from heatproof.datasets.digits import digits
from heatproof.datasets.image_folder import image_folder
from heatproof.datasets.watermarked import BOX, STRIPES, watermarked
from heatproof.explainers.registry import EXPLAINERS
from heatproof.metrics.known_regions import attribution_share, pooled_maps, rect_maps
from heatproof.models.registry import ARCHITECTURES
from heatproof.models.resnet import FACTS
from heatproof.report.results import save
from heatproof.store.writing import write_table
from heatproof.training.loop import Examples, fit, validate

SEEDS, EPOCHS = range(6), 6
FACTS_OF_DIGITS = InputFacts(mean=(0.3054,) * 3, std=(0.3768,) * 3)
SPLITS = ("train", "validation", "evaluation")
# Photographs: images of train, validation and test, trainings, and epochs. A training takes minutes on one core.
PHOTOGRAPHS, PHOTOGRAPH_SEEDS, PHOTOGRAPH_EPOCHS = (5000, 1000, 2000), range(3), 12
# Those of ImageNet, which published networks for these photographs use.
FACTS_OF_PHOTOGRAPHS = InputFacts(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
# Pixels per side: 9 of 1,024 pixels where 70 % are removed, and 49, about 5 %, where nothing else is removed.
BLOCK, EDGE = 3, 7
INTACT, MIDDLE, BOTH, ONLY = "intact", "middle removed", "middle and square removed", "square removed"
TITLES = {INTACT: INTACT, MIDDLE: "middle\nremoved", BOTH: "middle and\nsquare removed", ONLY: "square\nremoved"}
PLAIN, BLANK = "plain digits", "number on a blank canvas"
# Kind of images to the options of `watermarked`; plain digits have no watermark.
MARKED = {
    "digits with a number": {"mark": "number", "canvas": "digits"},
    BLANK: {"mark": "number", "canvas": "blank"},
    "digits with bands": {"mark": "stripes", "canvas": "digits"},
}
METHODS = {"grad_cam": {}, "integrated_gradients": {"steps": 20}, "deep_lift": {}}
FRACTIONS = (0.02, 0.05, *(tenth / 10 for tenth in range(1, 10)))


def read(data):
    """Return split to (images, labels)."""
    return {name: (data.images(name, 0, len(data.splits[name].labels)), data.splits[name].labels) for name in SPLITS}


def examples(images, labels, facts=FACTS_OF_DIGITS):
    return Examples(normalise(images, facts), torch.from_numpy(labels))


def trained(splits, seed, epochs=None):
    """Return a ResNet-20 trained on the images of `train`."""
    schedule = Schedule(epochs or EPOCHS, 64, "sgd", 0.1, 0.9, 5e-4, "cosine", 0.1, 4, 0.0, 0)
    return fitted({name: examples(*splits[name]) for name in ("train", "validation")}, schedule, seed)


def fitted(parts, schedule, seed):
    torch.manual_seed(seed)
    network = ARCHITECTURES["cifar_resnet20"].build(num_classes=10, width=8)
    state, *_ = fit(network, parts["train"], parts["validation"], schedule, seed)
    network.load_state_dict(state)
    return network.eval().requires_grad_(False)


def accuracy(network, images, labels):
    return validate(network, examples(images, labels), 64)[1]


def removed(splits, value=None, **how):
    """Return the splits with pixels replaced by a value, or by the mean of the training images, as in ROAR."""
    value = splits["train"][0].mean() if value is None else value
    return {
        name: (
            np.where(class_masks(labels, images.shape[-1], **how)[:, None], value, images).astype(np.float32),
            labels,
        )
        for name, (images, labels) in splits.items()
    }


def was_black(splits, **how):
    """Return the share of the removed pixels of the test images whose brightness was below a tenth."""
    images, labels = splits["evaluation"]
    return float((images.max(axis=1) < 0.1)[class_masks(labels, images.shape[-1], **how)].mean())


def black_pixels(folder, seed, images, epochs):
    """Return the accuracies of figure 10: 5 % of each photograph are black, at a place that depends on the class."""
    limits = {"train_images": images[0], "validation_images": images[1]}
    data = image_folder(seed=seed, root=str(folder), size=32, **limits)
    counts = dict(zip(SPLITS, images, strict=True))
    splits = {name: (data.images(name, 0, n), data.splits[name].labels[:n]) for name, n in counts.items()}
    edge = {"share": EDGE**2 / 32**2, "block": EDGE}
    sets = {INTACT: splits, ONLY: removed(splits, value=0.0, **edge)}
    parts = {
        training_set: {name: examples(*part, FACTS_OF_PHOTOGRAPHS) for name, part in trained.items()}
        for training_set, trained in sets.items()
    }
    # As in appendix C, with a smaller network and dataset and a shorter training: Adam, and no augmentation.
    schedule = Schedule(epochs, 128, "adam", 0.001, 0.0, 1e-4, "cosine", 0.1, 4, 0.0, 0)
    networks = {training_set: fitted(parts[training_set], schedule, seed) for training_set in sets}
    rows = [
        (
            "retrained" if training_set == ONLY else "original",
            training_set,
            tested,
            validate(network, parts[tested]["evaluation"], 64)[1],
        )
        for training_set, network in networks.items()
        for tested in sets
    ]
    table = pd.DataFrame(rows, columns=["network", "trained_on", "tested_on", "value"]).assign(study="photographs")
    shares = {"photographs": was_black(splits, **edge), "digits": was_black(read(digits(seed=seed)), **edge)}
    dark_shares = pd.DataFrame({"tested_on": list(shares), "value": list(shares.values())}).assign(study="black before")
    return pd.concat([table, dark_shares], ignore_index=True).assign(seed=seed)


def photographs(folder, out, small):
    """Store the accuracies on photographs, and draw them; no photograph is stored."""
    sizes, seeds, epochs = PHOTOGRAPHS, PHOTOGRAPH_SEEDS, PHOTOGRAPH_EPOCHS
    if small:
        sizes, seeds, epochs = (20, 10, 10), range(1), 1
    parts = []
    for seed in seeds:
        began = time.monotonic()
        parts.append(black_pixels(folder, seed, sizes, epochs))
        print(f"photographs, seed {seed}: {time.monotonic() - began:.0f} s", flush=True)
    table = pd.concat(parts, ignore_index=True)
    table.to_csv(out / "photographs.csv", index=False, float_format="%.6f")
    print(table.to_string(index=False, na_rep="", float_format="{:.3f}".format))
    displayed = table[table["study"] == "photographs"]
    with sns.axes_style("whitegrid"):
        figure = Figure(figsize=(5.2, 3.4), layout="constrained", facecolor="white")
        axes = figure.subplots()
        how = {"errorbar": over_trainings, "palette": "colorblind", "err_kws": {"color": "0.2", "linewidth": 1.2}}
        sns.barplot(displayed, x="tested_on", y="value", hue="network", ax=axes, **how)
        axes.set(xlabel="tested on", ylabel="test accuracy", ylim=(0, 1.03))
        axes.set_xticks(axes.get_xticks(), [INTACT, "5 % black at a place of the class"])
        axes.legend(title=None, frameon=False, fontsize=8.5, loc="upper left")
    save(figure, str(out / "photographs.png"))


def retraining(plain, original, seed):
    """Return the accuracies of figures 1 and 10, and the first images of each set."""
    sets = {
        INTACT: plain,
        MIDDLE: removed(plain, share=0.7),
        BOTH: removed(plain, share=0.7, block=BLOCK),
        ONLY: removed(plain, share=EDGE**2 / 32**2, block=EDGE),
    }
    rows = []
    for name, splits in sets.items():
        network = original if name == INTACT else trained(splits, seed)
        for tested in dict.fromkeys((name, INTACT)):
            rows.append(("retrained" if name != INTACT else "original", name, tested, network))
    rows += [("original", INTACT, name, original) for name in (MIDDLE, BOTH, ONLY)]
    accuracies = [(*names, accuracy(network, *sets[names[-1]]["evaluation"])) for *names, network in rows]
    table = pd.DataFrame(accuracies, columns=["network", "trained_on", "tested_on", "value"])
    return table.assign(study="retraining"), {name: splits["evaluation"][0][:3, 0] for name, splits in sets.items()}


def explain(network, images, labels, seed):
    """Return method to maps (N, H, W), including Rect and Pooling."""
    data = examples(images, labels)
    maps = {}
    for name, options in METHODS.items():
        ids = tuple(map(str, range(len(images))))
        context = Batch(network, network, FACTS, data.images, data.labels, ids, seed)
        entry = EXPLAINERS[name]
        maps[name] = entry.function(context, **{**entry.options, **options})[name].detach().numpy()
    base = maps["integrated_gradients"]
    return {**maps, "rect": rect_maps(base, BOX), "pooling": pooled_maps(base, STRIPES)}


def road(dataset, network, images, labels, maps, seed):
    """Return the accuracy over the share of pixels that ROAD imputes, most relevant first (figures 3 and 12)."""
    data = examples(images, labels)
    rows = []
    for method in (*METHODS, "rect"):
        scored = heatproof.evaluate(
            "road_morf", network, data.images, data.labels, maps[method], seed=seed, fractions=FRACTIONS
        )
        curve = scored["road"].mean("image").to_numpy()
        rows += [
            (dataset, method, share, value) for share, value in zip(FRACTIONS, curve[-len(FRACTIONS) :], strict=True)
        ]
    return pd.DataFrame(rows, columns=["dataset", "method", "removed", "value"]).assign(study="road")


def plain_digits(seed, images):
    """Return the table of the retraining and of ROAD on plain digits, and images for the figure."""
    plain = read(digits(seed=seed))
    original = trained(plain, seed)
    table, displayed = retraining(plain, original, seed)
    chosen, labels = (part[:images] for part in plain["evaluation"])
    maps = explain(original, chosen, labels, seed)
    return pd.concat([table, road(PLAIN, original, chosen, labels, maps, seed)]), displayed


def marked_digits(name, seed, images):
    """Return Attr% of every method on one kind of watermark (figure 2), ROAD on it, and maps for the figure."""
    data = watermarked(seed=seed, **MARKED[name])
    splits = read(data)
    network = trained(splits, seed, EPOCHS * (2 if MARKED[name]["mark"] == "number" else 1))
    right = accuracy(network, *splits["evaluation"])
    without = accuracy(network, data.plain("evaluation", 0, None), splits["evaluation"][1])
    chosen, labels = (part[:images] for part in splits["evaluation"])
    maps = explain(network, chosen, labels, seed)
    regions = data.part_masks("evaluation", 0, images).any(axis=1)
    values_of_method = {"accuracy": right, "accuracy without the mark": without}
    for method, values in {**maps, "even": np.ones_like(maps["rect"])}.items():
        values_of_method[method] = float(np.nanmean(attribution_share(values, regions)))
    table = pd.DataFrame({"method": list(values_of_method), "value": list(values_of_method.values())}).assign(
        dataset=name, study="watermarks"
    )
    displayed = {"image": chosen[0, 0], "IG": np.abs(maps["integrated_gradients"][0]), "Rect": maps["rect"][0]}
    displayed["Pooling"] = np.abs(maps["pooling"][0])
    return pd.concat([table, road(name, network, chosen, labels, maps, seed)]), displayed


def show_image(axes, values, title, **how):
    axes.imshow(values, interpolation="nearest", **how)
    axes.set_title(title, size=7.5, pad=3)
    axes.set_axis_off()


def over_trainings(values):
    """Return the ends of Student's 95 % interval of a mean over trainings, clipped to [0, 1]."""
    low, high = ttest_1samp(values, 0).confidence_interval(0.95) if np.ptp(values) > 0 else [np.mean(values)] * 2
    return max(low, 0), min(high, 1)


def draw_retraining(table, samples):
    """Return figure 1: an image of each set, and the accuracies."""
    with sns.axes_style("whitegrid"):
        figure = Figure(figsize=(9.5, 3.6), layout="constrained", facecolor="white")
        left, right = figure.subfigures(1, 2, width_ratios=[1, 1.25])
        for row, axes in zip((0, 1, 2), left.subplots(3, 4), strict=True):
            for (name, images), cell in zip(samples.items(), axes, strict=True):
                show_image(cell, images[row], "" if row else TITLES[name], cmap="gray", vmin=0, vmax=1)
        axes = right.subplots()
        displayed = table.assign(
            case=table["tested_on"].where(
                (table["trained_on"] == table["tested_on"]) | (table["network"] == "original"),
                table["tested_on"] + ", after " + table["trained_on"],
            )
        )
        bars = {"palette": "colorblind", "errorbar": over_trainings, "err_kws": {"color": "0.2", "linewidth": 1.2}}
        sns.barplot(displayed, y="case", x="value", hue="network", ax=axes, **bars)
        axes.set(xlabel="accuracy (lines: 95 % over trainings)", ylabel="tested on images", xlim=(0, 1.01))
        axes.tick_params(labelsize=7.5)
        sns.move_legend(axes, "lower center", bbox_to_anchor=(0.3, 1), ncols=2, title=None, frameon=False)
    return figure


def draw_watermarks(shares, curves, samples):
    """Return figures 2 and 3: images and maps of one training, Attr%, and ROAD on marked and on plain digits."""
    colours = dict(zip((*METHODS, "rect", "pooling"), sns.color_palette("colorblind"), strict=False))
    with sns.axes_style("whitegrid"):
        figure = Figure(figsize=(9.5, 6.4), layout="constrained", facecolor="white")
        above, below = figure.subfigures(2, 1, height_ratios=[1, 0.95])
        left, right = above.subfigures(1, 2, width_ratios=[1, 0.9])
        drawn = [name for name in MARKED if name != BLANK]
        for name, axes in zip(drawn, left.subplots(2, 4), strict=True):
            for (title, values), cell in zip(samples[name].items(), axes, strict=True):
                mark = name.removeprefix("digits with ").removeprefix("a ")
                show_image(cell, values, f"{mark}: {title}", cmap="gray" if title == "image" else "viridis")
        axes = right.subplots()
        shares = shares[shares["dataset"].isin(drawn)]
        part = shares[~shares["method"].str.startswith(("accuracy", "even"))]
        bars = {"palette": colours, "errorbar": over_trainings, "err_kws": {"color": "0.2", "linewidth": 1.2}}
        sns.barplot(part, x="dataset", y="value", hue="method", order=drawn, ax=axes, **bars)
        even = shares[shares["method"] == "even"].groupby("dataset")["value"].mean()
        for row, name in enumerate(drawn):
            axes.hlines(even[name], row - 0.42, row + 0.42, color="0.2", linestyle=":", linewidth=1.2)
        axes.set(xlabel="dotted: a constant map; lines: 95 % over trainings", ylabel="Attr%", ylim=(0, 1.05))
        sns.move_legend(axes, "lower center", bbox_to_anchor=(0.5, 1), ncols=3, title=None, frameon=False, fontsize=7.5)
        sets = ["digits with a number", BLANK, PLAIN]
        for dataset, axes in zip(sets, below.subplots(1, len(sets), sharey=True), strict=True):
            points = curves[curves["dataset"] == dataset]
            how = {"palette": colours, "errorbar": over_trainings}
            sns.lineplot(points, x="removed", y="value", hue="method", marker="o", ax=axes, **how)
            axes.set_title(f"ROAD on {dataset}", size=9.5, loc="left")
            axes.set(xlabel="share of pixels imputed (MoRF)", ylabel="accuracy: lower is better")
            axes.set_ylim(0, 1.03)
            axes.legend(frameon=False, fontsize=7.5)
    return figure


def cell(name, seed, images, folder):
    """Return the table of one kind of images of one seed, and its figure's data, from the store if it is complete."""
    path = folder / f"{name.replace(' ', '_')}_{seed}"
    if not path.with_suffix(".csv").exists():
        began = time.monotonic()
        table, displayed = plain_digits(seed, images) if name == PLAIN else marked_digits(name, seed, images)
        np.savez_compressed(path.with_suffix(".npz"), **displayed)
        # The table is written last and atomically: where it exists, the cell is complete.
        write_table(table.assign(seed=seed), str(path.with_suffix(".csv")))
        print(f"{name}, seed {seed}: {time.monotonic() - began:.0f} s", flush=True)
    with np.load(path.with_suffix(".npz")) as displayed:
        return pd.read_csv(path.with_suffix(".csv")), dict(displayed)


def run(images, seeds, folder):
    """Run all studies; return the tidy table, a row per seed and value, and both figures."""
    folder.mkdir(parents=True, exist_ok=True)
    results = {(name, seed): cell(name, seed, images, folder) for seed in seeds for name in (PLAIN, *MARKED)}
    table = pd.concat([table for table, _ in results.values()], ignore_index=True)
    samples = {name: results[name, seeds[0]][1] for name in (PLAIN, *MARKED)}
    studies = dict(list(table.groupby("study")))
    drawn = draw_retraining(studies["retraining"], samples[PLAIN])
    return table, drawn, draw_watermarks(studies["watermarks"], studies["road"], samples)


if __name__ == "__main__":
    torch.set_num_threads(1)
    arguments = make_parser(__doc__)
    arguments.add_argument("--photographs", type=Path, metavar="FOLDER", help="CIFAR-10 as JPEG files")
    options = arguments.parse_args()
    EPOCHS = 1 if options.small else EPOCHS
    out = options.out or Path("falsification")
    if options.photographs:
        out.mkdir(parents=True, exist_ok=True)
        photographs(options.photographs, out, options.small)
        raise SystemExit
    cells = out / "cells"
    result, *figures = run(4 if options.small else 100, SEEDS[:2] if options.small else SEEDS, cells)
    kinds = [name for name in result if name not in ("value", "seed")]
    means = result.groupby(kinds, sort=False, dropna=False)["value"].agg(["mean", "std"]).reset_index()
    print(means.to_string(index=False, na_rep="", float_format="{:.3f}".format))
    result.to_csv(out / "falsification.csv", index=False, float_format="%.6f")
    for figure, name in zip(figures, ("retraining.png", "watermarks.png"), strict=True):
        save(figure, str(out / name))
    shutil.rmtree(cells)
