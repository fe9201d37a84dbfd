"""Names of all files: patterns with Snakemake's wildcards, and the files that one shard consists of."""

from __future__ import annotations

import re

RESULTS = "results"
PRETRAINED = "pretrained"
# Stands for the model and for the weights in the path of maps that know no model.
NO_MODEL = "no_model"

DATASET = RESULTS + "/datasets/{dataset}.json"
WEIGHTS = RESULTS + "/weights/{dataset}/{model}/{weights}.safetensors"
HISTORY = RESULTS + "/weights/{dataset}/{model}/{weights}.history.csv"
WEIGHTS_MANIFEST = RESULTS + "/weights/{dataset}/{model}/{weights}.json"
# States of the epochs that a finetuning keeps; no entry of `weights` can have this path.
KEPT = RESULTS + "/weights/{dataset}/{model}/kept/{weights}.safetensors"
DROPS = RESULTS + "/drops/{dataset}/{model}/{weights}/g{grid}_{baseline}"
MAPS = RESULTS + "/maps/{dataset}/{model}/{weights}/{explainer}"
WEIGHTS_FILES = (WEIGHTS, HISTORY, WEIGHTS_MANIFEST)
# Published weights with which a training begins; one for all datasets of a model.
START = RESULTS + "/checkpoints/{model}.safetensors"
START_HISTORY = RESULTS + "/checkpoints/{model}.history.csv"
START_MANIFEST = RESULTS + "/checkpoints/{model}.json"
START_FILES = (START, START_HISTORY, START_MANIFEST)
REFERENCE_MAPS = RESULTS + "/maps/{dataset}/" + NO_MODEL + "/" + NO_MODEL + "/{explainer}"
CURVES = RESULTS + "/curves/{dataset}/{model}/{weights}/{explainer}/{response}"
SUBSETS = RESULTS + "/subsets/{dataset}/{model}/{weights}/{response}"
PARTS = RESULTS + "/parts/{dataset}/{model}/{weights}"
CHANNELS = RESULTS + "/channels/{dataset}/{model}/{weights}"
SCORES = RESULTS + "/scores/{dataset}/{model}/{weights}/{metric}.parquet"
SCORES_MANIFEST = RESULTS + "/scores/{dataset}/{model}/{weights}/{metric}.json"
SCORES_TABLE = RESULTS + "/scores.csv"
SCORES_TABLE_MANIFEST = RESULTS + "/scores.json"
IDSDS_TABLE = RESULTS + "/idsds_table.csv"
META_RANK = RESULTS + "/meta_rank.csv"
ACCURACY = RESULTS + "/accuracy.csv"
APPLICABILITY = RESULTS + "/applicability.csv"
TABLES_MANIFEST = RESULTS + "/tables.json"

DROP_ARRAYS = ("logit", "log_probability", "predicted", "target_rank")
SUBSET_ARRAYS = ("logit", "log_probability")
PART_ARRAYS = (*SUBSET_ARRAYS, "importance")


def drop_files(drops: str, shard: int | str) -> list[str]:
    """Return the files that one shard of patch drops consists of, its manifest first."""
    return [f"{drops}.{shard}.json", *(drop_file(drops, array, shard) for array in DROP_ARRAYS)]


def drop_file(drops: str, array: str, shard: int | str) -> str:
    """Return the shard of one array of patch drops."""
    return f"{drops}.zarr/{array}/c/{shard}/0"


def curve_files(curves: str, shard: int | str) -> list[str]:
    """Return the files that one shard of an explainer's responses consists of, its manifest first."""
    return [f"{curves}.{shard}.json", f"{curves}.zarr/response/c/{shard}/0/0/0"]


def subset_files(subsets: str, shard: int | str) -> list[str]:
    """Return the files that one shard of the responses to random subsets consists of, its manifest first."""
    return [f"{subsets}.{shard}.json", *(drop_file(subsets, array, shard) for array in SUBSET_ARRAYS)]


def part_files(parts: str, shard: int | str) -> list[str]:
    """Return the files that one shard of the responses to images without a part consists of, its manifest first."""
    arrays = [drop_file(parts, array, shard) for array in PART_ARRAYS]
    return [f"{parts}.{shard}.json", *arrays, f"{parts}.zarr/mask/c/{shard}/0/0/0"]


def channel_files(channels: str, shard: int | str) -> list[str]:
    """Return the files that one shard of the activations of channels consists of, its manifest first."""
    return [f"{channels}.{shard}.json", drop_file(channels, "activation", shard)]


def map_files(maps: str, shard: int | str) -> list[str]:
    """Return the files that one shard of an explainer's maps consists of, its manifest first."""
    return [f"{maps}.{shard}.json", map_file(maps, shard)]


def map_file(maps: str, shard: int | str) -> str:
    """Return the shard that holds the maps themselves."""
    return f"{maps}.zarr/attribution/c/{shard}/0/0/0"


def at(pattern: str, **values: str | list[str]) -> str:
    """Fill wildcards of a path pattern: by a text, or by a list of texts that the wildcard is constrained to."""
    for key, value in values.items():
        if not isinstance(value, str):
            value = "{" + key + "," + ("|".join(map(re.escape, value)) or "(?!)") + "}"
        pattern = pattern.replace("{" + key + "}", value)
    return pattern
