"""The blocks and the room that they take: files and ledger, changed so that neither is ever wrong about the other.

    claim:  a row of `claims` with the room that it takes
    store:  the file under another name, renamed; then the row goes to `blocks`
    remove: the row goes back to `claims`; then the file; then the row

A process that is killed at any point leaves rows of `claims` with its lease: who finds them removes their files, too.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.sources.remote.cache.files import Blocks
from gpupipe.sources.remote.cache.keys import ID, SET, block_id, block_size, named, set_name
from gpupipe.sources.remote.cache.leases import Lease
from gpupipe.sources.remote.cache.ledger import AT_ONCE, PAUSE, SPACE, Damaged, Facts, Gone, Ledger, Unwritable
from gpupipe.sources.remote.cache.settings import on_disk

__all__ = ["AMONG", "Row", "Stock", "listed"]

AMONG = "id IN (SELECT value FROM json_each(?))"
TOUCHED = 4096  # blocks whose use is noted with the next transaction, or in one of its own

Row = tuple[int, int, int]
"""ID, size and data set of a block."""


def listed(ids: Iterable[int]) -> str:
    """For AMONG: one value for many, as each of many would take the interpreter's lock."""
    return json.dumps(list(ids))


class Stock:
    """What a process sees of them. limit, reserve: bytes."""

    def __init__(self, root: Path, ledger: Ledger, lease: Lease, limit: int, reserve: int) -> None:
        self.root, self.ledger, self.lease = root, ledger, lease
        self.limit, self.reserve = limit, reserve
        self.files = Blocks(root)
        self.claimed: dict[int, str] = {}  # ID -> name of the file
        self._released: dict[int, str] = {}  # claims to be given up with the next transaction, and their files
        self._touched: set[int] = set()
        self._unsettled: set[str] = set()
        self._full_until = 0.0
        self._named: set[int] = set()

    @contextmanager
    def writing(self) -> Iterator[Facts]:
        """A transaction, which also carries what was left to the next one."""
        released: dict[int, str] = {}
        try:
            with self.ledger.writing() as facts:
                released.update(self._released)
                for block in released:
                    del self._released[block]
                self._give_up(facts, released)
                touched = set(self._touched)
                self._touched -= touched
                if touched:
                    self.ledger.execute(f"UPDATE blocks SET used = ? WHERE {AMONG}", facts.clock, listed(touched))
                yield facts
        except BaseException:
            self._released.update(released)
            raise

    def flush(self) -> None:
        """Carry it now."""
        with self.writing():
            pass

    def _give_up(self, facts: Facts, ids: Collection[int]) -> None:
        if ids:
            which = (listed(ids), self.lease.name)
            freed = self._sum(which)
            facts.add(-freed, -freed)
            self.ledger.execute(f"DELETE FROM claims WHERE {AMONG} AND lease = ?", *which)

    def _sum(self, which: tuple[str, str]) -> int:
        (row,) = self.ledger.select(f"SELECT COALESCE(SUM({SPACE}), 0) FROM claims WHERE {AMONG} AND lease = ?", *which)
        return int(row[0])

    def there(self, ask: Callable[..., Iterable[tuple[Any, ...]]], ids: Mapping[int, str]) -> dict[int, int]:
        """IDs of keys that can be read -> the runs that hold each. ask: the ledger's `rows`, or `select`."""
        rows = ask(f"SELECT id, size, holders FROM blocks WHERE {AMONG}", listed(ids))
        return {block: holders for block, size, holders in rows if size == block_size(ids[block])}

    def holds(self, keys: Sequence[str], bit: int) -> bool:
        """Whether all of these can be read and a run holds them, as from a warm cache: one row, where `there` takes the
        interpreter's lock for each block."""
        query = f"SELECT COUNT(*), COALESCE(SUM(size), 0) FROM blocks WHERE {AMONG} AND holders & ?"
        (found,) = self.ledger.rows(query, listed(map(block_id, keys)), bit)
        return found == (len(keys), sum(map(block_size, keys)))

    def touch(self, there: Mapping[int, int]) -> None:
        """They were used."""
        self._touched.update(block for block, holders in there.items() if not holders)
        if len(self._touched) >= TOUCHED:
            with suppress(Unwritable):
                self.flush()

    def room(self, facts: Facts) -> int:
        """Bytes that may be taken now; negative where others have taken from the disk's reserve."""
        return min(self.limit - facts.total, self.free() - facts.pending - self.reserve)

    @property
    def is_full(self) -> bool:
        """Whether a block could not be written lately."""
        return time.monotonic() < self._full_until

    def has_reserve(self) -> bool:
        """Whether the disk has more free than is to be left free."""
        return self.free() > self.reserve

    def free(self) -> int:
        """Bytes of the disk."""
        disk = os.statvfs(self.root)
        return disk.f_bavail * disk.f_frsize

    def claim(self, facts: Facts, new: Mapping[int, str], bit: int) -> None:
        """Room for as many of them as there is room for, to be held by these runs."""
        room, rows = self.room(facts), []
        for block, key in new.items():
            size = block_size(key)
            if on_disk(size) <= room:
                room -= on_disk(size)
                facts.add(on_disk(size), on_disk(size))
                rows.append((block, size, int(key[:SET], 16)))
        values = ", ".join(f"json_extract(value, '$[{place}]')" for place in range(3))
        insert = f"INSERT INTO claims SELECT {values}, ?, ? FROM json_each(?)"
        self.ledger.execute(insert, bit, self.lease.name, json.dumps(rows))
        self._name({data_set for _, _, data_set in rows})
        self.claimed.update((block, named(data_set, block, size)) for block, size, data_set in rows)

    def _name(self, data_sets: set[int]) -> None:
        """For people who look at the cache; a name outlives the ledger."""
        for data_set in data_sets - self._named:
            self._named.add(data_set)
            with suppress(OSError):
                (self.root / "sets").mkdir(mode=0o700, exist_ok=True)
                (self.root / "sets" / f"{data_set:06x}").write_text(set_name(data_set), errors="backslashreplace")

    def give_back(self, ids: Iterable[int]) -> None:
        """Claims that come to nothing."""
        mine = {block: name for block in ids if (name := self.claimed.pop(block, ""))}
        self._released.update(mine)
        if mine:
            self.flush()

    def store(self, blocks: Mapping[str, NDArray[np.uint8]]) -> tuple[set[str], OSError | None]:
        """Of those that are claimed; which were stored, and what has kept the others from it."""
        mine = {block: name for key in blocks if (name := self.claimed.pop(block := block_id(key), ""))}
        if not mine:
            return set(), None
        written, trouble = self._write({key: data for key, data in blocks.items() if block_id(key) in mine})
        names = {block: mine[block] for block in map(block_id, written)}
        which = (listed(names), self.lease.name)
        try:
            with self.writing() as facts:
                facts.add(0, -self._sum(which))
                rows = f"SELECT id, size, data_set, ?, holders FROM claims WHERE {AMONG} AND lease = ?"
                if self.ledger.execute(f"INSERT INTO blocks {rows}", facts.clock, *which) != len(names):
                    raise Gone  # somebody takes this process for a dead one
                self.ledger.execute(f"DELETE FROM claims WHERE {AMONG} AND lease = ?", *which)
                self._give_up(facts, mine.keys() - names.keys())
        except Unwritable:
            for name in names.values():
                self.files.remove(name)
            self._released.update(mine)
            raise
        except (Gone, Damaged):
            self._unsettled.update(names.values())
            raise
        return set(written), trouble

    def _write(self, blocks: Mapping[str, NDArray[np.uint8]]) -> tuple[list[str], OSError | None]:
        written: list[str] = []
        try:
            for key, data in blocks.items():
                assert len(data) == block_size(key), (len(data), key)
                self.files.write(key, data, self.lease.name)
                written.append(key)
        except OSError as error:
            self._full_until = time.monotonic() + PAUSE
            return written, error
        return written, None

    def least_used(self, facts: Facts, short: int) -> list[Row]:
        """Blocks that nobody holds, until so many bytes are together; they are not listed any more."""
        rows: list[Row] = []
        if short > 0:
            free = "SELECT id, size, data_set FROM blocks WHERE holders = 0 ORDER BY used LIMIT ?"
            for row in self.ledger.select(free, AT_ONCE):
                rows.append(row)
                short -= on_disk(row[1])
                if short <= 0:
                    break
        self.unlist(facts, rows)
        return rows

    def unlist(self, facts: Facts, rows: Sequence[Row]) -> None:
        """Nobody finds them any more; `remove` has to follow."""
        if rows:
            ids = listed(block for block, _, _ in rows)
            gone = f"SELECT id, size, data_set, 0, ? FROM blocks WHERE {AMONG}"
            self.ledger.execute(f"INSERT INTO claims {gone}", self.lease.name, ids)
            self.ledger.execute(f"DELETE FROM blocks WHERE {AMONG}", ids)
            facts.add(0, sum(on_disk(size) for _, size, _ in rows))

    def remove(self, rows: Sequence[Row]) -> None:
        """Their files; their room is given up with the next transaction."""
        missing = ""
        for block, size, data_set in rows:
            name = named(data_set, block, size)
            if not self.files.remove(name):
                missing = name
            self._released[block] = name
        if missing:
            raise Damaged(self.ledger.path, f"the block {missing} that it lists is not there")

    def drop(self, ids: Collection[int], bits: int) -> None:
        """Let go of blocks that these runs hold, and remove those that no other holds."""
        among = listed(ids)
        with self.writing() as facts:
            self.ledger.execute(f"UPDATE blocks SET holders = holders & ~? WHERE {AMONG}", bits, among)
            free = f"SELECT id, size, data_set FROM blocks WHERE {AMONG} AND holders = 0"
            rows = self.ledger.select(free, among).fetchall()
            self.unlist(facts, rows)
        if rows:
            self.remove(rows)
            self.flush()

    def unsettled(self) -> set[str]:
        """Files of which nobody knows, once this ledger has come to its end, whether another lists them."""
        return self._unsettled | set(self._released.values())

    def settle(self, names: Iterable[str]) -> None:
        """Make them listed and there, or neither."""
        with self.writing() as facts:
            for name in names:
                block, size = int(name[SET:ID], 16), block_size(name)
                there = self.files.is_there(name)
                known = "SELECT id FROM blocks WHERE id = ? UNION SELECT id FROM claims WHERE id = ?"
                if there and not self.ledger.select(known, block, block).fetchall():
                    self.files.remove(name)
                elif not there and self.ledger.execute("DELETE FROM blocks WHERE id = ? AND size = ?", block, size):
                    facts.add(-on_disk(size), 0)
