"""What compares networks before and after finetuning: paths, and what the jobs are told."""

from __future__ import annotations

from typing import Any

from heatproof.plan.paths import CHANNELS, DATASET, DROPS, MAPS, RESULTS, channel_files, drop_files, map_files
from heatproof.plan.scoring import Scoring
from heatproof.plan.specs import keyed
from heatproof.provenance import digest

FOLDER = RESULTS + "/similarity"
SIMILARITY = FOLDER + "/similarity.csv"
SIMILARITY_PNG = FOLDER + "/similarity.png"
EXCITING_PNG = FOLDER + "/exciting.png"
SIMILARITY_MANIFEST = FOLDER + "/similarity.json"
SIMILARITY_FILES = [SIMILARITY, SIMILARITY_PNG, EXCITING_PNG]
# Means over so many images are steady, and maps of more would only take memory.
MOST_IMAGES = 512


def similarity_images(plan: Scoring) -> int:
    """Return how many images are compared."""
    return min(plan.images, MOST_IMAGES)


def channels_spec(plan: Scoring, dataset: str, model: str, weights: str, shard: int) -> dict[str, Any]:
    """Return what makes one shard of the activations of a network's channels."""
    upstream = plan.weights_spec(dataset, model, weights)
    made = {
        "dataset": plan.dataset_spec(dataset),
        "model": plan.model_spec(model),
        "weights": upstream["output"],
        "upstream": upstream["key"],
        **plan.precision(),
    }
    spec = keyed(made, ["heatproof.stages.channels", plan.models[model].module])
    size = plan.config["shard_size"]
    images = [shard * size, min((shard + 1) * size, similarity_images(plan))]
    store = CHANNELS.format(dataset=dataset, model=model, weights=weights)
    return {**spec, "store": store, "shard": shard, "shard_size": size, "images": images}


def similarity_spec(plan: Scoring) -> dict[str, Any]:
    """Return what makes the table and its figures; paths are patterns, so that the spec stays short."""
    grid, baseline = plan.combinations[0]
    nets = [(dataset, model, weights) for dataset, model in plan.pairs() for weights in plan.weights]
    upstream = [
        [
            plan.drops_spec(*net, grid, baseline, 0)["key"],
            channels_spec(plan, *net, 0)["key"],
            *[entry["key"] for entry in plan.attribute_spec(*net, plan.model_explainers, 0)["explainers"]],
        ]
        for net in nets
    ]
    spec = {
        "datasets": [
            {
                "dataset": plan.dataset_spec(dataset),
                "models": dict.fromkeys(plan.models_of(dataset), plan.weights),
            }
            for dataset in plan.datasets
        ],
        "explainers": [{"name": name, "maps": list(plan.explainers[name].maps)} for name in plan.model_explainers],
        # The intact image is the first variant whatever the grid.
        "drops": DROPS.replace("{grid}", str(grid)).replace("{baseline}", baseline),
        "maps": MAPS,
        "channels": CHANNELS,
        "images": similarity_images(plan),
        "shards": len(plan.shards(similarity_images(plan))),
        "seed": plan.config["seed"],
        "bootstrap": plan.config["scores"]["bootstrap"],
        "level": plan.config["scores"]["level"],
        "upstream": digest(upstream),
        "output": SIMILARITY,
        "figure": SIMILARITY_PNG,
        "exciting": EXCITING_PNG,
        "manifest": SIMILARITY_MANIFEST,
    }
    return keyed(spec, ["heatproof.report.similarity"])


def similarity_inputs(plan: Scoring) -> list[str]:
    """Return the shards that the comparison reads."""
    grid, baseline = plan.combinations[0]
    files = [DATASET.format(dataset=dataset) for dataset in plan.datasets]
    for dataset, model in plan.pairs():
        for weights in plan.weights:
            where = {"dataset": dataset, "model": model, "weights": weights}
            for shard in plan.shards(similarity_images(plan)):
                files += drop_files(DROPS.format(**where, grid=grid, baseline=baseline), shard)
                files += channel_files(CHANNELS.format(**where), shard)
                for explainer in plan.model_explainers:
                    files += map_files(plan.maps_of(**where, explainer=explainer), shard)
    return files
