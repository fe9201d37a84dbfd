"""The verdicts of a run in words, which equal those of `heatproof.choose` on the same scores."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import heatproof
from heatproof.api.scores import Scores
from heatproof.report.results import CASE
from heatproof.report.tables.verdict import COLUMNS, verdicts
from heatproof.stats.best import best_set
from heatproof.stats.verdict import (
    CHANCE,
    FOUND,
    LIMITS_OF_DELETION,
    NONE_ABOVE_REFERENCES,
    OPEN,
    TOO_FEW,
    at_chance,
    disagreement,
    judge,
)

WHERE = dict(zip(CASE, ("digits", "net", "given", "sds"), strict=True))
RIGHT = {"top1_clean": 0.9, "majority": 0.11, "n_images": 256}
BY = "by deletion of single patches, grid 4, zeros (SDS), on the given weights"
REFERENCES = ("random", "edges")
# Means of methods, and the expected verdict. The defaults are 64 images and a noise of 0.3.
CASES = {
    "one is the best": (
        {"a": 0.6, "b": 0.3, "edges": 0.0, "random": 0.0},
        {},
        FOUND,
        f"a is the best of 2 methods, at 95%, {BY}. It is above the reference maps edges and random, "
        "which do not use the network.",
    ),
    "two are the best, and a third is above the reference maps": (
        {"a": 0.6, "b": 0.58, "c": 0.2, "random": 0.0, "edges": 0.0},
        {},
        FOUND,
        f"a and b cannot be distinguished from the best of 3 methods, at 95%, {BY}. All of these are above the "
        "reference maps edges and random, which do not use the network.",
    ),
    "more than can be named": (
        {
            **dict(zip("abcdef", (0.6, 0.59, 0.58, 0.57, 0.56, 0.55), strict=True)),
            "g": 0.1,
            "random": 0.0,
            "edges": 0.0,
        },
        {},
        FOUND,
        f"6 of 7 methods (a has the highest mean) cannot be distinguished from the best, at 95%, {BY}.",
    ),
    "a reference map is in the set": (
        {"a": 0.64, "b": 0.3, "random": 0.0, "edges": 0.6},
        {"noise": 0.1},
        OPEN,
        f"Open: edges, which does not use the network, cannot be distinguished from the best {BY}",
    ),
    "the reference map is higher": (
        {"a": 0.3, "b": 0.2, "random": 0.0, "edges": 0.6},
        {},
        NONE_ABOVE_REFERENCES,
        f"Open: no method is significantly above the reference maps {BY}: a scores 0.30, and edges, "
        "which does not use the network, 0.60.",
    ),
    "negative scores have a true minus": (
        {"a": -0.3, "b": -0.4, "random": 0.0, "edges": 0.1},
        {},
        NONE_ABOVE_REFERENCES,
        f"Open: no method is significantly above the reference maps {BY}: a scores −0.30, and edges, "
        "which does not use the network, 0.10.",
    ),
    "too few images for so many methods": (
        {**{f"m{number:02}": 0.5 - number / 50 for number in range(24)}, "random": 0.0, "edges": 0.0},
        {"images": 4},
        OPEN,
        "Open: 4 images are too few to distinguish 26 methods: ",
    ),
    "nothing has a score": (
        {"a": np.nan, "b": np.nan, "random": 0.0, "edges": 0.0},
        {},
        NONE_ABOVE_REFERENCES,
        f"Open: no method has a score on more than one image {BY}.",
    ),
}


def planted(means, noise=0.3, images=64, seed=0):
    """Return scores (methods × images) with exactly these means."""
    draws = np.random.default_rng(seed).normal(0, noise, (len(means), images))
    draws -= draws.mean(axis=1, keepdims=True)
    scores = pd.DataFrame(draws + np.array(list(means.values()))[:, None], list(means))
    return scores


def of_workflow(scores, references=REFERENCES, ablating=(), wrong=0.0, unranked=(), **network):
    """Return the row of verdict.csv."""
    tidy = scores.rename_axis("method").reset_index().melt("method", var_name="image", value_name="score")
    table = pd.DataFrame([{**WHERE, "method": name, "rank": 1, "share_wrong": wrong} for name in scores.index])
    table["rank"] = table["rank"].mask(table["method"].isin(unranked))
    accuracy = pd.DataFrame([{**{key: WHERE[key] for key in CASE[:3]}, **RIGHT, **network}])
    deletions = {"sds": [4, "zeros", "logit"]}
    rows = verdicts([tidy.assign(**WHERE)], table, accuracy, deletions, references, ablating, 0.95)
    assert list(rows) == [name for name in COLUMNS if name != "label"]
    return rows.iloc[0]


def verdict_of(means, wrong=0.0, network=None, **settings):
    return of_workflow(planted(means, **settings), wrong=wrong, **(network or {}))


def of_choose(scores, monkeypatch):
    """Return the choice on the same scores, which are the reporting half of twice as many images."""
    rows = {}

    def planted_scores(scoring):
        # Options are chosen on the first half, where the methods have the same order.
        ids = scoring.inputs.ids
        half = rows.setdefault(tuple(ids), len(rows))
        assert half < 2
        # The absolute values are another option of each method, which scores worse.
        names = [method.name for method in scoring.methods]
        wide = scores.reindex(names).to_numpy(dtype=float).copy()
        wide[[name.endswith("_abs") for name in names]] = -10
        scores_by_name = {
            name: Scores(values, "planted") for name, values in zip(names, wide[:, : len(ids)], strict=True)
        }
        return dict.fromkeys(scoring.metrics, scores_by_name)

    monkeypatch.setattr("heatproof.api.scores.Scoring.scores", planted_scores)
    images = torch.randn(2 * scores.shape[1], 3, 8, 8, generator=torch.Generator().manual_seed(1))
    methods = {name: _unsigned for name in scores.index if name not in REFERENCES}
    zeros = {"patch deletion": {"metric": "sds", "baseline": "zeros"}}
    network = nn.Sequential(nn.Flatten(), nn.Linear(192, 3)).eval()
    return heatproof.choose(network, images, methods=methods, measures=zeros)


def _unsigned(model, images, targets):
    return images.abs().sum(1)


@pytest.mark.parametrize("case", CASES)
def test_the_workflow_and_choose_agree_on_the_same_scores(case, monkeypatch):
    means, settings, verdict, sentence = CASES[case]
    scores = planted(means, **settings)
    row = of_workflow(scores)
    assert row["verdict"] == verdict
    assert row["sentence"].startswith(sentence)
    assert row["cannot_see"] == LIMITS_OF_DELETION
    monkeypatch.setattr("heatproof.api.choose.MINIMUM_IMAGES", 2)
    choice = of_choose(scores, monkeypatch)
    assert (choice.verdict, choice.sentence) == (row["verdict"], row["sentence"])
    assert sorted(choice.methods) == sorted(row["best"].split())
    assert LIMITS_OF_DELETION in choice.how


def test_the_set_of_the_best_equals_that_of_the_table_of_scores():
    means, settings, _, _ = CASES["two are the best, and a third is above the reference maps"]
    scores = planted(means, **settings)
    members = best_set(scores.to_numpy(), level=0.95).members
    row = of_workflow(scores)
    assert sorted(row["best"].split()) == sorted(scores.index[members])
    assert (row["n_best"], row["n_above_references"], row["n_methods"], row["n_images"]) == (2, 3, 3, 64)


def test_with_too_few_cases_the_set_is_empty():
    means, settings, _, _ = CASES["too few images for so many methods"]
    scores = planted(means, **settings)
    reason = best_set(scores.to_numpy(), level=0.95).reason
    row = of_workflow(scores)
    assert reason in row["sentence"]
    assert (row["best"], pd.isna(row["n_best"])) == ("", True)


def test_a_long_set_is_counted_in_the_sentence_and_complete_in_the_column():
    row = verdict_of(CASES["more than can be named"][0])
    assert sorted(row["best"].split()) == list("abcdef")
    assert "more" not in row["sentence"]


def test_all_reference_maps_in_the_set_are_named(monkeypatch):
    everything = lambda scores, *, level: (np.ones(len(scores), dtype=bool), "")  # noqa: E731
    monkeypatch.setattr("heatproof.stats.verdict.best_set", everything)
    scores = planted(dict.fromkeys("abcdef", 0.6) | {"random": 0.0, "edges": 0.0})
    verdict = judge({"X": scores}, REFERENCES, "on W", level=0.95)
    assert verdict.verdict == OPEN
    assert verdict.sentence == (
        "Open: edges and random, which do not use the network, cannot be distinguished from the best by X, on W; nor "
        "can 6 methods."
    )


def test_methods_that_delete_regions_are_excluded_from_the_verdict():
    scores = planted({"occlusion": 0.9, "a": 0.6, "b": 0.3, "random": 0.0, "edges": 0.0})
    row = of_workflow(scores, ablating=["occlusion"])
    assert row["sentence"].startswith("a is the best of 2 methods, at 95%, by deletion of single patches")
    assert row["sentence"].endswith(" occlusion is excluded, because it deletes regions as the measure does.")
    assert row["best"] == "a"


def test_several_metrics_lead_to_one_verdict():
    first, other = planted({"a": 0.6, "b": 0.3, "random": 0.0}), planted({"a": 0.3, "b": 0.5, "random": 0.0}, seed=1)
    alike = judge({"X": first, "Y": first}, ["random"], "on W", level=0.95)
    assert alike.sentence == (
        "a is the best of 2 methods, at 95%, by each of 2 measures (X and Y), whose rankings have a "
        "correlation of 1.00, on W. It is above the reference map random, which does not use the network."
    )
    fills = {f"deletion of single patches, grid 4, {fill} (SDS)": first for fill in ("mean colour", "blur")}
    sentence = judge(fills, ["random"], "on W", level=0.95).sentence
    assert "(deletion of single patches, grid 4, mean colour (SDS) and blur (SDS)), whose" in sentence
    apart = judge({"X": first, "Y": other}, ["random"], "on W", level=0.95)
    assert apart.sentence.startswith(
        "a and b cannot be distinguished from the best of 2 methods, at 95%, by at least one of 2 "
    )
    low = planted({"a": 0.0, "b": -0.1, "random": 0.5})
    part = judge({"X": first, "Y": low}, ["random"], "on W", level=0.95)
    assert (part.verdict, part.sentence) == (
        NONE_ABOVE_REFERENCES,
        "Open: no method is significantly above the reference maps by Y, on W: a scores 0.00, and random, "
        "which does not use the network, 0.50.",
    )


@pytest.mark.parametrize(
    ("wrong", "is_mentioned"), [(0.5, True), (0.3, True), (0.25, False), (0.0, False), (np.nan, False)]
)
def test_the_verdict_mentions_a_network_that_is_often_wrong(wrong, is_mentioned):
    row = verdict_of({"a": 0.6, "c": 0.2, "random": 0.0}, images=20, wrong=wrong)
    assert row["verdict"] == FOUND
    assert ("The network is right" in row["sentence"]) == is_mentioned
    if wrong == 0.5:
        assert row["sentence"].endswith(" The network is right on 10 of the 20 images.")


def test_the_verdict_on_too_few_images_names_the_number_needed():
    few = verdict_of({"a": 0.25, "b": 0.0, "random": 0.1}, noise=0.5, images=40)
    assert few["verdict"] in (TOO_FEW, NONE_ABOVE_REFERENCES)
    needed = few["images_needed"]
    assert (few["verdict"] == TOO_FEW) == (not pd.isna(needed))
    if few["verdict"] == TOO_FEW:
        assert f"about {needed} images would suffice" in few["sentence"]
        assert needed > 40


@pytest.mark.parametrize(("top1", "verdict"), [(0.10, CHANCE), (0.14, CHANCE), (0.25, FOUND), (1.0, FOUND)])
def test_a_network_at_chance_explains_nothing(top1, verdict):
    row = verdict_of({"a": 0.6, "b": 0.2, "random": 0.0}, network={"top1_clean": top1})
    assert row["verdict"] == verdict
    if verdict == CHANCE:
        assert "is at chance" in row["sentence"]
        assert "Its maps cannot be judged." in row["sentence"]


def test_guessing_the_most_frequent_class_counts_as_chance():
    assert at_chance(690, 1000, 0.69, 0.95)
    assert not at_chance(760, 1000, 0.69, 0.95)


def test_without_a_reference_map_the_verdict_does_not_compare_with_one():
    row = verdict_of({"a": 0.6, "b": 0.1})
    assert row["verdict"] == FOUND
    assert "Without a reference map" in row["sentence"]


def test_a_method_defined_on_too_few_images_is_excluded_from_the_verdict():
    scores = planted({"a": 0.6, "b": 0.3, "random": 0.0})
    assert of_workflow(scores)["best"] == "a"
    assert of_workflow(scores, unranked=("a",))["best"] == "b"


def tidy(metrics, networks=("one", "two")):
    """Return the rows of scores.csv from the scores of methods by each metric, and its direction."""
    rows = [
        {"dataset": "d", "model": model, "weights": "w", "metric": metric, "method": f"m{number}", "score": score}
        | {"higher_is_better": higher}
        for model in networks
        for metric, (scores, higher) in metrics.items()
        for number, score in enumerate(scores)
    ]
    return pd.DataFrame(rows)


def test_metrics_with_a_reversed_order_of_methods_are_named():
    up, down = [0.1, 0.2, 0.3, 0.4, 0.5], [0.5, 0.4, 0.3, 0.2, 0.1]
    sentence = disagreement(tidy({"idsds": (up, True), "deletion_morf": (up, False), "rise_insertion": (up, True)}))
    assert sentence.startswith("deletion_morf (ρ −1.00) ranks the methods against idsds: ")
    assert "rise_insertion" not in sentence
    assert "Decide which metric fits your question" in sentence
    assert disagreement(tidy({"idsds": (up, True), "deletion_morf": (down, False)})) == ""
    # Four methods are too few, and without patch drops no metric can disagree with them.
    assert disagreement(tidy({"sds": (up[:4], True), "deletion_morf": (up[:4], False)})) == ""
    assert disagreement(tidy({"mas_insertion": (up, True), "deletion_morf": (up, False)})) == ""
