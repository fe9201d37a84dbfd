"""The positions of tokens, and the axes of rows and columns, are found by changes of the image and not by shapes."""

import itertools
import random

import pytest
import torch
from hand_vits import Block, HandVit, hand_vit
from torch import nn
from torch.nn.functional import interpolate

import heatproof
from heatproof.core.network import prepare_network
from heatproof.explainers._function_rules import AttentionRecorder
from heatproof.explainers._layers import find_layout, inspect_layers
from heatproof.explainers._tokens import measure_band_changes

GRIDS = list(itertools.product(range(4, 21), range(4, 21)))
POOLS = ("class", "patches", "all")


def images_of(network, count=2):
    return torch.rand(count, 3, *network.size, generator=torch.Generator().manual_seed(0))


def assert_found(network, images=None):
    """Compare the grid and tokens that are found for the CAM layer and for attention with those of the network."""
    count = network.prefix + network.grid[0] * network.grid[1] + network.suffix
    inspection = inspect_layers(network, images_of(network) if images is None else images)
    case = network.grid, network.prefix, network.suffix, network.pool
    assert inspection.layout is not None, case
    assert (inspection.layout.grid, inspection.layout.cells) == (network.grid, network.cells), case
    token_grid = inspection.changes.locate_attended_tokens(count)
    assert (token_grid.grid, token_grid.cells) == (network.grid, network.cells), case


def of_grid(index, grid, prefix):
    """Return a network for a case: poolings alternate, and every third image is square if its sides divide 60."""
    square = index % 3 == 0 and 60 % grid[0] == 60 % grid[1] == 0
    pool = POOLS[index % 3] if prefix else "all" if index % 2 else "patches"
    return hand_vit(grid, prefix, pool=pool, size=(60, 60) if square else None, seed=index)


@pytest.mark.long
@pytest.mark.parametrize("prefix", range(9))
def test_every_grid_is_located_for_each_number_of_prefix_tokens(prefix):
    for index, grid in enumerate(GRIDS):
        assert_found(of_grid(index, grid, prefix))


# These include grids that a rule by divisors confuses: 5×10 and 5 tokens with 5×11, 4×5 and 5 tokens with 5×5.
SAMPLE = [
    ((5, 10), 5),
    ((4, 5), 5),
    ((4, 20), 4),
    ((20, 4), 4),
    ((12, 7), 7),
    ((20, 20), 8),
    ((4, 4), 0),
    ((19, 20), 0),
]
SAMPLE += [(grid, 5) for grid in random.Random(1).sample(GRIDS, 12)]


@pytest.mark.parametrize(("grid", "prefix"), SAMPLE)
def test_grids_are_located_without_declarations(grid, prefix):
    for pool in POOLS[0 if prefix else 1 :]:
        assert_found(hand_vit(grid, prefix, pool=pool))
    if 60 % grid[0] == 60 % grid[1] == 0:
        assert_found(hand_vit(grid, prefix, pool="all", size=(60, 60)))


def stem():
    return nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), nn.GELU(), nn.Conv2d(8, 8, 5, 3, 2))


@pytest.mark.parametrize(
    "options",
    [
        {"prefix": 1, "suffix": 5},
        {"suffix": 1},
        {"prefix": 2, "suffix": 3, "pool": "patches"},
        {"prefix": 3, "pool": "all", "by_column": True},
        {"prefix": 10, "pool": "all", "depth": 3},
        {"prefix": 1, "depth": 3, "scale": 20.0},
        {"prefix": 30, "depth": 2},
        {"prefix": 5, "size": (5, 10)},
        {"prefix": 4, "overlapping": True},
    ],
    ids=str,
)
def test_grids_are_located_with_other_tokens_orders_and_embeddings(options):
    network = hand_vit((5, 10), stem=stem() if options.pop("overlapping", False) else None, **options)
    assert_found(network)
    assert_found(network, torch.zeros(2, 3, *network.size))


class Merged(HandVit):
    """Two by two patches are merged after the blocks, and prefix tokens are added only then."""

    def forward(self, images):
        tokens = self.blocks(self.embed(images).flatten(2).mT + self.position[:, self.prefix :])
        rows, columns = self.grid
        merged = tokens.unflatten(1, (rows // 2, 2, columns // 2, 2)).mean((2, 4)).flatten(1, 2)
        return self.head(self.norm(torch.cat([self.before.expand(len(images), -1, -1), merged], 1)).mean(1))


class Late(HandVit):
    """A class token is added to patches that are already mixed."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.late = Block(8).eval().requires_grad_(False)

    def forward(self, images):
        tokens = self.blocks(self.embed(images).flatten(2).mT + self.position[:, 1:])
        return self.head(self.late(torch.cat([self.before.expand(len(images), -1, -1), tokens], 1)).mean(1))


class Middle(HandVit):
    """The class token is in the middle of the patches."""

    def forward(self, images):
        tokens, half = self.embed(images).flatten(2).mT, self.grid[0] * self.grid[1] // 2
        parts = [tokens[:, :half], self.before.expand(len(images), -1, -1), tokens[:, half:]]
        return self.head(self.blocks(torch.cat(parts, 1) + self.position)[:, half])


def seeded(kind, *args, **options):
    torch.manual_seed(0)
    return kind(*args, **options)


def test_tokens_that_change_between_blocks_are_located():
    merged = find_layout(network := seeded(Merged, (8, 12), 3), images_of(network))
    assert (merged.name, merged.grid, merged.cells) == ("norm", (4, 6), tuple(range(3, 27)))
    late = find_layout(network := seeded(Late, (5, 10), 1, depth=3), images_of(network))
    assert (late.name, late.grid, late.cells) == ("late", (5, 10), tuple(range(1, 51)))
    middle = find_layout(network := seeded(Middle, (5, 10), 1), images_of(network))
    assert (middle.grid, middle.cells) == ((5, 10), (*range(25), *range(26, 51)))


class Axes(nn.Module):
    """A feature map with axes in any order, whose sizes do not show the order."""

    def __init__(self, grid, channels, order):
        super().__init__()
        self.size, self.order = (3 * grid[0], 3 * grid[1]), order
        self.embed = nn.Conv2d(3, channels, 3, 3)
        self.mix, self.tap = nn.Conv2d(channels, channels, 3, 1, 1), nn.Identity()
        self.head = nn.Linear(channels, 5)
        self.eval().requires_grad_(False)

    def forward(self, images):
        tapped = self.tap(self.mix(self.embed(images).relu()).permute(self.order))
        return self.head((tapped * 1.5).movedim(self.order.index(1), -1).flatten(1, 2).mean(1))


@pytest.mark.parametrize(("grid", "channels"), [((8, 8), 8), ((14, 14), 14), ((4, 20), 20), ((6, 9), 9), ((7, 7), 3)])
@pytest.mark.parametrize(
    ("order", "axes"),
    [((0, 1, 2, 3), (2, 3)), ((0, 2, 3, 1), (1, 2)), ((0, 1, 3, 2), (3, 2)), ((0, 3, 2, 1), (2, 1))],
    ids=["channels first", "channels last", "columns first", "columns first, channels last"],
)
def test_axes_of_a_feature_map_are_located(grid, channels, order, axes):
    network = seeded(Axes, grid, channels, order)
    images = images_of(network)
    layout = find_layout(network, images)
    assert (layout.name, layout.axes, layout.grid) == ("tap", axes, grid)
    explained = heatproof.explain(network, images, torch.tensor([0, 1]), ["hires_cam"])
    assert explained.attrs["layer"] == "tap"
    # The head is linear after a mean, so the map is the sum of features weighted by the row of the class.
    features = network.mix(network.embed(images).relu())
    expected = (features * network.head.weight[[0, 1]][:, :, None, None]).sum(1, keepdim=True) * 1.5
    maps = torch.from_numpy(explained["attribution"].values[0])
    expected = interpolate(expected, network.size, mode="bilinear", align_corners=False)[:, 0]
    torch.testing.assert_close(maps * (expected.abs().max() / maps.abs().max()), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "options", [{"prefix": 5}, {"prefix": 1, "suffix": 4}, {"prefix": 5, "by_column": True}], ids=str
)
def test_maps_are_computed_from_the_patch_tokens(options):
    network = hand_vit((5, 10), pool="all", **options)
    images, targets = images_of(network), torch.tensor([0, 1])
    result = heatproof.explain(network, images, targets, ["hires_cam", "attention_rollout"])
    layer_outputs = []
    handle = network.get_submodule(result.attrs["layer"]).register_forward_hook(
        lambda *arguments: layer_outputs.append(arguments[-1])
    )
    with AttentionRecorder() as mode:
        logits = network(images.clone().requires_grad_())
    handle.remove()
    (slope,) = torch.autograd.grad(logits[[0, 1], targets].sum(), layer_outputs[0])
    cells = list(network.cells)
    rolled = (mode.attention[0].mean(1) + torch.eye(mode.attention[0].shape[-1])) / 2
    by_hand = [(slope * layer_outputs[0]).sum(2)[:, cells], rolled[:, cells].mean(1)[:, cells]]
    for name, expected in zip(["hires_cam", "attention_rollout"], by_hand, strict=True):
        expected = interpolate(expected.detach().view(2, 1, 5, 10), network.size, mode="bilinear", align_corners=False)
        maps = torch.from_numpy(result["attribution"].sel({"method": name}).values)
        torch.testing.assert_close(maps, expected[:, 0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("declared", [0, 1, 5, 9])
def test_a_wrong_declared_number_of_prefix_tokens_is_corrected(declared):
    network = hand_vit((5, 10), 5, pool="patches")
    network.num_prefix_tokens = declared
    assert_found(network)


class Shuffled(HandVit):
    """Patches in an unknown order; `embed` returns tokens and no feature map."""

    def forward(self, images):
        patches = nn.functional.unfold(images, 3, stride=3).mT @ self.embed.weight.flatten(1).T
        order = torch.randperm(patches.shape[1], generator=torch.Generator().manual_seed(1))
        return self.head(self.norm(self.blocks(patches[:, order] + self.position)).mean(1))


class Mixed(HandVit):
    """Every token depends on the complete image."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        count = self.prefix + self.grid[0] * self.grid[1]
        self.mix = nn.Parameter(torch.randn(count, 3 * self.size[0] * self.size[1]) / 50, requires_grad=False)

    def forward(self, images):
        tokens = (images.flatten(1) @ self.mix.T)[..., None].repeat(1, 1, 8) + self.position
        return self.head(self.norm(self.blocks(tokens)).mean(1))


@pytest.mark.parametrize("kind", [Shuffled, Mixed])
def test_tokens_that_cannot_be_located_have_a_reason_with_the_remedy(kind):
    network = seeded(kind, (6, 6), 0)
    methods = ["grad_cam", "attention_rollout", "saliency"]
    result = heatproof.explain(network, images_of(network), torch.tensor([0, 1]), methods)
    of_cam, of_rollout, of_saliency = result["reason"].values.tolist()
    assert "which of the 36 tokens of the layer 'norm' are patches" in of_cam
    assert "set `num_prefix_tokens` on the model, or name another layer in cam_layer" in of_cam
    assert "which of the 36 tokens are patches" in of_rollout
    assert not of_saliency


def test_the_declared_number_is_used_if_changes_are_ambiguous():
    network = seeded(Mixed, (6, 6), 1)
    network.num_prefix_tokens = 1
    layout = find_layout(network, images_of(network))
    assert (layout.grid, layout.cells) == ((6, 6), tuple(range(1, 37)))


def test_layers_are_inspected_once_as_a_check_without_random_numbers():
    network = hand_vit((5, 10), 5, pool="patches")
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with prepare_network(network, images_of(network)) as met:
        met.check(images_of(network))
        checked = met.check_passes
        first = inspect_layers(met.module, images_of(network))
        assert inspect_layers(met.module, images_of(network) * 0) is first
    assert (met.passes, met.check_passes - checked) == (0, 30)
    assert torch.equal(torch.get_rng_state(), before)
    assert find_layout(network, images_of(network)) == find_layout(network, images_of(network)) == first.layout


class AlternatingRows(nn.Module):
    """Every other row of patches is reversed."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(3, 8, 4, 4)

    def forward(self, images):
        rows = self.embed(images).unbind(2)
        return torch.stack([row.flip(-1) if index % 2 else row for index, row in enumerate(rows)], 2)


@pytest.mark.parametrize("grid", [(8, 8), (6, 10), (5, 7), (9, 4), (7, 7)])
def test_patches_in_an_order_without_a_grid_are_not_located(grid):
    """This also holds after tokens are mixed, although their rows alone would explain enough."""
    network = hand_vit(grid, size=(4 * grid[0], 4 * grid[1]), stem=AlternatingRows(), pool="patches")
    moved = measure_band_changes(network, images_of(network), {"norm": network.norm})
    count = grid[0] * grid[1]
    assert moved.locate_tokens(count) is None
    assert moved.locate_tokens(count, moved.layers["norm"][1,]) is None
