"""Quality of each metric, studied on real digits with a ResNet-20 that is trained here; docs/metric_quality.md.

Sensitivity to an offset and to noise, reliability over images, invariance to the baseline, and the distance between the
curves of maps with attribution introduced and removed; Walker et al. 2024 (MAS), section 5, and Li et al. 2024, 5.2,
figure 7 and table 1.

    python benchmarks/metric_quality.py --out docs/data/metric_quality && python docs/pages.py

With `--studies apart` only that study is run again, and replaces its rows in the stored table.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import pandas as pd
import seaborn as sns
import torch
from matplotlib.figure import Figure

import heatproof
from heatproof.core.batch import Batch
from heatproof.core.input_facts import InputFacts
from heatproof.core.normalise import normalise
from heatproof.core.specs import Schedule
from heatproof.datasets.digits import Digits
from heatproof.explainers.registry import EXPLAINERS
from heatproof.metrics.corruptions import SCHEMES, introduce_or_remove, scale_magnitudes
from heatproof.metrics.soundness import THRESHOLDS, soundness_at_levels
from heatproof.models.registry import ARCHITECTURES
from heatproof.models.resnet import FACTS
from heatproof.report.results import save
from heatproof.report.tables.reliability import draw_critical_difference
from heatproof.stats.reliability import reliability_table
from heatproof.training.loop import Examples, fit

SEED = 0
MEAN, STD = (0.3054,) * 3, (0.3768,) * 3
FACTS_OF_DIGITS = InputFacts(MEAN, STD)
METHODS = {
    "saliency": {},
    "input_x_gradient": {},
    "integrated_gradients": {"steps": 16},
    "guided_backprop": {},
    "grad_cam": {},
    "occlusion": {},
    "random": {},
}
# Li et al. 2024, section 5.2, with the one area of the authors' script for extremal perturbations.
MODIFIED = {
    "grad_cam": {},
    "integrated_gradients": {"steps": 16},
    "extremal_perturbation": {"areas": (0.3,), "steps": 200},
}
# Figure 7 has Grad-CAM's curves. With so many images, one image is no larger a step than soundness tolerates.
CURVES = {
    "completeness": {},
    "soundness": {"fractions": "paper"},
    "road_morf": {},
    "deletion_morf": {"output": "accuracy", "fractions": [tenth / 10 for tenth in range(1, 10)], "rule": "mean"},
}
CURVE_IMAGES = 100
AXES = {
    "completeness": ("threshold of the map", "loss of accuracy", "higher is better"),
    "soundness": ("accuracy", "soundness", "higher is better"),
    "road_morf": ("share removed", "accuracy under ROAD", "lower is better"),
    "deletion_morf": ("share removed", "accuracy under deletion", "lower is better"),
}
NORMALISATION = {"mean": MEAN, "std": STD}
STEPS = {"steps": 16}
SOUND = {"fractions": [round(share, 2) for share in np.arange(0.05, 0.99, 0.05)]}
METRICS = {
    "ids": STEPS,
    "deletion_morf": STEPS,
    "deletion_lerf": STEPS,
    "road_morf": {},
    "road_lerf": {},
    "rise_insertion": STEPS,
    "rise_deletion": STEPS,
    "rise_difference": STEPS,
    "mas_insertion": STEPS,
    "mas_deletion": STEPS,
    "mas_difference": STEPS,
    "sic": NORMALISATION,
    "aic": NORMALISATION,
    "soundness": SOUND,
    "completeness": {},
    "sds": {},
    "sensitivity_n": {},
    "infidelity": {},
}
FILLED = ("sds", "deletion_morf", "deletion_lerf", *(name for name in METRICS if name.startswith(("rise", "mas"))))
MAGNITUDES = {"mas_insertion", "mas_deletion", "mas_difference", "soundness", "completeness", "infidelity"}
MAGNITUDES |= {"sds", "sensitivity_n"}
MOVED = ["change", "worse", "share_of_spread", "curve_change", "spearman", "n_undefined"]
CURVED = ("completeness", "soundness", "deletion_morf", "road_morf", "rise_difference", "mas_difference", "sic", "aic")


def trained():
    """Return a ResNet-20 trained on digits, and normalised images of the evaluation split with their labels."""
    digits = Digits(SEED, 0.2, 0.2)
    parts = {}
    for name, split in digits.splits.items():
        images = digits.images(name, 0, len(split.labels))
        parts[name] = Examples(normalise(images, FACTS_OF_DIGITS), torch.from_numpy(split.labels))
    torch.manual_seed(SEED)
    network = ARCHITECTURES["cifar_resnet20"].build(num_classes=10, width=8)
    schedule = Schedule(6, 64, "sgd", 0.1, 0.9, 5e-4, "cosine", 0.1, 4, 0.0, 2)
    state, *_ = fit(network, parts["train"], parts["validation"], schedule, SEED)
    network.load_state_dict(state)
    network.eval().requires_grad_(False)
    scored = parts["evaluation"]
    with torch.inference_mode():
        right = (network(scored.images).argmax(1) == scored.labels).float().mean()
    print(f"test accuracy {right:.4f} on {len(scored.labels)} images")
    return network, scored.images, scored.labels


def explain(network, images, labels, methods=METHODS):
    """Return method to magnitudes of its maps (N, H, W)."""
    maps_of_method = {}
    for name, options in methods.items():
        context = Batch(network, network, FACTS, images, labels, tuple(map(str, range(len(images)))), SEED)
        entry = EXPLAINERS[name]
        accepted = {key: value for key, value in options.items() if key in entry.options}
        maps = entry.function(context, **{**entry.options, **accepted})
        maps_of_method[name] = maps[name].detach().abs().numpy()
    return maps_of_method


def long(table, study, keys, values):
    """Return a part of the CSV: study, metric, change, quantity, value."""
    rows = table.melt(["metric", *keys], values, "quantity", "value")
    setting = rows[list(keys)].astype(str).agg(" · ".join, axis=1) if keys else ""
    return pd.DataFrame({"study": study, "metric": rows["metric"], "setting": setting}).assign(
        quantity=rows["quantity"], value=rows["value"]
    )


def offset(*arguments):
    return long(heatproof.quality.offset_sensitivity(*arguments, METRICS), "offset", ["offset"], MOVED)


def noise(*arguments):
    return long(heatproof.quality.noise_sensitivity(*arguments, METRICS), "noise", ["noise"], MOVED)


def reliability(*arguments):
    columns = ["alpha", "alpha_published", "inter_method", "n_images", "n_undefined"]
    return long(reliability_table(heatproof.quality.image_scores(*arguments, METRICS)), "reliability", [], columns)


def baselines(*arguments):
    columns = ["consistency", "consistency_published", "spearman", "n_images", "n_undefined"]
    quality = heatproof.quality.baseline_invariance(*arguments, {name: METRICS[name] for name in FILLED})
    return long(quality, "baseline", ["baseline", "other"], columns)


def apart(network, samples, labels, maps):
    curved = {name: METRICS[name] for name in CURVED}
    distances = heatproof.quality.modification_distances(network, samples, labels, maps, curved)
    return long(distances, "distance", ["method", "scheme"], ["minimal"])


def modified_curves(images=CURVE_IMAGES):
    """Return the points of figure 7's curves: scheme, maps, metric, x and y."""
    network, samples, labels = trained()
    samples, labels = samples[:images], labels[:images]
    values = explain(network, samples, labels, {"grad_cam": {}})["grad_cam"]
    ids, rows = list(map(str, range(len(samples)))), []
    for scheme in SCHEMES:
        kinds = {name: introduce_or_remove(values, name, scheme, ids, SEED) for name in ("introduce", "remove")}
        for kind, maps in {"original": scale_magnitudes(values), **kinds}.items():
            for metric, options in CURVES.items():
                extra_options = {"rescale": False} if metric == "completeness" else {}
                result = heatproof.evaluate(metric, network, samples, labels, maps, **options, **extra_options)
                rows += [(scheme, kind, metric, x, y) for x, y in zip(*curve_of(metric, result), strict=True)]
    return pd.DataFrame(rows, columns=["scheme", "maps", "metric", "x", "y"])


def curve_of(metric, result):
    """Return x and y of the mean curve of a metric."""
    if metric == "soundness":
        levels = np.arange(0.1, 1, 0.02)
        sound, performance = result["soundness"].values, result["performance"].values
        return levels, np.nanmean(soundness_at_levels(performance, sound, levels), axis=0)
    (curve,) = (values for values in result.data_vars.values() if values.dims == ("image", "step"))
    x = THRESHOLDS[::-1] if metric == "completeness" else result["share"].values
    return x, np.nanmean(curve.values, axis=0)


def draw_curves(table):
    """Return figure 7: a row per scheme, a panel per metric, a line per original or changed maps."""
    with sns.axes_style("whitegrid"):
        figure = Figure(figsize=(11, 7.6), layout="constrained", facecolor="white")
        grid = figure.subplots(len(SCHEMES), len(CURVES), squeeze=False)
    colours = dict(zip(("original", "remove", "introduce"), sns.color_palette("colorblind"), strict=False))
    for scheme, line in zip(SCHEMES, grid, strict=True):
        for metric, axes in zip(CURVES, line, strict=True):
            label, value, direction = AXES[metric]
            for kind, colour in colours.items():
                part = table[(table["scheme"] == scheme) & (table["maps"] == kind) & (table["metric"] == metric)]
                axes.plot(part["x"], part["y"], color=colour, label=kind, linewidth=1.6)
            axes.set_title(f"{metric}: {direction}" if scheme == SCHEMES[0] else "", size=9, loc="left")
            axes.set_xlabel(label, size=8)
            axes.set_ylabel(f"{scheme}\n{value}" if metric == next(iter(CURVES)) else value, size=8)
            axes.tick_params(labelsize=7.5)
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
    return figure


STUDIES = (offset, reliability, baselines, apart, noise)


def run(images, studies=STUDIES):
    """Run the studies, and return the tidy table."""
    network, samples, labels = trained()
    samples, labels = samples[:images], labels[:images]
    maps = {methods: explain(network, samples, labels, globals()[methods]) for methods in ("METHODS", "MODIFIED")}
    parts = []
    for study in studies:
        began = time.monotonic()
        parts.append(study(network, samples, labels, maps["MODIFIED" if study is apart else "METHODS"]))
        print(f"{study.__name__}: {time.monotonic() - began:.0f} s", flush=True)
    return pd.concat(parts, ignore_index=True)


def of(table, study, quantity):
    """Return the mean of a quantity over the settings of a study, by metric."""
    rows = table[(table["study"] == study) & (table["quantity"] == quantity)]
    return rows.groupby("metric")["value"].mean().reindex([name for name in METRICS if name in set(rows["metric"])])


def draw(table):
    """Return the figure: a panel per question; metrics that depend on the size of a map's values are highlighted."""
    strong, plain, noise = sns.color_palette("colorblind")[0], "0.65", sns.color_palette("colorblind")[1]
    with sns.axes_style("whitegrid"):
        figure = Figure(figsize=(10, 9), layout="constrained", facecolor="white")
        panels = figure.subplots(2, 2, height_ratios=[1, 0.62]).ravel()

    def finish(axes, title, label):
        axes.set_title(title, size=10, loc="left", weight="bold")
        axes.set_xlabel(label, size=8.5)
        axes.set_ylabel("")
        axes.tick_params(labelsize=8)

    def bars(axes, values, title, label):
        colours = [strong if name in MAGNITUDES else plain for name in values.index]
        axes.barh(list(values.index), values.to_numpy(), color=colours, height=0.75)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        finish(axes, title, label)

    moved = pd.concat({name: of(table, name, "share_of_spread") for name in ("offset", "noise")}, axis=1)
    rows = moved.rename_axis("metric").reset_index().melt("metric", var_name="added", value_name="share")
    sns.barplot(rows, x="share", y="metric", hue="added", palette={"offset": strong, "noise": noise}, ax=panels[0])
    panels[0].legend(frameon=False, fontsize=8.5, title=None)
    finish(panels[0], "What does a changed map do?", "change of the score ÷ range of the methods' scores")
    bars(panels[1], of(table, "reliability", "alpha"), "Do images agree?", "Krippendorff's α over images")
    label = "Spearman of rankings, over images and baselines"
    bars(panels[2], of(table, "baseline", "consistency"), "Do baselines agree?", label)
    label = "least Hausdorff distance of curves, over maps and schemes"
    bars(panels[3], of(table, "distance", "minimal"), "Are Introduce and Remove told apart?", label)
    figure.suptitle("blue: metrics that read the size of attributions; grey: their order alone", size=8.5)
    return figure


def diagram(images=96):
    """Return the critical-difference diagram of three metrics, on more images than the studies."""
    network, samples, labels = trained()
    samples, labels = samples[:images], labels[:images]
    metrics = {name: METRICS[name] for name in ("mas_difference", "rise_difference", "sds")}
    maps = explain(network, samples, labels)
    return draw_critical_difference(heatproof.quality.image_scores(network, samples, labels, maps, metrics))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("metric_quality"), help="folder of table and figures")
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--studies", nargs="+", choices=[study.__name__ for study in STUDIES], help="those alone")
    parser.add_argument("--small", action="store_true", help="two images and two studies, to see that it runs")
    options = parser.parse_args()
    studies = [study for study in STUDIES if study.__name__ in (options.studies or [study.__name__])]
    result = run(2, (reliability, apart)) if options.small else run(options.images, studies)
    options.out.mkdir(parents=True, exist_ok=True)
    stored = options.out / "metric_quality.csv"
    if options.studies:
        earlier = pd.read_csv(stored)
        result = pd.concat([result, earlier[~earlier["study"].isin(result["study"])]], ignore_index=True)
        # In the order of a complete run.
        order = {name: number for number, name in enumerate(("offset", "reliability", "baseline", "distance", "noise"))}
        result = result.sort_values("study", key=lambda names: names.map(order), kind="stable")
    result.to_csv(stored, index=False, float_format="%.6g")
    if not options.small:
        draw(result).savefig(options.out / "metric_quality.png", dpi=110, metadata={"Software": None})
    if not options.studies:
        save(diagram(6 if options.small else 96), str(options.out / "critical_difference.png"))
    if apart in studies:
        curves = modified_curves(4 if options.small else CURVE_IMAGES)
        curves.to_csv(options.out / "modified_curves.csv", index=False, float_format="%.6g")
        draw_curves(curves).savefig(options.out / "modified_curves.png", dpi=110, metadata={"Software": None})
