"""What is in a cache, for people: its data sets, and the processes that use it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpupipe.errors import ConfigError
from gpupipe.sources.remote.cache.dead import bury
from gpupipe.sources.remote.cache.folder import chosen_size, own_folder
from gpupipe.sources.remote.cache.leases import Lease, alive, facts_of
from gpupipe.sources.remote.cache.ledger import AT_ONCE, SPACE, Damaged, Gone, Ledger, Unwritable, condemn, open_ledger
from gpupipe.sources.remote.cache.settings import Cache
from gpupipe.sources.remote.cache.stock import Stock

__all__ = ["DataSet", "Survey", "clear", "survey"]


@dataclass(frozen=True)
class DataSet:
    """Blocks of what lies in one folder of a storage. taken, held: bytes; those that runs hold are never removed."""

    name: str
    blocks: int
    taken: int
    held: int


@dataclass(frozen=True)
class Survey:
    """taken: bytes in all, with those that are being fetched. chosen: the size where none is set, 0 for none yet.
    processes: pid, since, program and size of those that use it, and a name of their run."""

    place: str
    taken: int
    chosen: int
    free: int
    data_sets: tuple[DataSet, ...]
    processes: tuple[dict[str, Any], ...]


def survey(settings: Cache) -> Survey:
    """Look at it. Raises ConfigError where it can't be used."""
    place = settings.place
    disk = os.statvfs(_folder(place))
    free = disk.f_bavail * disk.f_frsize
    if not place.exists():
        return Survey(str(place), 0, 0, free, (), ())
    processes = tuple(_processes(place / "leases"))
    living = {process["run"] for process in processes}
    with _told(place), _opened(place) as ledger:
        ((taken,),) = ledger.rows("SELECT total FROM facts")
        runs = ledger.rows("SELECT slot, name FROM runs WHERE NOT ended")
        held = f"SUM(CASE WHEN holders & ? THEN {SPACE} ELSE 0 END)"
        sums = f"SELECT data_set, COUNT(*), SUM({SPACE}), {held} FROM blocks GROUP BY data_set ORDER BY 3 DESC"
        rows = ledger.rows(sums, sum(1 << slot for slot, name in runs if name in living))
    sets = tuple(DataSet(_name(place, number), *counts) for number, *counts in rows)
    return Survey(str(place), taken, chosen_size(place), free, sets, processes)


def clear(settings: Cache, below: str = "") -> int:
    """Remove what no live run holds, of data sets whose names begin so; the bytes that this has freed. Raises
    ConfigError where it can't be used, and for what no name begins with."""
    if below and "://" not in below:
        raise ConfigError(
            f"clear={below!r} is no URL, as s3://bucket/train, by which data sets are named; to clear the cache in a "
            f"folder: gpupipe cache {below} --clear"
        )
    place = settings.place
    _folder(place)
    if not place.exists():
        return 0
    with _told(place), _opened(place) as ledger:
        bury(ledger)
        lease = Lease(place / "leases", "clear")
        try:
            stock = Stock(place, ledger, lease, limit=0, reserve=0)
            numbers = [number for (number,) in ledger.rows("SELECT DISTINCT data_set FROM blocks")]
            wanted = [number for number in numbers if _name(place, number).startswith(below)]
            return sum(_clear_set(stock, number) for number in wanted)
        finally:
            lease.close()


def _folder(place: Path) -> Path:
    """The folder, or the one in which it will be. Raises ConfigError where that is none."""
    found = next(path for path in (place, *place.parents) if path.exists())
    if not found.is_dir():
        raise ConfigError(f"a cache lies in a folder, and {found} is a file; pass the folder")
    return found


def _clear_set(stock: Stock, data_set: int) -> int:
    freed = 0
    query = f"SELECT id, {SPACE} FROM blocks WHERE holders = 0 AND data_set = ? LIMIT ?"
    while rows := stock.ledger.rows(query, data_set, AT_ONCE):
        stock.drop([block for block, _ in rows], 0)
        freed += sum(space for _, space in rows)
    return freed


@contextmanager
def _opened(place: Path) -> Iterator[Ledger]:
    own_folder(place)
    ledger = open_ledger(place)
    try:
        yield ledger
    except Damaged as error:
        condemn(error.path)
        raise
    finally:
        ledger.close()


@contextmanager
def _told(place: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.Error, Unwritable, Gone, Damaged) as error:
        reason = getattr(error, "strerror", "") or str(error) or "it was removed meanwhile"
        raise ConfigError(f"the cache in {place} can't be used: {reason}; if that stays, remove the folder") from error


def _name(place: Path, data_set: int) -> str:
    with suppress(OSError):
        return (place / "sets" / f"{data_set:06x}").read_text(errors="replace")
    return ""


def _processes(leases: Path) -> Iterator[dict[str, Any]]:
    with suppress(OSError):
        for name in sorted(os.listdir(leases)):
            if alive(leases, name):
                yield facts_of(leases, name) | {"run": name.partition("-")[0]}
