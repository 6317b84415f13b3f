"""DALI's wds2idx files: a list of a shard's members that makes walking through its tar headers needless.

The first line is `v1.1 N` or `v1.2 N`, then a line per sample with `extension offset size` (v1.2: and the name) of
every member, parted by spaces.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from gpupipe.host.files import read_regular
from gpupipe.sources.samples import split_name
from gpupipe.sources.tar import BLOCK, Member, end_fault

__all__ = ["BadIdxError", "idx_path", "read_idx"]

CHECKED = 16
MOST_BYTES = 256 << 20  # 40 bytes a member
NAME_BYTES = 100


class BadIdxError(ValueError):
    """The file is no index that fits the shard; the shard must be scanned."""


def idx_path(shard: Path) -> Path:
    """Where wds2idx writes by default: the shard's name up to its first dot, with `.idx`."""
    stem = shard.name[: shard.name.find(".", 1)] if "." in shard.name[1:] else shard.name
    return shard.with_name(f"{stem}.idx")


def read_idx(path: Path, shard: int) -> list[Member]:
    """The members of a shard, a file descriptor, from its index. Raises OSError, and BadIdxError where it doesn't fit.

    What is checked: that the members lie one behind the other, some of their tar headers spread over the shard, and
    that the archive ends after the last one.
    """
    lines = read_regular(path, MOST_BYTES).decode("utf-8", "surrogateescape").split("\n")
    version, _, count = lines[0].partition(" ")
    fields = {"v1.1": 3, "v1.2": 4}.get(version)
    rows = [line for line in lines[1:] if line]
    if fields is None or not count.strip().isdigit() or int(count) != len(rows):
        raise BadIdxError(f"its first line {lines[0][:40]!r} does not fit")
    members = [member for row in rows for member in _row(row.split(" "), fields, shard)]
    if not members:
        raise BadIdxError("it lists nothing")
    _check(members, shard)
    return members


def _row(tokens: list[str], fields: int, shard: int) -> Iterable[Member]:
    if len(tokens) % fields:
        raise BadIdxError(f"a line has {len(tokens)} entries, {fields} belong to each member")
    try:
        places = [(int(tokens[i + 1]), int(tokens[i + 2])) for i in range(0, len(tokens), fields)]
    except ValueError as error:
        raise BadIdxError(str(error)) from error
    if fields == 4:
        return [Member(name, *place) for name, place in zip(tokens[3::4], places, strict=True)]
    # v1.1 has no names: the key comes from the tar header of the first member
    names = split_name(_header(shard, places[0][0]).name)
    if names is None:
        raise BadIdxError(f"no key at offset {places[0][0]}")
    return [Member(f"{names[0]}.{extension}", *place) for extension, place in zip(tokens[::3], places, strict=True)]


def _check(members: list[Member], shard: int) -> None:
    size = os.fstat(shard).st_size
    for member in members:
        if not (0 <= member.offset <= size and 0 <= member.size <= size):
            raise BadIdxError(f"the shard has {size} bytes and so no {member}")
    for member in _doubtful(members):
        header = _header(shard, member.offset)
        if header.size != member.size or header.name != member.name:
            raise BadIdxError(f"the shard has {header.name!r} ({header.size} bytes) where it says {member}")
    if end_fault("", shard, _padded_end(members[-1])):
        raise BadIdxError("the shard does not end after the last member")


def _doubtful(members: list[Member]) -> list[Member]:
    """Members to compare with their tar headers: some spread over the shard, and those that don't touch the next."""
    chosen = members[:: max(1, len(members) // CHECKED)] + members[-1:]
    for member, following in pairwise(members):
        gap = following.offset - _padded_end(member)
        if gap < BLOCK or gap % BLOCK:
            raise BadIdxError(f"no tar header fits between {member} and {following}")
        if gap > BLOCK:  # a folder, a link or a long name; or a wrong size here
            chosen.append(member)
    return chosen


def _padded_end(member: Member) -> int:
    return member.offset + -(-member.size // BLOCK) * BLOCK


def _header(shard: int, offset: int) -> tarfile.TarInfo:
    """The tar header right before a member's bytes. Long names lie elsewhere, so with one the shard is scanned."""
    block = os.pread(shard, BLOCK, offset - BLOCK) if offset >= BLOCK else b""
    try:
        header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        raise BadIdxError(f"no tar header before offset {offset}") from error
    if not block[NAME_BYTES - 1 : NAME_BYTES].strip(b"\0") == b"":
        raise BadIdxError("names are longer than the index can tell")
    return header
