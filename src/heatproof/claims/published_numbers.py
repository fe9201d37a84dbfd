"""Evidence from the numbers that papers published: one score per method and network, without images."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pandas as pd

from heatproof.claims.evidence import Case, Evidence, Model
from heatproof.core.methods import Method, MethodSpec

FOLDER = Path(__file__).parent / "published"
FILES = ("reproduction_scores", "idsds_scores", "idsds_accuracy", "mas_reliability")
# Why the numbers of a paper are not available.
NOT_AVAILABLE = {
    "Meta-Rank": "our copy of the paper lacks the numbers of tables 3 and 4, and its other results are figures",
    "soundness": "the paper shows its benchmark of methods only in figures (8 and 9), without numbers",
}
# Name in the tables to explainer and map.
_EXPLAINERS = {
    "Gradient": ("saliency", ""),
    "IxG": ("input_x_gradient", ""),
    "IxG-SG": ("noise_input_x_gradient", "input_x_gradient_smoothgrad"),
    "IG": ("integrated_gradients", ""),
    "IG-U": ("integrated_gradients_uniform", ""),
    "IG-SG": ("noise_integrated_gradients", "integrated_gradients_smoothgrad"),
    "IG-SG-SQ": ("noise_integrated_gradients", "integrated_gradients_smoothgrad_sq"),
    "Grad-CAM": ("grad_cam", ""),
    "Grad-CAMpp": ("grad_cam_pp", ""),
    "Layer-CAM": ("layer_cam", ""),
    "SG-CAMpp": ("smooth_grad_cam_pp", ""),
    "XG-CAM": ("xgrad_cam", ""),
    "RISE": ("rise", ""),
    "RISE-U": ("rise_uniform", ""),
    "B-cos": ("bcos", ""),
    "BagNet": ("bagnet", ""),
    "Edge-Sobel": ("edges", ""),
    "Edge-Gradient": ("edge_detectors", "image_gradient"),
}
_DESIGNS = {
    "fixup_resnet50": ("resnet", 50, 1.0, False, True),
    "x_resnet50": ("resnet", 50, 1.0, False, False),
    "x_vgg16": ("vgg", 16, 1.0, False, False),
    "wide_resnet50_2": ("resnet", 50, 2.0, True, True),
    "vit_b_16": ("vit", None, 1.0, False, True),
    "bcos_resnet50": ("bcos", None, 1.0, False, False),
    "bagnet33": ("bagnet", None, 1.0, True, True),
}
_PIXELS = {"imagenet": 224, "cifar100": 32}
# Datasets on which a paper's claims are judged. The reproduction has ImageNet scores of the IDSDS paper's networks.
_DATASETS = {"IDSDS": ("imagenet",), "reproduction": ("imagenet", "cifar100")}


@cache
def published_evidence(paper: str) -> Evidence | None:
    """Return the published numbers on which the claims of a paper are judged; None if there are none."""
    if paper == "MAS":
        return _reliability()
    return _scores(_DATASETS[paper]) if paper in _DATASETS else None


def _table(name: str) -> pd.DataFrame:
    return pd.read_csv(FOLDER / f"{name}.csv", keep_default_na=False)


def method(name: str) -> Method:
    """Return the method of a name in the tables, such as ``IG-raw``."""
    plain, transform = name.removesuffix("-raw").removesuffix("-abs"), "abs" if name.endswith("-abs") else "raw"
    kind, map_name = _EXPLAINERS[plain]
    if plain.endswith("-SQ"):
        transform = "raw"  # squares have no sign
    maps = ((map_name or kind, not plain.endswith("-SQ")),)
    explainer = MethodSpec(kind, kind, maps=maps, uses_model=not plain.startswith("Edge"))
    return Method(name, explainer, transform=transform)


def model(name: str) -> Model:
    """Return the design of a published network."""
    if name in _DESIGNS:
        return Model(name, *_DESIGNS[name], name)
    family, depth = ("resnet", name.removeprefix("resnet")) if "resnet" in name else ("vgg", name.removeprefix("vgg"))
    return Model(name, family, int(depth.removesuffix("_bn")), 1.0, family == "resnet" or "bn" in name, True, name)


def _scores(datasets: tuple[str, ...]) -> Evidence:
    released, printed, accuracy = (_table(name) for name in FILES[:3])
    released = released[released["dataset"].isin(datasets)].assign(weights="finetuned")
    released["metric"] = "idsds" + released["output"].map({"logit": "", "probability": "_probability"})
    weights = printed["metric"].map({"idsds": "finetuned", "ids": "pretrained", "sds": "pretrained"})
    printed = printed.assign(dataset="imagenet", output="logit", weights=weights)
    scores = pd.concat([released, printed], ignore_index=True).assign(image="mean")
    case_columns = ["dataset", "model", "weights", "metric"]
    # Printed scores have fewer digits, so that they are used only where no score was released.
    scores = scores.drop_duplicates([*case_columns, "method"], keep="first")
    without = [("imagenet", name, "finetuned", "idsds") for name in accuracy["model"]]
    names_of_cases = dict.fromkeys([*scores[case_columns].itertuples(index=False, name=None), *without])
    cases = [_case(*names) for names in names_of_cases]
    models = {name: model(name) for name in dict.fromkeys(names[1] for names in names_of_cases)}
    return Evidence(scores, cases, [method(name) for name in scores["method"].unique()], models, _accuracy(accuracy))


def _case(dataset: str, model: str, weights: str, metric: str) -> Case:
    kind, _, output = metric.partition("_")
    options = {"update": False} if kind == "ids" else {}
    case = Case(dataset, model, weights, metric, kind, options, True, pixels=_PIXELS[dataset])
    return case if kind == "ids" else replace(case, grid=4, baseline="zeros", output=output or "logit")


def _accuracy(table: pd.DataFrame) -> pd.DataFrame:
    where = {"dataset": "imagenet", "grid": 4, "baseline": "zeros"}
    return pd.concat(
        pd.DataFrame(
            {
                "model": table["model"],
                "weights": weights,
                "in_domain": weights == "finetuned",
                "top1_clean": table[f"intact_{when}"] / 100,
                "top1_worst_patch": table[f"worst_patch_{when}"] / 100,
                **where,
            }
        )
        for weights, when in (("pretrained", "before"), ("finetuned", "after"))
    )


def _reliability() -> Evidence:
    table = _table("mas_reliability")
    names = table["metric"] + table["baseline"].map(lambda baseline: f"_{baseline}" if baseline else "")
    cases: dict[tuple[str, str, str], Case] = {}
    for row, name in zip(table.to_dict("records"), names, strict=True):
        options = {"baseline": row["baseline"]} if row["baseline"] else {}
        key = (row["dataset"], row["model"], name)
        cases[key] = Case(row["dataset"], row["model"], "pretrained", name, row["metric"], options, True, pixels=224)
    order = list(cases)
    published_values: dict[tuple[int, ...], float] = {}
    for row, name in zip(table.to_dict("records"), names, strict=True):
        where = row["dataset"], row["model"]
        index = order.index((*where, name))
        pair = (index,) if row["statistic"] == "IRR" else (order.index((*where, row["metric"])), index)
        published_values[pair] = row["value"]
    models = {name: Model(name, name, None, None, True, True, name) for name in ("r101", "vit16")}
    scores = pd.DataFrame(columns=["dataset", "model", "weights", "metric", "method", "image", "score"])
    return Evidence(scores, list(cases.values()), [], models, published_values=published_values)
