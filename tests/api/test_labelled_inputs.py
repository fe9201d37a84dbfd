"""Labelled inputs are aligned by their labels in any order, or refused with a sentence that says what to write."""

import numpy as np
import pandas as pd
import pytest
import torch
import xarray
from matplotlib.figure import Figure

import heatproof
from heatproof.errors import HeatproofError

METHODS = ["saliency", "input_x_gradient", "random"]
NAMES = [f"photo {letter}" for letter in "abcdefghijkl"]
ORDER = np.random.default_rng(0).permutation(12)
AXES = ("image", "y", "x")


@pytest.fixture(scope="module")
def dataset(network, images, targets):
    return heatproof.explain(network, images, targets, METHODS)


@pytest.fixture(scope="module")
def scored(network, images, targets, dataset):
    return heatproof.evaluate("sds", network, images, targets, dataset)["score"].values


def one_method(dataset):
    return dataset["attribution"].sel({"method": "saliency"}, drop=True)


def plain(dataset):
    """Return maps that are labelled only with the names of images."""
    return one_method(dataset).reset_coords(["image_digest", "target"], drop=True)


def renumbered(dataset):
    """Return maps in another order, with the numbers of images that are explained in that order."""
    return dataset.isel(image=ORDER).assign_coords(image=dataset["image"].values)


CHANGES = {
    "images in another order": lambda dataset: dataset.isel(image=ORDER),
    "an array of them": lambda dataset: dataset.isel(image=ORDER)["attribution"],
    "other axes": lambda dataset: dataset["attribution"].isel(image=ORDER).transpose("x", "image", "method", "y"),
    "methods apart": lambda dataset: {name: dataset["attribution"].sel({"method": name}) for name in METHODS},
    "methods apart, one in another order": lambda dataset: {
        name: dataset["attribution"].sel({"method": name}).isel(image=ORDER if name == "random" else slice(None))
        for name in METHODS
    },
    "datasets of one method": lambda dataset: {
        name: dataset.sel({"method": name}).isel(image=ORDER) for name in METHODS
    },
    "without names of images": lambda dataset: dataset.isel(image=ORDER).drop_vars("image"),
    "a table of pandas and back": lambda dataset: renumbered(dataset).to_dataframe().to_xarray(),
    "labels as plain variables": lambda dataset: renumbered(dataset).reset_coords(),
    "results of one method, in a dict": lambda dataset: {
        name: dataset.sel({"method": [name]}).isel(image=ORDER) for name in METHODS
    },
    "arrays of one method, in a dict": lambda dataset: {
        name: dataset["attribution"].sel({"method": [name]}).isel(image=ORDER) for name in METHODS
    },
    "with further images": lambda dataset: xarray.concat([dataset, dataset.isel(image=ORDER)], "image"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_maps_are_aligned_with_their_images_in_any_form(change, network, images, targets, dataset, scored):
    result = heatproof.evaluate("sds", network, images, targets, CHANGES[change](dataset))
    np.testing.assert_array_equal(result["score"].values, scored)
    np.testing.assert_array_equal(result["image"].values, dataset["image"].values)


def test_a_repeated_image_has_the_same_map_each_time(network, images, targets, dataset, scored):
    result = heatproof.evaluate("sds", network, images[[4, 2, 4]], targets[[4, 2, 4]], dataset)
    np.testing.assert_allclose(result["score"].values, scored[:, [4, 2, 4]], atol=1e-6)


def test_images_and_maps_reordered_together_are_aligned(network, images, targets, dataset, scored):
    scores = heatproof.evaluate("sds", network, images[ORDER], targets[ORDER], dataset.isel(image=ORDER))["score"]
    np.testing.assert_array_equal(scores, scored[:, ORDER])
    # The order of the maps is unchanged, because numbers from 0 are not labels.
    scores = heatproof.evaluate("sds", network, images[ORDER], targets[ORDER], dataset)["score"]
    np.testing.assert_array_equal(scores, scored[:, ORDER])


def test_a_subset_of_the_images_has_its_maps(network, images, targets, dataset, scored):
    scores = heatproof.evaluate("sds", network, images[3:7], targets[3:7], dataset)["score"]
    np.testing.assert_array_equal(scores, scored[:, 3:7])


def test_methods_are_found_by_name(network, images, targets, dataset, scored):
    scores = heatproof.evaluate("sds", network, images, targets, dataset.isel(method=[2, 0, 1]))["score"]
    np.testing.assert_array_equal(scores.sel({"method": METHODS}), scored)


def test_equal_images_are_distinguished_by_class_then_name_then_order(network, images):
    same = images[:1].repeat(4, 1, 1, 1)
    classes = torch.tensor([0, 1, 2, 0])
    dataset = heatproof.explain(network, same, classes, ["input_x_gradient"])
    right = heatproof.evaluate("sds", network, same, classes, dataset)["score"].values
    for order in ([3, 2, 1, 0], [1, 2, 3, 0]):
        scores = heatproof.evaluate("sds", network, same, classes, dataset.isel(image=order))["score"]
        np.testing.assert_array_equal(scores, right)
        both = heatproof.evaluate("sds", network, same[order], classes[order], dataset.isel(image=order))["score"]
        np.testing.assert_array_equal(both, right[:, order])


def test_maps_are_aligned_by_the_names_that_the_caller_gives(network, images, targets, dataset, scored):
    named = plain(dataset).assign_coords(image=NAMES)
    options = {"image_ids": NAMES}
    right = heatproof.evaluate("sds", network, images, targets, named, **options)["score"]
    np.testing.assert_array_equal(right, scored[0])
    scores = heatproof.evaluate("sds", network, images, targets, named.isel(image=ORDER), **options)["score"]
    np.testing.assert_array_equal(scores, scored[0])
    named_images = xarray.DataArray(images.numpy(), {"image": NAMES}, ("image", "channel", "y", "x"))
    scores = heatproof.evaluate("sds", network, named_images.isel(image=ORDER), targets[ORDER], named)["score"]
    np.testing.assert_array_equal(scores, scored[0][ORDER])
    # Names as xarray and pandas represent them.
    for ids in (named["image"], pd.Index(NAMES), np.array(NAMES)):
        scores = heatproof.evaluate("sds", network, images, targets, named.isel(image=ORDER), image_ids=ids)["score"]
        np.testing.assert_array_equal(scores, scored[0])


TARGETS = {
    "a series": lambda targets: pd.Series(targets.numpy(), NAMES).iloc[ORDER],
    "a table of one column": lambda targets: pd.DataFrame({"class": targets.numpy()}, NAMES).iloc[ORDER],
    "an array": lambda targets: xarray.DataArray(targets.numpy(), {"image": NAMES}, ("image",)).isel(image=ORDER),
    "a series of more images": lambda targets: pd.Series([*targets.tolist(), 7], [*NAMES, "other"]).iloc[::-1],
    "a nullable series": lambda targets: pd.Series(targets.numpy(), NAMES, dtype="Int64").iloc[ORDER],
    "a new series": lambda targets: pd.Series(targets.numpy()),
}


@pytest.mark.parametrize("change", TARGETS)
def test_labelled_targets_are_aligned(change, network, images, targets, dataset):
    labelled = TARGETS[change](targets)
    explained = heatproof.explain(network, images, labelled, ["saliency"], image_ids=NAMES)
    np.testing.assert_array_equal(explained["target"], targets)
    np.testing.assert_array_equal(explained["attribution"][0], one_method(dataset))
    scores = heatproof.evaluate("sds", network, images, labelled, dataset, image_ids=NAMES)["score"]
    np.testing.assert_array_equal(scores, heatproof.evaluate("sds", network, images, targets, dataset)["score"])


def test_the_targets_of_maps_can_be_passed_as_targets(network, images, targets, dataset, scored):
    scores = heatproof.evaluate("sds", network, images, dataset["target"].isel(image=ORDER), dataset)["score"]
    np.testing.assert_array_equal(scores, scored)


def test_without_targets_maps_are_scored_by_the_class_that_they_explain(network, images, targets):
    others = (targets + 1) % 4
    dataset = heatproof.explain(network, images, others, METHODS)
    right = heatproof.evaluate("sds", network, images, others, dataset)
    xarray.testing.assert_identical(heatproof.evaluate("sds", network, images, None, dataset.isel(image=ORDER)), right)
    # Maps that do not record a class are scored by the predicted class.
    cube = dataset["attribution"].values[0]
    xarray.testing.assert_identical(
        heatproof.evaluate("sds", network, images, None, cube).drop_attrs(),
        heatproof.evaluate("sds", network, images, targets, cube).drop_attrs(),
    )
    xarray.testing.assert_identical(
        heatproof.explain(network, images, None, ["saliency"]).drop_vars("seconds").drop_attrs(),
        heatproof.explain(network, images, targets, ["saliency"]).drop_vars("seconds").drop_attrs(),
    )


def series(targets, **options):
    return pd.Series(targets.numpy(), **options)


REFUSED = {
    "other images": (lambda m, x, y: (x + 1, y, m), "other images than '0'.*drop_vars"),
    "one other image": (lambda m, x, y: (torch.cat([x[:5], x[5:6] * 2, x[6:]]), y, m), "other images than '5'"),
    "fewer maps than images": (lambda m, x, y: (x, y, m.isel(image=slice(5))), "other images than '5'"),
    "another class": (lambda m, x, y: (x, (y + (torch.arange(12) == 4)) % 4, m), r" '4' explains class \d and its"),
    "another class of one method": (
        lambda m, x, y: (x, y, {"a": one_method(m), "b": one_method(m).assign_coords(target=("image", y.numpy() + 1))}),
        "image '0' explains class",
    ),
    "numbers in another order": (lambda m, x, y: (x, y, plain(m).isel(image=ORDER)), r"give image_ids=maps\['image'\]"),
    "names of images without names": (lambda m, x, y: (x, y, plain(m).assign_coords(image=NAMES)), "image_ids"),
    "a series in another order": (lambda m, x, y: (x, series(y).iloc[ORDER], m), r"give targets.to_numpy\(\)"),
    "a series of names": (lambda m, x, y: (x, series(y, index=NAMES), m), r"give targets.to_numpy\(\)"),
    "a series of a part": (lambda m, x, y: (x[:6], series(y).iloc[6:], m), r"give targets.to_numpy\(\)"),
    "an array in another order": (
        lambda m, x, y: (x, xarray.DataArray(y.numpy(), {"image": np.arange(12)}, ("image",)).isel(image=ORDER), m),
        r"give image_ids=targets\['image'\].values",
    ),
    "a method twice": (lambda m, x, y: (x, y, m["attribution"].isel(method=[0, 1, 0])), "the method 'saliency' twice"),
    "a method twice in a mapping": (lambda m, x, y: (x, y, {1: one_method(m), "1": one_method(m)}), "'1' twice"),
    "methods without names": (lambda m, x, y: (x, y, m["attribution"].drop_vars("method")), "without names"),
    "an empty name": (lambda m, x, y: (x, y, {"": m["attribution"][0]}), "without a name"),
    "a name that is missing": (
        lambda m, x, y: (x, y, m["attribution"].assign_coords(method=np.array(["a", None, "c"], dtype=object))),
        "without a name",
    ),
    "no methods": (lambda m, x, y: (x, y, m["attribution"].isel(method=[])), "There are no maps"),
    "methods and maps of a run": (
        lambda m, x, y: (x, y, m["attribution"].expand_dims(map=["a", "b"])),
        "name them image, y, x",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_inputs_that_cannot_be_aligned_are_refused(case, network, images, targets, dataset):
    change, sentence = REFUSED[case]
    changed, classes, maps = change(dataset, images, targets)
    with pytest.raises(HeatproofError, match=sentence) as raised:
        heatproof.evaluate("sds", network, changed, classes, maps)
    assert "\n" not in str(raised.value)


NAMED = {
    "a name that is missing": (lambda m: plain(m).assign_coords(image=[*NAMES[:-1], "other"]), "no image 'photo l'"),
    "a name twice": (lambda m: plain(m).assign_coords(image=[*NAMES[1:], NAMES[1]]), "the image 'photo b' twice"),
}


@pytest.mark.parametrize("case", NAMED)
def test_names_that_do_not_fit_are_refused(case, network, images, targets, dataset):
    change, sentence = NAMED[case]
    with pytest.raises(HeatproofError, match=sentence):
        heatproof.evaluate("sds", network, images, targets, change(dataset), image_ids=NAMES)


def test_an_ambiguous_index_is_refused(network, images, targets, dataset):
    ids = [str(number) for number in ORDER]
    with pytest.raises(HeatproofError, match="counts from 0, and the images have these numbers as names"):
        heatproof.evaluate("sds", network, images, pd.Series(targets.numpy()), dataset, image_ids=ids)
    named_images = xarray.DataArray(images.numpy(), {"image": NAMES}, ("image", "channel", "y", "x"))
    with pytest.raises(HeatproofError, match="leave image_ids out"):
        heatproof.evaluate("sds", network, named_images, targets, dataset, image_ids=NAMES[::-1])


def test_a_metric_of_the_predicted_class_ignores_targets(network, images, targets, dataset):
    """Labels may differ from the classes that the maps explain."""
    pixels = images.sigmoid()
    with torch.no_grad():
        predicted = network(pixels).argmax(1)
    maps = heatproof.explain(network, pixels, None, ["saliency"])
    result = heatproof.evaluate("sic", network, pixels, (predicted + 1) % 4, maps, target="predicted")
    right = heatproof.evaluate("sic", network, pixels, predicted, maps, target="predicted")
    np.testing.assert_array_equal(result["score"], right["score"])
    others = heatproof.explain(network, pixels, (predicted + 1) % 4, ["saliency"])
    with pytest.raises(HeatproofError, match=r"image '0' explains class \d and the network predicts \d: give maps"):
        heatproof.evaluate("sic", network, pixels, predicted, others, target="predicted")
    both = {"sic": {"target": "predicted"}, "aic": {"target": "label"}}
    assert heatproof.evaluate(both, network, pixels, predicted, maps)["aic"]["valid"].any()
    with pytest.raises(HeatproofError, match="its target is"):
        heatproof.evaluate(both, network, pixels, (predicted + 1) % 4, maps)


def test_rankings_are_aligned(network, images, targets, dataset):
    maps = plain(dataset).assign_coords(image=NAMES)
    ranking = np.argsort(-maps.values.reshape(12, -1), axis=1)
    options = {"image_ids": NAMES, "steps": 8}
    right = heatproof.evaluate("ids", network, images, targets, maps, ranking=ranking, **options)["score"]
    labelled = xarray.DataArray(ranking, {"image": NAMES}, ("image", "pixel"))
    table = pd.DataFrame(ranking, NAMES)
    for labelled_ranking in (
        labelled,
        labelled.isel(image=ORDER),
        labelled.T,
        labelled.rename(pixel="place").T,
        table,
        table.iloc[ORDER],
    ):
        scores = heatproof.evaluate("ids", network, images, targets, maps, ranking=labelled_ranking, **options)["score"]
        np.testing.assert_array_equal(scores, right)
    with pytest.raises(HeatproofError, match="ranking"):
        heatproof.evaluate("ids", network, images, targets, dataset, ranking=labelled.isel(image=ORDER), steps=8)


def test_parts_and_their_drops_are_aligned(network, images, targets, dataset):
    maps, parts = plain(dataset).assign_coords(image=NAMES), ["head", "body", "tail"]
    masks = np.zeros((12, 3, 16, 16), dtype=bool)
    masks[:, 0, :4], masks[:, 1, 4:10], masks[:, 2, 10:] = True, True, True
    removed = images.numpy()[:, None] * ~masks[:, :, None]
    coordinates = {"image": NAMES, "part": parts}
    labelled = {
        "masks": xarray.DataArray(masks, coordinates, ("image", "part", "y", "x")),
        "removed": xarray.DataArray(removed, coordinates, ("image", "part", "channel", "y", "x")),
        "drops": xarray.DataArray(np.random.default_rng(1).random((12, 3)), coordinates, ("image", "part")),
    }

    def score(**options):
        scores = heatproof.evaluate("part_deletion", network, images, targets, maps, image_ids=NAMES, **options)
        return scores["score"].values

    for other in ("removed", "drops"):
        right = score(masks=masks, **{other: labelled[other].values})
        changed = {"image": ORDER, "part": [2, 0, 1]}
        for values in (
            labelled[other],
            labelled[other].isel(image=ORDER),
            labelled[other].isel(changed),
            labelled[other].isel(changed).transpose(),
        ):
            np.testing.assert_array_equal(score(masks=labelled["masks"], **{other: values}), right)
        with pytest.raises(HeatproofError, match=f"The {other} are of the parts 'head', 'body', 'wing'"):
            score(masks=labelled["masks"], **{other: labelled[other].assign_coords(part=["head", "body", "wing"])})
        with pytest.raises(HeatproofError, match="dimensions image, piece"):
            score(masks=labelled["masks"].rename(part="piece"), **{other: labelled[other]})


def test_metrics_that_read_one_labelled_array_share_its_passes(network, images, targets, dataset):
    masks = np.zeros((12, 2, 16, 16), dtype=bool)
    masks[:, 0, :8], masks[:, 1, 8:] = True, True
    removed = xarray.DataArray(
        images.numpy()[:, None] * ~masks[:, :, None], dims=("image", "part", "channel", "y", "x")
    )
    seen = []
    counting = network.register_forward_hook(lambda module, arguments, output: seen.append(len(output)))
    try:
        options = {"masks": masks, "removed": removed}
        heatproof.evaluate("part_deletion", network, images, targets, dataset, **options)
        single = sum(seen)
        both = {"one": {"metric": "part_deletion"}, "two": {"metric": "part_deletion", "widen": 1}}
        heatproof.evaluate(both, network, images, targets, dataset, **options)
    finally:
        counting.remove()
    assert sum(seen) == 2 * single


QUALITY = {
    "image_scores": {},
    "offset_sensitivity": {"offsets": [0.1]},
    "noise_sensitivity": {"shares": [0.1]},
    "baseline_invariance": {"baselines": ["zeros", "mean"]},
}


@pytest.mark.parametrize("function", QUALITY)
def test_quality_functions_align_labelled_inputs(function, network, images, targets, dataset):
    study, options = getattr(heatproof.quality, function), QUALITY[function]
    arrays = {name: dataset["attribution"].sel({"method": name}).values for name in METHODS}
    right = study(network, images, targets, arrays, ["sds"], **options)
    for maps in (
        dataset.isel(image=ORDER),
        {name: dataset["attribution"].sel({"method": name}).isel(image=ORDER).T for name in METHODS},
    ):
        pd.testing.assert_frame_equal(study(network, images, targets, maps, ["sds"], **options), right)
    named_images = xarray.DataArray(images.numpy(), dims=("image", "channel", "y", "x")).transpose(
        "y", "image", "x", "channel"
    )
    pd.testing.assert_frame_equal(study(network, named_images, targets, dataset, ["sds"], **options), right)
    with pytest.raises(HeatproofError, match="other images"):
        study(network, images + 1, targets, dataset, ["sds"], **options)


@pytest.mark.parametrize("function", QUALITY)
def test_exchanged_arguments_of_quality_functions_are_refused(function, network, images, targets, dataset):
    study, options = getattr(heatproof.quality, function), QUALITY[function]
    with pytest.raises(HeatproofError, match="The metrics are Dataset: give names of metrics"):
        study("sds", network, images, targets, dataset, **options)
    pd.testing.assert_frame_equal(
        study(network, images, targets, dataset, "sds", **options),
        study(network, images, targets, dataset, ["sds"], **options),
    )


def test_a_comparison_does_not_depend_on_the_order_of_its_results(network, images, targets, dataset):
    scores = heatproof.evaluate(["sds", "rise_deletion"], network, images, targets, dataset, steps=8)
    moved = {name: dataset_of_metric.isel(image=ORDER, method=[2, 0, 1]) for name, dataset_of_metric in scores.items()}
    moved["sds"] = scores["sds"]
    pd.testing.assert_frame_equal(
        heatproof.compare(moved).table.sort_values("method", ignore_index=True),
        heatproof.compare(scores).table.sort_values("method", ignore_index=True),
    )


def test_a_table_can_have_names_in_its_index(network, images, targets, dataset):
    scores = heatproof.evaluate("sds", network, images, targets, dataset)
    table = scores["score"].to_dataframe()[["score"]]
    right = heatproof.compare(table.reset_index())
    for form in (table, table.iloc[::-1], table.reset_index("method"), table.reset_index("image")):
        pd.testing.assert_frame_equal(
            heatproof.compare(form).table.sort_values("method", ignore_index=True),
            right.table.sort_values("method", ignore_index=True),
        )


def drawn(dataset, **options):
    axes = Figure().subplots(1, 5).ravel()
    return [axis.images[0].get_array() for axis in heatproof.plot.maps(dataset, axes=axes, **options) if axis.images]


def test_images_of_a_plot_are_selected_by_name(images, dataset):
    right = drawn(dataset, image="3")
    for order in (dataset.isel(image=ORDER), dataset.transpose("y", "x", "method", "image")):
        for mine, theirs in zip(drawn(order, image="3"), right, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    named_images = xarray.DataArray(images.numpy(), {"image": dataset["image"].values}, ("image", "channel", "y", "x"))
    first = drawn(dataset, image="3", picture=images[3])[0]
    for form in (named_images, named_images.sel(image="3"), named_images.sel(image="3").transpose("y", "x", "channel")):
        np.testing.assert_array_equal(drawn(dataset, image="3", picture=form)[0], first)
    with pytest.raises(HeatproofError, match="`picture` is image '4'"):
        drawn(dataset, image="3", picture=named_images.sel(image="4"))


@pytest.mark.parametrize("channels", [False, True])
def test_maps_of_a_function_have_named_axes_in_any_order(channels, network, images, targets):
    def plain(model, batch, classes):
        return batch.abs() if channels else batch.abs().sum(1)

    def labelled(model, batch, classes):
        axes = ("image", "channel", "y", "x") if channels else AXES
        return xarray.DataArray(plain(model, batch, classes).numpy(), dims=axes).T

    maps = heatproof.explain(network, images, targets, {"plain": plain, "labelled": labelled})["attribution"]
    np.testing.assert_array_equal(*maps)


def test_recomputed_maps_and_masks_have_named_axes_in_any_order(network, images, targets, dataset):
    def labelled(pixels, classes):
        return xarray.DataArray(pixels.abs().sum(1).numpy(), dims=AXES).T

    options = {"update": True, "steps": 4}
    plain = lambda pixels, classes: pixels.abs().sum(1)  # noqa: E731
    scores, right = (
        heatproof.evaluate("deletion_morf", network, images, targets, dataset, explain=explain, **options)["score"]
        for explain in (labelled, plain)
    )
    np.testing.assert_array_equal(scores, right)
    mask = np.zeros((16, 16), dtype=bool)
    mask[0, :5] = True
    pixels = images.sigmoid()
    maps = heatproof.explain(network, pixels, targets, ["saliency"])
    scores, right = (
        heatproof.evaluate("sic", network, pixels, targets, maps, random_mask=random_mask)["score"]
        for random_mask in (xarray.DataArray(mask, dims=("y", "x")).T, mask)
    )
    np.testing.assert_array_equal(scores, right)
