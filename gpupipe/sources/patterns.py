"""From what a user writes to the paths of shards: brace patterns, globs, lists. Nothing is ever run."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from pathlib import Path

from gpupipe.errors import ConfigError, DataError
from gpupipe.sources.remote.objects import shown

__all__ = ["SHARD", "braces", "expand_shards", "is_url"]

# With one slash too, which is what pathlib makes of two.
URL = re.compile(r"^(pipe:|[A-Za-z][A-Za-z0-9+.-]+:/)")

SHARD = re.compile(r"[^.].*\.tar")
"""Names of shards in a folder: no hidden file, such as those that macOS puts beside what it copies."""


def expand_shards(patterns: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Absolute paths of all shards: patterns in their order, each glob sorted.

    Raises ConfigError for a URL or a command, DataError where nothing matches, a shard is missing or comes twice.
    """
    shards = [shard for pattern in patterns for shard in _expand(os.fspath(pattern))]
    if not shards:
        raise DataError(
            "the list of shards is empty, perhaps of a glob that found none: pass paths or a pattern such as "
            "'folder/train-{000000..000099}.tar'"
        )
    seen: set[Path] = set()
    for shard in shards:
        if shard in seen:
            raise DataError(f"shard {shard} is listed twice: its samples would count double")
        seen.add(shard)
    return shards


def _expand(pattern: str) -> list[Path]:
    if os.path.exists(pattern):  # a file whose name has brackets is meant as it is
        return [Path(pattern).absolute()]
    return [path for part in braces(pattern) for path in _glob(part, pattern)]


def braces(pattern: str) -> list[str]:
    """All that a brace pattern stands for. Raises ConfigError where they are unbalanced."""
    from braceexpand import braceexpand

    try:
        return list(braceexpand(pattern))
    except ValueError as error:
        raise ConfigError(f"shard pattern '{shown(pattern)}' has unbalanced braces: {error}") from error


def _glob(part: str, pattern: str) -> list[Path]:
    if is_url(part):
        raise ConfigError(
            f"{part!r} is a URL or command that is never opened: pass paths, or URLs of a storage or the web, such as "
            "'s3://bucket/train-{000..099}.tar'"
        )
    part = os.path.expanduser(part)
    if glob.has_magic(part) and not os.path.exists(part):
        found = sorted(glob.glob(part))
        if not found:
            raise DataError(f"no shard matches {pattern!r} (searched from {os.getcwd()}): check the pattern")
        return [Path(path).absolute() for path in found]
    if not os.path.exists(part):
        more = "" if part == pattern else f" (from the pattern {pattern!r})"
        what = (
            "it is a link to what is not there" if os.path.islink(part) else "check the path and the range of numbers"
        )
        raise DataError(f"no shard at {Path(part).absolute()}{more}: {what}")
    return [Path(part).absolute()]


def is_url(text: str) -> bool:
    """Whether `text` is a URL or a `pipe:` command rather than a path."""
    return URL.match(text) is not None
