"""Claims of the IDSDS paper on design: what a network's architecture does to the scores, and how stable they are."""

from __future__ import annotations

import re

import numpy as np

from heatproof.claims.evidence import Evidence, correlate_ranks
from heatproof.claims.idsds import AGREEMENT, PAPER, in_domain
from heatproof.claims.registry import Measured, Untestable, claim

DESIGN = "mean change of IDSDS over methods"


def _families(e: Evidence, better: str, worse: str) -> Measured:
    cases = in_domain(e)
    family = {c: e.models[e.cases[c].model].family for c in cases}
    pairs = [
        (a, b) if family[a] == better else (b, a)
        for a, b in e.pairs_of_models(cases)
        if {family[a], family[b]} == {better, worse}
    ]
    if not pairs:
        raise Untestable(f"the config has no {better} beside a {worse}")
    draws, basis = e.change(pairs, e.explaining())
    return Measured(draws, above=0, basis=basis)


@claim(PAPER, "section 4.3, figure 3 a", DESIGN + ", VGG less ResNet")
def vgg_above_resnet(e: Evidence) -> Measured:
    """Methods score higher on VGG than on ResNet."""
    return _families(e, "vgg", "resnet")


@claim(PAPER, "section 4.3, figure 3 a", DESIGN + ", ResNet less ViT")
def resnet_above_vit(e: Evidence) -> Measured:
    """Methods score lower on ViT than on ResNet."""
    return _families(e, "resnet", "vit")


def _design(e: Evidence, changed: str, same: list[str], family: str | None, **rule: float) -> Measured:
    cases = [c for c in in_domain(e) if family is None or e.models[e.cases[c].model].family == family]
    pairs = e.designs(cases, changed, same, lambda model: getattr(model, changed))
    if not pairs:
        raise Untestable(f"no two models of the config differ in {changed.replace('_', ' ')} alone")
    draws, basis = e.change(pairs, e.explaining())
    return Measured(draws, **rule, basis=basis)


@claim(PAPER, "section 4.3, figure 3 b", DESIGN + ", deeper less shallower")
def depth_lowers_resnets(e: Evidence) -> Measured:
    """Depth lowers the scores of ResNets."""
    return _design(e, "depth", ["family", "width", "batch_norm", "bias"], "resnet", below=0)


@claim(PAPER, "appendix D, figure 8 a", DESIGN + ", deeper less shallower")
def depth_lowers_vggs(e: Evidence) -> Measured:
    """Depth lowers the scores of VGGs."""
    return _design(e, "depth", ["family", "width", "batch_norm", "bias"], "vgg", below=0)


@claim(PAPER, "section 4.3, figure 4 a", DESIGN + ", wider less narrower")
def width_lowers(e: Evidence) -> Measured:
    """Width lowers the scores."""
    return _design(e, "width", ["family", "depth", "batch_norm", "bias"], None, below=0)


@claim(PAPER, "section 4.3, figure 5 a", DESIGN + ", with less without")
def batch_norm_lowers(e: Evidence) -> Measured:
    """Batch norm lowers the scores."""
    return _design(e, "batch_norm", ["family", "depth", "width", "bias"], None, below=0)


@claim(
    PAPER,
    "section 4.3, figure 5 a",
    DESIGN + ", with less without",
)
def bias_lowers(e: Evidence) -> Measured:
    """Bias terms lower the scores, batch norm being gone."""
    return _design(e, "bias", ["family", "depth", "width", "batch_norm"], None, below=0)


@claim(
    PAPER,
    "section 4.3, figure 4 b",
    "mean difference of IDSDS, logit less probability",
)
def logits_beat_probabilities(e: Evidence) -> Measured:
    """Attributions of the logit beat those of the softmax probability."""
    raise Untestable(
        "a config explains either logits or probabilities: compare config/studies/softmax.yaml with architecture.yaml, "
        "as docs/studies.md does"
    )


@claim(PAPER, "section 4.3, figure 3 a", AGREEMENT + " between models")
def ranks_agree_between_models(e: Evidence) -> Measured:
    """Rankings are fairly stable over architectures."""
    draws, basis = e.agreement(e.pairs_of_models(in_domain(e)))
    return Measured(draws, above=0.7, basis=basis)


def _variants(e: Evidence, pattern: str) -> list[tuple[int, int]]:
    """Return pairs of in-domain cases on one model: the plain one, and one whose metric has another grid or fill."""
    every = e.find("idsds")
    plain = [c for c in every if e.cases[c].metric == "idsds"]
    return [
        (a, b)
        for a in plain
        for b in every
        if e.cases[a].model == e.cases[b].model
        and e.cases[a].dataset == e.cases[b].dataset
        and re.search(pattern, e.cases[b].metric)
    ]


@claim(
    PAPER,
    "section 4.1, appendix A",
    AGREEMENT + " between grids, each finetuned in-domain",
)
def ranks_agree_between_grids(e: Evidence) -> Measured:
    """The ranking is stable over the number of patches (4, 16, 64)."""
    draws, basis = e.agreement(_variants(e, r"_g\d+(?!.*(random|blur|mean))"))
    return Measured(draws, above=0.9, basis=basis)


@claim(
    PAPER,
    "section 4.1, appendix A",
    AGREEMENT + " between baselines, each finetuned in-domain",
)
def ranks_agree_between_baselines(e: Evidence) -> Measured:
    """The ranking is stable over baselines (zeros, random, blur)."""
    draws, basis = e.agreement(_variants(e, "random|blur"))
    return Measured(draws, above=0.9, basis=basis)


@claim(
    PAPER,
    "section 4.1, appendix A",
    AGREEMENT + " between finetunings with other seeds",
)
def ranks_agree_between_seeds(e: Evidence) -> Measured:
    """The ranking is stable over training seeds."""
    pairs = e.pairs_differing(in_domain(e), "weights")
    if not pairs:
        raise Untestable(
            "the config has one finetuning a model: name another in weights, such as finetuned_1: {seed: 1}"
        )
    draws, basis = e.agreement(pairs)
    return Measured(draws, above=0.95, basis=basis)


@claim(
    PAPER,
    "section 4.3, figure 5 b",
    "Spearman correlation, over models, of accuracy with the best method's IDSDS",
)
def accuracy_trades_off(e: Evidence) -> Measured:
    """Accuracy and attribution quality trade off."""
    cases = in_domain(e)
    if e.accuracy is None or len({e.cases[c].model for c in cases}) < 4:
        raise Untestable("a correlation over fewer than four models says nothing")
    rows = e.accuracy[e.accuracy["in_domain"]].set_index(["dataset", "model", "weights"])["top1_clean"]
    rows = rows[~rows.index.duplicated()]
    keys = [(e.cases[c].dataset, e.cases[c].model, e.cases[c].weights) for c in cases]
    accuracy = np.array([rows.get(key, np.nan) for key in keys], dtype=float)
    best = e.best(cases, e.explaining())
    known = ~np.isnan(accuracy)
    if known.sum() < 4 or np.ptp(accuracy[known]) == 0:
        raise Untestable("the models' accuracies are all the same")
    draws = correlate_ranks(np.broadcast_to(accuracy[known], best[:, known].shape), best[:, known])
    return Measured(draws, below=0, basis=f"networks: {int(known.sum())}")


@claim(
    PAPER,
    "section 4.1, table 3",
    "mean change of top-1 on intact images, in points",
)
def finetuning_keeps_accuracy(e: Evidence) -> Measured:
    """Finetuning with deleted patches keeps the accuracy."""
    return _accuracy_change(e, "top1_clean", above=-2.0)


@claim(
    PAPER,
    "section 4.1, table 3",
    "mean change of top-1 with the worst patch deleted, in points",
)
def finetuning_raises_worst_patch_accuracy(e: Evidence) -> Measured:
    """Finetuning with deleted patches raises the accuracy with the worst patch deleted."""
    return _accuracy_change(e, "top1_worst_patch", above=0.0)


def _accuracy_change(e: Evidence, column: str, above: float) -> Measured:
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
    return Measured(
        np.concatenate([[np.mean(changes)], drawn]), above=above, basis=f"networks, resampled: {len(changes)}"
    )
