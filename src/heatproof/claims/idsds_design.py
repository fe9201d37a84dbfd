"""Claims of the IDSDS paper on design: what a network's architecture does to the scores, and how stable they are."""

from __future__ import annotations

import re

import numpy as np

from heatproof.claims.evidence import Evidence, correlate_ranks
from heatproof.claims.idsds import AGREEMENT, PAPER, in_domain
from heatproof.claims.registry import Measured, Untestable, claim, required

DESIGN = "mean change of IDSDS over methods"


def _families(e: Evidence, better: str, worse: str) -> Measured:
    pairs = e.pairs_of_families(in_domain(e), better, worse)
    return e.change(required(pairs, f"the config has no {better} beside a {worse}"), e.explaining())


@claim(PAPER, "section 4.3, figure 3 a", DESIGN + ", VGG less ResNet", above=0)
def vgg_above_resnet(e: Evidence) -> Measured:
    """Methods score higher on VGG than on ResNet."""
    return _families(e, "vgg", "resnet")


@claim(PAPER, "section 4.3, figure 3 a", DESIGN + ", ResNet less ViT", above=0)
def resnet_above_vit(e: Evidence) -> Measured:
    """Methods score lower on ViT than on ResNet."""
    return _families(e, "resnet", "vit")


def _design(e: Evidence, changed: str, family: str | None = None) -> Measured:
    cases = [c for c in in_domain(e) if family in (None, e.model_of(c).family)]
    pairs = required(
        e.designs(cases, changed), f"no two models of the config differ in {changed.replace('_', ' ')} alone"
    )
    return e.change(pairs, e.explaining())


@claim(PAPER, "section 4.3, figure 3 b", DESIGN + ", deeper less shallower", below=0)
def depth_lowers_resnets(e: Evidence) -> Measured:
    """Depth lowers the scores of ResNets."""
    return _design(e, "depth", "resnet")


@claim(PAPER, "appendix D, figure 8 a", DESIGN + ", deeper less shallower", below=0)
def depth_lowers_vggs(e: Evidence) -> Measured:
    """Depth lowers the scores of VGGs."""
    return _design(e, "depth", "vgg")


@claim(PAPER, "section 4.3, figure 4 a", DESIGN + ", wider less narrower", below=0)
def width_lowers(e: Evidence) -> Measured:
    """Width lowers the scores."""
    return _design(e, "width")


@claim(PAPER, "section 4.3, figure 5 a", DESIGN + ", with less without", below=0)
def batch_norm_lowers(e: Evidence) -> Measured:
    """Batch norm lowers the scores."""
    return _design(e, "batch_norm")


@claim(PAPER, "section 4.3, figure 5 a", DESIGN + ", with less without", below=0)
def bias_lowers(e: Evidence) -> Measured:
    """Bias terms lower the scores, batch norm being gone."""
    return _design(e, "bias")


@claim(PAPER, "section 4.3, figure 4 b", "mean difference of IDSDS, logit less probability", above=0)
def logits_beat_probabilities(e: Evidence) -> Measured:
    """Attributions of the logit beat those of the softmax probability."""
    raise Untestable(
        "a config explains either logits or probabilities: compare config/studies/softmax.yaml with architecture.yaml, "
        "as docs/studies.md does"
    )


@claim(PAPER, "section 4.3, figure 3 a", AGREEMENT + " between models", above=0.7)
def ranks_agree_between_models(e: Evidence) -> Measured:
    """Rankings are fairly stable over architectures."""
    return e.agreement(e.pairs_differing(in_domain(e), "model"))


def _variants(e: Evidence, pattern: str) -> list[tuple[int, int]]:
    """Return pairs of in-domain cases on one model: the plain one, and one whose metric has another grid or fill."""
    every = e.find("idsds")
    plain = [c for c in every if e.cases[c].metric == "idsds"]
    others = [c for c in every if re.search(pattern, e.cases[c].metric)]
    return e.pairs_sharing(plain, others, "dataset", "model")


@claim(PAPER, "section 4.1, appendix A", AGREEMENT + " between grids, each finetuned in-domain", above=0.9)
def ranks_agree_between_grids(e: Evidence) -> Measured:
    """The ranking is stable over the number of patches (4, 16, 64)."""
    return e.agreement(_variants(e, r"_g\d+(?!.*(random|blur|mean))"))


@claim(PAPER, "section 4.1, appendix A", AGREEMENT + " between baselines, each finetuned in-domain", above=0.9)
def ranks_agree_between_baselines(e: Evidence) -> Measured:
    """The ranking is stable over baselines (zeros, random, blur)."""
    return e.agreement(_variants(e, "random|blur"))


@claim(PAPER, "section 4.1, appendix A", AGREEMENT + " between finetunings with other seeds", above=0.95)
def ranks_agree_between_seeds(e: Evidence) -> Measured:
    """The ranking is stable over training seeds."""
    pairs = e.pairs_differing(in_domain(e), "weights")
    return e.agreement(
        required(
            pairs, "the config has one finetuning a model: name another in weights, such as finetuned_1: {seed: 1}"
        )
    )


@claim(
    PAPER,
    "section 4.3, figure 5 b",
    "Spearman correlation, over models, of accuracy with the best method's IDSDS",
    below=0,
)
def accuracy_trades_off(e: Evidence) -> Measured:
    """Accuracy and attribution quality trade off."""
    cases = in_domain(e)
    if e.accuracy is None or len({e.cases[c].model for c in cases}) < 4:
        raise Untestable("a correlation over fewer than four models says nothing")
    rows = e.accuracy[e.accuracy["in_domain"]].set_index(["dataset", "model", "weights"])["top1_clean"]
    rows = rows[~rows.index.duplicated()]
    accuracy = np.array([rows.get(e.cases[c].network, np.nan) for c in cases], dtype=float)
    best = e.best(cases, e.explaining())
    known = ~np.isnan(accuracy)
    if known.sum() < 4 or np.ptp(accuracy[known]) == 0:
        raise Untestable("the models' accuracies are all the same")
    draws = correlate_ranks(np.broadcast_to(accuracy[known], best[:, known].shape), best[:, known])
    return Measured(draws, f"networks: {int(known.sum())}")


@claim(PAPER, "section 4.1, table 3", "mean change of top-1 on intact images, in points", above=-2.0)
def finetuning_keeps_accuracy(e: Evidence) -> Measured:
    """Finetuning with deleted patches keeps the accuracy."""
    return _accuracy_change(e, "top1_clean")


@claim(PAPER, "section 4.1, table 3", "mean change of top-1 with the worst patch deleted, in points", above=0.0)
def finetuning_raises_worst_patch_accuracy(e: Evidence) -> Measured:
    """Finetuning with deleted patches raises the accuracy with the worst patch deleted."""
    return _accuracy_change(e, "top1_worst_patch")


def _accuracy_change(e: Evidence, column: str) -> Measured:
    if e.accuracy is None:
        raise Untestable("there is no table of accuracies")
    keys = ["dataset", "model", "grid", "baseline"]
    before = e.accuracy[e.accuracy["weights"] == "pretrained"].set_index(keys)[column]
    after = e.accuracy[e.accuracy["in_domain"]]
    changes = [100 * (row[column] - before.get(tuple(row[keys]), np.nan)) for _, row in after.iterrows()]
    changes = [change for change in changes if not np.isnan(change)]
    if len(changes) < 2:
        raise Untestable("fewer than two networks are scored before and after finetuning")
    # The table has no images: the spread is over networks.
    drawn = np.random.default_rng(0).choice(changes, size=(len(e.means) - 1, len(changes))).mean(1)
    return Measured(np.concatenate([[np.mean(changes)], drawn]), f"networks, resampled: {len(changes)}")
