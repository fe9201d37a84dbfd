"""Claims that rankings agree or differ are judged by halves of the images, so that noise does not pass them."""

import numpy as np
import pandas as pd
import pytest
from planted import EDGES, IG_SG, MANY, METHODS, PRETRAINED, VGGS, accuracies
from planting import NETWORKS, plant
from scipy.stats import kendalltau, spearmanr

from heatproof.claims.evidence import Case, Evidence, Model, Resampling
from heatproof.claims.halves import centred_ranks, half_vectors, mean_product, pair_orders, split_images
from heatproof.claims.judge import run_table
from heatproof.claims.registry import ALIKE, CLAIMS, Untestable
from heatproof.claims.verdicts import decisive_limit, estimate, verdict_of
from heatproof.core.methods import Method
from heatproof.stats.kappa import compute_kappa

DELETION = ("deletion_morf", "deletion_lerf")
DIFFER = CLAIMS["ranks_differ_between_models"]


def row(name, evidence):
    return run_table(evidence).set_index("claim").loc[name]


def many_methods(means, noise, seed, images=64, skewed=False):
    """Return evidence on networks with these true means (networks, methods); half of the noise is shared."""
    generator = np.random.default_rng(seed)

    def draw(*size):
        if not skewed:
            return generator.normal(size=size)
        return (generator.lognormal(size=size) - np.exp(0.5)) / np.sqrt((np.e - 1) * np.e)

    methods, rows, cases = [f"m{i:02}" for i in range(means.shape[1])], [], []
    for metric in DELETION:
        shared = draw(len(methods), images)
        for number, mean in enumerate(means):
            scores = mean[:, None] + noise * (shared + draw(len(methods), images)) / np.sqrt(2)
            where = {"dataset": "toy", "model": f"net_{number}", "weights": "pretrained", "metric": metric}
            table = pd.DataFrame({"method": np.repeat(methods, images), "image": list(range(images)) * len(methods)})
            rows.append(table.assign(score=scores.ravel(), **where))
            cases.append(Case(*where.values(), metric, {}, True, grid=4, baseline="zeros"))
    models = {f"net_{i}": Model(f"net_{i}", "resnet", 20, 1.0, True, True, f"net_{i}") for i in range(len(means))}
    planted_methods = [Method(name) for name in methods]
    return Evidence(pd.concat(rows), cases, planted_methods, models, draws=Resampling(0, 2))


def judge_claim(entry, evidence):
    measured = entry.test(evidence)
    limit = entry.decisive_limit(measured.draws[0])
    return verdict_of(estimate(measured, limit, 0.95, evidence.images), entry.side, limit), measured


# ---- the rule --------------------------------------------------------------------------------------------------------


def test_the_product_of_vectors_is_spearmans_and_kendalls_correlation():
    a, b = np.random.default_rng(0).integers(0, 5, (2, 9)).astype(float)
    methods = np.arange(9)
    assert centred_ranks(a, methods) @ centred_ranks(b, methods) == pytest.approx(spearmanr(a, b).statistic)
    orders = pair_orders(dict.fromkeys(range(9), "one"), within=True)
    assert orders(a, methods) @ orders(b, methods) == pytest.approx(kendalltau(a, b).statistic)


def test_orders_are_of_pairs_within_or_between_groups():
    groups, methods = {0: "a", 1: "a", 2: "b", 3: ""}, np.arange(4)
    within, between = (
        pair_orders(groups, within=is_within)(np.array([3.0, 1.0, 2.0, 9.0]), methods) for is_within in (True, False)
    )
    np.testing.assert_allclose(within, [1])
    np.testing.assert_allclose(between, np.array([1, -1]) / np.sqrt(2))


def test_each_half_is_correlated_with_the_other_half():
    images = [str(i) for i in range(20)]
    scores, other_scores = np.random.default_rng(0).normal(size=(2, 7, 20))
    halves, methods = split_images(images, 0, "toy"), np.arange(7)
    product = mean_product(
        *(half_vectors("toy", halves, values, images, methods, centred_ranks) for values in (scores, other_scores))
    )
    expected = []
    for first in halves.first:
        assert first.sum() == 10
        for a, b in ((first, ~first), (~first, first)):
            expected.append(spearmanr(scores[:, a].mean(axis=1), other_scores[:, b].mean(axis=1)).statistic)
    assert product.value == pytest.approx(np.mean(expected), abs=1e-6)


@pytest.mark.parametrize("noise", [0.1, 3])
def test_the_share_is_one_where_the_order_is_the_same_however_noisy(noise):
    means = np.tile(np.random.default_rng(5).normal(size=26), (4, 1))
    shares = [judge_claim(DIFFER, many_methods(means, noise, seed))[1].draws[0] for seed in range(8)]
    assert np.mean(shares) == pytest.approx(1, abs=0.05)


def test_too_few_images_and_no_ranking_are_not_testable():
    def level(case, m):
        return 0.1 * METHODS.index(m.name)

    with_few_images = row("ranks_differ_between_models", plant(level, metrics=DELETION, images=7, **PRETRAINED))
    assert with_few_images["reason"] == "because rankings on halves of the images need 8 images, and there are 7"
    alike = row("ranks_differ_between_models", plant(lambda case, m: 0.5, metrics=DELETION, **PRETRAINED))
    assert alike["verdict"] == "not testable here"
    assert "use more images" in alike["reason"]


@pytest.mark.parametrize(
    ("value", "low", "high", "expected"),
    [
        (0.8, 0.7, 0.9, "reproduced"),
        (0.9, 0.8, 1.01, "open"),
        (1.0, 0.9, 1.1, "open"),
        (1.0, 0.96, 1.04, "contradicted"),
        (0.97, 0.96, 0.99, "contradicted"),
    ],
)
def test_a_difference_is_reproduced_below_one_and_contradicted_above_alike(value, low, high, expected):
    assert DIFFER.limit == 1
    estimated = estimate(judge_claim(DIFFER, many_methods(np.tile(np.arange(6.0), (2, 1)), 0.1, 0))[1], 1, 0.95, 64)
    estimated = estimated._replace(value=value, low=low, high=high)
    assert verdict_of(estimated, "below", 1.0, ALIKE) == expected
    assert decisive_limit(value, "below", 1.0, ALIKE) == (ALIKE if value > ALIKE else 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("skewed", [False, True])
@pytest.mark.parametrize("noise", [1, 3])
def test_noise_does_not_pass_a_claim_that_rankings_differ(noise, skewed):
    """The table of docs/simulations.md has a thousand runs per cell; these are other runs."""
    verdicts_by_truth = {0: [], 1: []}
    for seed in range(60):
        generator = np.random.default_rng([seed, 77])
        means = np.tile(generator.normal(size=26), (4, 1))
        differing_means = means.copy()
        # This order correlates at about 0.7 with the others.
        differing_means[3] = 0.7 * means[0] + np.sqrt(1 - 0.7**2) * generator.normal(size=26)
        for differs, level in enumerate((means, differing_means)):
            verdicts_by_truth[differs].append(judge_claim(DIFFER, many_methods(level, noise, seed, skewed=skewed))[0])
    assert verdicts_by_truth[0].count("reproduced") <= 8, "more than three standard errors above 5 % of 60"
    assert verdicts_by_truth[1].count("reproduced") >= 45


# ---- only the statements of the papers -------------------------------------------------------------------------------


def reversed_for(**fields):
    """Return evidence in which a second IDSDS with other fields has the reverse order."""
    metrics = {"idsds": {"baseline": "mean"}, "other": {"kind": "idsds", "baseline": "mean", **fields}}

    def level(case, m):
        return 0.1 * METHODS.index(m.name) * (-1 if case.metric == "other" else 1)

    return plant(level, metrics=metrics, noise=0.02)


def test_baselines_that_the_paper_does_not_compare_are_not_tested():
    tested = row("ranks_agree_between_baselines", reversed_for(baseline="background"))
    assert tested["verdict"] == "not testable here"
    assert "zeros with drops to random and blur" in tested["reason"]
    assert "background and mean" in tested["reason"]


def test_random_and_blur_are_not_compared():
    metrics = {"idsds": {"baseline": "zeros"}} | {b: {"kind": "idsds", "baseline": b} for b in ("random", "blur")}
    evidence = plant(lambda case, m: 0.1 * METHODS.index(m.name), metrics=metrics, models={"net_a": NETWORKS["net_a"]})
    measured = CLAIMS["ranks_agree_between_baselines"].test(evidence)
    assert measured.basis.startswith("pairs of test cases: 2,")


@pytest.mark.parametrize(("points", "expected"), [(0.3, "reproduced"), (-0.3, "reproduced"), (-1.5, "contradicted")])
def test_finetuning_may_lose_as_much_accuracy_as_in_the_paper(points, expected):
    accuracy = accuracies(lambda i: 0.5, lambda i: 0.5 + points / 100 + 0.0005 * (-1) ** i)
    evidence = plant(lambda case, m: 0.3, models=MANY, accuracy=accuracy, methods=("saliency",))
    assert row("finetuning_keeps_accuracy", evidence)["verdict"] == expected


def test_input_x_gradient_leads_by_kappa():
    paper_methods = ["saliency", "input_x_gradient", "integrated_gradients", "deconvolution"]
    evidence = plant(
        lambda case, m: 0.1 * paper_methods.index(m.name),
        methods=paper_methods,
        metrics=DELETION,
        noise=0.2,
        **PRETRAINED,
    )
    measured = CLAIMS["input_x_gradient_leads"].test(evidence)
    kappa = compute_kappa(evidence.means[0])[0]
    assert measured.draws[0] == pytest.approx(kappa[1] - np.delete(kappa, 1).max())


def test_edges_are_compared_with_the_raw_map_and_the_absolute_one_is_reported():
    def level(case, m):
        return {IG_SG: 0.1, f"{IG_SG}_abs": 0.4}.get(m.name, 0.3)

    evidence = plant(level, methods=[*EDGES, IG_SG, f"{IG_SG}_abs"], models=VGGS, noise=0.001)
    measured = CLAIMS["edges_beat_smoothed_ig_on_vgg"].test(evidence)
    assert measured.draws[0] == pytest.approx(0.2, abs=0.01)
    assert "against the absolute map: -0.1" in measured.basis


def test_published_orders_have_no_halves_and_no_ceiling_below_one():
    evidence = plant(lambda case, m: 0.1 * METHODS.index(m.name), images=1)
    evidence.image_names = {case: ["mean"] for case in evidence.image_names}
    share = evidence.share(evidence.pairs_differing(evidence.in_domain_cases(), "model"))
    assert share.ceiling == 1
    with pytest.raises(Untestable, match="one such test case"):
        evidence.share([])
