"""A rule, and what is said where a subject breaks it or where it cannot be tried."""

from __future__ import annotations

import inspect
import unittest
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

from heatproof.errors import NotApplicable

Rule = Callable[[Any], None]


class RuleBroken(Exception):
    """A subject breaks a rule.

    Parameters
    ----------
    seen
        What was seen, as a sentence without its end.
    remedy
        What to do, in the imperative.
    """

    def __init__(self, seen: str, remedy: str) -> None:
        super().__init__(seen, remedy)
        self.seen, self.remedy = seen, remedy


class Outcome(NamedTuple):
    """Outcome of a check.

    Attributes
    ----------
    check
        Name of the rule.
    state
        ``passed``, ``failed``, ``skipped`` where the rule cannot be tried, or ``exempt`` where it is broken and
        declared so.
    text
        What was seen and the remedy, or why it is skipped or exempt; empty where it passed.
    """

    check: str
    state: Literal["passed", "failed", "skipped", "exempt"]
    text: str


@dataclass(frozen=True)
class Check:
    """A rule and the subject that has to keep it; called, it raises AssertionError where the rule is broken.

    Attributes
    ----------
    rule
        ``rule(subject)`` raises `RuleBroken`.
    subject
        The explainer or metric, with its name in `name`.
    exempt
        Rules that the subject breaks by its definition, and why.
    """

    rule: Rule
    subject: Any
    exempt: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the rule."""
        return self.rule.__name__

    def __str__(self) -> str:
        return f"{self.subject.name}-{self.name}"

    def __call__(self) -> None:
        """Try the rule.

        Raises
        ------
        AssertionError
            If the rule is broken.
        unittest.SkipTest
            If it cannot be tried, which pytest reports as skipped.
        """
        outcome = self.outcome
        if outcome.state == "skipped":
            raise unittest.SkipTest(outcome.text)
        if outcome.state == "failed":
            raise AssertionError(outcome.text)

    @cached_property
    def outcome(self) -> Outcome:
        """What came of it."""
        import torch

        from heatproof._testing.surroundings import restored_process

        reason = self.exempt.get(self.name)
        try:
            # What one rule lets a subject leave must not hide it from the next one, or from the caller.
            with restored_process():
                # Several threads wait for each other longer than tiny networks take.
                torch.set_num_threads(1)
                warnings.simplefilter("ignore")
                self.rule(self.subject)
        except NotApplicable as error:
            return Outcome(self.name, "skipped", f"{error}")
        except RuleBroken as broken:
            seen, remedy = broken.seen, broken.remedy
        except Exception as error:  # the code under test can fail in any way
            seen, remedy = f"it raised {type(error).__name__}: {error}", "let it return what the rule asks for"
        else:
            if reason is None:
                return Outcome(self.name, "passed", "")
            seen, remedy = f"it keeps the rule, and declares that it does not ({reason})", "leave the exemption out"
            reason = None
        if reason is not None:
            return Outcome(self.name, "exempt", reason)
        asked = (inspect.getdoc(self.rule) or "").partition("\n")[0]
        return Outcome(self.name, "failed", f"{self.subject.name}: {self.name} ({asked}) {seen}: {remedy}.")
