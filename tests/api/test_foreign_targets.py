"""Target functions and labels in the forms that callers use, on a linear network whose maps and drops are known."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import heatproof
from heatproof.errors import HeatproofError

COUNT, CLASSES, SIZE = 12, 3, 8
CLASS = torch.arange(COUNT) % CLASSES


class Linear(torch.nn.Module):
    def __init__(self, wrap=None):
        super().__init__()
        self.wrap = wrap
        draws = torch.Generator().manual_seed(0)
        self.weights = torch.nn.Parameter(torch.randn(CLASSES, 3, SIZE, SIZE, generator=draws))
        self.eval()

    def forward(self, images):
        logits = torch.einsum("nchw,kchw->nk", images, self.weights)
        return logits if self.wrap is None else self.wrap(logits)

    def truth(self, images, classes):
        return (images * self.weights.detach()[classes]).sum(1)


@pytest.fixture
def images():
    return torch.randn(COUNT, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))


def number(target: Any) -> int:
    """Return the class that a target of any type names first."""
    if isinstance(target, dict):
        return int(target["class"])
    return int(target) if isinstance(target, str | int | float) else number(next(iter(target)))


def of_class(output, targets):
    chosen = torch.tensor([0 if target is None else number(target) for target in targets])
    return output.gather(1, chosen[:, None])[:, 0]


class Lazy:
    """A sequence that creates its items when they are accessed."""

    def __len__(self):
        return COUNT

    def __getitem__(self, row):
        return {"class": int(CLASS[row])}


KINDS: dict[str, Any] = {
    "a frame of several types": pd.DataFrame({"class": CLASS.numpy(), "name": ["x"] * COUNT}),
    "objects in columns": np.array([[int(number), None] for number in CLASS], dtype=object),
    "lists of several lengths": [[int(number)] * (1 + int(number)) for number in CLASS],
    "rows of several types": [[int(number), "x"] for number in CLASS],
    "some of them None": [None if number == 0 else int(number) for number in CLASS],
    "dicts": [{"class": int(number)} for number in CLASS],
    "made when asked for": Lazy(),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_image_has_its_own_target_of_any_kind(images, kind: str) -> None:
    network = Linear()
    maps = heatproof.explain(network, images, KINDS[kind], "input_x_gradient", target=of_class, progress=False)
    truth = network.truth(images, CLASS)
    assert np.allclose(maps["attribution"].squeeze().values, truth, atol=1e-5)
    scores = heatproof.evaluate("sds", network, images, KINDS[kind], truth, target=of_class, baseline="zeros")
    assert np.allclose(scores["score"], 1)


@dataclass
class Output:
    logits: torch.Tensor


class SelfReferring:
    def __init__(self, logits):
        self.logits = logits
        self.itself, self.parts = self, [logits]


WRAPS = {
    "a tensor": (None, lambda output: output),
    "a dict in a tuple": (lambda logits: ({"out": logits},), lambda output: output[0]["out"]),
    "a list": (lambda logits: [logits], lambda output: output[0]),
    "an object": (Output, lambda output: output.logits),
    "an object that holds itself": (SelfReferring, lambda output: output.itself.logits),
}


@pytest.mark.parametrize("batch_size", [1, 2, 64])
@pytest.mark.parametrize("wrap", WRAPS)
def test_a_function_that_writes_to_its_arguments_changes_no_result(images, wrap: str, batch_size: int) -> None:
    wrapped, kind = WRAPS[wrap]

    def shifted(output, targets):
        logits = kind(output)
        logits *= 2
        logits[:, 1:] -= logits[:, :1]
        targets += 1
        return logits.gather(1, targets[:, None] % CLASSES)[:, 0]

    network, classes = Linear(wrapped), (CLASS + 1) % CLASSES
    truth = 2 * (network.truth(images, classes) - (classes > 0)[:, None, None] * network.truth(images, 0 * classes))
    options = {"target": shifted, "batch_size": batch_size}
    scores = heatproof.evaluate("sds", network, images, CLASS, truth, baseline="zeros", **options)
    assert np.allclose(scores["score"], 1)
    maps = heatproof.explain(network, images, CLASS, "input_x_gradient", progress=False, **options)
    assert np.allclose(maps["attribution"].squeeze().values, truth, atol=1e-4)


def test_a_function_that_does_not_write_shares_the_memory_of_outputs_and_targets(images) -> None:
    seen: list[tuple[int, int]] = []

    def over_mask(output, masks):
        seen.append((output["out"].untyped_storage().data_ptr(), len(masks) > 1 and masks.stride()[0]))
        return (output["out"] * masks).sum(1)

    outputs: list[int] = []

    def wrap(logits):
        outputs.append(logits.untyped_storage().data_ptr())
        return {"out": logits}

    masks = torch.eye(CLASSES)[CLASS] + torch.arange(COUNT)[:, None]
    heatproof.explain(Linear(wrap), images, masks, "input_x_gradient", target=over_mask, progress=False)
    # Every image has its own mask, and one batch has most of them; copies would have as many addresses.
    rest = seen[3:]
    assert len({output[0] for output in rest}) <= len(outputs) < len(rest)
    assert {output[1] for output in rest} == {0}


def test_a_function_that_writes_only_sometimes_is_refused(images) -> None:
    def late(output, targets):
        if int(targets[0]) == 2 and len(output) > 3:
            output *= 2
        return output[:, 0]

    with pytest.raises(HeatproofError, match="'late' writes to its arguments, but not in all batches"):
        heatproof.evaluate("sds", Linear(), images, CLASS, np.ones((COUNT, SIZE, SIZE)), target=late, batch_size=12)


@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_a_function_undefined_for_targets_of_other_images_is_supported(images, batch_size: int) -> None:
    network = Linear()
    with torch.no_grad():
        classes = network(images).argmax(1)

    def over_predicted(output, targets):
        """Return the mean of a class where it is predicted, which is 0 / 0 where it is not."""
        predicted = (output.argmax(1) == targets).float()
        return output.gather(1, targets[:, None])[:, 0] * predicted / predicted

    options = {"target": over_predicted, "batch_size": batch_size}
    maps = heatproof.explain(network, images, classes, "input_x_gradient", progress=False, **options)
    assert (maps["reason"] == "").all()
    assert np.allclose(maps["attribution"].squeeze().values, network.truth(images, classes), atol=1e-4)
    with pytest.raises(HeatproofError, match="'over_predicted' returned a number that is not finite for image"):
        heatproof.evaluate("sds", network, images, (classes + 1) % CLASSES, np.ones((COUNT, 8, 8)), **options)


PRESENT = np.array([[1, 0, 1], [0, 1, -1]] * (COUNT // 2))
BLANK = pd.DataFrame(PRESENT).astype("Int64").replace(-1, pd.NA)
LABELS: dict[str, Any] = {
    "whole numbers with blanks": BLANK,
    "booleans with blanks": BLANK.astype("boolean"),
    "a tensor each": list(torch.tensor(PRESENT)),
    "an array each": tuple(PRESENT),
}


@pytest.mark.parametrize("form", LABELS)
def test_labels_with_missing_values_and_sequences_of_rows_are_read(images, form: str) -> None:
    network = Linear()
    rows, classes = torch.tensor(PRESENT == 1).nonzero(as_tuple=True)
    truth = network.truth(images[rows], classes)
    scores = heatproof.evaluate("sds", network, images, LABELS[form], truth, task="multilabel", baseline="zeros")
    assert np.allclose(scores["score"], 1)
    assert scores["target"].values.tolist() == classes.tolist()


@pytest.mark.parametrize("labels", [[[0], [1, 2]] * (COUNT // 2), [{0}] * COUNT, {"a": [1] * COUNT}], ids=type)
def test_labels_without_columns_are_refused(images, labels: Any) -> None:
    with pytest.raises(HeatproofError, match="give one column for each label"):
        heatproof.explain(Linear(), images, labels, "saliency", task="multilabel")


def _loader(rows: list[Any], images: torch.Tensor) -> torch.utils.data.DataLoader:
    return torch.utils.data.DataLoader(list(zip(images, rows, strict=True)), batch_size=5)


def test_lists_of_labels_from_a_loader_are_rows_and_not_columns(images) -> None:
    network = Linear()
    rows, classes = torch.tensor(PRESENT == 1).nonzero(as_tuple=True)
    loader = _loader(PRESENT.tolist(), images)
    maps = heatproof.explain(network, loader, None, "input_x_gradient", task="multilabel", progress=False)
    assert maps["target"].values.tolist() == classes.tolist()
    assert np.allclose(maps["attribution"].squeeze().values, network.truth(images[rows], classes), atol=1e-5)
    square = _loader(np.eye(COUNT, dtype=int).tolist(), images)
    with pytest.raises(
        HeatproofError, match="belong to an image or to a label: return the labels of each image as one"
    ):
        heatproof.explain(network, square, None, "saliency", task="multilabel")


@pytest.mark.filterwarnings("ignore:.*have no label")
@pytest.mark.parametrize(
    ("options", "scored_targets"),
    [
        ({}, "classes"),
        ({"task": "regression"}, "outputs"),
        ({"target": lambda output, targets: output[:, 0]}, "numbers of a target function"),
    ],
    ids=["class", "regression", "function"],
)
def test_maps_of_labels_require_their_task_even_if_an_image_has_no_label(
    images, options: dict[str, Any], scored_targets: str
) -> None:
    labels = PRESENT.copy()
    labels[0] = 0
    maps = heatproof.explain(Linear(), images, labels, "saliency", task="multilabel", progress=False)
    with pytest.raises(HeatproofError, match=f"labels, but {scored_targets} are scored: give task='multilabel'"):
        heatproof.evaluate("sds", Linear(), images, None, maps, **options)
    maps = heatproof.explain(Linear(), images, CLASS, "saliency", progress=False)
    with pytest.raises(HeatproofError, match="explain classes, but labels are scored: leave task='multilabel'"):
        heatproof.evaluate("sds", Linear(), images, np.ones((COUNT, CLASSES)), maps, task="multilabel")


def test_finetuning_needs_known_labels_to_train_and_to_select_the_epoch(images) -> None:
    seen = set()
    for labelled_rows in ([], *([row] for row in range(COUNT))):
        labels = np.full((COUNT, CLASSES), -1)
        labels[labelled_rows] = 1
        with pytest.raises(HeatproofError, match=r"None of the \d+ images that .* has a known label") as raised:
            heatproof.finetune(Linear(), images, labels, task="multilabel")
        seen.add(str(raised.value).split(" images that ")[1].split(" has a known label")[0])
    assert seen == {"are trained on", "select the epoch"}


@pytest.mark.parametrize(("task", "words"), [("multilabel", "label 7"), ("regression", "output 7"), (None, "class 7")])
def test_a_missing_target_is_named_in_the_word_of_its_task(images, task: str | None, words: str) -> None:
    with pytest.raises(HeatproofError, match=f"The target of image '0' is {words}, but the model has"):
        heatproof.explain(Linear(), images, torch.full((COUNT,), 7), "saliency", task=task)


def test_reliability_of_metrics_counts_images(images) -> None:
    from heatproof.quality import image_scores
    from heatproof.stats.reliability import reliability_table

    network = Linear()
    rows, classes = torch.tensor(PRESENT == 1).nonzero(as_tuple=True)
    truth = network.truth(images[rows], classes).numpy()
    maps = {"truth": truth, "against": -truth}
    table = image_scores(network, images, PRESENT, maps, {"sds": {"baseline": "zeros"}}, task="multilabel")
    assert table.loc[table["method"] == "truth", "target"].tolist() == classes.tolist()
    assert reliability_table(table)["n_images"].tolist() == [COUNT]


class Normed(torch.nn.Module):
    """A target function that updates statistics of the outputs, but uses the initial ones."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.head = torch.nn.Linear(CLASSES, 1, bias=False)

    def forward(self, output, targets):
        self.seen += len(output)
        return self.head(output)[:, 0]


@pytest.mark.parametrize("form", ["a module", "a closure", "a method"])
def test_a_target_function_is_left_unchanged(images, form: str) -> None:
    network, module = Linear(), Normed()
    function = {
        "a module": module,
        "a closure": lambda output, targets: module(output, targets),
        "a method": module.forward,
    }[form]
    maps = heatproof.explain(network, images, None, "input_x_gradient", target=function, progress=False)
    truth = torch.einsum("k,nkhw->nhw", module.head.weight[0], torch.einsum("nchw,kchw->nkhw", images, network.weights))
    assert np.allclose(maps["attribution"].squeeze().values, truth.detach(), atol=1e-4)
    heatproof.evaluate("sds", network, images, None, maps, target=function)
    heatproof.choose(network, images.repeat(2, 1, 1, 1) + torch.arange(24)[:, None, None, None], None, "saliency",
                     target=function, progress=False)  # fmt: skip
    assert module.seen == 0
    assert module.head.weight.grad is None
    assert network.weights.grad is None


def test_deep_lift_ignores_weights_of_a_target_function(images) -> None:
    network, weights = Linear(), torch.nn.Parameter(torch.arange(1.0, CLASSES + 1))
    maps = heatproof.explain(
        network, images, CLASS, "deep_lift", progress=False,
        target=lambda output, targets: (output * weights).gather(1, targets[:, None])[:, 0],
    )  # fmt: skip
    assert maps["reason"].values.tolist() == [""]
    truth = network.truth(images, CLASS) * (CLASS + 1)[:, None, None]
    assert np.allclose(maps["attribution"].squeeze().values, truth, atol=1e-4)
