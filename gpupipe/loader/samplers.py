"""What trainers look for on a DataLoader: `sampler` and `batch_sampler`, views of the loader's order."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch.utils.data

from gpupipe.order import RankBatches, Sequential

if TYPE_CHECKING:
    from gpupipe.loader.loader import Loader

__all__ = ["BatchSampler", "EpochSampler", "epoch_sampler"]


class EpochSampler(torch.utils.data.Sampler[int]):
    """The sample indices of this rank in the loader's current epoch; `set_epoch` is the loader's.

    with_rest: also those of a last batch that `drop_last` leaves out, as torch's samplers list them.
    """

    with_rest = False

    def __init__(self, loader: Loader) -> None:
        self._loader: Loader = weakref.proxy(loader)  # no circle, so that a dropped loader goes at once

    def _batches(self) -> RankBatches:
        len(self._loader)  # which a stream has not
        batches = self._loader.batches
        return replace(batches, drop_last=False) if self.with_rest else batches

    def __len__(self) -> int:
        return self._batches().rows()

    def __iter__(self) -> Iterator[int]:
        batches = self._batches()
        for step in range(len(batches)):
            yield from self._loader._indices(step, batches).tolist()

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch."""
        self._loader.set_epoch(epoch)


class SequentialEpochSampler(EpochSampler, torch.utils.data.SequentialSampler):
    """The same where the order is that of the dataset: trainers ask by the class whether a loader shuffles."""

    @property
    def data_source(self) -> Any:  # type: ignore[override]
        """The dataset."""
        return self._loader.dataset


def epoch_sampler(loader: Loader) -> EpochSampler:
    """The `sampler` of a loader: one of torch's SequentialSamplers where it is not shuffled, as a DataLoader's is."""
    return SequentialEpochSampler(loader) if isinstance(loader.order, Sequential) else EpochSampler(loader)


class BatchSampler(torch.utils.data.Sampler[list[int]]):
    """The same indices, as the lists of each batch."""

    def __init__(self, sampler: EpochSampler) -> None:
        self.sampler = sampler

    @property
    def batch_size(self) -> int:
        """Samples per batch of this rank."""
        return self.sampler._loader.batch_size

    @property
    def drop_last(self) -> bool:
        """Whether a last batch that is not full is left out."""
        return self.sampler._loader.drop_last

    def __len__(self) -> int:
        return len(self.sampler._loader)

    def __iter__(self) -> Iterator[list[int]]:
        for step in range(len(self)):
            yield self.sampler._loader.batch_indices(step).tolist()
