"""`heatproof.choose`: which attribution methods can be trusted on one network and its images, and how sure that is."""

from __future__ import annotations

import html
import logging
import sys
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pandas as pd

from heatproof.errors import HeatproofError
from heatproof.metrics.single_deletion import Deletion
from heatproof.options import BatchSize, Bounds, check_arguments
from heatproof.ranking.best import images_to_tell
from heatproof.ranking.verdict import CANNOT_SEE, FOUND, MOSTLY_RIGHT, Verdict, deletion_words, judge
from heatproof.registry import listed

if TYPE_CHECKING:
    import torch
    import xarray

    from heatproof.api.explain import Explaining, NamedMethod
    from heatproof.evaluation import SelectedMetric
    from heatproof.finetuned import Domain

REFERENCES = ("random", "edges")
# Cheap methods of every family but those that delete regions themselves, with the options that cost and change most.
# Those that do not apply say so.
METHODS: tuple[Any, ...] = (
    "saliency",
    "input_x_gradient",
    {"integrated_gradients_8": {"explainer": "integrated_gradients", "steps": 8}},
    {"integrated_gradients_32": {"explainer": "integrated_gradients", "steps": 32}},
    "guided_backprop",
    "grad_cam",
    "hires_cam",
    "layer_cam",
    {"rise_64": {"explainer": "rise", "masks": 64}},
    "attn_lrp",
    "attention_rollout",
    "bcos",
)
# Below it neither half says anything.
LEAST = 16
DELETIONS = ("idsds", "sds")
ABLATES = "deletes regions itself, nearly as measures of deletion do: shown for comparison, and no contender"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """The methods that cannot be told from the best one, on one network and its images.

    Attributes
    ----------
    table
        A row a method that was scored: ``method``, ``options``, ``in_set`` (missing where a measure has too few images
        to tell), a column of scores for each measure with ``low`` and ``high`` ends of their intervals, ``passes``,
        ``seconds`` an image, and ``reason`` where a method is no contender or does not apply. The best come first.
    found
        The verdict and its sentence, by the rule that the workflow has too (`heatproof.ranking.verdict.judge`).
    left_out
        Options that were tried on the first part of the images and lost to others of their explainer.
    measures
        How methods are scored: options of `heatproof.evaluate`, all of them for deletions of single patches, whose
        ``metric`` is ``idsds`` where they are those of the network's finetuning, else ``sds``.
    words
        What each measure does, in words.
    images
        How many images picked the options, and how many are reported on.
    planned
        How many images it takes to tell so many methods apart.
    level
        With which all methods that are the best by a measure are in its set.
    """

    table: pd.DataFrame
    found: Verdict
    left_out: Sequence[str]
    measures: Mapping[str, Mapping[str, Any]]
    words: Mapping[str, str]
    images: tuple[int, int]
    planned: str
    level: float

    @property
    def agreement(self) -> float:
        """Spearman correlation of the orders by two measures, their mean over pairs."""
        return self.found.agreement

    @property
    def verdict(self) -> str:
        """The verdict, in the words of ``verdict.csv``."""
        return self.found.verdict

    @property
    def sentence(self) -> str:
        """The answer in a sentence."""
        return self.found.sentence

    @property
    def methods(self) -> list[str]:
        """What cannot be told from the best by at least one measure, best first."""
        return self.table.loc[self.table["in_set"].fillna(False).astype(bool), "method"].tolist()

    @property
    def sets(self) -> dict[str, list[str]]:
        """Measure to what it cannot tell from the best; empty where it has too few images to tell."""
        return {name: self.found.measures[words].best for name, words in self.words.items()}

    @property
    def best(self) -> str | None:
        """The method that is the best by every measure; None where it is not known."""
        return self.methods[0] if self.verdict == FOUND and len(self.methods) == 1 else None

    @property
    def in_domain(self) -> bool:
        """Whether the first measure deletes the very patches that the network was finetuned on."""
        return next(iter(self.measures.values()))["metric"] == "idsds"

    @property
    def advice(self) -> str:
        """Which of several methods takes the fewest network passes; empty where one method or none is found.

        Passes are the same in every run, as seconds are not; of equal ones the first by name.
        """
        if self.verdict != FOUND or self.best:
            return ""
        inside = self.table[self.table["method"].isin(self.methods)]
        cheapest = inside.sort_values(["passes", "method"]).iloc[0]
        passes = int(cheapest["passes"])
        return f"Among the best, {cheapest['method']} takes the fewest network passes, {passes} an image."

    def __str__(self) -> str:
        shown = self._shown()
        scored = shown[shown["passes"] != ""].drop(columns="reason")
        why = [f"{name}: {reason}." for name, reason in zip(shown["method"], shown["reason"], strict=True) if reason]
        parts = [f"{self.sentence} {self.advice}".strip(), scored.to_string(index=False), "\n".join(why)]
        return "\n\n".join(filter(None, [*parts, self.how]))

    def _shown(self) -> pd.DataFrame:
        """Return the table as text, with a column "score (low to high)" for each measure."""
        rows = []
        for row in self.table.to_dict("records"):
            scores = {
                name: f"{row[name]:.2f} ({row[f'{name}, low']:.2f} to {row[f'{name}, high']:.2f})"
                for name in self.measures
                if not pd.isna(row[name])
            }
            cost = (
                {} if pd.isna(row["passes"]) else {"passes": f"{row['passes']:.0f}", "seconds": f"{row['seconds']:.3f}"}
            )
            inside = "open" if pd.isna(row["in_set"]) else "yes" if row["in_set"] else ""
            rows.append({"method": row["method"], "in set": inside, **scores, **cost})
        columns = ["method", "in set", *self.measures, "passes", "seconds"]
        return pd.DataFrame(rows, columns=columns).fillna("").assign(reason=self.table["reason"].tolist())

    @property
    def how(self) -> str:
        """What was done and what it cannot see, in sentences."""
        kinds = [one["metric"] for one in self.measures.values()]
        parts = [self.planned]
        if set(kinds) & set(DELETIONS):
            parts.append(
                "Each score by deletion of single patches is Spearman's correlation, over the patches of an image, of "
                "a map's sums with the logit lost when the patch is deleted; higher is better."
            )
        parts.append("Intervals (low to high) are over images.")
        if len(kinds) > 1:
            parts.append(
                f"The measures order the methods with a Spearman correlation of {self.agreement:.2f}; at 1 they say "
                "the same thing twice."
            )
        if "sds" in kinds:
            parts.append("By SDS, images without a patch may be outside of the network's domain.")
        if set(kinds) & set(DELETIONS):
            parts.append(CANNOT_SEE)
        if self.left_out:
            parts.append(f"Left out, as other options of the same explainer scored higher: {listed(self.left_out)}.")
        return " ".join(parts)

    def _repr_html_(self) -> str:
        body = self._shown().to_html(index=False, border=0)
        said = html.escape(f"{self.sentence} {self.advice}".strip())
        return f"<p><strong>{said}</strong></p>{body}<p>{html.escape(self.how)}</p>"

    def save(self, path: str | Path) -> Path:
        """Write a page of one file that stands alone, and return where."""
        from heatproof.report.results import render
        from heatproof.storage.files import write_text

        rows = self.table.astype(object).where(self.table.notna(), None).to_dict("records")
        page = render(
            "choice.html",
            title="Which attribution method can be trusted",
            sentence=self.sentence,
            advice=self.advice,
            how=self.how,
            measures=list(self.measures),
            rows=rows,
        )
        write_text(path, page)
        return Path(path)


def choose(
    model: torch.nn.Module,
    images: torch.Tensor,
    targets: Any = None,
    methods: Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    measures: Mapping[str, Mapping[str, Any]] | None = None,
    seed: int = 0,
    level: Annotated[float, Bounds(above=0, below=1)] = 0.95,
    batch_size: BatchSize = 64,
    layer: str | torch.nn.Module | None = None,
    background: torch.Tensor | None = None,
) -> Choice:
    """Find the methods that cannot be told from the best one for a network on some images.

    Of several options of one explainer, and of a signed map and its absolute values, those are picked that score best
    on half of the images; what is reported is of the other half, so that picking flatters nobody. A method is left out
    of a measure's set only if another one is significantly better (`heatproof.ranking.best.best_set`). The answer is
    every method that is in the set of at least one measure: where measures disagree, it says so by being larger. It is
    open where a set holds a map that knows no network, and where there are too few images. With the default methods and
    measures some 150 images go through the network for each image; half of that is RISE, which a list of `methods` of
    your own can leave out.

    Parameters
    ----------
    model
        A classifier in eval mode. For in-domain scores (IDSDS), what `heatproof.finetune` returns: the first measure
        then has the grid and the filling of the finetuning.
    images
        (N, C, H, W), normalised, at least 16; how many it takes is printed before scoring. Other ones than those of the
        finetuning.
    targets
        (N,) integers, the classes that are explained; by default what the network says.
    methods
        As in `heatproof.explain`; by default cheap ones of every family. Those of one explainer are options of it. The
        maps ``random`` and ``edges``, which know no network, are always added. Methods that delete regions themselves,
        as ``occlusion`` and ``feature_ablation``, do nearly what the default measures do: they are shown, and are no
        contenders.
    measures
        Name to a metric with options, as `heatproof.evaluate` takes them, for which higher is better. By default the
        single-deletion score with two fillings: that of the finetuning, else the mean colour, and blur. These are no
        independent witnesses, because both delete the same patches.
    seed, level
        Of the split and the resamples, and the probability with which all methods that are the best are in a set.
    batch_size, layer, background
        As in `heatproof.explain`.

    Returns
    -------
    Choice
        Prints, shows itself in a notebook, and saves a page that stands alone.

    Raises
    ------
    HeatproofError
        If there are too few images, a measure is better when lower, or as in `heatproof.explain` and
        `heatproof.evaluate`.

    Warns
    -----
    UserWarning
        If images are those of the finetuning, targets are seldom what the network answers, or scores that were asked
        for as IDSDS are SDS.
    """
    import torch

    from heatproof.api.explain import Explaining, layer_name, selected
    from heatproof.evaluation import check_batch, check_images, selected_metrics, warn_of_range
    from heatproof.finetuned import domain_of, image_digests, warn_out_of_domain
    from heatproof.models.adapter import adapted, check_network, predicted, warn_of_probabilities

    if not isinstance(model, torch.nn.Module):
        raise HeatproofError(f"The model is {type(model).__name__}: give a torch.nn.Module, whose layers can be read.")
    layer = layer_name(model, layer)
    check_arguments(choose, locals(), "measures", "background")
    images = check_images(images)
    if len(images) < LEAST:
        raise HeatproofError(f"{len(images)} images tell nothing of methods: give at least {LEAST}, better 100.")
    warn_of_range(images)
    asked = {one.name: one for one in selected(METHODS if methods is None else methods)}
    asked |= {name: selected(name)[0] for name in REFERENCES if name not in asked}
    domain = domain_of(model)
    metrics = selected_metrics(measures or _measures(images, domain), {}, domain)
    for name, scored in metrics.items():
        if not scored.entry.higher(scored.options):
            raise HeatproofError(
                f"The measure {name!r} is {scored.entry.name!r}, for which lower is better: take one for which higher "
                "is better, and rank by others with heatproof.compare."
            )
    if measures:
        warn_out_of_domain([one.options for one in metrics.values() if one.is_renamed], domain)
    _warn_of_trained_on(images, domain)
    labels = None if targets is None else check_batch(images, targets)[1]
    with adapted(model, images, seed) as network:
        network.check_precision(images)
        # In an order of their own, so that the order in which they are given decides nothing.
        digests = image_digests(images)
        order = sorted(range(len(images)), key=lambda row: (digests[row], 0 if labels is None else int(labels[row])))
        run = Explaining(network, images[order], seed, batch_size, layer, background)
        check_network(network, run.images[run.first])
        answers = predicted(network, run.images)
        run.labels, run.ids = answers, _unique([digests[row] for row in order])
        right = None
        if labels is not None:
            run.labels = labels[order].cpu()
            network.check_targets(run.labels, [str(row) for row in order])
            right = run.labels == answers
            _warn_of_targets(right)
        warn_of_probabilities(network)
        return _answer(_Judge(run, asked, metrics, level), domain, right)


def _answer(judging: _Judge, domain: Domain, right: torch.Tensor | None) -> Choice:
    """Return what can be said of methods on a checked network; `right` (N,) tells where it answers with the target."""
    import torch

    run, asked, level = judging.run, judging.asked, judging.level
    scorers, words = _described(judging.metrics)
    count = len(run.ids)
    drawn = torch.randperm(count, generator=torch.Generator().manual_seed(run.seed))
    first, second = (rows.sort().values for rows in (drawn[: count // 2], drawn[count // 2 :]))
    kinds = {one.entry.name if one.entry else one.name for one in asked.values() if not one.ablates}
    planned = _planned(len(kinds), len(second), level)
    print(planned)
    _tell(f"First half: {len(first)} images pick options of {len(asked)} methods.")
    tried = judging.scored(first, asked)
    # Of each explainer the row with the highest mean score, whatever its options and with signs or without.
    means = np.mean([np.nan_to_num(values).mean(1) for values in tried.scores.values()], axis=0)
    best: dict[str, str] = {}
    for place in np.argsort(-means, kind="stable"):
        row = tried.rows[place]
        one = asked[tried.parent[row]]
        best.setdefault(one.entry.name if one.entry else one.name, row)
    parents = {tried.parent[row] for row in best.values()}
    _tell(f"Second half: {len(second)} images score {len(parents)} methods.")
    reported = judging.scored(second, {name: one for name, one in asked.items() if name in parents})
    rows = [row for row in reported.rows if row in best.values()]
    outside = [row for row in rows if asked[tried.parent[row]].ablates]
    found = judge(
        {words[name]: table.loc[rows] for name, table in reported.tables.items()},
        REFERENCES,
        f"on the {'finetuned' if domain.finetuned else 'given'} weights",
        level=level,
        ablating=outside,
        right=None if right is None else int(right[second].sum()),
    )
    table = _table(reported, rows, outside, found, run.seed, level)
    # A method can fail on the second half alone.
    reasons = pd.concat([one.made["reason"].to_series() for one in (tried, reported)])
    gaps = reasons[reasons != ""].reset_index().drop_duplicates("method").assign(in_set=False)
    return Choice(
        pd.concat([table, gaps] if len(gaps) else [table], ignore_index=True),
        found,
        [row for row in tried.rows if row not in best.values()],
        scorers,
        words,
        (len(first), len(second)),
        planned,
        level,
    )


@dataclass(frozen=True)
class _Scored:
    """Maps of some images, with signs and without, and their scores."""

    made: xarray.Dataset
    parent: Mapping[str, str]
    scores: Mapping[str, np.ndarray]

    @property
    def rows(self) -> list[str]:
        """Names of the M rows that have maps."""
        return list(self.parent)

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """Measure to its scores, a row a method and a column an image."""
        return {name: pd.DataFrame(values, self.rows) for name, values in self.scores.items()}


@dataclass(frozen=True)
class _Judge:
    """Images of a checked network, the methods, and how their maps are scored."""

    run: Explaining
    asked: Mapping[str, NamedMethod]
    metrics: Mapping[str, SelectedMetric]
    level: float

    def scored(self, rows: torch.Tensor, asked: Mapping[str, NamedMethod]) -> _Scored:
        """Return the scores of methods on some of the images."""
        from heatproof.evaluation import score_all
        from heatproof.models.memory import batch_size_of
        from heatproof.responses.base import Batch, Session

        run = self.run.part(rows)
        made = run.dataset(list(asked.values()))
        parents = {name: one.name for one in asked.values() for name in one.maps}
        maps, parent = {}, {}
        for name in made["method"].values[made["reason"].values == ""].tolist():
            one = made.sel({"method": name})
            maps[name], parent[name] = one["attribution"].values, parents[name]
            if one["signed"] and name not in REFERENCES:
                maps[f"{name}_abs"], parent[f"{name}_abs"] = np.abs(maps[name]), parents[name]
        network = run.network
        session = Session(
            open_network=lambda: network.network,
            device=network.device,
            batch_size=batch_size_of(run.batch_size, network.device),
            seed=run.seed,
        )
        batch = Batch(run.images, run.labels, run.ids)
        found = score_all(session, batch, self.metrics, np.stack(list(maps.values()), axis=1), list(maps))
        scores = {name: np.stack([scored[method]["score"].values for method in maps]) for name, scored in found.items()}
        return _Scored(made, parent, scores)


def _tell(line: str) -> None:
    """Say how far it is, where somebody waits."""
    from heatproof.batches import is_watched

    if is_watched():
        sys.stderr.write(f"{line}\n")
    else:
        log.info(line)


def _planned(methods: int, reported: int, level: float) -> str:
    """Return how many images tell so many methods apart, and whether there are as many."""
    needed = images_to_tell(methods, level=level)
    enough = "" if reported >= needed else " With fewer, the answer is often open."
    return (
        f"{reported} images are reported on, and the other half picks options. For a probability of 0.8 to tell two of "
        f"{methods} methods and reference maps apart whose paired difference is half its standard deviation (d = 0.5), "
        f"{needed} reported images are needed, {2 * needed} in all.{enough}"
    )


def _warn_of_trained_on(images: torch.Tensor, domain: Domain) -> None:
    """Warn the caller of `choose` of images that its network was finetuned on."""
    from heatproof.finetuned import image_digests

    known = set(domain.record.get("images", ()))
    seen = sum(one in known for one in image_digests(images)) if known else 0
    if seen:
        warnings.warn(
            f"The network was finetuned on {seen} of the {len(images)} images, which may flatter some methods: choose "
            "on images that it has not seen.",
            stacklevel=3,
        )


def _unique(names: Sequence[str]) -> list[str]:
    """Return names, with a number after each that was there before."""
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        found.append(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found


def _warn_of_targets(right: torch.Tensor) -> None:
    """Warn the caller of `choose` where the network seldom answers with the target."""
    if right.double().mean() < MOSTLY_RIGHT:
        warnings.warn(
            f"The network answers with the target on {int(right.sum())} of {len(right)} images: if the targets are "
            "labels, check that their numbers are the network's classes.",
            stacklevel=3,
        )


def _measures(images: torch.Tensor, domain: Domain) -> dict[str, dict[str, Any]]:
    """Return the default measures: the filling of the finetuning, else the mean colour of the images, and another."""
    mean = {"baseline": "mean", "baseline_options": {"value": images.double().mean((0, 2, 3)).tolist()}}
    blur: dict[str, Any] = {"baseline": "blur"}
    first, second = mean, blur
    if domain.finetuned is not None:
        first = {"baseline": domain.finetuned.baseline, "baseline_options": domain.record["baseline_options"]}
        second = {"baseline": "mean"} if domain.finetuned.baseline == "blur" else blur
    found = {}
    for place, one in enumerate((first, second)):
        family = "IDSDS" if domain.finetuned is not None and not place else "SDS"
        found[f"{family}, {Deletion(domain.reference[0], one['baseline'])}"] = {"metric": "idsds", **one}
    return found


def _described(metrics: Mapping[str, Any]) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return each measure as `heatproof.evaluate` takes it, by the name that fits what it does, and in words."""
    from heatproof.finetuned import deletion_of

    scorers, words = {}, {}
    for name, one in metrics.items():
        # An option that is left out is no option that is None.
        scorers[name] = {"metric": one.told, **{key: value for key, value in one.options.items() if value is not None}}
        words[name] = one.entry.name
        if one.told in DELETIONS:
            words[name] = deletion_words(deletion_of(one.options), one.told, one.options["output"])
    # Measures may differ in what these words do not tell.
    alike = [told for told in words.values() if list(words.values()).count(told) > 1]
    return scorers, {name: f"{told}, {name!r}" if told in alike else told for name, told in words.items()}


def _table(
    scored: _Scored, rows: list[str], outside: Sequence[str], found: Verdict, seed: int, level: float
) -> pd.DataFrame:
    """Return the chosen rows, the best first and those that are no contenders last."""
    from heatproof.metrics.bootstrap import summarise

    columns: dict[str, Any] = {"method": list(rows)}
    abstains = any(one.why for one in found.measures.values())
    columns["in_set"] = pd.array([pd.NA if abstains else row in found.best for row in rows], dtype="boolean")
    contends = np.array([row not in outside for row in rows])
    means = []
    for name, table in scored.tables.items():
        told = summarise(table.loc[rows].to_numpy(), seed, level=level)
        columns |= {name: told["mean"], f"{name}, low": told["ci_low"], f"{name}, high": told["ci_high"]}
        means.append(told["mean"])
    known = scored.made.indexes["method"]
    facts = scored.made.sel({"method": [row if row in known else row.removesuffix("_abs") for row in rows]})
    columns |= {key: facts[key].values.tolist() for key in ("passes", "seconds", "options")}
    mean = pd.DataFrame(means).mean().to_numpy()
    made = pd.DataFrame(columns).astype({"passes": "Int64"})
    made["reason"] = np.where(contends, "", ABLATES)
    inside = np.array([row in found.best for row in rows])
    return made.iloc[np.lexsort((-mean, ~inside, ~contends))]
