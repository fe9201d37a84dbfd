"""What the plan tells a stage is what the signature of the stage's function says: all of it, and nothing else."""

import functools
import json
from pathlib import Path
from pkgutil import resolve_name
from typing import get_type_hints

import pytest
import toy_project
from pydantic import ConfigDict, TypeAdapter, ValidationError

from heatproof.config import merge, read_config
from heatproof.plan.graph import STAGES, Graph
from heatproof.plan.validate import make_plan
from heatproof.specs import jobs
from heatproof.stage import STAGES as DECLARED
from heatproof.stage import read_back, written

ROOT = Path(__file__).parents[2]
STRICT = ConfigDict(extra="forbid", strict=True)

NET = {"architecture": "toy_plugin:network", "mean": [0.5], "std": [0.5]}
FROM = {**NET, "checkpoint": "net.safetensors"}
BOTH = {"weights": ["pretrained", "finetuned"]}
# Of the toy project, with what no config here has: keys that are absent as a rule.
CHANGES = {
    "toy": {},
    "guard": {**BOTH, "precision": "bfloat16"},
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
    found = {}
    for job in Graph(plan_of(name)).jobs():
        found.setdefault(job.stage, []).append(job)
    return found


def specs_of(name):
    """Return the specs of all jobs of a config, by stage."""
    return {stage: [job.spec for job in jobs] for stage, jobs in jobs_of(name).items()}


@functools.cache
def declared(run, argument):
    """Return what holds a list of values against the annotation of an argument of a stage's function."""
    types = get_type_hints(resolve_name(run), localns=vars(jobs))
    return TypeAdapter(list[types[argument]], config=STRICT)


def hold(run, argument, values):
    # A job gets JSON, which has no tuples.
    declared(run, argument).validate_json(json.dumps(values))


@pytest.mark.parametrize("name", CONFIGS)
def test_every_spec_is_of_the_type_that_its_stage_declares(name):
    for stage, specs in specs_of(name).items():
        if stage in DECLARED:
            continue
        hold(STAGES[stage].run, "spec", specs)
        hold(STAGES[stage].run, "runtime", [plan_of(name).runtime()])


def test_every_stage_is_looked_at():
    assert {stage for name in CONFIGS for stage in specs_of(name)} == {*STAGES, *DECLARED}


@functools.cache
def told_of(name):
    """Return what the job of a stage is told by one of the configs that have it."""
    return next(jobs_of(config)[name][0].told for config in CONFIGS if name in jobs_of(config))


@pytest.mark.parametrize("name", DECLARED)
def test_what_a_job_is_told_is_read_back_as_it_was(name):
    """By way of the JSON that a job gets, in which there is no tuple."""
    told = told_of(name)
    assert read_back(type(told), json.loads(json.dumps(written(told)))) == told


@pytest.mark.parametrize("name", DECLARED)
def test_a_field_more_or_less_or_of_another_type_is_found(name):
    told = told_of(name)
    plain = written(told)
    with pytest.raises(ValidationError, match="Unexpected keyword argument"):
        read_back(type(told), {**plain, "another": 1})
    with pytest.raises(ValidationError, match="Field required"):
        read_back(type(told), {key: plain[key] for key in ("results", "files", "manifest", "code", "key")})
    with pytest.raises(ValidationError, match="should be"):
        read_back(type(told), {**plain, "key": [1]})


@pytest.mark.parametrize("stage", STAGES)
def test_a_key_more_or_less_is_found(stage):
    run = STAGES[stage].run
    spec = json.loads(json.dumps(next(specs_of(name)[stage][0] for name in CONFIGS if stage in specs_of(name))))
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        hold(run, "spec", [{**spec, "another": 1}])
    with pytest.raises(ValidationError, match="Field required"):
        hold(run, "spec", [{key: value for key, value in spec.items() if key != "seed" and key != "manifest"}])
    with pytest.raises(ValidationError, match="should be"):
        hold(run, "spec", [{**spec, "key" if "key" in spec else "seed": [spec]}])
