"""Write any source as WebDataset shards or Parquet files: shuffled once, optionally shrunk, file by file, resumable."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from gpupipe.errors import ConfigError, DataError, SampleError
from gpupipe.host.cache import PATIENCE
from gpupipe.host.checks import whole
from gpupipe.host.files import folder_lock, replacing
from gpupipe.host.system import usable_cpus
from gpupipe.sources import Source, open_source
from gpupipe.sources.packed import PLAN_NAME
from gpupipe.sources.remote.objects import is_remote, shown
from gpupipe.sources.shards import CLASSES_NAME
from gpupipe.tools.on_ray import run_on_ray
from gpupipe.tools.packing.files import missing, records, write_files
from gpupipe.tools.packing.plan import Plan, check, kept_plan, ordered
from gpupipe.tools.packing.samples import damage
from gpupipe.tools.packing.settings import PackSettings

__all__ = ["PLAN_NAME", "PackSettings", "Packed", "damage", "pack", "pack_share"]

UUID = len(".0123456789abcdef0123456789abcdef.tmp")


@dataclass(frozen=True)
class Packed:
    """What now lies in the destination, as a source, and the samples of the packed source that were left out."""

    source: Source
    left_out: list[int]


def pack(
    source: Source,
    destination: str | os.PathLike[str],
    settings: PackSettings = PackSettings(),  # noqa: B008  (which can't be changed)
    workers: int = 0,
    *,
    on: Literal["ray"] | None = None,
) -> Packed:
    """Write `source` into `destination` as shards with an index and, where there are class names, `classes.json`, or as
    Parquet files; `open_source(destination)` has the same fields.

    Each file appears under its name only when it is whole; it is then read back and compared, sample by sample, with
    what was written. Files that an earlier run finished are kept if that run had the same source and settings; the
    result is the same, byte for byte, as that of one run. `workers` threads (0: one per usable CPU) encode. A sample
    that lacks a field whose `missing` is "skip" is left out.

    on: "ray": each file is a task of a Ray cluster, see `run_on_ray`. Source and destination must lie there under the
    same paths.

    Raises ConfigError where the destination holds another packing or lies in the source, and for negative `workers`;
    DataError where images are damaged (unless `settings.skip_bad`), the disk can't take the files or gives back others;
    SampleError for a sample that can't be read now, whose file a later run then writes.
    """
    threads = _threads(workers)
    with _planned(source, destination, settings, alone=True) as (folder, plan):
        numbers = missing(folder, plan)
        if on is None:
            write_files(source, folder, plan, numbers, threads, stale=0)
        else:
            run_on_ray(_write_one, (source, folder, plan), numbers, f"packing into {folder}")
    packed = _finished(source, folder, plan)
    assert packed is not None, "every file is written"
    return packed


def _threads(workers: int) -> int:
    """Raises ConfigError."""
    return whole("workers", workers, 0) or usable_cpus()


def _write_one(shared: tuple[Source, Path, Plan], number: int) -> None:
    source, folder, plan = shared
    write_files(source, folder, plan, [number], workers=1)


def pack_share(
    source: Source,
    destination: str | os.PathLike[str],
    settings: PackSettings,
    share: tuple[int, int],
    workers: int = 0,
) -> Packed | None:
    """As `pack`, but only the files of one of several tasks, which may run anywhere and at the same time.

    share: (i, n), from (1, n) to (n, n). A task that was lost is run again, and does what is missing of its share. The
    last one to finish makes the whole of them, as `pack` does; the others return None.
    """
    threads, (number, count) = _threads(workers), share
    if not 1 <= number <= count:
        raise ConfigError(f"task {number}/{count}: tasks are counted from 1/{count} to {count}/{count}")
    with _planned(source, destination, settings, alone=False) as (folder, plan):
        pass
    with _writing(folder):
        own = [file for file in missing(folder, plan) if file % count == number - 1]
        write_files(source, folder, plan, own, threads)
        return _finished(source, folder, plan)


@contextmanager
def _planned(
    source: Source, destination: str | os.PathLike[str], settings: PackSettings, alone: bool
) -> Iterator[tuple[Path, Plan]]:
    """The folder and what is to be written there, while no other process of the machine is in this block; `alone`: and
    none may want to be."""
    if is_remote(os.fspath(destination)):
        copy = "pack into a folder, and copy that (aws s3 sync, gcloud storage rsync, azcopy)"
        raise ConfigError(f"{shown(os.fspath(destination))} is a URL, and files are written on a disk: {copy}")
    folder = Path(destination).expanduser().absolute()
    check(source, folder, settings)
    order = ordered(source, settings)
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with folder_lock(folder, doing=f"packs into {folder}", patience=None if alone else PATIENCE):
            plan = kept_plan(folder, source, settings, order)
            if source.classes is not None and settings.to == "shards":
                with replacing(folder / CLASSES_NAME, stale=0) as file:
                    file.write(f"{json.dumps(source.classes, indent=0)}\n".encode())
            yield folder, plan


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except SampleError:  # which may be an OSError of a user's dataset, too
        raise
    except BlockingIOError as error:
        raise ConfigError(f"another process is packing into {folder}: wait for it or write elsewhere") from error
    except OSError as error:
        raise DataError(f"can't write to {folder}: {error}; once that is mended, run it again to go on") from error


def _finished(source: Source, folder: Path, plan: Plan) -> Packed | None:
    """The whole packing, where no file is missing."""
    done = [record for record in records(folder, plan) if record is not None]
    if len(done) < len(plan.names):
        return None
    for path in (folder / plan.names[0]).parent.glob("*.tmp"):  # of processes that were killed
        if path.name[:-UUID] in {name.rpartition("/")[2] for name in plan.names}:
            path.unlink(missing_ok=True)
    packed = open_source(folder)
    samples = sum(record.samples for record in done)
    if len(packed) != samples:
        raise DataError(
            f"{folder} has {len(packed)} samples where {samples} were written: files were changed meanwhile"
        )
    left_out = [index for record in done for index in record.left_out]
    early = np.setdiff1d(np.arange(len(source)), plan.order)
    return Packed(packed, sorted([*left_out, *early.tolist()]))
