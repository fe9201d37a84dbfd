"""Grids with rows and columns agree with patches that are cut by hand, for every entry that has a grid as an option."""

import itertools

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

import heatproof
from heatproof.api.inputs.finetuned import deletion_of
from heatproof.core.options import normalise_grid_options
from heatproof.core.perturb.baselines import BASELINES, baseline_images
from heatproof.core.registry import options_of
from heatproof.core.sequences import Perturbation
from heatproof.errors import HeatproofError
from heatproof.explainers.registry import EXPLAINERS
from heatproof.metrics.registry import METRICS
from heatproof.metrics.responses.base import normalise_grid_settings
from heatproof.metrics.responses.curves import Curves
from heatproof.metrics.responses.patches import Patches
from heatproof.metrics.single_deletion import PatchDeletion, base_name, metric_name
from heatproof.training.loop import delete_patches, draw_patches

# Scores of networks that were not finetuned.
pytestmark = pytest.mark.filterwarnings("ignore:These scores are SDS")

# Height, width and a grid.
CASES = [((12, 20), (3, 5)), ((12, 20), [4, 2]), ((20, 12), [2, 3]), ((12, 12), [3, 4]), ((8, 8), (1, 4))]
IMAGES = 5


def has_a_grid(function):
    """Return the options of a function that are grids: those for which [3, 3] equals 3."""
    return [name for name in options_of(function) if normalise_grid_options({name: [3, 3]}, function)[name] == 3]


def options_of_grids(entry):
    return [name for function in (entry.options_function, entry.function) for name in has_a_grid(function)]


WITH_A_GRID = sorted(name for name, entry in METRICS.items() if options_of_grids(entry) and not entry.is_custom)
EXPLAINING = sorted(
    (name, option)
    for name, entry in EXPLAINERS.items()
    if entry.function.__module__.startswith("heatproof.")
    for option in has_a_grid(entry.function)
)


class Network(torch.nn.Module):
    """A network for which no two patches matter equally, and for which rows and columns differ."""

    def __init__(self, height, width):
        super().__init__()
        torch.manual_seed(0)
        self.features = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.head = torch.nn.Linear(4 * height * width, 3)

    def forward(self, images):
        return self.head(self.features(images).relu().flatten(1))


class Transposed(torch.nn.Module):
    """A network whose outputs are those for images with rows and columns exchanged."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, images):
        return self.network(images.mT.contiguous())


def make_case(height, width):
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(IMAGES, 3, height, width, generator=generator)
    maps = torch.randn(IMAGES, height, width, generator=generator)
    return Network(height, width).double().eval(), images.double(), torch.arange(IMAGES) % 3, maps.double()


def slices(size, grid):
    """Return the patches row by row, as two slices each."""
    rows, columns = (grid, grid) if isinstance(grid, int) else grid
    tall, wide = size[0] // rows, size[1] // columns
    for row, column in itertools.product(range(rows), range(columns)):
        yield slice(row * tall, (row + 1) * tall), slice(column * wide, (column + 1) * wide)


def logits(network, images, targets):
    with torch.no_grad():
        return network(images).gather(1, targets[:, None])[:, 0].numpy()


def delete_patch(images, patch):
    deleted = images.clone()
    deleted[:, :, patch[0], patch[1]] = 0
    return deleted


def scores_by_hand(name, entry, network, images, targets, maps, size, grid):
    """Return the scores of a metric of patches computed by hand; None for a metric of another kind."""
    patches = list(slices(size, grid))
    sums = np.stack([maps[:, rows, columns].sum((1, 2)).numpy() for rows, columns in patches], axis=1)
    all_pixels = logits(network, images, targets)
    if entry.reads is Patches:
        drops = [all_pixels - logits(network, delete_patch(images, patch), targets) for patch in patches]
        return [
            spearmanr(patch_sums, drop).statistic
            for patch_sums, drop in zip(sums, np.stack(drops, axis=1), strict=True)
        ]
    if name == "patch_insertion":
        empty, gains = torch.zeros_like(images), []
        for rows, columns in patches:
            alone = empty.clone()
            alone[:, :, rows, columns] = images[:, :, rows, columns]
            gains.append(logits(network, alone, targets) - logits(network, empty, targets))
        return [
            spearmanr(patch_sums, gain).statistic
            for patch_sums, gain in zip(sums, np.stack(gains, axis=1), strict=True)
        ]
    return None


def curve_by_hand(sequence, network, images, targets, maps, size):
    """Return the logits along a sequence, (N, S), with patches ordered by their sums."""
    patches = list(slices(size, sequence.grid))
    curves = []
    for image, target, attributions in zip(images, targets, maps, strict=True):
        values = attributions.abs() if sequence.magnitude else attributions
        sums = np.array([float(values[rows, columns].sum()) for rows, columns in patches])
        order = np.argsort(-sums if sequence.order == "morf" else sums)
        steps = []
        for count in sequence.counts(*size):
            gone = torch.zeros(size, dtype=torch.bool)
            for patch in order[:count]:
                gone[patches[patch]] = True
            changed = gone if sequence.mode == "deletion" else ~gone
            steps.append(torch.where(changed, 0.0, image))
        curves.append(logits(network, torch.stack(steps), target.repeat(len(steps))))
    return np.stack(curves)


@pytest.mark.parametrize("name", WITH_A_GRID)
@pytest.mark.parametrize(("size", "grid"), CASES)
def test_scores_equal_those_of_patches_cut_by_hand(name, size, grid):
    entry, (network, images, targets, maps) = METRICS[name], make_case(*size)
    steps = {"steps": 4} if entry.reads is Curves else {}
    zeros = {"baseline": "zeros"} if "baseline" in entry.options else {}
    result = heatproof.evaluate(
        name, network, images, targets, maps, grid=grid, output="logit", details=True, **steps, **zeros
    )
    expected = scores_by_hand(name, entry, network, images, targets, maps, size, grid)
    if expected is not None:
        np.testing.assert_allclose(result["score"], expected, atol=1e-12)
        return
    assert entry.reads is Curves, "write the reference of a metric of a new kind into this module"
    responses = entry.responses(entry.complete_options({"grid": grid, **steps, **zeros}))
    for argument, response in responses.items():
        read = result[f"{argument}_logit" if len(responses) > 1 else "logit"].values
        read = read if read.ndim == 2 else read[..., 0]
        scores = curve_by_hand(response.sequence, network, images, targets, maps, size)
        np.testing.assert_allclose(read, scores, atol=1e-10)


@pytest.mark.parametrize("name", WITH_A_GRID)
@pytest.mark.parametrize(("size", "grid"), [*CASES, ((12, 20), 4), ((12, 20), 2)])
def test_a_transposed_case_has_the_same_scores(name, size, grid):
    network, images, targets, maps = make_case(*size)
    steps = {"steps": 4} if METRICS[name].reads is Curves else {}
    turned = grid if isinstance(grid, int) else tuple(reversed(grid))
    scores = heatproof.evaluate(name, network, images, targets, maps, grid=grid, **steps)
    transposed = heatproof.evaluate(
        name, Transposed(network).eval(), images.mT.contiguous(), targets, maps.mT.contiguous(), grid=turned, **steps
    )
    np.testing.assert_allclose(scores["score"], transposed["score"], atol=1e-10)
    assert scores["valid"].any()


@pytest.mark.parametrize("name", WITH_A_GRID)
def test_a_square_grid_is_the_same_however_it_is_written(name):
    network, images, targets, maps = make_case(12, 20)
    steps = {"steps": 4} if METRICS[name].reads is Curves else {}
    from_number, from_pair = (
        heatproof.evaluate(name, network, images, targets, maps, grid=grid, **steps) for grid in (4, [4, 4])
    )
    assert from_number.identical(from_pair)
    assert from_number.attrs["grid"] == 4


@pytest.mark.parametrize("bad", [[4], [0, 4], [4, 4, 4], "4x8", True, 2.0, [4, 2.0], [True, 4], [], {}, [4, 2048]])
@pytest.mark.parametrize("name", WITH_A_GRID)
def test_invalid_grids_are_refused_in_one_sentence(name, bad):
    network, images, targets, maps = make_case(12, 20)
    with pytest.raises(
        HeatproofError, match=rf"^The option 'grid' of metric '{name}' must be .*\[rows, columns\]"
    ) as messages:
        heatproof.evaluate(name, network, images, targets, maps, grid=bad)
    assert str(messages.value).count(".") <= 2 + str(bad).count(".")


@pytest.mark.parametrize("name", WITH_A_GRID)
def test_a_grid_that_does_not_divide_names_one_that_does(name):
    network, images, targets, maps = make_case(12, 20)
    steps = {"steps": 2} if METRICS[name].reads is Curves else {}
    with pytest.raises(HeatproofError, match=r"12×20 .*rows have to divide the height and columns the width, so use 4"):
        heatproof.evaluate(name, network, images, targets, maps, grid=[5, 4], **steps)


def explain_maps(name, option, grid, size=(12, 20)):
    network, images, targets, _ = make_case(*size)
    options = {"masks": 40} if "masks" in EXPLAINERS[name].options else {}
    options |= {"samples": 2} if "samples" in EXPLAINERS[name].options else {}
    methods = {"one": {"explainer": name, option: grid, **options}}
    result = heatproof.explain(network.float(), images.float(), targets, methods, layer="features")
    return result["attribution"].isel(method=0).values


@pytest.mark.parametrize(("name", "option"), EXPLAINING)
def test_explainers_take_rows_and_columns(name, option):
    np.testing.assert_array_equal(explain_maps(name, option, 4), explain_maps(name, option, [4, 4]))
    maps = explain_maps(name, option, [3, 5])
    assert np.isfinite(maps).all()
    assert (maps != explain_maps(name, option, [3, 2])).any()
    if name in ("feature_ablation", "kernel_shap", "lime", "rise_grid"):
        for rows, columns in slices((12, 20), (3, 5)):
            assert np.ptp(maps[:, rows, columns], axis=(1, 2)).max() == 0


def test_feature_ablation_is_the_drop_of_every_patch():
    network, images, targets, _ = make_case(12, 20)
    maps = explain_maps("feature_ablation", "grid", [3, 5])
    all_pixels = logits(network, images, targets)
    for rows, columns in slices((12, 20), (3, 5)):
        drop = all_pixels - logits(network, delete_patch(images, (rows, columns)), targets)
        np.testing.assert_allclose(maps[:, rows, columns].mean((1, 2)), drop, atol=1e-5)


@pytest.mark.parametrize("size", [(12, 20), (12, 12)])
@pytest.mark.parametrize("grid", [(3, 4), [4, 2], (1, 4), 2])
def test_in_painting_of_patches_is_transposed_with_them(size, grid):
    images = torch.randn(3, 2, *size, generator=torch.Generator().manual_seed(0))
    filled = baseline_images("neighbours", images, ["a", "b", "c"], 0, None, grid)
    turned = grid if isinstance(grid, int) else tuple(reversed(grid))
    from_transposed = baseline_images("neighbours", images.mT.contiguous(), ["a", "b", "c"], 0, None, turned).mT
    torch.testing.assert_close(filled, from_transposed)
    # The first patch has a border only below or to its right, next to its last pixel.
    rows, columns = next(slices(size, grid))
    near = [images[:, :, rows.stop - 1, columns.stop]]
    if rows.stop < size[0]:
        near.append(images[:, :, rows.stop, columns.stop - 1])
    torch.testing.assert_close(filled[:, :, rows.stop - 1, columns.stop - 1], torch.stack(near).mean(0))


@pytest.mark.parametrize("name", [name for name, from_number in BASELINES.items() if has_a_grid(from_number.function)])
def test_the_grid_of_a_baseline_has_one_form(name):
    images = torch.randn(2, 3, 12, 20)
    from_number, from_pair = (baseline_images(name, images, ["a", "b"], 0, {"grid": grid}) for grid in (4, [4, 4]))
    assert torch.equal(from_number, from_pair)
    assert deletion_of({"grid": 4, "baseline": name, "baseline_options": {"grid": [4, 4]}}) == deletion_of(
        {"grid": [4, 4], "baseline": name}
    )


@pytest.mark.parametrize(("size", "grid"), CASES)
def test_training_deletes_the_patches_of_rows_and_columns(size, grid):
    images, filling = torch.randn(IMAGES, 3, *size), torch.full((IMAGES, 3, *size), 7.0)
    count = grid[0] * grid[1]
    patches = torch.tensor([0, count - 1, -1, 1, count // 2])
    deleted = delete_patches(images, filling, grid, patches)
    for number, scores, image in zip(patches.tolist(), deleted, images, strict=True):
        expected = image.clone()
        if number >= 0:
            rows, columns = list(slices(size, grid))[number]
            expected[:, rows, columns] = 7
        assert torch.equal(scores, expected)
    drawn = draw_patches(2000, grid, 1.0, torch.Generator().manual_seed(0))
    assert sorted(drawn.unique().tolist()) == list(range(count))
    same = (draw_patches(50, square, 0.5, torch.Generator().manual_seed(0)) for square in (4, [4, 4]))
    assert torch.equal(*same)


@pytest.mark.parametrize(
    ("grid", "name"), [(4, "g4_mean"), ([4, 4], "g4_mean"), ((4, 8), "g4x8_mean"), ([8, 4], "g8x4_mean")]
)
def test_grids_are_part_of_names_of_responses_and_metrics(grid, name):
    response = Patches({"grid": grid, "baseline": "mean"})
    assert response.name == name
    assert response == Patches({"grid": tuple(grid) if isinstance(grid, list) else grid, "baseline": "mean"})
    assert metric_name(None, grid, "mean", (2, "mean")) == f"sds_{name}"
    assert base_name(f"idsds_{name}_probability") == "idsds"
    assert metric_name((grid, "mean"), grid, "mean", (4, "mean")).startswith("idsds")
    assert base_name("sds_g4x_mean") == "sds_g4x_mean"


def test_a_perturbation_survives_a_round_trip_through_json():
    perturbation = Perturbation(steps=4, grid=[4, 8])
    assert perturbation == Perturbation.from_settings(perturbation.to_settings()) == Perturbation(steps=4, grid=(4, 8))
    assert Curves(perturbation.to_settings()) == Curves({**perturbation.to_settings(), "grid": (4, 8)})
    assert Perturbation(steps=4, grid=[4, 4]) == Perturbation(steps=4, grid=4)
    assert normalise_grid_settings({"baseline_options": {"grid": [4, 4]}}) == {"baseline_options": {"grid": 4}}


def test_deletions_on_grids_from_json_and_from_memory_are_the_same():
    assert PatchDeletion((4, 8), "zeros").is_same(PatchDeletion([4, 8], "zeros"))
    assert PatchDeletion(4, "zeros").is_same(PatchDeletion([4, 4], "zeros"))
    assert not PatchDeletion((4, 8), "zeros").is_same(PatchDeletion((8, 4), "zeros"))
    assert str(PatchDeletion([4, 8], "mean")) == "grid 4x8, mean colour"


STEPPED = [
    name
    for name in WITH_A_GRID
    if {"grid", "steps"} <= set(METRICS[name].options) and not METRICS[name].options["steps"]
]


@pytest.mark.parametrize("name", STEPPED)
def test_the_default_of_steps_is_at_most_the_number_of_patches(name):
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 2)).eval()
    images, maps = torch.rand(4, 3, 8, 8), np.random.default_rng(0).normal(size=(4, 8, 8))
    scores = [
        heatproof.evaluate(name, model, images, [0, 1, 0, 1], maps, grid=4, **more) for more in ({}, {"steps": 16})
    ]
    np.testing.assert_array_equal(scores[0]["score"], scores[1]["score"])
    assert scores[0].sizes["step"] == 17


@pytest.mark.parametrize("grid", [(np.int64(2), np.int32(4)), [np.int64(2), 4]])
def test_integers_of_numpy_can_be_rows_and_columns(grid):
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 2)).eval()
    images, maps = torch.rand(4, 3, 8, 8), np.random.default_rng(0).normal(size=(4, 8, 8))
    scores = heatproof.evaluate("sds", model, images, [0, 1, 0, 1], maps, grid=grid)
    assert str(scores.attrs["grid"]) == "[2, 4]"
    heatproof.explain(model, images, [0, 1, 0, 1], {"feature_ablation": {"grid": grid}})
    heatproof.explain(model, images, [0, 1, 0, 1], {"feature_ablation": {"grid": np.int64(2)}})
