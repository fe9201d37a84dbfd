"""A rule, and the outcome of its check."""

from __future__ import annotations

import inspect
import unittest
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch

from heatproof.errors import NotApplicable
from heatproof.testing._side_effects import restored_process

Rule = Callable[[Any], None]


class RuleBroken(Exception):
    """A subject breaks a rule.

    Parameters
    ----------
    observation
        What was observed, as a sentence without subject and full stop.
    remedy
        What to do, in the imperative.
    """

    def __init__(self, observation: str, remedy: str) -> None:
        super().__init__(observation, remedy)
        self.observation, self.remedy = observation, remedy


class Outcome(NamedTuple):
    """Outcome of a check.

    Attributes
    ----------
    check
        Name of the rule.
    state
        ``passed``, ``failed``, ``skipped`` if the rule cannot be checked, or ``exempt`` if it is broken and declared as
        exempt.
    text
        The observation and the remedy, or why the check was skipped or is exempt; empty if it passed.
    """

    check: str
    state: Literal["passed", "failed", "skipped", "exempt"]
    text: str


@dataclass(frozen=True)
class Check:
    """A rule and the subject that has to follow it. Calling it raises AssertionError if the rule is broken.

    Attributes
    ----------
    rule
        ``rule(subject)`` raises `RuleBroken`.
    subject
        The explainer or metric, with its name in `name`.
    exempt
        Rules that the subject breaks by definition, and the reasons.
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
        """Check the rule.

        Raises
        ------
        AssertionError
            If the rule is broken.
        unittest.SkipTest
            If the rule cannot be checked, which pytest reports as skipped.
        """
        outcome = self.outcome
        if outcome.state == "skipped":
            raise unittest.SkipTest(outcome.text)
        if outcome.state == "failed":
            raise AssertionError(outcome.text)

    @cached_property
    def outcome(self) -> Outcome:
        """The outcome of the check."""
        reason = self.exempt.get(self.name)
        try:
            # Changes that a subject leaves during one rule must not affect the next rule or the caller.
            with restored_process():
                # With several threads, tiny networks would spend most time on synchronisation.
                torch.set_num_threads(1)
                warnings.simplefilter("ignore")
                self.rule(self.subject)
        except NotApplicable as error:
            return Outcome(self.name, "skipped", f"{error}")
        except RuleBroken as broken:
            observation, remedy = broken.observation, broken.remedy
        except Exception as error:  # the code under test can fail in any way
            observation, remedy = f"raised {type(error).__name__}: {error}", "let it return what the rule requires"
        else:
            if reason is None:
                return Outcome(self.name, "passed", "")
            observation, remedy = f"follows the rule, but is declared as exempt ({reason})", "leave the exemption out"
            reason = None
        if reason is not None:
            return Outcome(self.name, "exempt", reason)
        requirement = (inspect.getdoc(self.rule) or "").partition("\n")[0]
        return Outcome(
            self.name, "failed", f"{self.subject.name}: {self.name} ({requirement}) {observation}: {remedy}."
        )
