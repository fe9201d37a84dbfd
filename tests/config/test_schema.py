"""The schema, the registries and the included configs stay consistent."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from heatproof.core.perturb.baselines import BASELINES
from heatproof.datasets.registry import DATASETS
from heatproof.errors import HeatproofError
from heatproof.explainers.registry import EXPLAINERS
from heatproof.metrics.registry import METRICS
from heatproof.models.registry import ARCHITECTURES
from heatproof.training.loop import Schedule
from heatproof.workflow.check import check_config
from heatproof.workflow.config.files import default_config, merge
from heatproof.workflow.config.schema import normalise
from heatproof.workflow.plan.validate import make_plan

REPOSITORY = Path(__file__).parents[2]
# Optional keys without a default.
WITHOUT_DEFAULT = (
    "/evaluation/properties/images/oneOf/",
    "/models/items/",
    "/weights/items/",
)
# Keys whose default depends on other keys.
OPEN = ("/seed", "/finetuning/baseline", "/similarity/images")
SCHEMA = yaml.safe_load((REPOSITORY / "workflow/schemas/config.schema.yaml").read_text(encoding="utf-8"))


def properties(node, path=""):
    """Yield every described key of the config with its path in the schema."""
    if isinstance(node, dict):
        for key, child in node.items():
            if key == "properties":
                for name, inner in child.items():
                    yield f"{path}/{name}", inner
            yield from properties(child, f"{path}/{key}")
    elif isinstance(node, list):
        for child in node:
            yield from properties(child, path)


def test_schema_and_readme_match_the_classes():
    """`python docs/config.py` writes both."""
    # In a separate process, because other tests register explainers and metrics.
    done = subprocess.run(
        [sys.executable, REPOSITORY / "docs/config.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def enums(node):
    """Yield every list of names in the schema that allows a reference to user code as well."""
    if isinstance(node, dict):
        if "anyOf" in node and any("pattern" in option for option in node["anyOf"]):
            yield node["anyOf"]
        for child in node.values():
            yield from enums(child)
    elif isinstance(node, list):
        for child in node:
            yield from enums(child)


def test_the_schema_allows_registered_names_and_references():
    enumerations = list(enums(SCHEMA))
    named = [sorted(option["enum"]) for options in enumerations for option in options if "enum" in option]
    for registry in (DATASETS, ARCHITECTURES, EXPLAINERS, METRICS, BASELINES):
        assert any(set(names) <= set(registry) for names in named)
    for options in enumerations:
        pattern = next(option["pattern"] for option in options if "pattern" in option)
        assert re.search(pattern, "my.package:build")
        assert not re.search(pattern, "my.package")
        assert not re.search(pattern, "my package:build")


@pytest.mark.parametrize(
    ("path", "node"), list(properties(SCHEMA)), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_key_is_described_and_has_a_default(path, node):
    assert node["description"][0].isupper() or node["description"][0] == "`"
    assert node["description"].endswith((".", ")"))
    if not any(name in path for name in WITHOUT_DEFAULT) and not path.endswith(OPEN):
        assert "default" in node
    assert "default" in SCHEMA["properties"]["seed"]


def test_every_mapping_refuses_unknown_keys():
    def objects(node, path=""):
        if isinstance(node, dict):
            if "properties" in node and node.get("type") == "object":
                yield path, node
            for key, child in node.items():
                yield from objects(child, f"{path}/{key}")
        elif isinstance(node, list):
            for position, child in enumerate(node):
                yield from objects(child, f"{path}/{position}")

    nodes = dict(objects(SCHEMA))
    assert len(nodes) > 5
    assert [path for path, node in nodes.items() if node.get("additionalProperties") is not False] == []


def test_the_defaults_alone_are_a_complete_config():
    filled = normalise({})
    assert set(filled) == set(SCHEMA["properties"])
    assert make_plan({}).methods


def test_training_reads_every_key_of_the_schema_and_no_other():
    # The networks and datasets of the trainings are read before the schedule.
    fields = set(Schedule.__dataclass_fields__) | {"devices", "labels", "random_resized_crop"}
    filled = normalise({})
    assert set(filled["pretraining"]) == fields | {"keep"}
    assert set(filled["finetuning"]) == fields | {"grid", "baseline", "share", "keep"}
    keys = {}
    for path, _ in properties(SCHEMA):
        section, _, key = path.rpartition("/")
        keys.setdefault(section, set()).add(key)
    of_models, of_weights = (
        f"/properties/{name}/items/anyOf/additionalProperties/anyOf" for name in ("models", "weights")
    )
    assert keys[f"{of_models}/properties/pretraining"] == fields | {"seed"}
    finetuning_fields = fields | {"seed", "grid", "baseline", "share"}
    assert keys[f"{of_models}/properties/finetuning"] == finetuning_fields
    assert keys[of_weights] == finetuning_fields | {"keep"}, "names of weights are for all models"


def test_the_schema_has_no_references():
    """The workflow catalog, which shows it as a table, follows none."""
    assert "$ref" not in str(SCHEMA)
    assert "$defs" not in SCHEMA


# These need the user's data: test_papers_page.py and test_photographs.py plan them without it.
NEEDS_DATA = ("paper", "one_cell", "cifar10", "imagenet_")
READY = sorted(path for path in (REPOSITORY / "config").rglob("*.yaml") if not path.name.startswith(NEEDS_DATA))


@pytest.mark.parametrize("path", READY, ids=lambda path: path.name)
def test_included_configs_are_sound(path):
    try:
        assert f"{path} is sound" in check_config(path)
    except HeatproofError as error:
        if "pip install 'heatproof[" in str(error):
            pytest.skip(str(error))
        raise


def test_the_default_config_names_every_key_at_the_top():
    """It is the example that users start from."""
    assert set(default_config()) == set(SCHEMA["properties"])


def test_merging_replaces_lists_and_joins_mappings():
    base = {"a": {"x": 1, "y": [1, 2]}, "b": [1], "c": {"z": 1}}
    over = {"a": {"y": [3]}, "b": [], "c": None}
    assert merge(base, over) == {"a": {"x": 1, "y": [3]}, "b": [], "c": None}
    assert base == {"a": {"x": 1, "y": [1, 2]}, "b": [1], "c": {"z": 1}}, "neither is changed"


def test_normalising_does_not_change_its_input():
    config = default_config()
    before = yaml.safe_dump(config)
    first = normalise(config)
    first["finetuning"]["epochs"] = 999
    assert yaml.safe_dump(config) == before
    assert normalise(config)["finetuning"]["epochs"] != 999
