"""User code is tried on one image before any job starts, and errors of a job are found there."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml

from heatproof.core.batch import Batch
from heatproof.core.dataset import Split
from heatproof.core.input_facts import InputFacts
from heatproof.errors import HeatproofError, NotApplicable
from heatproof.workflow.check import check_config
from heatproof.workflow.config.files import default_config
from heatproof.workflow.stages._explaining import with_baselines
from heatproof.workflow.start import check_before_start


class NoiseImages:
    """Twelve noise images."""

    num_classes = 3
    class_names = ("a", "b", "c")

    def __init__(self, side=16):
        ids = [f"p{n}" for n in range(12)]
        labels = np.arange(4) % 3
        names = ("train", "validation", "evaluation")
        self.side = side
        self.splits = {name: Split(tuple(ids[4 * n : 4 * n + 4]), labels) for n, name in enumerate(names)}

    def images(self, split, start, stop):
        return np.random.default_rng(0).random((stop - start, 3, self.side, self.side)).astype(np.float32)


def pictures(*, seed):
    return NoiseImages()


def grey_levels(*, seed):
    dataset = NoiseImages()
    dataset.images = lambda split, start, stop: np.full((stop - start, 3, 16, 16), 200, dtype=np.float32)
    return dataset


def no_splits(*, seed):
    dataset = NoiseImages()
    del dataset.splits
    return dataset


def all_for_evaluation(*, seed):
    dataset = NoiseImages()
    dataset.splits |= dict.fromkeys(("train", "validation"), Split((), np.zeros(0, dtype=np.int64)))
    return dataset


def linear(num_classes):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 16, num_classes))


def of_a_thousand(num_classes):
    return linear(1000)


class FormedOutput(torch.nn.Module):
    """A network that returns a function of logits and images."""

    def __init__(self, form):
        super().__init__()
        self.inner, self.form = linear(3), form

    def forward(self, images):
        return self.form(self.inner(images), images)


def a_pair(num_classes):
    return FormedOutput(lambda logits, images: (logits, 2 * logits))


def with_features(num_classes):
    return FormedOutput(lambda logits, images: (images.flatten(1), logits))


def a_dictionary(num_classes):
    return FormedOutput(lambda logits, images: {"features": images, "out": logits})


def of_transformers(num_classes):
    return FormedOutput(lambda logits, images: SimpleNamespace(logits=logits, loss=None))


def probabilities(num_classes):
    return FormedOutput(lambda logits, images: logits.softmax(1))


def restless(num_classes):
    return FormedOutput(lambda logits, images: logits + torch.rand(1))


def for_others(num_classes):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, num_classes))


def explain(context):
    return {"mine": context.images.sum(1)}


def explain_wrongly(context):
    raise ValueError("no such luck")


def explain_small(context):
    return {"mine": context.images.mean((1, 2, 3))}


def explain_nothing(context):
    raise NotApplicable("it wants convolutions")


HERE = "test_trial"


SCALE = {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}


def config(tmp_path, dataset="pictures", model="linear", explainer="explain", **settings):
    written = {
        "datasets": [{"photos": {"dataset": f"{HERE}:{dataset}"}}],
        "models": [{"net": {"architecture": f"{HERE}:{model}", **SCALE, **settings}}],
        "explainers": [{"mine": {"explainer": f"{HERE}:{explainer}"}}],
        "metrics": [],
        "evaluation": {"images": 2, "accuracy_images": 2},
        "report": {"all_metrics": False},
    }
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(written))
    return path


@pytest.mark.parametrize("explainer", ["explain", "explain_nothing"])
def test_working_user_code_passes_the_check(tmp_path, explainer):
    assert "is sound" in check_config(config(tmp_path, explainer=explainer))


@pytest.mark.parametrize("model", ["with_features", "a_dictionary", "of_transformers"])
def test_logits_are_found_in_an_output_with_further_parts(tmp_path, model):
    assert "is sound" in check_config(config(tmp_path, model=model))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"dataset": "grey_levels"}, "has values from 200 to 200"),
        ({"dataset": "no_splits"}, "The dataset 'photos' fails on one image (AttributeError"),
        ({"model": "of_a_thousand"}, "The model 'net' cannot be used on 'photos': the model returns 1000 logits"),
        (
            {"model": "a_pair"},
            "the model returned a tuple for a batch of 3 with parts (3, 3) and (3, 3)",
        ),
        (
            {"model": "probabilities"},
            "The model 'net' cannot be used on 'photos': the model returns probabilities, which sum to 1",
        ),
        (
            {"model": "restless"},
            "'net' cannot be used on 'photos': the model returns different outputs for the same image, by up",
        ),
        ({"model": "for_others"}, "The model 'net' fails on one image (RuntimeError"),
        (
            {"explainer": "explain_wrongly"},
            "The explainer 'mine' cannot be used on 'net': it fails (ValueError: no such luck",
        ),
        ({"dataset": "all_for_evaluation"}, "has no training images, and the baseline `mean` is their mean colour"),
        (
            {"explainer": "explain_small"},
            "The explainer 'mine' cannot be used on 'net': it returned a map of shape (1,)",
        ),
    ],
)
def test_user_code_that_fails_is_reported_in_one_sentence(tmp_path, change, expected):
    with pytest.raises(HeatproofError) as caught:
        check_config(config(tmp_path, **change))
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_more_baselines_than_training_images_are_refused_before_the_run(tmp_path):
    path = config(tmp_path)
    over = tmp_path / "more.yaml"
    over.write_text("explainers: [deep_shap: {baselines: 5}]")
    with pytest.raises(HeatproofError, match=r"'deep_shap' asks for 5 training images of 'photos' as .* there are 4:"):
        check_config(path, over)
    over.write_text("explainers: [deep_shap: {baselines: 4}]")
    assert "is sound" in check_config(path, over)


def test_a_dataset_without_training_images_gives_explainers_none():
    facts = InputFacts(mean=(0.5,) * 3, std=(0.5,) * 3)
    batch = Batch(None, None, facts, None, None, (), 0, dataset=all_for_evaluation(seed=0))
    assert with_baselines(batch, None).background is None
    assert len(with_baselines(replace(batch, dataset=NoiseImages()), None).background(2)) == 2


def saved(tmp_path, value):
    torch.save(value, tmp_path / "m.pt")
    return str(tmp_path / "m.pt")


def test_a_checkpoint_of_other_classes_is_refused(tmp_path):
    state = linear(7).state_dict()
    with pytest.raises(HeatproofError, match="fit the network except for its head, which has the 3 classes"):
        check_config(config(tmp_path, checkpoint=saved(tmp_path, state)))


def test_a_checkpoint_that_is_a_complete_model_is_refused(tmp_path):
    with pytest.raises(HeatproofError, match="save its state_dict"):
        check_config(config(tmp_path, checkpoint=saved(tmp_path, linear(3))))


def test_a_checkpoint_of_random_bytes_is_refused(tmp_path):
    (tmp_path / "m.pt").write_bytes(b"nothing of use" * 20)
    with pytest.raises(HeatproofError, match="cannot be read as safetensors or as a file of weights only"):
        check_config(config(tmp_path, checkpoint=str(tmp_path / "m.pt")))


def test_a_checkpoint_that_fits_is_accepted(tmp_path):
    assert "is sound" in check_config(config(tmp_path, checkpoint=saved(tmp_path, linear(3).state_dict())))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_device_is_refused(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("device: cuda\n")
    with pytest.raises(HeatproofError, match="no GPU is visible"):
        check_config(path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_login_node_needs_no_device():
    plan = {**default_config(), "device": "cuda"}
    with pytest.raises(HeatproofError, match="no GPU is visible"):
        check_before_start(plan, is_main=True)
    assert check_before_start(plan, is_main=True, local=False)


def test_images_of_another_size_than_the_network_takes_are_refused(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("datasets: [digits]\nmodels: [{v: {architecture: torchvision_model, options: {name: vit_b_16}}}]\n")
    with pytest.raises(HeatproofError, match="takes images of 224×224 pixels, and those of 'digits' have 32×32"):
        check_config(path)
