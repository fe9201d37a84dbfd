"""All stages over a user's own code, without Snakemake: specs come from the plan, files go to a temporary folder."""

import os
from pathlib import Path

import pandas as pd

from heatproof.attribution.make import attribute
from heatproof.config import merge
from heatproof.data.prepare import prepare
from heatproof.plan.graph import Graph, Job
from heatproof.plan.validate import make_plan
from heatproof.responses.run import respond
from heatproof.store import describe, read
from heatproof.training.stages import finetune, pretrain

BASE = {
    "datasets": [{"toy": {"dataset": "toy_plugin:dataset"}}],
    "evaluation": {"images": 10},
    "models": [{"net": {"architecture": "toy_plugin:network", "cam_layer": "features"}}],
    "weights": ["finetuned"],
    "pretraining": {"epochs": 6, "batch_size": 8, "lr": 0.05},
    "finetuning": {"epochs": 3, "batch_size": 8, "lr": 0.01},
    "explainers": [{"mine": {"explainer": "toy_plugin:gradient"}}, "saliency", "random"],
    "metrics": [],
    "scores": {"bootstrap": 20},
    "shard_size": 16,
}
WHERE = ("toy", "net", "finetuned")
NETWORK = ("dataset", "model", "weights")


class Project:
    """A folder, and the stages of a config run in it."""

    def __init__(self, folder: Path, **change):
        self.folder = folder
        self.plan = make_plan(merge(BASE, change))

    def runtime(self, batch_size=64):
        return {"batch_size": batch_size, "threads": 1, "device": "cpu"}

    def inside(self, stage, spec, batch_size=64):
        before = os.getcwd()
        os.chdir(self.folder)
        try:
            stage(spec, self.runtime(batch_size))
        finally:
            os.chdir(before)

    def make(self, stage, told=None):
        """Run the job of a stage that has one, on what the plan tells it or on something else."""
        before = os.getcwd()
        os.chdir(self.folder)
        try:
            (told or self.job(stage).told).run(self.runtime())
        finally:
            os.chdir(before)

    def told(self, metric):
        """Return what a scoring of the finetuned network is told."""
        return self.on_network("score", metric=metric).told

    def score_with(self, metric):
        self.make("score", self.told(metric))

    def job(self, stage, **wildcards) -> Job:
        return Graph(self.plan).job(stage, wildcards)

    def on_network(self, stage, *network, **wildcards) -> Job:
        """Return a job on a network, by default the finetuned one."""
        return self.job(stage, **dict(zip(NETWORK, network or WHERE, strict=True)), **wildcards)

    def train(self):
        self.inside(prepare, self.plan.dataset_spec("toy"))
        self.inside(pretrain, self.plan.pretrain_spec("toy", "net"))
        self.inside(finetune, self.plan.finetune_spec(*WHERE))
        return self

    def attribute(self, batch_size=64, explainers=None, reference=True):
        for shard in self.plan.shards(self.plan.images):
            chosen = explainers or self.plan.model_explainers
            self.inside(attribute, self.plan.attribute_spec(*WHERE, chosen, shard), batch_size)
            if reference and self.plan.reference_explainers:
                spec = self.plan.attribute_spec("toy", None, None, self.plan.reference_explainers, shard)
                self.inside(attribute, spec, batch_size)
        return self

    def drop(self, batch_size=64):
        for grid, baseline in self.plan.combinations:
            for shard in self.plan.shards(self.plan.drop_images):
                job = self.on_network("drops", grid=grid, baseline=baseline, shard=shard)
                self.inside(respond, job.spec, batch_size)
        return self

    def respond(self, batch_size=64, explainers=None):
        for shard in self.plan.shards(self.plan.images):
            for response in self.plan.method_responses:
                spec = self.plan.curves_spec(*WHERE, explainers or list(self.plan.explainers), response, shard)
                self.inside(respond, spec, batch_size)
            for response in self.plan.model_responses:
                self.inside(respond, self.on_network("subsets", response=response, shard=shard).spec, batch_size)
        return self

    def score_all(self):
        # Which images the network gets right is read from the drops.
        self.drop()
        for case in self.plan.all_cases():
            self.make("score", self.told(case.metric))
        self.make("all_scores")
        return self

    def scores(self, metric):
        return pd.read_parquet(self.folder / f"results/scores/toy/net/finetuned/{metric}.parquet")

    def score(self):
        for case in self.plan.test_cases():
            self.make("score", self.told(case.metric))
        self.make("tables")
        return self

    def base(self, explainer="mine"):
        return self.folder / self.plan.maps_of(*WHERE, explainer)

    def maps(self, explainer="mine", start=0, stop=None):
        return read(f"{self.base(explainer)}.zarr", "attribution", start, self.plan.images if stop is None else stop)

    def drops_of(self, array="logit", grid=4, baseline="mean"):
        store = self.folder / f"results/drops/toy/net/finetuned/g{grid}_{baseline}.zarr"
        return read(store, array, 0, self.plan.drop_images)

    def describe(self, explainer="mine"):
        return describe(f"{self.base(explainer)}.zarr")

    def bytes(self, *parts: str) -> dict[str, bytes]:
        """Return every shard, and no manifest: these have times in them."""
        files = [path for part in parts for path in sorted((self.folder / "results" / part).rglob("*"))]
        files = [path for path in files if path.is_file() and "c" in path.parts]
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in files}
