"""What monitoring is told of Loaders: one table of metrics, for Prometheus and OpenTelemetry alike."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from gpupipe.errors import ConfigError
from gpupipe.loader.loader import Loader

__all__ = ["LEFT_OUT", "METRICS", "Labels", "Metric", "NamedLoaders"]

UNITS = {"s": "seconds", "By": "bytes"}  # in Prometheus' names; others, such as {image}, stand in none


class Labels(NamedTuple):
    """What tells one number of a metric from another. source: that of a mixture; None: of a metric that has none."""

    loader: str
    rank: str
    source: str | None = None

    def as_dict(self) -> dict[str, str]:
        """Those that there are, by name."""
        return {name: value for name, value in self._asdict().items() if value is not None}


@dataclass(frozen=True)
class Metric:
    """A number of `Loader.stats()` as monitoring knows it.

    stat:   its key there; one that ends in "/" is the beginning of a key for each source of a mixture.
    name:   OpenTelemetry's, without the unit.
    kind:   "counter": it only grows while its loader lives.
    unit:   in UCUM's code, as OpenTelemetry wants it: "s", "By", or in braces what is counted.
    help:   one sentence.
    factor: how many of the unit one of `stats()` is.
    """

    stat: str
    name: str
    kind: Literal["counter", "gauge"]
    unit: str
    help: str
    factor: float = 1

    @property
    def by_source(self) -> bool:
        """Whether it has a number for each source of a mixture."""
        return self.stat.endswith("/")

    @property
    def labels(self) -> tuple[str, ...]:
        """Their names."""
        return Labels._fields if self.by_source else Labels._fields[:2]

    @property
    def prometheus_unit(self) -> str:
        """The word that ends its name in Prometheus, before "_total"; "" where nothing is measured but counted."""
        return UNITS.get(self.unit, "")

    @property
    def prometheus_name(self) -> str:
        """As OpenTelemetry's rules translate the name and the unit, so that both ways lead to the same series."""
        words = [*self.name.split("."), self.prometheus_unit, "total" if self.kind == "counter" else ""]
        return "_".join(filter(None, words))

    def values(self, stats: Mapping[str, float]) -> Iterator[tuple[str | None, float]]:
        """The sources and their numbers, in the metric's unit; none where `stats` has none."""
        if not self.by_source and self.stat in stats:
            yield None, stats[self.stat] * self.factor
        for key, value in stats.items() if self.by_source else ():
            if key.startswith(self.stat):
                yield key[len(self.stat) :], value * self.factor


METRICS = (
    Metric("batches", "gpupipe.batches", "counter", "{batch}", "Batches delivered."),
    Metric("images", "gpupipe.images", "counter", "{image}", "Samples delivered."),
    Metric("images/", "gpupipe.source.images", "counter", "{image}", "Samples delivered of each source of a mixture."),
    Metric("bytes_read", "gpupipe.read", "counter", "By", "Encoded bytes read for the batches delivered."),
    Metric("wait_s", "gpupipe.wait", "counter", "s", "Time in which the training loop waited for a batch."),
    Metric(
        "finish_s",
        "gpupipe.finish",
        "counter",
        "s",
        "Time in which batches got the recipe's dtype and layout, by the host.",
    ),
    Metric("first_batch_s", "gpupipe.first_batch", "gauge", "s", "Time to the first batch of the latest iteration."),
    Metric("queue_depth", "gpupipe.queue.depth", "gauge", "{batch}", "Batches that are made and wait to be taken."),
    Metric("bad_samples", "gpupipe.bad_samples", "counter", "{sample}", "Different samples that turned out to be bad."),
    Metric("replaced", "gpupipe.replaced_rows", "counter", "{row}", "Rows whose sample was bad and is another."),
    Metric(
        *("epochs/", "gpupipe.source.epochs", "gauge", "{epoch}"),
        "How often all ranks together have gone through each source of a mixture, resumes included.",
    ),
    Metric("storage_bytes", "gpupipe.storage.read", "counter", "By", "Bytes read of object storage."),
    Metric("storage_requests", "gpupipe.storage.requests", "counter", "{request}", "Requests to object storage."),
    Metric(
        *("storage_retries", "gpupipe.storage.retries", "counter", "{request}"),
        "Requests to object storage that were made again.",
    ),
    Metric(
        *("storage_wait_s", "gpupipe.storage.wait", "counter", "s"),
        "Time in which readers waited for object storage, all workers together.",
    ),
    Metric("cache_hits", "gpupipe.cache.hits", "counter", "{part}", "Parts of objects that the disk cache had."),
    Metric("cache_misses", "gpupipe.cache.misses", "counter", "{part}", "Parts of objects that storage was asked for."),
    Metric("cache_bytes", "gpupipe.cache.read", "counter", "By", "Bytes that the disk cache had."),
    Metric(
        *("gpu_used_mb", "gpupipe.gpu.memory.used", "gauge", "By"),
        "Memory of the loader's GPU in use by all processes, as the driver says.",
        factor=1e6,
    ),
    Metric(
        *("gpu_torch_mb", "gpupipe.gpu.memory.torch", "gauge", "By"),
        "Memory of the loader's GPU that torch has in this process.",
        factor=1e6,
    ),
)

LEFT_OUT = {
    "img_per_s": "a query has it over any window: `rate(gpupipe_images_total[1m])`",
    "mb_per_s": "a query has it over any window: `rate(gpupipe_read_bytes_total[1m]) / 1e6`",
    "wait_share": "a query has it over any window: `rate(gpupipe_wait_seconds_total[1m])`",
    "cache_hit_share": "a query has it over any window, of `gpupipe_cache_hits_total` and `gpupipe_cache_misses_total`",
}
"""Keys of `Loader.stats()` that are no metrics, and why."""


class NamedLoaders:
    """Loaders by name. None is kept alive: one that is gone has no numbers any more."""

    def __init__(self, loaders: Mapping[str, Loader]) -> None:
        self._loaders: dict[str, weakref.ref[Loader]] = {}
        for name, loader in loaders.items():
            self.add(name, loader)

    def add(self, name: str, loader: Loader) -> None:
        """Have one more; a name given again is the new one's. Raises ConfigError for what has no stats."""
        if not isinstance(name, str) or not name:
            raise ConfigError(f"the name {name!r} of a loader must be a text, such as 'train'")
        if not callable(getattr(loader, "stats", None)):
            raise ConfigError(
                f"{name!r} is a {type(loader).__name__}, which counts nothing; pass a gpupipe.Loader, such as "
                "gpupipe.from_dataloader makes of a DataLoader"
            )
        self._loaders[name] = weakref.ref(loader)

    def numbers(self, *metrics: Metric) -> Iterator[tuple[Metric, Labels, float]]:
        """What these metrics are now, each of each loader."""
        for name, reference in list(self._loaders.items()):  # another thread may add one
            loader = reference()
            if loader is None:
                continue
            stats, rank = loader.stats(), str(loader.rank)
            del loader  # not kept while the consumer takes its time
            for metric in metrics:
                for source, value in metric.values(stats):
                    yield metric, Labels(name, rank, source), value
