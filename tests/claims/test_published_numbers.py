"""Published tables as evidence: statements of the papers about their numbers, checked on the numbers."""

import pandas as pd
import pytest

from heatproof.claims.judge import published_table
from heatproof.claims.published_numbers import FOLDER, published_evidence


@pytest.fixture(scope="module")
def table():
    return published_table().set_index("claim")


def test_quantities_are_those_that_the_papers_print(table):
    value = table["published_value"]
    # Hesse et al., section 4.2: "a fairly high Spearman rank-order correlation of 0.89".
    assert value["sds_agrees_with_idsds"] == pytest.approx(0.89, abs=0.01)
    # Their table 4: RISE 0.131, RISE-U 0.065.
    assert value["zeros_beat_uniform_baseline_for_rise"] == pytest.approx(0.066)
    # Their table 3: the mean of column Δ.
    assert value["finetuning_keeps_accuracy"] == pytest.approx(
        (0.79 + 0.80 + 0.52 + 0.46 + 0 - 0.67 - 0.23 + 0.48 + 1.31 - 0.07 + 4.16) / 11, abs=0.01
    )
    # Walker et al., table 2, means of each row: MAS insertion, deletion and difference, less those of RISE.
    mas, rise = (0.3855 + 0.586 + 0.49725) / 3, (0.1695 + 0.2515 + 0.3345) / 3
    assert value["mas_more_consistent_than_rise"] == pytest.approx(mas - rise, abs=0.001)


def test_contradictions_of_the_paper_follow_from_the_published_numbers(table):
    verdicts = table["published_verdict"]
    assert verdicts["edges_beat_smoothed_ig_on_vgg"] == "reproduced"
    assert verdicts["probability_drops_lower_vggs"] == "reproduced"
    # Section 5.2 says that the scores of ResNets tend to rise; three of seven do.
    assert verdicts["probability_drops_raise_resnets"] == "open"
    # Section 5 of the paper says that IG surpasses CAMs, which holds on ResNet-50 but not on VGGs.
    assert verdicts["ig_leads_in_domain"] == "open"


def test_one_training_of_each_network_has_a_value_and_no_verdict_on_design(table):
    row = table.loc["depth_lowers"]
    assert row["published_value"] < 0
    assert row["published_verdict"] == "not testable here"
    assert "5 trainings of each kind" in row["published_reason"]


def test_printed_and_released_scores_of_one_network_agree():
    printed, released = (pd.read_csv(FOLDER / f"{name}_scores.csv") for name in ("idsds", "reproduction"))
    printed = printed[(printed["metric"] == "idsds")].set_index(["model", "method"])["score"]
    released = released[(released["dataset"] == "imagenet") & (released["output"] == "logit")]
    both = printed.to_frame("printed").join(released.set_index(["model", "method"])["score"], how="inner")
    assert len(both) == 17
    assert (both["printed"] - both["score"]).abs().max() < 0.005


def test_claims_of_a_paper_are_judged_on_the_networks_of_the_paper():
    assert {case.dataset for case in published_evidence("IDSDS").cases} == {"imagenet"}
    assert {case.dataset for case in published_evidence("reproduction").cases} == {"imagenet", "cifar100"}
    assert published_evidence("Meta-Rank") is None


def test_published_tables_are_small():
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 60_000
