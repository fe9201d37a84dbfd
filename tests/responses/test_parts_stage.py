"""Part responses, which their stage caches, and the scores that are computed from them."""

import shutil

import numpy as np
import pytest
import torch
import yaml
from toy_project import Project

import heatproof
from heatproof.core.dataset import Split
from heatproof.core.normalise import normalise
from heatproof.core.provenance import Key
from heatproof.datasets.checks import open_dataset
from heatproof.errors import HeatproofError
from heatproof.models.network import load_network
from heatproof.store.reading import read_json
from heatproof.store.zarr_store import describe_store, read
from heatproof.workflow.check import check_config
from heatproof.workflow.config.files import merge
from heatproof.workflow.plan.validate import make_plan
from heatproof.workflow.stages import _responses as run

STORE = "results/parts/toy/net/finetuned.zarr"
FEW = {"size": 16, "classes": 3, "train_images": 24, "validation_images": 6, "evaluation_images": 12}
CONFIG = {
    "datasets": [{"toy": {"dataset": "parts", **FEW}}],
    "models": [{"net": {"architecture": "cifar_resnet20", "options": {"width": 4}}}],
    "pretraining": {"epochs": 1, "batch_size": 8},
    "finetuning": {"epochs": 1, "batch_size": 8},
    "explainers": ["saliency", "random"],
    "metrics": [
        "part_deletion",
        {"wide": {"metric": "part_deletion", "widen": 1, "output": "probability"}},
    ],
}


class WithParts(Project):
    """Run the stages of a config whose metrics read parts."""

    def respond(self, batch_size=64):
        for shard in self.plan.shards(self.plan.images):
            self.make(self.on_network("parts", shard=shard), batch_size)
        return self

    def score_metrics(self):
        self.drop()
        for metric in self.plan.metrics:
            self.score_with(metric)
        return self


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    torch.set_num_threads(1)
    return WithParts(tmp_path_factory.mktemp("parts"), **CONFIG).train().attribute().respond().score_metrics()


@pytest.fixture(scope="module")
def case(toy):
    spec = toy.finetune()
    data = open_dataset(spec.dataset)
    network = load_network(spec.model, 3, toy.folder / spec.files["weights"], torch.device("cpu"))
    facts = spec.model.facts
    removed = data.without_part("evaluation", 0, 10)
    removed = normalise(removed.reshape(-1, 3, 16, 16), facts).reshape(removed.shape)
    labels = torch.from_numpy(data.splits["evaluation"].labels[:10])
    return data, network, normalise(data.images("evaluation", 0, 10), facts), labels, removed


def test_metrics_with_a_ground_truth_are_listed_for_reliability(toy):
    assert toy.job("reliability").spec_json["truths"] == ["part_deletion", "wide"]


@pytest.mark.parametrize("method", ["saliency", "random"])
@pytest.mark.parametrize("name", ["part_deletion", "wide"])
def test_scores_equal_those_of_evaluate(toy, case, name, method):
    data, network, images, labels, removed = case
    options = {"widen": 1, "output": "probability"} if name == "wide" else {}
    expected = heatproof.evaluate(
        "part_deletion",
        network,
        images,
        labels,
        toy.maps(method)[:, 0],
        masks=data.part_masks("evaluation", 0, 10),
        removed=removed,
        image_ids=data.splits["evaluation"].ids[:10],
        **options,
    )
    rows = toy.scores(name)
    rows = rows[rows.method == method]
    assert rows.image.tolist() == list(data.splits["evaluation"].ids[:10])
    assert rows.score.nunique() > 2
    np.testing.assert_allclose(rows.score, expected["score"], atol=1e-12)


def test_the_store_has_the_importance_and_mask_of_each_part(toy, case):
    data, network, images, labels, removed = case
    store = toy.folder / STORE
    facts = describe_store(store)
    assert facts["coordinates"]["part"] == ["tail", "crest", "snout", "legs", "mark"]
    assert facts["coordinates"]["variant"] == ["intact", *facts["coordinates"]["part"]]
    assert facts["image_ids"] == list(data.splits["evaluation"].ids)
    with torch.inference_mode():
        intact = network(images).gather(1, labels[:, None])
        without = network(removed.flatten(0, 1)).reshape(10, 5, 3)
    drops = (intact - without.gather(2, labels[:, None, None].expand(-1, 5, 1))[..., 0]).numpy()
    np.testing.assert_allclose(read(store, "importance", 0, 10), drops, atol=1e-5)
    logit = read(store, "logit", 0, 10)
    np.testing.assert_array_equal(read(store, "importance", 0, 10), logit[:, :1] - logit[:, 1:])
    np.testing.assert_array_equal(read(store, "mask", 0, 10), data.part_masks("evaluation", 0, 10))
    assert read(store, "mask", 0, 10).any(axis=(2, 3)).all()


def test_every_output_of_the_rule_is_written(toy):
    """The stage writes the outputs that Snakemake waits for."""
    job = toy.on_network("parts", shard=0)
    (product,) = job.products
    assert product.manifest == "results/parts/toy/net/finetuned.0.json"
    assert len(job.outputs) == 5
    assert all((toy.folder / path).is_file() for path in job.outputs)
    inputs = toy.on_network("score", metric="part_deletion").inputs
    assert set(job.outputs) <= set(inputs)
    assert Key.of(read_json(toy.folder / product.manifest)) == product.key
    assert job.run == "heatproof.workflow.stages.responses:Parts"


def test_all_metrics_over_parts_share_one_store(toy):
    specs = [toy.spec(name) for name in ("part_deletion", "wide")]
    reads = [spec.responses["drops"] for spec in specs]
    assert {read.store + ".zarr" for read in reads} == {STORE}
    assert [read.output for read in reads] == ["logit", "probability"]
    assert toy.plan.part_metrics == ["part_deletion", "wide"]
    assert toy.plan.method_responses == toy.plan.model_responses == {}


def with_same_weights(toy, folder, **change):
    """Return a project with the same weights."""
    shutil.copytree(toy.folder / "results" / "weights", folder / "results" / "weights")
    shutil.copytree(toy.folder / "results" / "datasets", folder / "results" / "datasets")
    return WithParts(folder, **merge(CONFIG, change))


def test_shards_and_added_images_change_no_bit(toy, tmp_path):
    few = with_same_weights(toy, tmp_path, evaluation={"images": 5}, shard_size=4).respond()
    assert read_json(tmp_path / "results/parts/toy/net/finetuned.1.json")["images"] == [4, 5]
    more = WithParts(few.folder, **merge(CONFIG, {"shard_size": 4})).respond()
    for array in ("logit", "log_probability", "importance", "mask"):
        np.testing.assert_array_equal(
            read(more.folder / STORE, array, 0, 10), read(toy.folder / STORE, array, 0, 10), err_msg=array
        )


def test_batches_have_one_size_and_are_padded_with_copies(toy, case, tmp_path, monkeypatch):
    """As in `test_batches.py`: batches go image by image, and part by part."""
    _, network, images, _, removed = case
    seen, kind = [], type(network)
    forward = kind.forward

    def watched(network, batch):
        seen.append(batch.clone())
        return forward(network, batch)

    monkeypatch.setattr(kind, "forward", watched)
    monkeypatch.setattr(run, "check_loaded", lambda *arguments: 0)
    with_same_weights(toy, tmp_path).respond(7)
    rows = torch.cat([images.unsqueeze(1), removed], dim=1).flatten(0, 1)
    # Seven images and then three are combined: six and three batches, with the last one padded.
    expected = torch.cat([rows, rows[-1:].expand(3, *rows.shape[1:])])
    assert [len(batch) for batch in seen] == [7] * 9
    assert torch.equal(torch.cat(seen), expected)


def test_only_added_images_are_computed(toy, tmp_path):
    def passes():
        return read_json(tmp_path / "results/parts/toy/net/finetuned.0.json")["network_passes"]

    first = with_same_weights(toy, tmp_path, evaluation={"images": 4}).respond(2)
    assert passes() == 4 * 6
    WithParts(first.folder, **CONFIG).respond(2)
    assert passes() == 10 * 6


def test_a_dataset_without_parts_is_refused_before_work_starts(tmp_path):
    config = {"metrics": ["part_deletion"], "datasets": ["digits"]}
    with pytest.raises(HeatproofError) as raised:
        make_plan(config)
    assert str(raised.value) == (
        "The metric 'part_deletion' needs a dataset whose parts are known, and 'digits' has none: take "
        "'funny_birds' or 'parts' or 'watermarked', or leave the metric out."
    )
    (tmp_path / "both.yaml").write_text(yaml.safe_dump({**config, "datasets": ["parts", "digits"]}))
    with pytest.raises(HeatproofError, match="'digits' has none"):
        check_config(tmp_path / "both.yaml")
    assert make_plan({**config, "datasets": ["parts"]}).part_metrics == ["part_deletion"]
    assert make_plan({"metrics": ["sensitivity_n"], "datasets": ["digits"]}).part_metrics == []


@pytest.mark.parametrize("option", ["masks", "removed", "drops"])
def test_arrays_of_the_dataset_are_not_options_of_a_config(option):
    with pytest.raises(HeatproofError, match=f"The metric 'part_deletion' has no option '{option}'"):
        make_plan({"metrics": [{"part_deletion": {option: []}}], "datasets": ["parts"]})


@pytest.mark.parametrize(
    ("options", "sentence"), [({"widen": -1}, "of at least 0, not -1"), ({"output": "x"}, "'logit' or")]
)
def test_options_out_of_range_are_refused(options, sentence):
    with pytest.raises(HeatproofError, match=sentence):
        make_plan({"metrics": [{"part_deletion": options}], "datasets": ["parts"]})


class Plain:
    """A custom dataset without parts."""

    num_classes = 3
    class_names = ("a", "b", "c")
    splits = dict.fromkeys(("train", "validation", "evaluation"), Split(("x",), np.zeros(1, dtype=np.int64)))

    def images(self, split, start, stop):
        return np.zeros((1, 3, 16, 16), dtype=np.float32)


class WrongMasks(Plain):
    """A dataset whose masks have another size."""

    part_names = ("wheel", "door")

    def part_masks(self, split, start, stop):
        return np.zeros((1, 2, 8, 8), dtype=bool)

    def without_part(self, split, start, stop):
        return np.zeros((1, 2, 3, 16, 16), dtype=np.float32)


@pytest.mark.parametrize(
    ("dataset", "sentence"),
    [
        (Plain, "The dataset 'toy' does not describe the parts of its objects"),
        (WrongMasks, r"gives masks \(1, 2, 8, 8\) and images without a part \(1, 2, 3, 16, 16\)"),
    ],
)
def test_the_stage_checks_the_parts_of_a_users_dataset(toy, tmp_path, monkeypatch, dataset, sentence):
    monkeypatch.setattr("heatproof.workflow.stages._responses.open_dataset", lambda spec_json: dataset())
    with pytest.raises(HeatproofError, match=sentence):
        toy.make(toy.on_network("parts", shard=0))
