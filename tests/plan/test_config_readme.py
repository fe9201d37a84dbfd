"""config/README.md names every key, and its examples are sound."""

import re
from pathlib import Path

import pytest
import yaml

from heatproof.config import default_config, merge, normalise, schema

README = Path(__file__).parents[2] / "config" / "README.md"
TEXT = README.read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", TEXT, flags=re.DOTALL)


def keys(node, prefix=""):
    for name, child in node.get("properties", {}).items():
        if "properties" in child:
            yield from keys(child, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def all_keys():
    definitions = schema()["$defs"]
    # Pretraining and finetuning have a section of their own, with the keys of both.
    yield from (key for key in keys(schema()) if not key.startswith(("pretraining", "finetuning")))
    for name in ("model_settings", "weights_settings"):
        yield from definitions[name]["properties"]


@pytest.mark.parametrize("key", dict.fromkeys(all_keys()))
def test_every_key_is_explained_in_a_table(key):
    cells = [line.split("|")[1] for line in TEXT.splitlines() if line.startswith("| `")]
    assert any(f"`{key}`" in cell for cell in cells)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: text.split(":")[0])
def test_examples_are_valid(example):
    normalise(merge(default_config(), yaml.safe_load(example)))


def test_there_are_examples():
    assert len(EXAMPLES) >= 4


ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in TEXT.splitlines() if line.startswith("| `")]
DEFAULTS = {key.strip("`"): told for key, told, *rest in ROWS if rest and not told.startswith("as in")}


@pytest.mark.parametrize("key", DEFAULTS)
def test_defaults_are_those_of_the_embedded_config(key):
    value = normalise(default_config())
    for part in key.split("."):
        value = value[part]
    told = yaml.safe_load(DEFAULTS[key].strip("`"))
    assert told == (list(value) if isinstance(value, dict) else value)
