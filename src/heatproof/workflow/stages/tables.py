"""The jobs that write the tables on patch drops and the table of all metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from heatproof.core.grids import Grid
from heatproof.core.provenance import Key
from heatproof.core.tasks import EXCLUSIVE
from heatproof.explainers.registry import EXPLAINERS
from heatproof.metrics.responses.base import NetworkResponse
from heatproof.metrics.responses.patches import Patches
from heatproof.workflow.plan.paths import NetworkName, response_file
from heatproof.workflow.plan.selection import ANSWERS
from heatproof.workflow.plan.stage import JobGraph, Report, named_tables, report_outputs, stage
from heatproof.workflow.stages.methods import (
    RankingFields,
    ScoresStage,
    all_metrics,
    joined_key,
    ranking_fields,
    scores_fields,
)

if TYPE_CHECKING:
    from heatproof.core.specs import Runtime
    from heatproof.workflow.plan.plan import Plan


@dataclass(frozen=True)
class StoredDrops:
    """The stored patch drops of a network, with the metric that reads them.

    Attributes
    ----------
    dataset, model, weights, grid, baseline, metric
        The network, the grid and baseline, and the metric.
    drops
        The store of the patch drops.
    labels
        The manifest of the dataset with the labels of its images; "" for classes, which the patch drops also have.
    answers
        The store of the network's outputs for every label; "" where images have one class.
    """

    dataset: str
    model: str
    weights: str
    grid: Grid
    baseline: str
    metric: str
    drops: str
    labels: str = ""
    answers: str = ""


@stage("tables")
class Tables(Report, RankingFields):
    """The spec of the job that writes the tables on patch drops.

    Attributes
    ----------
    scores
        Files of scores.
    upstream
        One key for all scores.
    drops
        Patch drops of all networks.
    ranked
        Metrics that count in the ranking.
    deletions
        Grid, baseline and output of the patch drops of each metric.
    ablating
        Methods that delete regions themselves.
    images
        Number of images that have patch drops.
    target
        The class whose output is read.
    """

    message = "tables of scores, Meta-Rank, accuracy and applicability"
    code = ("heatproof.report.tables.scores",)
    manifest_path = "tables.json"
    outputs = (
        report_outputs(
            "Scores",
            "verdicts in words",
            """
            A verdict for every network and metric of the patch drops. ``verdict`` is ``found`` (``best`` names the
            methods that cannot be distinguished from the best), ``open`` (a reference map, which does not use the
            network, cannot be distinguished from the best either, or the images are too few to distinguish methods),
            ``too few images`` (the best method is above the best reference map, but not significantly on so few
            images; ``images_needed`` would suffice with a probability of 0.8), ``none above references``, or ``at
            chance`` (the predictions of the network are no better than guessing, so that its maps cannot be judged).
            Guessing is the most frequent class; for several labels, an AUROC of 0.5, tested by permutations of the
            images' labels; for regressions, predictions that do not increase with the labels, by a one-sided test of
            Spearman's ρ, so that a network whose predictions have another unit, and an R² below 0, is not called at
            chance. A callable target has no labels, so that no guessing is known. Methods that delete regions
            themselves are excluded. ``cannot_see`` has the limits of the metric.

            For several labels, there is a row over all labels, whose ``label`` is empty, and a row for each label over
            the images that have it. Each verdict holds on its own, and not all of them jointly.

            ``n_above_references`` counts the methods that are above every reference map by paired one-sided tests
            over the images, with Holm's correction over the methods.
            """,
            verdict="verdict.csv",
        )
        | report_outputs(
            "Scores",
            "every method on every model",
            """
            Score of every method in every test case: a dataset, a model, its weights and a metric. ``idsds`` and
            ``sds`` are the Spearman correlation of the sums of a map in the patches with the logit drops of the
            patches, as a mean over images: 1 is the same order, 0 is no relation, −1 is the opposite order. Higher is
            better.

            * ``ci_low`` and ``ci_high`` bound the bootstrap interval over images.
            * ``n_undefined`` counts images without a score, for example because the map is constant. They are not in
              the mean.
            * ``gap`` is the reason why a method is not applicable to a model, and has no score, or why its score is
              defined on too few images to be ranked.
            * ``rank`` is 1 for the best of a test case; ``in_best_set`` marks the methods that these images cannot
              distinguish from it.
            * ``counted_as`` names the metric that represents this one in rankings.

            A method with ``_abs`` in its name has the absolute values of the same map. Compare methods within one test
            case; scores of different models are not on one scale.
            """,
            idsds_table="idsds_table.csv",
        )
        | report_outputs(
            "Ranking",
            "Meta-Rank over all test cases",
            """
            One ranking of the methods over all test cases. ``kappa`` is the mean log-odds with which a method ranks
            above another one, and 0 for a method in the middle. Higher is better. ``bradley_terry`` has strengths
            fitted to the same wins, as a check: where the two orders differ, the order is uncertain.

            A network counts once, however many test cases it has, and the interval comes from resampled networks and
            images. With fewer than three networks there is none, and ``note`` says so. ``in_best_set`` marks the
            methods that cannot be distinguished from the best one on these networks, and is empty without an interval.
            A method with fewer test cases in ``n_cases`` is not applicable to some of the models.
            """,
            meta_rank="meta_rank.csv",
        )
        | report_outputs(
            "Models",
            "accuracy before and after finetuning",
            """
            Accuracy of each model on the evaluation images: ``clean`` on intact images, ``worst_patch`` if an image
            counts as right only if the prediction is right whichever patch is deleted. For ``top5``, the label must be
            among the five largest logits.

            Finetuning should raise ``worst_patch`` and keep ``clean``. If ``clean`` falls, the finetuned model is no
            longer the model to be explained: raise the epochs of finetuning or lower its learning rate. If
            ``worst_patch`` stays low, deleted patches are still out of domain, and the IDSDS of that model is no more
            reliable than its SDS. ``in_domain`` marks weights that were finetuned with this grid and baseline.

            Networks of other tasks have a ``task`` and other columns. For several labels: ``auroc`` and
            ``average_precision`` (guessing: 0.5 and ``base_rate``), and ``recall``, the share of present labels that
            are found, over all labels and by ``label``, on the explained images. For regressions: ``mae``, the mean
            absolute error, and ``r2`` compared with the mean of the labels. ``p_chance`` is the p-value of guessing.
            """,
            accuracy="accuracy.csv",
        )
        | report_outputs(
            "Models",
            "applicability of explainers to models",
            """
            Applicability checks of each explainer on each model, on the first few evaluation images, before its maps
            are computed. ``figure`` names the measured quantity, and ``value`` is the largest of the images, or their
            mean:
            ``completeness_error`` (mean) of integrated gradients, ``convergence_delta`` of DeepLift and
            ``conservation_error`` of LRP, BagNet and B-cos are shares of what a map should sum to, lower is better;
            ``difference_from_gradient`` is zero where guided backprop equals the gradient; ``constant_maps``
            is the share of maps with one value everywhere.

            A row with a ``gap`` has the reason why the explainer is not applicable. Look at the maps of an explainer
            whose value is near its ``limit`` before you trust its scores, for example of integrated gradients with few
            steps.
            """,
            applicability="applicability.csv",
        )
    )
    tables = named_tables(**{name: name for name in outputs})

    scores: list[str]
    upstream: Key
    drops: list[StoredDrops]
    ranked: list[str]
    deletions: dict[str, tuple[Grid, str, str]]
    ablating: list[str]
    images: int
    target: str | int

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return the spec of the job, and the files that it waits for."""
        plan = graph.plan
        drops = [
            StoredDrops(
                *network, grid, baseline, metric, plan.results.drops.format(**where), *_label_sources(plan, network)
            )
            for network in plan.networks()
            for metric, (grid, baseline, output) in plan.metrics_of(network.weights, network.model).items()
            # The accuracy does not depend on the output of the drops.
            if output == plan.config["drops"]["outputs"][0]
            for where in [{**network._asdict(), "grid": grid, "baseline": baseline}]
        ]
        spec = cls(
            scores=plan.score_files(),
            upstream=joined_key(graph, plan.test_cases()),
            drops=drops,
            # A network on one grid and baseline counts as one test case, whatever the outputs.
            ranked=sorted({item.metric for item in drops}),
            deletions={
                metric: deletion
                for network in plan.networks()
                for metric, deletion in plan.metrics_of(network.weights, network.model).items()
            },
            ablating=[
                name
                for name, method in plan.methods.items()
                if (registered := EXPLAINERS.get(method.kind)) and registered.ablates
            ],
            images=plan.drop_images,
            target=plan.config["target"],
            **ranking_fields(plan),
        )
        shards, arrays = plan.shards(plan.drop_images), ("target_rank", "predicted")
        ranks = [
            response_file(Patches, item.drops, name, shard) for item in drops for shard in shards for name in arrays
        ]
        answers = [
            response_file(NetworkResponse, item.answers, "logit", shard)
            for item in drops
            if item.answers
            for shard in shards
        ]
        # The comparison of precisions is requested together with the tables.
        precision_table = [graph.spec("precision").files["table"]] if plan.has_precision_guard else []
        return spec, [*spec.scores, *ranks, *dict.fromkeys(answers), *precision_table]

    def work(self, runtime: Runtime) -> Callable[[], None]:
        """Return the function that writes the tables."""
        from heatproof.report.tables.scores import tables

        return partial(tables, self)


def _label_sources(plan: Plan, network: NetworkName) -> tuple[str, str]:
    """Return the manifest with the labels and the store of the outputs for all labels; "" for classes."""
    task = plan.task_of(network.dataset)
    labels = "" if task in EXCLUSIVE else plan.results.dataset.format(dataset=network.dataset)
    return labels, plan.store_of(network, ANSWERS) if plan.reads_response(network.dataset, ANSWERS) else ""


@stage("all_scores")
class AllScores(ScoresStage, RankingFields):
    """The spec of the job that writes the table of all metrics."""

    message = "table of all metrics"
    code = ("heatproof.report.tables.scores",)
    manifest_path = "scores.json"
    outputs = report_outputs(
        "Scores",
        "every metric, every method, every model",
        """
        Score of every method under every metric of the config, on every model and its weights. ``higher_is_better``
        is the direction of the metric; ``rank`` is 1 for the best of a test case either way. ``above_reference`` is the
        distance from the best reference map in the same test case, positive where a method is better than all of them,
        and empty if none was scored. ``property`` is what the metric measures, and ``counted_as`` the metric that
        represents it in rankings, empty if it represents itself. The other columns are those of the table of IDSDS:
        ``ci_low`` and ``ci_high`` bound the bootstrap interval over images, ``n_undefined`` counts images without a
        score, and ``gap`` is the reason why a method is not applicable to a model.

        Deletion and insertion run on all weights. Finetuned weights were trained on images with deleted patches of
        their grid. Images with deleted pixels are nearer to their domain than to that of pretrained weights, but still
        out of domain.
        """,
        scores="scores.csv",
    )
    tables = named_tables(scores="scores")

    @classmethod
    def is_requested(cls, plan: Plan) -> bool:
        """Return whether the rule `all` requests it: if all metrics are shown."""
        return all_metrics(plan)

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return the spec of the job, and the files that it waits for."""
        cases = graph.plan.all_cases()
        return cls(**scores_fields(graph, cases), **ranking_fields(graph.plan)), graph.plan.score_files(cases)

    def work(self, runtime: Runtime) -> Callable[[], None]:
        """Return the function that writes the table."""
        from heatproof.report.tables.scores import all_scores

        return partial(all_scores, self)
