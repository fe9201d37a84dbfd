"""Arbitrary targets in memory: exact results, alignment of labels, refused inputs, and scores of several labels."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
import xarray

import heatproof
from heatproof.errors import HeatproofError

SIDE, GRID = 8, 4
STEP = SIDE // GRID


class KnownDrops(torch.nn.Module):
    """A network whose drops are known: linear, or with the product of the sums of the first and the last patch."""

    def __init__(self, outputs: int, product: bool) -> None:
        super().__init__()
        self.linear, self.product = torch.nn.Linear(3 * SIDE**2, outputs).double(), product

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        outputs = self.linear(images.flatten(1))
        if self.product:
            first, last = self.sums(images)
            outputs = outputs + (first * last)[:, None] * torch.arange(1, outputs.shape[1] + 1)
        return outputs

    @staticmethod
    def sums(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return images[..., :STEP, :STEP].sum((1, 2, 3)), images[..., -STEP:, -STEP:].sum((1, 2, 3))

    def maps(self, images: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return maps whose sums over patches are the drops of the outputs times weights (N, K)."""
        maps = images * (weights @ self.linear.weight).reshape(images.shape)
        if self.product:
            first, last = (total[:, None, None, None] for total in self.sums(images))
            times = (weights @ torch.arange(1, weights.shape[1] + 1).double())[:, None, None, None]
            maps[..., :STEP, :STEP] += times * images[..., :STEP, :STEP] * last
            maps[..., -STEP:, -STEP:] += times * images[..., -STEP:, -STEP:] * first
        return maps.sum(1).detach()


def _hot(columns, width: int) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.as_tensor(columns), width).double()


COUNT = 36
LABELS = (torch.arange(COUNT * 3).reshape(COUNT, 3) * 7 % 5 < 2).int()
LABELS[:, 0] = 1
CLASSES, DIFFERENCE = torch.arange(COUNT) % 3, torch.tensor([[-1.0, 0, 1]] * COUNT).double()
WEIGHTS = torch.arange(COUNT * 3.0, dtype=torch.float64).reshape(COUNT, 3).cos()
# Outputs, targets, further arguments, and for each row the image and the weights of the outputs.
TARGETS = {
    "binary, positive": (1, torch.ones(COUNT).long(), {}, None, torch.full((COUNT, 1), 0.5).double()),
    "binary, negative": (1, torch.zeros(COUNT).long(), {"task": "binary"}, None, torch.full((COUNT, 1), -0.5).double()),
    "multiclass": (3, CLASSES, {}, None, _hot(CLASSES, 3)),
    "multilabel": (3, LABELS, {"task": "multilabel"}, LABELS.nonzero()[:, 0], _hot(LABELS.nonzero()[:, 1], 3)),
    "regression": (1, None, {"task": "regression"}, None, torch.ones(COUNT, 1).double()),
    "regression of several": (3, CLASSES, {"task": "regression"}, None, _hot(CLASSES, 3)),
    "a function": (3, None, {"target": lambda output, _: output[:, 2] - output[:, 0]}, None, DIFFERENCE),
    "a function of targets": (3, WEIGHTS, {"target": lambda output, weights: (output * weights).sum(1)}, None, WEIGHTS),
}  # fmt: skip


def _known(case: str, product: bool):
    outputs, targets, options, rows, weights = TARGETS[case]
    torch.manual_seed(1)
    network, images = KnownDrops(outputs, product).eval(), torch.randn(COUNT, 3, SIDE, SIDE, dtype=torch.float64)
    rows = torch.arange(COUNT) if rows is None else rows
    return network, images, targets, options, network.maps(images[rows], weights)


@pytest.mark.parametrize("product", [False, True], ids=["linear", "product"])
@pytest.mark.parametrize("case", TARGETS)
def test_scores_of_true_maps_are_exact(case: str, product: bool) -> None:
    network, images, targets, options, maps = _known(case, product)
    scores = heatproof.evaluate(
        "sds", network, images, targets, {"true": maps, "negative": -maps}, grid=GRID, baseline="zeros", **options
    )
    assert scores["score"].sel({"method": "true"}).values == pytest.approx(np.ones(len(maps)), abs=1e-6)
    assert scores["score"].sel({"method": "negative"}).values == pytest.approx(-np.ones(len(maps)), abs=1e-6)
    assert scores.attrs["task"] == {"a": "callable", "regression": "regression"}.get(
        case.split()[0], case.split(",")[0]
    )


@pytest.mark.parametrize("product", [False, True], ids=["linear", "product"])
@pytest.mark.parametrize("case", TARGETS)
@pytest.mark.filterwarnings("ignore:The network (answers|finds)")
def test_choose_finds_the_true_maps(case: str, product: bool) -> None:
    network, images, targets, options, maps = _known(case, product)
    rows = LABELS.nonzero()[:, 0] if case == "multilabel" else torch.arange(COUNT)
    columns = LABELS.nonzero()[:, 1] if case == "multilabel" else torch.zeros(COUNT).long()
    map_of = {}
    for row, column, values in zip(rows.tolist(), columns.tolist(), maps, strict=True):
        map_of[images[row].numpy().tobytes(), column] = values

    def true(model, images, targets):
        row_labels = targets.tolist() if case == "multilabel" else [0] * len(images)
        return torch.stack(
            [map_of[image.numpy().tobytes(), label] for image, label in zip(images, row_labels, strict=True)]
        )

    def negative(model, images, targets):
        return -true(model, images, targets)

    measures = {"sds": {"grid": GRID, "baseline": "zeros"}}
    choice = heatproof.choose(network, images, targets, [true, negative], measures=measures, **options)
    assert choice.best == "true"
    means = choice.table.set_index("method")["sds"]
    assert means["true"] == pytest.approx(1, abs=1e-6)
    # Absolute values lose the signs, and the signs are all wrong: with either of them, the method scores lower.
    assert means[[name for name in means.index if name.startswith("negative")]].max() < 0.9


def test_both_classes_of_one_logit_have_opposite_maps() -> None:
    network, images, _, _, maps = _known("binary, positive", True)
    maps_by_target = {
        target: heatproof.explain(network, images, torch.full((COUNT,), target), "input_x_gradient")["attribution"]
        for target in (0, 1)
    }
    assert maps_by_target[1].values == pytest.approx(-maps_by_target[0].values)
    assert maps_by_target[1].values[0] == pytest.approx(maps.numpy(), abs=1e-5)


@pytest.mark.parametrize("case", TARGETS)
def test_maps_are_matched_to_images_and_targets(case: str) -> None:
    network, images, targets, options, _ = _known(case, True)
    maps = heatproof.explain(network, images, targets, ["input_x_gradient", "random"], **options)
    common = {"grid": GRID, "baseline": "zeros", **options}
    all_scores = heatproof.evaluate("sds", network, images, targets, maps, **common)["score"]
    mixed = torch.randperm(len(maps["image"])).tolist()
    again = heatproof.evaluate("sds", network, images, targets, maps.isel(image=mixed), **common)["score"]
    assert again.values == pytest.approx(all_scores.values)
    assert again["image"].values.tolist() == all_scores["image"].values.tolist()
    rows = [7, 3, 11]
    row_targets = None if targets is None else targets[rows]
    part = heatproof.evaluate("sds", network, images[rows], row_targets, maps, image_ids=["7", "3", "11"], **common)[
        "score"
    ]
    for name in ("7", "3", "11"):
        assert part[:, part["image"] == name].values == pytest.approx(all_scores[:, all_scores["image"] == name].values)
    if "target" not in options:
        # Maps record what they explain.
        recorded = heatproof.evaluate("sds", network, images, None, maps, **common)["score"]
        assert recorded.values == pytest.approx(all_scores.values)


REFUSED = {
    "another task": ({"task": "regression"}, {}, 1, None, None, "give task='regression'"),
    "no task of maps": ({}, {"task": "regression"}, 1, torch.zeros(COUNT).long(), None, "leave task='regression' out"),
    "labels as classes": ({"task": "multilabel"}, {}, 3, LABELS, torch.arange(COUNT) % 3, "give task='multilabel'"),
    "another function": (
        {"target": lambda output, _: output[:, 0]},
        {"target": lambda output, _: output[:, 1]},
        3,
        None,
        None,
        "explains another target",
    ),
    "other targets of a function": (
        {"target": TARGETS["a function of targets"][2]["target"]},
        {"target": TARGETS["a function of targets"][2]["target"]},
        3,
        WEIGHTS,
        WEIGHTS.flip(0),
        "explains another target",
    ),
    "a function of maps of classes": (
        {},
        {"target": lambda output, _: output[:, 1]},
        3,
        torch.zeros(COUNT).long(),
        None,
        "leave the target function out",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_maps_of_another_target_are_refused(case: str) -> None:
    options, scoring_options, outputs, targets, scored_targets, sentence = REFUSED[case]
    network, images = KnownDrops(outputs, False).eval(), torch.randn(COUNT, 3, SIDE, SIDE, dtype=torch.float64)
    maps = heatproof.explain(network, images, targets, "input_x_gradient", **options)
    with pytest.raises(HeatproofError, match=sentence):
        heatproof.evaluate("sds", network, images, scored_targets, maps, **scoring_options)
    # So does a single array of a result.
    with pytest.raises(HeatproofError, match=sentence):
        heatproof.evaluate(
            "sds", network, images, scored_targets, maps["attribution"].isel(method=0) * 1.0, **scoring_options
        )


def _pairs(maps) -> list[tuple[str, int]]:
    return list(zip(maps["image"].values.tolist(), maps["target"].values.tolist(), strict=True))


FORMS = {
    "a tensor": lambda labels: labels,
    "truths": lambda labels: labels == 1,
    "numbers": lambda labels: labels.double(),
    "a list": lambda labels: labels.tolist(),
    "an array": lambda labels: labels.numpy(),
    "unknown as NaN": lambda labels: torch.where(labels == 0, float("nan"), labels.float()),
    "unknown as -1": lambda labels: torch.where(labels == 0, -1, labels),
    "a table": lambda labels: pd.DataFrame(labels.numpy(), columns=["a", "b", "c"]),
    "a named array": lambda labels: xarray.DataArray(labels.numpy(), dims=("image", "label")),
    "a named array, turned": lambda labels: xarray.DataArray(labels.numpy().T, dims=("label", "image")),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_label_of_an_image_is_a_row(form: str) -> None:
    network, images = KnownDrops(3, False).eval(), torch.randn(4, 3, SIDE, SIDE, dtype=torch.float64)
    labels = torch.tensor([[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1]])
    with pytest.warns(UserWarning, match="1 of the 4 images have no label"):
        maps = heatproof.explain(network, images, FORMS[form](labels), "saliency", task="multilabel")
    assert _pairs(maps) == [("0", 0), ("0", 2), ("2", 1), ("3", 0), ("3", 1), ("3", 2)]
    assert maps.attrs["task"] == "multilabel"


def test_labels_of_loaders_and_tables_are_aligned_and_classes_can_be_selected() -> None:
    network, images = KnownDrops(3, False).eval(), torch.randn(4, 3, SIDE, SIDE, dtype=torch.float64)
    labels = torch.tensor([[1, 0, 1], [0, 1, 0], [0, 1, 0], [1, 1, 1]])
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), 3)
    wanted = [("0", 0), ("0", 2), ("1", 1), ("2", 1), ("3", 0), ("3", 1), ("3", 2)]
    assert _pairs(heatproof.explain(network, loader, None, "saliency", task="multilabel")) == wanted
    table = pd.DataFrame(labels.flip(0).numpy(), index=list("dcba"), columns=["cat", "dog", "cow"])
    result = heatproof.explain(
        network, images, table, "saliency", task="multilabel", image_ids=list("abcd"), classes=["dog"]
    )
    assert _pairs(result) == [("b", 1), ("c", 1), ("d", 1)]
    # Without targets, the label with the largest logit is explained.
    result = heatproof.explain(network, images, None, "saliency", task="multilabel")
    assert result["target"].values.tolist() == network(images).argmax(1).tolist()


def test_targets_of_functions_have_any_type_and_are_aligned_by_image() -> None:
    network, images = KnownDrops(3, False).eval(), torch.randn(4, 3, SIDE, SIDE, dtype=torch.float64)

    def picked(output: torch.Tensor, targets) -> torch.Tensor:
        return torch.stack([row["abc".index(name)] for row, name in zip(output, targets, strict=True)])

    result = heatproof.explain(network, images, list("abca"), "input_x_gradient", target=picked)
    assert result["target"].values.tolist() == list("abca")
    plain = heatproof.explain(network, images, [0, 1, 2, 0], "input_x_gradient")
    assert result["attribution"].values == pytest.approx(plain["attribution"].values)
    named = pd.Series(list("acba"), index=["3", "2", "1", "0"])
    again = heatproof.explain(network, images, named, "input_x_gradient", target=picked, image_ids=["0", "1", "2", "3"])
    assert again["attribution"].equals(result["attribution"])
    with pytest.raises(HeatproofError, match="give one for each image"):
        heatproof.explain(network, images, list("ab"), "input_x_gradient", target=picked)


WRONG = {
    "no task": ({"task": "labels"}, None, 3, "take one of binary, multiclass, multilabel, regression"),
    "both": ({"task": "regression", "target": lambda output, _: output[:, 0]}, None, 3, "leave task='regression' out"),
    "no function": ({"target": 3}, None, 3, "give a function of a network's output"),
    "several labels of a classifier": ({}, LABELS, 3, "give task='multilabel'"),
    "one label of a classifier": ({}, torch.eye(3)[torch.arange(COUNT) % 3], 3, "or task='multilabel'"),
    "ages of a classifier": ({}, torch.rand(COUNT), 3, "or task='regression'"),
    "columns of others": ({"task": "multilabel"}, LABELS[:, :2], 3, "2 columns and the model returns 3"),
    "counts of labels": ({"task": "multilabel"}, 2 * LABELS, 3, "have the value 2"),
    "no labels at all": ({"task": "multilabel"}, 0 * LABELS, 3, "nothing to explain"),
    "lists of labels": ({"task": "multilabel"}, [[0], [1, 2]] * 18, 3, "one column for each label"),
    "which number": ({"task": "regression"}, None, 3, r"target=lambda output, targets: output\[:, 0\]"),
    "which number of floats": ({"task": "regression"}, torch.rand(COUNT), 3, "the explained one"),
    "a binary of three": ({"task": "binary"}, None, 3, "the task is binary"),
    "a multiclass of one": ({"task": "multiclass"}, None, 1, "the task is multiclass"),
    "a function of no numbers": ({"target": lambda output, _: output}, None, 3, "one number for each image"),
    "a function that fails": ({"target": lambda output, _: output["out"]}, None, 3, "fails on the model's output"),
    "classes of a regression": ({"task": "regression", "classes": [1]}, None, 1, "leave it out"),
}


@pytest.mark.parametrize("case", WRONG)
def test_targets_that_do_not_fit_the_task_are_refused(case: str) -> None:
    options, targets, outputs, sentence = WRONG[case]
    network, images = KnownDrops(outputs, False).eval(), torch.randn(COUNT, 3, SIDE, SIDE, dtype=torch.float64)
    with pytest.raises(HeatproofError, match=sentence):
        heatproof.explain(network, images, targets, "saliency", **options)


def test_a_metric_that_is_not_applicable_has_a_reason_and_no_pass() -> None:
    network, images, targets, options, maps = _known("a function", False)
    with pytest.warns(UserWarning, match="'rise_deletion' is not applicable") as warned:
        scores = heatproof.evaluate(["sds", "rise_deletion", "road_morf"], network, images, targets, maps, **options)
    assert len(warned) == 1
    for name, kind in (("rise_deletion", "a probability"), ("road_morf", "a class decision")):
        assert np.isnan(scores[name]["score"]).all()
        assert not scores[name]["valid"].any()
        assert all(f"reads {kind}" in reason for reason in scores[name]["reason"].values)
    assert scores["sds"]["valid"].all()
    # Logits are numbers.
    result = heatproof.evaluate("rise_deletion", network, images, targets, maps, output="logit", steps=4, **options)
    assert result["valid"].all()
    passed = []
    handle = network.register_forward_pre_hook(lambda _, arguments: passed.append(len(arguments[0])))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        missing = heatproof.evaluate("rise_deletion", network, images, targets, maps, **options)
    handle.remove()
    assert sum(passed) == missing.attrs["check_passes"]


@pytest.mark.filterwarnings("ignore:The network (answers|finds)")
def test_an_image_counts_once_however_many_labels_it_has() -> None:
    network, images, targets, options, _ = _known("multilabel", True)
    measures = {"sds": {"grid": GRID, "baseline": "zeros"}}
    methods = ["saliency", "input_x_gradient"]
    choice = heatproof.choose(network, images, targets, methods, measures=measures, **options)
    assert choice.images == (COUNT // 2, COUNT // 2)
    # Every label three times, as columns of equal outputs, adds no information.
    tripled = KnownDrops(9, False).eval()
    with torch.no_grad():
        tripled.linear.weight.copy_(network.linear.weight.repeat(3, 1))
        tripled.linear.bias.copy_(network.linear.bias.repeat(3))
    network.product = False
    once = heatproof.choose(network, images, targets, ["saliency"], measures=measures, **options).table
    thrice = heatproof.choose(tripled, images, targets.repeat(1, 3), ["saliency"], measures=measures, **options).table
    scores = [
        choice[choice["method"].str.startswith("saliency")][["sds", "sds, low", "sds, high"]].to_numpy(float)
        for choice in (once, thrice)
    ]
    assert np.isfinite(scores[0]).all()
    assert scores[1] == pytest.approx(scores[0], abs=1e-9)


@pytest.mark.filterwarnings("ignore:The network (answers|finds)")
def test_a_choice_of_several_labels_is_also_reported_by_label(tmp_path) -> None:
    network, images, targets, options, _ = _known("multilabel", False)
    choice = heatproof.choose(
        network, images, targets, ["input_x_gradient"], measures={"sds": {"grid": GRID, "baseline": "zeros"}}, **options
    )
    assert list(choice.by_label.columns) == ["label", "images", "methods", "verdict"]
    first = choice.by_label.iloc[0]
    assert (first["label"], first["images"], first["methods"], first["verdict"]) == (
        "0", COUNT // 2, "input_x_gradient", "found",
    )  # fmt: skip
    rest = choice.by_label.iloc[1:]
    assert (rest["images"] < 16).all()
    assert set(rest["verdict"]) == {"too few images"}
    assert "By label" in str(choice)
    again = heatproof.Choice.load(choice.save(tmp_path / "choice.json"))
    assert again == choice
    assert again.by_label.equals(choice.by_label)
    assert "By label" in choice.save(tmp_path / "choice.html").read_text()
    single = heatproof.choose(network, images, None, ["input_x_gradient"], measures={"sds": {"baseline": "zeros"}})
    assert single.by_label is None


@pytest.mark.filterwarnings("ignore:The network (answers|finds)")
def test_copies_of_an_image_add_no_information_about_a_label() -> None:
    network, images, targets, options, _ = _known("multilabel", False)
    measures = {"sds": {"grid": GRID, "baseline": "zeros"}}
    with pytest.warns(UserWarning, match="copies of others"):
        choice = heatproof.choose(
            network,
            images[:16].repeat(5, 1, 1, 1),
            targets[:16].repeat(5, 1),
            ["saliency"],
            measures=measures,
            **options,
        )
    assert (choice.by_label["images"] <= 8).all()
    assert set(choice.by_label["verdict"]) == {"too few images"}


def test_measures_that_are_not_applicable_are_refused() -> None:
    network, images, targets, options, _ = _known("a function", False)
    with pytest.raises(HeatproofError, match="'rise_insertion' is not applicable, because it reads a probability"):
        heatproof.choose(network, images, targets, ["saliency"], measures={"rise_insertion": {}}, **options)


def _mask(seed: int) -> torch.Tensor:
    return (torch.rand(3, generator=torch.Generator().manual_seed(seed)) + 0.5).double()


@pytest.mark.parametrize("product", [False, True])
def test_a_cache_distinguishes_tasks_functions_and_targets(tmp_path, product: bool) -> None:
    torch.manual_seed(0)
    network, images = KnownDrops(3, product).eval(), torch.randn(4, 3, SIDE, SIDE, dtype=torch.float64)

    def summed(output: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return (output * weights).sum(1)

    def of_mask(mask: torch.Tensor):
        return lambda output, _: (output * mask).sum(1)

    calls = {
        "classes": ([0, 1, 2, 0], {}),
        "labels": ([0, 1, 2, 0], {"task": "multilabel"}),
        "numbers": ([0, 1, 2, 0], {"task": "regression"}),
        "a function": (WEIGHTS[:4], {"target": summed}),
        "other targets": (WEIGHTS[4:8], {"target": summed}),
        "a mask": (None, {"target": of_mask(_mask(0))}),
        "another mask": (None, {"target": of_mask(_mask(1))}),
    }
    seen = []
    for name, (targets, options) in calls.items():
        plain = heatproof.explain(network, images, targets, "input_x_gradient", **options)
        cached = heatproof.explain(network, images, targets, "input_x_gradient", cache=tmp_path, **options)
        assert cached["attribution"].values == pytest.approx(plain["attribution"].values), name
        assert (
            not seen
            or name in ("labels", "numbers")
            or not any(np.array_equal(cached["attribution"].values, earlier) for earlier in seen)
        )
        seen.append(cached["attribution"].values)
    # Results for the same target are not computed twice.
    ran = []
    handle = network.register_full_backward_hook(lambda *_: ran.append(1))
    handle.remove()
    for targets, options in calls.values():
        before = heatproof.explain(network, images, targets, "input_x_gradient", cache=tmp_path, **options)
        assert not any(before["reason"].values)
    files = sorted(tmp_path.rglob("*.npz")) or sorted(path for path in tmp_path.rglob("*") if path.is_file())
    stamps = [path.stat().st_mtime_ns for path in files if "maps" in path.parts]
    for targets, options in calls.values():
        heatproof.explain(network, images, targets, "input_x_gradient", cache=tmp_path, **options)
    assert [path.stat().st_mtime_ns for path in files if "maps" in path.parts] == stamps


def test_a_function_without_an_identity_is_refused_only_with_a_cache(tmp_path) -> None:
    network, images = KnownDrops(3, False).eval(), torch.randn(4, 3, SIDE, SIDE, dtype=torch.float64)
    generator = torch.Generator()

    def drawn(output: torch.Tensor, _: None) -> torch.Tensor:
        assert generator is not None
        return output[:, 0]

    assert not any(heatproof.explain(network, images, None, "saliency", target=drawn)["reason"].values)
    with pytest.raises(HeatproofError, match="target function cannot be cached"):
        heatproof.explain(network, images, None, "saliency", target=drawn, cache=tmp_path)


def test_image_scores_accept_tasks_and_target_functions() -> None:
    from heatproof.quality import image_scores

    for case in ("multilabel", "regression", "a function of targets"):
        network, images, targets, options, _ = _known(case, True)
        maps = heatproof.explain(network, images, targets, ["input_x_gradient", "random"], **options)
        table = image_scores(network, images, targets, maps, {"sds": {"grid": GRID, "baseline": "zeros"}}, **options)
        direct = heatproof.evaluate("sds", network, images, targets, maps, grid=GRID, baseline="zeros", **options)
        for name in ("input_x_gradient", "random"):
            method_scores = table.loc[table["method"] == name, "score"].to_numpy()
            assert method_scores == pytest.approx(direct["score"].sel({"method": name}).values), case


def test_a_ranking_per_image_applies_to_each_of_its_labels() -> None:
    network, images, targets, options, maps = _known("multilabel", False)
    image_rows = LABELS.nonzero()[:, 0]
    order = torch.stack([image.argsort() for image in images.sum(1).flatten(1)]).numpy()
    by_image = heatproof.evaluate("rise_deletion", network, images, targets, maps, ranking=order, steps=4, **options)
    by_row = heatproof.evaluate(
        "rise_deletion", network, images, targets, maps, ranking=order[image_rows], steps=4, **options
    )
    assert by_image.equals(by_row)


OUTPUTS = {
    "a map": lambda images: images[:, :2],
    "a dict of maps": lambda images: {"out": images[:, :2], "aux": images},
    "a list of dicts": lambda images: [{"boxes": image} for image in images],
}


@pytest.mark.parametrize("form", OUTPUTS)
def test_outputs_that_are_no_logits_name_the_target_function(form: str) -> None:
    class Network(torch.nn.Module):
        def forward(self, images: torch.Tensor):
            return OUTPUTS[form](images)

    network, images = Network().eval(), torch.randn(20, 3, SIDE, SIDE)
    for call in (
        lambda: heatproof.explain(network, images, None, "saliency"),
        lambda: heatproof.evaluate("sds", network, images, None, images[:, 0]),
        lambda: heatproof.choose(network, images),
    ):
        with pytest.raises(HeatproofError, match="target=lambda output, targets"):
            call()
