"""Options of explainers, datasets and architectures are checked against the signatures of their functions."""

import json

import pytest

from heatproof.errors import HeatproofError
from heatproof.explainers.registry import EXPLAINERS
from heatproof.workflow.config.files import default_config, merge
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.validate import make_plan

MINE = """
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Optional, Sequence

import torch
from heatproof.core.options import Bounds
from heatproof.datasets.digits import digits

if TYPE_CHECKING:
    from nowhere import Unknown

def bare(explained, *, flag=False, count=3, share=0.5, name="a", several=(1, 2), table={}, free=None): ...
def said(
    explained,
    *,
    maybe: "float | None" = None,
    optional: Optional[int] = 3,
    implicit: int = None,
    numbers: "list[float]" = (),
    pair: tuple[int, int] = (1, 2),
    words: Sequence[str] = (),
    how: "Literal['a', 'b']" = "a",
    odds: Annotated[float, Bounds(least=0, below=1)] = 0.5,
    limits: Annotated[Optional[int], Bounds(above=-5, most=5)] = None,
    other: "Unknown" = 3,
    own: Path = "x",
): ...
def by_position(explained, strength=1.0): ...
def anything(explained, **options): ...
def needs(explained, *, strength): ...
def shows_a_path(explained, *, where=Path("x")): ...
def no_argument(): ...

class Explain:
    def __init__(self, size): self.size = size
    def __call__(self, explained, *, scale: float = 2.0): ...

class Unreadable:
    __signature__ = 3
    def __call__(self, explained): ...

explain = Explain(3)
unreadable = Unreadable()
partial = functools.partial(bare, count=7)

def load(*, seed, root: str = "x", where=Path("x")): return digits(seed=seed)
def load_from(seed, root): return digits(seed=seed)
def load_any(**options): return digits(**options)
def load_unseeded(*, root="x"): ...
load_partial = functools.partial(load_from, root="y")

def build(num_classes, width: int = 4, *, deep=False): return torch.nn.Linear(width, num_classes)
def build_any(num_classes, **options): return torch.nn.Linear(3, num_classes)
class Net(torch.nn.Module):
    def __init__(self, num_classes: int, width: int = 4): super().__init__()
build_partial = functools.partial(Net, width=8)
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "mine_options.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)


def plan_of(**change):
    return make_plan(merge(default_config(), change))


def plan_explainer(kind, **options):
    kind = kind if kind in EXPLAINERS else f"mine_options:{kind}"
    return plan_of(explainers=[{"e": {"explainer": kind, **options}}]).explainers["e"]


def plan_dataset(function, **options):
    models = [{"m": {"architecture": "small_vit"}}]
    return plan_of(datasets=[{"d": {"dataset": f"mine_options:{function}", **options}}], models=models).datasets["d"]


def plan_model(function, **options):
    architecture = function if function in ("small_vit", "cifar_resnet20") else f"mine_options:{function}"
    return plan_of(models=[{"m": {"architecture": architecture, "options": options}}]).models["m"]


def refusal_of(make, *arguments, **options):
    with pytest.raises(HeatproofError) as caught:
        make(*arguments, **options)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert len(sentence) < 300
    return sentence


NAN, INFINITE = float("nan"), float("inf")
BAD_VALUES = [
    (
        "integrated_gradients",
        {"steps": "many"},
        "'steps' of explainer 'e' must be a whole number of at least 1, not 'many'",
    ),
    ("integrated_gradients", {"steps": 0}, "of at least 1, not 0."),
    ("integrated_gradients", {"steps": 2.0}, "must be a whole number of at least 1, not 2.0"),
    ("integrated_gradients", {"steps": True}, "not True"),
    ("integrated_gradients", {"steps": None}, "not None"),
    ("integrated_gradients", {"steps": [5]}, "not [5]"),
    ("integrated_gradients", {"steps": "5"}, "not '5' (a text: leave out quotes"),
    ("integrated_gradients_uniform", {"low": NAN}, "'low' of explainer 'e' must be finite, not nan"),
    ("integrated_gradients_uniform", {"high": INFINITE}, "must be finite, not inf"),
    ("noise_input_x_gradient", {"samples": -4}, "of at least 1, not -4"),
    ("noise_input_x_gradient", {"stdev": -0.1}, "must be a number of at least 0, not -0.1"),
    ("noise_input_x_gradient", {"stdev": False}, "must be a number of at least 0, not False"),
    ("noise_input_x_gradient", {"relative": 1}, "must be true or false, not 1"),
    (
        "noise_integrated_gradients",
        {"stdev": "1e-3"},
        "not '1e-3' (a text: leave out quotes, and write 1e-3 as 1.0e-3)",
    ),
    ("smooth_grad_cam_pp", {"stdev": 0}, "must be a number above 0, not 0"),
    ("rise", {"probability": 1.5}, "must be a number above 0 and of at most 1, not 1.5"),
    ("rise", {"output": "logits"}, "must be 'probability' or 'logit', not 'logits'"),
    ("rise_uniform", {"masks": 0}, "of at least 1, not 0"),
]


@pytest.mark.parametrize(("kind", "options", "expected"), BAD_VALUES)
def test_bad_values_for_explainers_are_refused(kind, options, expected):
    assert expected in refusal_of(plan_explainer, kind, **options)


def test_bad_values_for_datasets_and_architectures_are_refused():
    dataset = {"datasets": [{"d": {"dataset": "digits", "validation": "half"}}]}
    assert "The option 'validation' of dataset 'd' must be a number, not 'half'." in refusal_of(plan_of, **dataset)
    assert "The option 'width' of model 'm' must be a whole number of at least 1" in refusal_of(
        plan_model, "cifar_resnet20", width=0
    )
    assert "'heads' of model 'm'" in refusal_of(plan_model, "small_vit", heads=1.5)


def test_good_values_reach_the_spec():
    assert plan_explainer("noise_input_x_gradient", stdev=1, samples=1, relative=False).options == {
        "stdev": 1,
        "samples": 1,
        "relative": False,
    }
    assert plan_explainer("rise", output="logit", probability=1).options["output"] == "logit"


@pytest.mark.parametrize("name", EXPLAINERS)
def test_defaults_of_explainers_are_valid_options(name):
    """Otherwise a config that writes a default explicitly would be refused."""
    assert plan_explainer(name, **EXPLAINERS[name].options).options == EXPLAINERS[name].options


# ---- types by defaults and by annotations ----------------------------------------------------------------------------

BARE = {
    "flag": ([True], [0, "yes", None], "true or false"),
    "count": ([-3, 0], [2.5, True, "3", None], "a whole number"),
    "share": ([2, -0.5], [True, "x", [1.0]], "a number"),
    "name": (["b", ""], [3, True, None], "a text"),
    "several": ([[], [1, "x"]], [3, "ab", {"a": 1}], "a list"),
    "table": ([{}, {"a": [1, None]}], [[], "a"], "a mapping"),
    "free": ([None, 3, "x", [1], {"a": 1}, True, 0.5], [], ""),
}
ANNOTATED = {
    "maybe": ([None, 2, 0.5], ["x", True], "a number or null"),
    "optional": ([None, 4], [4.0], "a whole number or null"),
    "implicit": ([None, 4], ["x"], "a whole number"),
    "numbers": ([[], [1, 0.5]], [["x"], 3], "a list (each a number)"),
    "pair": ([[3, 4]], [[3], [3, 4.5], 3], "a list of 2 (a whole number, a whole number)"),
    "words": ([["a"]], ["a", [1]], "a list (each a text)"),
    "how": (["b"], ["c", 1], "'a' or 'b'"),
    "odds": ([0, 0.99], [1, -0.1], "a number of at least 0 and below 1"),
    "limits": ([None, -4, 5], [-5, 6, 0.5], "a whole number or null above -5 and of at most 5"),
    "other": ([3, "x", None], [], ""),
    "own": (["a/b"], [], ""),
}


@pytest.mark.parametrize(("kind", "option"), [*(("bare", key) for key in BARE), *(("said", key) for key in ANNOTATED)])
def test_values_for_a_users_function_are_checked(kind, option):
    good, bad, words = (BARE if kind == "bare" else ANNOTATED)[option]
    for value in good:
        assert plan_explainer(kind, **{option: value}).options[option] == value
    for value in bad:
        assert f"The option {option!r} of explainer 'e' must be {words}, not {value!r}" in refusal_of(
            plan_explainer, kind, **{option: value}
        )


@pytest.mark.parametrize("value", [NAN, [1.0, INFINITE], {"a": [NAN]}])
def test_nonfinite_numbers_are_refused_at_any_depth(value):
    assert "must be finite" in refusal_of(plan_explainer, "anything", free=value)


def test_values_that_json_cannot_hold_are_refused():
    import datetime

    day = datetime.date(2020, 1, 2)
    assert "'free' of explainer 'e' cannot hold datetime.date(2020, 1, 2), a date" in refusal_of(
        plan_explainer, "bare", free=[day]
    )
    assert "'free' of explainer 'e' has the key 3, which is no text" in refusal_of(plan_explainer, "bare", free={3: 1})


# ---- objects that a reference can name -------------------------------------------------------------------------------


def test_options_may_be_positional_or_have_any_name():
    assert plan_explainer("by_position").options == {"strength": 1.0}
    assert plan_explainer("by_position", strength=3).options == {"strength": 3}
    assert plan_explainer("anything", whatever=[1]).options == {"whatever": [1]}
    assert "has no option 'strenght': did you mean 'strength'?" in refusal_of(plan_explainer, "by_position", strenght=3)


def test_an_option_without_a_default_is_required():
    assert plan_explainer("needs", strength="x").options == {"strength": "x"}
    assert "The explainer 'e' needs the option 'strength': give it a value" in refusal_of(plan_explainer, "needs")
    assert "The dataset 'd' needs the option 'root'" in refusal_of(plan_dataset, "load_from")


def test_a_default_that_json_cannot_hold_must_be_overridden():
    sentence = refusal_of(plan_explainer, "shows_a_path")
    assert "The option 'where' of explainer 'e' has a default of type PosixPath" in sentence
    assert plan_explainer("shows_a_path", where="y").options == {"where": "y"}
    # For a dataset, only the options in the config are recorded.
    assert plan_dataset("load")["options"] == {}


def test_partials_and_callable_objects_have_options():
    plan = plan_of(
        explainers=[{"p": {"explainer": "mine_options:partial"}}, {"c": {"explainer": "mine_options:explain"}}]
    )
    assert plan.explainers["p"].options["count"] == 7
    assert plan.explainers["c"].options == {"scale": 2.0}
    assert {entry.module for entry in plan.explainers.values()} == {"mine_options"}, "whose code the maps depend on"
    assert "'count' of explainer 'e' must be a whole number, not 'x'" in refusal_of(
        plan_explainer, "partial", count="x"
    )
    assert "must be a number, not 'x'" in refusal_of(plan_explainer, "explain", scale="x")
    assert (plan_dataset("load_partial")["module"], plan_model("build_partial").module) == (
        "mine_options",
        "mine_options",
    )
    where = {"dataset": "digits", "model": "vit", "weights": "finetuned", "shard": 0}
    json.dumps(Graph(plan).job("attribute", where).spec_json)


def test_options_of_custom_datasets_are_checked():
    assert plan_dataset("load", root="y")["options"] == {"root": "y"}
    assert plan_dataset("load_any", colour="red")["options"] == {"colour": "red"}
    assert "The dataset 'd' has no option 'rot': did you mean 'root'?" in refusal_of(plan_dataset, "load", rot="y")
    assert "The option 'root' of dataset 'd' must be a text, not 3" in refusal_of(plan_dataset, "load", root=3)
    for function in ("load", "load_any"):
        assert "has no option 'seed'" in refusal_of(plan_dataset, function, seed=3)
    assert "cannot be called with (seed=…): got an unexpected keyword argument 'seed'" in refusal_of(
        plan_dataset, "load_unseeded"
    )


def test_options_of_custom_architectures_are_checked():
    assert plan_model("build", width=8, deep=True).options == {"width": 8, "deep": True}
    assert plan_model("Net", width=8).options == {"width": 8}
    assert plan_model("build_any", colour="red").options == {"colour": "red"}
    assert "The model 'm' has no option 'widht': did you mean 'width'?" in refusal_of(plan_model, "build", widht=3)
    assert "The option 'width' of model 'm' must be a whole number, not 'wide'" in refusal_of(
        plan_model, "Net", width="wide"
    )
    assert "has no option 'num_classes'" in refusal_of(plan_model, "build", num_classes=3)
    assert "cannot be called with (num_classes, num_classes=…)" in refusal_of(plan_model, "build_any", num_classes=3)
    assert "too many positional arguments" in refusal_of(plan_model, "no_argument")


def test_a_callable_with_an_unreadable_signature_is_refused():
    assert "The arguments of explainer 'e' cannot be read" in refusal_of(plan_explainer, "unreadable")
