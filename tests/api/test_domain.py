"""Every function reports IDSDS if grid and baseline are those of the finetuning, and SDS otherwise."""

import copy
import io
import json
import pickle
import warnings

import pytest
import torch
from torch import nn

import heatproof
from heatproof.api.inputs.finetuned import domain_of

VALUE = [0.25, -0.5, 0.125]


@pytest.fixture(scope="module")
def many():
    return torch.randn(40, 3, 16, 16, generator=torch.Generator().manual_seed(11))


@pytest.fixture(scope="module")
def tuned(network, many):
    """Return the network finetuned with two grids and baselines."""
    return {
        chosen: heatproof.finetune(network, many, grid=chosen[0], baseline=chosen[1], epochs=1, lr=1e-2)
        for chosen in ((2, "zeros"), (4, "mean"), (4, "neighbours"), (4, "blur"), ((2, 4), "neighbours"))
    }


def scored(metric, model, images, **options):
    """Return the reported name of the metric, and the warnings."""
    maps = images.sum(1)
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        scored_dataset = heatproof.evaluate(metric, model, images, [0] * len(images), maps, **options)
    return scored_dataset, [str(warning.message) for warning in messages]


@pytest.mark.parametrize(
    ("finetuned", "options", "name", "grid", "baseline"),
    [
        (None, {}, "sds", 4, "zeros"),
        (None, {"grid": 2}, "sds", 2, "zeros"),
        ((2, "zeros"), {}, "idsds", 2, "zeros"),
        ((2, "zeros"), {"grid": 2, "baseline": "zeros"}, "idsds", 2, "zeros"),
        ((2, "zeros"), {"grid": 4}, "sds", 4, "zeros"),
        ((2, "zeros"), {"baseline": "blur"}, "sds", 2, "blur"),
        ((2, "zeros"), {"grid": 4, "baseline": "blur"}, "sds", 4, "blur"),
        ((2, "zeros"), {"baseline": "mean"}, "sds", 2, "mean"),
        ((2, "zeros"), {"output": "probability"}, "idsds", 2, "zeros"),
        ((4, "mean"), {}, "idsds", 4, "mean"),
        ((4, "mean"), {"baseline": "mean"}, "idsds", 4, "mean"),
        ((4, "mean"), {"baseline_options": {"value": VALUE}}, "sds", 4, "mean"),
        ((4, "mean"), {"baseline": "zeros"}, "sds", 4, "zeros"),
        ((4, "neighbours"), {}, "idsds", 4, "neighbours"),
        ((4, "neighbours"), {"grid": 2}, "sds", 2, "neighbours"),
        ((4, "blur"), {"baseline_options": {"sigma": 41.0}}, "idsds", 4, "blur"),
        ((4, "blur"), {"baseline_options": {"sigma": 5.0}}, "sds", 4, "blur"),
        (((2, 4), "neighbours"), {}, "idsds", [2, 4], "neighbours"),
        (((2, 4), "neighbours"), {"grid": [2, 4]}, "idsds", [2, 4], "neighbours"),
        (((2, 4), "neighbours"), {"grid": (2, 4), "baseline_options": {"grid": [2, 4]}}, "idsds", [2, 4], "neighbours"),
        (((2, 4), "neighbours"), {"grid": [4, 2]}, "sds", [4, 2], "neighbours"),
        (((2, 4), "neighbours"), {"grid": 2}, "sds", 2, "neighbours"),
        ((2, "zeros"), {"grid": [2, 2]}, "idsds", 2, "zeros"),
    ],
)
def test_evaluate_names_the_score_by_the_finetuning(network, tuned, images, finetuned, options, name, grid, baseline):
    model = network if finetuned is None else tuned[finetuned]
    scored_dataset, messages = scored("idsds", model, images, **options)
    assert (scored_dataset.attrs["metric"], scored_dataset.attrs["grid"], scored_dataset.attrs["baseline"]) == (
        name,
        grid,
        baseline,
    )
    assert len(messages) == (name == "sds")
    assert all("These scores are SDS and not IDSDS" in message for message in messages)
    # Requested as SDS, it is SDS without a warning.
    scored_dataset, messages = scored("sds", model, images, **options)
    assert (scored_dataset.attrs["metric"], scored_dataset.attrs["grid"], messages) == ("sds", grid, [])


def test_a_record_restored_from_json_has_the_same_domain(tuned, images):
    model = copy.deepcopy(tuned[(2, 4), "neighbours"])
    model.heatproof = json.loads(json.dumps(model.heatproof))
    assert model.heatproof["grid"] == [2, 4]
    scored_dataset, messages = scored("idsds", model, images)
    assert (scored_dataset.attrs["metric"], scored_dataset.attrs["grid"], messages) == ("idsds", [2, 4], [])


@pytest.mark.parametrize("bad", [[4], [0, 4], [4, 4, 4], "4x8", True, 2.0])
def test_finetune_refuses_invalid_grids(network, many, bad):
    with pytest.raises(
        heatproof.HeatproofError, match=r"'grid' of heatproof.finetune must be .*\[rows, columns\], not"
    ):
        heatproof.finetune(network, many, grid=bad)


def test_finetune_suggests_a_grid_that_divides_the_images(network, many):
    with pytest.raises(
        heatproof.HeatproofError, match=r"A grid of \[3, 4\] does not divide .*16×16 .*so use \[2, 4\]\."
    ):
        heatproof.finetune(network, many, grid=[3, 4])


def test_several_scores_out_of_domain_cause_one_warning(tuned, images):
    requested = {
        "own": {"metric": "idsds"},
        "fine": {"metric": "idsds", "grid": 4},
        "blur": {"metric": "idsds", "baseline": "blur"},
    }
    scored_dataset, messages = scored(requested, tuned[2, "zeros"], images)
    assert [result.attrs["metric"] for result in scored_dataset.values()] == ["idsds", "sds", "sds"]
    assert messages == [
        "These scores are SDS and not IDSDS: the network was finetuned with grid 2, zeros, and patches are deleted "
        "with grid 4, zeros and grid 2, blur, which may be outside of its domain."
    ]


def test_the_mean_colour_is_that_of_the_training_images(tuned, images, many):
    colour = torch.tensor(tuned[2, "zeros"].heatproof["colour"])
    # Four fifths of the images are used for training.
    assert 0 < (colour - many.mean((0, 2, 3))).abs().max() < 0.1
    for metric in ("idsds", "deletion_morf"):
        scored_dataset, _ = scored(metric, tuned[2, "zeros"], images, baseline="mean")
        chosen, _ = scored(
            metric, tuned[2, "zeros"], images, baseline="mean", baseline_options={"value": colour.tolist()}
        )
        assert scored_dataset["score"].equals(chosen["score"])


def test_the_neighbours_baseline_has_the_grid_of_the_metric(network, images):
    scored_dataset, _ = scored("sds", network, images, grid=4, baseline="neighbours")
    chosen, _ = scored("sds", network, images, grid=4, baseline="neighbours", baseline_options={"grid": 4})
    assert scored_dataset["valid"].all()
    assert scored_dataset["score"].equals(chosen["score"])


NORMALISED = {"mean": [0.2, 0.3, 0.4], "std": [0.5, 0.25, 1.0]}


def test_a_network_finetuned_on_black_is_scored_on_black(network, many, images):
    tuned = heatproof.finetune(network, many, baseline="black", baseline_options=NORMALISED, epochs=1, lr=1e-2)
    maps, targets = images.sum(1), [0] * len(images)
    by_default = heatproof.evaluate("idsds", tuned, images, targets, maps)
    explicit = heatproof.evaluate("idsds", tuned, images, targets, maps, baseline="black", baseline_options=NORMALISED)
    assert by_default.attrs["metric"] == explicit.attrs["metric"] == "idsds"
    assert by_default["score"].equals(explicit["score"])
    other = {"mean": [0.0], "std": [1.0]}
    with pytest.warns(UserWarning, match="SDS and not IDSDS"):
        out_of_domain = heatproof.evaluate(
            "idsds", tuned, images, targets, maps, baseline="black", baseline_options=other
        )
    assert out_of_domain.attrs["metric"] == "sds"
    chosen = heatproof.choose(tuned, many, [0] * len(many), methods=["saliency", "random"])
    assert any("black" in column for column in chosen.table.columns)


def test_finetuning_on_black_requires_the_normalisation(network, many):
    with pytest.raises(heatproof.HeatproofError, match=r"give baseline_options=\{'mean': \[\.\.\.\]"):
        heatproof.finetune(network, many, baseline="black", epochs=1)


def test_baseline_options_of_a_finetuning_are_the_default_of_its_scores(network, many, images):
    tuned = heatproof.finetune(network, many, baseline="blur", baseline_options={"sigma": 3.0}, epochs=1, lr=1e-2)
    maps, targets = images.sum(1), [0] * len(images)
    by_default = heatproof.evaluate("idsds", tuned, images, targets, maps)
    blurred = {"baseline": "blur", "baseline_options": {"sigma": 3.0}}
    assert by_default["score"].equals(heatproof.evaluate("idsds", tuned, images, targets, maps, **blurred)["score"])
    assert by_default.attrs["metric"] == "idsds"


def other_weights(model, network):
    model.load_state_dict(network.state_dict())
    return model


def one_more_step(model, network):
    with torch.no_grad():
        next(model.parameters())[0] += 1e-3
    return model


def only_the_weights(model, network):
    copied = copy.deepcopy(network)
    copied.load_state_dict(model.state_dict())
    return copied


def saved_and_loaded(model, network):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def without_a_relu(model, network):
    model[1] = nn.Identity()
    return model


def new_statistics(model, network):
    with torch.no_grad():
        model[-1].bias.add_(1.0)
    return model


@pytest.mark.parametrize(
    ("change", "in_domain"),
    [
        (lambda model, network: model, True),
        (lambda model, network: copy.deepcopy(model), True),
        (lambda model, network: model.double(), True),
        (lambda model, network: model.bfloat16(), True),
        (lambda model, network: torch.compile(model, backend="eager"), True),
        (lambda model, network: pickle.loads(pickle.dumps(model)), True),
        (saved_and_loaded, True),
        (lambda model, network: nn.DataParallel(model).eval(), True),
        (lambda model, network: torch.compile(nn.DataParallel(model).eval(), backend="eager"), True),
        (lambda model, network: nn.DataParallel(other_weights(model, network)).eval(), False),
        (without_a_relu, False),
        (other_weights, False),
        (one_more_step, False),
        (new_statistics, False),
        # Nothing on the network records its weights.
        (only_the_weights, False),
        # Zeros are another colour for the inner network.
        (lambda model, network: nn.Sequential(nn.Flatten(2), nn.Unflatten(2, (16, 16)), model).eval(), False),
        (lambda model, network: lambda images: model(images), False),
    ],
)
def test_a_record_is_valid_only_for_its_weights(network, tuned, change, in_domain):
    domain = domain_of(change(copy.deepcopy(tuned[2, "zeros"]), network))
    assert (domain.finetuned is not None) == in_domain
    assert bool(domain.reason) != in_domain
    assert domain.reference == ((2, "zeros") if in_domain else (4, "zeros"))


def _doubled(model, images):
    return (images[0] * 2,)


class _Patched:
    def forward(self, images):
        return nn.Sequential.forward(self, images * 2)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.register_forward_pre_hook(_doubled),
        lambda model: model.register_forward_hook(lambda model, images, output: output * 2),
        lambda model: setattr(model, "forward", _Patched.forward.__get__(model)),
        lambda model: setattr(next(model.children()), "forward", lambda images: images),
    ],
    ids=["hook of images", "hook of outputs", "method", "method of a layer"],
)
def test_hooks_and_replaced_methods_invalidate_a_record(tuned, change):
    model = copy.deepcopy(tuned[2, "zeros"])
    assert domain_of(model).finetuned is not None
    change(model)
    assert "other layers" in domain_of(model).reason


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_quantised_copy_has_other_weights(tuned):
    model = torch.ao.quantization.quantize_dynamic(copy.deepcopy(tuned[2, "zeros"]), {nn.Linear})
    assert "other weights" in domain_of(model).reason


def test_the_reason_names_a_finetuned_part_of_a_wrapper(tuned):
    domain = domain_of(nn.Sequential(tuned[2, "zeros"]))
    assert domain.reason == "the network is no copy by heatproof.finetune, but has one as a part"


def test_the_record_describes_the_finetuning(network, many):
    record = heatproof.finetune(network, many, epochs=3, batch_size=5, lr=1e-2, grid=2).heatproof
    losses = [row["validation_loss"] for row in record["history"]]
    # 32 training images make six batches of five and one of two; 8 images select the epoch.
    assert (record["steps"], record["images_trained"]) == (7 * (1 + losses.index(min(losses))), 32)
    assert 0 < record["deleted"] < 3 * 32
    assert (
        record["grid"],
        record["baseline"],
        record["epochs"],
        len(record["images"]),
    ) == (2, "mean", 3, 40)
    # A single remaining image is not used in any step.
    assert heatproof.finetune(network, many, epochs=1, batch_size=31, lr=1e-2).heatproof["steps"] == 1


@pytest.mark.parametrize(
    ("count", "options", "sentence"),
    [
        (40, {"share": 1e-9, "lr": 0.1}, "No image lost a patch in 5 epochs .* raise share, now 1e-09"),
        (10, {"share": 0.01, "epochs": 1}, "No image lost a patch in 1 epochs"),
        (4, {}, "4 images are too few to finetune on: give at least 10"),
        (9, {}, "9 images are too few"),
        (40, {"lr": 1e-30, "optimizer": "adam"}, "moved no weight in 5 epochs: raise lr"),
    ],
)
def test_finetuning_without_deleted_patches_or_changed_weights_is_refused(network, many, count, options, sentence):
    labels = [row % 4 for row in range(count)]
    with pytest.raises(heatproof.HeatproofError, match=sentence):
        heatproof.finetune(network, many[:count], labels, **options)


def test_a_baseline_that_changes_no_image_causes_a_warning(network):
    with pytest.warns(UserWarning, match="No deleted patch changed an image, .* baseline 'zeros'") as messages:
        heatproof.finetune(network, torch.zeros(12, 3, 16, 16), [0, 1] * 6, baseline="zeros", epochs=1, lr=0.1)
    assert messages[0].filename == __file__


class NoWeights(nn.Module):
    def forward(self, images):
        return images.mean((2, 3))


class DetachedHead(nn.Module):
    """A head that uses only features that pass no gradient."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.scale = copy.deepcopy(inner), nn.Parameter(torch.zeros(()))

    def forward(self, images):
        return self.inner(images).detach() + 0 * self.scale


@pytest.mark.parametrize(
    ("make", "sentence"),
    [(lambda network: NoWeights(), "The model has no weights"), (DetachedHead, "moved no weight in 5 epochs")],
)
def test_networks_that_cannot_be_trained_are_refused(network, many, make, sentence):
    with pytest.raises(heatproof.HeatproofError, match=sentence):
        heatproof.finetune(make(network).eval(), many)


def test_frozen_weights_are_trained_as_well(network, many):
    frozen = copy.deepcopy(network).requires_grad_(False)
    tuned = heatproof.finetune(frozen, many, epochs=1, lr=1e-2)
    moved = [
        not torch.equal(parameter, other)
        for parameter, other in zip(tuned.parameters(), frozen.parameters(), strict=True)
    ]
    assert all(moved)
    assert not any(parameter.requires_grad for parameter in frozen.parameters())


def test_images_of_one_class_cause_a_warning(network, many):
    with pytest.warns(UserWarning, match="All 40 images are of class 2, .* leave the targets out") as messages:
        heatproof.finetune(network, many, [2] * 40, epochs=1)
    assert messages[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        heatproof.finetune(network, many, [2, 1] * 20, epochs=1)
        heatproof.finetune(network, many, epochs=1)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"batch_size": 1}, "A batch_size of 1 is too small"),
        ({"lr": 1e-30}, "The finetuning moved no weight in 5 epochs"),
        ({"lr": 1e-12}, "The finetuning moved no weight in 5 epochs"),
        ({"share": 0.0}, "'share' of heatproof.finetune must be a number above 0"),
        ({"epochs": 0}, "'epochs' of heatproof.finetune must be a whole number of at least 1"),
    ],
)
def test_finetuning_options_without_effect_are_refused(network, many, options, sentence):
    with pytest.raises(heatproof.HeatproofError, match=sentence):
        heatproof.finetune(network, many, **options)


def test_a_record_is_valid_only_for_images_of_its_size(images, targets, many):
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    ).eval()
    copied = heatproof.finetune(network, many, grid=2, baseline="zeros", epochs=1)
    larger = nn.functional.interpolate(images, scale_factor=1.5)
    assert domain_of(copied, images).finetuned is not None
    assert domain_of(copied, larger).reason == (
        "the network was finetuned on images of 16×16 and these have 24×24 pixels"
    )
    with pytest.warns(UserWarning, match="24×24 pixels"):
        scores = heatproof.evaluate("idsds", copied, larger, targets, torch.rand(len(larger), 24, 24))
    assert scores.attrs["metric"] == "sds"


def test_rankings_distinguish_scores_in_and_out_of_domain(network, tuned, images, targets):
    maps = heatproof.explain(network, images, targets, ["saliency", "random"])
    with pytest.warns(UserWarning, match="SDS and not IDSDS"):
        results = {
            "tuned": heatproof.evaluate(["idsds"], tuned[2, "zeros"], images, targets, maps),
            "plain": heatproof.evaluate(["idsds"], network, images, targets, maps),
        }
    comparison = heatproof.compare(results).scores
    assert dict(comparison[["model", "metric"]].drop_duplicates().values.tolist()) == {"tuned": "idsds", "plain": "sds"}


COLOUR = {"metric": "idsds", "baseline": "mean"}


@pytest.mark.parametrize(
    ("finetuned", "measures", "names"),
    [
        # By default the deletion of the finetuning comes first, and a second baseline follows.
        (None, None, {"SDS, grid 4, mean colour": "sds", "SDS, grid 4, blur": "sds"}),
        ((2, "zeros"), None, {"IDSDS, grid 2, zeros": "idsds", "SDS, grid 2, blur": "sds"}),
        ((4, "mean"), None, {"IDSDS, grid 4, mean colour": "idsds", "SDS, grid 4, blur": "sds"}),
        ((4, "blur"), None, {"IDSDS, grid 4, blur": "idsds", "SDS, grid 4, mean colour": "sds"}),
        ((2, "zeros"), {"own": {"metric": "idsds"}}, {"own": "idsds"}),
        ((2, "zeros"), {"own": {"metric": "idsds", "grid": 4, "baseline": "blur"}}, {"own": "sds"}),
        ((2, "zeros"), {"own": COLOUR}, {"own": "sds"}),
        ((4, "mean"), {"own": COLOUR}, {"own": "idsds"}),
        ((2, "zeros"), {"own": {"metric": "sds"}}, {"own": "sds"}),
    ],
)
def test_choose_names_measures_by_the_finetuning(network, tuned, images, finetuned, measures, names):
    model = network if finetuned is None else tuned[finetuned]
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        choice = heatproof.choose(model, torch.cat([images, -images]), methods="saliency", measures=measures)
    assert {name: options["metric"] for name, options in choice.measures.items()} == names
    assert choice.in_domain == (next(iter(names.values())) == "idsds")
    weights = "given" if finetuned is None else "finetuned"
    assert f"on the {weights} weights" in choice.sentence
    for name, words in choice.words.items():
        assert words.endswith(f" ({names[name].upper()})")
    # The user did not request the default measures as IDSDS.
    requested = any(options["metric"] == "idsds" for options in (measures or {}).values())
    assert sum("SDS and not IDSDS" in str(warning.message) for warning in messages) == (
        requested and "sds" in names.values()
    )


def test_choose_warns_about_images_of_the_finetuning(tuned, many, images):
    with pytest.warns(UserWarning, match="The network was finetuned on 40 of the 40 images") as messages:
        heatproof.choose(tuned[2, "zeros"], many, methods="saliency")
    assert messages[0].filename == __file__
    with pytest.warns(UserWarning, match="The network was finetuned on 7 of the 19 images"):
        heatproof.choose(tuned[2, "zeros"], torch.cat([images, many[:7]]), methods="saliency")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        heatproof.choose(tuned[2, "zeros"], torch.cat([images, -images]), methods="saliency")


def test_an_unknown_baseline_is_refused_before_any_work(network, images):
    for metric in ("idsds", "sds"):
        with pytest.raises(heatproof.HeatproofError, match="zeros"):
            heatproof.choose(
                network, torch.cat([images, -images]), measures={"own": {"metric": metric, "baseline": "zeroes"}}
            )
        with pytest.raises(heatproof.HeatproofError, match="zeros"):
            scored(metric, network, images, baseline="zeroes")
