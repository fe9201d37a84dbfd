"""Small stores and tables, written by the functions that the stages use."""

from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
from tiny_data import COUNT, DATASET, IMAGES, SIZE

from heatproof.core.methods import NO_MODEL
from heatproof.core.provenance import Key
from heatproof.core.specs import ShardRange
from heatproof.datasets.checks import open_dataset
from heatproof.store.writing import write_table
from heatproof.store.zarr_store import ArraySpec
from heatproof.workflow.plan.folder import Folder
from heatproof.workflow.stages._shards import Origin, open_shard

RESULTS = Folder()


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A working folder with maps, drops and scores of one model. Return the stored maps by method."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "finetuned.safetensors").write_bytes(b"weights")
    split = open_dataset(DATASET).splits["evaluation"]
    generator = np.random.default_rng(1)
    where = {"dataset": "tiny", "model": "net", "weights": "finetuned"}
    made_by = {
        "dataset": asdict(DATASET),
        "model": {"name": "net"},
        "weights": "finetuned.safetensors",
        "output": "logit",
        "seed": 0,
    }

    def store(base, arrays, specs, made_by, coordinates=None, gap=None):
        shard = open_shard(
            ShardRange(0, COUNT, (0, IMAGES)),
            base,
            Origin(Key("config", "code"), made_by),
            split,
            specs,
            coordinates=coordinates,
        )
        if gap:
            shard.publish("cpu", gap)
        else:
            shard.add(0, arrays, 1.0, IMAGES)
            shard.publish("cpu")

    def maps(pattern, explainer, names, made_by, gap=None):
        values = generator.normal(size=(IMAGES, len(names), SIZE, SIZE)).astype(np.float32)
        store(
            pattern.format(**where, explainer=explainer),
            {"attribution": values},
            {"attribution": ArraySpec(("map", "y", "x"), (len(names), SIZE, SIZE))},
            {**made_by, "explainer": {"name": explainer, "kind": explainer, "options": {"steps": 7} if gap else {}}},
            {"map": names},
            gap,
        )
        return {name: values[:, index] for index, name in enumerate(names)}

    stored = maps(RESULTS.maps, "gradient", ["gradient"], made_by)
    stored |= maps(RESULTS.maps, "noise", ["smooth", "variance"], made_by)
    stored |= maps(RESULTS.reference_maps, "random", ["random"], {**made_by, "model": None, "weights": None})
    maps(RESULTS.maps, "cam", ["cam"], made_by, gap="it has <b>no</b> layer")
    logits = generator.normal(size=(IMAGES, 17)).astype(np.float32)
    store(
        RESULTS.drops.format(**where, grid=4, baseline="zeros"),
        {"logit": logits, "predicted": np.ones((IMAGES, 17))},
        {
            name: ArraySpec(("variant",), (17,), kind, False)
            for name, kind in (("logit", "float32"), ("predicted", "int32"))
        },
        {**made_by, "grid": 4, "baseline": "zeros"},
    )
    rows = [
        {**where, "method": method, "metric": "idsds", "image": image, "score": score, "valid": score == score}
        for method in ("gradient", "smooth", "random")
        for image, score in zip(split.ids, [0.25, float("nan"), -0.5, 0.001], strict=False)
    ]
    write_table(pd.DataFrame(rows), RESULTS.scores.format(**where, metric="idsds"))
    return stored


@pytest.fixture
def folder():
    return RESULTS.maps.rpartition("/")[0].format(dataset="tiny", model="net", weights="finetuned")


@pytest.fixture
def reference_folder():
    return f"results/maps/tiny/{NO_MODEL}/{NO_MODEL}"
