"""Which Parquet files a user means. Without pyarrow."""

from __future__ import annotations

import glob
import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gpupipe.errors import ConfigError, DataError
from gpupipe.host.checks import whole
from gpupipe.sources.patterns import expand_shards
from gpupipe.sources.remote.objects import is_remote, name, shown
from gpupipe.sources.tables.settings import check_names

__all__ = ["ENDING", "Parquet", "in_folder", "names_parquet", "tell_of_splits"]

log = logging.getLogger("gpupipe")

ENDING = ".parquet"
SPLIT = re.compile(r"(.+)-\d{5}-of-(\d{5})\.parquet")


@dataclass(frozen=True)
class Parquet:
    """Parquet files for a Loader or `open_source`, where a path alone says too little.

    files:  a path, a brace pattern or glob, a folder (with those below it), or a list of files and patterns; or URLs.
    root:   the folder of files at relative paths in cells, or its URL; None: that of the first Parquet file.
    memory: bytes of row groups that each process keeps where images can't be read one by one; None: an eighth of the
            machine's memory, divided by its CPUs.
    classes: as of a `Manifest`, where `label` is a column of names; of class numbers that Hugging Face's `ClassLabel`
            names, they have to be its names.
    """

    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    root: str | os.PathLike[str] | None = None
    memory: int | None = None
    classes: Sequence[str] | None = None

    def __post_init__(self) -> None:
        check_names("Parquet", "classes", self.classes)
        if self.memory is not None:
            whole("Parquet: memory", self.memory, 1)

    def urls(self) -> list[str]:
        """The files as they are given, where they are URLs. Raises ConfigError where only some are."""
        given = [self.files] if isinstance(self.files, str | os.PathLike) else self.files
        urls = [text for part in given if is_remote(text := os.fspath(part))]
        if urls and len(urls) < len(given):
            raise ConfigError(f"Parquet: {shown(urls[0])} is a URL, and others are not: pass a Mixture of both")
        return urls

    def paths(self) -> list[Path]:
        """All files. Raises ConfigError for a folder of several splits, DataError for files that are not there."""
        if not isinstance(self.files, str | os.PathLike):
            return _warned(expand_shards(self.files))
        folder = Path(os.path.expanduser(self.files))
        if folder.is_dir():
            folder = folder.absolute()
            found = (path.relative_to(folder).as_posix() for path in folder.rglob(f"*{ENDING}"))
            return [folder / name for name in in_folder(found, str(folder))]
        paths = expand_shards([self.files])
        return _warned(paths) if glob.has_magic(str(folder)) else paths


def _warned(paths: list[Path]) -> list[Path]:
    tell_of_splits(map(str, paths))
    return paths


def tell_of_splits(paths: Iterable[str]) -> None:
    """The log says of which splits there are not all files."""
    matches = [(match[1], int(match[2])) for path in paths if (match := SPLIT.fullmatch(path))]
    for (split, total), count in Counter(matches).items():
        if count < total:
            log.warning(
                "%s-*.parquet: only %d of its %d files are read; fetch the others to have all", split, count, total
            )


def in_folder(names: Iterable[str], folder: str) -> list[str]:
    """Of the paths of files below a folder, from there, those of the one split that there is, sorted as paths are.

    Raises ConfigError for several splits, DataError for none, and for one that lacks files.
    """
    paths = sorted(PurePosixPath(name) for name in names if re.search(rf"(^|/)[^/.][^/]*{re.escape(ENDING)}$", name))
    found = [str(path) for path in paths]
    if not found:
        raise DataError(f"no {ENDING} files below {folder}: check the path")
    matches = [SPLIT.fullmatch(name) for name in found]
    splits = {match[1] if match else "" for match in matches}
    if len(splits) > 1:
        patterns = ", ".join(repr(f"{folder}/{name}-*{ENDING}") for name in sorted(splits - {""}))
        raise ConfigError(f"{folder} holds more than one split: pass the files of one, as {patterns}")
    if matches[0] and len(found) != int(matches[0][2]):
        raise DataError(
            f"{folder} has {len(found)} of the {int(matches[0][2])} files {PurePosixPath(matches[0][1]).name}-*: fetch "
            f"the others, or pass a pattern, {f'{folder}/{splits.pop()}-*{ENDING}'!r}, to use what is there"
        )
    return found


def names_parquet(paths: Sequence[str]) -> bool:
    """Whether these are Parquet files, or one folder that has them: itself, or in its `data`, as Hugging Face's."""
    if len(paths) == 1 and os.path.isdir(folder := os.path.expanduser(paths[0])):
        return any(_holds(place) for place in (folder, os.path.join(folder, "data")))
    names = (name(path) if is_remote(path) else path for path in paths)
    return bool(paths) and all(one.lower().endswith(ENDING) for one in names)


def _holds(folder: str) -> bool:
    with suppress(OSError):  # which is told by what opens it
        return any(name.endswith(ENDING) for name in os.listdir(folder))
    return False
