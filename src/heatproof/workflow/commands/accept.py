"""`heatproof accept`: keep results that the current code reproduces exactly, after an upgrade or edit.

Results from other code count as stale, so that an edit of a helper could cost a week of computing. This command
computes a sample of each store again: the first batch of its first shard, with the same images in the batch. Of a
training, it repeats the first epoch; jobs of seconds are repeated completely. If every byte is the same, the manifests
get the key of the current code, and the next run keeps the files. Results that differ are reported and stay stale.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from heatproof.core.provenance import Key, digest
from heatproof.jobs.shards import compare_with_stored
from heatproof.store.manifest import read_checksummed, verified_bytes, write_checksummed
from heatproof.store.reading import file_digest
from heatproof.workflow.plan.graph import Graph, Job, Product
from heatproof.workflow.plan.paths import RESULTS
from heatproof.workflow.reconcile import Results

if TYPE_CHECKING:
    from heatproof.core.specs import Runtime
    from heatproof.workflow.stages.shards import ShardStage
    from heatproof.workflow.stages.train import Training

TRAININGS = ("pretrain", "finetune")
# Stages that take seconds and are repeated completely.
SHORT = ("prepare", "fetch_start", "fetch", "keep_epoch")

Verdict = tuple[str, str | None]


def accept(graph: Graph, runtime: Runtime) -> Iterator[Verdict]:
    """Recompute samples of results from other code, and update the keys of unchanged results.

    Scores, tables, figures and pages are not compared, because a run recomputes them without network passes.

    Parameters
    ----------
    graph
        Jobs of the config.
    runtime
        Batch size, threads and device of jobs.

    Yields
    ------
    tuple
        Path of a manifest, and a description of the difference; None if there is no difference.
    """
    differing: set[str] = set()
    for job in graph.jobs():
        results = Results(graph)
        todo = [product for product in job.products if _is_of_other_code(results, product)]
        if not todo:
            continue
        for manifest, difference in _compare(job, todo, differing, runtime):
            if difference is not None:
                differing.add(_store(manifest))
            yield manifest, difference


def _is_of_other_code(results: Results, product: Product) -> bool:
    """Return whether a result is complete, from this config, and from other code."""
    manifest = results.manifest(product.manifest)
    then = Key.of(manifest or {})
    return then.config == product.key.config and then.code != product.key.code and results.is_complete(product)


def _store(manifest: str) -> str:
    """Return the path of a shard's manifest without the number of the shard."""
    return manifest.rsplit(".", 2)[0]


def _compare(job: Job, todo: list[Product], differing: set[str], runtime: Runtime) -> Iterator[Verdict]:
    if job.stage in SHORT:
        yield from _made_again(job, runtime)
    elif job.stage in TRAININGS:
        yield from _first_epoch(job, runtime)
    elif todo[0].images is not None:
        yield from _sample(job, todo, differing, runtime)


def _sample(job: Job, todo: list[Product], differing: set[str], runtime: Runtime) -> Iterator[Verdict]:
    spec = cast("ShardStage", job.spec)
    start, stop = spec.shard.images
    # The first shard is compared; if it is unchanged, later shards are taken to be unchanged.
    size = runtime.batch_size
    sample_stop = min(start + (64 if size == "auto" else size), stop) if spec.shard.number == 0 else start
    names = {product.manifest for product in todo}
    differing_stores = [name for name in sorted(names) if _store(name) in differing]
    yield from ((name, "its first shard differs") for name in differing_stores)
    if len(differing_stores) < len(names):
        with compare_with_stored() as verdicts:
            spec.sampled((start, sample_stop), names.difference(differing_stores)).run(runtime)
        yield from (verdict for verdict in verdicts if verdict[0] in names)


def _made_again(job: Job, runtime: Runtime) -> Iterator[Verdict]:
    """Repeat a short job in a temporary folder, and compare all of its files."""
    (product,) = job.products
    manifest = read_checksummed(product.manifest) or {}
    with tempfile.TemporaryDirectory(prefix=".accept-", dir=RESULTS) as folder:
        aside = {path: str(Path(folder) / Path(path).name) for path in product.files}
        files = {name: aside[path] for name, path in job.spec.files.items()}
        replace(job.spec, files=files, manifest=aside[product.manifest]).run(runtime)
        other = [path for path in job.spec.files.values() if file_digest(aside[path]) != file_digest(path)]
        now = read_checksummed(aside[product.manifest]) or {}
    if any(now.get(key) != manifest.get(key) for key in ("name", "task", "class_names", "splits", "preprocessing")):
        other.append("the list of images")
    if other:
        yield product.manifest, f"{', '.join(other)} differs"
    else:
        yield _date_forward(product, manifest)


def _first_epoch(job: Job, runtime: Runtime) -> Iterator[Verdict]:
    """Repeat the first epoch of a training, and compare its row of the history."""
    (product,) = job.products
    spec, manifest = cast("Training", job.spec), read_checksummed(product.manifest) or {}
    if spec.training.devices > 1:
        yield product.manifest, "a training on several devices is not reproducible to the last digit"
        return
    then = verified_bytes(spec.files["history"], listed=False).decode("utf-8").splitlines()[:2]
    now = spec.history_of_first_epoch(runtime).splitlines()
    other = (product.manifest, f"its first epoch is {now[-1]}, and was {then[-1]}")
    yield _date_forward(product, manifest) if now == then else other


def _date_forward(product: Product, manifest: Mapping[str, Any]) -> Verdict:
    updated = {**manifest, **product.key._asdict()}
    if "key" in manifest:
        updated["key"] = digest([product.key, manifest.get("input_sha256", {})])
    write_checksummed(product.manifest, updated)
    return product.manifest, None


def report(graph: Graph, runtime: Runtime) -> str:
    """Run `accept`, and return a report: a line for each result that differs, and the number of unchanged results."""
    verdicts = list(accept(graph, runtime))
    if not verdicts:
        return (
            "There is nothing to accept: no training, map or response of this config is from other code. Scores, "
            "tables and pages are not compared, because a run recomputes them in seconds."
        )
    lines = [f"{manifest}: {difference}." for manifest, difference in verdicts if difference is not None]
    same = len(verdicts) - len(lines)
    return "\n".join(
        [*lines, f"The current code reproduces {same} of {len(verdicts)} results from other code, which are kept."]
    )
