"""A complete estimate: real jobs on two images."""

import os

import pytest

from heatproof.errors import HeatproofError
from heatproof.workflow.commands.cli import main
from heatproof.workflow.estimate.measure import Bench
from heatproof.workflow.plan.validate import make_plan


@pytest.mark.slow
def test_the_command_times_every_stage(tmp_path, monkeypatch, capsys):
    config = tmp_path / "tiny.yaml"
    config.write_text(
        "models: [{net: {architecture: cifar_resnet20, options: {width: 4}}}]\n"
        "weights: [pretrained]\n"
        "explainers: [saliency]\n"
        "metrics: [deletion_morf: {steps: 2}]\n"
        "evaluation: {images: 200, accuracy_images: 200}\n"
        "shard_size: 100\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    assert main(["estimate", str(config), "--device", "cpu", "--images", "2", "--gpus", "2", "--scores"]) == 0
    output = capsys.readouterr().out
    jobs = {line.split()[0]: line.split()[1] for line in output.splitlines() if len(line.split()) > 4}
    assert (jobs["drops"], jobs["attribute"], jobs["score"], jobs["pretrain"]) == ("2", "2", "2", "1")
    assert jobs["curves"] == "2"
    assert "seconds of the device" in output
    assert "saliency" in output
    assert "Not measured: memory" in output
    assert os.listdir(tmp_path) == ["tiny.yaml"]


def test_a_stage_that_fails_is_named(tmp_path):
    def work():
        raise ValueError("no such luck")

    plan = make_plan({"evaluation": {"images": 4}, "explainers": ["saliency"]})
    with pytest.raises(HeatproofError, match="drops fails on the first 2 images: no such luck"):
        Bench(plan, tmp_path, 2, print).seconds(work, "drops")
