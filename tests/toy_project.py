"""All stages with user code, without Snakemake: jobs come from the graph, files go to a temporary folder."""

import os
from dataclasses import replace
from pathlib import Path

import pandas as pd

from heatproof.core.specs import Runtime
from heatproof.store.zarr_store import describe_store, read
from heatproof.workflow.config.files import merge
from heatproof.workflow.plan.graph import Graph, Job
from heatproof.workflow.plan.validate import make_plan
from heatproof.workflow.stages._results import read_methods

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
    """A folder in which the stages of a config run."""

    def __init__(self, folder: Path, **change):
        self.folder = folder
        self.plan = make_plan(merge(BASE, change))

    def runtime(self, batch_size=64):
        return Runtime(batch_size, 1, "cpu")

    def make(self, what, batch_size=64):
        """Run a job: the only one of a stage by its name, a job of the graph, or a spec."""
        spec = self.job(what).spec if isinstance(what, str) else what.spec if isinstance(what, Job) else what
        before = os.getcwd()
        os.chdir(self.folder)
        try:
            spec.run(self.runtime(batch_size))
        finally:
            os.chdir(before)

    def spec(self, metric):
        """Return the spec of a scoring job of the finetuned network."""
        return self.on_network("score", metric=metric).spec

    def score_with(self, metric):
        self.make(self.spec(metric))

    def job(self, stage, **wildcards) -> Job:
        return Graph(self.plan).job(stage, wildcards)

    def on_network(self, stage, *network, **wildcards) -> Job:
        """Return a job on a network, by default the finetuned one."""
        return self.job(stage, **dict(zip(NETWORK, network or WHERE, strict=True)), **wildcards)

    def prepare(self):
        return self.job("prepare", dataset="toy").spec

    def pretrain(self):
        return self.job("pretrain", dataset="toy", model="net").spec

    def finetune(self):
        return self.on_network("finetune").spec

    def train(self):
        for spec in (self.prepare(), self.pretrain(), self.finetune()):
            self.make(spec)
        return self

    def maps_spec(self, explainers=None, shard=0):
        """Return the spec for a shard of maps, of selected explainers that use the model, or of all of them."""
        spec = self.on_network("attribute", shard=shard).spec
        chosen = [explainer for explainer in spec.explainers if explainers is None or explainer.name in explainers]
        return replace(spec, explainers=chosen)

    def reference_spec(self, shard=0):
        """Return the spec for a shard of maps that do not use a model."""
        return self.job("attribute_reference", dataset="toy", shard=shard).spec

    def drops_spec(self, grid=4, baseline="mean", shard=0):
        """Return the spec for a shard of patch drops."""
        return self.on_network("drops", grid=grid, baseline=baseline, shard=shard).spec

    def curves_spec(self, response, explainers=None, shard=0):
        """Return the spec for a shard of a response along maps, of selected explainers or of all."""
        spec = self.on_network("curves", response=response, shard=shard).spec
        chosen = [explainer for explainer in spec.explainers if explainers is None or explainer.name in explainers]
        return replace(spec, explainers=chosen)

    def attribute(self, batch_size=64, explainers=None, reference=True):
        for shard in self.plan.shards(self.plan.images):
            self.make(self.maps_spec(explainers, shard), batch_size)
            if reference and self.plan.reference_explainers:
                self.make(self.reference_spec(shard), batch_size)
        return self

    def drop(self, batch_size=64):
        for grid, baseline in self.plan.combinations:
            for shard in self.plan.shards(self.plan.drop_images):
                self.make(self.drops_spec(grid, baseline, shard), batch_size)
        return self

    def respond(self, batch_size=64, explainers=None):
        for shard in self.plan.shards(self.plan.images):
            for response in self.plan.method_responses:
                self.make(self.curves_spec(response, explainers, shard), batch_size)
            for response in self.plan.model_responses:
                self.make(self.on_network("subsets", response=response, shard=shard), batch_size)
        return self

    def score_all(self):
        # The drops record which images the network classifies correctly.
        self.drop()
        for case in self.plan.all_cases():
            self.make(self.on_network("score", *case.network, metric=case.metric))
        self.make("all_scores")
        return self

    def scores(self, metric):
        return pd.read_parquet(self.folder / f"results/scores/toy/net/finetuned/{metric}.parquet")

    def methods(self, metric):
        """Return the table of methods beside the scores of a metric."""
        return read_methods([self.folder / f"results/scores/toy/net/finetuned/{metric}.parquet"])

    def gaps(self, metric):
        """Return the methods that have no scores by a metric, with the reasons."""
        return self.methods(metric).query("gap != ''").set_index("method")["gap"].to_dict()

    def score(self):
        for case in self.plan.test_cases():
            self.make(self.on_network("score", *case.network, metric=case.metric))
        self.make("tables")
        return self

    def base(self, explainer="mine"):
        return self.folder / self.plan.maps_of(*WHERE, explainer)

    def maps(self, explainer="mine", start=0, stop=None):
        return read(f"{self.base(explainer)}.zarr", "attribution", start, self.plan.images if stop is None else stop)

    def drops_of(self, array="logit", grid=4, baseline="mean"):
        store = self.folder / f"results/drops/toy/net/finetuned/g{grid}_{baseline}.zarr"
        return read(store, array, 0, self.plan.drop_images)

    def describe_store(self, explainer="mine"):
        return describe_store(f"{self.base(explainer)}.zarr")

    def bytes(self, *parts: str) -> dict[str, bytes]:
        """Return the content of every shard, without manifests, which contain times."""
        files = [path for part in parts for path in sorted((self.folder / "results" / part).rglob("*"))]
        files = [path for path in files if path.is_file() and "c" in path.parts]
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in files}
