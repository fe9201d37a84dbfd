"""Check an explainer or a metric of one's own by the rules that heatproof's own keep, on tiny networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from heatproof.base.registry import look_up

if TYPE_CHECKING:
    import torch

    from heatproof._testing.rules import Check, Outcome


def check_explainer(
    explainer: Any,
    *,
    options: Mapping[str, Any] | None = None,
    network: Callable[..., torch.nn.Module] | None = None,
    exempt: Mapping[str, str] | None = None,
) -> list[Outcome]:
    """Check an explainer by every rule, and say all that it breaks.

    Parameters
    ----------
    explainer
        A name of `heatproof list explainers`, a function that is registered with ``@explainer``,
        ``package.module:function``, or a function of model, images and targets, as `heatproof.explain` takes it.
    options
        Of the explainer, such as fewer steps; a check takes some dozen calls with four images of 16 by 16 pixels.
    network
        ``network(size, channels, classes)`` builds a network that it applies to, for images of a size (height, width).
        By default it is one of the kind that the explainer is registered for, else a convolutional one.
    exempt
        Names of rules that it breaks by its definition, and why, beside those that it is registered with.

    Returns
    -------
    list of Outcome
        ``check``, ``state`` and ``text`` of each rule. The state is ``passed``, ``skipped`` where the rule cannot be
        tried, with the reason, or ``exempt``.

    Raises
    ------
    AssertionError
        If it breaks a rule: what was seen and the remedy, for each.
    HeatproofError
        If this is no explainer, or it has no such option or rule.

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
    """Return the checks of an explainer, for ``pytest.mark.parametrize("check", …, ids=str)``; each is called.

    Parameters
    ----------
    explainer, options, network, exempt
        As in `check_explainer`.

    Returns
    -------
    list of Check
        ``check()`` raises AssertionError where the rule is broken, and unittest.SkipTest where it cannot be tried.

    Raises
    ------
    HeatproofError
        As `check_explainer`.
    """
    from heatproof._testing.explainers import RULES
    from heatproof._testing.naming import explainer_of

    subject, declared = explainer_of(explainer, dict(options or {}), network)
    return _checks(RULES, subject, {**declared, **(exempt or {})})


def check_metric(
    metric: Any, *, options: Mapping[str, Any] | None = None, exempt: Mapping[str, str] | None = None
) -> list[Outcome]:
    """Check a metric by every rule, and say all that it breaks.

    Parameters
    ----------
    metric
        A name of `heatproof list metrics`, a function that is registered with ``@metric``, or
        ``package.module:function`` of one.
    options
        Of the metric. Inputs that only a caller has, such as masks of parts, are made up where they are left out.
    exempt
        Names of rules that it breaks by its definition, and why, beside those that it is registered with.

    Returns
    -------
    list of Outcome
        As `check_explainer` returns.

    Raises
    ------
    AssertionError
        If it breaks a rule: what was seen and the remedy, for each.
    HeatproofError
        If this is no metric, or it has no such option or rule.

    Examples
    --------
    >>> import heatproof
    >>> outcomes = heatproof.testing.check_metric("idsds")
    >>> {one.state for one in outcomes}
    {'passed', 'skipped'}
    """
    return _all(metric_checks(metric, options=options, exempt=exempt))


def metric_checks(
    metric: Any, *, options: Mapping[str, Any] | None = None, exempt: Mapping[str, str] | None = None
) -> list[Check]:
    """Return the checks of a metric, for ``pytest.mark.parametrize("check", …, ids=str)``; each is called.

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
    from heatproof._testing.metrics import RULES
    from heatproof._testing.naming import metric_of

    subject, declared = metric_of(metric, dict(options or {}))
    return _checks(RULES, subject, {**declared, **(exempt or {})})


def _checks(rules: Any, subject: Any, exempt: Mapping[str, str]) -> list[Check]:
    from heatproof._testing.rules import Check

    known = {rule.__name__: rule for rule in rules}
    for name in exempt:
        look_up(known, name, "rule")
    return [Check(rule, subject, exempt) for rule in rules]


def _all(checks: list[Check]) -> list[Outcome]:
    outcomes = [check.outcome for check in checks]
    if failed := [one.text for one in outcomes if one.state == "failed"]:
        raise AssertionError("\n".join(failed))
    return outcomes
