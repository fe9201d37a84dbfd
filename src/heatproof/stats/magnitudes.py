"""Methods that count as one for metrics that read only the magnitudes of maps; importable without pandas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class MagnitudeMetrics:
    """The metrics that read only the magnitudes of maps, and the methods that count as one for them.

    Under such a metric a map with signs and its absolute values have the same score by definition, so that they count
    once. Where such a metric is compared with another one, they count once under both: only the absolute values are
    compared, so that both metrics rank the same maps.

    Attributes
    ----------
    metrics
        The metrics that read magnitudes, see `heatproof.metrics.registry.Metric.reads_magnitudes`.
    absolute
        Name of a method with signs to the name of the method with the absolute values of the same map.
    """

    metrics: list[str] = field(default_factory=list)
    absolute: dict[str, str] = field(default_factory=dict)

    def one_per_map(self, methods: Sequence[str]) -> list[str]:
        """Return the methods, without those with signs whose absolute values are among them."""
        return [name for name in methods if self.absolute.get(name) not in methods]

    def counted_methods(self, methods: Sequence[str], *metrics: str) -> list[str]:
        """Return the methods that count where these metrics are compared."""
        return self.one_per_map(methods) if set(metrics) & set(self.metrics) else list(methods)


NO_MAGNITUDES = MagnitudeMetrics()
