"""Which Parquet files a user means. Without pyarrow."""

from __future__ import annotations

import glob
import logging
import os
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpupipe.errors import ConfigError, DataError
from gpupipe.host.checks import whole
from gpupipe.sources.patterns import expand_shards

__all__ = ["Parquet", "names_parquet"]

log = logging.getLogger("gpupipe")

ENDING = ".parquet"
SPLIT = re.compile(r"(.+)-\d{5}-of-(\d{5})\.parquet")


@dataclass(frozen=True)
class Parquet:
    """Parquet files for a Loader or `open_source`, where a path alone says too little.

    files:  a path, a brace pattern or glob, a folder (with those below it), or a list of files and patterns.
    root:   the folder of files at relative paths in cells; None: that of the first Parquet file.
    memory: bytes of row groups that each process keeps where images can't be read one by one; None: an eighth of the
            machine's memory, divided by its CPUs.
    """

    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    root: str | os.PathLike[str] | None = None
    memory: int | None = None

    def __post_init__(self) -> None:
        if self.memory is not None:
            whole("Parquet: memory", self.memory, 1)

    def paths(self) -> list[Path]:
        """All files. Raises ConfigError for a folder of several splits, DataError for files that are not there."""
        if not isinstance(self.files, str | os.PathLike):
            return _warned(expand_shards(self.files))
        folder = Path(os.path.expanduser(self.files))
        if folder.is_dir():
            return _files_below(folder.absolute())
        found = expand_shards([self.files])
        return _warned(found) if glob.has_magic(str(folder)) else found


def _warned(paths: list[Path]) -> list[Path]:
    """The same; the log says of which splits there are not all files."""
    matches = [(path.parent / match[1], int(match[2])) for path in paths if (match := SPLIT.fullmatch(path.name))]
    for (name, total), count in Counter(matches).items():
        if count < total:
            log.warning(
                "%s-*.parquet: only %d of its %d files are read; fetch the others to have all", name, count, total
            )
    return paths


def _files_below(folder: Path) -> list[Path]:
    """Those of the one split that there is."""
    paths = sorted(path for path in folder.rglob("*.parquet") if not path.name.startswith("."))
    if not paths:
        raise DataError(f"no .parquet files below {folder}: check the path")
    matches = [SPLIT.fullmatch(path.name) for path in paths]
    splits = {str(path.parent / match[1]) if match else "" for path, match in zip(paths, matches, strict=True)}
    if len(splits) > 1:
        patterns = ", ".join(repr(f"{name}-*.parquet") for name in sorted(splits - {""}))
        raise ConfigError(f"{folder} holds more than one split: pass the files of one, as {patterns}")
    if matches[0] and len(paths) != int(matches[0][2]):
        raise DataError(
            f"{folder} has {len(paths)} of the {int(matches[0][2])} files {matches[0][1]}-*: fetch the others, or pass "
            f"a pattern, {f'{splits.pop()}-*.parquet'!r}, to use what is there"
        )
    return paths


def names_parquet(paths: Sequence[str]) -> bool:
    """Whether these are Parquet files, or one folder that has them: itself, or in its `data`, as Hugging Face's."""
    if len(paths) == 1 and os.path.isdir(folder := os.path.expanduser(paths[0])):
        return any(_holds(place) for place in (folder, os.path.join(folder, "data")))
    return bool(paths) and all(path.lower().endswith(ENDING) for path in paths)


def _holds(folder: str) -> bool:
    with suppress(OSError):  # which is told by what opens it
        return any(name.endswith(ENDING) for name in os.listdir(folder))
    return False
