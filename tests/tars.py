"""Tar files that the tests make, with the standard library only."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

from images import encode, picture

__all__ = ["jpeg", "write_samples", "write_tar"]


def jpeg(seed: int, height: int = 40, width: int = 60) -> bytes:
    """A small JPEG; its size in bytes differs from seed to seed."""
    return encode(picture(height, width, seed), quality=85)


def write_tar(path: Path, members: Iterable[tuple[str, bytes]], format: int = tarfile.USTAR_FORMAT) -> Path:
    """A tar with these names and contents, in this order."""
    with tarfile.open(path, "w", format=format) as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def write_samples(path: Path, first: int = 0, count: int = 4, format: int = tarfile.USTAR_FORMAT) -> Path:
    """A shard of `count` samples `s/<number>` with a JPEG and the label number % 10."""
    members = []
    for number in range(first, first + count):
        members.append((f"s/{number:04d}.jpg", jpeg(number, 40 + number, 60)))
        members.append((f"s/{number:04d}.cls", str(number % 10).encode()))
    return write_tar(path, members, format)
