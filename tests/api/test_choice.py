"""The result of `choose` as a file, and how unusual methods are reported and ranked."""

import itertools
import json

import numpy as np
import pandas as pd
import pytest
import torch
import xarray
from torch import nn

import heatproof
from heatproof.core.methods import ABS_SUFFIX
from heatproof.errors import HeatproofError


@pytest.fixture(scope="module")
def many():
    return torch.randn(40, 3, 16, 16, generator=torch.Generator().manual_seed(5))


@pytest.fixture(scope="module")
def choice(network, many):
    methods = ["input_x_gradient", "saliency", "occlusion", "attention_rollout", "grad_cam"]
    return heatproof.choose(network, many, methods=methods)


def constant(model, images, targets):
    return -torch.ones_like(images[:, 0])


def unsigned(model, images, targets):
    return images.abs().sum(1)


def signed(model, images, targets):
    return images.sum(1)


def test_a_saved_choice_equals_the_original_after_loading(choice, tmp_path):
    path = choice.save(tmp_path / "choice.json")
    again = heatproof.Choice.load(path)
    assert again == choice
    pd.testing.assert_frame_equal(again.table, choice.table)
    for name in ("sentence", "verdict", "methods", "best", "sets", "advice", "how", "left_out", "in_domain", "images"):
        assert getattr(again, name) == getattr(choice, name), name
    assert str(again) == str(choice)
    assert again.save(tmp_path / "again.json").read_bytes() == path.read_bytes()
    assert again.save(tmp_path / "a.html").read_bytes() == choice.save(tmp_path / "b.html").read_bytes()
    json.loads(path.read_text(encoding="utf-8"), parse_constant=pytest.fail)


def test_choices_that_differ_are_not_equal(choice, network, many):
    assert choice != heatproof.choose(network, many, methods="saliency")
    assert choice != 3


def test_an_open_choice_with_undefined_scores_can_be_loaded(network, many, tmp_path):
    choice = heatproof.choose(network, many[:16], methods={"constant": constant, "saliency": "saliency"})
    assert choice.table["in_set"].isna().any()
    assert heatproof.Choice.load(choice.save(tmp_path / "choice.json")) == choice


def test_a_table_is_saved_as_csv(choice, tmp_path):
    read = pd.read_csv(choice.save(tmp_path / "choice.CSV"))
    assert list(read) == list(choice.table)
    assert read["method"].tolist() == choice.table["method"].tolist()


@pytest.mark.parametrize("name", ["choice", "choice.txt", "choice.html.gz", "choice.pkl"])
def test_an_unknown_file_ending_is_refused_in_one_sentence(choice, name, tmp_path):
    with pytest.raises(HeatproofError, match=f"'{name}': end the name with .html for a page, .json .*, or .csv"):
        choice.save(tmp_path / name)
    assert not list(tmp_path.iterdir())


def changed(content, *places, to=None, drop=False):
    inner = content
    for key in places[:-1]:
        inner = inner[key]
    if drop:
        del inner[places[-1]]
    else:
        inner[places[-1]] = to
    return content


DAMAGED = {
    "no mapping": lambda content: [content],
    "an unknown version": lambda content: changed(content, "schema_version", to=2),
    "a field that lacks": lambda content: changed(content, "found", drop=True),
    "a field more": lambda content: changed(content, "more", to=1),
    "a sentence that is a number": lambda content: changed(content, "found", "sentence", to=3),
    "a level that is text": lambda content: changed(content, "level", to="0.95"),
    "a method that is a number": lambda content: changed(content, "rows", 0, "method", to=4),
    "a row without a method": lambda content: changed(content, "rows", 0, "method", drop=True),
    "a score that is text": lambda content: changed(content, "rows", 0, next(iter(content["measures"])), to="high"),
    "passes that are a truth": lambda content: changed(content, "rows", 0, "passes", to=True),
    "a column that lacks": lambda content: changed(content, "columns", to=content["columns"][1:]),
    "a row with a column more": lambda content: changed(content, "rows", 0, "more", to=1),
    "words of no measure": lambda content: changed(content, "words", to={"other": "words"}),
    "a measure without words": lambda content: changed(content, "found", "measures", to={}),
    "a measure without a metric": lambda content: changed(content, "measures", next(iter(content["measures"])), to={}),
    "a level that is no probability": lambda content: changed(content, "level", to=2.0),
    "images below none": lambda content: changed(content, "images", to=[-1, 5]),
    "a method twice": lambda content: changed(content, "rows", to=[*content["rows"], content["rows"][0]]),
    "a verdict without its methods": lambda content: changed(
        changed(content, "found", "verdict", to="found"), "rows", to=[]
    ),
    "a verdict of another method": lambda content: changed(
        changed(content, "found", "verdict", to="found"), "found", "best", to=["other"]
    ),
    "rows that are a text": lambda content: changed(content, "rows", to="many"),
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_a_file_that_is_not_a_choice_is_refused_in_one_sentence(damage, choice, tmp_path):
    path = choice.save(tmp_path / "choice.json")
    path.write_text(json.dumps(damage(json.loads(path.read_text(encoding="utf-8")))), encoding="utf-8")
    with pytest.raises(HeatproofError, match=r"choice\.json cannot be read .* heatproof\.Choice\.save") as caught:
        heatproof.Choice.load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 10**6, b"<html>"], ids=repr)
def test_missing_files_and_files_that_are_not_json_are_refused(content, tmp_path):
    path = tmp_path / "choice.json"
    with pytest.raises(HeatproofError, match="is missing: give a file"):
        heatproof.Choice.load(path)
    path.write_bytes(content)
    with pytest.raises(HeatproofError, match="cannot be read"):
        heatproof.Choice.load(path)


def test_sets_and_methods_are_best_first(network, many):
    choice = heatproof.choose(network, many, methods={"signed": signed, "unsigned": unsigned, "grad_cam": "grad_cam"})
    scores = choice.table.set_index("method")
    for measure, names in choice.sets.items():
        assert len(names) > 1
        assert scores.loc[names, measure].is_monotonic_decreasing
    assert list(choice.sets) == list(choice.measures)


def test_passes_of_checks_are_counted_separately(choice, network, many):
    # Three images in a batch, two of them alone, one of these again, all for the predicted classes, two and 14 pairs to
    # find the layer of class activation maps, and all once more, to compare what these alter in a pass.
    assert choice.check_passes == len(many) + 6 + 2 + 28 + len(many)
    assert f"Checks passed {choice.check_passes} images through the network" in choice.how
    passes = choice.table.set_index("method")["passes"]
    assert passes["random"] == 0


@pytest.mark.parametrize(("method", "rows"), [(unsigned, 1), (signed, 2)])
def test_maps_that_are_never_negative_are_ranked_once(method, rows, network, many):
    choice = heatproof.choose(network, many, methods={"own": method})
    ranked = [name for name in [*choice.table["method"], *choice.left_out] if name.removesuffix(ABS_SUFFIX) == "own"]
    assert len(ranked) == rows
    maps = heatproof.explain(network, many[:4], None, {"own": method})
    assert bool(maps["signed"].values[0]) == (rows == 2)


def test_absolute_values_selected_on_the_first_half_are_reported_if_the_second_half_is_unsigned(network, many):
    """Whether maps are signed is decided once, on the first half."""
    seen = []

    def sometimes(model, images, targets):
        seen.append(len(images))
        # Negative only in the first half, where absolute values score higher than signed values.
        truth = images.clone().requires_grad_()
        worth = torch.autograd.grad(model(truth).gather(1, targets[:, None]).sum(), truth)[0]
        maps = (worth * images).sum(1).relu()
        return -maps if sum(seen) <= len(many) // 2 else maps

    choice = heatproof.choose(network, many, methods={"own": sometimes})
    assert f"own{ABS_SUFFIX}" in choice.table["method"].tolist()


@pytest.mark.parametrize("other_methods", [{}, {"saliency": "saliency"}], ids=["alone", "beside another"])
def test_a_constant_method_has_no_score_but_a_reason(other_methods, network, many):
    with pytest.warns(UserWarning, match="'constant' is left out: its map of every image has one value"):
        choice = heatproof.choose(network, many, methods={"constant": constant, **other_methods})
    row = choice.table.set_index("method").loc["constant"]
    assert row["reason"] == "its map of every image has one value, which ranks no pixel"
    assert row["in_set"] is np.False_ or not row["in_set"]
    assert not {"constant", f"constant{ABS_SUFFIX}"} & set(choice.left_out)
    assert f"constant{ABS_SUFFIX}" not in choice.table["method"].tolist()


def test_a_method_that_fails_on_the_second_half_has_a_reason(network, many):
    calls = []

    def fails(model, images, targets):
        calls.append(len(images))
        if sum(calls) > len(many) // 2:
            raise RuntimeError("the second half")
        return images.sum(1)

    with pytest.warns(UserWarning, match="'own' is left out"):
        choice = heatproof.choose(network, many, methods={"own": fails, "saliency": "saliency"})
    assert "the second half" in choice.table.set_index("method").loc["own", "reason"]
    assert "saliency" in choice.table["method"].str.removesuffix(ABS_SUFFIX).tolist()


@pytest.mark.parametrize(("distinct", "verb"), [(1, "is"), (15, "are")])
def test_too_few_distinct_images_are_refused_in_one_sentence(distinct, verb, network, many):
    copies = many[:distinct].repeat(32 // distinct + 1, 1, 1, 1)[:32]
    with pytest.raises(HeatproofError, match=f"{distinct} of the 32 images {verb} distinct.*at least 16 distinct"):
        heatproof.choose(network, copies, methods="saliency")


def test_copies_among_the_images_cause_a_warning(network, many):
    with pytest.warns(UserWarning, match="2 of the 22 images are copies of others") as messages:
        heatproof.choose(network, torch.cat([many[:20], many[:2]]), methods="saliency")
    assert messages[0].filename == __file__


class OneSignHead(nn.Module):
    """A network whose head has only weights of one sign."""

    def __init__(self, sign):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.late = nn.ReLU()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(8, 3)
        with torch.no_grad():
            self.head.weight.copy_(sign * self.head.weight.abs())

    def forward(self, images):
        return self.head(self.pool(self.late(self.stem(images))).flatten(1))


CAMS = ["grad_cam", "xgrad_cam"]


def test_the_layer_of_class_activation_maps_is_recorded():
    torch.manual_seed(0)
    model, images = OneSignHead(1).eval(), torch.randn(4, 3, 16, 16)
    explain = heatproof.explain
    explained = explain(model, images, None, CAMS)
    assert explained.attrs["layer"] == "late"
    np.testing.assert_array_equal(
        explained["attribution"], explain(model, images, None, CAMS, layer="late")["attribution"]
    )
    assert explain(model, images, None, CAMS, layer=model.stem).attrs["layer"] == "stem"
    assert explain(model, images, None, "saliency").attrs["layer"] == ""
    assert explain(nn.Sequential(nn.Flatten(), nn.Linear(768, 3)).eval(), images, None, CAMS).attrs["layer"] == ""
    assert explain(torch.compile(model), images, None, CAMS).attrs["layer"] == "late"


@pytest.mark.parametrize("name", [*CAMS, "score_cam"])
def test_the_reason_states_that_a_cam_is_negative_everywhere(name):
    torch.manual_seed(0)
    images = torch.randn(4, 3, 16, 16)
    reason = (
        "each of its maps is negative everywhere, and therefore zero after the ReLU: try hires_cam or another layer"
    )
    reasons = [heatproof.explain(OneSignHead(sign).eval(), images, None, name)["reason"].item() for sign in (1, -1)]
    # The weights of Score-CAM are a softmax, which is never negative.
    assert reasons == ["", "" if name == "score_cam" else reason]
    dead = OneSignHead(-1).eval()
    with torch.no_grad():
        dead.stem.weight.zero_()
        dead.stem.bias.fill_(-1)
    assert heatproof.explain(dead, images, None, "grad_cam")["reason"].item() == ("each of its maps is constant")


def test_a_compiled_network_has_the_same_choice(network, many):
    compiled = torch.compile(network)
    methods = ["saliency", "grad_cam"]
    plain, of_compiled = (heatproof.choose(wrapped, many[:16], methods=methods) for wrapped in (network, compiled))
    pd.testing.assert_frame_equal(plain.table.drop(columns="seconds"), of_compiled.table.drop(columns="seconds"))
    assert (of_compiled.table["reason"] == "").all()


@pytest.mark.parametrize("is_labelled", [False, True], ids=["arrays", "labelled arrays"])
def test_parts_are_selected_with_their_images(is_labelled, network, many):
    masks = torch.zeros(len(many), 4, 16, 16, dtype=torch.bool)
    for image, part in itertools.product(range(len(many)), range(4)):
        masks[image, part, :, 4 * ((part + image) % 4) : 4 * ((part + image) % 4) + 4] = True
    removed = many[:, None] * ~masks[:, :, None]
    order = torch.randperm(len(many), generator=torch.Generator().manual_seed(1))

    def scores(rows):
        options = {"masks": masks[rows].numpy(), "removed": removed[rows].numpy()}
        if is_labelled:
            images = xarray.DataArray(many.numpy(), dims=("image", "channel", "y", "x")).assign_coords(
                image=[f"photo {number}" for number in range(len(many))]
            )
            dims = {"masks": ("image", "part", "y", "x"), "removed": ("image", "part", "channel", "y", "x")}
            options = {
                name: xarray.DataArray(values, dims=dims[name], coords={"image": images["image"].values[rows]})
                for name, values in options.items()
            }
        else:
            images = many[rows]
        measures = {"parts": {"metric": "part_deletion", **options}}
        return heatproof.choose(network, images, methods=["saliency", "grad_cam"], measures=measures).table["parts"]

    pd.testing.assert_series_equal(scores(order), scores(torch.arange(len(many))))


def test_parts_of_another_number_of_images_are_refused(network, many):
    half = len(many) // 2
    masks = np.ones((half, 2, 16, 16), dtype=bool)
    removed = np.zeros((half, 2, 3, 16, 16), dtype=np.float32)
    measures = {"parts": {"metric": "part_deletion", "masks": masks, "removed": removed}}
    with pytest.raises(HeatproofError, match=f"of {half} images and {len(many)} are given"):
        heatproof.choose(network, many, methods=["saliency"], measures=measures)
