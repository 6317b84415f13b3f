"""A batch sampler as an order: its batches one behind the other, as long as an epoch of it is found to be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpupipe.errors import ConfigError
from gpupipe.order.protocol import Indices, as_array
from gpupipe.order.sampler import LISTING, SamplerOrder, unchanged

__all__ = ["BatchesOrder"]

EPOCHS = 10  # of the dataset; one of a sampler without a length is not taken to have more samples

Batches = list[list[int]]


@dataclass(frozen=True, eq=False)
class BatchesOrder(SamplerOrder):
    """Any batch sampler as an order, its `sampler`, whose batches have one size, `batch_size`, but for the last one; or
    several, and then the order makes its batches itself, of which `batch_size` is the largest.

    An epoch is listed when this is built: all have as many samples as that. A batch sampler without a length may have
    epochs of several: a longer one is cut, and a shorter one goes on with another listing.

    samples:     of the dataset.
    distributed: the DistributedSampler that it draws from, if any. It is listed for each of the ranks: step k has the
                 k-th batch of every rank, as it is made there, so another number of ranks is another order.

    Raises ConfigError for empty batches, and for an epoch that has no end.
    """

    samples: int = 0
    distributed: Any = None
    batch_size: int = field(default=1, init=False)
    _size: int = field(default=0, init=False)
    _varies: bool = field(default=True, init=False)
    _lengths: list[int] = field(default_factory=list, init=False, repr=False)
    _cuts: dict[tuple[int, int], Indices] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.sampler, Iterator):
            raise self._refused("is an iterator, at its end after one epoch; give it an __iter__ that begins anew")
        with unchanged(self.sampler), self._seeded(0, 0):
            batches = self._batches()
        object.__setattr__(self, "batch_size", max(map(len, batches), default=1))
        object.__setattr__(self, "_size", sum(map(len, batches)))
        steps = self._steps(batches)
        object.__setattr__(self, "_varies", len({*steps[:-1]}) > 1 or max(steps, default=0) > max(steps[:1], default=0))

    def __len__(self) -> int:
        return self._size

    @property
    def is_sized(self) -> bool:
        """Whether the batch sampler knows its length."""
        try:
            return len(self.sampler) >= 0  # type: ignore[arg-type]
        except (TypeError, NotImplementedError):  # it has none, or the sampler in it
            return False

    @property
    def largest(self) -> int:
        """Samples of the largest batch of all ranks."""
        return self.batch_size * self._ranks

    @property
    def _ranks(self) -> int:
        return 1 if self.distributed is None else int(self.distributed.num_replicas)

    @property
    def starts(self) -> Callable[[int, int], Indices] | None:
        """Where each batch of an epoch begins, and where the last one ends; None where all have one size."""
        return self._begins if self._varies else None

    def _begins(self, seed: int, epoch: int) -> Indices:
        with LISTING:
            self.indices(seed, epoch, np.empty(0, np.int64))
            if (seed, epoch) not in self._cuts:
                self._listed(seed, epoch)
            return self._cuts[seed, epoch]

    def _listed(self, seed: int, epoch: int) -> Indices:
        listed = super()._listed(seed, epoch)
        if self._varies:
            ends = np.cumsum(np.array(self._lengths, np.int64))
            while len(self._cuts) > 1:
                del self._cuts[next(iter(self._cuts))]
            self._cuts[seed, epoch] = np.concatenate([[0], ends[ends < len(listed)], [len(listed)]])
        return listed

    def _check_length(self, listed: int, epoch: int) -> None:
        """Raise ConfigError unless the epoch has as many samples as the first one. A batch sampler's len() is none."""
        if listed != len(self):
            raise self._refused(
                f"has {listed} samples in epoch {epoch}, but had {len(self)} when this order was made of it, and all "
                "epochs of a loader are of one length; build it and its order anew"
            )

    def _yielded(self) -> list[int]:
        batches = self._batches()
        count = sum(map(len, batches))
        while not self.is_sized and 0 < count < self._size:
            if count % self.batch_size and self._named is self.sampler and not self._varies:
                raise self._refused("has epochs of several lengths, with a last batch that is not full: leave that out")
            batches += self._batches()
            count = sum(map(len, batches))
        self._lengths[:] = self._steps(batches)
        listed = [sample for batch in batches for sample in batch]
        return listed if self.is_sized else listed[: self._size]

    def _steps(self, batches: Batches) -> list[int]:
        """Samples of all ranks in each step."""
        return [sum(map(len, batches[at : at + self._ranks])) for at in range(0, len(batches), self._ranks)]

    def _batches(self) -> Batches:
        """What an epoch has of all ranks. Raises ConfigError."""
        if self.distributed is None:
            return self._checked([self._passed()])
        own, lists = self.distributed.rank, []
        try:
            for rank in range(self.distributed.num_replicas):
                self.distributed.rank = rank
                lists.append(self._passed())
        finally:
            self.distributed.rank = own
        return self._checked(lists)

    def _passed(self) -> Batches:
        """What it yields in one pass."""
        most = None if self.is_sized else EPOCHS * self.samples
        batches, count = [], 0
        for batch in self.sampler:
            batches.append(as_array(f"a batch of {type(self.sampler).__name__}", batch).tolist())
            count += len(batches[-1])
            if most is not None and count > most:
                raise self._refused(
                    f"has no len(), and its first epoch more than {most} samples of a dataset of {self.samples}, "
                    "perhaps without end; give it a __len__, or pass batch_size= and order= or shuffle="
                )
        return batches

    def _checked(self, lists: list[Batches]) -> Batches:
        """Those of the ranks in turn."""
        sizes = [[len(batch) for batch in batches] for batches in lists]
        if any(size != sizes[0] for size in sizes):
            counts = ", ".join(f"{len(size)} batches of {sum(size)} samples" for size in sizes)
            raise self._refused(f"makes {counts} on the ranks, where each needs as many")
        found = {*sizes[0][:-1]} | {*sizes[0][:1]}
        one = not self._varies and (len(found) > 1 or (found and sizes[0][-1] > min(found)))
        if 0 in found or one or (self._size and max(sizes[0], default=0) > self.batch_size):
            shown = ", ".join(map(str, sorted({*sizes[0]})[-5:]))
            first = f"several sizes up to {self.batch_size}" if self._varies else f"{self.batch_size}"
            raise self._refused(
                f"makes batches of {shown} samples, and of {first} in its first epoch; none may be empty or larger "
                "than there, and there are several sizes in all epochs or in none: pass batch_size= and order= (a "
                "gpupipe order, such as Buckets, or a torch Sampler of samples), or shuffle="
            )
        return [batch for step in zip(*lists, strict=True) for batch in step]

    @property
    def _named(self) -> Any:
        """Whose batches these are: of torch's BatchSampler, the sampler in it."""
        plain = type(self.sampler).__module__.startswith("torch.utils.data.")
        return getattr(self.sampler, "sampler", self.sampler) if plain else self.sampler

    def _refused(self, reason: str) -> ConfigError:
        what = "batch_sampler" if self._named is self.sampler else "sampler"
        return ConfigError(f"{what} {type(self._named).__name__} {reason}")
