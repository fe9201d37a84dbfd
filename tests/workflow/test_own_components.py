"""A user's explainers and metrics that fail: `check` reports them, and a run goes on with the others."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from PIL import Image

from heatproof.errors import HeatproofError
from heatproof.metrics.registry import METRICS, metric
from heatproof.metrics.responses.patches import Patches
from heatproof.models.network import build_network
from heatproof.models.registry import ModelSpec
from heatproof.report.figures import montage, sorting
from heatproof.workflow.check import check_config
from heatproof.workflow.config.files import read_config
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.validate import make_plan
from heatproof.workflow.start import check_before_start

HERE = "test_own_components"


def nan_maps(model, images, targets):
    return images.sum(1) * float("nan")


def inf_in_a_corner(model, images, targets):
    maps = images.sum(1)
    maps[:, 0, 0] = float("-inf")
    return maps


def small_maps(model, images, targets):
    return images[:, :, :7, :7].sum(1)


def one_for_all(model, images, targets):
    return images.sum(1)[:1]


def raises(model, images, targets):
    raise KeyError("no such luck")


def none(model, images, targets):
    return None


def ones(model, images, targets):
    return torch.ones(len(images), *images.shape[2:])


def zeros(model, images, targets):
    return 0 * images.sum(1)


def explained_nan(context):
    return {"explained_nan": context.images.sum(1).log()}


def mutates(model, images, targets):
    maps = images.abs().sum(1)
    images.zero_()
    targets.fill_(1)
    for parameter in model.parameters():
        parameter.data.zero_()
    return maps


def fine(model, images, targets):
    return images.abs().sum(1)


def nan_later(model, images, targets):
    """Fails on all images except those of the applicability check."""
    maps = images.abs().sum(1)
    maps[4:] = float("nan")
    return maps


BAD = {
    "nan_maps": "has a value that is not finite",
    "inf_in_a_corner": "has a value that is not finite",
    "small_maps": "its map has 7 × 7 pixels, and the image has 16 × 16",
    "one_for_all": "it returned a map of shape",
    "raises": "it fails (KeyError: 'no such luck'; test_own_components.py, line",
    "none": "returned NoneType: return a tensor",
    "ones": "each of its maps is constant",
    "zeros": "each of its maps is constant",
    "explained_nan": "has a value that is not finite",
}


def register_metric(name, function):
    metric(name, higher_is_better=True, range=(-1, 1), source="none", reads=Patches)(function)


def own_nan(maps, drops):
    return np.full(len(maps), np.nan), np.ones(len(maps), dtype=bool)


def own_inf(maps, drops):
    return np.full(len(maps), np.inf), np.ones(len(maps), dtype=bool)


def own_shape(maps, drops):
    return np.zeros((len(maps), 2)), np.ones(len(maps), dtype=bool)


def own_none(maps, drops):
    return None


def own_raises(maps, drops):
    raise ValueError("metric broke")


def own_undefined(maps, drops):
    return np.zeros(len(maps)), np.zeros(len(maps), dtype=bool)


def own_mutates(maps, drops):
    score = np.asarray(maps, dtype=float).mean((1, 2))
    maps[:] = 0
    drops[:] = 0
    return score, np.ones(len(maps), dtype=bool)


BAD_METRICS = {
    own_nan: ("it calls its scores defined, and none is finite", "has no finite score on any image"),
    own_inf: ("it calls its scores defined, and none is finite", "has no finite score on any image"),
    own_shape: ("returned scores of shape (4, 2)", "returned scores of shape (6, 2)"),
    own_none: ("returned a NoneType", "returned a NoneType"),
    own_raises: (
        "fails on its maps (ValueError: metric broke; test_own",
        "fails on its maps (ValueError: metric broke",
    ),
}


@pytest.fixture(autouse=True)
def metrics():
    """The metrics of this module, registered as by a plugin."""
    functions = [*BAD_METRICS, own_undefined, own_mutates]
    for function in functions:
        register_metric(function.__name__, function)
    yield
    for function in functions:
        del METRICS[function.__name__]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two classes of ten image files, and weights of a network for them."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(20):
            pixels = generator.integers(1, 256, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.png")
    spec = ModelSpec("cifar_resnet20", "heatproof.models.resnet", {"width": 2})
    torch.save(build_network(spec, 2).state_dict(), "net.pth")
    return tmp_path


def config(folder, explainers=("fine",), metrics=()):
    entries = [{name: {"explainer": f"{HERE}:{name}"}} for name in explainers]
    model = {"architecture": "cifar_resnet20", "options": {"width": 2}, "checkpoint": "net.pth"}
    written = {
        "datasets": [{"photos": {"dataset": "image_folder", "root": "photos", "size": 16}}],
        "models": [{"net": model}],
        "weights": ["pretrained"],
        "evaluation": {"images": 6},
        "explainers": [*entries, "random"],
        "metrics": list(metrics),
        "report": {"all_metrics": False},
    }
    (folder / "c.yaml").write_text(yaml.safe_dump(written))
    return folder / "c.yaml"


@pytest.mark.parametrize("explainer", BAD)
def test_an_explainer_that_fails_is_found_by_check(explainer, folder):
    with pytest.raises(HeatproofError) as caught:
        check_config(config(folder, [explainer]))
    assert f"The explainer {explainer!r} cannot be used on 'net': " in str(caught.value)
    assert BAD[explainer] in str(caught.value)
    assert "Mend it, or leave it out of the config." in str(caught.value)


@pytest.mark.parametrize("function", BAD_METRICS, ids=lambda function: function.__name__)
def test_a_metric_that_fails_is_found_by_check(function, folder):
    with pytest.raises(HeatproofError) as caught:
        check_config(config(folder, metrics=[function.__name__]))
    assert f"The metric {function.__name__!r} cannot be used on 'net': " in str(caught.value)
    assert BAD_METRICS[function][0] in str(caught.value)


def test_check_lists_all_components_that_fail_and_a_run_names_the_same(folder, capsys):
    bad = [*BAD, *(function.__name__ for function in BAD_METRICS)]
    path = config(folder, [*BAD, "fine"], [function.__name__ for function in (*BAD_METRICS, own_mutates)])
    with pytest.raises(HeatproofError) as caught:
        check_config(path)
    lines = str(caught.value).splitlines()
    assert [line.split("'")[1] for line in lines] == bad
    check_before_start(read_config(path), is_main=True)
    assert capsys.readouterr().err.splitlines() == [f"heatproof: {line} The run goes on without it." for line in lines]


@pytest.mark.parametrize("change", [{"explainers": ["mutates"]}, {"metrics": ["own_undefined", "own_mutates"]}])
def test_working_components_pass_the_check(change, folder):
    """Metrics get copies, and a score that is undefined with random weights may be defined with trained ones."""
    assert "is sound" in check_config(config(folder, **change))


def ran(path, *more):
    plan = make_plan(read_config(path))
    graph = Graph(plan)
    for job in graph.jobs():
        if job.stage in ("prepare", "fetch", "attribute", "attribute_reference", "drops", *more, "score"):
            job.spec.run(plan.runtime())
    return graph


def minus_a_half(model, images, targets):
    return images.abs().sum(1) - 0.5


def test_maps_without_negative_values_are_one_method_in_a_run(folder):
    """As in `heatproof.choose`: their absolute values are the same method."""
    path = config(folder, ["fine", "minus_a_half"], ["ids"])
    graph = ran(path, "curves")
    for job in graph.jobs():
        if job.stage == "score":
            scored, methods = (pd.read_parquet(job.spec.files[name]) for name in ("scores", "methods"))
            assert {"fine", "minus_a_half", "minus_a_half_abs"} <= set(methods["method"])
            assert "fine_abs" not in {*scored["method"], *methods["method"]}
    tables = graph.spec("tables")
    tables.run(graph.plan.runtime())
    table = pd.read_csv(tables.files["idsds_table"])
    assert "fine_abs" not in set(table["method"])
    assert {"fine", "minus_a_half", "minus_a_half_abs", "random"} <= set(table["method"])


def test_figures_and_pages_show_the_methods_of_the_tables(folder, monkeypatch):
    """The absolute values of maps without negative values are no method there either."""
    path = config(folder, ["fine", "minus_a_half", "raises"], ["deletion_morf"])
    settings = yaml.safe_load(path.read_text()) | {"report": {"all_metrics": True, "images": 2}}
    path.write_text(yaml.safe_dump(settings))
    drawn = {}
    for module, name in ((montage, "draw_montage"), (sorting, "draw_sorting")):
        draw = getattr(module, name)

        def recorded(images, maps, *more, draw=draw, name=name):
            drawn[name] = set(maps)
            return draw(images, maps, *more)

        monkeypatch.setattr(module, name, recorded)
    plan = make_plan(read_config(path))
    graph = Graph(plan)
    for job in graph.jobs():
        job.spec.run(plan.runtime())
    graph.spec("sorting").run(plan.runtime())
    names = {"fine", "minus_a_half", "minus_a_half_abs", "random", "random_abs"}
    assert drawn == {"draw_montage": names, "draw_sorting": names}
    files = graph.spec("report_page").files
    for file in ("page", "gallery"):
        text = Path(files[file]).read_text()
        assert "minus_a_half_abs" in text
        assert "fine_abs" not in text
    (data,) = re.findall(r'id="curves-data"[^>]*>(.*?)</script>', Path(files["page"]).read_text(), re.S)
    curves = json.loads(data)
    assert names <= set(curves["methods"])
    assert all(len(panel["logit"]) == len(curves["methods"]) for panel in curves["panels"])


def test_a_run_skips_failing_components_with_a_reason_and_scores_all_others(folder, capsys):
    names = [*BAD, "nan_later", "mutates", "fine"]
    metric_names = [function.__name__ for function in (*BAD_METRICS, own_mutates)]
    path = config(folder, names, metric_names)
    check_before_start(read_config(path), is_main=True)
    output = capsys.readouterr().err
    for name in (*BAD, *(function.__name__ for function in BAD_METRICS)):
        assert f"{name!r} cannot be used on 'net': " in output
    assert "The run goes on without it." in output
    graph = ran(path)
    gaps = {
        job.spec.case.metric: pd.read_parquet(job.spec.files["methods"]).set_index("method")["gap"]
        for job in graph.jobs()
        if job.stage == "score"
    }
    for name, reason in {**BAD, "nan_later": "has a value that is not finite"}.items():
        assert reason.partition(", line")[0] in gaps["sds"][name]
    assert (gaps["sds"][["fine", "random", "mutates"]] == "").all()
    for function, (_, reason) in BAD_METRICS.items():
        assert reason in gaps[function.__name__]["fine"]
    assert gaps["own_mutates"]["fine"] == ""
    table = pd.read_parquet(
        next(job.spec.files["scores"] for job in graph.jobs() if job.stage == "score" and job.spec.case.metric == "sds")
    )
    wide = table.pivot(index="image", columns="method", values="score")
    pd.testing.assert_series_equal(wide["mutates"], wide["fine"], check_names=False)
    assert wide["fine"].notna().all()
