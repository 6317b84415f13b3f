"""A process that plays lives, and says what its loaders delivered; another is asked what a quiet run delivers."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
import time
import zlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from reliability.traces import Usage, left_behind, shm_entries

import gpupipe
from gpupipe.sources.remote.flight import MOST
from soaking.faults import Disturber
from soaking.lives import WORKERS, Life

__all__ = ["Player", "measured"]

BATCH, SEED = 16, 1
TIMEOUT = 60.0  # seconds without a batch: a hang
NOTHING: Mapping[int, list[int]] = {}
SETTLES = 10.0  # seconds that processes, threads and files have to go
SHARED = gpupipe.Decoders(cpu_share=0.4, cpu_workers=WORKERS)


class Player:
    """places: the data in each form. cache: a folder."""

    def __init__(self, places: dict[str, str], cache: str, cache_size: int) -> None:
        os.environ["GPUPIPE_CACHE"] = cache
        self._places, self._cache = places, gpupipe.Cache(cache, cache_size, reserve=0)
        torch.ones(1 << 20).sum()  # torch's own threads start with the first work that is large enough, and stay
        self.settle()

    def samples(self, form: str) -> list[str]:
        """Where each sample lies."""
        source = self._source(form)
        return [source.location(index) for index in range(len(source))]

    def settle(self) -> None:
        """What is there now stays for the life of the process: threads that libraries start once."""
        gc.collect()
        self._before, self._shm = _usage(), shm_entries()

    def plan(self, form: str, epoch: int) -> list[list[int]]:
        """The samples of an epoch's steps."""
        table = self._table(form, epoch)
        return [table[start : start + BATCH].tolist() for start in range(0, len(table), BATCH)]

    def quiet(self, engine: str, form: str, epoch: int, others: Mapping[int, list[int]] = NOTHING) -> list[list[int]]:
        """The checksums of an epoch's rows, with other samples in some steps."""
        table = self._table(form, epoch)
        for step, indices in others.items():
            table[step * BATCH : step * BATCH + len(indices)] = indices
        with self._loader(engine, self._source(form), workers=0, order=_Listed(table)) as loader:
            loader.set_epoch(epoch)
            found = [_checksums(batch) for batch in loader]
        del loader
        gc.collect()  # else its semaphores would be there when the other process looks
        return found

    def _table(self, form: str, epoch: int) -> np.ndarray:
        source = self._source(form)
        return source.usual_order(True).indices(SEED, epoch, np.arange(len(source), dtype=np.int64))

    def play(self, life: Life) -> dict[str, Any]:
        """What came of it."""
        source = self._source(life.form)
        disturber = Disturber(Path(self._places[life.form]))
        loader = self._loader(life.engine, source, on_error=life.on_error)
        try:
            epochs = [_epoch(loader, life, epoch, disturber) for epoch in range(len(life.epochs))]
            bad = [(error.index, str(error)) for error in loader.bad_samples]
        finally:
            disturber.end()
            loader.close()
        del loader, source
        return {
            "epochs": epochs,
            "bad": bad,
            "killed": disturber.killed,
            "hidden": sorted(disturber.hidden),
            "counts": disturber.counts,
            "left": self._left(),
            **measured(),
        }

    def _source(self, form: str) -> gpupipe.Source:
        cache = {"cache": self._cache} if form == "remote" else {}
        return gpupipe.open_source(self._places[form], **cache)

    def _loader(self, engine: str, source: gpupipe.Source, workers: int = WORKERS, **options: Any) -> gpupipe.Loader:
        """workers: of the torch engine; DALI has its own."""
        options |= {"order": options.get("order"), "shuffle": "order" not in options, "seed": SEED, "device": "cpu"}
        if engine == "torch":
            timeout = TIMEOUT if workers else 0
            return gpupipe.Loader(
                source, RECIPE, BATCH, engine="torch", num_workers=workers, timeout=timeout, **options
            )
        decoders = SHARED if engine == "shared" else None
        threads = 1 + (WORKERS if engine == "shared" else 0)
        return gpupipe.Loader(
            source, RECIPE, BATCH, engine="dali", num_workers=threads, decoders=decoders, timeout=TIMEOUT, **options
        )

    def _left(self) -> str:
        """What there is more of than before, once it has had time to go."""
        deadline = time.monotonic() + SETTLES
        while True:
            gc.collect()
            more = _usage().beyond(self._before)
            entries = sorted(left_behind(self._shm, os.getsid(0)))
            if not (more or entries) or time.monotonic() > deadline:
                return "; ".join([*([more] if more else []), *(f"/dev/shm/{entry}" for entry in entries)])
            time.sleep(0.02)


def _usage() -> Usage:
    """What this process has, without what its storage client keeps as long as it lives: threads and connections, as
    many as have paid at once, at most `MOST`."""
    now = Usage.now()
    threads = sum(thread.name == "gpupipe-storage" for thread in threading.enumerate())
    assert threads <= MOST, f"{threads} threads of a storage client"
    sockets = {"socket:": now.files["socket:"]} if threads else {}
    return Usage(now.files - Counter(sockets), now.threads - Counter({_name(): threads}), now.children)


def _name() -> str:
    """Of this process, and of threads that Python starts."""
    return Path("/proc/self/comm").read_text().strip()


RECIPE = gpupipe.imagenet_train(48)


class _Listed:
    """An order with these samples, whatever the epoch."""

    def __init__(self, table: np.ndarray) -> None:
        self._table = table
        self.fingerprint = f"listed-{zlib.crc32(table.tobytes())}"

    def __len__(self) -> int:
        return len(self._table)

    def indices(self, seed: int, epoch: int, positions: np.ndarray) -> np.ndarray:
        return self._table[positions]


def _checksums(batch: Any) -> list[int]:
    """Of each row, image and label."""
    images, labels = (part.numpy() for part in batch)
    return [
        zlib.crc32(label.tobytes(), zlib.crc32(image.tobytes())) for image, label in zip(images, labels, strict=True)
    ]


def _epoch(loader: gpupipe.Loader, life: Life, epoch: int, disturber: Disturber) -> dict[str, Any]:
    """Its batches and errors."""
    acts, call = list(life.epochs[epoch]), 0
    batches: list[tuple[int, list[int], list[int]]] = []
    errors: list[tuple[str, int, str]] = []
    assert loader.epoch == epoch, (loader.epoch, epoch)
    iterator = iter(loader)
    while True:
        while acts and acts[0].call <= call:
            disturber.do(acts.pop(0))
        try:
            batch = next(iterator)
            batches.append((loader.last_step, loader.last_indices.tolist(), _checksums(batch)))
        except StopIteration:
            break
        except (gpupipe.SampleError, gpupipe.WorkerError) as error:
            errors.append((type(error).__name__, getattr(error, "index", -1), str(error)))
            disturber.put_back()
            if life.resumes:
                loader.load_state_dict(loader.state_dict())
                iterator = iter(loader)
        call += 1
        disturber.called()
    disturber.put_back()
    return {"batches": batches, "errors": errors}


class _Heap(ctypes.Structure):
    """What mallinfo2(3) returns. free: bytes in free chunks, of all arenas (its `fordblks`)."""

    _fields_: ClassVar = [("others", 8 * ctypes.c_size_t), ("free", ctypes.c_size_t), ("keepcost", ctypes.c_size_t)]


mallinfo2 = ctypes.CDLL(None).mallinfo2
mallinfo2.restype = _Heap


def measured() -> dict[str, float]:
    """Megabytes of memory that are no file's, and those of them that are no free chunks of malloc; open files, threads
    and children of this process."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    kilobytes = sum(int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
    now = _usage()
    counts = {"files": now.files, "threads": now.threads, "processes": now.children}
    shm = len(shm_entries())
    memory = {"mb": kilobytes * 1024 / 1e6, "used": (kilobytes * 1024 - mallinfo2().free) / 1e6}
    return memory | {"shm": shm} | {name: kind.total() for name, kind in counts.items()}
