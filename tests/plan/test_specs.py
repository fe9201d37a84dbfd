"""Specs are the same after a round trip through JSON, and a job executes the code that its key covers."""

import ast
import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest
import toy_project

from heatproof.core.from_json import as_type
from heatproof.core.provenance import as_json
from heatproof.workflow import stages
from heatproof.workflow.config.files import merge, read_config
from heatproof.workflow.plan.graph import Graph
from heatproof.workflow.plan.stage import STAGES, STAGES_PACKAGE, Stage, load_spec
from heatproof.workflow.plan.validate import make_plan

ROOT = Path(__file__).parents[2]

NET = {"architecture": "toy_plugin:network", "mean": [0.5], "std": [0.5]}
FROM = {**NET, "checkpoint": "net.safetensors"}
BOTH = {"weights": ["pretrained", "finetuned"]}
# A config of the toy project with keys that no other config here has.
CHANGES = {
    "toy": {},
    "lower precision": {**BOTH, "precision": "bfloat16"},
    "kept epochs": {**BOTH, "pretraining": {"keep": [2]}, "finetuning": {"keep": [1]}},
    "checkpoint": {**BOTH, "models": [{"net": {**FROM, "expected_accuracy": 0.5}}]},
    "transfer": {**BOTH, "models": [{"net": {**FROM, "transfer": True}}]},
    "patch sums": {"attribution": {"stored_as": "patch_sums"}},
    "one class": {"target": 1},
    "trainings": {"pretraining": {"devices": 2, "labels": "shuffled", "loss": "binary_cross_entropy"}},
    "augmented": {"finetuning": {"precision": "bfloat16", "random_resized_crop": 0.5, "random_horizontal_flip": 0.5}},
    "filled": {"explainers": [{"integrated_gradients": {"baseline": "same"}}, "random"]},
    "parts": {"datasets": ["parts"], "metrics": ["part_deletion"], "models": ["small_vit"]},
    "apart": {"attribution_jobs": "apart"},
    "seeds": {"training_seeds": 2},
    "leaderboard": {"leaderboard": {"metrics": ["idsds"]}},
}
FILES = ("quick.yaml", "config.yaml", "baselines.yaml")
CONFIGS = {name: merge(toy_project.BASE, change) for name, change in CHANGES.items()}
CONFIGS |= {name: merge(read_config(ROOT / "config" / name), {"report": {"all_metrics": True}}) for name in FILES}


@functools.cache
def plan_of(name):
    return make_plan(CONFIGS[name])


@functools.cache
def jobs_of(name):
    """Return all jobs of a config, by stage."""
    jobs = {}
    for job in Graph(plan_of(name)).jobs():
        jobs.setdefault(job.stage, []).append(job)
    return jobs


def test_every_stage_is_in_a_config():
    assert {stage for name in CONFIGS for stage in jobs_of(name)} == {*STAGES}


@functools.cache
def spec_of(name):
    """Return the spec of a job of a stage, from one of the configs that have the stage."""
    return next(jobs_of(config)[name][0].spec for config in CONFIGS if name in jobs_of(config))


def reference(spec):
    return f"{type(spec).__module__}:{type(spec).__name__}"


@pytest.mark.parametrize("name", CONFIGS)
def test_specs_survive_a_round_trip_through_json(name):
    """A job gets its spec as JSON, which has no tuples."""
    for stage, jobs in jobs_of(name).items():
        for job in jobs[:2]:
            assert load_spec(job.run, json.loads(json.dumps(job.spec_json))) == job.spec, stage


@pytest.mark.parametrize("name", STAGES)
def test_extra_missing_and_mistyped_fields_are_refused(name):
    spec = spec_of(name)
    plain = as_json(spec)
    with pytest.raises(ValueError, match=r"the job\.another is 1: unexpected"):
        load_spec(reference(spec), {**plain, "another": 1})
    with pytest.raises(ValueError, match=r"the job\.\w+ is .*: field required"):
        load_spec(reference(spec), {key: plain[key] for key in ("results", "files", "manifest", "key")})
    with pytest.raises(ValueError, match=r"the job\.key"):
        load_spec(reference(spec), {**plain, "key": [1]})
    with pytest.raises(ValueError, match=r"the job\.key\.0 is 1: input should be a valid string"):
        load_spec(reference(spec), {**plain, "key": [1, "two"]})


@pytest.mark.parametrize("kind", STAGES.values(), ids=STAGES)
def test_a_job_runs_the_code_of_its_key(kind):
    """A job runs a method of its stage, whose module is part of the key with all that it imports."""
    assert kind.run is not Stage.run
    module = kind.run.__module__
    assert module in spec_of(kind.name).modules or module.startswith(f"{STAGES_PACKAGE}._")


def is_outside_of_keys(module):
    """Return whether a key does not cover a module: only the file of the stage and helpers count of the workflow."""
    return module.startswith("heatproof.workflow.") and not module.startswith(f"{STAGES_PACKAGE}._")


@pytest.mark.parametrize("file", sorted(Path(stages.__file__).parent.glob("*.py")), ids=lambda file: file.stem)
def test_what_runs_imports_only_code_of_its_key(file):
    """A stage imports the code that it runs inside of functions; all imports of a helper run."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for_types = {
        statement
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for statement in node.body
    }
    at_the_top = set() if file.stem.startswith("_") else set(tree.body)
    running = {node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)} - for_types - at_the_top
    assert [node.module for node in running if is_outside_of_keys(node.module)] == []


@dataclass(frozen=True)
class Inner:
    count: int
    share: float = 0.5


@dataclass(frozen=True)
class Odd:
    inner: Inner | None
    pair: tuple[int, str]
    many: tuple[float, ...]
    named: Mapping[str, list[Inner]]
    how: Literal["a", "b"] = "a"
    other: str | int = "x"
    anything: Any = None


GOOD = {"inner": {"count": 1, "share": 1}, "pair": [1, "a"], "many": [1, 2.5], "named": {"n": [{"count": 2}]}}


@pytest.mark.parametrize(
    ("change", "read"),
    [
        ({}, {}),
        ({"inner": None, "other": 3}, {"inner": None, "other": 3}),
        ({"how": "b", "anything": {"a": [1]}}, {"how": "b", "anything": {"a": [1]}}),
        ({"many": []}, {"many": ()}),
    ],
)
def test_values_are_read_as_they_are_annotated(change, read):
    plain = Odd(inner=Inner(1, 1), pair=(1, "a"), many=(1, 2.5), named={"n": [Inner(2)]})
    assert as_type(Odd, {**GOOD, **change}, "the job") == replace(plain, **read)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"inner": {"count": "1"}}, "inner"),
        ({"inner": {"count": True}}, "inner"),
        ({"pair": [1]}, "pair"),
        ({"pair": [1, 2]}, "pair"),
        ({"pair": "ab"}, "pair"),
        ({"many": [None]}, "many"),
        ({"named": [1]}, "named"),
        ({"named": {"n": [{}]}}, "named.n"),
        ({"how": "c"}, "how"),
        ({"other": 1.5}, "other"),
    ],
)
def test_values_of_another_type_are_named(change, where):
    with pytest.raises(ValueError, match=rf"the job\.{re.escape(where)}[. ]"):
        as_type(Odd, {**GOOD, **change}, "the job")


@dataclass(frozen=True)
class Nothing:
    pass


def test_stages_without_fields_have_specs_as_well():
    assert as_type(Nothing, as_json(Nothing()), "the job") == Nothing()
