"""Parts of large files in memory of their own.

Not views into memory maps: a file that is cut while it is mapped ends the process with a bus error. The copy costs
2.5 % of the torch engine's CPU time and 2 % of DALI's on the CPU (1.145 to 1.174 and 2.205 to 2.250 ms an image; 500
ImageNet JPEGs in the page cache, one core of an Intel Xeon).
"""

from __future__ import annotations

import errno
import os
import resource
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpupipe.host.files import open_regular, opened
from gpupipe.sources.storage import BadIndexError

__all__ = ["MOST_BYTES", "ChangedError", "OpenFiles", "Stamp", "read_at", "read_file"]

MOST_BYTES = 1 << 30
"""Of one encoded image: more than any has that is not refused for its pixels. A file may claim more than the memory."""

# Of the files that a process may have open (often 1,024) each source takes at most this part.
PART = 8
FEWEST, MOST = 4, 1024


class ChangedError(ValueError):
    """A file is not as it was when it was opened, or indexed."""


class Stamp(NamedTuple):
    """What tells that a file is the one it was: its bytes, when they were last changed, as tools may set it, when
    anything of it was, as nothing can, and its inode. The last two are 0 where a copy of the file may be there."""

    size: int
    mtime_ns: int
    ctime_ns: int = 0
    inode: int = 0

    @classmethod
    def of(cls, descriptor: int) -> Stamp:
        """Of an open file, as it is now."""
        return cls.from_stat(os.fstat(descriptor))

    @classmethod
    def from_stat(cls, stat: os.stat_result) -> Stamp:
        """Of what the system says of a file."""
        return cls(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)

    @classmethod
    def noted(cls, values: Sequence[int], is_in_place: bool) -> Stamp:
        """That which an index has of a file, all of it if that lies where it was indexed. Raises BadIndexError for
        less than is noted now."""
        if len(values) != len(cls._fields):
            raise BadIndexError("it was made by another release, which noted other things of files")
        return cls(*values) if is_in_place else cls(*values[:2])

    def is_of(self, now: Stamp) -> bool:
        """Whether a file that has the stamp `now` is to be taken for the one of this, which an index has: whatever was
        done to it since, if that is known."""
        return self[:2] == now[:2] and self.ctime_ns in (0, now.ctime_ns)

    def difference(self, now: Stamp, what: str, since: str = "indexed") -> str:
        """For a message: what became of the file that had this stamp when it was indexed, or opened, and now has
        another; empty for the same, whose permissions, links or name may be others: that is no reason to end a run."""
        if self == now:
            return ""
        if self.size != now.size:
            how, said = (
                "cut" if now.size < self.size else "changed",
                "the index says" if since == "indexed" else "it had",
            )
            return f"the {what} has {now.size} bytes where {said} {self.size}: it was {how} since it was {since}"
        if self.mtime_ns != now.mtime_ns:
            return f"the {what} was written to, or touched, since it was {since}: its time of change is another"
        # Some file systems number a file anew when they have forgotten it.
        if self.inode not in (0, now.inode) and self.ctime_ns != now.ctime_ns:
            return f"the {what} was replaced since it was {since}, by another one of its size and time of change"
        return ""


class OpenFiles:
    """Files that are read from, of which the ones used last stay open, for a network file system may take long to open.

    Several threads may read, and so may a child that was forked meanwhile: reads share no position, nothing is locked,
    and a file that another thread still reads from is closed after that.
    """

    def __init__(self) -> None:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = MOST if limit == resource.RLIM_INFINITY else max(FEWEST, min(MOST, limit // PART))
        self._open: OrderedDict[str, _File] = OrderedDict()

    def read(self, path: str, offset: int, size: int, head: bytes = b"") -> tuple[NDArray[np.uint8], Stamp]:
        """`size` bytes from `offset` on, fewer where the file ends before, and the file's stamp after reading them.

        head: bytes that are put before them.
        Whoever knows the stamp from before knows from it that nothing was changed meanwhile. Raises OSError.
        """
        file = self._file(path)
        return read_at(file.descriptor, offset, size, head), Stamp.of(file.descriptor)

    def stamp(self, path: str) -> Stamp:
        """That of a file as it is now; of one that was removed since it was opened as well. Raises OSError."""
        return Stamp.of(self._file(path).descriptor)

    def advise(self, path: str, offset: int, size: int) -> None:
        """Have the system read that part in the background, as it is needed soon; where it can't, nothing happens."""
        with suppress(OSError):
            os.posix_fadvise(self._file(path).descriptor, offset, size, os.POSIX_FADV_WILLNEED)

    def _file(self, path: str) -> _File:
        file = self._open.pop(path, None) or _File(path)
        self._open[path] = file
        if len(self._open) > self._most:
            with suppress(KeyError):  # other threads hold what was there, each the file that it reads from
                self._open.popitem(last=False)
        return file

    def unchanged(
        self, path: str, stamp: Stamp, offset: int, size: int, what: str, since: str = "indexed"
    ) -> NDArray[np.uint8]:
        """The same of a file that is as it was when it had that stamp. Raises ValueError, which says for a message what
        became of it (ChangedError where it is another): `what` it is called there, and `since` when it is known."""
        try:
            data, now = self.read(path, offset, size)
        except OSError as error:
            raise ValueError(f"can't be read: {error.strerror}") from error
        changed = stamp.difference(now, what, since)
        if changed:
            raise ChangedError(changed)
        if len(data) != size:  # though the file is as long as it was
            raise ValueError(f"the storage gave {len(data)} of its {size} bytes")
        return data


class _File:
    """An open file, closed when it is let go."""

    def __init__(self, path: str) -> None:
        self.descriptor = open_regular(path)
        weakref.finalize(self, os.close, self.descriptor).atexit = False


def read_at(descriptor: int, offset: int, size: int, head: bytes = b"") -> NDArray[np.uint8]:
    """`size` bytes of an open file from `offset` on, fewer where it ends before, behind `head`. Raises OSError."""
    if offset < 0:  # preadv2(2) would read at the file's own position for -1
        raise OSError(errno.EINVAL, f"offset {offset}")
    data = whole = np.empty(len(head) + size, np.uint8)
    if head:
        whole[: len(head)] = np.frombuffer(head, np.uint8)
        data = whole[len(head) :]
    done = os.preadv(descriptor, [data], offset)  # type: ignore[list-item]  # any buffer; views cost 0.4 us a sample
    while done < size and (got := os.preadv(descriptor, [data[done:].data], offset + done)):
        done += got
    return whole if done == size else whole[: len(head) + done]


def read_file(path: str) -> NDArray[np.uint8]:
    """All bytes of a regular file. Raises OSError, where there are more than `MOST_BYTES` too."""
    descriptor, stat = opened(path)
    try:
        if stat.st_size > MOST_BYTES:
            reason = f"it has {stat.st_size:,} bytes, more than the {MOST_BYTES:,} of any image"
            raise OSError(errno.EFBIG, reason, path)
        return read_at(descriptor, 0, stat.st_size)
    finally:
        os.close(descriptor)
