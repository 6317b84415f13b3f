"""One file of a packing: written, read back, and marked as done, by whichever process has it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gpupipe.host.files import read_regular, replacing
from gpupipe.host.progress import progress
from gpupipe.sources import Source
from gpupipe.sources.packed import MARKS
from gpupipe.tools.packing.plan import Plan
from gpupipe.tools.packing.samples import Sample, encoded
from gpupipe.tools.packing.verify import verify

__all__ = ["Record", "missing", "records", "write_files"]

MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class Record:
    """What stands in the mark of a file that is whole and was read back: its bytes, the number of its samples, and the
    source's indices of those that were left out of it."""

    bytes: int
    samples: int
    left_out: list[int]


def records(folder: Path, plan: Plan) -> list[Record | None]:
    """Of each file; None where it is still to be written."""
    return [_record(folder, name) for name in plan.names]


def missing(folder: Path, plan: Plan) -> list[int]:
    """The numbers of the files that are still to be written."""
    return [number for number, record in enumerate(records(folder, plan)) if record is None]


def _mark(folder: Path, name: str) -> Path:
    return folder / MARKS / f"{name.rpartition('/')[2]}.json"


def _record(folder: Path, name: str) -> Record | None:
    try:
        record = Record(**json.loads(read_regular(_mark(folder, name), MOST_BYTES)))
        return record if (folder / name).stat().st_size == record.bytes else None
    except (OSError, ValueError, TypeError):
        return None


def write_files(
    source: Source, folder: Path, plan: Plan, numbers: list[int], workers: int, stale: float = 3600.0
) -> None:
    """Write these files, encoded in so many threads. stale: as of `replacing`: 0 where no other process writes here."""
    pool = ThreadPoolExecutor(workers, thread_name_prefix="gpupipe-pack")  # Pillow releases the lock where it works
    try:
        with progress("packing", sum(len(plan.part(number)) for number in numbers)) as advance:
            for number in numbers:
                _write_file(source, folder, plan, number, pool, workers, stale)
                advance(len(plan.part(number)))
    finally:
        pool.shutdown(cancel_futures=True)


def _write_file(
    source: Source, folder: Path, plan: Plan, number: int, pool: Executor, workers: int, stale: float
) -> None:
    path = folder / plan.names[number]
    path.parent.mkdir(exist_ok=True)
    left_out: list[int] = []
    digests: list[bytes] = []

    def noted() -> Iterator[Sample]:
        part = plan.part(number)
        for index, sample in zip(part, encoded(source, plan.layout, plan.settings, part, pool, workers), strict=True):
            if sample is None:
                left_out.append(index)
            else:
                digests.append(sample.digest)
                yield sample

    with replacing(path, stale) as file:
        if plan.settings.to == "shards":
            from gpupipe.tools.packing.shards import write_shard

            write_shard(file, plan.layout, noted())
        else:
            from gpupipe.tools.packing.parquet import write_parquet

            write_parquet(file, plan.layout, noted(), plan.classes)
    verify(path, plan.layout, digests, pool)
    record = Record(path.stat().st_size, len(digests), left_out)
    mark = _mark(folder, plan.names[number])
    mark.parent.mkdir(exist_ok=True)
    with replacing(mark, stale) as file:
        file.write(json.dumps(vars(record)).encode())
