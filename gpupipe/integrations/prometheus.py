"""Loaders' stats in Prometheus, by its own client library: `pip install 'gpupipe[metrics]'`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gpupipe.integrations.metrics import METRICS, Metric, NamedLoaders
from gpupipe.loader.loader import Loader
from gpupipe.sources.needing import library

if TYPE_CHECKING:
    from prometheus_client import Metric as Family
    from prometheus_client.registry import Collector
else:
    Collector = object  # for type checkers alone: a registry takes whatever can collect

__all__ = ["StatsCollector"]


class StatsCollector(Collector):  # type: ignore[misc]  # the library's own types are not followed
    """`Loader.stats()` of loaders as a collector of prometheus_client: `REGISTRY.register(StatsCollector({...}))`.

    loaders: by the name that the label `loader` has, such as {"train": train, "val": val}.

    Each scrape calls `stats()` of each loader once, in the thread that scrapes. A loader is not kept alive: when it is
    gone, so are its series; one that is closed stands where it stood. Register one for all loaders, as
    prometheus_client takes no metric from two collectors (ValueError).

    Raises ConfigError where prometheus_client is missing, or for what is no Loader.
    """

    def __init__(self, loaders: Mapping[str, Loader]) -> None:
        self._core: Any = library("prometheus_client.core", "metrics")
        self._loaders = NamedLoaders(loaders)

    def add(self, name: str, loader: Loader) -> None:
        """Have one more loader; a name given again is the new one's, whose counters begin at 0."""
        self._loaders.add(name, loader)

    def describe(self) -> Iterator[Family]:
        """What there may be, without numbers: by it a registry knows the names."""
        return map(self._family, METRICS)

    def collect(self) -> Iterator[Family]:
        """What there is now."""
        families: dict[Metric, Family] = {}
        for metric, labels, value in self._loaders.numbers(*METRICS):
            if metric not in families:
                families[metric] = self._family(metric)
            families[metric].add_metric(list(labels.as_dict().values()), value)
        return iter(families.values())

    def _family(self, metric: Metric) -> Family:
        kind = self._core.CounterMetricFamily if metric.kind == "counter" else self._core.GaugeMetricFamily
        return kind(metric.prometheus_name, metric.help, labels=metric.labels, unit=metric.prometheus_unit)
