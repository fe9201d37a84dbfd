"""Claims of the IDSDS paper on design: the influence of the architecture on scores, and the stability of rankings."""

from __future__ import annotations

import numpy as np
import pandas as pd

from heatproof.claims.contrasts import contrast, family_pairs, pairs_differing_in, values_by_training, welch
from heatproof.claims.evidence import Evidence, correlate_ranks, mean_known
from heatproof.claims.idsds import AGREEMENT, INTRINSIC, PAPER, post_hoc_methods
from heatproof.claims.registry import Measurement, Untestable, claim, required
from heatproof.core.tasks import CALLABLE, TASKS

CHANGE = "mean change of IDSDS over methods"
INTRINSIC_LEAD = "IDSDS of the intrinsic map minus IDSDS of the best method on plain ResNets"


def _compare_families(e: Evidence, first: str, second: str) -> Measurement:
    pairs = family_pairs(e, e.in_domain_cases(), first, second)
    return contrast(e, e.in_domain_cases(), required(pairs, f"no {first} has a matching {second}"), post_hoc_methods(e))


def _compare_design(e: Evidence, changed: str) -> Measurement:
    cases = e.in_domain_cases()
    pairs = pairs_differing_in(e, cases, changed)
    what = changed.replace("_", " ")
    return contrast(e, cases, required(pairs, f"no two networks differ only in {what}"), post_hoc_methods(e))


@claim(PAPER, "section 4.3, figure 3 a", CHANGE + ", VGG minus ResNet", above=0)
def vgg_above_resnet(e: Evidence) -> Measurement:
    """Methods score higher on VGG than on ResNet."""
    return _compare_families(e, "vgg", "resnet")


@claim(PAPER, "section 4.3, figure 3 a", CHANGE + ", ResNet minus ViT", above=0)
def resnet_above_vit(e: Evidence) -> Measurement:
    """Methods score lower on ViT than on ResNet."""
    return _compare_families(e, "resnet", "vit")


@claim(PAPER, "section 4.3, figure 3 b; appendix D, figure 8 a", CHANGE + ", deeper minus shallower", below=0)
def depth_lowers(e: Evidence) -> Measurement:
    """Depth lowers the scores, of ResNets and of VGGs."""
    return _compare_design(e, "depth")


@claim(PAPER, "section 4.3, figure 4 a", CHANGE + ", wider minus narrower", below=0)
def width_lowers(e: Evidence) -> Measurement:
    """Width lowers the scores."""
    return _compare_design(e, "width")


@claim(PAPER, "section 4.3, figure 5 a; appendix D, figure 8 b", CHANGE + ", with minus without", below=0)
def batch_norm_lowers(e: Evidence) -> Measurement:
    """Batch norm lowers the scores."""
    return _compare_design(e, "batch_norm")


@claim(PAPER, "section 4.3, figure 5 a; appendix D, figure 8 b", CHANGE + ", with minus without", below=0)
def bias_lowers(e: Evidence) -> Measurement:
    """Bias terms lower the scores of networks without batch norm."""
    return _compare_design(e, "bias")


@claim(PAPER, "section 4.3, figures 4 b and 9", CHANGE + ", maps of the logit minus maps of the probability", above=0)
def logits_beat_probabilities(e: Evidence) -> Measurement:
    """Attributions of the logit beat those of the softmax probability."""
    cases = e.in_domain_cases()
    values = {
        output: values_by_training(e, [c for c in cases if e.cases[c].explains == output], lambda c: _mean_score(e, c))
        for output in ("logit", "probability")
    }
    both = values["logit"].keys() & values["probability"].keys()
    if not both:
        raise Untestable("all maps of a run explain the same output: docs/studies.md compares two runs")
    # Both are values of the same trainings, so that differences can be taken within a training.
    terms = {
        network_kind: (values["logit"][network_kind] - values["probability"][network_kind]) / len(both)
        for network_kind in both
    }
    return welch(terms, f"networks: {len(both)}")


def _mean_score(e: Evidence, case: int) -> float:
    return float(mean_known(e.means[0, case, post_hoc_methods(e)]))


def _compare_intrinsic(e: Evidence, kind: str) -> Measurement:
    intrinsic, cases, rivals = e.find_method(kind), e.in_domain_cases(), post_hoc_methods(e)
    ours = values_by_training(e, cases, lambda c: float(e.means[0, c, intrinsic]))
    required(list(ours), f"the config has no {kind} network")
    models = {c: e.model_of(c) for c in cases}
    resnets = [c for c, model in models.items() if model.family == "resnet" and model.batch_norm and model.bias]
    # Whether a user's network is intrinsically interpretable follows from its having such a map.
    intrinsic_methods = [index for index in e.methods_using_model() if e.methods[index].kind in INTRINSIC]
    resnets = [c for c in resnets if np.isnan(e.means[0, c, intrinsic_methods]).all()]
    theirs = values_by_training(
        e, required(resnets, "the config has no ResNet to compare with"), lambda c: float(e.best_score(c, rivals)[0])
    )
    terms = {network_kind: values / len(ours) for network_kind, values in ours.items()}
    terms |= {network_kind: -values / len(theirs) for network_kind, values in theirs.items()}
    return welch(terms, f"networks: {len(ours)} against {len(theirs)}")


@claim(PAPER, "section 4.2, figure 2 a, table 4", INTRINSIC_LEAD, above=0)
def bagnet_beats_post_hoc_methods(e: Evidence) -> Measurement:
    """The intrinsic map of BagNet beats every method on a standard network."""
    return _compare_intrinsic(e, "bagnet")


@claim(PAPER, "section 4.2, figure 2 a, table 4", INTRINSIC_LEAD, above=0)
def bcos_beats_post_hoc_methods(e: Evidence) -> Measurement:
    """The intrinsic map of a B-cos network beats every method on a standard network."""
    return _compare_intrinsic(e, "bcos")


@claim(PAPER, "section 4.3, figure 3 a", AGREEMENT + ", between networks", over="networks", above=0.7)
def ranks_agree_between_models(e: Evidence) -> Measurement:
    """Rankings are fairly stable over architectures."""
    return e.agreement(e.pairs_differing(e.in_domain_cases(), "model"))


@claim(PAPER, "section 4.1, figure 6 a", AGREEMENT + ", between grids, each finetuned in-domain", above=0.8)
def ranks_agree_between_grids(e: Evidence) -> Measurement:
    """The ranking is stable over the number of patches (4, 16, 64)."""
    return e.agreement(e.pairs_varying("grid"))


@claim(
    PAPER, "section 4.1, figure 6 b", AGREEMENT + ", zeros against random and blur, each finetuned in-domain", above=0.9
)
def ranks_agree_between_baselines(e: Evidence) -> Measurement:
    """The ranking is very stable over baselines (zeros, random, blur)."""
    cases = e.cases_varying("idsds", "baseline")
    zeros, others = ([c for c in cases if e.cases[c].baseline in names] for names in (("zeros",), ("random", "blur")))
    pairs = e.pairs_sharing(zeros, others, "dataset", "model")
    return e.agreement(
        required(
            pairs,
            "the paper compares drops to zeros with drops to random and blur, and the config finetunes and scores "
            f"{_join_sorted({e.cases[c].baseline for c in cases})}: name zeros and one of the others in baselines",
        )
    )


def _join_sorted(names: set[str | None]) -> str:
    return " and ".join(sorted(str(name) for name in names))


@claim(PAPER, "section 4.1, figure 7", AGREEMENT + ", between finetunings with different seeds", above=0.95)
def ranks_agree_between_seeds(e: Evidence) -> Measurement:
    """The ranking is extremely stable over seeds of the finetuning."""
    pairs = e.pairs_differing(e.in_domain_cases(), "weights")
    return e.agreement(
        required(
            pairs, "the config has one finetuning per model: add another to weights, such as finetuned_1: {seed: 1}"
        )
    )


@claim(
    PAPER,
    "section 4.3, figure 5 b",
    "Spearman correlation of accuracy and best IDSDS over networks",
    over="networks",
    below=0,
)
def accuracy_trades_off(e: Evidence) -> Measurement:
    """Accuracy and attribution quality trade off."""
    accuracy_of = _class_accuracies(e)
    rows = accuracy_of[accuracy_of["in_domain"]].set_index(["dataset", "model", "weights"])["top1_clean"]
    rows = rows[~rows.index.duplicated()]
    cases = [c for c in e.in_domain_cases() if e.cases[c].network in rows.index]
    cases = [c for c in cases if not np.isnan(e.best_score(c, e.methods_using_model())[0])]
    accuracy = values_by_training(e, cases, lambda c: float(rows[e.cases[c].network]))
    units = list(accuracy)
    if len(units) < 5:
        raise Untestable("a correlation needs at least five networks")
    top1 = np.array([accuracy[network_kind].mean() for network_kind in units])
    best_scores = np.stack(
        [
            np.mean(
                [e.best_score(c, e.methods_using_model()) for c in cases if e.network_kind(c) == network_kind], axis=0
            )
            for network_kind in units
        ],
        axis=1,
    )
    if np.ptp(top1) == 0:
        raise Untestable("all networks have the same accuracy")
    counts = e.network_counts(len(units)).astype(int)
    drawn = np.stack([np.repeat(np.arange(len(units)), row) for row in counts])
    draws = correlate_ranks(top1[drawn], np.take_along_axis(best_scores, drawn, axis=1))
    return Measurement(draws, f"networks: {len(units)}", len(units), largest=1)


CHANGED = "mean change of top-1 {}, in percentage points"
# The largest loss of a network in the paper's table 3 (ResNet-50 without batch norm), whose caption calls it "at most,
# a minor negative effect".
LARGEST_LOSS = -0.67


@claim(PAPER, "section 4.1, table 3", CHANGED.format("on intact images"), over="networks", above=LARGEST_LOSS)
def finetuning_keeps_accuracy(e: Evidence) -> Measurement:
    """Finetuning with deleted patches keeps the accuracy: it costs no more than the paper's largest loss."""
    return _accuracy_change(e, "top1_clean")


@claim(PAPER, "section 4.1, table 3", CHANGED.format("with the worst patch deleted"), over="networks", above=0.0)
def finetuning_raises_worst_patch_accuracy(e: Evidence) -> Measurement:
    """Finetuning with deleted patches raises the accuracy with the worst patch deleted."""
    return _accuracy_change(e, "top1_worst_patch")


def _class_accuracies(e: Evidence) -> pd.DataFrame:
    """Return the accuracies of networks with exclusive classes; other tasks have no top-1 accuracy."""
    if e.accuracy is None:
        raise Untestable("there is no table of accuracies")
    if "task" not in e.accuracy:
        return e.accuracy
    rows = e.accuracy[~e.accuracy["task"].isin([*TASKS, CALLABLE])]
    if rows.empty:
        raise Untestable("no network classifies, so that there is no top-1 accuracy")
    return rows


def _accuracy_change(e: Evidence, column: str) -> Measurement:
    keys, accuracy = ["dataset", "model", "grid", "baseline"], _class_accuracies(e)
    before = accuracy[accuracy["weights"] == "pretrained"].set_index(keys)[column]
    after = accuracy[accuracy["in_domain"]]
    case_of = {case.network: index for index, case in enumerate(e.cases)}
    parts, owners = [], []
    for _, row in after.iterrows():
        where = row["dataset"], row["model"], row["weights"]
        change = 100 * (row[column] - before.get(tuple(row[keys]), np.nan))
        if where in case_of and not np.isnan(change):
            parts.append(np.full(1 + e.repetitions, change))
            owners.append((case_of[where],))
    required(parts, "no network is scored before and after finetuning")
    return e.pool(parts, owners, "finetunings")
