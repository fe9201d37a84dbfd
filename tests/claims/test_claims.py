"""Evidence, intervals, p, q and verdicts of claims, on scores whose truth is known."""

from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pytest
from planted import IG, IGU, PLANTED, RESNET
from planting import METHODS, NETWORKS, plant, trainings
from scipy.stats import false_discovery_control, spearmanr, ttest_ind

from heatproof.claims.contrasts import contrast, family_pairs, pairs_differing_in
from heatproof.claims.evidence import Model, correlate_ranks
from heatproof.claims.judge import COLUMNS, claims_table, ordered_claims, run_table
from heatproof.claims.registry import CLAIMS, PAPERS, Untestable
from heatproof.claims.verdicts import Measurement, estimate
from heatproof.models.registry import ARCHITECTURES

VERDICTS = {"reproduced", "contradicted", "open", "not testable here"}


def verdict(name, evidence):
    return run_table(evidence).set_index("claim").loc[name]


def test_each_claim_is_described():
    for entry in CLAIMS.values():
        assert entry.paper in PAPERS
        assert entry.place
        assert entry.sentence.endswith(".")
        assert entry.quantity
        assert entry.over in ("images", "networks")
    assert {entry.paper for entry in CLAIMS.values()} == set(PAPERS)


def test_the_table_has_a_row_for_each_claim():
    table = claims_table(plant(lambda case, m: 0.5))
    assert list(table.columns) == COLUMNS
    assert table["claim"].tolist() == [claim.name for claim in ordered_claims()]
    assert set(table["verdict"]) | set(table["published_verdict"]) <= VERDICTS
    untested = table[table["verdict"] == "not testable here"]
    assert untested["reason"].str.startswith("because ").all()
    assert untested[["value", "ci_low", "ci_high", "p", "q"]].isna().all(axis=None)
    published = table[table["published_verdict"] == "not testable here"]
    assert published["published_reason"].str.startswith("because ").all()


def test_q_is_benjamini_and_hochbergs_over_the_claims_that_the_run_tests():
    table = run_table(PLANTED["absolute_values_hurt_ig"](1)).dropna(subset="p")
    assert len(table) > 2
    np.testing.assert_allclose(table["q"], false_discovery_control(table["p"]))


def test_a_claim_is_open_if_q_is_too_large(monkeypatch):
    """Among as many claims as the run tests, one p of 0.03 is expected by chance."""
    row = verdict("absolute_values_hurt_ig", PLANTED["absolute_values_hurt_ig"](1))
    assert row["verdict"] == "reproduced"
    monkeypatch.setattr("heatproof.claims.judge.adjusted_p_values", lambda p: np.where(np.isnan(p), np.nan, 0.2))
    row = verdict("absolute_values_hurt_ig", PLANTED["absolute_values_hurt_ig"](1))
    assert row["verdict"] == "open"
    assert row["ci_low"] > 0
    assert "q is 0.2" in row["reason"]


def test_p_is_near_the_normal_one_and_never_zero():
    draws = np.concatenate([[0.2], 0.2 + 0.1 * np.random.default_rng(0).standard_normal(20000)])
    assert estimate(Measurement(draws), 0, 0.95, 1000).p == pytest.approx(0.0455, abs=0.005)
    assert estimate(Measurement(draws), -9, 0.95, 1000).p == 1 / 20001


def test_few_networks_have_wide_intervals():
    draws = np.concatenate([[0.2], 0.2 + 0.1 * np.random.default_rng(0).standard_normal(2000)])
    wide, narrow = (estimate(Measurement(draws), 0, 0.95, cases) for cases in (3, 100))
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)


# ---- networks --------------------------------------------------------------------------------------------------------


def test_claims_on_networks_are_never_judged_on_images_alone():
    two = {name: NETWORKS[name] for name in ("net_a", "net_b")}
    row = verdict("ranks_agree_between_models", plant(lambda case, m: 0.1 * METHODS.index(m.name), models=two))
    assert row["verdict"] == "not testable here"
    assert "needs 3" in row["reason"]


def test_seeds_of_one_kind_are_one_network():
    models = trainings([RESNET, replace(RESNET, name="other", depth=56)])
    evidence = plant(lambda case, m: 0.1 * METHODS.index(m.name), models=models).over_networks()
    pairs = evidence.pairs_differing(evidence.in_domain_cases(), "model")
    assert len(pairs) == 25, "five by five, none within a kind"
    assert evidence.agreement(pairs).networks == 2


def test_networks_are_resampled_as_well_as_images():
    """Networks that disagree widen the interval, which resampled images cannot show."""
    evidence = plant(lambda case, m: {"net_a": 0.3, "net_b": 0.1}.get(case.model, 0.0) * (m.name == IG), noise=0.01)
    cases, pairs = evidence.in_domain_cases(), [(METHODS.index(IG), 0)]
    images, networks = (
        measured_from.difference(cases, pairs).draws for measured_from in (evidence, evidence.over_networks())
    )
    assert images[0] == networks[0]
    assert networks.std() > 5 * images.std()


# ---- trainings -------------------------------------------------------------------------------------------------------


def sides(level, seeds=5, **more):
    deep = replace(RESNET, name="deep", depth=56)
    return plant(level, models=trainings([RESNET, deep], seeds), images=6, repetitions=20, **more)


def test_claims_on_design_use_welchs_test_over_means_of_trainings():
    generator = np.random.default_rng(0)
    chance = {name: generator.normal(0, 0.1) for name in trainings([RESNET, replace(RESNET, name="deep")])}
    evidence = sides(lambda case, m: 0.3 + chance[case.model], noise=0)
    measured = contrast(
        evidence, evidence.in_domain_cases(), pairs_differing_in(evidence, evidence.in_domain_cases(), "depth")
    )
    groups = [[value for name, value in chance.items() if name.startswith(side)] for side in ("deep", "resnet")]
    expected = ttest_ind(*groups, equal_var=False)
    estimated = estimate(measured, 0, 0.95, 0)
    assert estimated.p == pytest.approx(expected.pvalue)
    assert (estimated.low, estimated.high) == pytest.approx(tuple(expected.confidence_interval()))
    assert measured.seeds == 5


@pytest.mark.parametrize(("seeds", "message"), [(1, "there is 1"), (4, "there are 4")])
def test_fewer_than_five_trainings_are_no_evidence_on_design(seeds, message):
    row = verdict("depth_lowers", sides(lambda case, m: 0.3 - 0.1 * ("deep" in case.model), seeds))
    assert row["verdict"] == "not testable here"
    assert message in row["reason"]
    table = run_table(PLANTED["depth_lowers"](1)).set_index("claim")
    assert table["seeds"].to_csv().count(",5\n") == 1, "a number of trainings has no decimals"


def test_other_baselines_and_grids_are_never_mixed_in():
    fields = {"idsds": {}, "idsds_g4_blur": {"kind": "idsds", "baseline": "blur"}, "g": {"kind": "idsds", "grid": 8}}
    fields["p"] = {"kind": "idsds", "output": "probability"}
    evidence = plant(lambda case, m: 0.1, metrics=fields, models={"net_a": NETWORKS["net_a"]})
    name = {index: case.metric for index, case in enumerate(evidence.cases)}
    assert [name[c] for c in evidence.in_domain_cases()] == ["idsds"]
    for field, other in (("grid", "g"), ("baseline", "idsds_g4_blur"), ("output", "p")):
        assert [(name[a], name[b]) for a, b in evidence.pairs_varying(field)] == [("idsds", other)]


def test_a_model_without_a_counterpart_is_not_compared():
    row = verdict("depth_lowers", plant(lambda case, m: 0.4))
    assert row["verdict"] == "not testable here"
    assert row["reason"] == "because no two networks differ only in depth"


def test_families_are_compared_where_both_have_batch_norm_or_neither():
    plain = Model("plain", "vgg", 11, 1.0, False, True)
    models = {
        architecture.name: architecture for architecture in (RESNET, plain, replace(plain, name="bn", batch_norm=True))
    }
    evidence = plant(lambda case, m: 0.4, models=models)
    assert family_pairs(evidence, evidence.in_domain_cases(), "vgg", "resnet") == [(("toy", "bn"), ("toy", "resnet"))]


# ---- evidence --------------------------------------------------------------------------------------------------------


def test_claims_on_sds_use_no_finetuned_weights():
    row = verdict("cams_lead_under_sds", plant(lambda case, m: 0.1, metrics=("sds",)))
    assert row["reason"] == "because no sds was scored on pretrained weights"


def test_agreement_is_spearman_between_mean_scores():
    evidence = plant(lambda case, m: 0.1 * METHODS.index(m.name) * (-1 if case.model == "net_a" else 1), noise=0.001)
    pairs = evidence.pairs_differing(evidence.in_domain_cases(), "model")
    assert evidence.agreement(pairs).draws[0] == pytest.approx(0), "three of six pairs are reversed"


def test_a_metric_where_lower_is_better_is_negated():
    evidence = plant(lambda case, m: 0.5, metrics={"idsds": {"higher_is_better": False}}, noise=0)
    np.testing.assert_allclose(evidence.means, -0.5)


def test_saved_epochs_are_not_separate_trainings():
    metrics = {"idsds": {}, "epoch": {"kind": "idsds", "saved_epoch_of": "finetuned"}}
    evidence = plant(lambda case, m: 0.5, metrics=metrics, models={"net_a": NETWORKS["net_a"]})
    assert evidence.find_cases("idsds") == [0]
    assert evidence.find_cases("idsds", saved_epochs=True) == [1]


def test_consistency_is_the_mean_correlation_between_images():
    evidence = plant(lambda case, m: METHODS.index(m.name) / 20, noise=0.2)
    chosen = evidence.values[0][evidence.methods_using_model()]
    images = chosen.shape[1]
    pairs = [(a, b) for a in range(images) for b in range(a)]
    expected = np.mean([spearmanr(chosen[:, a], chosen[:, b]).statistic for a, b in pairs])
    agreement = evidence.consistency(0)
    assert agreement[0] == pytest.approx(expected)
    assert np.quantile(agreement[1:], 0.005) < expected < np.quantile(agreement[1:], 0.995)


def test_ranks_are_correlated_as_by_scipy():
    a, b = np.random.default_rng(0).integers(0, 5, (2, 20, 9)).astype(float)
    expected = [spearmanr(x, y).statistic for x, y in zip(a, b, strict=True)]
    np.testing.assert_allclose(correlate_ranks(a, b), expected)


def test_methods_are_found_by_explainer_and_transform():
    evidence = plant(lambda case, m: 0.5, methods=(IG, f"{IG}_abs", IGU))
    assert evidence.find_method(IG, "abs") == 1
    with pytest.raises(Untestable, match="no lime"):
        evidence.find_method("lime")


def test_a_custom_network_is_not_compared_with_the_network_of_the_map():
    """A ResNet with BagNet's map is not one of the plain networks that it is compared with."""
    users_network = replace(RESNET, name="mine")

    def level(case, m):
        if m.name == "bagnet":
            return None if case.model.startswith("resnet") else 0.9
        return 0.6 if case.model.startswith("resnet") else 0.95

    ours = Model("ours", "bagnet", None, 1.0, True, True)
    evidence = plant(level, models=trainings([ours, users_network, RESNET]), methods=("bagnet", "saliency"), images=6)
    row = verdict("bagnet_beats_post_hoc_methods", evidence)
    assert row["value"] == pytest.approx(0.3, abs=0.05)
    assert row["basis"] == "networks: 2 against 1"


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
def test_registered_architectures_state_their_design(architecture, options, expected):
    design = asdict(ARCHITECTURES[architecture].design_for(options))
    assert tuple(design[name] for name in ("family", "depth", "width", "batch_norm", "bias")) == expected
    assert list(pd.Series(design).index) == ["family", "depth", "width", "batch_norm", "bias"]


# ---- metrics of magnitudes -------------------------------------------------------------------------------------------


def of_magnitudes(*, tied):
    """Return evidence in which MAS and RISE rank absolute maps equally well, and RISE ranks maps with signs better."""
    signed = ("saliency", "input_x_gradient", "integrated_gradients", "guided_backprop", "deconvnet")
    rank_of = {name: i for i, name in enumerate(signed)}
    spread = {"mas_deletion": {"raw": 0.2, "abs": 0.2}, "rise_deletion": {"raw": 2.0, "abs": 0.02}}
    evidence = plant(
        lambda case, m: spread[case.kind][m.transform] * rank_of[m.kind],
        metrics=("mas_deletion", "rise_deletion"),
        methods=[*signed, *(f"{name}_abs" for name in signed)],
        weights=("pretrained",),
        noise=0.3,
    )
    for index, case in enumerate(evidence.cases):
        if case.magnitudes and tied:
            evidence.values[index][5:] = evidence.values[index][:5]
    return evidence


def test_mas_and_rise_are_compared_over_the_same_absolute_maps():
    evidence = of_magnitudes(tied=True)
    names = [evidence.methods[index].name for index in evidence.counted_methods(0, 1)]
    assert names == [
        f"{name}_abs"
        for name in ("saliency", "input_x_gradient", "integrated_gradients", "guided_backprop", "deconvnet")
    ]
    rise = [index for index, case in enumerate(evidence.cases) if case.kind == "rise_deletion"][:1]
    assert len(evidence.counted_methods(*rise)) == 10, "with no metric of magnitudes beside it, all rows count"
    claims = run_table(evidence).set_index("claim")
    row = claims.loc["mas_more_consistent_than_rise"]
    assert row["value"] > 0.1
    # With all rows, RISE's order of maps with signs would reverse the sign.
    for case in evidence.cases:
        object.__setattr__(case, "magnitudes", False)
    assert run_table(evidence).set_index("claim").loc["mas_more_consistent_than_rise", "value"] < 0


@pytest.mark.parametrize("metrics", [("mas_deletion", "rise_deletion"), ("mas_deletion", "sic")])
def test_too_few_counted_maps_are_the_reason(metrics):
    """Three maps and their absolute values are six rows, but three methods to MAS."""
    signed = ("saliency", "input_x_gradient", "integrated_gradients")
    evidence = plant(
        lambda case, m: 0.1 * signed.index(m.kind),
        metrics=metrics,
        methods=[*signed, *(f"{name}_abs" for name in signed)],
        weights=("pretrained",),
        noise=0.3,
    )
    name = "mas_more_consistent_than_pic" if "sic" in metrics else "mas_more_consistent_than_rise"
    assert "have scores of 5 methods" in run_table(evidence).set_index("claim").loc[name, "reason"]
