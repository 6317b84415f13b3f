"""An image folder in torchvision's layout: one sub-directory per class, images anywhere below it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import DataError, SampleError
from gpupipe.host.files import is_folder, open_regular
from gpupipe.host.whereabouts import note
from gpupipe.sources.building import BuiltIndex, load_or_build, reopen_index
from gpupipe.sources.headers import DAMAGED, probe
from gpupipe.sources.indexed import ARRAYS, IndexedSource
from gpupipe.sources.reading import MOST_BYTES, read_at
from gpupipe.sources.scanning import Advance, scan_in_threads
from gpupipe.sources.source import Encoded, content_fingerprint
from gpupipe.sources.storage import StoredIndex, pack_strings

__all__ = ["EXTENSIONS", "FolderSource", "open_folder"]

# torchvision.datasets.folder.IMG_EXTENSIONS
EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
# One file, never a directory: ImageFolder takes every directory in the root as a class.
INDEX_NAME = ".gpupipe.index"
CHUNK = 256


class FolderSource(IndexedSource):
    """The images of a folder in the order of torchvision's ImageFolder. Made by `open_folder`."""

    def __init__(self, root: str, index: StoredIndex) -> None:
        super().__init__(index)
        names: list[str] = index.info["classes"]
        self.root = root
        self.classes: list[str] = names
        self.class_to_idx = {name: i for i, name in enumerate(names)}

    def __repr__(self) -> str:
        return f"FolderSource({self.root!r}, {len(self)} samples, {len(self.classes)} classes)"

    def __reduce__(self) -> tuple[Callable[..., FolderSource], tuple[str, str, str]]:
        return _reopen, (self.root, self.index_path, self.fingerprint)

    def _read(self, index: int) -> Encoded:
        """The bytes of one file. Raises SampleError where it is gone, unreadable or of another size than indexed."""
        note(index)
        expected = self._bytes(index)
        try:
            with open(open_regular(self._path(index)), "rb", buffering=0) as file:
                data = read_at(file.fileno(), 0, expected)
                size = os.fstat(file.fileno()).st_size
        except OSError as error:
            raise SampleError(
                index, self.location(index), f"can't be read: {error.strerror}", self._remedy()
            ) from error
        if not len(data) == size == expected:
            reason = f"has {size} bytes where the index says {expected}: it changed since it was indexed"
            raise SampleError(index, self.location(index), reason, self._remedy())
        return data

    def location(self, index: int) -> str:
        """The path of the file, printable on any terminal."""
        return self._path(index).encode("utf-8", "backslashreplace").decode()

    def _path(self, index: int) -> str:
        return f"{self.root}/{self._keys[index]}"

    def _remedy(self) -> str:
        return f"put it back, or index the folder again: gpupipe index {self.root} --rebuild"


def open_folder(root: str | os.PathLike[str], *, rebuild: bool = False) -> FolderSource:
    """Open an image folder, indexing it if it has no fresh index.

    Raises DataError where it is missing, has no classes, or a class has no images.
    """
    path = Path(root).expanduser().absolute()
    if not path.is_dir():
        raise DataError(f"no folder at {path}: check the path, or whether the disk is mounted")
    index = load_or_build(
        path,
        INDEX_NAME,
        arrays=ARRAYS,
        stale=lambda info: _changes(path, info),
        build=lambda: _scan(path),
        rebuild=rebuild,
    )
    return FolderSource(str(path).rstrip("/"), index)


def _reopen(root: str, index_path: str, fingerprint: str) -> FolderSource:
    return FolderSource(root, reopen_index(index_path, fingerprint))


@dataclass
class _Listing:
    """What lies below the root: `paths` relative to it, and each directory's time of change."""

    classes: list[str]
    paths: list[str] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    directories: dict[str, int] = field(default_factory=dict)


def _scan(root: Path) -> BuiltIndex:
    listing = _list(root)
    chunks = [listing.paths[i : i + CHUNK] for i in range(0, len(listing.paths), CHUNK)]

    def measure(paths: list[str], advance: Advance) -> NDArray[np.int64]:
        found = np.array([_measure(f"{root}/{path}") for path in paths], np.int64)
        advance(len(paths))
        return found

    measured = np.concatenate(scan_in_threads(f"indexing {root.name}", len(listing.paths), measure, chunks))
    blob, offsets = pack_strings(listing.paths)
    arrays: dict[str, NDArray[Any]] = {
        "labels": np.array(listing.labels, np.int64),
        "sizes": measured[:, 0].copy(),
        "heights": measured[:, 1].astype(np.int32),
        "widths": measured[:, 2].astype(np.int32),
        "orientations": measured[:, 3].astype(np.uint8),
        "keys": blob,
        "key_offsets": offsets,
    }
    fingerprint = content_fingerprint(listing.classes, [blob, offsets, arrays["sizes"], arrays["labels"]])
    info = {"kind": "folder", "classes": listing.classes, "directories": listing.directories}
    return BuiltIndex(fingerprint, info, arrays)


def _measure(path: str) -> tuple[int, int, int, int]:
    """Bytes, height, width and orientation of a file; an unreadable one counts as damaged, and `fetch` says why."""
    try:
        with open(open_regular(path), "rb", buffering=0) as file:
            descriptor = file.fileno()
            size = os.fstat(descriptor).st_size
            if size > MOST_BYTES:
                return size, *DAMAGED
            return size, *probe(lambda offset, length: os.pread(descriptor, length, offset), size)
    except OSError:
        return 0, *DAMAGED


def _list(root: Path) -> _Listing:
    """Classes and samples in ImageFolder's order. Raises DataError."""
    listing = _Listing(_class_names(root))
    if not listing.classes:
        raise DataError(
            f"no class folders in {root}: images belong into one sub-folder per class (root/dog/1.jpg); "
            "for WebDataset shards pass a pattern such as 'folder/*.tar'"
        )
    empty = [name for label, name in enumerate(listing.classes) if not _list_class(root, name, label, listing)]
    if empty:
        raise DataError(
            f"no images in {len(empty)} of {len(listing.classes)} class folders of {root}: {', '.join(empty[:10])}"
            f"{' ...' if len(empty) > 10 else ''}; remove these folders or put images there ({', '.join(EXTENSIONS)})"
        )
    return listing


def _class_names(root: Path) -> list[str]:
    with os.scandir(root) as entries:
        return sorted(entry.name for entry in entries if is_folder(entry))


def _list_class(root: Path, name: str, label: int, listing: _Listing) -> int:
    """Add the images below one class folder; returns how many there are."""
    before = len(listing.paths)
    for directory, changed, files in sorted(_walk(str(root), name)):
        listing.directories[directory] = changed
        images = [f"{directory}/{file}" for file in sorted(files) if file.lower().endswith(EXTENSIONS)]
        listing.paths += images
        listing.labels += [label] * len(images)
    return len(listing.paths) - before


Identity = tuple[int, int]
"""Device and inode of a directory."""


def _walk(root: str, directory: str, above: frozenset[Identity] = frozenset()) -> Iterator[tuple[str, int, list[str]]]:
    """Every directory from `directory` down, links followed: its path below the root, time of change, file names.

    `above` are the directories that it lies in. Raises DataError for a link to one of them.
    """
    path = f"{root}/{directory}"
    stat = os.stat(path)
    changed = stat.st_mtime_ns  # before listing: what is added meanwhile makes the index stale, not wrong
    if (stat.st_dev, stat.st_ino) in above:
        raise DataError(f"folder {path} is a link to a folder that it lies in, so there is no end to it: remove it")
    above |= {(stat.st_dev, stat.st_ino)}
    files: list[str] = []
    folders: list[str] = []
    with os.scandir(path) as entries:
        for entry in entries:
            (folders if is_folder(entry) else files).append(entry.name)
    yield directory, changed, files
    for folder in folders:
        yield from _walk(root, f"{directory}/{folder}", above)


def _changes(root: Path, info: dict[str, Any]) -> str:
    """What changed since the index was made, or an empty string.

    The root's own time is left out, as writing the index there changes it; its class folders are compared by name.
    Files are not looked at: 1.28 million of them would take longer than opening may. `fetch` notices another size.
    """
    if info.get("kind") != "folder":
        return "it belongs to other data"
    if _class_names(root) != info["classes"]:
        return "class folders were added or removed"
    for directory, changed in info["directories"].items():
        now = None
        with contextlib.suppress(OSError):
            now = os.stat(f"{root}/{directory}").st_mtime_ns
        if now != changed:
            return f"folder {directory} was changed" if now is not None else f"folder {directory} is gone"
    return ""
