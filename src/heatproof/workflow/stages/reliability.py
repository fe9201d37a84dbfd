"""The job that measures the reliability of the ranking of methods."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Self

from heatproof.core.provenance import digest
from heatproof.metrics.single_deletion import base_name
from heatproof.stats.magnitudes import MagnitudeMetrics
from heatproof.workflow.plan.stage import JobGraph, named_tables, report_outputs, stage
from heatproof.workflow.stages.methods import (
    RankingFields,
    ScoresStage,
    all_metrics,
    magnitudes,
    ranking_fields,
    scores_fields,
)

if TYPE_CHECKING:
    from heatproof.core.specs import Runtime
    from heatproof.workflow.plan.plan import Plan

# Outputs with the orders of methods and their stability, and outputs with further evidence for them.
ORDERS = ("ranking", "consistency", "consistency_groups", "stability_methods", "stability_cases", "families")
EVIDENCE = ("reliability", "icr", "significance", "truth", "properties", "variance")


@stage("reliability")
class Reliability(ScoresStage, RankingFields):
    """The spec of the job that measures the reliability of the ranking.

    Attributes
    ----------
    tested
        Metrics for which every two methods are tested against each other.
    truths
        Metrics whose ranking of methods is the true one.
    magnitudes
        The metrics that read magnitudes of maps, and the methods that are equivalent for them.
    baselines_of
        A name for each metric that it shares with the metrics that differ from it only in the baseline.
    """

    message = "consistency, stability, reliability and significance of the ranking"
    manifest_path = "ranking/manifest.json"
    outputs = report_outputs(
        "Ranking",
        "how reliable the ranking is",
        """
        How reliable the ranking is. ``ranking``: Meta-Rank over all metrics of the config. ``properties``: the same
        within each property that metrics measure. ``consistency``: rank correlations of every two test cases, and
        ``consistency_groups`` their means over pairs that differ only in the dataset, the model, the weights, the
        metric or the order; a low value means that a ranking does not carry over to the other. ``stability``: the
        change of a method's rank if one test case is left out. ``families``: the best method of each family.
        ``reliability``: Krippendorff's α, how similarly a metric ranks methods from image to image, at most 1. For a
        metric that uses only magnitudes, such as MAS, a map and its absolute values are one method; compare metrics by
        ``alpha_magnitudes``, which counts one method per map for all metrics. ``icr``: how similarly two metrics rank
        methods image by image on each network (internal consistency reliability), at most 1; ``pair`` says whether
        they differ only in the baseline, in other options, or are different metrics; ``icr_magnitudes`` counts one
        method per map for all pairs. ``significance``: Wilcoxon's test of every two methods over images with Holm's
        correction; ``effect`` is the matched-pairs rank-biserial correlation, from -1 to 1. ``truth``: how well the
        ranking by each metric agrees with the true importance of parts, if the parts of a dataset can be removed;
        otherwise empty. ``variance``: the shares of the dataset, the network, the training seed and the image in the
        variance of scores.

        Trust a place in the ranking that holds under all of these. These images do not distinguish methods that a bar
        joins in the critical-difference diagram.
        """,
        **{name: f"ranking/{name}.csv" for name in (*ORDERS, *EVIDENCE)},
        consistency_png="ranking/consistency.png",
        difference_png="ranking/critical_difference.png",
        truth_png="ranking/truth.png",
    )
    tables = named_tables(ranking="ranking", variance="variance", icr="icr")

    tested: list[str]
    truths: list[str]
    magnitudes: MagnitudeMetrics = field(default_factory=MagnitudeMetrics)
    baselines_of: dict[str, str] = field(default_factory=dict)

    @classmethod
    def is_requested(cls, plan: Plan) -> bool:
        """Return whether the rule `all` requests it: if all metrics are shown."""
        return all_metrics(plan)

    @classmethod
    def make_spec(cls, graph: JobGraph, **where: Any) -> tuple[Self, list[str]]:
        """Return the spec of the job, and the files that it waits for."""
        plan = graph.plan
        cases = plan.all_cases()
        tested = sorted({case.metric for case in plan.test_cases()})
        spec = cls(
            tested=[name for name in tested if base_name(name) == "idsds"] or tested,
            # Part deletion is known to rank methods truly where the parts of the images can be removed.
            truths=[name for name, entry in plan.metrics.items() if entry.metric.name == "part_deletion"],
            magnitudes=magnitudes(plan),
            baselines_of={
                name: digest(
                    [entry.metric.name, {k: v for k, v in entry.options.items() if not k.startswith("baseline")}]
                )
                for name, entry in plan.metrics.items()
            },
            **scores_fields(graph, cases),
            **ranking_fields(plan),
        )
        return spec, plan.score_files(cases)

    def run(self, runtime: Runtime) -> None:
        """Write the tables and figures.

        The level of tests is 1 - level. Rankings leave out metrics that are represented by another one, and methods
        that are defined on too few images. Every two methods are tested only for the metrics in `tested`, because the
        tests of all metrics take minutes.
        """
        from heatproof.report.results import CASE
        from heatproof.report.tables.ranking import draw, rank_table
        from heatproof.report.tables.reliability import (
            comparable_scores,
            draw_critical_difference,
            draw_truth,
            significance_table,
        )
        from heatproof.report.tables.scores import mean_scores, with_kinds, with_properties
        from heatproof.stats.reliability import consistency_table, reliability_table
        from heatproof.stats.table import duplicate_metrics
        from heatproof.stats.truth import truth_table
        from heatproof.stats.variance import variance_table
        from heatproof.workflow.stages._results import publish, read_scores

        files, scores = read_scores(self.results.scores, self.cases)
        scores["higher_is_better"] = scores["metric"].map(self.directions)
        means = with_properties(mean_scores(scores, self.directions, self.least_coverage), self.kinds)
        stands = duplicate_metrics(means, self.kinds)
        means["counted_as"] = means["metric"].map({name: stands.get(name, "") for name in self.directions})
        ranking = rank_table(with_kinds(means, self.model_kinds), images=scores, **self.resampling)
        compared = comparable_scores(scores, self.tested, self.least_coverage)
        # Images without scores are counted as undefined, and methods without any score are left out of the test case.
        scored = scores[scores.groupby([*CASE, "method"])["score"].transform("count") > 0]
        truth = truth_table(scores, self.truths, self.references, **self.resampling)
        contents: dict[str, Any] = {
            "ranking": ranking.meta_rank,
            **ranking.tables,
            "reliability": reliability_table(scored, self.magnitudes),
            "icr": consistency_table(scored, self.magnitudes, self.kinds, self.baselines_of),
            "significance": significance_table(compared, 1 - self.level),
            "truth": truth,
            "variance": variance_table(with_kinds(scores, self.model_kinds)),
            "consistency_png": draw(ranking),
            "difference_png": draw_critical_difference(compared, level=1 - self.level),
            "truth_png": draw_truth(truth, self.level),
        }
        publish(self, {self.files[name]: content for name, content in contents.items()}, files)
