"""What the job `report_page` reads for its pages, and the texts of the pages."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from heatproof.core.methods import MethodSpec, all_methods, without_equal_maps
from heatproof.core.tasks import task_provides
from heatproof.datasets.checks import open_dataset
from heatproof.report.figures.pictures import data_uri, label_of
from heatproof.report.page import data as page_data
from heatproof.report.page.page import (
    Link,
    ManifestOnPage,
    PageFacts,
    address,
    best_methods,
    cases_of,
    gallery_page,
    index_page,
    leaderboard,
    named_methods,
    provenance,
    row_names,
    scores_on_page,
)
from heatproof.report.results import CASE
from heatproof.store.manifest import read_checksummed, read_shard, require_manifest, verified_bytes
from heatproof.store.result_tables import read_text
from heatproof.store.rows import rows_of_store
from heatproof.store.zarr_store import describe_store, read
from heatproof.workflow.stages._shown_maps import image_scores, maps_base, read_maps

if TYPE_CHECKING:
    from heatproof.core.grids import Grid
    from heatproof.workflow.plan.folder import Folder
    from heatproof.workflow.stages.report_page import PageCurve, PageDataset, PageNetwork, ReportPage

log = logging.getLogger(__name__)

# A larger table is linked instead of embedded.
DOWNLOAD_BYTES = 2_000_000
PAGE_BYTES = 20_000_000


def pages_of(spec: ReportPage) -> dict[str, str]:
    """Return the index page, and the page of maps where images are shown, by their paths."""
    tables = {name: read_text(table.path) for name, table in spec.page_tables.items()}
    link = partial(address, spec.files["page"])
    scores = scores_on_page(tables)
    explainers = without_equal_maps(spec.explainers, {*scores["method"]})
    sources = {case: _source(spec, case, link) for case in cases_of(scores)}
    data = {
        "scores-data": leaderboard(scores, spec.references, spec.directions, sources),
        "provenance-data": provenance(_manifests(spec), spec.seed, link),
    }
    pages = {}
    if spec.images:
        maps = [maps_of_dataset(entry, spec, explainers) for entry in spec.datasets]
        pages[spec.files["gallery"]] = gallery_page(maps, explainers)
        methods = named_methods(explainers)
        data["maps-data"] = {"methods": methods, "datasets": page_data.fit_to_page(maps, len(methods))}
    # Curves that no metric of the run reads are not computed.
    if any(curve.datasets for curve in spec.curves):
        best = best_methods(tables, spec.references)
        data["curves-data"] = {**_curves(spec, explainers), "best": best, "references": spec.references}
    pages[spec.files["page"]] = index_page(
        _facts(spec),
        tables,
        data=data,
        figures=[
            {**vars(figure), "uri": data_uri(verified_bytes(figure.path, listed=False), "image/svg+xml")}
            for figure in spec.figures
        ],
        downloads=[_download(table.path, link) for table in spec.page_tables.values()],
    )
    for path, page in pages.items():
        size = len(page.encode())
        (log.warning if path == spec.files["page"] and size > PAGE_BYTES else log.info)("%s: %d kB", path, size // 1000)
    return pages


def _facts(spec: ReportPage) -> PageFacts:
    return PageFacts(
        page=spec.files["page"],
        gallery=spec.files.get("gallery", ""),
        key=spec.key,
        level=spec.level,
        references=spec.references,
        directions=spec.directions,
        all_metrics=spec.all_metrics,
        scored_images=spec.scored_images,
        images=spec.images,
        rows=row_names(entry.dataset for entry in spec.datasets),
        independent=spec.independent,
        links=spec.links,
    )


def _download(path: str, link: Link) -> dict[str, Any]:
    size = Path(path).stat().st_size
    uri = data_uri(verified_bytes(path, listed=False), "text/csv;charset=utf-8") if size <= DOWNLOAD_BYTES else None
    return {"name": Path(path).name, "uri": uri, "href": link(path), "kilobytes": f"{size / 1000:.1f}"}


def _source(spec: ReportPage, case: Sequence[str], link: Link) -> dict[str, str]:
    """Return the address and the key of the manifest of the scores of a test case."""
    manifest = spec.results.scores_manifest.format(**dict(zip(CASE, case, strict=True)))
    return {"href": link(manifest), "key": (read_checksummed(manifest) or {}).get("key") or ""}


# ---- maps ------------------------------------------------------------------------------------------------------------


def maps_of_dataset(entry: PageDataset, spec: ReportPage, explainers: Sequence[MethodSpec]) -> dict[str, Any]:
    """Return the maps of the first images of a dataset, by the methods of explainers (`page_data.maps`)."""
    dataset = open_dataset(entry.dataset)
    pixels = dataset.images("evaluation", 0, spec.images)
    ids = dataset.splits["evaluation"].ids[: len(pixels)]
    labels = [label_of(dataset, number) for number in range(len(ids))]
    networks = [_maps_of_network(network, spec, explainers, ids) for network in entry.networks]
    return page_data.maps(entry.dataset.name, pixels, ids, labels, networks)


def _maps_of_network(
    network: PageNetwork, spec: ReportPage, explainers: Sequence[MethodSpec], ids: Sequence[str]
) -> page_data.NetworkMaps:
    where = network.where

    def scores(metric: str) -> Any:
        return image_scores(spec.results, {**where, "metric": metric}, ids)

    maps = (
        (method.name, read_maps(spec.results, where, explainer, method, ids))
        for explainer in explainers
        for method in explainer.methods
    )
    methods = [method.name for method in all_methods(explainers)]
    sorted_by = ((metric, scores(metric)) for metric in network.sort_metrics)
    return page_data.NetworkMaps(
        where=where,
        metrics=network.displayed_metrics,
        drops=_drops(spec.results, where, network.drops, ids),
        columns=page_data.cells_by_image(maps, [scores(metric) for metric in network.displayed_metrics], ids),
        sorts=page_data.sorts_by_image(sorted_by, spec.directions, methods, ids),
    )


def _drops(
    results: Folder, where: Mapping[str, str], settings: tuple[Grid, str, str], ids: Sequence[str]
) -> dict[str, Any]:
    grid, baseline, output = settings
    store = results.drops.format(**where, grid=grid, baseline=baseline) + ".zarr"
    outputs = read(store, "logit" if output == "logit" else "log_probability", 0, len(ids), ids).astype(np.float64)
    outputs = outputs if output == "logit" else np.exp(outputs)
    # A regression has no logits.
    output = output if task_provides(rows_of_store(store, 0).task, "probability") else "output"
    return page_data.patch_drops(outputs, grid, baseline, output)


# ---- curves ----------------------------------------------------------------------------------------------------------


def _curves(spec: ReportPage, explainers: Sequence[MethodSpec]) -> dict[str, Any]:
    """Return the mean response curve of every method of explainers, on every network, to every perturbation sequence.

    Returns
    -------
    dict
        ``shares`` (points), ``methods``, ``responses`` with title, metrics and whether a low curve is good, and
        ``panels``: dataset, model, weights, number of the response, and the curves (`page_data.curves_panel`).
    """
    responses = [curve for curve in spec.curves if curve.datasets]
    methods = [method.name for method in all_methods(explainers)]
    wheres = [network.where for entry in spec.datasets for network in entry.networks]
    shares = page_data.shares_of_curves(2 * len(wheres) * len(responses) * len(methods))
    panels = []
    for where in wheres:
        for number, response in enumerate(responses):
            if where["dataset"] in response.datasets:
                base = partial(spec.results.store("curves").format, **where, response=response.name)
                # Those of one explainer after another, so that only they are in memory.
                stored = (
                    (explainer, _stored(base(explainer=explainer.name), response)) for explainer in spec.explainers
                )
                panels.append({**where, "response": number, **page_data.curves_panel(stored, methods, shares)})
    return {
        "shares": page_data.rounded_lists(shares),
        "methods": methods,
        "responses": [
            {
                "title": page_data.title(response.settings),
                "low": page_data.low_is_good(response.settings),
                "metrics": response.metrics,
            }
            for response in responses
        ],
        "panels": panels,
        "images": " or ".join(dict.fromkeys(str(response.images) for response in responses)),
    }


def _stored(base: str, response: PageCurve) -> dict[str, np.ndarray] | None:
    """Return the quantities of stored curves (images, methods, points); None where the explainer is not applicable."""
    if any(read_shard(base, shard)["gap"] for shard in range(response.shards)):
        return None
    names = describe_store(base + ".zarr")["coordinates"]["quantity"]
    values = read(base + ".zarr", "response", 0, response.images)
    of = dict(zip(names, np.moveaxis(values, 2, 0), strict=True))
    outputs = {"probability": np.exp(of["log_probability_label"]), "logit": of["logit_label"]}
    return {**outputs, "changed": of["changed"] / of["pixels"]}


# ---- provenance ------------------------------------------------------------------------------------------------------


def _manifests(spec: ReportPage) -> Iterator[ManifestOnPage]:
    """Yield the manifests behind the page, from the tables back to the images; for a store, that of its first shard."""
    # Reference maps are listed once, although they are shared by all networks of a dataset.
    for kind, name, path, shards in dict.fromkeys(_paths_of_manifests(spec)):
        if shards:
            whose = f"{name} (first of {shards} shards)" if shards > 1 else name
            yield ManifestOnPage(kind, whose, f"{path}.0.json", read_shard(path, 0))
        else:
            yield ManifestOnPage(kind, name, path, require_manifest(path) if os.path.exists(path) else {})


def _paths_of_manifests(spec: ReportPage) -> Iterator[tuple[str, str, str, int]]:
    """Yield the kind, the name and the path of each manifest, and the number of its shards.

    A store has its path without ending and the number of its shards; other manifests have 0 shards.
    """
    for table in spec.page_tables.values():
        yield "table", Path(table.path).name, table.manifest, 0
    for entry in spec.datasets:
        name = entry.dataset.name
        for network in entry.networks:
            where = network.where
            of = " · ".join(map(str, where.values()))
            for metric in network.scored_metrics:
                scores = spec.results.scores_manifest.format(**where, metric=metric)
                yield "scores", f"{of} · {metric}", scores, 0
            for explainer in spec.explainers:
                whose = of if explainer.uses_model else name
                yield "maps", f"{whose} · {explainer.name}", maps_base(spec.results, where, explainer), spec.shards
                for response in (curve for curve in spec.curves if name in curve.datasets):
                    base = spec.results.store("curves").format(
                        **where, explainer=explainer.name, response=response.name
                    )
                    yield "curves", f"{of} · {explainer.name} · {response.name}", base, response.shards
            for grid, baseline in network.grids:
                base = spec.results.drops.format(**where, grid=grid, baseline=baseline)
                yield "patch drops", f"{of} · grid {grid}, {baseline}", base, spec.drop_shards
            yield "weights", of, spec.results.weights_manifest.format(**where), 0
        yield "dataset", name, entry.dataset.manifest, 0
