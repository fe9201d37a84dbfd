"""Claims are tested as their rules say: on made-up scores whose truth is known."""

from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

from heatproof.claims.card import COLUMNS, claims_table, ordered_claims
from heatproof.claims.evidence import Case, Draws, Evidence, Method, Model, correlate_ranks
from heatproof.claims.registry import CLAIMS, PAPERS, Untestable
from heatproof.models.registry import ARCHITECTURES

IMAGES = 40
NAMES = {
    "integrated_gradients": ("integrated_gradients", "raw"),
    "integrated_gradients_abs": ("integrated_gradients", "abs"),
    "integrated_gradients_uniform": ("integrated_gradients_uniform", "raw"),
    "integrated_gradients_uniform_abs": ("integrated_gradients_uniform", "abs"),
    "grad_cam": ("grad_cam", "raw"),
    "saliency": ("saliency", "raw"),
    "bagnet": ("bagnet", "raw"),
    "random": ("random", "raw"),
}
METHODS = [Method(name, kind, kind, transform, kind != "random") for name, (kind, transform) in NAMES.items()]


def model(name, architecture, options):
    return Model(name, **asdict(ARCHITECTURES[architecture].design_for(options)))


MODELS = {
    "r20": model("r20", "cifar_resnet20", {"width": 8}),
    "r56": model("r56", "cifar_resnet56", {"width": 8}),
    "wide": model("wide", "cifar_resnet20", {"width": 16}),
    "v11": model("v11", "cifar_vgg11_bn", {"width": 8}),
    "plain": model("plain", "cifar_vgg11", {"width": 8}),
    "bag": model("bag", "cifar_bagnet", {"width": 8}),
}


def evidence(mean, metric="idsds", kind="idsds", models=tuple(MODELS), weights=("finetuned",), noise=0.05, **more):
    """Return evidence in which a method's score on a model is `mean(model, method, weights)` and noise."""
    cases = [Case("toy", model, w, metric, kind, {}, True) for model in models for w in weights]
    rows = []
    for place, case in enumerate(cases):
        generator = np.random.default_rng(place)
        for method in METHODS:
            level = mean(case.model, method.name, case.weights)
            for image in range(IMAGES if level is not None else 0):
                score = level + noise * generator.standard_normal()
                where = {"dataset": "toy", "model": case.model, "weights": case.weights, "metric": metric}
                rows.append({**where, "method": method.name, "image": f"i{image}", "score": score})
    return Evidence(pd.DataFrame(rows), cases, METHODS, MODELS, draws=Draws(repetitions=200), **more)


def verdict(name, made):
    return claims_table(made).set_index("claim").loc[name]


def flat(value):
    return lambda model, method, weights: value


def test_there_are_many_and_each_says_what_it_is():
    assert len(CLAIMS) >= 30
    for entry in CLAIMS.values():
        assert entry.paper in PAPERS
        assert entry.place
        assert entry.sentence.endswith(".")
        assert entry.quantity
    assert {entry.paper for entry in CLAIMS.values()} == set(PAPERS)


def test_the_table_has_a_row_for_each():
    table = claims_table(evidence(flat(0.5)))
    assert list(table.columns) == COLUMNS
    assert table["claim"].tolist() == [claim.name for claim in ordered_claims()]
    assert set(table["verdict"]) <= {"holds", "does not hold", "cannot be tested here"}
    untested = table[table["verdict"] == "cannot be tested here"]
    assert untested["reason"].str.startswith("because ").all()
    assert untested[["value", "ci_low", "ci_high"]].isna().all(axis=None)


@pytest.mark.parametrize(
    ("gap", "expected", "reason"), [(0.3, "holds", ""), (-0.3, "does not hold", "other way round")]
)
def test_raw_against_absolute(gap, expected, reason):
    row = verdict("raw_beats_absolute_ig", evidence(lambda _, name, w: 0.4 - (gap if name.endswith("_abs") else 0)))
    assert row["verdict"] == expected
    assert reason in row["reason"]
    assert row["value"] == pytest.approx(gap, abs=0.02)
    assert row["ci_low"] < row["value"] < row["ci_high"]


def test_no_difference_does_not_hold_and_says_that_it_is_open():
    row = verdict("raw_beats_absolute_ig", evidence(flat(0.4), noise=0.3))
    assert (row["verdict"], row["reason"]) == ("does not hold", "the interval includes 0")


@pytest.mark.parametrize(
    ("claim", "lower"),
    [
        ("depth_lowers_resnets", "r56"),
        ("width_lowers", "wide"),
        ("batch_norm_lowers", "v11"),
        ("vgg_above_resnet", "r"),
    ],
)
def test_designs_are_compared_where_nothing_else_differs(claim, lower):
    def mean(model, method, weights):
        return 0.2 if model.startswith(lower) or (lower == "r" and model == "wide") else 0.5

    assert verdict(claim, evidence(mean))["verdict"] == "holds"
    reverse = evidence(lambda model, method, weights: 0.7 - mean(model, method, weights))
    assert verdict(claim, reverse)["verdict"] == "does not hold"


def test_a_model_without_its_like_is_not_compared():
    row = verdict("depth_lowers_resnets", evidence(flat(0.4), models=("r20", "v11")))
    assert row["verdict"] == "cannot be tested here"
    assert row["reason"] == "because no two models of the config differ in depth alone"


def test_bagnet_is_compared_with_the_best_of_other_networks():
    def mean(model, method, weights):
        if method == "bagnet":
            return 0.9 if model == "bag" else None
        return 0.95 if model == "bag" else 0.6

    row = verdict("bagnet_beats_post_hoc_methods", evidence(mean))
    assert row["verdict"] == "holds"
    assert row["value"] == pytest.approx(0.3, abs=0.05)


def test_a_network_of_ones_own_with_the_map_is_no_rival_of_itself(monkeypatch):
    monkeypatch.setitem(MODELS, "mine", Model("mine", "mine:bag", None, 1.0, True, True))

    def mean(model, method, weights):
        if method == "bagnet":
            return None if model == "r20" else 0.9
        return 0.6 if model == "r20" else 0.95

    row = verdict("bagnet_beats_post_hoc_methods", evidence(mean, models=("r20", "bag", "mine")))
    assert row["value"] == pytest.approx(0.3, abs=0.05)
    assert row["basis"] == "networks: 2 against 1"


def test_agreement_is_spearman_between_mean_scores():
    order = {name: place / 10 for place, name in enumerate(NAMES)}
    same = evidence(lambda model, method, weights: order[method], noise=0.001)
    row = verdict("ranks_agree_between_models", same)
    assert (row["verdict"], row["value"]) == ("holds", 1)
    turned = evidence(lambda model, method, weights: order[method] * (-1 if model[0] == "r" else 1), noise=0.001)
    assert verdict("ranks_agree_between_models", turned)["verdict"] == "does not hold"


def kept(mean, *names):
    """Return evidence on finetunings and on epochs that they kept, `f_epoch2` of `f`."""
    rows, cases = [], []
    for metric in ("deletion_morf", "deletion_lerf"):
        for name in names:
            parent = name.partition("_epoch")[0]
            cases.append(Case("toy", "r20", name, metric, metric, {}, True, kept_by=parent if parent != name else ""))
            where = {"dataset": "toy", "model": "r20", "weights": name, "metric": metric}
            rows += [{**where, "method": m, "image": i, "score": mean(name, m)} for m in NAMES for i in ("a", "b")]
    return Evidence(pd.DataFrame(rows), cases, METHODS, MODELS, draws=Draws(repetitions=20))


def test_checkpoints_are_epochs_of_one_finetuning():
    """Another finetuning, and the weights before any, rank the other way round; they are no checkpoints of it."""
    order = {name: place / 10 for place, name in enumerate(NAMES)}

    def mean(weights, method):
        return order[method] * (1 if weights.startswith("a_epoch") else -1)

    made = kept(mean, "pretrained", "a", "a_epoch2", "a_epoch4", "b_epoch2")
    row = verdict("ranks_agree_between_checkpoints", made)
    assert (row["verdict"], row["value"], row["basis"]) == ("holds", 1, "pairs of test cases: 2")
    for names, reason in ((("pretrained", "a"), "no finetuning keeps epochs"), (("a", "a_epoch2"), "keeps one epoch")):
        row = verdict("ranks_agree_between_checkpoints", kept(mean, *names))
        assert row["verdict"] == "cannot be tested here"
        assert reason in row["reason"]


def test_other_claims_are_tested_on_whole_trainings():
    """Two epochs of one finetuning are not two finetunings with other seeds."""
    where = {"dataset": "toy", "model": "r20", "grid": 4, "baseline": "zeros", "in_domain": True}
    accuracy = pd.DataFrame([{**where, "weights": w, "top1_clean": 1.0} for w in ("a", "a_epoch2")])
    accuracy["top1_worst_patch"] = 1.0
    cases = [Case("toy", "r20", w, "idsds", "idsds", {}, True, kept_by=k) for w, k in (("a", ""), ("a_epoch2", "a"))]
    scores = pd.DataFrame(columns=["dataset", "model", "weights", "metric", "method", "image", "score"])
    made = Evidence(scores, cases, METHODS, MODELS, draws=Draws(repetitions=3), accuracy=accuracy)
    assert made.find("idsds") == [0]
    assert made.find("idsds", kept=True) == [1]
    assert made.accuracy["weights"].tolist() == ["a"]
    assert "one finetuning a model" in verdict("ranks_agree_between_seeds", made)["reason"]


def test_a_metric_where_lower_is_better_is_turned():
    made = evidence(flat(0.5))
    cases = [Case(**{**vars(case), "higher_is_better": False}) for case in made.cases]
    rows = [
        {
            "dataset": "toy",
            "model": c.model,
            "weights": c.weights,
            "metric": c.metric,
            "method": "saliency",
            "image": "a",
        }
        for c in cases
    ]
    turned = Evidence(pd.DataFrame(rows).assign(score=0.5), cases, METHODS, MODELS, draws=Draws(repetitions=3))
    np.testing.assert_allclose(turned.means[:, :, 5], -0.5)


def test_offsets():
    changed = {"rise_insertion": np.zeros((3, IMAGES)), "mas_insertion": np.full((3, IMAGES), -0.1)}
    made = evidence(flat(0.5), offsets=changed)
    assert verdict("rise_ignores_an_offset", made)["verdict"] == "holds"
    assert verdict("mas_notices_an_offset", made)["verdict"] == "holds"
    still = evidence(flat(0.5), offsets={**changed, "mas_insertion": np.zeros((3, IMAGES))})
    assert verdict("mas_notices_an_offset", still)["verdict"] == "does not hold"


def test_consistency_is_the_mean_correlation_between_images():
    made = evidence(lambda model, method, weights: list(NAMES).index(method) / 20, models=("r20",), noise=0.2)
    chosen = made.values[0][made.explaining()]
    pairs = [(a, b) for a in range(IMAGES) for b in range(a)]
    expected = np.mean([spearmanr(chosen[:, a], chosen[:, b]).statistic for a, b in pairs])
    found = made.consistency(0)
    assert found[0] == pytest.approx(expected)
    assert np.quantile(found[1:], 0.005) < expected < np.quantile(found[1:], 0.995)


def test_ranks_are_correlated_as_by_scipy():
    a, b = np.random.default_rng(0).integers(0, 5, (2, 20, 9)).astype(float)
    expected = [spearmanr(x, y).statistic for x, y in zip(a, b, strict=True)]
    np.testing.assert_allclose(correlate_ranks(a, b), expected)


def test_methods_are_found_by_what_they_are():
    made = evidence(flat(0.5))
    assert made.named("integrated_gradients", "abs") == 1
    with pytest.raises(Untestable, match="no lime"):
        made.named("lime")


@pytest.mark.parametrize(
    ("architecture", "options", "expected"),
    [
        ("cifar_resnet20", {"width": 4}, ("resnet", 20, 4, True, True)),
        ("cifar_resnet20_fixup", {}, ("resnet", 20, 16, False, True)),
        ("cifar_vgg11_nobias", {}, ("vgg", 11, 64, False, False)),
        ("torchvision_model", {"name": "wide_resnet50_2"}, ("resnet", 50, 2, True, True)),
        ("torchvision_model", {"name": "vgg16"}, ("vgg", 16, 1, False, True)),
        ("cifar_bcos_resnet20", {}, ("bcos", None, 16, False, False)),
        ("bcos_model", {"name": "resnet50"}, ("bcos", None, 1, False, False)),
        ("timm_model", {"name": "vit_base_patch16_224"}, ("vit", None, 1, False, True)),
    ],
)
def test_design_is_said_where_an_architecture_is_registered(architecture, options, expected):
    made = model("any", architecture, options)
    assert (made.family, made.depth, made.width, made.batch_norm, made.bias) == expected
