"""Loaders' stats in OpenTelemetry, by its own API: `pip install 'gpupipe[metrics]'`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gpupipe.integrations.metrics import METRICS, Metric, NamedLoaders
from gpupipe.loader.loader import Loader
from gpupipe.sources.needing import library

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation

__all__ = ["StatsInstruments"]


class StatsInstruments:
    """`Loader.stats()` of loaders as observable counters and gauges of a Meter.

    loaders: by the name that the attribute `loader` has, such as {"train": train, "val": val}.
    meter:   where the instruments are made; None: the global provider's, named "gpupipe".

    Each collection calls `stats()` of each loader once for an instrument, in the thread that collects. A loader is not
    kept alive: when it is gone it is observed no more; one that is closed stands where it stood. Make one for all
    loaders of a meter, as instruments of one name are made once.

    Raises ConfigError where opentelemetry-api is missing, or for what is no Loader.
    """

    def __init__(self, loaders: Mapping[str, Loader], meter: Meter | None = None) -> None:
        self._api: Any = library("opentelemetry.metrics", "metrics")
        self._loaders = NamedLoaders(loaders)
        meter = self._api.get_meter("gpupipe") if meter is None else meter
        for metric in METRICS:
            make = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
            make(metric.name, callbacks=[self._observing(metric)], unit=metric.unit, description=metric.help)

    def add(self, name: str, loader: Loader) -> None:
        """Have one more loader; a name given again is the new one's, whose counters begin at 0."""
        self._loaders.add(name, loader)

    def _observing(self, metric: Metric) -> Callable[[CallbackOptions], Iterator[Observation]]:
        def observe(options: CallbackOptions) -> Iterator[Observation]:
            for _, labels, value in self._loaders.numbers(metric):
                yield self._api.Observation(value, labels.as_dict())

        return observe
