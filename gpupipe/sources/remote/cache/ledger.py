"""The ledger: which blocks there are and who needs them, in a SQLite file beside the blocks.

It is worth nothing by itself: what is lost or damaged is made again from the blocks' names. So nothing is ever synced
to the disk, and after a restart of the machine, which may have lost the end of it, it is made anew. It never has the
name of an earlier one, whose processes may still be writing into that.

blocks:  can be read. claims: room that is taken, for what a process is fetching, or is removing. total is what both
take of the disk, pending the claims alone. A block's file is there from before it is listed until after it is not, so
one that is missing says that the ledger, or the folder, is not as it was left.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import threading
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gpupipe.sources.remote.cache.files import Blocks
from gpupipe.sources.remote.cache.folder import PATIENCE, locked
from gpupipe.sources.remote.cache.keys import named
from gpupipe.sources.remote.cache.settings import TRAILER, UNIT

__all__ = ["AT_ONCE", "PAUSE", "SPACE", "Damaged", "Facts", "Gone", "Ledger", "Unwritable", "condemn", "open_ledger"]

SPACE = f"((size + {TRAILER + UNIT - 1}) / {UNIT} * {UNIT})"  # what a block takes of the disk
AT_ONCE = 5000  # rows that are changed in a transaction where there may be millions
PAUSE = 60.0  # seconds until writing is tried again; 5 s of waiting in each of them would be 8% of a run
SCHEMA = """
CREATE TABLE blocks (id INTEGER PRIMARY KEY, size INTEGER NOT NULL, data_set INTEGER NOT NULL, used INTEGER NOT NULL,
    holders INTEGER NOT NULL);
CREATE INDEX free ON blocks (used) WHERE holders = 0;
CREATE TABLE claims (id INTEGER PRIMARY KEY, size INTEGER NOT NULL, data_set INTEGER NOT NULL,
    holders INTEGER NOT NULL, lease TEXT NOT NULL);
CREATE TABLE runs (slot INTEGER PRIMARY KEY, name TEXT NOT NULL, ended INTEGER NOT NULL);
CREATE TABLE facts (total INTEGER, pending INTEGER, clock INTEGER, mark INTEGER);
"""


class Unwritable(Exception):
    """Nothing can be written into it for now; the message says why."""


class Gone(Exception):
    """It has been removed, or another has taken its place."""


class Damaged(Exception):
    """The ledger at `path` is not what was written, or does not say what is in the folder."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(reason)
        self.path = path


@dataclass
class Facts:
    """What both tables take of the disk; the claims alone; transactions so far, by which use is told from earlier
    use."""

    total: int = 0
    pending: int = 0
    clock: int = 0

    def add(self, total: int, pending: int) -> None:
        """More, or less, is taken."""
        self.total += total
        self.pending += pending

    def mark(self) -> int:
        """A checksum: of all that is written down only a wrong total would do harm."""
        return zlib.crc32(repr(astuple(self)).encode())


class Ledger:
    """Two connections of this process, for all its threads: what is asked does not wait for what is written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._locks = threading.Lock(), threading.Lock()
        self._paused_until = 0.0
        with self._told():
            self._asking, self._writing = self._connected(), self._connected()

    def _connected(self) -> sqlite3.Connection:
        where = f"file:{quote(str(self.path))}?mode=rw"
        database = sqlite3.connect(where, timeout=PATIENCE, isolation_level=None, check_same_thread=False, uri=True)
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=OFF")
        return database

    def rows(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """What a query gives. Raises Gone and Damaged, and Unwritable where it can't be read either."""
        with self._locks[0], self._told():
            self._check_there()
            return self._asking.execute(query, parameters).fetchall()

    @contextlib.contextmanager
    def writing(self) -> Iterator[Facts]:
        """A transaction, in which `select` and `execute` work; what becomes of the facts is written. Raises Unwritable,
        Gone and Damaged; nothing of it has happened then, but for Gone: another ledger holds now."""
        with self._locks[1], self._told():
            self._begin()
            try:
                facts = self._facts()
                yield facts
                facts.clock += 1
                values = (*astuple(facts), facts.mark())
                self.execute("UPDATE facts SET total = ?, pending = ?, clock = ?, mark = ?", *values)
                self.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self.execute("ROLLBACK")
                raise
            self._check_there()

    def select(self, query: str, *parameters: Any) -> sqlite3.Cursor:
        """In a transaction."""
        return self._writing.execute(query, parameters)

    def execute(self, statement: str, *parameters: Any) -> int:
        """In a transaction: how many rows were changed."""
        return self._writing.execute(statement, parameters).rowcount

    def _begin(self) -> None:
        if time.monotonic() < self._paused_until:
            raise Unwritable("")
        self._check_there()
        try:
            self.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            self._paused_until = time.monotonic() + PAUSE
            raise

    def _facts(self) -> Facts:
        ((*values, mark),) = self.select("SELECT * FROM facts")
        facts = Facts(*values)
        if facts.mark() != mark or not 0 <= facts.pending <= facts.total:
            raise Damaged(self.path, "its sums are wrong")
        return facts

    def _check_there(self) -> None:
        if not os.path.exists(self.path):
            raise Gone

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """SQLite's errors as what they mean."""
        try:
            yield
        except sqlite3.OperationalError as error:
            self._check_there()
            if any(word in str(error) for word in ("locked", "full", "readonly", "I/O", "unable to open", "memory")):
                raise Unwritable(str(error)) from None
            raise Damaged(self.path, str(error)) from None
        except MemoryError:  # a damaged one may ask for any amount
            raise Unwritable("SQLite has no memory for it; if that stays so: gpupipe cache --clear") from None
        except (sqlite3.Error, OverflowError, TypeError, ValueError) as error:  # the latter of values that can't be
            raise Damaged(self.path, str(error)) from error

    def close(self) -> None:
        """The last one to close it tidies up."""
        for lock, database in zip(self._locks, (self._asking, self._writing), strict=True):
            with lock, contextlib.suppress(sqlite3.Error):
                database.close()


def open_ledger(root: Path) -> Ledger:
    """The one that holds, or a new one made from the blocks. Raises OSError, Unwritable, Gone and Damaged."""
    path = _current(root)
    if path is None:
        with locked(root):
            path = _current(root) or _made(root)
    return Ledger(path)


def condemn(path: Path) -> None:
    """Put another in the place of a damaged one, unless somebody has. Raises OSError."""
    with locked(path.parent):
        if _current(path.parent) in (path, None):
            _made(path.parent)


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
    except OSError:
        return "0"


def _numbered(root: Path) -> dict[int, Path]:
    """The ledgers since the machine was started."""
    paths = root.glob(f"ledger-{_boot()}-*.sqlite")
    return {int(match[1]): path for path in paths if (match := re.search(r"-(\d{1,9})-[0-9a-f]+\.sqlite$", path.name))}


def _current(root: Path) -> Path | None:
    path = max(_numbered(root).items(), default=(0, None))[1]
    good = path is not None and path.is_file() and path.stat().st_uid == os.geteuid()
    return path if good else None


def _made(root: Path) -> Path:
    """A new one from the blocks' names: what was used when, and by whom it is held, is forgotten. No two have ever had
    the same name, even where the folder was removed meanwhile."""
    number = max(_numbered(root), default=0) + 1
    path = root / f"ledger-{_boot()}-{number}-{uuid.uuid4().hex[:8]}.sqlite"
    temporary = path.with_name(f"new-{path.name}")
    for old in root.glob("*ledger-*"):  # before blocks are looked for: who lists one in it later finds it gone
        with contextlib.suppress(OSError):
            old.unlink()
    try:
        _fill(temporary, Blocks(root))
    except sqlite3.Error as error:
        temporary.unlink(missing_ok=True)
        raise OSError(f"no ledger can be made: {error}") from None
    os.replace(temporary, path)
    return path


def _fill(path: Path, blocks: Blocks) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.executescript(f"PRAGMA page_size=1024; PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; {SCHEMA}")
        database.execute("BEGIN")
        _list_blocks(database, blocks)
        sums = (f"SELECT COALESCE(SUM({SPACE}), 0) FROM {table}" for table in ("blocks", "claims"))
        there, pending = (database.execute(query).fetchone()[0] for query in sums)
        facts = Facts(there + pending, pending)
        database.execute("INSERT INTO facts VALUES (?, ?, ?, ?)", (*astuple(facts), facts.mark()))
        database.execute("COMMIT")


def _list_blocks(database: sqlite3.Connection, blocks: Blocks) -> None:
    begun = []

    def whole() -> Iterable[tuple[int, int, int]]:
        for data_set, block, size, lease in blocks.scan():
            if lease:
                begun.append((block, size, data_set, lease))
            else:
                yield block, size, data_set

    database.executemany("INSERT OR IGNORE INTO blocks VALUES (?, ?, ?, 0, 0)", whole())
    for block, size, data_set, lease in begun:  # of processes that may be alive; the others are looked after later
        if database.execute("SELECT 1 FROM blocks WHERE id = ?", (block,)).fetchone() is None:
            database.execute("INSERT OR IGNORE INTO claims VALUES (?, ?, ?, 0, ?)", (block, size, data_set, lease))
        else:
            blocks.remove(f"{named(data_set, block, size)}.{lease}")
