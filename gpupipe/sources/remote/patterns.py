"""From what a user writes to the objects that it means: URLs, brace patterns, globs, folders. In `apart` only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from gpupipe.errors import ConfigError, DataError
from gpupipe.sources.patterns import braces
from gpupipe.sources.remote.client import client
from gpupipe.sources.remote.objects import Object, is_web, key_of, shown

__all__ = ["listed", "objects_of"]

MAGIC = re.compile(r"[*?[]")
NO_LISTING = "the web has no listing of folders: write a brace pattern, 'https://host/train-{000..099}.tar', or a list"


def objects_of(patterns: Sequence[str], what: str) -> list[Object]:
    """All objects: patterns in their order, each glob sorted, as `expand_shards` gives paths.

    what: they are called so in messages ("shard"). Raises ConfigError for a glob where nothing can be listed, DataError
    where nothing matches, an object is missing or comes twice.
    """
    parts = [(part, pattern) for pattern in patterns for part in braces(pattern)]
    plain = [part for part, _ in parts if not _is_glob(part)]
    there = dict(zip(plain, client().head(plain), strict=True))
    found: list[Object] = []
    for part, pattern in parts:
        matches = [there[part]] if part in there else _matches(part, what)
        more = "" if part == pattern else f" (from the pattern '{shown(pattern)}')"
        found += [_present(match, part, more, what) for match in matches]
    seen: set[str] = set()
    for one in found:
        if one.url in seen:
            raise DataError(f"{what} {shown(one.url)} is listed twice: its samples would count double")
        seen.add(one.url)
    return found


def _present(found: Object | None, url: str, more: str, what: str) -> Object:
    if found is None:
        raise DataError(f"no {what} at {shown(url)}{more}: check the bucket, the name and the range of numbers")
    return found


def _is_glob(url: str) -> bool:
    """A question mark begins the query of a URL of the web."""
    return MAGIC.search(url.partition("?")[0] if is_web(url) else url) is not None


def _matches(pattern: str, what: str) -> list[Object]:
    """The objects that a glob means: as of files, a part of a name for each part of it."""
    if is_web(pattern):
        raise ConfigError(f"'{shown(pattern)}' is a glob, and {NO_LISTING}")
    folder = pattern[: MAGIC.search(pattern).start()].rpartition("/")[0]  # type: ignore[union-attr]
    if folder.endswith("/") or "/" not in folder:
        raise ConfigError(f"'{shown(pattern)}' is a glob for buckets: pass the URLs of each")
    objects = client().list(folder)
    for one in objects:
        if one.url == pattern:  # an object whose name has brackets is meant as it is
            return [one]
    inner = key_of(folder, pattern).split("/")
    found = [one for one in objects if _fits(key_of(folder, one.url).split("/"), inner)]
    if not found:
        raise DataError(f"no {what} matches '{shown(pattern)}': check the pattern")
    return sorted(found)


def _fits(names: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether each name matches its part; hidden ones only where that is written."""
    return len(names) == len(pattern) and all(
        fnmatchcase(name, part) and not (name.startswith(".") and not part.startswith("."))
        for name, part in zip(names, pattern, strict=True)
    )


def listed(url: str) -> dict[str, Object]:
    """All objects below a folder, by their paths in it, hidden ones too. Raises ConfigError where nothing can be
    listed."""
    if is_web(url):
        raise ConfigError(f"{shown(url)} is a folder, and {NO_LISTING}")
    folder = url.rstrip("/")
    # Not the folder itself: consoles make one by an empty object `train/`, which is listed as `train`.
    below = [one for one in client().list(folder) if one.url.startswith(f"{folder}/")]
    return {key_of(folder, one.url): one for one in below}
