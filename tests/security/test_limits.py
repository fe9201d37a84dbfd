"""Numbers in a config that would crash a machine or spoil a result are refused before any job starts."""

import inspect
import re
import sys
import types

import pytest

from heatproof.core.options import _expected, check_options
from heatproof.core.perturb.baselines import BASELINES
from heatproof.datasets.registry import DATASETS
from heatproof.errors import HeatproofError
from heatproof.explainers.registry import EXPLAINERS
from heatproof.metrics.registry import METRICS
from heatproof.models.registry import ARCHITECTURES
from heatproof.workflow.config.files import default_config, merge
from heatproof.workflow.plan.validate import make_plan

INF, NAN = float("inf"), float("nan")


def model(**options):
    return {"models": [{"m": {"architecture": "small_vit", **options}}]}


def places(**options):
    return {"datasets": [{"places365": {"root": "/none", **options}}]}


REFUSED = {
    "a deviation that is NaN": (model(std=[NAN, 1.0, 1.0]), "'std.0' in models: m must be a finite number, not nan"),
    "an infinite deviation": (model(std=[1.0, INF, 1.0]), "'std.1' in models: m must be a finite number"),
    "a deviation of nearly zero": (model(std=[1e-320, 1.0, 1.0]), "'std.0' in models: m must be at least 1e-06"),
    "a mean that is NaN": (model(mean=[0.5, 0.5, NAN]), "'mean.2' in models: m must be a finite number"),
    "a mean beyond all pixels": (model(mean=[0.5, 0.5, -1e300]), "'mean.2' in models: m must be at least 0"),
    "an infinite rate": ({"pretraining": {"lr": INF}}, "'pretraining.lr' in the config must be a finite number"),
    "an infinite rate of weights": ({"weights": [{"f": {"lr": INF}}]}, "'lr' in weights: f must be a finite number"),
    "a rate beyond all weights": ({"finetuning": {"lr": 1e300}}, "'finetuning.lr' in the config must be at most 1000"),
    "momentum": ({"pretraining": {"momentum": 5.0}}, "'pretraining.momentum' in the config must be at most 1"),
    "decay of weights": ({"pretraining": {"weight_decay": 1e300}}, "must be at most 1000"),
    "factor of the schedule": ({"pretraining": {"decay": 1e300}}, "must be at most 1000"),
    "a level that is NaN": ({"scores": {"level": NAN}}, "'scores.level' in the config must be a finite number"),
    "images in a pass": (
        {"batch_size": 10**12},
        "'batch_size' in the config must be at most 1000000, not 1000000000000",
    ),
    "images in a step": (
        {"pretraining": {"batch_size": 10**12}},
        "'pretraining.batch_size' in the config must be at mo",
    ),
    "images": ({"evaluation": {"images": 10**15}}, "'evaluation.images' in the config must be at most 100000000, not"),
    "images for accuracy": (
        {"evaluation": {"accuracy_images": 10**15}},
        "'evaluation.accuracy_images' in the config mu",
    ),
    "epochs": ({"pretraining": {"epochs": 10**9}}, "'pretraining.epochs' in the config must be at most 100000"),
    "epochs of weights": ({"weights": [{"f": {"epochs": 10**9}}]}, "'epochs' in weights: f must be at most 100000"),
    "epochs of a model": (model(finetuning={"epochs": 10**9}), "'finetuning.epochs' in models: m must be at most"),
    "images in a shard": ({"shard_size": 10**12}, "'shard_size' in the config must be at most 1000000"),
    "threads": ({"threads": 10**6}, "'threads' in the config must be at most 1024"),
    "devices": ({"finetuning": {"devices": 10**6}}, "'finetuning.devices' in the config must be at most 1024"),
    "a grid larger than the image": (
        {"drops": {"grids": [64]}},
        "The grid 64 in drops does not divide the 32×32 image",
    ),
    "a grid larger than any image": (
        {"drops": {"grids": [10**9]}},
        "'drops.grids.0' in the config must be at most 1024",
    ),
    "a grid of finetuning": ({"finetuning": {"grid": 10**9}}, "'finetuning.grid' in the config must be at most 1024"),
    "repetitions": ({"scores": {"bootstrap": 10**12}}, "'scores.bootstrap' in the config must be at most 1000000"),
    "images on a page": ({"report": {"images": 10**12}}, "'report.images' in the config must be at most 10000"),
    "a seed that PyTorch does not take": ({"seed": 10**30}, "'seed' in the config must be at most 9223372036854775807"),
    "a shift": ({"pretraining": {"shift": 10**9}}, "'pretraining.shift' in the config must be at most 8192"),
    "a side of images": (
        places(size=10**9),
        "The option 'size' of dataset 'places365' must be a whole number of at le",
    ),
    "a side before the crop": (
        places(resize=10**9),
        "The option 'resize' of dataset 'places365' must be a whole numbe",
    ),
    "steps": (
        {"explainers": [{"integrated_gradients": {"steps": 10**12}}]},
        "The option 'steps' of explainer 'integrated_gradients' must be at most 1,000,000 in size, not 1000000000000",
    ),
    "images of a metric": ({"metrics": [{"sic": {"images": 10**12}}]}, "'images' of the metric 'sic' must be a whole"),
    "a class": ({"target": 10**12}, "'target' in the config must be `label`, `predicted`, the number of a class"),
    "a tolerance": ({"attribution": {"tolerance": 1e300}}, "'attribution.tolerance' in the config must be"),
    "entries": (
        {"explainers": [{f"e{n}": {"explainer": "saliency"}} for n in range(1001)]},
        "'explainers' in the config has 1001 entries: name at most 1000",
    ),
    "a list": ({"pretraining": {"keep": list(range(1, 100_000))}}, "has 99999 entries: name at most 1000"),
    "networks": (
        {
            "models": [{f"m{n}": {"architecture": "small_vit"}} for n in range(11)],
            "training_seeds": 1000,
        },
        "The config has 11,000 networks by `models` and `training_seeds`: lower one of the two",
    ),
    "a side of drawn images": (
        {"datasets": [{"parts": {"size": 10**9}}], "metrics": []},
        "The option 'size' of dataset 'parts' must be a whole number of at least 16 and of at most 8192",
    ),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=list(REFUSED))
def test_excessive_numbers_in_a_config_are_refused(change, message):
    with pytest.raises(HeatproofError) as caught:
        make_plan(merge(default_config(), change))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def functions_of_options():
    """Yield every function of heatproof whose options are config keys."""
    for table in (DATASETS, ARCHITECTURES, EXPLAINERS, METRICS):
        for entry in table.values():
            yield from (entry.options_function, entry.function) if table is METRICS else (getattr(entry, entry.code),)
    yield from (entry.function for entry in BASELINES.values())


NUMBERS = {
    f"{function.__module__}.{function.__qualname__}.{name}": (function, name, str(annotation))
    for function in functions_of_options()
    # Tests in other folders register their own functions.
    if function.__module__.startswith("heatproof.")
    for name, parameter in inspect.signature(function).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY and name != "seed"
    if re.search(r"\b(int|float)\b", str(annotation := _expected(parameter, function)))
}


@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_of_an_option_has_bounds(name):
    """It includes options of newly registered functions."""
    function, option, annotation = NUMBERS[name]
    parameters = inspect.signature(function).parameters.values()
    needed = {
        parameter.name: "x"
        for parameter in parameters
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty
    }
    keywords = tuple(
        parameter.name
        for parameter in parameters
        if parameter.name == "seed" and parameter.kind is parameter.KEYWORD_ONLY
    )
    needed = {name: value for name, value in needed.items() if name not in keywords}
    positional = tuple(parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD)
    for value in (10**12, -(10**12), 1e300, -1e300, INF, -INF, NAN):
        option_value = {"x": value} if "Mapping" in annotation else [value] if "Sequence" in annotation else value
        with pytest.raises(HeatproofError, match=f"The option '{option}' of thing ") as caught:
            check_options(function, {**needed, option: option_value}, "thing", positional=positional, keywords=keywords)
        assert "\n" not in str(caught.value)


def test_options_of_users_functions_are_limited_to_64_bit_integers(monkeypatch):
    module = types.ModuleType("of_a_user")
    exec("def flat(model, images, targets, *, seed=0): ...", vars(module))
    monkeypatch.setitem(sys.modules, "of_a_user", module)

    def plan(seed):
        flat = {"flat": {"explainer": "of_a_user:flat", "seed": seed}}
        return make_plan(merge(default_config(), {"explainers": [flat]}))

    plan(2**62)
    with pytest.raises(HeatproofError, match=r"'seed' of explainer 'flat' must be at most 9,223,372"):
        plan(2**64)


def test_large_numbers_that_machines_can_run_are_accepted():
    change = {
        "pretraining": {"batch_size": 65536, "epochs": 1000, "lr": 30.0},
        "batch_size": 4096,
        "shard_size": 50_000,
        "threads": 128,
        "scores": {"bootstrap": 100_000},
        "seed": 2**62,
    }
    make_plan(merge(default_config(), change))
