"""Registry of claims."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from heatproof.claims.evidence import Evidence, required
from heatproof.claims.verdicts import Measured, Untestable
from heatproof.registry import Registry

__all__ = ["CLAIMS", "PAPERS", "Claim", "Measured", "Untestable", "claim", "required"]

Test = Callable[[Evidence], Measured]
# Short names of the papers in tables, and what they are.
PAPERS = {
    "IDSDS": "Hesse, Schaub-Meyer and Roth, Benchmarking the attribution quality of vision models, 2024",
    "reproduction": "Zabicka, Cieslik and Burgess, Benchmarking the attribution quality of vision models: a "
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
        What is measured, in words with its direction.
    test
        ``test(evidence)`` returns a `Measured`, or raises `Untestable`.
    side, limit
        The claim is reproduced if the whole interval lies ``above``, or ``below``, the limit, and contradicted if it
        lies on the other side.
    over
        What the interval of a run is over: its ``images``, with the networks as they are, or its ``networks``; claims
        on design have one over trainings, whatever is said here.
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

    @property
    def rule(self) -> str:
        """The rule in words."""
        return f"interval {self.side} {self.limit:g}"


CLAIMS: Registry[Claim] = Registry("heatproof.claims", "claim")


def claim(paper: str, place: str, quantity: str, *, over: str = "images", **rule: float) -> Callable[[Test], Test]:
    """Enter a test in the table of claims, under the name of the function; its docstring is the sentence.

    Parameters
    ----------
    paper, place, quantity, over
        As in `Claim`.
    rule
        Either ``above`` or ``below``, with the limit.
    """
    ((side, limit),) = rule.items()

    def enter(test: Test) -> Test:
        name = test.__name__
        CLAIMS[name] = Claim(name, paper, place, inspect.getdoc(test) or "", quantity, test, side, limit, over)
        return test

    return enter
