"""`heatproof.choose`: which attribution methods can be trusted on one network and its images, and how sure that is."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pandas as pd

from heatproof.api.choice import BY_LABEL, DELETIONS, Choice, typed_table
from heatproof.base.class_order import MOSTLY_RIGHT, describe_exchange
from heatproof.base.methods import Method, methods_of
from heatproof.base.options import BatchSize, Bounds, check_arguments
from heatproof.base.tasks import task_provides
from heatproof.errors import HeatproofError
from heatproof.metrics.single_deletion import PatchDeletion
from heatproof.ranking.best import images_to_distinguish
from heatproof.ranking.verdict import FOUND, TOO_FEW, Verdict, describe_deletion, describe_low_accuracy, judge

if TYPE_CHECKING:
    import torch

    from heatproof.api.evaluate import SelectedMetric
    from heatproof.api.explain import ExplainRun
    from heatproof.api.named_methods import NamedMethod
    from heatproof.inputs.finetuned import Domain
    from heatproof.inputs.source import ImageSource
    from heatproof.models.adapter import AdaptedNetwork

REFERENCES = ("random", "edges")
# Cheap methods of every family but those that delete regions themselves, with the options that cost and change most.
# Those that do not apply say so.
DEFAULT_METHODS: tuple[Any, ...] = (
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


def choose(
    model: torch.nn.Module,
    images: Any,
    targets: Any = None,
    methods: Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    task: str | None = None,
    target: Callable[[Any, Any], torch.Tensor] | None = None,
    measures: Mapping[str, Mapping[str, Any]] | None = None,
    seed: int = 0,
    level: Annotated[float, Bounds(above=0, below=1)] = 0.95,
    batch_size: BatchSize = 64,
    layer: str | torch.nn.Module | None = None,
    background: torch.Tensor | None = None,
    classes: Sequence[int | str] | None = None,
    transform: Callable[[Any], Any] | None = None,
    progress: bool | None = None,
    cache: str | Path | None = None,
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
        A network in eval mode. For in-domain scores (IDSDS), what `heatproof.finetune` returns: the first measure
        then has the grid and the filling of the finetuning.
    images
        As in `heatproof.explain`, at least 16; how many it takes is printed before scoring. Other ones than those of
        the finetuning.
    targets
        As in `heatproof.explain`; by default the labels that come with the images, else what the network says. Where
        images have several labels, or several targets of a function, every pair of an image and a target is explained
        and scored. Scores of one image are averaged before anything is tested, so that more labels an image make no
        interval narrower, and images of one picture stay in one half.
    methods
        As in `heatproof.explain`; by default cheap ones of every family. Those of one explainer are options of it. The
        maps ``random`` and ``edges``, which know no network, are always added. Methods that delete regions themselves,
        as ``occlusion`` and ``feature_ablation``, do nearly what the default measures do: they are shown, and are no
        contenders.
    task, target
        As in `heatproof.explain`.
    measures
        Name to a metric with options, as `heatproof.evaluate` takes them, for which higher is better. By default the
        single-deletion score with two fillings: that of the finetuning, else the mean colour, and blur. These are no
        independent witnesses, because both delete the same patches.
    seed, level
        Of the split and the resamples, and the probability with which all methods that are the best are in a set.
    batch_size, layer, background, classes, transform, progress, cache
        As in `heatproof.explain`; the cache keeps what scores are of as well.

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
    from heatproof.api.cache import locked_cache
    from heatproof.api.explain import ExplainRun, layer_name
    from heatproof.api.named_methods import select_methods
    from heatproof.base.batches import show_progress
    from heatproof.inputs.arrays import warn_of_range
    from heatproof.inputs.finetuned import domain_of, warn_out_of_domain
    from heatproof.inputs.labels import align_options, select_option_rows
    from heatproof.inputs.read import read_inputs
    from heatproof.inputs.targets import TargetSpec, check_columns
    from heatproof.models.adapter import adapt_network, check_network
    from heatproof.models.probabilities import check_no_probabilities, warn_of_probabilities
    from heatproof.models.reachable import require_module

    require_module(model)
    layer = layer_name(model, layer)
    check_arguments(choose, locals(), "task", "target", "measures", "background", "classes", "transform", "cache")
    asked = {one.name: one for one in select_methods(DEFAULT_METHODS if methods is None else methods)}
    asked |= {name: select_methods(name)[0] for name in REFERENCES if name not in asked}
    target_spec = TargetSpec(task, target)
    domain = domain_of(model, images, target_spec.kind)
    metrics = _selected(measures, domain) if measures else {}
    if measures:
        warn_out_of_domain([one.options for one in metrics.values() if one.is_renamed], domain)
    opened = adapt_network(model, images, seed, target_spec.reader())
    with locked_cache(cache) as root, opened as network, show_progress(progress):
        given = read_inputs(
            model, images, targets, classes=classes, transform=transform, network=network, target_spec=target_spec
        )
        seen = list(dict.fromkeys(given.digests)) if given.has_label_rows else given.digests
        if len(seen) < LEAST:
            raise HeatproofError(f"{len(seen)} images tell nothing of methods: give at least {LEAST}, better 100.")
        _warn_of_trained_on(seen, domain)
        network.check_precision(given.read([0]))
        assert given.targets is not None, "read_inputs found them"
        explained = given.explained if given.has_label_rows else given.targets.tolist()
        _check_distinct(list(zip(given.digests, explained, strict=True)) if given.has_label_rows else seen)
        # In an order of their own, so that the order in which they are given decides nothing.
        order = sorted(range(len(given)), key=lambda row: (given.digests[row], explained[row]))
        digests = [given.digests[row] for row in order]
        source = replace(given.take(order), ids=_unique(digests))
        run = ExplainRun(network, source, digests, seed, batch_size, layer, background)
        few = source.read(run.first)
        warn_of_range(given.images if given.is_checked else few, model)
        network.check_precision(few)
        check_network(network, few, with_gradients=root is not None)
        check_columns(network, given)
        right = _answered(network, source) if given.is_labelled else None
        check_no_probabilities(network)
        warn_of_probabilities(network)
        metrics = metrics or _selected(_measures(source, domain), domain)
        _check_needs(metrics, network.task)
        known: dict[int, Any] = {}
        joined = {key: align_options(one.options, given, known) for key, one in metrics.items()}
        metrics = {
            key: one._replace(options=select_option_rows(joined[key], order, len(given)))
            for key, one in metrics.items()
        }
        run.cache = run.open_cache(root, target_spec)
        return _answer(_Judge(run, asked, metrics, level), domain, right)


def _answered(network: AdaptedNetwork, source: ImageSource) -> torch.Tensor | None:
    """Return whether a checked network answers with the target of each row (N,); None where it gives a number alone.

    It warns the caller of `choose` where it seldom does.
    """
    import torch

    from heatproof.models.adapter import logits_at, predict_classes

    assert source.targets is not None, "read_inputs found them"
    assert network.logits is not None, "the network is checked"
    targets = source.targets.cpu()
    if not task_provides(network.task, "decision"):
        return None
    if source.kind:
        parts = [logits_at(network, part, targets[list(rows)]) for rows, part in source.batches()]
        right = torch.cat(parts) > 0
        if int(right.sum()) < MOSTLY_RIGHT * len(right):
            warnings.warn(
                f"The network finds {int(right.sum())} of {len(right)} labels (a logit above 0): check that the "
                "columns of the targets are in the order of its outputs.",
                stacklevel=3,
            )
        return right
    answers = torch.cat([predict_classes(network, part) for _, part in source.batches()]).cpu()
    _warn_of_targets(answers.numpy(), targets.numpy(), network.logits.shape[1])
    return targets == answers


def _check_needs(metrics: Mapping[str, SelectedMetric], task: str) -> None:
    """Refuse measures that read what a task does not give."""
    for name, one in metrics.items():
        if reason := one.entry.unsupported_reason(task, one.options):
            raise HeatproofError(f"The measure {name!r} does not apply, as {reason}; sds reads any number.")


def _selected(measures: Mapping[str, Mapping[str, Any]], domain: Domain) -> dict[str, SelectedMetric]:
    """Return the metrics of measures, for which higher is better."""
    from heatproof.api.evaluate import select_metrics

    metrics = select_metrics(measures, {}, domain)
    for name, scored in metrics.items():
        if not scored.entry.is_higher_better(scored.options):
            raise HeatproofError(
                f"The measure {name!r} is {scored.entry.name!r}, for which lower is better: take one for which higher "
                "is better, and rank by others with heatproof.compare."
            )
    return metrics


def _answer(judging: _Judge, domain: Domain, right: torch.Tensor | None) -> Choice:
    """Return what can be said of methods on a checked network; `right` (N,) tells where it answers with the target."""
    import torch

    from heatproof.base.batches import report_progress

    run, asked, level = judging.run, judging.asked, judging.level
    scorers, words = _described(judging.metrics)
    # Rows of one picture stay together.
    pictures = _pictures(run)
    count = int(pictures.max()) + 1
    drawn = torch.randperm(count, generator=torch.Generator().manual_seed(run.seed))
    halves = [rows.sort().values for rows in (drawn[: count // 2], drawn[count // 2 :])]
    first, second = (torch.isin(pictures, half).nonzero().flatten() for half in halves)
    images = len(halves[0]), len(halves[1])
    kinds = {_kind(one) for one in asked.values() if not one.ablates}
    planned = _planned(len(kinds), images[1], level)
    print(planned)
    report_progress(f"First half: {images[0]} images pick options of {len(asked)} methods.")
    tried = judging.scored(first, asked)
    # Of each explainer the row with the highest mean score, whatever its options and with signs or without.
    means = np.mean([np.nan_to_num(values).mean(1) for values in tried.scores.values()], axis=0)
    best: dict[str, str] = {}
    for place in np.argsort(-means, kind="stable"):
        row = tried.rows[place]
        if row not in tried.undefined:
            best.setdefault(_kind(asked[tried.parent[row]]), row)
    parents = {tried.parent[row] for row in best.values()}
    report_progress(f"Second half: {images[1]} images score {len(parents)} methods.")
    picked = {name: one for name, one in asked.items() if name in parents}
    reported = judging.scored(second, picked, set(best.values()))
    rows = reported.rows
    outside = [row for row in rows if asked[tried.parent[row]].ablates]
    where = f"on the {'finetuned' if domain.finetuned else 'given'} weights"
    of_images = right is not None and not run.source.kind
    found = judge(
        {words[name]: table.loc[rows] for name, table in reported.tables.items()},
        REFERENCES,
        where,
        level=level,
        ablating=outside,
        right=int(right[second].sum()) if right is not None and of_images else None,
    )
    if right is not None and not of_images and found.verdict == FOUND:
        told = describe_low_accuracy(int(right[second].sum()), len(second), of_labels=True)
        found = replace(found, sentence=found.sentence + told)
    table = _table(reported, rows, outside, found, run.seed, level)
    unscored = {
        name: reason for name, reason in tried.undefined.items() if _kind(asked[tried.parent[name]]) not in best
    }
    raw = {one.name for one in tried.methods if one.transform == "raw"}
    missing = {**tried.gaps, **{name: reason for name, reason in unscored.items() if name in raw}, **reported.gaps}
    gaps = pd.DataFrame({"method": list(missing), "reason": list(missing.values()), "in_set": False})
    return Choice(
        typed_table(pd.concat([table, gaps] if len(gaps) else [table], ignore_index=True)),
        found,
        [row for row in tried.rows if row not in best.values() and row not in unscored],
        scorers,
        words,
        images,
        planned,
        level,
        run.network.check_passes,
        _by_label(run, second, reported, words, where, outside, level) if run.source.kind == "multilabel" else None,
    )


def _pictures(run: ExplainRun) -> torch.Tensor:
    """Return the number of the picture of each row (N,), from 0: rows of labels of one image are of one picture."""
    import torch

    if not run.source.has_label_rows:
        return torch.arange(len(run.digests))
    numbers = {one: number for number, one in enumerate(dict.fromkeys(run.digests))}
    return torch.tensor([numbers[one] for one in run.digests])


def _of_pictures(values: np.ndarray, pictures: np.ndarray) -> np.ndarray:
    """Return the mean (M, P) over the rows of each picture of values (M, N); NaN where none is defined."""
    count = int(pictures.max()) + 1
    if count == len(pictures):
        return values
    defined = ~np.isnan(values)
    sums, counts = np.zeros((2, len(values), count))
    for row, picture in enumerate(pictures):
        sums[:, picture] += np.where(defined[:, row], values[:, row], 0)
        counts[:, picture] += defined[:, row]
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _by_label(
    run: ExplainRun,
    second: torch.Tensor,
    reported: _Scored,
    words: Mapping[str, str],
    where: str,
    outside: Sequence[str],
    level: float,
) -> pd.DataFrame:
    """Return what the reported images with each label say of the methods, a row a label."""
    columns = run.labels[second].cpu().numpy()
    names = run.source.class_names
    pictures = np.array(run.digests)[second.numpy()]
    rows = []
    for label in sorted(set(columns.tolist())):
        chosen = columns == label
        # Copies of a picture are one here too.
        numbers = np.unique(pictures[chosen], return_inverse=True)[1]
        count, best, verdict = len(set(numbers.tolist())), "", TOO_FEW
        if count >= LEAST:
            tables = {
                words[name]: pd.DataFrame(_of_pictures(values[:, chosen], numbers), reported.rows)
                for name, values in reported.of_rows.items()
            }
            judged = judge(tables, REFERENCES, where, level=level, ablating=outside)
            verdict = judged.verdict
            best = ", ".join(judged.best) if verdict == FOUND else ""
        rows.append([names[label] if names else str(label), count, best, verdict])
    return pd.DataFrame(rows, columns=list(BY_LABEL))


@dataclass(frozen=True)
class _Scored:
    """Methods with maps of some images, what is known of them, and their scores.

    Attributes
    ----------
    methods
        M methods, with signs and without.
    parent
        Method to the name of what made its maps.
    facts
        ``passes``, ``seconds`` and ``options`` of each.
    scores
        Measure to scores (M, P) of pictures, NaN where undefined.
    of_rows
        The same (M, N) of rows, of which a picture has one for each of its labels.
    gaps
        Why there are no maps, by the name of the map.
    undefined
        Why a method, with signs, has no score on any image by any measure, by its name.
    """

    methods: Sequence[Method]
    parent: Mapping[str, str]
    facts: Mapping[str, list[Any]]
    scores: Mapping[str, np.ndarray]
    of_rows: Mapping[str, np.ndarray]
    gaps: Mapping[str, str]
    undefined: Mapping[str, str]

    @property
    def rows(self) -> list[str]:
        """Names of the M methods that have maps."""
        return [one.name for one in self.methods]

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """Measure to its scores, a row a method and a column an image."""
        return {name: pd.DataFrame(values, self.rows) for name, values in self.scores.items()}


@dataclass(frozen=True)
class _Judge:
    """Images of a checked network, the methods, and how their maps are scored."""

    run: ExplainRun
    asked: Mapping[str, NamedMethod]
    metrics: Mapping[str, SelectedMetric]
    level: float

    def scored(
        self, rows: torch.Tensor, asked: Mapping[str, NamedMethod], picked: Collection[str] | None = None
    ) -> _Scored:
        """Return the scores of methods on some of the images; of all, or of those that are `picked`."""
        from heatproof.api.scores import Scoring
        from heatproof.inputs.labels import select_option_rows

        run = self.run.part(rows)
        made = run.dataset(list(asked.values()), stops=False)
        parents = {name: one.name for one in asked.values() for name in one.maps}
        applies = made["reason"].values == ""
        names = made["method"].values[applies]
        known, left = made.isel(method=applies), made["reason"][~applies]
        gaps = dict(zip(left["method"].values.tolist(), left.values.tolist(), strict=True))
        # Whether a function's maps have signs is seen in the first half, and must not change in the second.
        signed = {
            name: name not in REFERENCES and (picked is not None or has_signs)
            for name, has_signs in zip(names.tolist(), known["signed"].values.tolist(), strict=True)
        }
        methods = [one for one in methods_of(signed) if picked is None or one.name in picked]
        places = [one.index for one in methods]
        keys = {name: run.key_of(one) for one in asked.values() for name in one.maps}
        count = len(self.run.ids)
        metrics = {
            key: one._replace(options=select_option_rows(one.options, rows.tolist(), count))
            for key, one in self.metrics.items()
        }
        found = Scoring(run, known["attribution"], methods, [keys[name] for name in names], metrics).scores()
        of_rows = {name: np.stack([scored[one.name].score for one in methods]) for name, scored in found.items()}
        pictures = _pictures(run).numpy()
        return _Scored(
            methods,
            dict(zip([one.name for one in methods], (parents[name] for name in names[places]), strict=True)),
            {key: known[key].values[places].tolist() for key in ("passes", "seconds", "options")},
            {name: _of_pictures(values, pictures) for name, values in of_rows.items()},
            of_rows,
            gaps,
            {
                one.name: f"no score on any image: {next(iter(found.values()))[one.name].reason}"
                for one in methods
                if one.name not in REFERENCES and not any(scored[one.name].valid.any() for scored in found.values())
            },
        )


def _kind(method: NamedMethod) -> str:
    """Return what methods of one kind have in common, of which one is picked: the explainer, or a function's name."""
    return method.entry.name if method.entry else method.name


def _planned(methods: int, reported: int, level: float) -> str:
    """Return how many images tell so many methods apart, and whether there are as many."""
    needed = images_to_distinguish(methods, level=level)
    enough = "" if reported >= needed else " With fewer, the answer is often open."
    return (
        f"{reported} images are reported on, and the other half picks options. For a probability of 0.8 to tell two of "
        f"{methods} methods and reference maps apart whose paired difference is half its standard deviation (d = 0.5), "
        f"{needed} reported images are needed, {2 * needed} in all.{enough}"
    )


def _warn_of_trained_on(digests: Sequence[str], domain: Domain) -> None:
    """Warn the caller of `choose` of images that its network was finetuned on."""
    known = set(domain.record.get("images", ()))
    seen = sum(one in known for one in digests)
    if seen:
        warnings.warn(
            f"The network was finetuned on {seen} of the {len(digests)} images, which may flatter some methods: choose "
            "on images that it has not seen.",
            stacklevel=3,
        )


def _check_distinct(digests: Sequence[Any]) -> None:
    """Refuse too few distinct images, and warn the caller of `choose` of copies.

    Images of several targets are told apart by digest and target.

    Raises
    ------
    HeatproofError
        If fewer than `LEAST` are distinct.
    """
    count, distinct = len(digests), len(set(digests))
    if distinct < LEAST:
        raise HeatproofError(
            f"{distinct} of the {count} images {'is' if distinct == 1 else 'are'} distinct, which tells nothing of "
            f"methods: give at least {LEAST} distinct images, better 100."
        )
    if distinct < count:
        warnings.warn(
            f"{count - distinct} of the {count} images are copies of others, which makes intervals too narrow: leave "
            "copies out.",
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


def _warn_of_targets(answers: np.ndarray, targets: np.ndarray, classes: int) -> None:
    """Warn the caller of `choose` where the network seldom answers with the target, and of what explains that."""
    right = int((answers == targets).sum())
    if right < MOSTLY_RIGHT * len(targets):
        exchanged = describe_exchange(answers, targets, classes)
        warnings.warn(
            f"The network answers with the target on {right} of {len(targets)} images: if the targets are labels, "
            f"check that their numbers are the network's classes.{' ' * bool(exchanged)}{exchanged}",
            stacklevel=4,
        )


def _measures(images: ImageSource, domain: Domain) -> dict[str, dict[str, Any]]:
    """Return the default measures: the filling of the finetuning, else the mean colour of the images, and another."""
    import torch

    sums = torch.stack([part.double().mean((2, 3)).sum(0) for _, part in images.batches()]).sum(0)
    mean = {"baseline": "mean", "baseline_options": {"value": (sums / len(images)).tolist()}}
    blur: dict[str, Any] = {"baseline": "blur"}
    first, second = mean, blur
    if domain.finetuned is not None:
        first = {"baseline": domain.finetuned.baseline, "baseline_options": domain.record["baseline_options"]}
        second = {"baseline": "mean"} if domain.finetuned.baseline == "blur" else blur
    found = {}
    for place, one in enumerate((first, second)):
        family = "IDSDS" if domain.finetuned is not None and not place else "SDS"
        found[f"{family}, {PatchDeletion(domain.reference[0], one['baseline'])}"] = {"metric": "idsds", **one}
    return found


def _described(metrics: Mapping[str, Any]) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return each measure as `heatproof.evaluate` takes it, by the name that fits what it does, and in words."""
    from heatproof.inputs.finetuned import deletion_of

    scorers, words = {}, {}
    for name, one in metrics.items():
        # An option that is left out is no option that is None.
        scorers[name] = {"metric": one.told, **{key: value for key, value in one.options.items() if value is not None}}
        words[name] = one.entry.name
        if one.told in DELETIONS:
            words[name] = describe_deletion(deletion_of(one.options), one.told, one.options["output"])
    # Measures may differ in what these words do not tell.
    alike = [told for told in words.values() if list(words.values()).count(told) > 1]
    return scorers, {name: f"{told}, {name!r}" if told in alike else told for name, told in words.items()}


def _table(
    scored: _Scored, rows: list[str], outside: Sequence[str], found: Verdict, seed: int, level: float
) -> pd.DataFrame:
    """Return the chosen rows, the best first and those that are no contenders last."""
    from heatproof.metrics.bootstrap import summarise

    columns: dict[str, Any] = {"method": list(rows)}
    abstains = any(one.reason for one in found.measures.values())
    columns["in_set"] = pd.array([pd.NA if abstains else row in found.best for row in rows], dtype="boolean")
    contends = np.array([row not in outside for row in rows])
    means = []
    for name, table in scored.tables.items():
        told = summarise(table.loc[rows].to_numpy(), seed, level=level)
        columns |= {name: told["mean"], f"{name}, low": told["ci_low"], f"{name}, high": told["ci_high"]}
        means.append(told["mean"])
    columns |= scored.facts
    mean = pd.DataFrame(means).mean().to_numpy()
    made = pd.DataFrame(columns).astype({"passes": "Int64"})
    made["reason"] = np.where(contends, "", ABLATES)
    inside = np.array([row in found.best for row in rows])
    return made.iloc[np.lexsort((-mean, ~inside, ~contends))]
