"""Specs of the jobs after the scores, which `heatproof.plan.reports` builds."""

from __future__ import annotations

from typing import Any, NotRequired

from typing_extensions import TypedDict

from heatproof.provenance import Key
from heatproof.specs.jobs import CaseWhere, DatasetSpec, Keyed, MethodRow, Options, Where


class ReportSpec(Keyed):
    """What every job after the scores is told; ``references`` are the methods that know no model."""

    seed: int
    bootstrap: int
    level: float
    references: list[str]
    manifest: str


class Bootstrap(TypedDict):
    """Keyword arguments of what draws intervals; in no spec, but made of each."""

    seed: int
    repetitions: int
    level: float


class ScoresOf(TypedDict):
    """Scores of test cases: the pattern of their paths, and dataset to model to weights to metrics."""

    scores: str
    cases: dict[str, dict[str, dict[str, list[str]]]]


class Directed(ScoresOf):
    """Scores of test cases with the direction of each metric, whether higher is better."""

    directions: dict[str, bool]
    upstream: Key


class Ranked(TypedDict):
    """What decides which scores are ranked: the kind of each metric and model, and the least share of the images."""

    kinds: dict[str, str]
    model_kinds: dict[str, str]
    least_coverage: float


class DropsOf(CaseWhere):
    """Patch drops by their store, with the metric that reads them."""

    grid: int
    baseline: str
    drops: str


class TablesSpec(ReportSpec, Ranked):
    """The tables over patch drops; read by the stage `tables`.

    Attributes
    ----------
    ranked
        Metrics that are test cases of their own.
    explainer_of
        Method to its explainer.
    deletions
        Metric to the grid, the baseline and the output of its patch drops.
    ablating
        Methods that delete regions themselves.
    """

    scores: list[str]
    upstream: Key
    drops: list[DropsOf]
    ranked: list[str]
    explainer_of: dict[str, str]
    deletions: dict[str, list[Any]]
    ablating: list[str]
    images: int
    target: str | int


class AllScoresSpec(ReportSpec, Directed, Ranked):
    """The table of all metrics; read by the stage `all_scores`."""


class BaselineCase(CaseWhere):
    """The scores of a network in the domain of a baseline."""

    baseline: str
    scores: str


class BaselineMethod(TypedDict):
    """A method as conclusions on baselines tell it."""

    method: str
    family: str
    transform: str
    reference: bool


class BaselinesSpec(ReportSpec):
    """The tables that compare baselines; read by the stage `baselines`."""

    cases: list[BaselineCase]
    methods: list[BaselineMethod]
    upstream: Key


class ClaimedMethod(TypedDict):
    """A method with the map that it is by the name of heatproof's explainer; read for claims and costs."""

    explainer: str
    index: int
    place: int
    transform: str
    name: str
    kind: str
    uses_model: bool
    map: str


class ClaimedMetric(TypedDict):
    """A metric as claims look for it."""

    kind: str
    options: Options
    higher_is_better: bool
    grid: int | None
    baseline: str | None
    output: str


class ClaimedModel(TypedDict):
    """The design of a model, and the kind whose seeds of training alone differ."""

    family: str
    depth: int | None
    width: float
    batch_norm: bool
    bias: bool
    kind: str


class ClaimsSpec(ReportSpec, ScoresOf):
    """The card of claims; read by the stage `claims`.

    Attributes
    ----------
    pixels
        Dataset to model to the shorter side of its images; None where it is not known.
    kept
        Weights of a kept epoch to the training that they are of.
    published
        Digests of published numbers, which the code brings.
    orders
        Files of the orders beside published ones.
    """

    metrics: dict[str, ClaimedMetric]
    pixels: dict[str, dict[str, int | None]]
    explains: str
    kept: dict[str, str]
    methods: list[ClaimedMethod]
    models: dict[str, ClaimedModel]
    accuracy: str
    published: dict[str, str]
    upstream: list[Key]
    output: str
    orders: dict[str, str]


class ReliabilitySpec(ReportSpec, Directed, Ranked):
    """The tables of how reliable the ranking is; read by the stage `reliability`.

    Attributes
    ----------
    tested
        Metrics of which every two methods are tested against each other.
    truths
        Metrics whose ranking of methods is the true one.
    """

    tested: list[str]
    truths: list[str]


class OverviewSpec(ReportSpec):
    """The pictures of all metrics; read by the stage `overview`. ``kinds`` has those of soundness and completeness."""

    kinds: dict[str, str]
    upstream: Key


# ---- comparisons -----------------------------------------------------------------------------------------------------


class ComparedNetworks(TypedDict):
    """The networks of a dataset: model to weights."""

    dataset: DatasetSpec
    models: dict[str, list[str]]


class ComparedMaps(TypedDict):
    """An explainer with the names of its maps."""

    name: str
    maps: list[str]


class SimilaritySpec(ReportSpec):
    """Networks before and after finetuning; read by the stage `similarity`. ``drops`` has ``dataset/model/weights``."""

    datasets: list[ComparedNetworks]
    explainers: list[ComparedMaps]
    drops: dict[str, str]
    images: int
    shards: int
    upstream: Key


class StoredFeatures(Where):
    """A store of features, and whether the weights were finetuned with this grid and baseline."""

    grid: int
    baseline: str
    in_domain: bool
    features: str


class InDomainSpec(ReportSpec):
    """Whether deleted patches are in domain; read by the stage `in_domain`. ``data`` are the files that are read."""

    scored: list[StoredFeatures]
    images: int
    data: list[str]
    upstream: Key


class CostsSpec(ReportSpec):
    """The table of costs; read by the stage `costs`. ``table`` is that of the scores."""

    scores: list[str]
    table: str
    methods: list[ClaimedMethod]
    upstream: Key


class Comparison(TypedDict):
    """A factor that varies while a setting holds.

    Attributes
    ----------
    levels
        Level, weights, metric and transform.
    networks
        Dataset and model of each on which it is compared.
    """

    factor: str
    setting: str
    reference: str
    levels: list[list[str]]
    networks: list[list[str]]


class ChecksSpec(ReportSpec, Directed):
    """The protocol checks; read by the stage `checks`.

    Attributes
    ----------
    images
        Metric to the number of images that it is scored on.
    transforms
        Method to the name of the same map without a sign.
    templates
        Digest of the templates of pages.
    """

    comparisons: list[Comparison]
    images: dict[str, int]
    least_coverage: float
    transforms: dict[str, str]
    templates: str


class ShownMethod(MethodRow):
    """A method as pages show it: its own place among those of its explainer, and whether it knows no model."""

    explainer: str
    place: int
    reference: bool


class MontageSpec(ReportSpec):
    """The montages of maps; read by the stage `montage`."""

    images: int
    datasets: dict[str, DatasetSpec]
    cases: list[CaseWhere]
    methods: list[ShownMethod]
    upstream: Key


# ---- figures and pages -----------------------------------------------------------------------------------------------


class ReadTable(TypedDict):
    """A table that a figure reads."""

    table: str
    upstream: Key


class FigureSpec(ReportSpec, ReadTable):
    """A figure of one table; read by the stage `figure`.

    Attributes
    ----------
    plain
        Grid and baseline of the finetuning, in words.
    beside
        Other tables that it reads, by name.
    """

    figure: str
    module: str
    plain: str
    beside: NotRequired[dict[str, ReadTable]]


class PageTable(TypedDict):
    """A table on the page, with its manifest."""

    path: str
    manifest: str


class PageNetwork(TypedDict):
    """A network on the page.

    Attributes
    ----------
    grids
        Grid and baseline of all its patch drops.
    shown, drops
        Metrics whose scores stand under a map, and grid, baseline and output of the first of them.
    scored
        All of its metrics.
    """

    where: Where
    grids: list[tuple[int, str]]
    shown: list[str]
    drops: tuple[int, str, str]
    scored: list[str]


class PageDataset(TypedDict):
    """A dataset on the page, with its networks."""

    dataset: DatasetSpec
    networks: list[PageNetwork]


class PageCurve(TypedDict):
    """A response whose curves are on the page, with the metrics that read it."""

    name: str
    settings: Options
    metrics: list[str]
    images: int
    shards: int


class PageFigure(TypedDict):
    """A figure on the page."""

    name: str
    path: str
    caption: str


class PageSpec(ReportSpec):
    """The pages; read by the stage `report_page`.

    Attributes
    ----------
    evaluated
        Number of images of the metrics of patch drops.
    templates
        Digest of the templates of pages.
    """

    tables: dict[str, PageTable]
    all_metrics: bool
    directions: dict[str, bool]
    evaluated: int
    images: int
    shards: int
    drop_shards: int
    datasets: list[PageDataset]
    methods: list[ShownMethod]
    curves: list[PageCurve]
    upstream: Key
    figures: list[PageFigure]
    templates: str
