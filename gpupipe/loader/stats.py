"""What a loader has delivered, how fast, and how long its consumer waited: counted always.

That costs 3 to 6 us a batch, ranges included (`python bench/loader_cost.py` on busy cores of an AMD EPYC).

iter()      first batch                                   latest batch
  |--- wait ---|finish|  step  |wait|finish|  step  |wait|finish|  step
  first_batch_s       |<-------- the window of the rates ------>|
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from gpupipe.batch import StorageUse
from gpupipe.batch.batch import total
from gpupipe.device.finishing import Finished
from gpupipe.host.tracing import Span, Stage
from gpupipe.order import Interleaved, Order
from gpupipe.sources import MixtureSource, Source

__all__ = ["Meter", "epochs_by_source", "gpu_memory"]


B = TypeVar("B")


class _Moment(NamedTuple):
    """The counters as a batch was delivered; `at` is a time of `time.perf_counter`."""

    at: float = 0.0
    images: int = 0
    bytes_read: int = 0
    wait_s: float = 0.0


class Meter:
    """Counts as batches pass, of a mixture by source too.

    A `spans` that is a list, not None, also gets a span for each stage of each batch.
    """

    def __init__(self, source: Source | None = None) -> None:
        self._mixture = source if isinstance(source, MixtureSource) else None
        self._by_source = np.zeros(len(self._mixture.names) if self._mixture else 0, np.int64)
        self.storage = None if source is None else source.storage_use()
        self.spans: list[Span] | None = None
        self.finisher = "consumer"  # who finishes batches, in spans
        self.batches = self.images = self.bytes_read = 0
        self.wait_s = self.finish_s = self._began = 0.0
        self._first: _Moment | None = None  # of the iteration
        self._latest = _Moment()

    def begin(self) -> None:
        """An iteration begins."""
        self._first, self._latest, self._began = None, _Moment(), 0.0

    def waited(self, batches: Iterator[B]) -> B | None:
        """What comes next, and how long that took is counted; None at the end."""
        with Stage("wait") as wait:
            batch = next(batches, None)
        self._began = self._began or wait.start
        self.wait_s += wait.seconds
        if self.spans is not None and batch is not None:
            self.spans.append(wait.span("consumer"))
        return batch

    def delivered(self, batch: Finished) -> None:
        """Count a batch that is about to be handed out."""
        self.batches += 1
        self.images += len(batch.batch.job)
        self.bytes_read += batch.batch.bytes_read
        self.finish_s += batch.finish.seconds
        if batch.batch.storage is not None:
            self.storage = total((self.storage, batch.batch.storage))
        if self._mixture is not None:
            parts = self._mixture.part_of(batch.batch.job.indices)
            self._by_source += np.bincount(parts, minlength=len(self._by_source))
        self._latest = _Moment(time.perf_counter(), self.images, self.bytes_read, self.wait_s)
        if self._first is None:
            self._first = self._latest
        if self.spans is not None:
            self.spans += [*batch.batch.spans, batch.finish.span(self.finisher)]

    def as_dict(self) -> dict[str, float]:
        """See `Loader.stats`."""
        first, latest = self._first or self._latest, self._latest
        seconds = latest.at - first.at
        per_second = 1 / seconds if seconds > 0 else 0.0
        return (
            {
                "img_per_s": (latest.images - first.images) * per_second,
                "mb_per_s": (latest.bytes_read - first.bytes_read) * per_second / 1e6,
                "wait_share": (latest.wait_s - first.wait_s) * per_second,
                "first_batch_s": first.at - self._began if self._first else 0.0,
                "wait_s": self.wait_s,
                "finish_s": self.finish_s,
                "batches": self.batches,
                "images": self.images,
                "bytes_read": self.bytes_read,
            }
            | _storage(self.storage)
            | _named("images", self._mixture, self._by_source.tolist())
        )


def epochs_by_source(source: Source, order: Order, seed: int, epoch: int, position: int) -> dict[str, float]:
    """See `Loader.stats`; nothing for what is no mixture."""
    if not isinstance(source, MixtureSource) or not isinstance(order, Interleaved):
        return {}
    drawn = order.drawn(seed, epoch, position)
    return _named("epochs", source, [count / len(one) for count, one in zip(drawn, order.orders, strict=True)])


def _storage(use: StorageUse | None) -> dict[str, float]:
    """See `Loader.stats`; nothing for local data."""
    if use is None:
        return {}
    wanted = use.cache_hits + use.cache_misses
    return {"cache_hit_share": use.cache_hits / wanted if wanted else 0.0} | vars(use)


def _named(what: str, mixture: MixtureSource | None, numbers: list[float]) -> dict[str, float]:
    """A number for each source of a mixture."""
    return {f"{what}/{name}": number for name, number in zip(mixture.names if mixture else (), numbers, strict=True)}


def gpu_memory(device: torch.device) -> dict[str, float]:
    """See `Loader.stats`; nothing for a CPU."""
    if device.type != "cuda":
        return {}
    free, total = torch.cuda.mem_get_info(device)
    return {"gpu_used_mb": (total - free) / 1e6, "gpu_torch_mb": torch.cuda.memory_reserved(device) / 1e6}
