"""The jobs after the scores: tables, claims, rankings, comparisons, figures and pages. None of them runs a network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import heatproof.plan.jobs  # noqa: F401  (its stages come first, whoever is imported first)
from heatproof.attribution.catalogue import EXPLAINERS
from heatproof.metrics.single_deletion import base_name
from heatproof.plan import paths
from heatproof.plan.case import Case, Network
from heatproof.plan.comparisons import all_comparisons, compared_cases, factors, plain_cases
from heatproof.plan.graph import Made, Product, Wildcards, stage
from heatproof.plan.specs import Plan as Scoring
from heatproof.plan.specs import keyed
from heatproof.provenance import ROOT, digest, file_digest
from heatproof.responses.channels import Channels
from heatproof.responses.curves import Curves
from heatproof.responses.patches import Patches

MONTAGE_IMAGES = 4
# Scores under one map: the in-domain ones where there are any.
SCORES_SHOWN = 2
# Metrics whose scores are taken again on maps with a constant offset.
OFFSET_KINDS = ("rise_insertion", "rise_deletion", "mas_insertion", "mas_deletion")
TEMPLATES = ROOT / "report" / "templates"


def _made(
    spec: dict[str, Any], module: str | list[str], inputs: Iterable[str], files: list[str], manifest: str
) -> Made:
    """Return a job of one manifest, whose key is of its spec and the code of its modules."""
    modules = [module] if isinstance(module, str) else module
    whole = keyed({**spec, "manifest": manifest}, modules)
    product = Product(manifest, whole["key"], (*files, manifest), files[0])
    return whole, list(dict.fromkeys(inputs)), [product]


def _interval(plan: Scoring) -> dict[str, Any]:
    """Return how intervals are drawn."""
    scores = plan.config["scores"]
    return {"seed": plan.config["seed"], "bootstrap": scores["bootstrap"], "level": scores["level"]}


def _scored(plan: Scoring, cases: list[Case]) -> dict[str, Any]:
    """Return where the scores of some test cases are, and what they are."""
    specs = [plan.score_spec(case) for case in cases]
    return {
        "scores": paths.SCORES,
        "cases": plan.cases_by_name(cases),
        "directions": {spec["metric"]: spec["higher_is_better"] for spec in specs},
        "upstream": digest([spec["key"] for spec in specs]),
    }


@cache
def _templates() -> str:
    """Return a digest of the templates of pages, to which no import leads."""
    return digest({path.name: file_digest(path) for path in sorted(TEMPLATES.iterdir())})


def all_metrics(plan: Scoring) -> bool:
    """Tell whether the page shows every metric of the config, and the response curves behind them."""
    return bool(plan.config["report"]["all_metrics"] and plan.metrics)


def shown_images(plan: Scoring) -> int:
    """Return how many images are shown with their maps; 0 for none."""
    return min(plan.config["report"]["images"], plan.images)


def shown_methods(plan: Scoring) -> list[dict[str, Any]]:
    """Return every method with the place of its map in its explainer's store."""
    return [
        {
            "method": method,
            "explainer": entry.name,
            "index": list(entry.maps).index(name),
            "transform": transform,
            "reference": not entry.uses_model,
        }
        for entry in plan.explainers.values()
        for method, (name, transform) in entry.methods.items()
    ]


def _map_files(plan: Scoring, networks: Iterable[Network], images: int, explainers: Iterable[str]) -> list[str]:
    """Return the shards of maps of some networks; those that know no model belong to all of a dataset."""
    bases = dict.fromkeys(plan.maps_of(*network, name) for network in networks for name in explainers)
    return [file for base in bases for shard in plan.shards(images) for file in paths.map_files(base, shard)]


def _curve_files(plan: Scoring, networks: Iterable[Network], responses: Iterable[str]) -> list[str]:
    return [
        file
        for dataset, model, weights in networks
        for name in plan.explainers
        for response in responses
        for shard in plan.shards(plan.images)
        for file in paths.curve_files(
            paths.CURVES.format(dataset=dataset, model=model, weights=weights, explainer=name, response=response), shard
        )
    ]


# ---- tables ----------------------------------------------------------------------------------------------------------


@stage("heatproof.report.tables:tables")
@cache
def tables(plan: Scoring) -> Made:
    """Return the job of the tables over patch drops."""
    drops: list[dict[str, Any]] = []
    for dataset, model, weights in plan.networks():
        for metric, (grid, baseline, output) in plan.metrics_of(weights, model).items():
            # Accuracy is the same whatever the drops are of.
            if output == plan.config["drops"]["outputs"][0]:
                where = {"dataset": dataset, "model": model, "weights": weights, "grid": grid, "baseline": baseline}
                drops.append({**where, "metric": metric, "drops": paths.DROPS.format(**where)})
    spec = {
        **_interval(plan),
        "scores": plan.score_files(),
        "upstream": digest([plan.score_spec(case)["key"] for case in plan.test_cases()]),
        "drops": drops,
        # One network on one grid and baseline is one test case, not two.
        "ranked": sorted({str(item["metric"]) for item in drops}),
        "images": plan.drop_images,
        **paths.TABLES,
    }
    ranks = [
        paths.drop_file(item["drops"], "target_rank", shard)
        for item in drops
        for shard in plan.shards(plan.drop_images)
    ]
    return _made(
        spec, "heatproof.report.tables", [*plan.score_files(), *ranks], [*paths.TABLES.values()], paths.TABLES_MANIFEST
    )


@stage("heatproof.report.scores:all_scores")
@cache
def all_scores(plan: Scoring) -> Made:
    """Return the job of the table of all metrics."""
    cases = plan.all_cases()
    spec = {
        **_interval(plan),
        **_scored(plan, cases),
        "references": plan.reference_methods,
        "output": paths.SCORES_TABLE,
    }
    files = [paths.SCORES_TABLE]
    return _made(spec, "heatproof.report.scores", plan.score_files(cases), files, paths.SCORES_TABLE_MANIFEST)


# ---- claims and rankings ---------------------------------------------------------------------------------------------


def _claimed_methods(plan: Scoring) -> list[dict[str, Any]]:
    methods = []
    for name, entry in plan.methods.items():
        label, transform = entry.methods[name]
        index = list(entry.maps).index(label)
        known = EXPLAINERS.get(entry.kind)
        methods.append(
            {
                "name": name,
                "kind": entry.kind,
                "map": list(known.maps)[index] if known else label,
                "transform": transform,
                "uses_model": entry.uses_model,
                "explainer": entry.name,
                "index": index,
                "place": list(entry.methods).index(name),
            }
        )
    return methods


def _offsets(plan: Scoring) -> dict[str, Any]:
    """Return what the offsets are tried on: the first weights of every model."""
    metrics = {}
    dataset, model = plan.pairs()[0]
    for name, entry in plan.metrics.items():
        if entry.metric.name in OFFSET_KINDS:
            asked = plan.score_spec(plan.case(dataset, model, plan.weights[0], name))
            metrics[name] = {key: asked[key] for key in ("kind", "options", "responses")} | {"module": entry.module}
    return {
        "metrics": metrics,
        "networks": [[*pair, plan.weights[0]] for pair in plan.pairs()] if metrics else [],
        "responses": sorted({read["name"] for asked in metrics.values() for read in asked["responses"].values()}),
        "images": plan.images,
        "curves": paths.CURVES,
        "maps": paths.MAPS,
        "reference_maps": paths.REFERENCE_MAPS,
    }


@stage("heatproof.claims.card:claims")
@cache
def claims(plan: Scoring) -> Made:
    """Return the job of the claims card."""
    cases, offsets = plan.all_cases(), _offsets(plan)
    scores = _scored(plan, cases)
    asked = {case.metric: plan.score_spec(case) for case in reversed(cases)}
    spec = {
        **_interval(plan),
        "scores": scores["scores"],
        "cases": scores["cases"],
        "metrics": {
            name: {key: asked[name][key] for key in ("kind", "options", "higher_is_better")}
            for name in dict.fromkeys(case.metric for case in cases)
        },
        "kept": {name: entry for name, (entry, _) in plan.kept.items()},
        "methods": _claimed_methods(plan),
        "models": {
            name: {"architecture": model.architecture, "options": dict(model.options)}
            for name, model in plan.models.items()
        },
        "accuracy": paths.ACCURACY,
        "offsets": offsets,
        "upstream": [scores["upstream"], tables(plan)[0]["key"]],
        "output": paths.CLAIMS,
    }
    networks = [Network(*network) for network in offsets["networks"]]
    inputs = [
        *plan.score_files(cases),
        paths.ACCURACY,
        paths.TABLES_MANIFEST,
        *_map_files(plan, networks, plan.images, plan.explainers),
        *_curve_files(plan, networks, offsets["responses"]),
    ]
    modules = [
        "claims.card",
        *sorted({entry["module"].removeprefix("heatproof.") for entry in offsets["metrics"].values()}),
    ]
    return _made(spec, modules, inputs, [paths.CLAIMS], paths.CLAIMS_MANIFEST)


@stage("heatproof.report.believed:believed")
def believed(plan: Scoring) -> Made:
    """Return the job of the tables that say how reliable the ranking is."""
    cases = plan.all_cases()
    tested = sorted({case.metric for case in plan.test_cases()})
    spec = {
        **_interval(plan),
        **_scored(plan, cases),
        "references": plan.reference_methods,
        "tested": [name for name in tested if base_name(name) == "idsds"] or tested,
        # Their ranking of methods is the true one, where the dataset's parts can be removed.
        "truths": [name for name, entry in plan.metrics.items() if entry.metric.name == "part_deletion"],
        **paths.RELIABILITY_PNG,
        "outputs": paths.RELIABILITY,
    }
    files = [*paths.RELIABILITY.values(), *paths.RELIABILITY_PNG.values()]
    return _made(spec, "heatproof.report.believed", plan.score_files(cases), files, paths.RELIABILITY_MANIFEST)


@stage("heatproof.report.overview:overview")
def overview(plan: Scoring) -> Made:
    """Return the job of the pictures of all metrics."""
    kinds: dict[str, str] = {}
    for name, entry in plan.metrics.items():
        # The first of a kind, where one is scored with several options.
        kinds.setdefault(entry.metric.name, name)
    dual = {kind: kinds[kind] for kind in ("soundness", "completeness") if kind in kinds}
    spec = {
        "scores": paths.SCORES_TABLE,
        "kinds": dual if len(dual) == 2 else {},
        "upstream": all_scores(plan)[0]["key"],
        **paths.OVERVIEW,
    }
    inputs = [paths.SCORES_TABLE, paths.SCORES_TABLE_MANIFEST]
    return _made(spec, "heatproof.report.overview", inputs, [*paths.OVERVIEW.values()], paths.OVERVIEW_MANIFEST)


# ---- comparisons -----------------------------------------------------------------------------------------------------


@stage("heatproof.report.similarity:similarity")
def similarity(plan: Scoring) -> Made:
    """Return the job that compares networks before and after finetuning."""
    (grid, baseline), images = plan.combinations[0], plan.similarity_images
    # The intact image is the first variant whatever the grid.
    drops = paths.at(paths.DROPS, grid=str(grid), baseline=baseline)
    networks = list(plan.networks())
    upstream = [
        [
            plan.response_spec(net, Patches({"grid": grid, "baseline": baseline}), 0)["key"],
            plan.response_spec(net, Channels(), 0)["key"],
            *[entry["key"] for entry in plan.attribute_spec(*net, plan.model_explainers, 0)["explainers"]],
        ]
        for net in networks
    ]
    spec = {
        **_interval(plan),
        "datasets": [
            {"dataset": plan.dataset_spec(name), "models": dict.fromkeys(plan.models_of(name), plan.weights)}
            for name in plan.datasets
        ],
        "explainers": [{"name": name, "maps": list(plan.explainers[name].maps)} for name in plan.model_explainers],
        "drops": drops,
        "maps": paths.MAPS,
        "channels": paths.CHANNELS,
        "images": images,
        "shards": len(plan.shards(images)),
        "upstream": digest(upstream),
        **paths.SIMILARITY,
    }
    inputs = [paths.DATASET.format(dataset=dataset) for dataset in plan.datasets]
    for dataset, model, weights in networks:
        where = {"dataset": dataset, "model": model, "weights": weights}
        for shard in plan.shards(images):
            inputs += paths.drop_files(drops.format(**where), shard)
            inputs += paths.channel_files(paths.CHANNELS.format(**where), shard)
    inputs += _map_files(plan, networks, images, plan.model_explainers)
    return _made(spec, "heatproof.report.similarity", inputs, [*paths.SIMILARITY.values()], paths.SIMILARITY_MANIFEST)


def chart_files(plan: Scoring) -> list[str]:
    """Return the charts of the protocol checks: for every factor a PNG and an SVG."""
    return [paths.CHECKS_FIGURE.format(factor=f, ending=ending) for f in factors(plan) for ending in ("png", "svg")]


@stage("heatproof.report.checks:checks")
@cache
def checks(plan: Scoring) -> Made:
    """Return the job of the protocol checks."""
    cases = compared_cases(plan)
    spec = {
        **_interval(plan),
        **_scored(plan, cases),
        "comparisons": all_comparisons(plan),
        # Raw to absolute: the same name for a map without a sign.
        "transforms": {
            method: f"{method}_abs" if f"{method}_abs" in entry.methods else method
            for entry in plan.explainers.values()
            for method, (_, transform) in entry.methods.items()
            if transform == "raw"
        },
        "templates": _templates(),
        **paths.CHECKS,
        "figure": paths.CHECKS_FIGURE,
    }
    files = [*paths.CHECKS.values(), *chart_files(plan)]
    return _made(spec, "heatproof.report.checks", plan.score_files(cases), files, paths.CHECKS_MANIFEST)


def _if_shown(plan: Scoring) -> Iterator[Wildcards]:
    yield from [{}] if shown_images(plan) else ()


@stage("heatproof.report.montage:montage", _if_shown)
def montage(plan: Scoring) -> Made:
    """Return the job of the montages of maps."""
    networks, images = plain_cases(plan), min(shown_images(plan), MONTAGE_IMAGES)
    spec = {
        "images": images,
        "datasets": {dataset: plan.dataset_spec(dataset) for dataset in plan.datasets},
        "networks": [[*case.network, case.metric] for case in networks],
        "methods": shown_methods(plan),
        "maps": paths.MAPS,
        "reference_maps": paths.REFERENCE_MAPS,
        "scores": paths.SCORES,
        "upstream": digest([plan.score_spec(network)["key"] for network in networks]),
        "output": paths.MONTAGE,
    }
    maps = _map_files(plan, [case.network for case in networks], images, plan.explainers)
    inputs = [*maps, *plan.score_files(networks)]
    return _made(spec, "heatproof.report.montage", inputs, montage_files(plan), paths.MONTAGE_MANIFEST)


def montage_files(plan: Scoring) -> list[str]:
    """Return the montages: one a network."""
    return [paths.MONTAGE.format(dataset=dataset, model=model) for dataset, model in plan.pairs()]


# ---- figures and pages -----------------------------------------------------------------------------------------------


@stage("heatproof.report.plots:plot")
def plot(plan: Scoring) -> Made:
    """Return the job of the figure of the scores."""
    spec = {
        "idsds_table": paths.IDSDS_TABLE,
        "upstream": tables(plan)[0]["key"],
        "references": plan.reference_methods,
        "level": plan.config["scores"]["level"],
        "plain": "grid {grid}, {baseline}".format_map(plan.config["finetuning"]),
        **paths.PLOT,
    }
    return _made(spec, "heatproof.report.plots", [paths.IDSDS_TABLE], [*paths.PLOT.values()], paths.PLOT_MANIFEST)


@stage("heatproof.report.pages:pages")
def pages(plan: Scoring) -> Made:
    """Return the job of the pages of the tables."""
    spec = {
        "templates": _templates(),
        "tables": {name: {"table": paths.TABLES[name], "page": page} for name, page in paths.TABLE_PAGES.items()},
        "upstream": tables(plan)[0]["key"],
        "references": plan.reference_methods,
        "level": plan.config["scores"]["level"],
    }
    inputs = list(paths.TABLES.values())
    return _made(spec, "heatproof.report.pages", inputs, [*paths.TABLE_PAGES.values()], paths.PAGES_MANIFEST)


@stage("heatproof.report.gallery:gallery", _if_shown)
def gallery(plan: Scoring) -> Made:
    """Return the job of the page of maps."""
    datasets = [
        {
            "dataset": plan.dataset_spec(dataset),
            "networks": [
                [model, weights, list(plan.metrics_of(weights, model))]
                for model in plan.models_of(dataset)
                for weights in plan.weights
            ],
        }
        for dataset in plan.datasets
    ]
    spec = {
        "images": shown_images(plan),
        "datasets": datasets,
        "methods": shown_methods(plan),
        "maps": paths.MAPS,
        "reference_maps": paths.REFERENCE_MAPS,
        "scores": paths.SCORES,
        "upstream": digest([plan.score_spec(case)["key"] for case in plan.test_cases()]),
        "templates": _templates(),
        "output": paths.GALLERY,
    }
    inputs = [
        *(paths.DATASET.format(dataset=dataset) for dataset in plan.datasets),
        *_map_files(plan, plan.networks(), shown_images(plan), plan.explainers),
        *plan.score_files(),
    ]
    return _made(spec, "heatproof.report.gallery", inputs, [paths.GALLERY], paths.GALLERY_MANIFEST)


@stage("heatproof.report.index:report_page")
def report_page(plan: Scoring) -> Made:
    """Return the job of the index page."""
    cases = plan.all_cases() if all_metrics(plan) else plan.test_cases()
    specs, shown = {case: plan.score_spec(case) for case in cases}, _page_tables(plan)
    places = {method: place for e in plan.explainers.values() for place, method in enumerate(e.methods)}
    curves = _page_curves(plan)
    spec = {
        "tables": {name: path for name, (path, _, _) in shown.items()},
        "manifests": {name: manifest for name, (_, manifest, _) in shown.items()},
        "directions": {case.metric: asked["higher_is_better"] for case, asked in specs.items()},
        "references": plan.reference_methods,
        "level": plan.config["scores"]["level"],
        "seed": plan.config["seed"],
        "evaluated": plan.images,
        "images": shown_images(plan),
        "shards": len(plan.shards(plan.images)),
        "drop_shards": len(plan.shards(plan.drop_images)),
        "datasets": [
            {
                "dataset": plan.dataset_spec(dataset),
                "networks": [
                    _page_network(plan, Network(dataset, model, weights), cases)
                    for model in plan.models_of(dataset)
                    for weights in plan.weights
                ],
            }
            for dataset in plan.datasets
        ],
        "methods": [{**method, "place": places[method["method"]]} for method in shown_methods(plan)],
        "maps": paths.MAPS,
        "reference_maps": paths.REFERENCE_MAPS,
        "scores": paths.SCORES,
        "drops": paths.DROPS,
        "patterns": {"scores": paths.SCORES_MANIFEST, "weights": paths.WEIGHTS_MANIFEST},
        "curves": curves,
        "codes": {
            **{name: made["code"] for name, (_, _, made) in shown.items()},
            "scores": {case.metric: asked["code"] for case, asked in specs.items()},
        },
        "links": _page_links(plan),
        "upstream": digest([made["key"] for made in [*(of for _, _, of in shown.values()), *specs.values()]]),
        "templates": _templates(),
        "output": paths.PAGE,
    }
    return _made(spec, "heatproof.report.index", _page_inputs(plan, cases), [paths.PAGE], paths.PAGE_MANIFEST)


def _page_tables(plan: Scoring) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Return the tables that the page shows, each with its manifest and the spec that makes it.

    The claims are among them where all metrics are, because most of them need more than patch drops.
    """
    made = tables(plan)[0]
    shown = {name: (path, paths.TABLES_MANIFEST, made) for name, path in paths.TABLES.items()}
    if all_metrics(plan):
        shown["scores"] = (paths.SCORES_TABLE, paths.SCORES_TABLE_MANIFEST, all_scores(plan)[0])
        shown["claims"] = (paths.CLAIMS, paths.CLAIMS_MANIFEST, claims(plan)[0])
        compared = checks(plan)[0]
        shown |= {name: (paths.CHECKS[name], paths.CHECKS_MANIFEST, compared) for name in ("summary", "captions")}
    return shown


def _page_links(plan: Scoring) -> dict[str, str]:
    """Return other pages and figures, by what they show."""
    links = {
        "figure": paths.PLOT["svg"],
        "scores": paths.TABLE_PAGES["idsds_table"],
        "ranking": paths.TABLE_PAGES["meta_rank"],
        "accuracy": paths.TABLE_PAGES["accuracy"],
    }
    if shown_images(plan):
        links["maps"] = paths.GALLERY
    if all_metrics(plan):
        links |= {
            "checks": paths.CHECKS["page"],
            "places": paths.OVERVIEW["places_png"],
            "similarity": paths.SIMILARITY["figure"],
            "consistency": paths.RELIABILITY_PNG["consistency_png"],
        }
    return links


def _page_network(plan: Scoring, network: Network, cases: list[Case]) -> dict[str, Any]:
    _, model, weights = network
    metrics = plan.metrics_of(weights, model)
    shown = [metric for metric in metrics if base_name(metric) == "idsds"] or list(metrics)
    return {
        "model": model,
        "weights": weights,
        "shown": shown[:SCORES_SHOWN],
        # Of the scores that are shown.
        "drops": list(metrics[shown[0]]),
        "grids": [list(pair) for pair in plan.combinations],
        "scored": [case.metric for case in cases if case.network == network],
        "weights_code": plan.weights_spec(*network)["code"],
    }


def _page_curves(plan: Scoring) -> dict[str, Any] | None:
    """Return the response curves that are shown; None for none. Pictures and explanations are no curves."""
    if not all_metrics(plan):
        return None
    read_by: dict[str, list[str]] = {}
    for metric, entry in plan.metrics.items():
        for response in entry.responses.values():
            read_by.setdefault(plan.serving[response][0].name, []).append(metric)
    responses = [
        {"name": name, "settings": dict(response.settings), "metrics": read_by[name]}
        for name, response in plan.method_responses.items()
        if isinstance(response, Curves)
    ]
    return {"store": paths.CURVES, "responses": responses, "images": plan.images} if responses else None


def _page_inputs(plan: Scoring, cases: list[Case]) -> list[str]:
    files = [file for path, manifest, _ in _page_tables(plan).values() for file in (path, manifest)]
    files += [paths.DATASET.format(dataset=dataset) for dataset in plan.datasets]
    networks, curves, images = list(plan.networks()), _page_curves(plan), max(shown_images(plan), 1)
    for dataset, model, weights in networks:
        where = {"dataset": dataset, "model": model, "weights": weights}
        files.append(paths.WEIGHTS_MANIFEST.format(**where))
        for grid, baseline in plan.combinations:
            base = paths.DROPS.format(**where, grid=grid, baseline=baseline)
            files += [file for shard in plan.shards(images) for file in paths.drop_files(base, shard)]
    files += _map_files(plan, networks, images, plan.explainers)
    if curves:
        files += _curve_files(plan, networks, [response["name"] for response in curves["responses"]])
    for case in cases:
        files += [paths.SCORES.format(**case.where), paths.SCORES_MANIFEST.format(**case.where)]
    return files


def targets(plan: Scoring) -> list[str]:
    """Return what the rule `all` asks for: tables, figures and pages."""
    files = [*paths.TABLES.values(), *paths.PLOT.values(), *paths.TABLE_PAGES.values(), paths.PAGE]
    if all_metrics(plan):
        files += [*paths.RELIABILITY.values(), *paths.RELIABILITY_PNG.values(), *paths.OVERVIEW.values()]
        files += [*paths.SIMILARITY.values(), *paths.CHECKS.values(), *chart_files(plan)]
        files += montage_files(plan) if shown_images(plan) else []
    return [*files, paths.GALLERY] if shown_images(plan) else files
