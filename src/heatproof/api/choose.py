"""`heatproof.choose`: which attribution methods can be trusted on one network and its images, and how sure that is."""

from __future__ import annotations

import html
import json
import logging
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from heatproof.errors import HeatproofError
from heatproof.options import BatchSize, Bounds, check_arguments

if TYPE_CHECKING:
    import pandas as pd
    import torch
    import xarray

    from heatproof.api.explain import Asked

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
ABLATES = "deletes regions itself, nearly as measures of deletion do: shown for comparison, and no contender"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """The methods that cannot be told from the best one, on one network and its images.

    Attributes
    ----------
    table
        A row a method that was scored: ``method``, ``options``, ``in_set``, a column of scores for each measure with
        ``low`` and ``high`` ends of their intervals, ``passes``, ``seconds`` an image, and ``reason`` where a method
        is no contender or does not apply. The best come first.
    sets
        Measure to the methods that it cannot tell from the best.
    left_out
        Options that were tried on the first part of the images and lost to others of their explainer.
    measures
        How methods are scored: options of `heatproof.evaluate`.
    images
        How many images picked the options, and how many are reported on.
    level
        With which all methods that are the best by a measure are in its set.
    in_domain
        Whether images without a patch are in the domain of the network (`heatproof.finetune`).
    agreement
        Spearman correlation of the orders by two measures, their mean over pairs.
    """

    table: pd.DataFrame
    sets: Mapping[str, Sequence[str]]
    left_out: Sequence[str]
    measures: Mapping[str, Mapping[str, Any]]
    images: tuple[int, int]
    level: float
    in_domain: bool
    agreement: float

    @property
    def methods(self) -> list[str]:
        """The methods that cannot be told from the best by at least one measure, best first."""
        return self.table.loc[self.table["in_set"], "method"].tolist()

    @property
    def best(self) -> str | None:
        """The method that is the best by every measure; None where it is not known."""
        return self.methods[0] if len(self.methods) == 1 and not self._references() else None

    def _references(self) -> list[str]:
        return [name for name in self.methods if name in REFERENCES]

    @property
    def sentence(self) -> str:
        """The answer in a sentence."""
        scored = int((self.table["reason"] == "").sum()) - len(REFERENCES)
        if not scored:
            return "Open: no contender has a score on these images."
        if self._references():
            measures = [name for name, rows in self.sets.items() if not set(rows).isdisjoint(REFERENCES)]
            return (
                f"Open: on these {self.images[1]} images no method can be told from a map that knows no network "
                f"({', '.join(self._references())}) by {' and by '.join(measures)}. More images may settle it."
            )
        names = self.methods
        if not names:
            return "Open: no method has a score on these images."
        if len(names) == 1:
            by = f"by {next(iter(self.measures))}"
            if len(self.measures) > 1:
                by = (
                    f"by each of {len(self.measures)} measures, whose orders of the methods correlate with "
                    f"{self.agreement:.2f} (at 1 they would say the same thing)"
                )
            return f"{names[0]} is the best of {scored} methods on this network, at {self.level:.0%}, {by}."
        cheapest = self.table[self.table["in_set"]].sort_values("seconds").iloc[0]
        passes = int(cheapest["passes"])
        return (
            f"{len(names)} of {scored} methods cannot be told from the best on this network, at {self.level:.0%}: "
            f"{', '.join(names)}. {cheapest['method']} costs least, with {passes} "
            f"pass{'es' * (passes != 1)} an image."
        )

    def __str__(self) -> str:
        shown = self._shown()
        scored = shown[shown["passes"] != ""].drop(columns="reason")
        why = [f"{name}: {reason}." for name, reason in zip(shown["method"], shown["reason"], strict=True) if reason]
        return "\n\n".join(filter(None, [self.sentence, scored.to_string(index=False), "\n".join(why), self.how]))

    def _shown(self) -> pd.DataFrame:
        """Return the table as text, with a column "score (low to high)" for each measure."""
        import pandas as pd

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
            rows.append({"method": row["method"], "in set": "yes" if row["in_set"] else "", **scores, **cost})
        columns = ["method", "in set", *self.measures, "passes", "seconds"]
        return pd.DataFrame(rows, columns=columns).fillna("").assign(reason=self.table["reason"].tolist())

    @property
    def _outside(self) -> list[str]:
        """The methods that have scores and are no contenders."""
        return self.table.loc[self.table["reason"] == ABLATES, "method"].tolist()

    @property
    def how(self) -> str:
        """What was done, in sentences."""
        domain = (
            "The network was finetuned on images without a patch, so that they are in its domain (IDSDS)."
            if self.in_domain
            else "The network was not finetuned: images without a patch may be outside its domain (SDS)."
        )
        outside = self._outside
        are = "deletes regions itself, which is" if len(outside) == 1 else "delete regions themselves, which is"
        # What such a map is has to be said where its score stands beside the others'.
        told = (
            f"{' and '.join(outside)} {are} nearly what measures of deletion do: shown, but no contender. "
            if outside
            else ""
        )
        return (
            f"Options were picked on {self.images[0]} images, and scores are of {self.images[1]} others. Each score of "
            "patch deletion is Spearman's correlation, over the patches of an image, of a map's sums with the logit "
            "lost when the patch is deleted; higher is better. Intervals (low to high) are over images. The measures "
            f"({' and '.join(self.measures)}) order the methods with a Spearman correlation of {self.agreement:.2f}. "
            f"{told}{domain}"
        )

    def _repr_html_(self) -> str:
        body = self._shown().to_html(index=False, border=0)
        return f"<p><strong>{html.escape(self.sentence)}</strong></p>{body}<p>{html.escape(self.how)}</p>"

    def save(self, path: str | Path) -> Path:
        """Write a page of one file that stands alone, and return where."""
        from heatproof.files import write_text
        from heatproof.report.results import render

        rows = json.loads(self.table.to_json(orient="records"))
        page = render(
            "choice.html",
            title="Which attribution method can be trusted",
            sentence=self.sentence,
            how=self.how,
            measures=list(self.measures),
            rows=rows,
            left_out=", ".join(self.left_out),
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
    of a measure's set only if another one is significantly better (`heatproof.ranking.best.best_set`, Hsu 1996). The
    answer is every method that is in the set of at least one measure: where measures disagree, it says so by being
    larger. With the default methods and measures some 150 images go through the network for each image; half of that
    is RISE, which a list of `methods` of your own can leave out.

    Parameters
    ----------
    model
        A classifier in eval mode. For in-domain scores (IDSDS), what `heatproof.finetune` returns.
    images
        (N, C, H, W), normalised, at least 16.
    targets
        (N,) integers; by default what the network says.
    methods
        As in `heatproof.explain`; by default cheap ones of every family. Those of one explainer are options of it. The
        maps ``random`` and ``edges``, which know no network, are always added. Methods that delete regions themselves,
        as ``occlusion`` and ``feature_ablation``, do nearly what the default measures do: they are shown, and are no
        contenders.
    measures
        Name to a metric with options, as `heatproof.evaluate` takes them; higher is better. By default the single
        deletion score with two fills, the mean colour and blur.
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
        If there are too few images, or as in `heatproof.explain` and `heatproof.evaluate`.
    """
    import torch

    from heatproof.api.explain import layer_name, selected
    from heatproof.evaluation import check_batch, check_images, warn_of_range

    layer = layer_name(model, layer)
    check_arguments(choose, locals(), "measures", "background")
    images = check_images(images)
    if len(images) < LEAST:
        raise HeatproofError(f"{len(images)} images tell nothing of methods: give at least {LEAST}, better 100.")
    images, labels, _ = check_batch(images, _said(model, images) if targets is None else targets)
    warn_of_range(images)
    asked = {one.name: one for one in selected(METHODS if methods is None else methods)}
    asked |= {name: selected(name)[0] for name in REFERENCES if name not in asked}
    scorers = {name: dict(own) for name, own in (measures or _measures(images)).items()}
    given = {"seed": seed, "batch_size": batch_size}
    judge = _Judge(model, images, labels, scorers, given, {"layer": layer, "background": background})
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    first, second = (rows.sort().values for rows in (order[: len(images) // 2], order[len(images) // 2 :]))
    _tell(f"First half: {len(first)} images pick options of {len(asked)} methods.")
    tried = judge(first, asked)
    # Of each explainer the row with the highest mean score, whatever its options and with signs or without.
    means = np.mean([np.nan_to_num(values).mean(1) for values in tried.scores.values()], axis=0)
    best: dict[str, str] = {}
    for place in np.argsort(-means, kind="stable"):
        row = tried.rows[place]
        one = asked[tried.parent[row]]
        best.setdefault(one.entry.name if one.entry else one.name, row)
    parents = {tried.parent[row] for row in best.values()}
    _tell(f"Second half: {len(second)} images score {len(parents)} methods.")
    reported = judge(second, {name: one for name, one in asked.items() if name in parents})
    outside = {row for row in best.values() if asked[tried.parent[row]].ablates}
    table, sets, agreement = _table(reported, set(best.values()), outside, tried.made["reason"], seed, level)
    return Choice(
        table,
        sets,
        [row for row in tried.rows if row not in best.values()],
        scorers,
        (len(first), len(second)),
        level,
        hasattr(model, "heatproof"),
        agreement,
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


@dataclass(frozen=True)
class _Judge:
    """A network and its images, and how maps of them are scored."""

    model: Any
    images: torch.Tensor
    labels: torch.Tensor
    measures: Mapping[str, Mapping[str, Any]]
    given: Mapping[str, Any]
    of_maps: Mapping[str, Any]

    def __call__(self, rows: torch.Tensor, asked: Mapping[str, Asked]) -> _Scored:
        """Return the scores of methods on some of the images."""
        with warnings.catch_warnings():
            # The caller has been told of all images at once.
            warnings.filterwarnings("ignore", message="The images reach")
            return self._score(rows, asked)

    def _score(self, rows: torch.Tensor, asked: Mapping[str, Asked]) -> _Scored:
        from heatproof.api.explain import explain
        from heatproof.evaluation import evaluate

        given = {**self.given, "image_ids": [str(int(row)) for row in rows]}
        images, labels = self.images[rows], self.labels[rows]
        made = explain(self.model, images, labels, asked, **self.of_maps, **given)
        parents = {name: one.name for one in asked.values() for name in one.maps}
        maps, parent = {}, {}
        for name in made["method"].values[made["reason"].values == ""].tolist():
            one = made.sel({"method": name})
            maps[name], parent[name] = one["attribution"].values, parents[name]
            if one["signed"] and name not in REFERENCES:
                maps[f"{name}_abs"], parent[f"{name}_abs"] = np.abs(maps[name]), parents[name]
        found = evaluate(self.measures, self.model, images, labels, maps, **given)
        return _Scored(made, parent, {name: result["score"].values for name, result in found.items()})


def _tell(line: str) -> None:
    """Say how far it is, where somebody waits."""
    from heatproof.batches import is_watched

    if is_watched():
        sys.stderr.write(f"{line}\n")
    else:
        log.info(line)


def _table(
    scored: _Scored, chosen: set[str], outside: set[str], reasons: xarray.DataArray, seed: int, level: float
) -> tuple[pd.DataFrame, dict[str, list[str]], float]:
    """Return the rows that were chosen, best first; the set of each measure; and how far measures agree.

    Those outside of the competition come after the contenders, and the methods that do not apply last, with their
    reasons.
    """
    import pandas as pd

    from heatproof.metrics.bootstrap import summarise
    from heatproof.ranking.best import best_set

    places = [place for place, row in enumerate(scored.rows) if row in chosen]
    rows = [scored.rows[place] for place in places]
    columns: dict[str, Any] = {"method": rows, "in_set": np.zeros(len(rows), dtype=bool)}
    contends = np.array([row not in outside for row in rows])
    sets, means = {}, []
    for name, values in scored.scores.items():
        member, found = np.zeros(len(rows), dtype=bool), summarise(values[places], seed, level=level)
        member[contends] = best_set(values[places][contends], seed=seed, level=level)
        columns["in_set"] |= member
        columns |= {name: found["mean"], f"{name}, low": found["ci_low"], f"{name}, high": found["ci_high"]}
        sets[name] = [row for row, is_in in zip(rows, member, strict=True) if is_in]
        means.append(found["mean"])
    known = scored.made.indexes["method"]
    told = scored.made.sel({"method": [row if row in known else row.removesuffix("_abs") for row in rows]})
    columns |= {key: told[key].values.tolist() for key in ("passes", "seconds", "options")}
    table = pd.DataFrame(columns).astype({"passes": "Int64"})
    table["reason"] = np.where(contends, "", ABLATES)
    mean = np.nanmean(means, axis=0)
    table = table.iloc[np.lexsort((-mean, ~columns["in_set"], ~contends))]
    ranks = pd.DataFrame(np.transpose(means)[contends]).rank().corr().to_numpy()
    agreement = float(ranks[np.triu_indices(len(means), 1)].mean()) if len(means) > 1 else 1.0
    gaps = reasons[reasons.values != ""].to_series().reset_index().assign(in_set=False)
    return pd.concat([table, gaps] if len(gaps) else [table], ignore_index=True), sets, agreement


def _measures(images: torch.Tensor) -> dict[str, dict[str, Any]]:
    """Return the default measures, with the mean colour of the images."""
    colour = {"value": images.double().mean((0, 2, 3)).tolist()}
    return {
        "patch deletion, mean colour": {"metric": "idsds", "baseline": "mean", "baseline_options": colour},
        "patch deletion, blur": {"metric": "idsds", "baseline": "blur"},
    }


def _said(model: Any, images: torch.Tensor) -> torch.Tensor:
    """Return the class that the network predicts for each image."""
    import torch

    from heatproof.evaluation import device_of

    device = device_of(model, images.device)
    with torch.inference_mode():
        outputs = [model(part.to(device)) for part in images.split(64)]
    return torch.cat([getattr(output, "logits", output).argmax(1).cpu() for output in outputs]).clone()
