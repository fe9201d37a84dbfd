"""Tables of docs/studies.md: effects of design over trainings."""

import numpy as np
import pandas as pd
from scipy.stats import false_discovery_control, ttest_1samp, ttest_ind

from blocks import DATA, interval, number, rows

FILES = {"studies": ["idsds_table.csv", "accuracy.csv"]}
# Study, the paper's statement, and the kinds of which the first should score lower.
STUDIES = [
    ("depth", "depth lowers scores", [("resnet56", "resnet20"), ("vgg19", "vgg11")]),
    ("width", "width lowers scores", [("resnet20_wide", "resnet20"), ("vgg11_wide", "vgg11")]),
    ("batch norm", "batch norm lowers scores", [("resnet20", "resnet20_fixup"), ("vgg11", "vgg11_no_norm")]),
    ("bias", "bias lowers scores", [("resnet20_fixup", "resnet20_nobias"), ("vgg11_no_norm", "vgg11_nobias")]),
    ("architecture", "scores are highest on VGG, lowest on ViT", [("resnet20", "vgg11"), ("vit", "resnet20")]),
]
CAMS = ["grad_cam", "xgrad_cam", "layer_cam"]
INTRINSIC = ["bagnet", "bcos"]
REFERENCES = ["random", "random_abs", "edges"]
LEVEL = 0.95
# Trainings below this accuracy have not learnt the task, and are left out; kinds with fewer trainings are not tested.
LEARNT, LEAST = 0.9, 5


def trainings(name: str) -> pd.DataFrame:
    """Return in-domain scores: one row for each kind, training and baseline, one column for each method."""
    table = pd.read_csv(DATA / "studies" / name / "idsds_table.csv")
    table = table[table["metric"].str.startswith("idsds")]
    weights = table["weights"].str.partition("_")
    table = table.assign(
        kind=table["model"].str.replace(r"_seed\d+$", "", regex=True), baseline=weights[2].replace("", "mean")
    )
    accuracy = pd.read_csv(DATA / "studies" / name / "accuracy.csv").set_index(["model", "weights"])["top1_clean"]
    places = pd.MultiIndex.from_frame(table[["model", "weights"]])
    table["top1"] = accuracy.groupby(level=[0, 1]).first().reindex(places).to_numpy()
    return table.pivot_table(index=["kind", "baseline", "model", "top1"], columns="method", values="score")


def learnt(wide: pd.DataFrame, kind: str, baseline: str) -> pd.DataFrame:
    """Return the trainings of a kind that learnt the task."""
    part = wide.loc[kind, baseline]
    return part[part.index.get_level_values("top1") >= LEARNT]


def effect(first: np.ndarray, second: np.ndarray) -> tuple[float, float, float, float]:
    """Return the difference of means over trainings, its interval and the p-value (Welch's t)."""
    if min(len(first), len(second)) < LEAST:
        return np.nan, np.nan, np.nan, np.nan
    test = ttest_ind(first, second, equal_var=False)
    low, high = test.confidence_interval(LEVEL)
    return first.mean() - second.mean(), low, high, test.pvalue


def verdict(low: float, high: float, q: float) -> str:
    """Return the verdict on an effect that the paper reports as negative."""
    if low <= 0 <= high or q > 1 - LEVEL:
        return "open"
    return "reproduced" if high < 0 else "contradicted"


def _effects_table(cells: list[list[str]], effects: list[tuple[float, float, float, float]], score: str) -> str:
    qs = iter(false_discovery_control([effect_and_p[3] for effect_and_p in effects if not np.isnan(effect_and_p[3])]))
    lines = []
    untested: list[str] = []
    for cell, effect_and_p in zip(cells, effects, strict=True):
        if np.isnan(effect_and_p[3]):
            untested.append(cell[2])
        else:
            q = next(qs)
            lines.append([*cell, interval(*effect_and_p[:3], digits=3), number(q, 3), verdict(*effect_and_p[1:3], q)])
    difference = f"difference of {score} (interval)"
    text = rows([["study", "the paper says", "compared", "baseline", difference, "q", "verdict"], *lines])
    if untested:
        names = ", ".join(dict.fromkeys(untested))
        reason = f"fewer than {LEAST} trainings of a kind learnt the task (see below)"
        text += f"\n\nNot compared, because {reason}: {names}."
    return text


def design(name: str) -> str:
    """Return the effect of each design on the mean score of the methods that both kinds have."""
    wide = trainings(name)
    cells, effects = [], []
    for study, statement, pairs in STUDIES:
        for first, second in pairs:
            for baseline in wide.index.unique("baseline"):
                learnt_first, other = (
                    learnt(wide, kind, baseline).drop(columns=INTRINSIC + REFERENCES) for kind in (first, second)
                )
                both = learnt_first.columns[learnt_first.notna().all() & other.notna().all()]
                cells.append([study, statement, f"`{first}` minus `{second}`", baseline])
                effects.append(effect(learnt_first[both].mean(axis=1).to_numpy(), other[both].mean(axis=1).to_numpy()))
    return _effects_table(cells, effects, "mean IDSDS")


def special(name: str) -> str:
    """Return the effects on some methods: CAMs on equal grids, and intrinsic maps of networks."""
    wide = trainings(name)
    cells, effects = [], []
    for baseline in wide.index.unique("baseline"):
        resnet, vgg = (learnt(wide, kind, baseline) for kind in ("resnet20", "vgg11"))
        cells.append(["CAMs", "scores of CAMs collapse on VGG (reproduction)", "`vgg11` minus `resnet20`", baseline])
        effects.append(effect(vgg[CAMS].mean(axis=1).to_numpy(), resnet[CAMS].mean(axis=1).to_numpy()))
        best = resnet.drop(columns=INTRINSIC + REFERENCES).max(axis=1).to_numpy()
        for kind in INTRINSIC:
            cells.append(
                [
                    "intrinsic",
                    "the intrinsic map scores above all methods",
                    f"best method on `resnet20` minus intrinsic map of `{kind}`",
                    baseline,
                ]
            )
            effects.append(effect(best, learnt(wide, kind, baseline)[kind].to_numpy()))
    return _effects_table(cells, effects, "IDSDS")


def kinds(name: str) -> str:
    """Return for every kind: accuracy, mean over methods, standard deviation over trainings, and the best method."""
    wide = trainings(name)
    head = [
        "kind",
        "baseline",
        "top-1 of trainings",
        "mean IDSDS of methods",
        "standard deviation over trainings",
        "best method and its IDSDS",
    ]
    cells = [[*head, "best reference map and its IDSDS"]]
    for (kind, baseline), part in wide.groupby(level=["kind", "baseline"], sort=False):
        methods = part.drop(columns=REFERENCES).dropna(axis=1)
        means = methods.mean(axis=1)
        top, floor = methods.mean().idxmax(), part[REFERENCES].mean()
        cells.append(
            [
                f"`{kind}`",
                baseline,
                ", ".join(number(accuracy) for accuracy in sorted(part.index.get_level_values("top1"), reverse=True)),
                number(means.mean(), 3),
                number(means.std(), 3),
                f"`{top}` {number(methods[top].mean())}",
                f"`{floor.idxmax()}` {number(floor.max())}",
            ]
        )
    return rows(cells)


def softmax(name: str) -> str:
    """Return how much lower maps of the probability score than maps of the logit, over the same trainings.

    RISE, which reads the probability in both, is left out.
    """
    logit, probability = trainings(name), trainings(f"{name}_probability")
    lines = [["kind", "maps of the probability minus maps of the logit", "trainings"]]
    for kind in probability.index.unique("kind"):
        left_out = [*INTRINSIC, *REFERENCES, "rise"]
        pair = (wide.loc[kind, "mean"].drop(columns=left_out, errors="ignore") for wide in (probability, logit))
        first, other = (part.dropna(axis=1) for part in pair)
        change = (first - other.loc[first.index, first.columns]).mean(axis=1).to_numpy()
        low, high = ttest_1samp(change, 0).confidence_interval(LEVEL)
        lines.append([f"`{kind}`", interval(change.mean(), low, high, digits=3), str(len(change))])
    return rows(lines)


BLOCKS = {function.__name__: function for function in (design, special, kinds, softmax)}
