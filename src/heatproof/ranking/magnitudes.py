"""Which rows are one method to a metric that reads the magnitudes of maps; importable without pandas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class MagnitudeMetrics:
    """Metrics that read the magnitudes of maps, and the rows that are one method to them.

    A map with signs and its absolute values score the same under such a metric, by its definition. They count once
    there, and in a comparison with another metric they count once under both: as the absolute values, so that both
    metrics are asked about the same maps.

    Attributes
    ----------
    metrics
        Those that read magnitudes, see `heatproof.metrics.registry.Metric.reads_magnitudes`.
    absolute
        Name of a method with signs to that of the absolute values of the same map.
    """

    metrics: list[str] = field(default_factory=list)
    absolute: dict[str, str] = field(default_factory=dict)

    def one_per_map(self, methods: Sequence[str]) -> list[str]:
        """Return the methods without those with signs whose absolute values are among them."""
        return [name for name in methods if self.absolute.get(name) not in methods]

    def counted_methods(self, methods: Sequence[str], *metrics: str) -> list[str]:
        """Return the methods that count where these metrics rank them."""
        return self.one_per_map(methods) if set(metrics) & set(self.metrics) else list(methods)


NO_MAGNITUDES = MagnitudeMetrics()
