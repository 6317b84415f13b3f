"""Lists of videos in text files: those of mmaction2, PyTorchVideo and TSN, and Kinetics' own .csv."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence, Set

from gpupipe.errors import DataError
from gpupipe.host.files import is_folder, read_regular
from gpupipe.sources.videos.encoded import VIDEOS
from gpupipe.sources.videos.files import Listed

__all__ = ["in_list"]

MOST_BYTES = 1 << 30
KINETICS = ("youtube_id", "time_start", "time_end")


def in_list(path: str, folder: str | None, labels: bool) -> Listed:
    """The videos that a list has, which lie below `folder`, or beside the list.

    Either lines of a path and a class number, with the number of frames between them or not, and blanks or commas
    between; or a .csv with the columns youtube_id, time_start, time_end and label, by Kinetics: of videos ID.mp4 or
    ID_000012_000022.mp4, or folders of such names, in the folder or in those of the classes. Classes are the labels by
    name. Raises DataError for other lists.
    """
    below = folder if folder is not None else os.path.dirname(path) or "."
    try:
        lines = [line for line in str(read_regular(path, MOST_BYTES), "utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the list {path} can't be read: {error}") from error
    if not lines:
        raise DataError(f"the list {path} is empty: it has a line for each video")
    if all(column in lines[0] for column in KINETICS):
        return _kinetics(path, list(csv.DictReader(lines)), below, labels)
    return _plain(path, lines, below, labels)


def _plain(path: str, lines: Sequence[str], folder: str, labels: bool) -> Listed:
    comma = "," in lines[0]
    parts = [[part.strip() for part in (line.rsplit(",", 2) if comma else line.rsplit(None, 2))] for line in lines]
    with_counts = all(len(part) == 3 and part[1].isdecimal() for part in parts)
    if not with_counts:  # blanks are of the paths
        parts = [[part.strip() for part in (line.rsplit(",", 1) if comma else line.rsplit(None, 1))] for line in lines]
    for number, part in enumerate(parts, start=1):
        if len(part) < 2 or not part[-1].isdecimal():
            raise DataError(
                f"line {number} of the list {path} is {lines[number - 1][:80]!r}; each is a path and a class number, "
                "with the number of frames between them or not"
            )
    paths = [part[0] for part in parts]
    counts = [int(part[1]) for part in parts] if with_counts else None
    return Listed(folder, paths, paths, [int(part[-1]) for part in parts] if labels else None, None, counts)


def _kinetics(path: str, rows: list[dict[str, str]], folder: str, labels: bool) -> Listed:
    if labels and not all(row.get("label") for row in rows):
        raise DataError(
            f"the list {path} has no label in each row: leave the label out of fields, or pass another list"
        )
    keys = []
    for number, row in enumerate(rows, start=2):
        try:
            keys.append(f"{row['youtube_id']}_{int(row['time_start']):06d}_{int(row['time_end']):06d}")
        except (TypeError, ValueError):
            raise DataError(f"line {number} of the list {path} is {row}, whose times are no numbers") from None
    names = [row["youtube_id"] for row in rows]
    there = _stems(folder, {*keys, *names}.difference(row.get("label", "") for row in rows))
    if not there:
        raise DataError(f"no videos in {folder}, where those of {path} are looked for: pass folder= of the field")
    paths = [there.get(key) or there.get(name, "") for key, name in zip(keys, names, strict=True)]
    classes = sorted({row["label"] for row in rows}) if labels else None
    numbers = {name: label for label, name in enumerate(classes or [])}
    return Listed(folder, paths, keys, [numbers[row["label"]] for row in rows] if labels else None, classes)


def _stems(folder: str, listed: Set[str]) -> dict[str, str]:
    """Of each video in a folder, and in its folders, its path by its name without the extension; of several of one
    name the first by path. listed: names of videos; a folder of such a name has frames, and isn't looked into."""
    there: dict[str, str] = {}
    for entry in _videos(folder):
        there.setdefault(_stem(entry.name), entry.name)
        if entry.name not in listed and is_folder(entry):
            for one in _videos(entry.path):
                there.setdefault(_stem(one.name), f"{entry.name}/{one.name}")
    return there


def _videos(folder: str) -> list[os.DirEntry[str]]:
    """The video files and folders in a folder, by name; whatever else is there is left out."""
    try:
        with os.scandir(folder) as entries:
            found = [one for one in entries if one.name.lower().endswith(VIDEOS) or is_folder(one)]
    except OSError as error:
        raise DataError(f"the folder of the videos, {folder}, can't be read: {error.strerror}; pass folder=") from error
    return sorted(found, key=lambda one: one.name)


def _stem(name: str) -> str:
    stem, extension = os.path.splitext(name)
    return stem if extension.lower() in VIDEOS else name
