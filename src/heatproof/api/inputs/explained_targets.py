"""The targets that labelled maps explain, beside those that are scored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from heatproof.core.tasks import CALLABLE, describe_targets
from heatproof.errors import HeatproofError

# Coordinates of maps that do not explain a class: the task, and for target functions a digest of function and target.
TASK, TARGET_DIGEST = "task", "target_digest"
# The argument of `heatproof.explain` for targets that are not classes, and the plural, by the first word of a target's
# description.
TASK_ARGUMENTS = {"label": "task='multilabel'", "output": "task='regression'", "target": "the target function"}
PLURALS = {"class": "classes", "label": "labels", "output": "outputs", "target": "numbers of a target function"}


class ScoredTargets(NamedTuple):
    """The targets whose maps are scored.

    Attributes
    ----------
    explained
        Description of the target of each image, as in `heatproof.api.inputs.source.Inputs.explained`.
    words, remedy
        Subject and verb of a message about a target, and the remedy if maps explain another target.
    """

    explained: Sequence[str]
    words: str = "its target is"
    remedy: str = "give targets=maps['target'], or maps that explain these targets"


def check_explained(explained: Sequence[str], scored: ScoredTargets, ids: Sequence[str]) -> None:
    """Check that labelled maps explain the targets that are scored.

    Parameters
    ----------
    explained
        Description of the target that the map of each image explains.
    scored
        The scored targets.
    ids
        Image ids.

    Raises
    ------
    HeatproofError
        If a map explains another target; the message has the image and both targets.
    """
    if len(explained) != len(ids):
        # The check of the shape of the maps reports a different number of maps and images.
        return
    differs = [described != wanted for described, wanted in zip(explained, scored.explained, strict=True)]
    first = differs.index(True) if any(differs) else None
    if first is None:
        return
    map_target, scored_target = explained[first], scored.explained[first]
    kinds = [description.partition(" ")[0] for description in (map_target, scored_target)]
    if kinds[0] == kinds[1] == "target":
        raise HeatproofError(
            f"The map of image {ids[first]!r} explains another target than the one that is scored: give the target "
            f"function and the targets that it was made with, or maps.drop_vars({TARGET_DIGEST!r}) if they are the "
            "same in another form."
        )
    if kinds[0] != kinds[1]:
        raise HeatproofError(
            f"The map of image {ids[first]!r} explains {_without_digest(map_target)} and {scored.words} "
            f"{_without_digest(scored_target)}: {_remedy(*kinds)}."
        )
    number = scored_target.partition(" ")[2] if kinds[0] == "class" else scored_target
    raise HeatproofError(
        f"The map of image {ids[first]!r} explains {map_target} and {scored.words} {number}: {scored.remedy}."
    )


def describe_other_task(map_kind: str, scored_kind: str) -> str:
    """Return a sentence about maps of one kind of targets where another kind is scored."""
    map_word, scored_word = _target_word(map_kind), _target_word(scored_kind)
    return (
        f"The maps explain {PLURALS[map_word]}, but {PLURALS[scored_word]} are scored: "
        f"{_remedy(map_word, scored_word)}."
    )


def _target_word(kind: str) -> str:
    return describe_targets(kind, [""], [""] if kind == CALLABLE else None)[0].strip()


def _remedy(theirs: str, ours: str) -> str:
    """Return the remedy for maps that explain another kind of target than the scored one."""
    if theirs in TASK_ARGUMENTS:
        return f"give {TASK_ARGUMENTS[theirs]}, as the maps were made with"
    return f"leave {TASK_ARGUMENTS[ours]} out, or give maps that were made with it"


def _without_digest(explained: str) -> str:
    return "a function of outputs" if explained.startswith("target ") else explained
