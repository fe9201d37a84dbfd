"""Registry of claims."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from heatproof.claims.evidence import Evidence, required
from heatproof.claims.verdicts import Measurement, Untestable, decisive_limit
from heatproof.core.registry import Registry

__all__ = ["CLAIMS", "PAPERS", "Claim", "Measurement", "Untestable", "claim", "claim_of_difference", "required"]

Test = Callable[[Evidence], Measurement]
# Smallest agreement of rankings that are alike: Hesse et al., section 4.1, call 0.96 and 0.99 very stable.
ALIKE = 0.95
# Short names of the papers in tables, and the papers.
PAPERS = {
    "IDSDS": "Hesse, Schaub-Meyer and Roth, Benchmarking the attribution quality of vision models, 2024",
    "reproduction": "Zabička, Cieslik and Burgess, Benchmarking the attribution quality of vision models: a "
    "reproduction, 2025",
    "Meta-Rank": "Duan et al., On the evaluation consistency of attribution-based explanations, 2024",
    "MAS": "Walker et al., Attribution quality metrics with magnitude alignment, 2024",
    "soundness": "Li et al., A dual-perspective approach to evaluating feature attribution methods, 2024",
}


@dataclass(frozen=True)
class Claim:
    """A claim of a paper, and its test.

    Attributes
    ----------
    name
        The key in tables.
    paper
        A key of `PAPERS`.
    place
        Section, figure or table.
    sentence
        The claim, in our words.
    quantity
        The measured quantity, in words with its direction.
    test
        ``test(evidence)`` returns a `Measurement`, or raises `Untestable`.
    side, limit
        The claim is reproduced if the complete interval lies ``above``, or ``below``, the limit, and contradicted if it
        lies on the other side.
    opposite
        A separate limit for the other side, if any: a value beyond it is tested only against this one, see
        `heatproof.claims.verdicts.decisive_limit`.
    over
        Whether the interval of a run is over its ``images``, for exactly these networks, or over its ``networks``;
        claims on design always have intervals over trainings.
    """

    name: str
    paper: str
    place: str
    sentence: str
    quantity: str
    test: Test
    side: str
    limit: float
    over: str = "images"
    opposite: float | None = None

    @property
    def rule(self) -> str:
        """The rule as text."""
        rule = f"interval {self.side} {self.limit:g}"
        if self.opposite is None:
            return rule
        return f"{rule}, contradicted {'above' if self.side == 'below' else 'below'} {self.opposite:g}"

    def decisive_limit(self, value: float) -> float:
        """Return the limit that a value is tested against."""
        return decisive_limit(value, self.side, self.limit, self.opposite)


CLAIMS: Registry[Claim] = Registry("heatproof.claims", "claim")


def claim(
    paper: str, place: str, quantity: str, *, over: str = "images", opposite: float | None = None, **rule: float
) -> Callable[[Test], Test]:
    """Register a test of a claim under the name of the function, whose docstring is the sentence.

    Parameters
    ----------
    paper, place, quantity, over, opposite
        As in `Claim`.
    rule
        Either ``above`` or ``below``, with the limit.
    """
    ((side, limit),) = rule.items()

    def register(test: Test) -> Test:
        name = test.__name__
        sentence = inspect.getdoc(test) or ""
        CLAIMS[name] = Claim(name, paper, place, sentence, quantity, test, side, limit, over, opposite)
        return test

    return register


def claim_of_difference(paper: str, place: str, quantity: str) -> Callable[[Test], Test]:
    """Register a test of the claim that rankings differ, whose quantity is that of `Evidence.agreement`.

    Rankings differ if their share of the ceiling is significantly below 1, and are alike if it is significantly above
    `ALIKE`. The claim is about the networks of the run, so that the interval is over images: one network that
    significantly differs in its ranking of methods is enough.
    """
    return claim(paper, place, quantity, opposite=ALIKE, below=1.0)
