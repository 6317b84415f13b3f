"""Images in a zip archive that is laid out as an image folder, read where they lie."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import Field, Schema
from gpupipe.errors import DataError
from gpupipe.host.cache import digest
from gpupipe.host.files import opened
from gpupipe.host.whereabouts import note
from gpupipe.sources.building import BuiltIndex, load_or_build
from gpupipe.sources.folder import EXTENSIONS, FolderSource, Layout, files_of, listed, measured
from gpupipe.sources.headers import DAMAGED, Header, probe, probe_bytes
from gpupipe.sources.indexed import arrays_of
from gpupipe.sources.inside import Inside
from gpupipe.sources.reading import MOST_BYTES, OpenFiles, Stamp
from gpupipe.sources.source import Encoded
from gpupipe.sources.storage import StoredIndex
from gpupipe.sources.stores.zips import Member, Read, check_name, data_offset, directory, unpacked
from gpupipe.sources.wanted import Wanted

__all__ = ["ArchiveSource", "open_archive"]

# What unpacks to more than both is no image: one of a single colour unpacks to a thousand times its size, as zip bombs
# do, but the most pixels that are decoded are 240 MB.
MOST_UNPACKED = 256 << 20
MOST_RATIO = 200
NO_MEMBER = Member(0, 0, -1, 0, False)


class ArchiveSource(FolderSource):
    """The images of a zip archive in the order of torchvision's ImageFolder. Made by `open_archive`."""

    def __init__(self, archive: str, index: StoredIndex, schema: Schema, wanted: Wanted) -> None:
        super().__init__(archive + index.info["top"], index, schema, wanted)
        self._place = archive
        self._members: NDArray[np.int64] = index.arrays["members"]
        self._stamp = Stamp.noted(index.info["stamp"], index.is_in_place(os.path.dirname(archive)))
        self._open = OpenFiles()

    def _file(self, index: int, number: int) -> Encoded | None:
        note(index)
        if self._size(index, number) < 0:
            return None
        member = Member(*self._members[index, number].tolist())
        try:
            return _image(member, self._read)
        except ValueError as error:
            path = self._layout.path(str(self._keys[index]), number)
            raise self._bad(index, path, str(error)) from error

    def _read(self, offset: int, size: int) -> Encoded:
        return _read(self._open, self._place, self._stamp, offset, size)

    def _looked_for(self, file: int) -> str:
        folder, suffix = self._layout.files[file]
        return f"the archive has none in folder={folder!r} with suffix={suffix!r}; check both"


def _read(files: OpenFiles, path: str, stamp: Stamp, offset: int, size: int) -> Encoded:
    """Fewer bytes where the archive ends."""
    return files.unchanged(path, stamp, offset, max(0, min(size, stamp.size - offset)), "archive")


def _image(member: Member, read: Read) -> Encoded:
    """A member's bytes. Raises ValueError where there is none, and for what can be no image."""
    if member.size > max(MOST_UNPACKED, MOST_RATIO * member.packed):
        raise ValueError(f"unpacks to {member.size:,} bytes from {member.packed:,}, as a zip bomb does: no image does")
    return unpacked(member, read)


@dataclass(frozen=True)
class _Archive(Inside):
    """The same in an archive; `read` gives its bytes."""

    names: Mapping[str, Member]
    read: Read

    def member(self, path: str) -> Member:
        """What is at a path, which begins with the archive's."""
        return self.names.get(self.name(path), NO_MEMBER)

    def size(self, path: str) -> int:
        return self.member(path).size

    def measure(self, path: str) -> tuple[int, int, int, int]:
        member = self.member(path)
        try:
            check_name(self.place, self.name(path), member, self.read)
            return member.size, *self._header(member)
        except DataError:
            raise
        except ValueError:
            return member.size, *DAMAGED

    def _header(self, member: Member) -> Header:
        if member.size > MOST_BYTES:
            return DAMAGED
        if member.is_deflated:
            return probe_bytes(_image(member, self.read).data)
        begin = data_offset(member, self.read)
        return probe(lambda offset, length: self.read(begin + offset, length).tobytes(), member.size)


def open_archive(
    path: str | os.PathLike[str], fields: Mapping[str, Field] | None = None, *, rebuild: bool = False
) -> ArchiveSource:
    """Open a zip archive of an image folder, indexing it if it has no fresh index. A single folder around all that is
    wanted is passed over.

    Raises DataError for an archive that is cut or damaged or has no such images, ConfigError for a field that has no
    folder of its own.
    """
    archive = Path(path).expanduser().absolute()
    schema = Schema.of(fields)
    files = files_of(schema)
    try:
        descriptor, stat = opened(archive)
    except OSError as error:
        raise DataError(f"archive {archive} can't be read: {error.strerror}; check the path") from error
    os.close(descriptor)
    now = Stamp.from_stat(stat)
    index = load_or_build(
        archive.parent,
        f".gpupipe-{digest(['zip', archive.name, files.files, files.image, files.labels])}.index",
        arrays=arrays_of(files) | {"members"},
        stale=lambda info, is_in_place: (
            "" if Stamp.noted(info["stamp"], is_in_place).is_of(now) else f"{archive} was changed"
        ),
        build=lambda: _scan(archive, files),
        rebuild=rebuild,
    )
    source = ArchiveSource(str(archive), index, schema, files)
    source.check_absent()
    return source


def _scan(archive: Path, files: Wanted) -> BuiltIndex:
    members, stamp = directory(archive)
    top = _top(members)
    inside = Layout.of(f"{archive}{top}", files)
    read = partial(_read, OpenFiles(), str(archive), stamp)
    layout = _Archive(inside.root, inside.files, inside.image, str(archive), members, read)
    listing = listed(layout, files)
    listing.directories.clear()
    numbers = range(len(layout.files))
    places = [[layout.member(layout.path(key, number)) for number in numbers] for key in listing.paths]
    return measured(layout, files, listing, {"stamp": stamp, "top": top}, members=np.array(places, np.int64))


def _top(members: Mapping[str, Member]) -> str:
    """The folder that all files are in, if images are in folders within it; "" or a path with a slash before it."""
    tops = {path.partition("/")[0] for path in members}
    is_around = len(tops) == 1 and all(path.count("/") > 1 for path in members if path.lower().endswith(EXTENSIONS))
    return f"/{tops.pop()}" if is_around else ""
