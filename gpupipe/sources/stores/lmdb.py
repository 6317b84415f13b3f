"""LMDB databases in the layouts that are common for images. No value is unpickled.

- A key for each image. In the value its file, whose class is the folder in the key (`dog/1.jpg`, or with Caffe's number
  before it, `00000001_dog/1.jpg`), or a Caffe Datum, which has the label.
- `num-samples`, and for each sample from 1 on the keys `image-000000001`, `label-000000001`: a field is under its
  source, or its own name.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import Field, Image, Schema
from gpupipe.errors import ConfigError, DataError, SampleError
from gpupipe.host.cache import digest
from gpupipe.host.files import open_regular
from gpupipe.host.whereabouts import note
from gpupipe.sources.building import Advance, BuiltIndex, load_or_build, scan_in_threads
from gpupipe.sources.headers import DAMAGED, Header, ReadRange, begins_as, probe
from gpupipe.sources.indexed import IndexedSource, arrays_of, found
from gpupipe.sources.reading import MOST_BYTES, OpenFiles, Stamp
from gpupipe.sources.samples import NO_LABEL
from gpupipe.sources.source import Encoded
from gpupipe.sources.storage import StoredIndex, pack_strings
from gpupipe.sources.stores.datum import read_datum
from gpupipe.sources.stores.lmdb_pages import Entries, entries
from gpupipe.sources.wanted import ALONE, Names, Wanted, check_kind, wanted
from gpupipe.texts import printable

__all__ = ["LmdbSource", "is_database", "open_lmdb"]

DATA = "data.mdb"
COUNT = b"num-samples"
META = re.compile(rb"__.*__|num-samples")
NUMBERED = re.compile(r"\d{8,}_")  # as Caffe does it
CHUNK = 256
LOOKED_AT = 8  # values by which the layout is known
SHOWN = 16  # bytes of those that are none: by so many an image format is known
MOST_DIGITS = 18
INTEGER = re.compile(rb"-?\d{1,18}")
PICKLE = b"\x80"  # of protocol 2 and later
ARROW = (b"\xff\xff\xff\xff", bytes(4), b"\1\0\0\0")  # its messages, and pyarrow's count of tensors before them


class LmdbSource(IndexedSource):
    """The images of an LMDB database in the order of its keys. Made by `open_lmdb`."""

    def __init__(self, file: str, index: StoredIndex, schema: Schema, wanted: Wanted) -> None:
        super().__init__(file, index, schema, wanted)
        self.classes = index.info["classes"]
        self.class_to_idx = None if self.classes is None else {name: i for i, name in enumerate(self.classes)}
        self._offsets: NDArray[np.int64] = index.arrays["offsets"].reshape(-1, len(wanted.files))
        self._stamp = Stamp.noted(index.info["stamp"], index.is_in_place(os.path.dirname(file)))
        self._pixels = index.arrays["pixels"]
        self._open = OpenFiles()

    def __repr__(self) -> str:
        return f"LmdbSource({self._place!r}, {len(self)} samples)"

    def _file(self, index: int, number: int) -> Encoded | None:
        note(index)
        size = self._size(index, number)
        if size < 0:
            return None
        try:
            data = self._open.unchanged(self._place, self._stamp, int(self._offsets[index, number]), size, "database")
        except ValueError as error:
            remedy = self._remedy("the database", self._place.removesuffix(f"/{DATA}"))
            raise SampleError(index, self.location(index), str(error), remedy) from error
        if number != self._wanted.image or not self._pixels[index]:
            return data
        height, width, _ = self.shapes(np.array([index]))[0].tolist()  # type: ignore[index]  # there is an image
        pixels = data.reshape(-1, height, width).transpose(1, 2, 0)[:, :, ::-1]
        return np.ascontiguousarray(np.broadcast_to(pixels, (height, width, 3)))

    def _looked_for(self, file: int) -> str:
        return f"there is no key {_key(self._wanted.files[file], 1)!r}; check the source"

    def location(self, index: int) -> str:
        """The key and the database's file."""
        return f"key '{printable(self.key(index))}' in {printable(self._place)}"


def is_database(path: str) -> bool:
    """Whether it is the folder of an LMDB database."""
    return os.path.isfile(os.path.join(path, DATA))


def open_lmdb(
    path: str | os.PathLike[str], fields: Mapping[str, Field] | None = None, *, rebuild: bool = False
) -> LmdbSource:
    """Open a database, a folder with `data.mdb` or a file, indexing it if it has no fresh index.

    Raises DataError for one that is missing, cut or damaged, of another layout, or of pickled values.
    """
    given = Path(path).expanduser().absolute()
    file = given / DATA if given.is_dir() else given
    schema = Schema.of(fields)
    values = wanted(schema, _value_of)
    if not file.is_file():
        raise DataError(f"no LMDB database at {file}: check the path")
    index = load_or_build(
        file.parent,
        f".gpupipe-{digest(['lmdb', file.name, values.files, values.image, values.labels, values.label])}.index",
        arrays=arrays_of(values) | {"offsets", "pixels"},
        stale=lambda info, is_in_place: (
            "" if Stamp.noted(info["stamp"], is_in_place).is_of(Stamp.from_stat(file.stat())) else f"{file} was changed"
        ),
        build=lambda: _scan(file, values),
        rebuild=rebuild,
    )
    source = LmdbSource(str(file), index, schema, values)
    source.check_absent()
    return source


def _value_of(name: str, field: Field) -> tuple[Names, str]:
    """What stands before the number in a field's keys (none: `image`, or the values of keys of any form), and the keys
    within a value."""
    if isinstance(field.source, int) or field.folder is not None:
        raise ConfigError(f"fields: {name!r} is {field!r}, but in LMDB a field is found by its name; pass that")
    if field.source is None and isinstance(field, Image) and name == "image":
        return (), ""
    before, _, path = (name if field.source is None else field.source).partition(":")
    check_kind(name, field, ["json" if path else "npy"], path)
    return (before,), path


def _key(names: Names, number: int) -> str:
    return f"{names[0] if names else 'image'}-{number:09d}"


@dataclass(frozen=True)
class _Samples:
    """What a database holds of them. places: (N, files, 2) int64, offset and bytes, -1 where there is none. label: the
    class number of a row."""

    keys: Sequence[str]
    places: NDArray[np.int64]
    label: Callable[[int], int]
    is_datum: bool = False
    classes: list[str] | None = None


def _scan(file: Path, wanted: Wanted) -> BuiltIndex:
    held = entries(file)
    with open(open_regular(file), "rb", buffering=0) as opened:
        descriptor = opened.fileno()
        store = _Store(file, held, wanted, lambda offset, length: os.pread(descriptor, length, offset))
        samples = store.numbered() if COUNT in held.keys else store.alone()

        def measure(rows: range, advance: Advance) -> list[tuple[int, ...]]:
            advance(len(rows))
            return [store.facts(samples, row) for row in rows]

        size = len(samples.keys)
        chunks = [range(begin, min(begin + CHUNK, size)) for begin in range(0, size, CHUNK)]
        parts = scan_in_threads(f"indexing {file.name}", size, measure, chunks)
    facts = np.array([row for part in parts for row in part], np.int64)
    places = facts[:, 5:].reshape(size, -1, 2)
    return found(
        wanted,
        samples.classes or [],
        pack_strings(samples.keys),
        np.column_stack([facts[:, :4], places[:, :, 1]]),
        {"classes": samples.classes, "stamp": held.stamp},
        offsets=places[:, :, 0].copy(),
        pixels=facts[:, 4].copy(),
    )


@dataclass(frozen=True)
class _Store:
    """A database that is being indexed; `read` gives its bytes."""

    file: Path
    held: Entries
    wanted: Wanted
    read: ReadRange

    def numbered(self) -> _Samples:
        """Those of keys with a number each."""
        text = self._digits(COUNT)
        count = int(text) if text is not None and text.isdigit() else -1
        if not 0 < count <= len(self.held.keys):
            self._refuse(f"has {len(self.held.keys):,} keys, but {COUNT.decode()} is {text!r}: write it again")
        numbers = range(1, count + 1)
        places = [[self._place(_key(names, number).encode()) for names in self.wanted.files] for number in numbers]
        keys = [f"{number:09d}" for number in numbers]
        return _Samples(keys, np.array(places, np.int64), lambda row: self._number(_key(("label",), row + 1)))

    def alone(self) -> _Samples:
        """Those of keys with one value each."""
        rows = [row for row, key in enumerate(self.held.keys) if not META.fullmatch(key)]
        names = [name for file in range(len(self.wanted.files)) for name in self.wanted.names(file)]
        if not rows:
            self._refuse("has no samples")
        if len(self.wanted.files) > 1:
            self._refuse(
                f"has {len(rows):,} keys with one value each, for the fields {', '.join(names)}; several are read from "
                f"keys such as {_key((), 1)}, beside {COUNT.decode()}"
            )
        keys = [self.held.keys[row].decode("utf-8", "surrogateescape") for row in rows]
        places = np.stack([self.held.offsets[rows], self.held.sizes[rows]], axis=1)[:, None]
        is_datum = self.wanted.image is not None and self._is_datum(rows)
        if is_datum or not self.wanted.labels:
            return _Samples(keys, places, lambda row: NO_LABEL, is_datum)
        folders = [key.rpartition("/")[0].partition("/")[0] for key in _without_numbers(keys)]
        if "" in folders:
            self._refuse(
                f"has no labels: keys such as '{printable(keys[folders.index('')])}' have no folder, which is the "
                f"class; {ALONE}, and have labels from elsewhere by joining"
            )
        classes = sorted(set(folders))
        numbers = {name: number for number, name in enumerate(classes)}
        return _Samples(keys, places, lambda row: numbers[folders[row]], classes=classes)

    def _is_datum(self, rows: Sequence[int]) -> bool:
        """Whether the values are Caffe's, and not images. Raises DataError for what is neither."""
        head, cut = b"", False
        for row in rows[:: -(-len(rows) // LOOKED_AT)]:
            offset, size = int(self.held.offsets[row]), int(self.held.sizes[row])
            if _header(self._from(offset), size) != DAMAGED:
                return False
            with suppress(ValueError):
                return read_datum(self._from(offset), size) is not None
            head = self.read(offset, min(size, SHOWN))
            if head[:1] == PICKLE or head[:4] in ARROW:
                break
            cut = cut or bool(begins_as(head))
        if cut:  # damaged images are bad samples, of which even the first may all be
            return False
        pickled = " (pickles, or objects by pyarrow: unpickling runs whatever a file says)"
        raise DataError(
            f"database {self.file} holds neither images nor Caffe's Datum: the first values begin with {head!r}"
            f"{pickled if head[:1] == PICKLE or head[:4] in ARROW else ''}; read them with the program that wrote them "
            "and write the encoded images, under keys such as 00000001_class/name.jpg"
        )

    def facts(self, samples: _Samples, row: int) -> tuple[int, ...]:
        """Label, height, width, orientation, whether it is pixels, and offset and bytes of each file."""
        places = samples.places[row].tolist()
        label = samples.label(row) if self.wanted.labels else NO_LABEL
        if self.wanted.image is None:
            return label, *DAMAGED, 0, *chain(*places)
        image = places[self.wanted.image]
        read = self._from(image[0])
        if not samples.is_datum:
            return label, *_header(read, image[1]), 0, *chain(*places)
        try:
            datum = read_datum(read, image[1])
        except ValueError as error:
            self._refuse(f"has a value that can't be read, of the key {samples.keys[row]!r}: {error}")
        header = Header(datum.height, datum.width, 1)
        place = (image[0] + datum.offset, datum.size)
        if datum.is_encoded:
            header = _header(self._from(place[0]), datum.size)
        return datum.label, *header, not datum.is_encoded, *place

    def _place(self, key: bytes) -> tuple[int, int]:
        at = bisect_left(self.held.keys, key)
        if self.held.keys[at : at + 1] != [key]:
            return 0, -1
        return int(self.held.offsets[at]), int(self.held.sizes[at])

    def _number(self, key: str) -> int:
        """The integer under a key."""
        data = self._digits(key.encode())
        if data is None or not INTEGER.fullmatch(data):
            said = "is not there" if data is None else f"is {data!r}, no class number"
            self._refuse(
                f"has no labels: the value of {key!r} {said}; for other kinds pass fields=, as {{'image': "
                f"gpupipe.Image(), 'label': gpupipe.Text()}}; {ALONE}"
            )
        return int(data)

    def _digits(self, key: bytes) -> bytes | None:
        """The value of a key, as much of it as a number can have and one byte more; None where there is none."""
        offset, size = self._place(key)
        return None if size < 0 else self.read(offset, min(size, MOST_DIGITS + 1))

    def _from(self, begin: int) -> ReadRange:
        return lambda offset, length: self.read(begin + offset, length)

    def _refuse(self, reason: str) -> NoReturn:
        raise DataError(f"database {self.file} {reason}")


def _without_numbers(keys: list[str]) -> list[str]:
    """The keys without the number that each has before it; as they are where these are parts of folders' names."""
    found = {match.group() for key in keys if (match := NUMBERED.match(key)) is not None}
    return [NUMBERED.sub("", key, count=1) for key in keys] if len(found) == len(keys) else keys


def _header(read: ReadRange, size: int) -> Header:
    return probe(read, size) if 0 <= size <= MOST_BYTES else DAMAGED
