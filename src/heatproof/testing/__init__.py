"""Checks of a custom explainer or metric by the rules that heatproof's own ones follow, on tiny networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from heatproof.core.registry import look_up
from heatproof.testing._explainers import RULES as EXPLAINER_RULES
from heatproof.testing._metrics import RULES as METRIC_RULES
from heatproof.testing._naming import explainer_of, metric_of
from heatproof.testing._rules import Check

if TYPE_CHECKING:
    import torch

    from heatproof.testing._rules import Outcome


def check_explainer(
    explainer: Any,
    *,
    options: Mapping[str, Any] | None = None,
    network: Callable[..., torch.nn.Module] | None = None,
    exempt: Mapping[str, str] | None = None,
) -> list[Outcome]:
    """Check an explainer against every rule, and report all rules that it breaks.

    Parameters
    ----------
    explainer
        A name listed by `heatproof list explainers`, a function that is registered with ``@explainer``,
        ``package.module:function``, or a function of model, images and targets, as in `heatproof.explain`.
    options
        Options of the explainer, for example fewer steps. A check takes about a dozen calls with four images of 16 by
        16 pixels.
    network
        ``network(size, channels, classes)`` builds a network that the explainer applies to, for images of a size
        (height, width). By default it has the kind that the explainer is registered for, otherwise it is convolutional.
    exempt
        Rules that the explainer breaks by definition, as a mapping from names to reasons, in addition to those that it
        is registered with.

    Returns
    -------
    list of Outcome
        ``check``, ``state`` and ``text`` of each rule. The state is ``passed``; ``skipped`` if the rule cannot be
        checked, with the reason; or ``exempt``.

    Raises
    ------
    AssertionError
        If the explainer breaks rules; the message has the observation and the remedy for each.
    HeatproofError
        If `explainer` is not an explainer, or an option or a rule does not exist.

    Examples
    --------
    >>> import torch, heatproof
    >>> def gradient(model, images, targets):
    ...     images = images.clone().requires_grad_()
    ...     chosen = model(images).gather(1, targets[:, None]).sum()
    ...     return torch.autograd.grad(chosen, images)[0]
    >>> outcomes = heatproof.testing.check_explainer(gradient)
    >>> {one.state for one in outcomes}
    {'passed', 'skipped'}
    """
    return _all(explainer_checks(explainer, options=options, network=network, exempt=exempt))


def explainer_checks(
    explainer: Any,
    *,
    options: Mapping[str, Any] | None = None,
    network: Callable[..., torch.nn.Module] | None = None,
    exempt: Mapping[str, str] | None = None,
) -> list[Check]:
    """Return the checks of an explainer as callables, for ``pytest.mark.parametrize("check", …, ids=str)``.

    Parameters
    ----------
    explainer, options, network, exempt
        As in `check_explainer`.

    Returns
    -------
    list of Check
        ``check()`` raises AssertionError if the explainer breaks the rule, and unittest.SkipTest if the rule cannot be
        checked.

    Raises
    ------
    HeatproofError
        As `check_explainer`.

    Examples
    --------
    >>> import heatproof
    >>> checks = heatproof.testing.explainer_checks("saliency")
    >>> str(checks[0])
    'saliency-returns_its_maps'
    >>> checks[0]()
    """
    subject, declared = explainer_of(explainer, dict(options or {}), network)
    return _checks(EXPLAINER_RULES, subject, {**declared, **(exempt or {})})


def check_metric(
    metric: Any, *, options: Mapping[str, Any] | None = None, exempt: Mapping[str, str] | None = None
) -> list[Outcome]:
    """Check a metric against every rule, and report all rules that it breaks.

    Parameters
    ----------
    metric
        A name listed by `heatproof list metrics`, a function that is registered with ``@metric``, or
        ``package.module:function``, which names such a function.
    options
        Options of the metric. Inputs that only a caller has, such as masks of parts, default to artificial ones.
    exempt
        Rules that the metric breaks by definition, as a mapping from names to reasons, in addition to those that it is
        registered with.

    Returns
    -------
    list of Outcome
        As `check_explainer` returns.

    Raises
    ------
    AssertionError
        If the metric breaks rules; the message has the observation and the remedy for each.
    HeatproofError
        If `metric` is not a metric, or an option or a rule does not exist.

    Examples
    --------
    >>> import heatproof
    >>> outcomes = heatproof.testing.check_metric("idsds")
    >>> {one.state for one in outcomes}
    {'passed'}
    """
    return _all(metric_checks(metric, options=options, exempt=exempt))


def metric_checks(
    metric: Any, *, options: Mapping[str, Any] | None = None, exempt: Mapping[str, str] | None = None
) -> list[Check]:
    """Return the checks of a metric as callables, for ``pytest.mark.parametrize("check", …, ids=str)``.

    Parameters
    ----------
    metric, options, exempt
        As in `check_metric`.

    Returns
    -------
    list of Check
        As `explainer_checks` returns.

    Raises
    ------
    HeatproofError
        As `check_metric`.
    """
    subject, declared = metric_of(metric, dict(options or {}))
    return _checks(METRIC_RULES, subject, {**declared, **(exempt or {})})


def _checks(rules: Any, subject: Any, exempt: Mapping[str, str]) -> list[Check]:
    rules_by_name = {rule.__name__: rule for rule in rules}
    for name in exempt:
        look_up(rules_by_name, name, "rule")
    return [Check(rule, subject, exempt) for rule in rules]


def _all(checks: list[Check]) -> list[Outcome]:
    outcomes = [check.outcome for check in checks]
    if failed := [outcome.text for outcome in outcomes if outcome.state == "failed"]:
        raise AssertionError("\n".join(failed))
    return outcomes
