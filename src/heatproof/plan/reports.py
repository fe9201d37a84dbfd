"""The jobs after the scores: tables, claims, rankings, comparisons, figures and pages. None of them runs a network."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import cache, wraps
from itertools import chain, product
from typing import TYPE_CHECKING, Any, cast

import heatproof.plan.jobs  # noqa: F401  (its stages come first, whoever is imported first)
from heatproof.attribution.registry import EXPLAINERS
from heatproof.figures import FIGURES
from heatproof.metrics.single_deletion import base_name
from heatproof.plan import paths
from heatproof.plan.comparisons import all_comparisons, compared_cases, factors, plain_cases
from heatproof.plan.graph import Level, Product, once_if, one_each, stage
from heatproof.plan.paths import Case, Network
from heatproof.plan.plan import Plan, keyed
from heatproof.provenance import ROOT, Key, digest, file_digest
from heatproof.responses.curves import Curves
from heatproof.responses.features import Features
from heatproof.responses.network import Channels

if TYPE_CHECKING:
    from heatproof.specs.jobs import Where
    from heatproof.specs.reports import (
        ClaimedMethod,
        Directed,
        PageCurve,
        PageNetwork,
        Ranked,
        ReportSpec,
        ScoresOf,
        ShownMethod,
    )

MONTAGE_IMAGES = 4
# Scores under one map: the in-domain ones where there are any.
SCORES_SHOWN = 2
TEMPLATES = ROOT / "report" / "templates"
# Source data of claims: not code, so that a job's digest of code does not know them.
PUBLISHED = ROOT / "claims" / "published"
# A job as its builder tells it: spec, inputs, files, and perhaps modules whose code counts beside that of the stage.
Told = tuple[Any, ...]
MadeReport = tuple["ReportSpec", list[str], list[Product]]


def _report(run: str, manifest: str, every: Level = lambda plan: [{}]) -> Callable[..., Callable[..., MadeReport]]:
    """Enter a stage whose files stand under one manifest; all are told how intervals are drawn."""

    def enter(tell: Callable[..., Told]) -> Callable[..., MadeReport]:
        @stage(run, every)
        @cache
        @wraps(tell)
        def make(plan: Plan, **where: str) -> MadeReport:
            told, inputs, files, *more = tell(plan, **where)
            mine, scores = manifest.format(**where), plan.config["scores"]
            drawn = {"seed": plan.config["seed"], "bootstrap": scores["bootstrap"], "level": scores["level"]}
            spec = {**drawn, "references": plan.reference_methods, **told, "manifest": mine}
            spec = keyed(spec, [run.partition(":")[0], *chain(*more)])
            return spec, list(dict.fromkeys(inputs)), [Product(mine, spec["key"], (*files, mine), files[0])]

        return make

    return enter


def _keys(plan: Plan, cases: list[Case]) -> Key:
    """Return one key for some test cases' scores."""
    return Key.joined(plan.score_spec(case)["key"] for case in cases)


def _directions(plan: Plan, cases: list[Case]) -> dict[str, bool]:
    """Return of some test cases' metrics whether higher is better."""
    return {case.metric: plan.score_spec(case)["higher_is_better"] for case in cases}


def _scored(plan: Plan, cases: list[Case]) -> Directed:
    """Return where the scores of some test cases are, and what they are."""
    named: ScoresOf = {"scores": paths.SCORES, "cases": plan.cases_by_name(cases)}
    return {**named, "directions": _directions(plan, cases), "upstream": _keys(plan, cases)}


@cache
def _templates() -> str:
    """Return a digest of the templates of pages, to which no import leads."""
    return digest({path.name: file_digest(path) for path in sorted(TEMPLATES.iterdir())})


def all_metrics(plan: Plan) -> bool:
    """Tell whether the page shows every metric of the config, and the response curves behind them."""
    return bool(plan.config["report"]["all_metrics"] and plan.metrics)


def shown_images(plan: Plan) -> int:
    """Return how many images are shown with their maps; 0 for none."""
    return min(plan.config["report"]["images"], plan.images)


def shown_methods(plan: Plan) -> list[ShownMethod]:
    """Return every method with the place of its map in its explainer's store, and of its own among the explainer's."""
    return [
        {**row, "explainer": entry.name, "place": place, "reference": not entry.uses_model}
        for entry in plan.explainers.values()
        for place, row in enumerate(entry.rows)
    ]


def _map_files(plan: Plan, networks: Iterable[Network], images: int, explainers: Iterable[str]) -> list[str]:
    """Return the shards of maps of some networks; those that know no model belong to all of a dataset."""
    bases = dict.fromkeys(plan.maps_of(*network, name) for network in networks for name in explainers)
    return [file for base in bases for shard in plan.shards(images) for file in paths.map_files(base, shard)]


def _dataset_files(plan: Plan) -> list[str]:
    return [paths.DATASET.format(dataset=dataset) for dataset in plan.datasets]


# ---- tables ----------------------------------------------------------------------------------------------------------


@_report("heatproof.report.tables:tables", paths.TABLES_MANIFEST)
def tables(plan: Plan) -> Told:
    """Return the job of the tables over patch drops."""
    drops = [
        {**network._asdict(), "grid": grid, "baseline": baseline, "metric": metric}
        for network in plan.networks()
        for metric, (grid, baseline, output) in plan.metrics_of(network.weights, network.model).items()
        # Accuracy is the same whatever the drops are of.
        if output == plan.config["drops"]["outputs"][0]
    ]
    drops = [{**item, "drops": paths.DROPS.format(**item)} for item in drops]
    spec = {
        "scores": plan.score_files(),
        "upstream": _keys(plan, plan.test_cases()),
        "drops": drops,
        # One network on one grid and baseline is one test case, not two.
        "ranked": sorted({item["metric"] for item in drops}),
        **_ranked(plan),
        "explainer_of": {shown["method"]: shown["explainer"] for shown in shown_methods(plan)},
        "deletions": {
            metric: list(deletion)
            for network in plan.networks()
            for metric, deletion in plan.metrics_of(network.weights, network.model).items()
        },
        "ablating": [
            shown["method"]
            for shown in shown_methods(plan)
            if (known := EXPLAINERS.get(plan.explainers[shown["explainer"]].kind)) and known.ablates
        ],
        "images": plan.drop_images,
        "target": plan.config["target"],
    }
    shards, arrays = plan.shards(plan.drop_images), ("target_rank", "predicted")
    ranks = [paths.drop_file(item["drops"], name, shard) for item in drops for shard in shards for name in arrays]
    # What a lower precision did to scores stands beside them.
    beside = [paths.GUARDS["output"]] if plan.guarded else []
    return spec, [*plan.score_files(), *ranks, *beside], [*paths.TABLES.values()]


@_report("heatproof.report.tables:all_scores", paths.SCORES_TABLE_MANIFEST)
def all_scores(plan: Plan) -> Told:
    """Return the job of the table of all metrics."""
    cases = plan.all_cases()
    return {**_scored(plan, cases), **_ranked(plan)}, plan.score_files(cases), [paths.SCORES_TABLE]


def _ranked(plan: Plan) -> Ranked:
    """Return what decides which scores are ranked: the least coverage, and of which kind each metric and model is."""
    kinds = {name: entry.metric.name for name, entry in plan.metrics.items()}
    models = plan.kinds if plan.config["training_seeds"] > 1 else {}
    return {"kinds": kinds, "model_kinds": models, "least_coverage": plan.config["scores"]["least_coverage"]}


@cache
def several_baselines(plan: Plan) -> list[Case]:
    """Return one in-domain test case a network and baseline, where there are several baselines."""
    cases = [case for case in plan.test_cases() if base_name(case.metric) == "idsds" and case.grid == plan.reference[0]]
    cases = [case for case in cases if case.network.weights not in plan.kept]
    first = {(case.network[:2], case.baseline): case for case in reversed(cases) if case.output == cases[0].output}
    found = [case for case in cases if first.get((case.network[:2], case.baseline)) is case]
    return found if len({case.baseline for case in found}) > 1 else []


@_report("heatproof.report.baselines:compare_baselines", paths.BASELINES_MANIFEST, once_if(several_baselines))
def baselines(plan: Plan) -> Told:
    """Return the job of the tables that compare baselines."""
    cases = several_baselines(plan)
    files = plan.score_files(cases)
    methods = []
    for row in shown_methods(plan):
        known = EXPLAINERS.get(plan.explainers[row["explainer"]].kind)
        told = {key: row[key] for key in ("method", "transform", "reference")}
        methods.append({**told, "family": known.family if known else ""})
    each = [{**case.where, "baseline": case.baseline, "scores": file} for case, file in zip(cases, files, strict=True)]
    spec = {"cases": each, "methods": methods, "upstream": _keys(plan, cases)}
    return spec, files, [*paths.BASELINES.values()]


# ---- claims and rankings ---------------------------------------------------------------------------------------------


def _claimed_methods(plan: Plan) -> list[ClaimedMethod]:
    """Return every method with the map that it is by the name of heatproof's explainer, where it is one of its own."""
    methods = []
    for shown in shown_methods(plan):
        entry = plan.explainers[shown["explainer"]]
        known, own = EXPLAINERS.get(entry.kind), list(entry.maps)
        place = {key: shown[key] for key in ("explainer", "index", "place", "transform")}
        named = {"name": shown["method"], "kind": entry.kind, "uses_model": not shown["reference"]}
        method = {**place, **named, "map": (list(known.maps) if known else own)[shown["index"]]}
        methods.append(cast("ClaimedMethod", method))
    return methods


@_report("heatproof.claims.card:claims", paths.CLAIMS_MANIFEST)
def claims(plan: Plan) -> Told:
    """Return the job of the claims card."""
    cases = plan.all_cases()
    spec = {
        "scores": paths.SCORES,
        "cases": plan.cases_by_name(cases),
        "metrics": {
            name: {
                **{key: plan.score_spec(case)[key] for key in ("kind", "options", "higher_is_better")},
                **{key: getattr(case, key) for key in ("grid", "baseline", "output")},
            }
            for name, case in {case.metric: case for case in reversed(cases)}.items()
        },
        "pixels": {
            dataset: {model: min(plan.size_of(dataset, model) or (0,)) or None for model in plan.models_of(dataset)}
            for dataset in plan.datasets
        },
        "explains": plan.config["attribution"]["output"],
        "kept": {name: entry for name, (entry, _) in plan.kept.items()},
        "methods": _claimed_methods(plan),
        "models": {name: {**asdict(model.design), "kind": model.kind} for name, model in plan.models.items()},
        "accuracy": paths.ACCURACY,
        "published": {path.name: file_digest(path) for path in sorted(PUBLISHED.glob("*.csv"))},
        "upstream": [_keys(plan, cases), tables(plan)[0]["key"]],
        "output": paths.CLAIMS,
        "orders": paths.PUBLISHED,
    }
    inputs = [*plan.score_files(cases), paths.ACCURACY, paths.TABLES_MANIFEST]
    return spec, inputs, [paths.CLAIMS, *paths.PUBLISHED.values()]


@_report("heatproof.report.reliability:reliability", paths.RELIABILITY_MANIFEST)
def reliability(plan: Plan) -> Told:
    """Return the job of the tables that say how reliable the ranking is."""
    cases = plan.all_cases()
    tested = sorted({case.metric for case in plan.test_cases()})
    spec = {
        **_scored(plan, cases),
        **_ranked(plan),
        "tested": [name for name in tested if base_name(name) == "idsds"] or tested,
        # Their ranking of methods is the true one, where the dataset's parts can be removed.
        "truths": [name for name, entry in plan.metrics.items() if entry.metric.name == "part_deletion"],
    }
    return spec, plan.score_files(cases), [*paths.RELIABILITY.values(), *paths.RELIABILITY_PNG.values()]


@_report("heatproof.report.overview:overview", paths.OVERVIEW_MANIFEST)
def overview(plan: Plan) -> Told:
    """Return the job of the pictures of all metrics."""
    # The first of a kind, where one is scored with several options.
    kinds = {entry.metric.name: name for name, entry in reversed(plan.metrics.items())}
    dual = {kind: kinds[kind] for kind in ("soundness", "completeness") if kind in kinds}
    spec = {"kinds": dual if len(dual) == 2 else {}, "upstream": all_scores(plan)[0]["key"]}
    return spec, [paths.SCORES_TABLE, paths.SCORES_TABLE_MANIFEST], [*paths.OVERVIEW.values()]


# ---- comparisons -----------------------------------------------------------------------------------------------------


@_report("heatproof.report.similarity:similarity", paths.SIMILARITY_MANIFEST)
def similarity(plan: Plan) -> Told:
    """Return the job that compares networks before and after finetuning."""
    networks, images = list(plan.networks()), plan.similarity_images
    # The intact image is the first variant whatever the grid.
    drops = {"/".join(network): plan.store_of(network, plan.intact(network)) for network in networks}
    inputs, upstream = _dataset_files(plan), []
    for network in networks:
        upstream += [
            plan.response_spec(network, plan.intact(network), 0)["key"],
            plan.response_spec(network, Channels(), 0)["key"],
            *(entry["key"] for entry in plan.attribute_spec(*network, plan.model_explainers, 0)["explainers"]),
        ]
        for shard in plan.shards(images):
            inputs += paths.drop_files(drops["/".join(network)], shard)
            inputs += paths.channel_files(paths.CHANNELS.format(**network._asdict()), shard)
    spec = {
        "datasets": [
            {"dataset": plan.dataset_spec(name), "models": dict.fromkeys(plan.models_of(name), plan.weights)}
            for name in plan.datasets
        ],
        "explainers": [{"name": name, "maps": list(plan.explainers[name].maps)} for name in plan.model_explainers],
        "drops": drops,
        "images": images,
        "shards": len(plan.shards(images)),
        "upstream": Key.joined(upstream),
    }
    inputs += _map_files(plan, networks, images, plan.model_explainers)
    return spec, inputs, [*paths.SIMILARITY.values()]


@_report("heatproof.report.in_domain:in_domain", paths.IN_DOMAIN_MANIFEST)
def in_domain(plan: Plan) -> Told:
    """Return the job of the table that tells whether deleted patches are in domain."""
    scored, inputs, upstream = [], [], []
    shards = plan.shards(plan.drop_images)
    for network in plan.networks():
        metrics = plan.metrics_of(network.weights, network.model)
        tuned = [drops[:2] for metric, drops in metrics.items() if base_name(metric) == "idsds"]
        for grid, baseline in plan.combinations_on(network.weights, network.model):
            where = {**network._asdict(), "grid": grid, "baseline": baseline}
            store = paths.FEATURES.format(**where)
            scored.append({**where, "in_domain": (grid, baseline) in tuned, "features": store})
            upstream.append(plan.response_spec(network, Features({"grid": grid, "baseline": baseline}), 0)["key"])
            inputs += [file for shard in shards for file in paths.feature_files(store, shard)]
    # Manifests tell when and how fast a shard was made: the table is of what was made.
    data = [file for file in inputs if not file.endswith(".json")]
    spec = {"scored": scored, "images": plan.drop_images, "data": data, "upstream": Key.joined(upstream)}
    return spec, inputs, [paths.IN_DOMAIN]


@_report("heatproof.report.costs:costs", paths.COSTS_MANIFEST)
def costs(plan: Plan) -> Told:
    """Return the job of the table that sets the cost of each method beside its score."""
    files, keys = plan.score_files(), _keys(plan, plan.test_cases())
    spec = {"scores": files, "table": paths.IDSDS_TABLE, "methods": _claimed_methods(plan), "upstream": keys}
    return spec, [paths.IDSDS_TABLE, *files], [paths.COSTS]


def chart_files(plan: Plan) -> list[str]:
    """Return the charts of the protocol checks: for every factor a PNG and an SVG."""
    return [paths.CHECKS_FIGURE.format(factor=f, ending=ending) for f in factors(plan) for ending in ("png", "svg")]


@_report("heatproof.report.protocol:checks", paths.CHECKS_MANIFEST)
def checks(plan: Plan) -> Told:
    """Return the job of the protocol checks."""
    cases = compared_cases(plan)
    spec = {
        **_scored(plan, cases),
        "comparisons": all_comparisons(plan),
        "images": {case.metric: plan.images_of(case.metric) for case in cases},
        "least_coverage": plan.config["scores"]["least_coverage"],
        # Raw to absolute: the same name for a map without a sign.
        "transforms": {
            method: f"{method}_abs" if f"{method}_abs" in plan.methods else method
            for method, entry in plan.methods.items()
            if entry.methods[method][1] == "raw"
        },
        "templates": _templates(),
    }
    return spec, plan.score_files(cases), [*paths.CHECKS.values(), *chart_files(plan)]


@_report("heatproof.report.montage:montage", paths.MONTAGE_MANIFEST, once_if(shown_images))
def montage(plan: Plan) -> Told:
    """Return the job of the montages of maps."""
    cases, images = plain_cases(plan), min(shown_images(plan), MONTAGE_IMAGES)
    spec = {
        "images": images,
        "datasets": {dataset: plan.dataset_spec(dataset) for dataset in plan.datasets},
        "cases": [case.where for case in cases],
        "methods": shown_methods(plan),
        "upstream": _keys(plan, cases),
    }
    maps = _map_files(plan, [case.network for case in cases], images, plan.explainers)
    return spec, [*maps, *plan.score_files(cases)], montage_files(plan)


def montage_files(plan: Plan) -> list[str]:
    """Return the montages: one a network."""
    return [paths.MONTAGE.format(dataset=dataset, model=model) for dataset, model in plan.pairs()]


# ---- figures and pages -----------------------------------------------------------------------------------------------


def _figures(plan: Plan) -> list[str]:
    """Return the figures of the tables that the page shows."""
    there = _page_tables(plan).keys()
    return [name for name, entry in sorted(FIGURES.items()) if {entry.reads, *entry.beside} <= there]


@_report("heatproof.report.results:draw_figure", paths.FIGURE_MANIFEST, one_each("figure", _figures))
def figure(plan: Plan, figure: str) -> Told:
    """Return the job of a figure of one table."""
    entry, tables = FIGURES[figure], _page_tables(plan)
    read = {name: tables[name] for name in (entry.reads, *entry.beside)}
    told = {name: {"table": path, "upstream": of["key"]} for name, (path, of) in read.items()}
    spec: dict[str, Any] = {
        "figure": figure,
        "module": entry.draw.__module__,
        "plain": "grid {grid}, {baseline}".format_map(plan.config["finetuning"]),
        **told.pop(entry.reads),
        **({"beside": told} if told else {}),
    }
    inputs = [file for path, of in read.values() for file in (path, of["manifest"])]
    return spec, inputs, [*paths.filled(paths.FIGURE_FILES, figure=figure).values()], [entry.draw.__module__]


def figure_files(plan: Plan, page: bool = False) -> list[str]:
    """Return the figures of tables, or those of them that stand on the index page."""
    chosen = [name for name in _figures(plan) if FIGURES[name].page or not page]
    return [path.format(figure=name) for name in chosen for path in paths.FIGURE_FILES.values()]


@_report("heatproof.report.page:report_page", paths.PAGE_MANIFEST)
def report_page(plan: Plan) -> Told:
    """Return the job of the index page and the page of maps."""
    cases = plan.all_cases() if all_metrics(plan) else plan.test_cases()
    # Measured seconds differ from run to run, and a page is to be the same again.
    shown = {name: made for name, made in _page_tables(plan).items() if name not in ("costs", *paths.PUBLISHED)}
    networks, curves, images = list(plan.networks()), _page_curves(plan), shown_images(plan)
    spec = {
        "tables": {name: {"path": path, "manifest": of["manifest"]} for name, (path, of) in shown.items()},
        "all_metrics": all_metrics(plan),
        "directions": _directions(plan, cases),
        # Metrics of other responses say in their tables how many they are over.
        "evaluated": plan.images_of_kinds["drops"],
        "images": images,
        "shards": len(plan.shards(plan.images)),
        "drop_shards": len(plan.shards(plan.drop_images)),
        "datasets": [
            {
                "dataset": plan.dataset_spec(dataset),
                "networks": [_page_network(plan, net, cases) for net in networks if net.dataset == dataset],
            }
            for dataset in plan.datasets
        ],
        "methods": shown_methods(plan),
        "curves": curves,
        "upstream": Key.joined(of["key"] for of in [*(of for _, of in shown.values()), *map(plan.score_spec, cases)]),
        "figures": [
            {"name": name, "path": paths.FIGURE_FILES["svg"].format(figure=name), "caption": FIGURES[name].caption}
            for name in _figures(plan)
            if FIGURES[name].page
        ],
        "templates": _templates(),
    }
    inputs = figure_files(plan, page=True)
    inputs += [file for path, of in shown.values() for file in (path, of["manifest"])] + _dataset_files(plan)
    for network in networks:
        inputs.append(paths.WEIGHTS_MANIFEST.format(**network._asdict()))
        for grid, baseline in plan.combinations_on(network.weights, network.model):
            base = paths.DROPS.format(**network._asdict(), grid=grid, baseline=baseline)
            inputs += [file for shard in plan.shards(max(images, 1)) for file in paths.drop_files(base, shard)]
    inputs += _map_files(plan, networks, max(images, 1), plan.explainers)
    for network, explainer, curve in product(networks, plan.explainers, curves):
        base = paths.CURVES.format(**network._asdict(), explainer=explainer, response=curve["name"])
        inputs += [file for shard in range(curve["shards"]) for file in paths.curve_files(base, shard)]
    for case in cases:
        inputs += [paths.SCORES.format(**case.where), paths.SCORES_MANIFEST.format(**case.where)]
    return spec, inputs, page_files(plan)


def page_files(plan: Plan) -> list[str]:
    """Return the index page, and the page of maps where images are shown."""
    return [paths.PAGE, paths.GALLERY] if shown_images(plan) else [paths.PAGE]


def _page_tables(plan: Plan) -> dict[str, tuple[str, ReportSpec]]:
    """Return the tables that the page shows, each with the spec that makes it.

    The claims are among them where all metrics are, because most of them need more than patch drops, and so is the
    ranking of all test cases.
    """
    shown: dict[Callable[..., MadeReport], dict[str, str]] = {
        tables: paths.TABLES,
        in_domain: {"in_domain": paths.IN_DOMAIN},
        costs: {"costs": paths.COSTS},
    }
    if several_baselines(plan):
        named = {"baselines": "scores", "baselines_agreement": "agreement", "baselines_conclusions": "conclusions"}
        shown[baselines] = {table: paths.BASELINES[name] for table, name in named.items()}
    if all_metrics(plan):
        shown[all_scores] = {"scores": paths.SCORES_TABLE}
        shown[claims] = {"claims": paths.CLAIMS, **paths.PUBLISHED}
        shown[reliability] = {name: paths.RELIABILITY[name] for name in ("ranking", "variance")}
        shown[checks] = {name: paths.CHECKS[name] for name in ("summary", "captions")}
    return {name: (path, make(plan)[0]) for make, files in shown.items() for name, path in files.items()}


def _page_network(plan: Plan, network: Network, cases: list[Case]) -> PageNetwork:
    metrics = plan.metrics_of(network.weights, network.model)
    shown = [metric for metric in metrics if base_name(metric) == "idsds"] or list(metrics)
    return {
        "where": cast("Where", network._asdict()),
        "grids": plan.combinations_on(network.weights, network.model),
        "shown": shown[:SCORES_SHOWN],
        # Of the scores that are shown.
        "drops": metrics[shown[0]],
        "scored": [case.metric for case in cases if case.network == network],
    }


def _page_curves(plan: Plan) -> list[PageCurve]:
    """Return the response curves that are shown, with what reads them. Pictures and explanations are no curves."""
    read = [(plan.serving[one][0].name, metric) for metric, of in plan.metrics.items() for one in of.responses.values()]
    return [
        {
            "name": name,
            "settings": dict(response.settings),
            "metrics": [metric for response, metric in read if response == name],
            "images": plan.response_images(response),
            "shards": len(plan.shards(plan.response_images(response))),
        }
        for name, response in plan.method_responses.items()
        if isinstance(response, Curves) and all_metrics(plan)
    ]


def targets(plan: Plan) -> list[str]:
    """Return what the rule `all` asks for: tables, figures and pages."""
    files = [*paths.TABLES.values(), paths.IN_DOMAIN, paths.COSTS, *figure_files(plan), *page_files(plan)]
    files += paths.BASELINES.values() if several_baselines(plan) else []
    files += [paths.GUARDS["output"]] if plan.guarded else []
    if all_metrics(plan):
        files += [*paths.RELIABILITY.values(), *paths.RELIABILITY_PNG.values(), *paths.OVERVIEW.values()]
        files += [*paths.SIMILARITY.values(), *paths.CHECKS.values(), *chart_files(plan)]
        files += montage_files(plan) if shown_images(plan) else []
    return files
