"""Write the schema and the tables of config/README.md from the config's classes; `--check` compares them."""

import re
import sys
from pathlib import Path

import yaml

from heatproof.core.perturb.baselines import BASELINES
from heatproof.core.specs import PRETRAINED
from heatproof.datasets.registry import DATASETS
from heatproof.explainers.registry import EXPLAINERS
from heatproof.metrics.registry import METRICS
from heatproof.models.registry import ARCHITECTURES
from heatproof.workflow.config.files import default_config
from heatproof.workflow.config.schema import (
    ModelSettings,
    Section,
    Settings,
    Training,
    WeightsSettings,
    describe,
    normalise,
)
from heatproof.workflow.config.types import NAMES as KIND

ROOT = Path(__file__).parents[1]
SCHEMA = ROOT / "workflow/schemas/config.schema.yaml"
README = ROOT / "config/README.md"
NAMES = {
    "dataset": DATASETS,
    "architecture": ARCHITECTURES,
    "explainer": EXPLAINERS,
    "metric": METRICS,
    "weights": [PRETRAINED, "finetuned"],
    "baseline": BASELINES,
}
TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def schema():
    """Return the JSON schema of the config."""
    finished = finish(Settings.model_json_schema())
    sections = finished.pop("$defs")
    for section in sections.values():
        for key in section["properties"].keys() & Training.model_fields.keys():
            section["properties"][key]["description"] = describe(Training, key)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **inlined(finished, sections)}


def inlined(node, sections):
    """Return a part of the schema with each reference replaced by what it names; the workflow catalog follows none."""
    if isinstance(node, list):
        return [inlined(child, sections) for child in node]
    if not isinstance(node, dict):
        return node
    section = sections[node["$ref"].rpartition("/")[2]] if "$ref" in node else {}
    return {key: inlined(child, sections) for key, child in {**section, **node}.items() if key != "$ref"}


def finish(node):
    """Return a part of pydantic's schema with the names that a config can have, and without titles."""
    if isinstance(node, list):
        return [finish(item) for item in node]
    if not isinstance(node, dict):
        return " ".join(node.split()) if isinstance(node, str) else node
    # A title repeats its key, and a default of None says that there is none.
    left_out = {"title", KIND} | ({"default"} if node.get("default", 0) is None else set())
    finished = {key: finish(item) for key, item in node.items() if key not in left_out}
    if KIND in node:
        finished["anyOf"] = [{"enum": sorted(NAMES[node[KIND]])}, {"type": "string", "pattern": r"^[\w.]+:\w+$"}]
    return finished


def schema_text() -> str:
    """Return the schema as YAML."""
    return "# Written by docs/config.py.\n" + yaml.safe_dump(schema(), sort_keys=False, width=120)


def readme_text() -> str:
    """Return config/README.md with its tables made anew."""
    return TABLE.sub(lambda match: match[1] + TABLES[match[2]]() + match[3], README.read_text(encoding="utf-8"))


def work_table() -> str:
    """Return the table of the settings of machines and jobs."""
    return with_defaults(list(Settings.model_fields)[list(Settings.model_fields).index("shard_size") :])


def evaluated_table() -> str:
    """Return the table of the settings of the evaluation."""
    keys = list(Settings.model_fields)
    before = keys[: keys.index("shard_size")]
    return with_defaults([key for key in before if key not in ("pretraining", "finetuning")])


def with_defaults(keys: list[str]) -> str:
    """Return a table of keys, those of sections with a dot, and their defaults in the embedded config."""
    embedded = normalise(default_config())
    lines = ["| key | default | what it does, and when to change it |", "| --- | --- | --- |"]
    for key in keys:
        section = Settings.model_fields[key].annotation
        if isinstance(section, type) and issubclass(section, Section):
            rows = [
                (f"{key}.{name}", embedded[key].get(name), describe(section, name)) for name in section.model_fields
            ]
        else:
            rows = [(key, embedded[key], describe(Settings, key))]
        lines += [f"| `{name}` | {default(value)} | {text} |" for name, value, text in rows]
    return "\n".join(lines) + "\n"


def default(value: object) -> str:
    """Return a value as in a config; the embedded config has long ones."""
    if value is None:
        return "none"
    value = list(value) if isinstance(value, dict) else value
    if isinstance(value, list) and len(value) > 2:
        return "as in `config.yaml`"
    return f"`{yaml.safe_dump(value, default_flow_style=True).splitlines()[0]}`"


def plain_table(*sections: type[Section]) -> str:
    """Return a table of the keys of sections."""
    rows = {key: describe(section, key) for section in sections for key in section.model_fields}
    lines = ["| key | what it does |", "| --- | --- |", *(f"| `{key}` | {text} |" for key, text in rows.items())]
    return "\n".join(lines) + "\n"


TABLES = {
    "evaluated": evaluated_table,
    "work": work_table,
    "models": lambda: plain_table(ModelSettings),
    "training": lambda: plain_table(WeightsSettings),
}

if __name__ == "__main__":
    for path, text in ((SCHEMA, schema_text()), (README, readme_text())):
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
        elif path.read_text(encoding="utf-8") != text:
            sys.exit(f"{path.name} is not what the config's classes say: run python docs/config.py.")
