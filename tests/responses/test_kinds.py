"""The declarations of the kinds of responses, and what they keep separate."""

import subprocess
import sys

import numpy as np
import pytest

from heatproof.core.batch import Batch
from heatproof.core.provenance import import_closure
from heatproof.core.sequences import Perturbation
from heatproof.errors import HeatproofError
from heatproof.explainers.registry import EXPLAINERS
from heatproof.metrics.registry import METRICS
from heatproof.metrics.responses.base import (
    KINDS,
    MapResponse,
    NetworkResponse,
    Response,
    at_points,
    response_of,
    shared_responses,
)
from heatproof.metrics.responses.curves import Curves, ResponseCurve
from heatproof.metrics.responses.features import Features
from heatproof.metrics.responses.label_outputs import LabelOutputs
from heatproof.metrics.responses.patches import Patches
from heatproof.metrics.responses.subsets import Channels

IMAGES = Batch(None, None, None, None, np.array([2, 1]), ("a", "b"), 0, size=(8, 8))


def examples():
    """Return a response of every kind that a metric reads, with the metric's default options."""
    responses = {}
    for entry in METRICS.values():
        if entry.function.__module__.startswith("heatproof."):
            for response in entry.responses(entry.reads.complete(entry.options)).values():
                responses.setdefault(response.name, response)
    return list(responses.values())


EXAMPLES = examples()
# All metrics must be imported, because some define a kind.
OURS = {kind: response for kind, response in KINDS.items() if response.__module__.startswith("heatproof.")}


def curves(**change):
    return Curves(Perturbation(**{"steps": 4, **change}).to_settings())


def test_every_kind_except_those_of_tables_is_read_by_a_metric():
    assert {response.kind for response in EXAMPLES} | {Channels.kind, Features.kind, LabelOutputs.kind} == set(OURS)


@pytest.mark.parametrize("response", EXAMPLES, ids=lambda response: response.name)
def test_a_response_is_restored_from_its_spec(response):
    again = response_of(response.spec)
    assert again == response
    assert again.name == response.name
    assert hash(again) == hash(response)


@pytest.mark.parametrize("kind", sorted(OURS))
def test_a_declaration_imports_no_torch(kind):
    """The workflow and every job that scores import it, so it must be fast."""
    program = f"import sys, {OURS[kind].__module__}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# The modules that run networks in the code digest of each kind. Kinds share the modules that they both import:
# a metric with a response of its own imports those that other metrics read.
CURVES = {"curves", "road"}
SUBSETS = {"subsets", "channels"}
RUNS = {
    "patches": {"patches"},
    "parts": {"patches"},
    "features": {"features"},
    "subsets": SUBSETS,
    "channels": SUBSETS,
    "answers": set(),
    "curves": CURVES,
    "pictures": {"pic", *CURVES},
    "explanations": {"sensitivity"},
    "insertions": {"patches", *SUBSETS, *CURVES},
}


@pytest.mark.parametrize("kind", sorted(OURS))
def test_the_code_digest_of_a_kind_covers_the_modules_that_run_it(kind):
    """An edit of information curves, of max-sensitivity or of an explainer reruns no other response."""
    reached = import_closure(["heatproof.workflow.stages._responses", OURS[kind].__module__])
    all_modules = set().union(*RUNS.values())
    assert {name for name in all_modules if f"heatproof.core.perturb.{name}" in reached} == RUNS[kind]
    assert {"heatproof.core.passes", "heatproof.models.network"} <= reached
    families = {entry.function.__module__ for entry in EXPLAINERS.values()}
    assert not families & reached


def test_two_kinds_of_one_name_are_refused():
    before = dict(KINDS)
    with pytest.raises(HeatproofError, match=r"There is a response 'curves' in heatproof\.metrics\.responses\.curves"):
        type("Mine", (NetworkResponse,), {"kind": "curves", "__module__": "mine"})
    assert before == KINDS


def test_names_of_responses_depend_on_their_settings():
    assert curves().name == curves(steps=4).name
    assert curves(steps=5).name != curves().name
    assert curves().name.rpartition("-")[0] == "deletion_morf_zeros"
    assert Patches({"grid": 4, "baseline": "zeros"}).name == "g4_zeros"


def test_a_response_with_more_points_is_shared_by_those_with_fewer():
    few, more, most = (curves(steps=None, fractions=shares) for shares in ((0.5,), (0.25, 0.5), (0.1, 0.25, 0.5)))
    other = curves(steps=None, fractions=(0.1, 0.25, 0.5), baseline="blur")
    assert shared_responses([few, more, most, other]) == {
        few: (most, [2]),
        more: (most, [1, 2]),
        most: (most, None),
        other: (other, None),
    }


def test_a_response_with_other_names_for_its_points_shares_the_finest():
    """Sharing once read the option `fractions` of every kind by name."""

    class Levels(NetworkResponse):
        run = None

        @property
        def fineness(self):
            return len(self.settings["levels"])

        def points_of(self, other):
            levels, coarser = self.settings["levels"], other.settings["levels"]
            return [levels.index(level) for level in coarser] if set(coarser) < set(levels) else None

    few, more, most = (Levels({"levels": levels}) for levels in ([2], [1, 2], [0, 1, 2]))
    assert shared_responses([few, more, most]) == {few: (most, [2]), more: (most, [1, 2]), most: (most, None)}


@pytest.mark.parametrize(
    "response",
    [response for response in EXAMPLES if isinstance(response, MapResponse)],
    ids=lambda response: response.name,
)
def test_a_metric_gets_the_values_that_a_store_has(response):
    """A metric gets the same inputs in memory and from a store: one function casts arrays and selects points."""
    rng = np.random.default_rng(0)
    points = response.points(IMAGES.size)
    values = rng.integers(0, 9, (2, 3, len(response.quantities), points)).astype(np.float64)
    arrays = response.cast({"response": values})
    assert arrays["response"].dtype == response.array_specs["response"].dtype
    got = response.inputs("x", at_points(arrays, 1, [0]), IMAGES, "logit")["x"]
    quantities = {name: values[:, 1, number, :1] for number, name in enumerate(response.quantities)}
    if isinstance(got, ResponseCurve):
        np.testing.assert_array_equal(got.arrays["predicted"], quantities["predicted"])
        np.testing.assert_array_equal(got.classes[:, 0], IMAGES.labels)
    elif isinstance(got, dict):
        np.testing.assert_array_equal(got["predicted"], quantities["predicted"])
    else:
        np.testing.assert_array_equal(got, response.as_argument(quantities, IMAGES))


def test_an_incomplete_response_cannot_be_created():
    with pytest.raises(TypeError, match="abstract"):
        type("Mine", (Response,), {})()
