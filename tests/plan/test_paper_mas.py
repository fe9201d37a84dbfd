"""config/paper_mas.yaml: the steps, metrics and methods of the MAS paper, and the files of its tables and figures."""

from functools import cache
from pathlib import Path

import pytest

from heatproof.workflow.config.files import merge, read_config
from heatproof.workflow.estimate import synthetic
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.validate import make_plan

CONFIG = Path(__file__).parents[2] / "config" / "paper_mas.yaml"
RISE_AND_MAS = [f"{family}_{kind}" for family in ("rise", "mas") for kind in ("insertion", "deletion", "difference")]


@cache
def plan_of_paper():
    config = read_config(CONFIG)
    datasets = [{name: synthetic.noise_dataset_for(name, {}, None)} for entry in config["datasets"] for name in entry]
    # Noise replaces data, addresses replace local weights, and there is one shard, so that planning takes seconds.
    for entry in config["models"]:
        for settings in entry.values():
            if "://" not in settings["checkpoint"]:
                settings |= {"checkpoint": "https://example.org/weights.pth", "sha256": "0" * 8}
    return make_plan(merge({**config, "datasets": datasets}, {"shard_size": 50000}))


@pytest.mark.parametrize("ending", ["", "_random", "_mean"])
@pytest.mark.parametrize("name", RISE_AND_MAS)
def test_a_step_is_a_row_of_pixels(name, ending):
    for response in plan_of_paper().metrics[name + ending].responses.values():
        counts = response.sequence.counts(224, 224)
        assert len(counts) == 224 + 1
        assert counts[1] == 224


@pytest.mark.parametrize("kind", ["insertion", "deletion", "difference"])
def test_rise_curves_are_those_of_mas_without_magnitudes(kind):
    rise, mas = (plan_of_paper().metrics[f"{family}_{kind}"] for family in ("rise", "mas"))
    assert rise.options["monotone"]
    for argument, response in rise.responses.items():
        settings, of_mas = dict(response.settings), dict(mas.responses[argument].settings)
        assert not settings.pop("magnitude", False)
        assert of_mas.pop("magnitude")
        assert settings == of_mas


def test_files_for_the_papers_tables_and_figures_are_planned():
    files = {file for job in Graph(plan_of_paper()).jobs() for file in job.outputs}
    tables = {f"results/ranking/{name}.csv" for name in ("reliability", "icr")}
    figures = {
        f"results/figures/{kind}/{network}.png"
        for kind in ("montage", "sorting")
        for network in ("imagenet/resnet101", "imagenet/vit", "resisc45/resnet101_resisc45", "resisc45/vit_resisc45")
    }
    assert tables | figures <= files
