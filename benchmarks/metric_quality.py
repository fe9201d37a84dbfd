"""How good is each metric? A study on real digits with a small trained network; docs/metric_quality.md reads it.

Sensitivity to an offset and to noise, reliability over images, invariance to the baseline, and the distance between the
curves of maps with attribution introduced and removed; Walker et al. 2024 (MAS), section 5, and Li et al. 2024, 5.2.

    python benchmarks/metric_quality.py [TABLE.csv] [FIGURE.png] [IMAGES]
"""

import sys
import time

import numpy as np
import pandas as pd
import seaborn as sns
import torch
from matplotlib.figure import Figure

import heatproof
from heatproof.attribution.catalogue import EXPLAINERS
from heatproof.attribution.registry import Explained
from heatproof.data.digits import Digits
from heatproof.models.catalogue import ARCHITECTURES
from heatproof.models.network import normalise
from heatproof.models.resnet import FACTS
from heatproof.ranking.reliability import reliability_table
from heatproof.training.loop import Examples, Schedule, fit

SEED = 0
MEAN, STD = (0.3054,) * 3, (0.3768,) * 3
FACTS_OF_DIGITS = {"mean": MEAN, "std": STD, "size": None}
METHODS = {
    "saliency": {},
    "input_x_gradient": {},
    "integrated_gradients": {"steps": 16},
    "guided_backprop": {},
    "grad_cam": {},
    "occlusion": {},
    "random": {},
}
PICTURES = {"mean": MEAN, "std": STD}
STEPS = {"steps": 16}
# Without a share under 5 %, of which 32 × 32 pixels keep too few.
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
    "sic": PICTURES,
    "aic": PICTURES,
    "soundness": SOUND,
    "completeness": {},
    "sds": {},
    "sensitivity_n": {},
    "infidelity": {},
}
FILLED = ("sds", "deletion_morf", "deletion_lerf", *(name for name in METRICS if name.startswith(("rise", "mas"))))
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
    state, _ = fit(network, parts["train"], parts["validation"], schedule, SEED)
    network.load_state_dict(state)
    network.eval().requires_grad_(False)
    scored = parts["evaluation"]
    with torch.inference_mode():
        right = (network(scored.images).argmax(1) == scored.labels).float().mean()
    print(f"test accuracy {right:.4f} on {len(scored.labels)} images")
    return network, scored.images, scored.labels


def explain(network, images, labels):
    """Return method to magnitudes of its maps (N, H, W)."""
    found = {}
    for name, options in METHODS.items():
        explained = Explained(network, network, FACTS, images, labels, tuple(map(str, range(len(images)))), SEED)
        entry = EXPLAINERS[name]
        known = {key: value for key, value in options.items() if key in entry.options}
        made = entry.function(explained, **{**entry.options, **known})
        found[name] = made[name].detach().abs().numpy()
    return found


def long(table, study, keys, values):
    """Return a part of the CSV: study, metric, what was changed, quantity, value."""
    rows = table.melt(["metric", *keys], values, "quantity", "value")
    setting = rows[list(keys)].astype(str).agg(" · ".join, axis=1) if keys else ""
    return pd.DataFrame({"study": study, "metric": rows["metric"], "setting": setting}).assign(
        quantity=rows["quantity"], value=rows["value"]
    )


def run(images):
    """Run every study, and return the tidy table."""
    network, pictures, labels = trained()
    pictures, labels = pictures[:images], labels[:images]
    maps = explain(network, pictures, labels)
    given = (network, pictures, labels, maps)
    quality, parts = heatproof.quality, []
    moved = ["change", "worse", "share_of_spread", "curve_change", "spearman", "n_undefined"]
    began = time.monotonic()

    def tell(name):
        print(f"{name}: {time.monotonic() - began:.0f} s")

    parts.append(long(quality.offset_sensitivity(*given, METRICS), "offset", ["offset"], moved))
    tell("offset")
    parts.append(long(quality.noise_sensitivity(*given, METRICS), "noise", ["noise"], moved))
    tell("noise")
    scores = quality.image_scores(*given, METRICS)
    reliable = ["alpha", "alpha_published", "inter_method", "n_images", "n_undefined"]
    parts.append(long(reliability_table(scores), "reliability", [], reliable))
    tell("reliability")
    filled = {name: METRICS[name] for name in FILLED}
    consistent = ["consistency", "consistency_published", "spearman", "n_images", "n_undefined"]
    invariance = quality.baseline_invariance(*given, filled)
    parts.append(long(invariance, "baseline", ["baseline", "other"], consistent))
    tell("baseline")
    curved = {name: METRICS[name] for name in CURVED}
    few = {name: maps[name] for name in ("saliency", "integrated_gradients", "grad_cam")}
    for kind in ("hausdorff", "modified"):
        apart = quality.modification_distances(*given[:3], few, curved, kind=kind)
        parts.append(long(apart, f"{kind} distance", ["method", "scheme"], ["minimal"]))
    tell("distances")
    return pd.concat(parts, ignore_index=True)


def of(table, study, quantity):
    """Return the mean of a quantity over the settings of a study, by metric."""
    rows = table[(table["study"] == study) & (table["quantity"] == quantity)]
    return rows.groupby("metric")["value"].mean().reindex([name for name in METRICS if name in set(rows["metric"])])


def draw(table):
    """Return the figure: a panel a question."""
    with sns.axes_style("whitegrid"):
        figure = Figure(figsize=(13, 4.6), layout="constrained", facecolor="white")
        panels = figure.subplots(1, 4)
    colours = dict(zip(METRICS, sns.color_palette("husl", len(METRICS), desat=0.7), strict=True))

    def bars(axes, values, title, label):
        sns.barplot(x=values.to_numpy(), y=list(values.index), hue=list(values.index), palette=colours, ax=axes)
        axes.set_title(title, size=9.5, loc="left", weight="bold")
        axes.set_xlabel(label, size=8)
        axes.tick_params(labelsize=7.5)

    moved = pd.concat({name: of(table, name, "share_of_spread") for name in ("offset", "noise")}, axis=1)
    rows = moved.rename_axis("metric").reset_index().melt("metric", var_name="added", value_name="share")
    palette = dict(zip(("offset", "noise"), sns.color_palette("colorblind"), strict=False))
    sns.barplot(rows, x="share", y="metric", hue="added", palette=palette, ax=panels[0])
    panels[0].set_title("What a changed map does", size=9.5, loc="left", weight="bold")
    panels[0].set_xlabel("change of the score ÷ range of the methods' scores", size=8)
    panels[0].set_ylabel("")
    panels[0].tick_params(labelsize=7.5)
    panels[0].legend(frameon=False, fontsize=8)
    bars(panels[1], of(table, "reliability", "alpha"), "Do images agree?", "Krippendorff's α, higher is better")
    bars(
        panels[2],
        of(table, "baseline", "consistency"),
        "Do baselines agree?",
        "Spearman of rankings, mean over images and pairs of baselines",
    )
    bars(
        panels[3],
        of(table, "hausdorff distance", "minimal"),
        "Are Introduce and Remove told apart?",
        "minimal Hausdorff distance, mean over maps and schemes",
    )
    return figure


if __name__ == "__main__":
    target, picture, count = (sys.argv[1:] + ["metric_quality.csv", "metric_quality.png", "48"][len(sys.argv) - 1 :])[
        :3
    ]
    result = run(int(count))
    result.to_csv(target, index=False, float_format="%.6g")
    draw(result).savefig(picture, dpi=110, metadata={"Software": None})
