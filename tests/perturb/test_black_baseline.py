"""The black baseline in the stages, which know the normalisation of images, and in memory."""

import numpy as np
import pandas as pd
import pytest
import torch
from network_responses import batch_of, patch_responses
from test_mean_baseline import CLOSED, FACTS, case_of
from torch import nn
from toy_project import Project

import heatproof
from heatproof.core.normalise import normalise
from heatproof.datasets.checks import open_dataset
from heatproof.errors import HeatproofError
from heatproof.explainers.registry import ExplainContext
from heatproof.metrics.registry import METRICS
from heatproof.training import in_domain
from heatproof.training.loop import Trained
from heatproof.workflow.stages._explaining import with_baselines

NORMALISED = {"mean": [0.2, 0.3, 0.4], "std": [0.5, 0.25, 1.0]}


@pytest.mark.parametrize(("models", "normalisation"), [({}, [0.5, 0.5]), ({"models": [{"net": FACTS}]}, None)])
def test_drops_equal_those_of_black_pixels(project, models, normalisation):
    toy = project(drops={"baselines": ["black"]}, **models).drop()
    options = NORMALISED if normalisation is None else {"mean": [normalisation[0]], "std": [normalisation[1]]}
    network, images, labels, ids = case_of(toy, 10)
    expected = patch_responses(batch_of(network, images, labels, ids), 4, "black", baseline_options=options)
    for array, values in expected.items():
        np.testing.assert_allclose(toy.drops_of(array, baseline="black"), values, atol=1e-5)
    # Computed directly: the images without a patch, in [0, 1], which are then normalised.
    pixels = open_dataset(toy.finetune().dataset).images("evaluation", 0, 10).copy()
    side = pixels.shape[-1] // 4
    pixels[:, :, :side, :side] = 0
    with torch.inference_mode():
        logits = network(normalise(pixels, toy.finetune().model.facts))
    at = np.arange(10), labels.numpy()
    drops = toy.drops_of("logit", baseline="black")[:, 1]
    # Some processors round sums near 50 in another way, by five units in the last place.
    np.testing.assert_allclose(drops, logits.numpy()[at], rtol=1e-6, atol=1e-5)


def test_scores_equal_those_of_evaluate(project):
    toy = project(drops={"baselines": ["zeros", "black"]}, models=[{"net": FACTS}]).attribute().drop().score()
    network, images, labels, ids = case_of(toy, 10)
    options = {"baseline": "black", "baseline_options": NORMALISED, "image_ids": ids}
    scores = heatproof.evaluate("idsds", network, images, labels, toy.maps()[:, 0], grid=4, **options)
    stored = pd.read_parquet(toy.folder / "results/scores/toy/net/finetuned/sds_g4_black.parquet")
    np.testing.assert_allclose(stored[stored.method == "mine"].score, scores["score"], atol=1e-12)


def test_no_training_image_is_read(project):
    project(datasets=CLOSED, drops={"baselines": ["black"]}).drop()


def test_finetuning_deletes_to_black(project, monkeypatch):
    caught = {}

    def fit(model, train, validation, schedule, seed, augment=None, **_):
        caught.update(train=train, augment=augment)
        return Trained(dict(model.state_dict()), [{"epoch": 0}], {})

    monkeypatch.setattr(in_domain, "fit", fit)
    changed = project(finetuning={"baseline": "black", "epochs": 1}, models=[{"net": FACTS}])
    changed.make(changed.finetune())
    train = caught["train"].images
    augmented = caught["augment"](train, torch.Generator().manual_seed(0))
    deleted_pixels = augmented.movedim(1, -1)[(train != augmented).any(1)]
    black = -torch.tensor(NORMALISED["mean"]) / torch.tensor(NORMALISED["std"])
    assert len(deleted_pixels) > 50
    torch.testing.assert_close(deleted_pixels, black.expand_as(deleted_pixels), rtol=0, atol=1e-6)


def test_a_run_with_the_black_baseline_has_curves_and_explainers_with_it(tmp_path):
    small = {"pretraining": {"epochs": 1}, "finetuning": {"epochs": 1}, "evaluation": {"images": 6}}
    explainers = ["random", {"integrated_gradients": {"steps": 4, "baseline": "same"}}]
    toy = Project(
        tmp_path,
        **small,
        baselines=["black"],
        explainers=explainers,
        metrics=[{"deletion_morf": {"steps": 4}}],
    ).train()
    toy.attribute().drop().score()
    table = pd.read_csv(tmp_path / "results/idsds_table.csv")
    assert set(table.metric) == {"idsds"}
    assert table.score.notna().all()
    assert toy.plan.metrics["deletion_morf"].options["baseline"] == "black"


class Sum(nn.Module):
    """One logit is the sum of the pixels, the other zero."""

    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, 2, 1, bias=False)
        with torch.no_grad():
            self.conv.weight.copy_(torch.tensor([1.0, 0.0])[:, None, None, None].expand_as(self.conv.weight))

    def forward(self, images):
        return self.conv(images).sum((2, 3))


@pytest.mark.parametrize("channels", [1, 3, 6])
@pytest.mark.parametrize("metric", ["deletion_morf", "rise_insertion", "sensitivity_n", "idsds"])
def test_evaluate_accepts_black_for_any_number_of_channels(metric, channels):
    mean, std = [0.1 * (band + 1) for band in range(channels)], [0.5] * channels
    images = (torch.rand(4, channels, 8, 8, generator=torch.Generator().manual_seed(1)) - 0.5) / 0.5
    options = {"baseline": "black", "baseline_options": {"mean": mean, "std": std}, "output": "logit"}
    model, labels = Sum(channels).eval(), torch.zeros(4, dtype=torch.long)
    options |= {"steps": 4} if "steps" in METRICS[metric].options else {}
    scores = heatproof.evaluate(metric, model, images, labels, torch.rand(4, 8, 8), **options)
    assert scores.sizes["image"] == 4
    if metric == "deletion_morf":
        np.testing.assert_allclose(
            scores["deletion"][:, -1], 64 * sum(-channel_mean / 0.5 for channel_mean in mean), rtol=1e-5
        )
    with pytest.raises(HeatproofError, match="does not know how the images were normalised"):
        heatproof.evaluate(metric, model, images, labels, torch.rand(4, 8, 8), baseline="black", output="logit")


def test_explainers_in_a_run_use_the_black_baseline(project):
    toy = project(models=[{"net": FACTS}])
    dataset, facts = open_dataset(toy.finetune().dataset), toy.plan.model_spec("net").facts
    images = torch.zeros(2, 3, 8, 8)
    targets = torch.zeros(2, dtype=torch.long)
    context = ExplainContext(None, None, facts, images, targets, ("a", "b"), 0, dataset=dataset)
    black = with_baselines(context, None).baseline("black")[0, :, 0, 0]
    torch.testing.assert_close(black, -torch.tensor(NORMALISED["mean"]) / torch.tensor(NORMALISED["std"]))
