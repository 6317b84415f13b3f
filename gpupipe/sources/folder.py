"""An image folder in torchvision's layout: one sub-directory per class, images anywhere below it. Where no class number
is wanted there need be no classes; other fields are in parallel folders."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import Field, Schema
from gpupipe.errors import ConfigError, DataError, SampleError
from gpupipe.host.cache import digest
from gpupipe.host.files import NOT_REGULAR, is_folder, opened
from gpupipe.host.whereabouts import note
from gpupipe.sources.building import Advance, BuiltIndex, load_or_build, scan_in_threads
from gpupipe.sources.headers import DAMAGED, probe
from gpupipe.sources.indexed import IndexedSource, arrays_of, found
from gpupipe.sources.reading import MOST_BYTES, read_at
from gpupipe.sources.source import Encoded, content_fingerprint
from gpupipe.sources.storage import StoredIndex, Strings, pack_strings
from gpupipe.sources.wanted import ALONE, Names, Wanted, check_kind, wanted
from gpupipe.texts import printable

__all__ = ["EXTENSIONS", "OTHERS", "FolderSource", "open_folder"]

log = logging.getLogger("gpupipe")

# torchvision.datasets.folder.IMG_EXTENSIONS
EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
# Images, too, which it leaves out.
OTHERS = (".avif", ".gif", ".j2k", ".jp2")
# One file, never a directory: ImageFolder takes every directory in the root as a class.
INDEX_NAME = ".gpupipe.index"
CHUNK = 256
UNREAD = -2
"""In the place of the bytes of a file that is there, or a link to one, and can't be read now."""
UPWARDS = re.compile(rb"/\.\.")

Times = tuple[int, int]
"""Of a folder in ns: when something came into it or went, as tar and others may set it back (mtime), and when anything
of it was changed (ctime), which nothing does."""


@dataclass(frozen=True)
class Layout:
    """Where the files of a sample lie, whose image is `base`/key.

    files: of each its folder and suffix. The image's may be empty: any usual extension; others' take the place of the
    image's extension (empty: the same name). image: which of them is the image.
    """

    root: str
    files: tuple[tuple[str, str], ...]
    image: int

    @classmethod
    def of(cls, root: str, files: Wanted) -> Layout:
        """For files that lie parallel to the first image's."""
        assert files.image is not None, "the samples of a folder are its images"
        return cls(root, tuple((names[0], names[1]) if names else ("", "") for names in files.files), files.image)

    def within(self, folder: str) -> str:
        """The path of a folder below the root, or of one elsewhere that was passed so."""
        return os.path.normpath(os.path.join(self.root, folder)) if folder else self.root

    def path(self, key: str, number: int) -> str:
        """Of one of the files of a sample."""
        suffix = "" if number == self.image else self.files[number][1]
        return f"{self._paths[number]}/{os.path.splitext(key)[0] + suffix if suffix else key}"

    @cached_property
    def _paths(self) -> list[str]:
        """Of each file's folder."""
        return [self.within(folder) for folder, _ in self.files]

    @property
    def base(self) -> str:
        """The folder of the images."""
        return self._paths[self.image]

    @cached_property
    def others(self) -> list[tuple[str, str]]:
        """Folder and suffix of the other files."""
        return [file for number, file in enumerate(self.files) if number != self.image]

    @property
    def folders(self) -> list[str]:
        """Those of the other files."""
        return list(dict.fromkeys(folder for folder, _ in self.others))

    @cached_property
    def apart(self) -> set[str]:
        """Paths of folders in which no images are looked for."""
        return set(map(self.within, self.folders)) - {self.base}

    def is_image(self, name: str) -> bool:
        """Whether a file's name is that of a sample's image, and of no other field beside it."""
        suffix = self.files[self.image][1]
        named = name.endswith(suffix) if suffix else name.lower().endswith(EXTENSIONS)
        return named and not name.endswith(self._beside)

    def is_left_out(self, name: str) -> bool:
        """Whether it is that of an image of another format, which no field takes."""
        return name.lower().endswith(OTHERS) and not self.files[self.image][1] and not name.endswith(self._beside)

    @cached_property
    def _beside(self) -> tuple[str, ...]:
        """Suffixes of other fields' files in the images' folder."""
        own = ("", self.files[self.image][1])
        return tuple(suffix for folder, suffix in self.others if suffix not in own and self.within(folder) == self.base)

    # What is there.

    def walk(self, directory: str) -> Iterator[tuple[str, Times, list[str]]]:
        """Every directory from `directory` down: its path below the root, times, file names. Those `apart` are left out
        if they lie in it. Raises DataError for a link to a folder above."""
        return _walk(self.root, directory, self.apart - {self.within(directory)})

    def class_names(self) -> list[str]:
        """The folders of classes."""
        with os.scandir(self.base) as entries:
            names = sorted(entry.name for entry in entries if is_folder(entry))
        return [name for name in names if f"{self.base}/{name}" not in self.apart]

    def suffixes(self, folder: str) -> str:
        """For a message: the suffixes of the first files in a folder, each with a name."""
        names = islice(chain.from_iterable(sorted(files) for _, _, files in self.walk(folder)), CHUNK)
        there = {os.path.splitext(name)[1]: printable(name) for name in names if not name.startswith(".")}
        return ", ".join(f"{suffix} ({name})" for suffix, name in sorted(there.items())[:10]) or "none at all"

    def size(self, path: str) -> int:
        """The bytes of a file, -1 where there is none, `UNREAD` for a link to one that is not there."""
        try:
            return os.stat(path).st_size
        except (FileNotFoundError, NotADirectoryError):
            return UNREAD if os.path.islink(path) else -1

    def measure(self, path: str) -> tuple[int, int, int, int]:
        """Bytes, height, width and orientation of a file; an unreadable one counts as damaged, has `UNREAD` bytes, and
        `fetch` says why."""
        try:
            descriptor, stat = opened(path)
            with open(descriptor, "rb", buffering=0):
                size = stat.st_size
                if size > MOST_BYTES:
                    return size, *DAMAGED
                return size, *probe(lambda offset, length: os.pread(descriptor, length, offset), size)
        except OSError:
            return UNREAD, *DAMAGED


def files_of(schema: Schema) -> Wanted:
    """What a schema wants of an image folder. Raises ConfigError for a field that has no folder of its own."""
    if not schema.images:
        raise ConfigError(f"fields: the samples of an image folder are its images, and {', '.join(schema)} have none")
    return wanted(schema, lambda name, field: _file_of(name, field, name == schema.images[0]))


def _file_of(name: str, field: Field, is_first: bool) -> tuple[Names, str]:
    """Folder and suffix of a field's files, and the keys within them."""
    if is_first and field.folder is None and field.suffix is None:
        return (), ""
    if isinstance(field.source, int) or (field.folder is None and not is_first):
        raise ConfigError(
            f"fields: {name!r} has source={field.source!r}, folder={field.folder!r}; in an image folder pass folder= "
            "and suffix=, as gpupipe.Mask(folder='masks', suffix='.png')"
        )
    path = (field.source or "").removeprefix("json:")
    check_kind(name, field, [(field.suffix or "").lower().lstrip(".")], path)
    return (field.folder or "", field.suffix or ""), path


class FolderSource(IndexedSource):
    """The images of a folder in the order of torchvision's ImageFolder. Made by `open_folder`."""

    _layout_of = Layout.of

    def __init__(self, root: str, index: StoredIndex, schema: Schema, wanted: Wanted) -> None:
        super().__init__(root, index, schema, wanted)
        self.root = root
        self._layout = self._layout_of(root, wanted)
        self._images = {wanted.places[name].file for name in schema.images}
        if wanted.labels:
            names: list[str] = index.info["classes"]
            self.classes = names
            self.class_to_idx = {name: i for i, name in enumerate(names)}
            if names and len(self) and not 0 <= self.targets.min() <= self.targets.max() < len(names):
                raise self._foreign(f"it has labels outside of [0, {len(names)})")
        out = _leading_out(self._keys)
        if out is not None:
            raise self._foreign(f"its file '{printable(out)}' does not lie in that folder")

    def __repr__(self) -> str:
        classes = f", {len(self.classes)} classes" if self.classes is not None else ""
        return f"{type(self).__name__}({self.root!r}, {len(self)} samples{classes})"

    def _file(self, index: int, number: int) -> Encoded | None:
        """The bytes of one file. Raises SampleError where it is gone or unreadable, or an image of another size than
        indexed, of which height and width may be others, too; the files of other fields may be edited."""
        note(index)
        expected = self._size(index, number)
        if expected < 0:
            return None
        path = self._layout.path(str(self._keys[index]), number)
        try:
            descriptor, stat = opened(path)
            try:
                size = stat.st_size
                if number not in self._images:
                    expected = min(size, MOST_BYTES)
                data = read_at(descriptor, 0, expected)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._bad(index, path, f"can't be read: {error.strerror}") from error
        if not len(data) == size == expected:
            self._changed()
            reason = f"has {size} bytes where the index says {expected}: it changed since it was indexed"
            raise self._bad(index, path, reason)
        return data

    def _changed(self) -> None:
        """A file is not as the index says."""

    def _looked_for(self, file: int) -> str:
        folder, suffix = self._layout.files[file]
        named = f"with suffix={suffix!r} in the place of the image's" if suffix else "of an image's name"
        there = self._layout.suffixes(folder)
        own = ", and whether images lie in a folder of their own: gpupipe.Image(folder='images')"
        remedy = f"check folder and suffix{own if suffix and f'{suffix} (' in there else ''}"
        return f"there is no file {named} in folder={folder!r}, but {there}; {remedy}"

    def location(self, index: int) -> str:
        """The path of the image, printable on any terminal."""
        return printable(f"{self._layout.base}/{self._keys[index]}")

    def _bad(self, index: int, path: str, reason: str) -> SampleError:
        location = self.location(index)
        which = "" if printable(path) == location else f"{printable(path)} "
        # A new index would have it too: what is not a regular file is none to look into.
        remedy = "put the file back" if reason.endswith(NOT_REGULAR) else self._remedy("it", self._place)
        return SampleError(index, location, which + reason, remedy)


def open_folder(
    root: str | os.PathLike[str], fields: Mapping[str, Field] | None = None, *, rebuild: bool = False
) -> FolderSource:
    """Open an image folder, indexing it if it has no fresh index.

    The samples are the images below the folder of the first image field, usually the root: below its class folders
    where `label` is wanted. Raises DataError where a folder is missing, has no classes or a class has no images,
    ConfigError for a field that has no folder of its own.
    """
    path = Path(root).expanduser().absolute()
    schema = Schema.of(fields)
    files = files_of(schema)
    layout = Layout.of(str(path).rstrip("/"), files)
    for folder in [layout.root, layout.base, *map(layout.within, layout.folders)]:
        if not os.path.isdir(folder):
            raise DataError(f"no folder at {folder}: check the path, or whether the disk is mounted")
    index = load_or_build(
        path,
        _index_name(files),
        arrays=arrays_of(files),
        stale=partial(_changes, layout, files),
        build=lambda: _scan(layout, files),
        rebuild=rebuild,
    )
    source = FolderSource(layout.root, index, schema, files)
    source.check_absent()
    return source


def _index_name(files: Wanted) -> str:
    """One name per set of files."""
    if files.is_usual:
        return INDEX_NAME
    return f".gpupipe-{digest([files.files, files.image, files.labels])}.index"


@dataclass
class Listing:
    """The images: `paths` below their folder. left_out: names of images of other formats. directories: the times of
    each, named as seen from the root, but for a root whose times change as the index is written there."""

    classes: list[str]
    paths: list[str] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    directories: dict[str, Times] = field(default_factory=dict)

    @property
    def told(self) -> str:
        """For messages: what to do about what is left out."""
        if not self.left_out:
            return ""
        suffix = os.path.splitext(self.left_out[0])[1]
        return (
            f"; there are images of formats which torchvision's ImageFolder leaves out, too ({', '.join(OTHERS)}): "
            f"{len(self.left_out)}, as {printable(self.left_out[0])}; for those pass "
            f"fields={{'image': gpupipe.Image(suffix={suffix!r}), 'label': gpupipe.Scalar()}}"
        )

    def add(self, layout: Layout, directory: str, label: int) -> int:
        """Add the images below a directory; returns how many there are."""
        before = len(self.paths)
        above = len(_joined(layout.files[layout.image][0], ""))
        for below, times, files in sorted(layout.walk(directory)):
            self.directories[below] = times
            self.paths += [_joined(below, file)[above:] for file in sorted(files) if layout.is_image(file)]
            self.left_out += filter(layout.is_left_out, files)
        self.labels += [label] * (len(self.paths) - before)
        return len(self.paths) - before


def _scan(layout: Layout, files: Wanted) -> BuiltIndex:
    listing = listed(layout, files)
    for folder in layout.folders:
        listing.directories |= {directory: times for directory, times, _ in layout.walk(folder)}
    for directory in [below for below in listing.directories if layout.within(below) == layout.root]:
        del listing.directories[directory]
    return measured(layout, files, listing, {"kind": "folder", "top": _top(layout, files)})


def measured(
    layout: Layout, files: Wanted, listing: Listing, info: Mapping[str, Any], **more: NDArray[np.int64]
) -> BuiltIndex:
    """The index of these files, of which the headers are read. info, more: what this kind of data has besides.

    Of a file that can't be read it notes key and number as `unread`: it has no bytes if it is the image, else it is as
    if it were not there.
    """
    if listing.left_out:
        log.warning("gpupipe: %s%s", layout.base, listing.told)
    chunks = [listing.paths[i : i + CHUNK] for i in range(0, len(listing.paths), CHUNK)]

    def measure(paths: list[str], advance: Advance) -> NDArray[np.int64]:
        measures = np.array([_measure_files(layout, path) for path in paths], np.int64)
        advance(len(paths))
        return measures

    description = f"indexing {os.path.basename(layout.root)}"
    facts = np.concatenate(scan_in_threads(description, len(listing.paths), measure, chunks))
    sizes = facts[:, len(DAMAGED) :]
    unread = [[listing.paths[row], number] for row, number in np.argwhere(sizes == UNREAD).tolist()]
    absent = [0 if number == layout.image else -1 for number in range(len(layout.files))]
    np.copyto(sizes, absent, where=sizes == UNREAD)
    return found(
        files,
        listing.classes,
        pack_strings(listing.paths),
        np.column_stack([np.array(listing.labels, np.int64), facts]),
        {"classes": listing.classes, "directories": listing.directories, "unread": unread, **info},
        **more,
    )


def _measure_files(layout: Layout, key: str) -> tuple[int, ...]:
    """Height, width and orientation of the image; and of each file its bytes, -1 where there is none, or `UNREAD`."""
    size, *header = layout.measure(f"{layout.base}/{key}")
    numbers = range(len(layout.files))
    return *header, *(size if number == layout.image else layout.size(layout.path(key, number)) for number in numbers)


def listed(layout: Layout, files: Wanted) -> Listing:
    """Classes and samples in ImageFolder's order; without labels all images by directory and name. Raises DataError."""
    listing = Listing(layout.class_names() if files.labels else [])
    folder, suffix = layout.files[layout.image]
    suffixes = suffix or ", ".join(EXTENSIONS)
    if not files.labels:
        if not listing.add(layout, folder, 0):
            there = f" and suffix; there are {layout.suffixes(folder)}" if suffix else listing.told
            raise DataError(f"no images in {layout.base} ({suffixes}): check the path{there}")
        return listing
    if not listing.classes:
        raise DataError(
            f"no class folders in {layout.base}: images belong into one sub-folder per class (root/dog/1.jpg); "
            f"{ALONE}, for WebDataset shards pass a pattern such as 'folder/*.tar'{_videos(layout, '')}"
        )
    names = enumerate(listing.classes)
    empty = [name for label, name in names if not listing.add(layout, _joined(folder, name), label)]
    if empty:
        raise DataError(
            f"no images in {len(empty)} of {len(listing.classes)} class folders of {layout.base}: "
            f"{', '.join(empty[:10])}{' ...' if len(empty) > 10 else ''}; remove these folders or put images there "
            f"({suffixes}){listing.told}{_videos(layout, _joined(folder, empty[0]))}"
        )
    return listing


def _videos(layout: Layout, directory: str) -> str:
    """For messages: what to pass where there are videos below a directory."""
    from gpupipe.sources.videos.encoded import VIDEOS  # late: videos need what this file has

    if not any(file.lower().endswith(VIDEOS) for _, _, files in layout.walk(directory) for file in files):
        return ""
    return "; of videos pass fields={'video': gpupipe.Frames(clip=(8, 8)), 'label': gpupipe.Scalar()}"


def _top(layout: Layout, files: Wanted) -> str:
    """What tells whether files came or went in the root itself, where that matters."""
    if files.labels:
        return ""
    names = sorted(name for name in os.listdir(layout.root) if not name.startswith(INDEX_NAME[:8]))
    return content_fingerprint(names, [])


def _joined(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory else name


def _leading_out(keys: Strings) -> str | None:
    """The first of these paths that leads out of the folder that they are in, if one does; links are not looked at."""
    firsts = keys.blob[keys.offsets[:-1][np.diff(keys.offsets) > 0]]
    if not np.isin(firsts, (ord("/"), ord("."))).any() and UPWARDS.search(keys.blob.data) is None:
        return None  # as good as always
    return next((key for key in keys if key.startswith("/") or ".." in key.split("/")), None)


Identity = tuple[int, int]
"""Device and inode of a directory."""


def _walk(
    root: str, directory: str, apart: Set[str] = frozenset(), above: frozenset[Identity] = frozenset()
) -> Iterator[tuple[str, Times, list[str]]]:
    """Every directory from `directory` down, links followed: its path below the root, times, file names.

    `apart` are paths that are left out, `above` the directories that it lies in. Raises DataError for a link to one of
    these.
    """
    path = os.path.join(root, directory)
    stat = os.stat(path)  # before listing: what is added meanwhile makes the index stale, not wrong
    if (stat.st_dev, stat.st_ino) in above:
        raise DataError(f"folder {path} is a link to a folder that it lies in, so there is no end to it: remove it")
    above |= {(stat.st_dev, stat.st_ino)}
    files: list[str] = []
    folders: list[str] = []
    with os.scandir(path) as entries:
        for entry in entries:
            (folders if is_folder(entry) else files).append(entry.name)
    yield directory, times_of(stat), files
    for folder in folders:
        if not apart or os.path.normpath(os.path.join(path, folder)) not in apart:
            yield from _walk(root, _joined(directory, folder), apart, above)


def times_of(stat: os.stat_result) -> Times:
    """Of a folder."""
    return stat.st_mtime_ns, stat.st_ctime_ns


def _changes(layout: Layout, files: Wanted, info: dict[str, Any], is_in_place: bool) -> str:
    """What changed since the index was made, or an empty string. is_in_place: as for `Stale`.

    Files are not looked at, but for those that could not be read: 1.28 million of them would take longer than opening
    may. `fetch` notices another size.
    """
    if info.get("kind") != "folder":
        return "it belongs to other data"
    if files.labels and layout.class_names() != info["classes"]:
        return "class folders were added or removed"
    if _top(layout, files) != info.get("top", ""):
        return "files or folders were added or removed"
    return changed_below(layout.root, info["directories"], is_in_place) or come_since(layout, info["unread"])


def changed_below(root: str, directories: Mapping[str, Sequence[int]], is_in_place: bool) -> str:
    """Which of the directories has other times than it had, or an empty string. is_in_place: as for `Stale`."""
    compared = 2 if is_in_place else 1
    for directory, before in directories.items():
        try:
            now = times_of(os.stat(os.path.join(root, directory)))
        except OSError:
            return f"folder {directory} is gone"
        if now[:compared] != tuple(before[:compared]):
            return f"folder {directory} was changed"
    return ""


def come_since(layout: Layout, unread: Sequence[tuple[str, int]]) -> str:
    """Which of the files that could not be read can be now, or an empty string: what a link leads to was fetched (git
    annex, DVC), permissions were mended, a disk is back."""
    for key, number in unread:
        path = layout.path(key, number)
        if layout.measure(path)[0] != UNREAD:
            return f"{printable(path)} could not be read, and can be now"
    return ""
