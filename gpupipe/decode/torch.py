"""The engine on a standard `torch.utils.data.DataLoader`: its workers make batches, each from one job.

Processes, each with the C++ kernel on one thread (`python bench/workers.py`; uint8, 2 cores of an AMD EPYC):

    processes x threads   2 x 1   1 x 2   0 x 2   2 x 2   | on one core:   1 x 1   0 x 1
    images a second       1,573   1,458   1,472   1,608   |                  752     822
    memory, MB              724     660     607     731   |                  656     603

Threads within one process leave it idle while the next batch's files are read and its batch is handed over. Two threads
in each of as many processes as CPUs gain a little here, but twice as many threads as CPUs compete with the training
step.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

import torch
import torch.utils.data

from gpupipe.batch import Batch, Coming, Job
from gpupipe.decode.engine import Batches
from gpupipe.decode.substitutes import Substitutes
from gpupipe.errors import ConfigError, DataError, LoaderTimeoutError, OriginalTraceback
from gpupipe.host import system
from gpupipe.host.processes import Identity
from gpupipe.sources import Source
from gpupipe.sources.building import reopen_index
from gpupipe.workers.board import Board
from gpupipe.workers.faults import Describe, death, hang, starting
from gpupipe.workers.forks import guard_forks
from gpupipe.workers.pickling import check_picklable
from gpupipe.workers.slots import Slots
from gpupipe.workers.tasks import Tasks, Workshop, received
from gpupipe.workers.watched import WorkersDied, WorkersHang, missing_parts, open_loader, start_method
from gpupipe.workers.work import Work
from gpupipe.workers.worker import WorkerInit, start_worker

__all__ = ["TorchEngine"]

log = logging.getLogger("gpupipe")

END: Any = object()


class TorchEngine:
    """Worker processes that do the work, or this one if there are none; other `options` are the DataLoader's.

    dataset: what the user's code finds in `torch.utils.data.get_worker_info()`. describe: where a sample lies, for
    messages. generator: where the workers' seeds come from. ahead: how many of its own batches before each a worker
    tells its source of it. source: which has to be told where this process reads itself, and whose workers are no
    forks of a process that has read from a storage: their requests would hang. beside: whose worker ends with these.
    """

    name = "torch"

    def __init__(
        self,
        work: Work,
        device: torch.device,
        *,
        batch_size: int,
        num_workers: int,
        dataset: Any,
        describe: Describe,
        generator: torch.Generator,
        source: Source | None = None,
        ahead: int = 0,
        beside: Substitutes | None = None,
        worker_init_fn: WorkerInit | None = None,
        multiprocessing_context: Any = None,
        **options: Any,
    ) -> None:
        self.device = device
        self._dataset = dataset
        self._describe = describe
        self._worker_init_fn = worker_init_fn
        self._workers = num_workers
        self._persistent = bool(options.get("persistent_workers", False))
        self._timeout = float(options.get("timeout", 0))
        self._work = work
        self._source = source
        self._ahead = ahead
        self._beside = beside
        self._sent_by = ""  # the start method by which workers are known to get all
        self._batch_size = batch_size
        self._options = options | dict(
            num_workers=num_workers, generator=generator, multiprocessing_context=multiprocessing_context
        )
        self._settle()
        self._loader: torch.utils.data.DataLoader[Any] | None = self._opened()  # which checks its arguments
        self._iterator: Any = None
        if num_workers > 0:
            guard_forks()

    def _opened(self) -> torch.utils.data.DataLoader[Any]:
        """The DataLoader underneath, whose workers can read what they are to."""
        given = self._options["multiprocessing_context"]
        loader = self._open_loader(multiprocessing_context=given)
        method = start_method(loader.multiprocessing_context)
        if self._workers and method == "fork" and self._has_client():
            if given is not None:
                raise ConfigError(
                    "multiprocessing_context='fork': this process has read from a storage itself, and in a fork of it "
                    "a client would hang; pass 'forkserver' or 'spawn', or leave it out"
                )
            _prepare_forkserver()
            method = "forkserver"
            loader = self._open_loader(multiprocessing_context=method)
        if self._workers and method not in ("fork", self._sent_by):
            self._sent_by = method
            check_picklable("dataset", self._dataset, method)
            check_picklable("work", self._work, method)
            check_picklable("worker_init_fn", self._worker_init_fn, method)
        return loader

    def _has_client(self) -> bool:
        if self._source is None or not self._source.reads_storage:
            return False
        from gpupipe.sources.remote.client import used_here  # late: what it needs is an extra

        return used_here()

    def _settle(self) -> None:
        """Memory for the batches of this process and its workers: forks of it must not write to the same."""
        self._owner = os.getpid()
        with starting(self._workers):
            self._share()

    def _share(self) -> None:
        count = system.batches_in_memory(self._workers, self._options.get("prefetch_factor", 1))
        if missing_parts():  # torch's own iterator gives a worker its next task before the batch is taken
            count += 1
        slots = Slots(count, self._batch_size, self._work.layout, shared=self._workers > 0)
        self._board = Board(self._workers, self._batch_size)
        self._tasks = Tasks(slots, self._board, self._workers, self._ahead, self._work.in_parts)
        self._open_loader = partial(
            open_loader,
            Workshop(self._work, slots, self._board, id(self._tasks)),
            batch_size=None,
            sampler=self._tasks,
            collate_fn=_as_is,
            received=received,
            **{name: option for name, option in self._options.items() if name != "multiprocessing_context"},
        )
        self._loader = None

    def stream(self, jobs: Iterable[Job]) -> Batches:
        """A batch for each job, on the CPU, pinned if the options say so.

        Raises LoaderTimeoutError when the workers give nothing within the timeout, WorkerError when one has died. The
        workers are then ended, and the next stream starts new ones. A new stream ends an older one.
        """
        if self._owner != os.getpid():  # a fork of the one that built the loader, whose workers are not for it to end
            self._iterator = None
            self._settle()
        elif not self._persistent:
            self.close()
        turn = self._tasks.begin(jobs)
        try:
            self._iterator = self._safely(self._begun)
        except LoaderTimeoutError as error:  # of what was dropped: what hangs there may not be asked for again
            log.warning("gpupipe: %s. New workers are started", error)
            self._iterator = self._safely(self._begun)
        return Batches(partial(self._next, turn), partial(self._leave, turn))

    def _begun(self) -> Any:
        """The iterator underneath, with new workers where there are none, at the first task of the stream."""
        with starting(self._workers):
            return self._started()

    def _started(self) -> Any:
        loader = self._loader
        if loader is None or (self._iterator is None and self._has_client()):
            loader = self._loader = self._opened()
        if self._iterator is None:
            self._board.clear()
            environment = dict(os.environ) if self._sent_by else None
            loader.worker_init_fn = partial(
                start_worker, self._board, Identity.own(), self._dataset, self._worker_init_fn, environment
            )
        return iter(loader)

    def _next(self, turn: int) -> Batch:
        """The next batch of that stream. Raises what its jobs have raised after their last one, else StopIteration."""
        while self._iterator is not None and self._tasks.runs(turn):
            batch = self._safely(lambda: _sound(received(next(self._iterator, END))))
            if batch is END:
                raise self._over(turn)
            if batch is not None:  # it is part of one
                return batch  # type: ignore[no-any-return]
        raise StopIteration

    def _over(self, turn: int) -> Exception:
        error = self._tasks.error
        self._leave(turn)
        return error or StopIteration()

    def _safely(self, step: Callable[[], Any]) -> Any:
        """What the step gives; where it raises, the workers are ended."""
        try:
            return step()
        except (WorkersDied, WorkersHang) as fault:
            raise self._ended_by(fault) from None
        except BaseException:  # a Ctrl-C, say: it may have come between the parts of a message from or to a worker
            self.close()
            raise

    def _ended_by(self, fault: WorkersDied | WorkersHang) -> Exception:
        if isinstance(fault, WorkersDied):
            shown: Exception = death(fault, self._board, self._describe, self._unreadable)
        else:
            shown = hang(fault, self._board, self._describe, self._timeout)
        self.close(at_once=True)
        return shown

    def _unreadable(self) -> str:
        """Why another Python can't open the data that it is told of, if that is so."""
        try:
            for source in [] if self._source is None or not self._sent_by else self._source.all_parts():
                if path := getattr(source, "index_path", ""):
                    reopen_index(path, source.fingerprint)
        except DataError as error:
            return str(error)
        return ""

    def close(self, at_once: bool = False) -> None:
        """Ends the workers."""
        if self._beside is not None:
            self._beside.close(at_once)
        iterator, self._iterator = self._iterator, None
        if iterator is None:
            return
        self._loader = None  # it keeps an iterator over persistent workers
        end = getattr(iterator, "end", None)  # torch's own ends them when nobody holds it any more
        if end is not None:
            end(at_once)

    def _leave(self, turn: int) -> None:
        """Nothing more is wanted of that stream."""
        if self._tasks.runs(turn):
            self._tasks.leave(turn)
            if self._source is not None and not self._workers:
                self._source.ahead(Coming.nothing())
            if not self._persistent:
                self.close()

    def ready(self) -> int | None:
        """Batches in the workers' queue, and those taken from it that wait for an earlier one."""
        if self._workers == 0 or self._iterator is None:
            return 0
        ready = getattr(self._iterator, "ready", None)
        return None if ready is None else int(ready())

    def interrupt(self) -> None:
        """Ends the workers, and with them whoever waits for one."""
        if self._beside is not None:
            self._beside.interrupt()
        interrupt = getattr(self._iterator, "interrupt", None)
        if interrupt is not None:
            interrupt()


@cache
def _prepare_forkserver() -> None:
    """Once in a process. The server imports torch, rather than each worker, unless it runs already."""
    torch.multiprocessing.set_forkserver_preload(["__main__", __name__])
    log.warning(
        "gpupipe: this process has read from a storage itself, so its workers are started by multiprocessing's "
        "forkserver: in forks of it a client would hang. Pass multiprocessing_context='forkserver' for that from the "
        "beginning"
    )


def _sound(batch: Any) -> Any:
    """The batch, or what a worker could not make it for is raised, as it is without workers."""
    if isinstance(batch, Batch) and batch.error is not None:
        error, original = batch.error
        raise error from OriginalTraceback(original)
    return batch


def _as_is(batch: Any) -> Any:
    return batch
