"""An opened cache of a process."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpupipe.host.files import replacing
from gpupipe.sources.remote.cache.dead import bury
from gpupipe.sources.remote.cache.files import BadBlock
from gpupipe.sources.remote.cache.folder import CHOSEN, chosen_size, own_folder
from gpupipe.sources.remote.cache.keys import block_id, block_size, file_name
from gpupipe.sources.remote.cache.leases import Lease, alive
from gpupipe.sources.remote.cache.ledger import Damaged, Facts, open_ledger
from gpupipe.sources.remote.cache.settings import Cache, on_disk
from gpupipe.sources.remote.cache.stock import AMONG, Stock, listed

__all__ = ["Claim", "Session"]

log = logging.getLogger("gpupipe")

RUNS = 62  # at once: bits of an integer of SQLite's
EVERY = -1  # run's bit
LOOK = 0.25  # seconds after which a process that is waited for is looked at, whether it is alive
LOOK_AGAIN = 5.0  # seconds after which the dead are looked for where room is short


class Claim(NamedTuple):
    """mine: blocks that this process shall fetch, then `put` or `give_back`. there: those that can be read. elsewhere:
    those that another live process is fetching; `wait` for them."""

    mine: set[str]
    there: set[str]
    elsewhere: set[str]


class Session:
    """Everything here raises OSError, and the ledger's Unwritable, Gone and Damaged."""

    def __init__(self, settings: Cache, unsettled: Iterable[str] = ()) -> None:
        root = settings.place
        own_folder(root)
        (root / "leases").mkdir(mode=0o700, exist_ok=True)
        self.ledger = open_ledger(root)
        try:
            self._bury()  # before this process is seen: an earlier run may have had the same name
            lease = Lease(root / "leases", settings.run or str(os.getpid()), settings.size)
        except BaseException:
            self.ledger.close()
            raise
        self.stock = Stock(root, self.ledger, lease, limit=0, reserve=_reserve(settings))
        try:
            self._bit = self._joined()
            self.stock.limit = self._limit(settings)
            self.stock.settle(unsettled)
            self._shrink()
        except BaseException:
            self.end()
            raise

    def _joined(self) -> int:
        """The bit by which blocks know this run; 0 where there are too many, which hold nothing then."""
        ledger, name = self.ledger, self.stock.lease.run
        with ledger.writing():
            runs = ledger.select("SELECT slot, name, ended FROM runs").fetchall()
            slots = [slot for slot, known, ended in runs if known == name and not ended]
            if not slots:
                slots = sorted(set(range(RUNS)) - {slot for slot, _, _ in runs})[:1]
                for slot in slots:
                    ledger.execute("INSERT INTO runs VALUES (?, ?, 0)", slot, name)
        return 1 << slots[0] if slots else 0

    def _limit(self, settings: Cache) -> int:
        """The size that is set, or that was chosen when the cache was first used."""
        if settings.size is not None:
            return int(settings.size)
        with self.stock.writing() as facts:  # by one process at a time
            size = chosen_size(self.stock.root)
            if not size:
                free = self.stock.free() + facts.total
                size = max(1, min(free // 2, free - self.stock.reserve))
                with replacing(self.stock.root / CHOSEN) as file:
                    file.write(str(size).encode())
                text = "gpupipe: keeps up to %.1f GB of what is read from storage in %s: half of what is free there; "
                log.info(f"{text}Cache(size=...) sets another size", size / 1e9, self.stock.root)
            return size

    def _bury(self) -> None:
        self._looked = time.monotonic()
        bury(self.ledger)

    def _shrink(self) -> None:
        """To its size, which may have been another, as far as nobody holds it."""
        while True:
            with self.stock.writing() as facts:
                going = self.stock.least_used(facts, facts.total - self.stock.limit)
            if not going:
                return
            self.stock.remove(going)

    def find(self, keys: Sequence[str]) -> set[str]:
        """See `BlockCache`, for all that follows."""
        ids = {block_id(key): key for key in keys}
        there = self.stock.there(self.ledger.rows, ids)
        self.stock.touch(there)
        return {ids[block] for block in there}

    def holds(self, keys: Sequence[str]) -> bool:
        """See `BlockCache`."""
        return bool(self._bit) and self.stock.holds(keys, self._bit)

    def claim(self, keys: Sequence[str], hold: bool) -> Claim:
        stock, bit = self.stock, self._bit if hold else 0
        if self.holds(keys) if bit else len(self.find(keys)) == len(keys):
            return Claim(set(), set(keys), set())
        ids = {block_id(key): key for key in keys}
        going = None
        while going is None or going:
            with stock.writing() as facts:
                there, busy = self._known(facts, ids, bit)
                taken = there.keys() | busy
                new = {} if stock.is_full else {block: key for block, key in ids.items() if block not in taken}
                sizes = (on_disk(block_size(key)) for key in new.values())
                short = sum(size for size in sizes if size <= stock.limit) - stock.room(facts)
                going = stock.least_used(facts, short) if going is None else []
                if not going:
                    stock.claim(facts, new, bit)
            stock.remove(going)
        if short > 0 and time.monotonic() > self._looked + LOOK_AGAIN:
            self._bury()
        present, elsewhere = {ids[block] for block in there}, {ids[block] for block in busy}
        return Claim(set(keys) - present - elsewhere, present, elsewhere)

    def _known(self, facts: Facts, ids: Mapping[int, str], bit: int) -> tuple[dict[int, int], set[int]]:
        """Hold, or touch, what is there: that, and what somebody is fetching."""
        ledger = self.ledger
        there = self.stock.there(ledger.select, ids)
        change = f"UPDATE blocks SET holders = holders | ?, used = ? WHERE {AMONG}"
        ledger.execute(change, bit, facts.clock, listed(there))
        return there, {block for (block,) in ledger.select(f"SELECT id FROM claims WHERE {AMONG}", listed(ids))}

    def read(self, keys: Iterable[str]) -> dict[str, NDArray[np.uint8]]:
        found = {}
        for key in keys:
            try:
                found[key] = self.stock.files.read(key)
            except FileNotFoundError:
                self._check_unlisted(key)
            except BadBlock as error:
                log.debug("the block %s in %s: %s", key, self.stock.root, error)
                self.stock.drop([block_id(key)], EVERY)
        return found

    def _check_unlisted(self, key: str) -> None:
        """What is listed before and after its file is looked for has to have one."""
        if self.find([key]) and not self.stock.files.is_there(name := file_name(key)) and self.find([key]):
            raise Damaged(self.ledger.path, f"the block {name} that it lists is not there")

    def wait(self, keys: Sequence[str], timeout: float) -> set[str]:
        query = f"SELECT DISTINCT lease FROM claims WHERE {AMONG}"
        ids, look, pause = listed(map(block_id, keys)), time.monotonic(), 0.002
        deadline = look + timeout
        while leases := self.ledger.rows(query, ids):
            now = time.monotonic()
            if now >= deadline:
                break
            if now >= look:
                look = now + LOOK
                if not all(alive(self.stock.root / "leases", lease) for (lease,) in leases):
                    self._bury()
            time.sleep(min(pause, deadline - now))
            pause = min(2 * pause, 0.05)
        return self.find(keys)

    def drop(self, keys: Sequence[str]) -> bool:
        self.stock.drop([block_id(key) for key in keys], self._bit)
        return True

    def end(self) -> set[str]:
        """Files that are to be settled with the next session."""
        self.stock.lease.close()
        self.ledger.close()
        return self.stock.unsettled()

    def close(self) -> None:
        try:
            self.stock.give_back(list(self.stock.claimed))
        finally:
            self.end()


def _reserve(settings: Cache) -> int:
    reserve = settings.reserve
    assert not isinstance(reserve, str)
    disk = os.statvfs(settings.place)
    return reserve if isinstance(reserve, int) else int(reserve * disk.f_blocks * disk.f_frsize)
