"""What a run found, in words."""

import numpy as np
import pandas as pd
import pytest

from heatproof.report.results import CASE
from heatproof.report.verdict import CHANCE, FOUND, NOTHING, TOO_FEW, above_references, at_chance, verdicts

WHERE = dict(zip(CASE, ("digits", "net", "finetuned", "idsds"), strict=True))
RIGHT = {"top1_clean": 0.9, "majority": 0.11, "n_images": 256}


def made(means, noise=0.3, images=64, seed=0, wrong=0.0, **network):
    """Return the one verdict on methods with some means; names that begin with `ref` know no model."""
    draws = np.random.default_rng(seed).normal(0, noise, (len(means), images))
    draws -= draws.mean(axis=1, keepdims=True)
    names = list(means)
    scores = pd.DataFrame(
        [
            {**WHERE, "method": name, "image": image, "score": means[name] + draws[row, image]}
            for row, name in enumerate(names)
            for image in range(images)
        ]
    )
    highest = max(value for name, value in means.items() if not name.startswith("ref"))
    table = pd.DataFrame([{**WHERE, "method": name, "in_best_set": means[name] > highest - 0.1} for name in names])
    table["share_wrong"] = wrong
    where = {key: WHERE[key] for key in CASE[:3]}
    accuracy = pd.DataFrame([{**where, **RIGHT, **network}])
    references = [name for name in names if name.startswith("ref")]
    return verdicts(scores, table, accuracy, references, {"idsds": True}, 0.95).iloc[0]


def test_the_methods_that_cannot_be_told_from_the_best_are_named():
    found = made({"a": 0.6, "b": 0.58, "c": 0.2, "ref": 0.0})
    assert found["verdict"] == FOUND
    rows = "3 methods and 1 reference map"
    assert found["sentence"] == f"a and b cannot be told from the best, of {rows}; 3 are above all reference maps."
    assert (found["best"], found["n_best"], found["n_above_references"]) == ("a b", 2, 3)
    assert made({"a": 0.6, "c": 0.2, "ref": 0.0})["sentence"].startswith(
        "a is the best of 2 methods and 1 reference map; "
    )


@pytest.mark.parametrize(("wrong", "told"), [(0.5, True), (0.26, True), (0.25, False), (0.0, False), (np.nan, False)])
def test_a_network_that_is_often_wrong_is_said_beside_the_best_method(wrong, told):
    found = made({"a": 0.6, "c": 0.2, "ref": 0.0}, images=20, wrong=wrong)
    assert found["verdict"] == FOUND
    assert ("The network is right" in found["sentence"]) == told
    if wrong == 0.5:
        assert found["sentence"].endswith(" above all reference maps. The network is right on 10 of the 20 images.")


def test_no_method_above_the_references_is_said_with_both_scores():
    found = made({"a": 0.3, "b": 0.2, "ref_edges": 0.6, "ref_random": 0.0})
    assert found["verdict"] == NOTHING
    assert "a scores 0.30, and ref_edges, which knows no model, 0.60" in found["sentence"]
    assert pd.isna(found["images_needed"])


def test_too_few_images_are_said_with_how_many_would_do():
    few = made({"a": 0.25, "b": 0.0, "ref": 0.1}, noise=0.5, images=16)
    assert few["verdict"] == TOO_FEW
    needed = int(few["images_needed"])
    assert 16 < needed < 1600
    assert f"about {needed} images would do" in few["sentence"]
    enough = [made({"a": 0.25, "b": 0.0, "ref": 0.1}, 0.5, needed, seed=seed)["verdict"] == FOUND for seed in range(20)]
    assert np.mean(enough) > 0.6


@pytest.mark.parametrize(("top1", "verdict"), [(0.10, CHANCE), (0.14, CHANCE), (0.25, FOUND), (1.0, FOUND)])
def test_a_network_at_chance_explains_nothing(top1, verdict):
    found = made({"a": 0.6, "b": 0.2, "ref": 0.0}, top1_clean=top1)
    assert found["verdict"] == verdict
    if verdict == CHANCE:
        assert "is at chance" in found["sentence"]
        assert "Its explanations say nothing." in found["sentence"]


def test_guessing_the_most_frequent_class_is_chance_too():
    assert at_chance(690, 1000, 0.69, 0.95)
    assert not at_chance(760, 1000, 0.69, 0.95)


def test_without_a_reference_map_nothing_is_claimed_above_one():
    found = made({"a": 0.6, "b": 0.1})
    assert found["verdict"] == FOUND
    assert "without a reference map" in found["sentence"]


@pytest.mark.slow
def test_methods_without_any_difference_are_seldom_said_to_be_above():
    """Of 200 made-up runs of ten methods and two references, all alike, no more than the level allows."""
    false = 0
    for seed in range(200):
        draws = np.random.default_rng(seed).normal(size=(12, 40))
        names = [*"abcdefghij", "ref1", "ref2"]
        false += bool(above_references(pd.DataFrame(draws, names), ["ref1", "ref2"], 0.95).methods)
    assert false <= 0.05 * 200 + 2 * np.sqrt(200 * 0.05 * 0.95)
