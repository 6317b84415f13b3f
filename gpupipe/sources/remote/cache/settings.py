"""How much of a storage's data a machine keeps on its disk, and where."""

from __future__ import annotations

import os
import re
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import ConfigError
from gpupipe.host.cache import chosen_folder

__all__ = ["Cache", "cache_settings", "on_disk", "parse_size"]

UNITS = {letter: (1000**power, 1024**power) for power, letter in enumerate(("", "K", "M", "G", "T", "P"))}
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGTP]?)(I?)B?", re.IGNORECASE)
TRAILER = 8  # bytes after a block's own: its checksum
UNIT = 4096  # what file systems hand out space in
Sizes = TypeVar("Sizes", int, NDArray[np.int64])
RANKS = ("MASTER_ADDR", "MASTER_PORT")  # the same for all ranks of a job, and of no other at the same time


def parse_size(text: str) -> int:
    """Bytes from "1.6T", "500 GB" (powers of 1,000), "64GiB" (powers of 1,024) or a plain number. Raises ValueError.

    >>> parse_size("1.6T"), parse_size("64 KiB"), parse_size("300")
    (1600000000000, 65536, 300)
    """
    match = SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no size: write it as 1.6T, 500GB, 64GiB or a number of bytes")
    return int(float(match[1]) * UNITS[match[2].upper()][bool(match[3])])


def on_disk(sizes: Sizes) -> Sizes:
    """What a block of this size takes of a cache's, or each of many: whole pages of the disk."""
    return -(-(sizes + TRAILER) // UNIT) * UNIT


@dataclass(frozen=True)
class Cache:
    """The disk cache for data that lies in a storage: one on each machine, for all ranks and runs that name the folder.

    folder:  where it lies, in a folder of its own, which nobody else may write in; on a disk of this machine. None:
             `blocks` in gpupipe's cache folder ($GPUPIPE_CACHE, $XDG_CACHE_HOME/gpupipe or ~/.cache/gpupipe).
    size:    the most that its blocks ever take, in bytes or as "1.6T"; a smaller one than before shrinks it. None: half
             of what is free on the disk when it is first used.
    reserve: what it leaves free on the disk, come what may: a part of the disk (0.05), bytes, or "20GB".
    run:     which processes keep blocks together and give them up together; gpupipe's own business.
    """

    folder: str | os.PathLike[str] | None = None
    size: int | str | None = None
    reserve: float | int | str = 0.05
    run: str = field(default="", repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.size is not None:
            object.__setattr__(self, "size", _bytes("size", self.size))
            if not self.size:
                raise ConfigError("Cache(size=0) keeps nothing; pass cache=None for no cache")
        if not isinstance(self.reserve, float):
            object.__setattr__(self, "reserve", _bytes("reserve", self.reserve))
        elif not 0 <= self.reserve < 1:
            raise ConfigError(f"Cache(reserve={self.reserve}) must be a part of the disk in [0, 1), an int or a size")

    @property
    def place(self) -> Path:
        """The folder of its own."""
        if self.folder is None:
            return chosen_folder() / "blocks"
        return Path(self.folder).expanduser() / "gpupipe-blocks"

    def in_run(self) -> Cache:
        """The same for the processes of this run, which get it pickled: ranks on this machine are in one run."""
        ranks = [os.environ.get(name, "") for name in RANKS]
        return self if self.run else replace(self, run=":".join(ranks) if all(ranks) else uuid.uuid4().hex)


def _bytes(name: str, value: Any) -> int:
    try:
        number = parse_size(value) if isinstance(value, str) else value
    except ValueError as error:
        raise ConfigError(f"Cache({name}={value!r}): {error}") from None
    if not isinstance(number, int | np.integer) or isinstance(number, bool) or number < 0:
        raise ConfigError(f"Cache({name}={value!r}) must be bytes, as an int or as a text like '1.6T'")
    return int(number)


def cache_settings(cache: Cache | Literal["auto"] | str | int | os.PathLike[str] | None) -> Cache | None:
    """What an argument `cache` asks for: "auto", a folder, a size, all settings, or None for no cache.

    A folder that begins as a size does ("1T", "1_run") is taken as one: write "./1T".
    """
    if cache is None or isinstance(cache, Cache):
        return cache
    if isinstance(cache, str) and cache == "auto":
        return Cache()
    if isinstance(cache, int | np.integer) or (isinstance(cache, str) and cache.strip()[:1].isdigit()):
        return Cache(size=cache)
    if isinstance(cache, str | os.PathLike) and os.fspath(cache):
        return Cache(folder=cache)
    raise ConfigError(f"cache={cache!r} must be 'auto', a folder, a size like '1.6T', a Cache, or None")
