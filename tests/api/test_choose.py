"""`heatproof.choose`, `finetune` and `compare` draw the conclusions that the data supports, and no others."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import heatproof
from heatproof.stats.best import images_to_distinguish


@pytest.fixture(scope="module")
def many():
    return torch.randn(60, 3, 16, 16, generator=torch.Generator().manual_seed(5))


class Planted(nn.Module):
    """A network with one logit whose drop for each patch is known: the sum over the patch of image times weight."""

    def __init__(self):
        super().__init__()
        self.weights = nn.Parameter(torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(9)))

    def forward(self, images):
        value = (images * self.weights).sum((1, 2, 3))
        return torch.stack([value, -value], 1)


ZERO = {"patch deletion": {"metric": "sds", "baseline": "zeros"}}


def noisy(share):
    def method(model, images, targets):
        sign = 1 - 2 * targets.float()[:, None, None]
        truth = sign * (images * model.weights).sum(1)
        draws = torch.randn(truth.shape, generator=torch.Generator().manual_seed(7))
        return truth + share * draws * truth.std()

    return method


def test_true_maps_are_the_best_method(many):
    methods = {"truth": noisy(0.0), "near": noisy(2.0), "far": noisy(20.0)}
    choice = heatproof.choose(Planted().eval(), many, methods=methods, measures=ZERO)
    assert choice.best == "truth"
    assert choice.methods == ["truth"]
    assert choice.table.loc[0, "patch deletion"] > 0.99
    assert "truth is the best of 3 methods" in choice.sentence


def test_equal_methods_are_all_in_the_set(many):
    methods = {name: noisy(0.0) for name in ("one", "other")}
    choice = heatproof.choose(Planted().eval(), many, methods=methods, measures=ZERO)
    assert set(choice.methods) == {"one", "other"}
    assert choice.best is None
    assert "cannot be distinguished from the best of 2 methods" in choice.sentence


def test_random_maps_leave_the_choice_open(many):
    def draws(model, images, targets):
        return torch.randn(images[:, 0].shape, generator=torch.Generator().manual_seed(len(images)))

    choice = heatproof.choose(Planted().eval(), many, methods={"noise": draws}, measures=ZERO)
    assert choice.best is None
    assert choice.sentence.startswith("Open: ")
    assert "by deletion of single patches, grid 4, zeros (SDS), on the given weights" in choice.sentence
    assert "does not use the network" in choice.sentence


def test_options_are_selected_on_other_images_than_the_reported_ones(network, many):
    seen = {}

    def recording(model, images, targets):
        seen.setdefault("images", []).append(images.clone())
        return images.sum(1)

    choice = heatproof.choose(
        network,
        many,
        methods={
            "short": {"integrated_gradients": {"steps": 2}},
            "long": {"integrated_gradients": {"steps": 16}},
            "recording": recording,
            "rollout": "attention_rollout",
        },
    )
    first, second = seen["images"][0], seen["images"][-1]
    assert not any(torch.equal(a, b) for a in first for b in second)
    rows = choice.table["method"].tolist()
    assert sum(name.removesuffix("_abs") in ("short", "long") for name in rows) == 1
    assert {name.removesuffix("_abs") for name in choice.left_out} & {"short", "long"}
    assert "attention" in choice.table.set_index("method").loc["rollout", "reason"]
    assert choice.images == (30, 30)
    assert list(choice.sets) == list(choice.measures)


def test_a_choice_can_be_printed_displayed_and_saved(network, many, tmp_path):
    choice = heatproof.choose(network, many, methods=["saliency", "input_x_gradient", "attention_rollout"])
    assert choice.sentence in str(choice)
    assert choice.sentence.partition(",")[0] in choice._repr_html_()
    page = choice.save(tmp_path / "choice.html").read_text(encoding="utf-8")
    assert "http" not in page.replace("http-equiv", "")
    assert "input_x_gradient" in page
    assert "attention" in page
    axes = heatproof.plot.order(choice)
    assert [label.get_text() for label in axes.get_yticklabels()][-1] == choice.table["method"][0]


def test_methods_that_delete_regions_are_scored_but_excluded(many, tmp_path):
    methods = ["input_x_gradient", "occlusion", {"ablation": {"explainer": "feature_ablation", "grid": 4}}]
    choice = heatproof.choose(Planted().eval(), many, methods=methods, measures=ZERO)
    table = choice.table.set_index("method")
    # No map scores higher than the drops themselves.
    assert table.loc["ablation", "patch deletion"] == table["patch deletion"].max()
    assert not table.loc[["occlusion", "ablation"], "in_set"].any()
    assert choice.best == "input_x_gradient"
    assert "the only method that was scored" in choice.sentence
    assert table.loc["occlusion", "reason"].endswith("excluded")
    assert "ablation and occlusion are excluded, because they delete regions as the measure does" in choice.sentence
    labels = [label.get_text() for label in heatproof.plot.order(choice).get_yticklabels()]
    assert {"occlusion (excluded)", "ablation (excluded)"} <= set(labels)
    assert "input_x_gradient" in labels
    assert "but excluded" in choice.save(tmp_path / "choice.html").read_text(encoding="utf-8")


def test_captum_methods_that_delete_regions_are_recognised(many):
    from captum.attr import FeatureAblation, Saliency

    from heatproof.api.named_methods import select_methods

    model = Planted().eval()
    theirs = select_methods({"ablation": FeatureAblation(model), "saliency": Saliency(model)})
    assert [method.ablates for method in theirs] == [True, False]
    assert "occlusion" not in heatproof.api.choose.DEFAULT_METHODS


def test_a_choice_among_excluded_methods_only_is_open(many):
    choice = heatproof.choose(Planted().eval(), many, methods="occlusion", measures=ZERO)
    assert choice.best is None
    assert choice.sentence.startswith("Open: no method has a score")
    assert "occlusion is excluded, because it deletes regions as the measure does" in choice.sentence


def test_the_sentence_states_the_agreement_of_measures(many):
    twice = {"zeros": ZERO["patch deletion"], "blur": {"metric": "sds", "baseline": "blur"}}
    methods = {"truth": noisy(0.0), "far": noisy(20.0)}
    choice = heatproof.choose(Planted().eval(), many, methods=methods, measures=twice)
    assert "every measure" not in choice.sentence
    assert f"a correlation of {choice.agreement:.2f}" in choice.sentence


def test_the_printed_table_is_narrow(network, many):
    choice = heatproof.choose(network, many)
    table = str(choice).split("\n\n")[1]
    assert "integrated_gradients" in table
    assert max(map(len, table.splitlines())) < 120
    assert "(" in table.splitlines()[1]
    assert "attention" in str(choice)
    assert ", low" not in choice._repr_html_()


def test_progress_is_printed_only_to_a_terminal(network, many, monkeypatch, capsys):
    heatproof.choose(network, many, methods="saliency")
    assert not capsys.readouterr().err
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    heatproof.choose(network, many, methods="saliency")
    printed = capsys.readouterr().err
    assert "First half: selecting options of 3 methods on 30 images." in printed
    assert "Second half: scoring" in printed
    assert "maps" in printed
    assert "scores" in printed


def test_images_without_normalisation_cause_one_warning(network, many):
    with pytest.warns(UserWarning, match="The images reach 255: normalise") as messages:
        heatproof.choose(network, many / many.abs().max() * 255, methods="saliency")
    assert sum("The images reach" in str(warning.message) for warning in messages) == 1
    assert messages[0].filename == __file__


def test_the_same_seed_gives_the_same_choice(network, many):
    methods = ["saliency", "random"]
    first, again = (heatproof.choose(network, many, methods=methods) for _ in range(2))
    pd.testing.assert_frame_equal(first.table.drop(columns="seconds"), again.table.drop(columns="seconds"))


def test_equal_calls_return_identical_texts(network, many):
    """Ties of costs are broken by names, and never by seconds."""
    methods = {name: noisy(0.0) for name in ("slow", "other", "fast")}
    choices = [heatproof.choose(Planted().eval(), many, methods=methods, measures=ZERO) for _ in range(4)]
    assert {result.advice for result in choices} == {
        "Among the best, fast takes the fewest network passes, 0 per image."
    }
    assert len({(result.sentence, result.how) for result in choices}) == 1
    for result in choices:
        result.table["seconds"] = [4.0, 3.0, 2.0, 1.0, 0.0]
        assert result.advice == choices[0].advice


def test_the_required_number_of_images_is_printed_before_scoring(network, many, capsys):
    def recording(model, images, targets):
        messages.append(capsys.readouterr().out)
        return images.sum(1)

    for images in (many[:16], torch.cat([many] * 5) + torch.arange(300)[:, None, None, None] / 1000):
        messages = []
        choice = heatproof.choose(
            network, images, methods={"recording": recording, "saliency": "saliency"}, measures=ZERO
        )
        needed = images_to_distinguish(4)
        assert messages[0].startswith(f"The result is from {len(images) // 2} images")
        assert f"the result needs {needed} images, {2 * needed} in all." in messages[0]
        assert ("With fewer, the result is often open" in messages[0]) == (len(images) < 2 * needed)
        assert messages[0].strip() in choice.how


def test_too_few_images_leave_the_set_of_the_best_empty(network, many):
    choice = heatproof.choose(network, many[:16], measures=ZERO)
    assert choice.verdict == "open"
    assert choice.sentence.startswith("Open: 8 images are too few to distinguish ")
    contenders = choice.table["reason"] == ""
    assert choice.table.loc[contenders, "in_set"].isna().all()
    assert choice.methods == []
    assert choice.best is None
    assert choice.sets == {"patch deletion": []}
    assert "open" in choice._repr_html_()
    heatproof.plot.order(choice)


@pytest.mark.parametrize(("shift", "is_warned"), [(0, False), (1, True)])
def test_targets_that_the_network_never_predicts_cause_a_warning(many, shift, is_warned):
    model = Planted().eval()
    with torch.no_grad():
        targets = (model(many).argmax(1) + shift) % 2
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        choice = heatproof.choose(model, many, targets, methods={"truth": noisy(0.0), "far": noisy(9.0)}, measures=ZERO)
    assert any("predicts the target on 0 of 60 images" in str(warning.message) for warning in messages) == is_warned
    assert ("The network is right on 0 of the 30 images." in choice.sentence) == is_warned


def test_options_with_lower_scores_are_printed(network, many):
    choice = heatproof.choose(network, many, methods="saliency")
    assert choice.left_out
    assert f"scored higher: {choice.left_out[0]}" in str(choice)


def test_a_measure_that_is_better_when_lower_is_refused(network, many):
    with pytest.raises(heatproof.HeatproofError, match="for which lower is better"):
        heatproof.choose(network, many, methods="saliency", measures={"area": {"metric": "rise_deletion"}})


def test_too_few_images_are_refused(network, images):
    with pytest.raises(heatproof.HeatproofError, match="at least 16"):
        heatproof.choose(network, images)


@pytest.mark.parametrize("labelled", [True, False])
def test_finetune_returns_a_copy_that_loses_less_accuracy_without_a_patch(labelled):
    """On images with two patches, only one of which depends on the class."""
    # With other initial weights the trained network can be so certain that gradients vanish.
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(80) % 2
    data = torch.randn(80, 3, 8, 8, generator=generator) * 0.1 + (2 * labels[:, None, None, None] - 1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(data), labels).backward()
        optimizer.step()
    model.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    copy = heatproof.finetune(model, data, labels if labelled else None, grid=2, epochs=3, lr=1e-2, baseline="zeros")
    assert copy is not model
    assert not copy.training
    assert copy.heatproof["labels"] == ("given" if labelled else "own")
    assert len(copy.heatproof["history"]) == 3
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name])
    assert any(not torch.equal(value, before[name]) for name, value in copy.state_dict().items())
    with torch.no_grad():
        without = data.clone()
        without[:, :, :4, :4] = 0
        assert (copy(without).argmax(1) == labels).float().mean() >= (model(without).argmax(1) == labels).float().mean()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"baseline": "meen"}, "mean"),
        ({"validation": 1.5}, "'validation' of heatproof.finetune must be a number above 0 and below 1, not 1.5"),
        ({"images": torch.randn(2, 3, 16, 16)}, "too few"),
        ({"images": torch.randn(12, 3, 8, 8)}, "fails on images of"),
        ({"model": 3}, "give a torch.nn.Module"),
    ],
)
def test_invalid_arguments_of_finetune_are_refused_in_one_sentence(arguments, sentence, network, images):
    with pytest.raises(heatproof.HeatproofError, match=sentence) as caught:
        heatproof.finetune(**({"model": network, "images": images} | arguments))
    assert "\n" not in str(caught.value)


def test_compare_ranks_objects_as_the_command_ranks_their_table(network, linear, images, targets, tmp_path, capsys):
    from heatproof.report.tables.ranking import rank

    maps = heatproof.explain(network, images, targets, ["saliency", "input_x_gradient", "random"])
    results = {
        name: heatproof.evaluate(["idsds", "rise_deletion"], model, images, targets % 3, maps, steps=4)
        for name, model in (("one", network), ("two", linear))
    }
    comparison = heatproof.compare(results)
    assert comparison.table["n_networks"].max() == 2
    assert not comparison.scores.loc[comparison.scores["metric"] == "rise_deletion", "higher_is_better"].any()
    means = comparison.scores.groupby(["model", "metric", "method", "higher_is_better"], as_index=False)["score"].mean()
    means.to_csv(tmp_path / "scores.csv", index=False)
    rank([tmp_path / "scores.csv"], lower=["rise_deletion"])
    # Both describe the directions in the same words, and each names its own remedy.
    printed = capsys.readouterr().out.partition("\n")[0]
    assert printed.partition(". If ")[0] in str(comparison)
    assert "--lower" in printed
    assert "--lower" not in str(comparison)
    assert "column higher_is_better" in str(comparison)
    again = heatproof.compare(means)
    np.testing.assert_allclose(again.table["kappa"], comparison.table["kappa"])


@pytest.mark.parametrize(
    ("results", "sentence"),
    [(3, "give results"), ({}, "give results"), (pd.DataFrame({"a": [1]}), "no column 'method'")],
)
def test_invalid_results_to_compare_are_refused(results, sentence):
    with pytest.raises(heatproof.HeatproofError, match=sentence):
        heatproof.compare(results)


def test_a_single_method_cannot_be_compared(network, images, targets):
    result = heatproof.evaluate("idsds", network, images, targets, images.sum(1))
    with pytest.raises(heatproof.HeatproofError, match="nothing to rank"):
        heatproof.compare(result)
