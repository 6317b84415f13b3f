"""Small objects, which are read as files: a copy of one lies on the disk for as long as that takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from gpupipe.errors import DataError
from gpupipe.sources.remote.apart import apart
from gpupipe.sources.remote.client import client
from gpupipe.sources.remote.objects import Extent, Object, ReadError, name, shown
from gpupipe.sources.remote.once import private_folder, unwritable

__all__ = ["copied", "copy", "head", "object_at"]

PART = 32 << 20
"""Bytes in memory at once."""


def object_at(url: str) -> Object:
    """As it is now. Raises DataError where it is not there, or can't be asked for."""
    return Object(*apart(f"{__name__}:head", url=url))


@contextmanager
def copied(one: Object) -> Iterator[Path]:
    """A copy, with the object's ending. Raises DataError, also where the object is another one now."""
    with TemporaryDirectory(dir=private_folder("copies")) as place:
        path = Path(place, "copy").with_suffix(PurePosixPath(name(one.url)).suffix)
        apart(f"{__name__}:copy", one=one, to=str(path))
        yield path


# In a process of its own.


def head(url: str) -> Object:
    """See `object_at`."""
    try:
        (found,) = client().head([url])
    except ReadError as error:
        raise DataError(str(error)) from error
    if found is None:
        raise DataError(f"there is no object {shown(url)}: check the URL")
    return found


def copy(one: list[str | int], to: str) -> None:
    """See `copied`."""
    found = Object(*one)  # type: ignore[arg-type]
    try:
        with open(to, "xb") as file:
            for begin in range(0, found.size, PART):
                (reading,) = client().read([Extent(found, begin, min(PART, found.size - begin))])
                file.write(reading.result().data)
    except ReadError as error:
        raise DataError(str(error)) from error
    except OSError as error:
        raise unwritable(Path(to).parent, error) from error
