"""The members of a zip archive, and their bytes by one read each."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import DataError
from gpupipe.host.files import open_regular
from gpupipe.sources.reading import Stamp
from gpupipe.sources.source import Encoded

__all__ = ["Member", "Read", "check_name", "data_offset", "directory", "unpacked"]

Read = Callable[[int, int], Encoded]
"""`read(offset, size)` gives the archive's bytes from there on, fewer where it ends. Raises ValueError."""

HEADER = 30  # bytes of a member's own header, before its name and what zip tools add: 28 bytes of times, 20 of zip64
MAGIC = b"PK\3\4"
GUESS = HEADER + 256
ENCRYPTED, PATCHED, UNICODE = 1 | 1 << 6, 1 << 5, 1 << 11  # flags of a member (4.4.4 of PKWARE's APPNOTE)
MOST_RATIO = 1032  # of deflate (zlib's technical details): what claims more is no image


class Member(NamedTuple):
    """Where a file lies in an archive. begin: of its own header. crc: of its `size` bytes."""

    begin: int
    packed: int
    size: int
    crc: int
    is_deflated: bool


def directory(path: Path) -> tuple[dict[str, Member], Stamp]:
    """The files by their names, in the archive's order; folders as names with a slash at the end, and without size.

    What macOS puts beside them is left out. Raises DataError for an archive that is cut or damaged, and for a member
    that can't be read or named.
    """
    members: dict[str, Member] = {}
    with open(open_regular(path), "rb") as file:
        stamp = Stamp.of(file.fileno())
        try:
            entries = ZipFile(file).infolist()
        except Exception as error:  # of damaged archives zipfile raises nearly every kind
            raise DataError(
                f"{path} is no zip archive, or is cut or damaged ({error}): copy or download it again"
            ) from error
    for entry in entries:
        if entry.filename.startswith("__MACOSX/"):
            continue
        reason = "comes twice" if entry.filename in members else _unfit(entry)
        if reason:
            raise DataError(f"{path}: its member {entry.filename!r} {reason}; zip the files anew")
        members[entry.filename] = Member(
            entry.header_offset, entry.compress_size, entry.file_size, entry.CRC, entry.compress_type == ZIP_DEFLATED
        )
    _check_apart(path, members)
    return members, stamp


def _unfit(entry: ZipInfo) -> str:
    """Why a member can't be taken, or an empty string."""
    parts = entry.filename.removesuffix("/").split("/")
    if any(part in ("", ".", "..") for part in parts):
        return "has a name that leads out of the archive"
    if entry.header_offset < 0:
        return "begins before the archive does, whose directory is damaged"
    if entry.flag_bits & ENCRYPTED:
        return "is encrypted, and gpupipe asks for no password"
    if entry.flag_bits & PATCHED:
        return "is a patch of another file, and only whole ones are read"
    if entry.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
        return f"is compressed by method {entry.compress_type}, and only stored and deflated ones are read"
    return ""


def _check_apart(path: Path, members: dict[str, Member]) -> None:
    """Raise DataError for members that share bytes, by which a small archive unpacks to any size."""
    names = list(members)
    begins = np.array([member.begin for member in members.values()], np.int64)
    ends = begins + HEADER + np.array([member.packed for member in members.values()], np.int64)
    order = np.argsort(begins)
    (over,) = np.nonzero(ends[order][:-1] > begins[order][1:])
    if len(over):
        one, other = (names[order[at]] for at in (over[0], over[0] + 1))
        raise DataError(
            f"{path}: its members {one!r} and {other!r} overlap, as in a zip bomb: don't use it, or zip the files anew"
        )


def check_name(archive: str, name: str, member: Member, read: Read) -> None:
    """Raise DataError where the member itself has another name than the archive's directory, of which there is no sum:
    the class of an image would be another."""
    head = read(member.begin, HEADER + 4 * len(name)).tobytes()
    if len(head) < HEADER or not head.startswith(MAGIC):
        return  # it is no sample that can be read
    (flags,), (length,) = struct.unpack_from("<H", head, 6), struct.unpack_from("<H", head, 26)
    own = head[HEADER : HEADER + length]
    # Of other encodings zip tools note the name elsewhere, too.
    is_known = flags & UNICODE or own.isascii() or name.isascii()
    if is_known and own != name.encode("utf-8", "replace"):
        raise DataError(f"{archive} is damaged: its member {name!r} calls itself {own!r}; copy or zip it again")


def data_offset(member: Member, read: Read) -> int:
    """Where a member's data begins in the archive. Raises ValueError where there is no such member."""
    return member.begin + _begin(member, read(member.begin, HEADER))


def _begin(member: Member, data: NDArray[np.uint8]) -> int:
    """The bytes of a member's header, with which `data` begins."""
    if member.size > MOST_RATIO * (member.packed + 1) or not (member.is_deflated or member.size == member.packed):
        raise ValueError(f"claims to have {member.size:,} bytes in {member.packed:,}, as in a zip bomb")
    if len(data) < HEADER or data[: len(MAGIC)].tobytes() != MAGIC:
        raise ValueError(f"has no header at offset {member.begin} of the archive, which is damaged")
    name, extra = struct.unpack_from("<HH", data.data, 26)
    return HEADER + int(name + extra)


def unpacked(member: Member, read: Read) -> Encoded:
    """The member's bytes, checked by their sum. Raises ValueError for what is damaged, or claims to be too large."""
    data = read(member.begin, GUESS + member.packed)
    begin = _begin(member, data)
    if begin + member.packed > len(data):
        data = read(member.begin, begin + member.packed)
    data = data[begin : begin + member.packed]
    if member.is_deflated:
        inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            data = np.frombuffer(inflate.decompress(data.data, member.size + 1), np.uint8)
        except zlib.error as error:
            raise ValueError(f"can't be unpacked: {error}") from error
    if len(data) != member.size or zlib.crc32(data.data) != member.crc:  # 20 us for 110 KB
        raise ValueError("is damaged: its bytes don't give the sum that the archive has of them")
    return data
