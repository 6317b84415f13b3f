"""The engine on a standard `torch.utils.data.DataLoader`: its workers make uint8 batches, each from one job.

Processes, each with the C++ kernel on one thread (`python bench/workers.py`; uint8, 2 cores of an AMD EPYC):

    processes x threads   2 x 1   1 x 2   0 x 2   2 x 2   | on one core:   1 x 1   0 x 1
    images a second       1,573   1,458   1,472   1,608   |                  752     822
    memory, MB              724     660     607     731   |                  656     603

Threads within one process leave it idle while the next batch's files are read and its batch is handed over. In the
consumer's process a file that is cut short while it is mapped would end the training; a worker's death is an error. Two
threads in each of as many processes as CPUs gain a little here, but twice as many threads as CPUs compete with the
training step.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.utils.data
from numpy.typing import NDArray
from torch.utils.data._utils import signal_handling

from gpupipe import system
from gpupipe.engines.base import EngineBatch, Job
from gpupipe.engines.rendering import render_batch
from gpupipe.engines.slots import Slots
from gpupipe.errors import GpupipeError, LoaderTimeoutError, SampleError, WorkerError
from gpupipe.recipe import Recipe
from gpupipe.tracing import Span

if TYPE_CHECKING:
    from gpupipe.sources import Source

__all__ = ["TorchEngine"]


Task = tuple["int | None", Job]
"""A job and the slot in which to make its batch; None for new memory."""


@dataclass
class _Made:
    """A batch on its way out of a worker: where it lies, and all else that the worker has to say of it."""

    slots_id: int
    slot: int | None
    images: torch.Tensor | None
    labels: NDArray[np.int64]
    failures: dict[int, SampleError]
    bytes_read: int
    spans: tuple[Span, ...]

    def batch(self) -> EngineBatch:
        """In the consumer's process, and there only once."""
        images = self.images
        if images is None:
            assert self.slot is not None
            images = SLOTS[self.slots_id].lend(self.slot, len(self.labels))
        labels = torch.from_numpy(self.labels)
        return EngineBatch(images, labels, self.failures, bytes_read=self.bytes_read, spans=self.spans)

    def pin_memory(self) -> EngineBatch:
        """`torch.utils.data.DataLoader` calls this, on a thread of its own."""
        return self.batch().pin_memory()


# The slots of the engines of this process, for batches that come back from workers.
SLOTS: weakref.WeakValueDictionary[int, Slots] = weakref.WeakValueDictionary()


class _Batches(torch.utils.data.Dataset[_Made]):
    """The dataset of the DataLoader underneath: what it is asked for is a task, what it gives the job's batch."""

    def __init__(self, source: Source, recipe: Recipe, slots: Slots) -> None:
        self.source = source
        self.recipe = recipe
        self.slots = slots
        self.slots_id = id(slots)

    def __getitem__(self, task: Task) -> _Made:
        slot, job = task
        if slot is None:
            out = _uint8((len(job.indices), *self.recipe.crop.output_size, 3))
        else:
            out = self.slots.batch(slot, len(job.indices))
        made = render_batch(self.source, self.recipe, job, out)
        images = out if slot is None else None
        return _Made(self.slots_id, slot, images, made.labels.numpy(), made.failures, made.bytes_read, made.spans)


def _uint8(shape: tuple[int, ...]) -> torch.Tensor:
    """Uninitialized memory; in a worker process it is shared, which saves the copy when the batch is sent."""
    if torch.utils.data.get_worker_info() is None:
        return torch.empty(shape, dtype=torch.uint8)
    storage = torch.UntypedStorage._new_shared(math.prod(shape))
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, shape)  # type: ignore[call-overload, no-any-return]


class _Tasks(torch.utils.data.Sampler[Task]):
    """The sampler of the DataLoader underneath: whatever jobs the current stream has, each with a slot."""

    def __init__(self, slots: Slots) -> None:
        self.jobs: Iterable[Job] = ()
        self._slots = slots

    def __iter__(self) -> Iterator[Task]:
        # Asked for the first task when the workers of older streams have ended, or have said that they are done.
        self._slots.take_back()
        for job in self.jobs:
            yield self._slots.give(), job


def _as_is(batch: Any) -> Any:
    return batch


class TorchEngine:
    """Worker processes that decode, crop and resize on the CPU; other `options` go to the DataLoader as they are."""

    name = "torch"

    def __init__(
        self, source: Source, recipe: Recipe, device: torch.device, *, batch_size: int, num_workers: int, **options: Any
    ) -> None:
        self.device = device
        count = system.batches_in_memory(num_workers, options.get("prefetch_factor", 1))
        self._slots = Slots(count, (batch_size, *recipe.crop.output_size, 3), shared=num_workers > 0)
        SLOTS[id(self._slots)] = self._slots
        self._tasks = _Tasks(self._slots)
        self._iterator: Any = None
        self._loader = torch.utils.data.DataLoader(
            _Batches(source, recipe, self._slots),
            batch_size=None,
            sampler=self._tasks,
            num_workers=num_workers,
            collate_fn=_as_is,
            generator=torch.Generator(),  # its own, so that making batches leaves torch's global generator alone
            **options,
        )

    def stream(self, jobs: Iterable[Job]) -> Iterator[EngineBatch]:
        """A uint8 batch for each job, on the CPU, pinned if the options say so.

        Raises LoaderTimeoutError when the workers give nothing within the timeout, WorkerError when one has died. The
        workers are then ended, and the next stream starts new ones. A new stream ends an older one.
        """
        self._end_workers(keep_persistent=True)
        self._tasks.jobs = jobs
        iterator: Any = None
        try:
            iterator = self._iterator = iter(self._loader)
            for made in iterator:
                batch = made if isinstance(made, EngineBatch) else made.batch()
                del made
                yield batch
                del batch  # its slot is free for the next job as soon as the consumer has done with it
        except (RuntimeError, ConnectionError, EOFError) as error:
            if isinstance(error, GpupipeError):
                raise
            self._kill_workers()
            raise self._explained(error) from error
        finally:
            if not self._loader.persistent_workers:
                _shut_down(iterator)  # its own: a newer stream may have begun

    def _explained(self, error: Exception) -> Exception:
        """What the DataLoader's error means, and what to do."""
        workers, message = self._loader.num_workers, str(error)
        if "timed out" in message:
            return LoaderTimeoutError(
                f"no batch came from {workers} workers within timeout={self._loader.timeout} s; the storage may hang "
                "or be slow, or the batch large: look at the workers with py-spy, or raise timeout"
            )
        # A worker may also die while a batch is being taken over from it.
        if isinstance(error, (ConnectionError, EOFError)) or "DataLoader worker" in message or "ancillary" in message:
            return WorkerError(
                f"one of {workers} worker processes died ({message}). With spawn or forkserver: does the script begin "
                "its work below `if __name__ == '__main__':`? Else often the memory limit was reached (see dmesg; "
                "lower num_workers or batch_size), or a file was shortened while it was mapped"
            )
        return error

    def _end_workers(self, keep_persistent: bool) -> None:
        if not (keep_persistent and self._loader.persistent_workers):
            _shut_down(self._iterator)
            self._iterator = self._loader._iterator = None

    def _kill_workers(self) -> None:
        """End workers that may hang: asked to stop in turn, each would be waited for 5 s."""
        iterator: Any = self._iterator if self._iterator is not None else self._loader._iterator
        if getattr(iterator, "_worker_pids_set", False):
            # Else torch's handler of SIGCHLD raises, here, that a worker has died.
            signal_handling._remove_worker_pids(id(iterator))  # type: ignore[attr-defined]
            iterator._worker_pids_set = False
        for worker in getattr(iterator, "_workers", ()):
            worker.kill()
        _shut_down(iterator)
        self._iterator = self._loader._iterator = None

    def ready(self) -> int:
        """Batches in the workers' queue, and those taken from it that wait for an earlier one."""
        iterator = self._iterator
        if self._loader.num_workers == 0 or iterator is None:
            return 0
        # Inner parts of torch's iterator, which has no public word for it; a task of two entries holds its batch.
        waiting = sum(len(task) == 2 for task in iterator._task_info.values())
        return int(iterator._data_queue.qsize()) + waiting

    def close(self) -> None:
        """Ends the workers."""
        self._end_workers(keep_persistent=False)


def _shut_down(iterator: Any) -> None:
    """Ends the workers of a DataLoader's iterator; torch does so only when the iterator is collected."""
    shut_down = getattr(iterator, "_shutdown_workers", None)
    if shut_down is not None:
        shut_down()
