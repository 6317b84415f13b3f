"""What sources with a stored index share: what is known of a sample without reading it, and its files' fields."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import MISSING, Columns, Field, Image, Images, Index, Key, Mask, Schema
from gpupipe.errors import DataError, SampleError
from gpupipe.sources.building import BuiltIndex, reopen_index
from gpupipe.sources.reading import MOST_BYTES
from gpupipe.sources.source import Encoded, Source, as_column, content_fingerprint
from gpupipe.sources.storage import StoredIndex, Strings, verdict_of
from gpupipe.sources.values import around, as_array, as_value, document, within
from gpupipe.sources.wanted import Wanted

__all__ = ["SHAPES", "IndexedSource", "arrays_of", "found"]

log = logging.getLogger("gpupipe")

SHAPES = {"heights": np.int32, "widths": np.int32, "orientations": np.uint8}

VERIFIED = (
    "`gpupipe index --verify` found that, and the file was not read now: repair or remove it and verify again, or pass "
    "on_error='skip' to replace bad samples"
)

Files = Sequence[Encoded | None]
"""One file of each of several samples; None where there is none."""


def arrays_of(wanted: Wanted) -> set[str]:
    """The names of the arrays that an index must have."""
    shapes = SHAPES if wanted.image is not None else ()
    return {"sizes", "keys", "key_offsets", *shapes, *(["labels"] if wanted.labels else [])}


def found(
    wanted: Wanted,
    names: Sequence[str],
    keys: tuple[NDArray[np.uint8], NDArray[np.int64]],
    facts: NDArray[np.int64],
    info: Mapping[str, Any],
    **more: NDArray[np.int64],
) -> BuiltIndex:
    """The index of what a scan found.

    names: of the shards or classes. keys: packed strings. facts: (N, 4 + files) label, height, width, orientation, and
    the bytes of each file, -1 for none. more: arrays that this kind of data has besides.
    """
    arrays: dict[str, NDArray[Any]] = {
        "sizes": (facts[:, 4] if facts.shape[1] == 5 else facts[:, 4:]).copy(),
        "keys": keys[0],
        "key_offsets": keys[1],
    } | more
    if wanted.labels:
        arrays["labels"] = facts[:, 0].copy()
    if wanted.image is not None:
        arrays |= {name: facts[:, column].astype(SHAPES[name]) for column, name in enumerate(SHAPES, start=1)}
    content = [arrays[name] for name in ("keys", "key_offsets", "starts", "sizes", "labels") if name in arrays]
    return BuiltIndex(content_fingerprint(names, content), info, arrays)


class IndexedSource(Source):
    """Class numbers, sizes and keys from the arrays of an index; all other fields are in the samples' files.

    place: where the data lies. sizes: bytes of each sample's files, (len(self),) int64, read-only. verdict: why samples
    are bad that can't be decoded, by their numbers, where everything was decoded once (`gpupipe index --verify`).
    """

    def __init__(self, place: Any, index: StoredIndex, schema: Schema, wanted: Wanted) -> None:
        self._place = place
        self.fields = schema
        self.index_path = index.path
        self.fingerprint = index.fingerprint
        self._wanted = wanted
        self._bytes: NDArray[np.int64] = index.arrays["sizes"].reshape(-1, len(wanted.files))  # -1: no such file
        self.sizes: NDArray[np.int64] = index.arrays["sizes"]
        if self.sizes.ndim > 1:
            self.sizes = self._bytes.clip(0).sum(axis=1)
        if "labels" in index.arrays:
            self.targets = index.arrays["labels"]
        self._shapes = [index.arrays[name] for name in SHAPES if wanted.image is not None and name in index.arrays]
        self._keys = Strings(index.arrays["keys"], index.arrays["key_offsets"])
        self.verdict = verdict_of(index.arrays)
        self._check_whole()

    def _check_whole(self) -> None:
        """Raise DataError for an index that no scan has made."""
        ends, count = self._keys.offsets, len(self._keys)
        labels = self.targets if "label" in self.fields and self._wanted.labels else self.sizes
        if any(len(known) != count for known in (self._bytes, labels, *self._shapes)):
            raise self._foreign("its arrays are of several lengths")
        if any(not 0 <= index < count for index in self.verdict):
            raise self._foreign(f"its verdict is of samples outside of [0, {count})")
        if ends[0] != 0 or ends[-1] != len(self._keys.blob) or (np.diff(ends) < 0).any():
            raise self._foreign("its keys have no whole names")

    def _foreign(self, reason: str) -> DataError:
        return DataError(f"the index {self.index_path} was not made of {self._place!r}: {reason}; remove it")

    def __len__(self) -> int:
        return len(self._keys)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (type(self), self._place, self.index_path, self.fingerprint, self.fields, self._wanted)

    def check_absent(self) -> None:
        """Raise DataError for what is wanted and no sample has, as a name may be wrong; log it where there is a
        default, which would hide it."""
        for file in np.flatnonzero((self._bytes < 0).all(axis=0)).tolist():
            names = self._wanted.names(file)
            text = f"no sample of {self!r} has {', '.join(map(repr, names))}: {self._looked_for(file)}"
            if any(self.fields[name].missing != "default" for name in names):
                raise DataError(text)
            log.warning("gpupipe: %s", text)

    def _looked_for(self, file: int) -> str:
        """For a message: how a file is named, and what is there instead."""
        raise NotImplementedError

    def lacks(self, index: int, name: str) -> str:
        """What else is in the document that has no such key."""
        file, path = self._wanted.places.get(name, (0, ""))
        with suppress(SampleError, ValueError):  # it has been changed since it was fetched
            data = self._file(index, file) if path else None
            return "" if data is None else around(document(data), path)
        return ""

    def _remedy(self, what: str, data: str) -> str:
        again = f"gpupipe index {data} --rebuild" if self._wanted.is_usual else "open_source(..., rebuild=True)"
        return f"put {what} back, or index again: {again}"

    def fetch(self, indices: NDArray[np.int64]) -> Columns:
        """All fields: images and masks as encoded."""
        read = _Fields(self, indices, self._files(indices.tolist()))
        return {name: read.column(name, field) for name, field in self.fields.items()}

    def shapes(self, indices: NDArray[np.int64]) -> NDArray[np.int32] | None:
        """Height, width and orientation of each one's first image, from the index."""
        if not self._shapes:
            return None
        shapes = np.empty((len(indices), len(SHAPES)), np.int32)
        for place, known in enumerate(self._shapes):
            shapes[:, place] = known[indices]
        return shapes

    def state_of_images(self, name: str) -> str:
        """Of their sizes, as the index has them."""
        return content_fingerprint([], self._shapes)

    def key(self, index: int) -> str:
        """The path below the folder of the images, with its extension; or the key in the shard: up to the first dot."""
        return str(self._keys[index])

    def _files(self, indices: list[int]) -> list[Files]:
        """Of each file that is wanted those of the samples."""
        return [[self._file(index, number) for index in indices] for number in range(len(self._wanted.files))]

    def _file(self, index: int, number: int) -> Encoded | None:
        """One file of one sample; None where it has none. Raises SampleError where it can't be had."""
        raise NotImplementedError

    def _size(self, index: int, number: int) -> int:
        """Its bytes, -1 where there is none. Raises SampleError where no image has so many, or the sample is known to
        be bad."""
        if index in self.verdict:
            raise SampleError(index, self.location(index), self.verdict[index], VERIFIED)
        size = self._bytes.item(index, number)
        if size > MOST_BYTES:
            raise SampleError(
                index, self.location(index), f"has {size:,} bytes, more than the {MOST_BYTES:,} of any image"
            )
        return size


def _reopened(
    kind: type[IndexedSource], place: Any, path: str, fingerprint: str, schema: Schema, wanted: Wanted
) -> IndexedSource:
    return kind(place, reopen_index(path, fingerprint), schema, wanted)


class _Fields:
    """Columns made of the files of some samples."""

    def __init__(self, source: IndexedSource, indices: NDArray[np.int64], files: Sequence[Files]) -> None:
        self._source = source
        self._indices = indices
        self._files = files
        self._documents: dict[int, list[Any]] = {}

    def column(self, name: str, field: Field) -> Any:
        """One for each sample."""
        source = self._source
        if isinstance(field, Index):
            return self._indices.astype(np.int64)
        if isinstance(field, Key):
            return list(map(source.key, self._indices.tolist()))
        if name not in source._wanted.places:
            return source.targets[self._indices]
        file, path = source._wanted.places[name]
        if isinstance(field, Image):
            known = source.shapes(self._indices) if file == source._wanted.image else None
            return Images(list(self._files[file]), known)
        if isinstance(field, Mask):
            return [MISSING if data is None else data for data in self._files[file]]
        if not path:
            return as_column(field, self._each(name, lambda data: as_value(field, data), self._files[file]))

        def entry(record: Any) -> Any:
            value = within(record, path)
            return MISSING if value is MISSING else as_array(field, value)

        if file not in self._documents:  # several fields may be in one
            self._documents[file] = self._each(name, document, self._files[file])
        return as_column(field, self._each(name, entry, self._documents[file]))

    def _each(self, name: str, make: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
        """What is made of each sample's value. Raises SampleError for the first of which nothing can be made."""
        made = []
        for index, value in zip(self._indices.tolist(), values, strict=True):
            try:
                made.append(MISSING if value is None or value is MISSING else make(value))
            except (ValueError, TypeError, OverflowError) as error:
                raise SampleError(index, self._source.location(index), f"its field {name!r}: {error}") from error
        return made
