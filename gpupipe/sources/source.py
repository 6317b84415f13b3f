"""What every source offers: samples by their number, and what is known of them without reading."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpupipe.batch import MISSING, Array, Columns, Coming, Field, Images, Index, Key, Schema, StorageUse
from gpupipe.batch.batch import total
from gpupipe.errors import DataError

if TYPE_CHECKING:
    from gpupipe.order import Order
    from gpupipe.sources.joined import JoinedSource
    from gpupipe.sources.lookups import Known
    from gpupipe.sources.remote.cache import Cache
    from gpupipe.sources.subset import SubsetSource

__all__ = ["Encoded", "Source", "as_column", "content_fingerprint"]

Encoded = NDArray[np.uint8]
"""The bytes of one image file: a 1-D uint8 array."""


class Source:
    """Random access to samples. `__len__`, `fetch` and the two attributes are needed, the rest has usual bodies.

    fields:      what `fetch` gives. fingerprint: identifies the content; it should depend neither on where the data is
                 mounted nor on modification times. classes, class_to_idx: None where the data names no classes.
    parts:       sources that it is made of.
    rebuilt:     when `open_source` was told to `rebuild` it, in seconds since 1970; 0: it was not.

    One of your own, which may set `targets` where it knows all labels, and should call `gpupipe.host.whereabouts.note`
    with the index before it reads a sample, so that a message about a hang can name it (docs/guide/sources.md):

    >>> import numpy as np
    >>> from gpupipe import Image, Images, Key, Schema, Source, check_source
    >>> class Frames(Source):
    ...     fields, fingerprint = Schema({"image": Image(), "key": Key()}), "ten frames"
    ...     pixels = np.zeros((10, 48, 64, 3), np.uint8)  # or np.load("frames.npy", mmap_mode="r")
    ...     def __len__(self):
    ...         return len(self.pixels)
    ...     def fetch(self, indices):
    ...         return {"image": Images(list(self.pixels[indices])), "key": [self.key(i) for i in indices]}
    >>> check_source(Frames())
    >>> Frames()[-1]["key"]
    '9'

    A source is a map-style dataset of torch's, too: `source[index]` is a sample, (image, label) or a dict by field,
    where an image is an array of uint8: encoded bytes or pixels.
    """

    fields: Schema
    fingerprint: str
    classes: list[str] | None = None
    class_to_idx: dict[str, int] | None = None
    parts: tuple[Source, ...] = ()
    rebuilt: float = 0.0

    def __len__(self) -> int:
        raise NotImplementedError

    def fetch(self, indices: NDArray[np.int64]) -> Columns:
        """All fields of the samples at `indices`, in that order. Raises SampleError for the first that can't be had."""
        raise NotImplementedError

    def shapes(self, indices: NDArray[np.int64]) -> NDArray[np.int32] | None:
        """Height and width as stored and EXIF orientation of each sample's (first) image, (N, 3), where they are known
        without reading: 0, 0, 1 for a damaged one. None: not known."""
        return None

    def key(self, index: int) -> str:
        """The name of the sample: its path below the root, or its key in the shard."""
        return str(index)

    def location(self, index: int) -> str:
        """Where the sample lies, for messages: a path, or key, shard and offset."""
        return f"{type(self).__name__}[{index}]"

    def ahead(self, coming: Coming) -> None:
        """Told, before a fetch, what the same process fetches after it, so that it can be read meanwhile.

        A loader does so where a source has a body of its own for it; over epochs' ends and resumes, never a guess. It
        is told of every fetch in their order, `coming.indices` at once; when a stream begins of several.
        """

    def stored_bytes(self, indices: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Bytes that each of these samples takes of a storage, and of the cache in front of it; None: the data is
        local, or that is not known before it is read."""
        return None

    def all_parts(self) -> Iterator[Source]:
        """It, and whatever it is made of."""
        yield self
        for part in self.parts:
            yield from part.all_parts()

    @property
    def reads_storage(self) -> bool:
        """Whether something of it lies in a storage, so that this process, or its workers, get a client of it."""
        return any(part.reads_storage for part in self.parts)

    def storage_use(self) -> StorageUse | None:
        """What this process has read of storages since it was last asked; None: the data is local."""
        return total(part.storage_use() for part in self.parts)

    def column(self, name: str) -> NDArray[Any] | list[Any]:
        """All samples' values of a field, where they are known without reading any: here keys, indices and labels.

        "key" and "index" can be had of every source, whatever its fields. Raises DataError for what is not known.
        """
        field = self._kind(name)
        if isinstance(field, Key):
            return list(map(self.key, range(len(self))))
        if isinstance(field, Index):
            return np.arange(len(self))
        if field is not None and name == "label":
            return self.targets
        why = "is none of its fields, " + ", ".join(self.fields) if field is None else "is known only by reading them"
        raise DataError(
            f"{name!r} of all samples of {self!r} {why}; known are 'key' and 'index' of every source, 'label' of image "
            "folders and shards, columns of numbers and texts of tables"
        )

    def _kind(self, name: str) -> Field | None:
        """The field of a column; keys and indices are there without one."""
        return {"key": Key(), "index": Index(), **self.fields}.get(name)

    # What follows has a body for every source; one of the user's own is not asked for it.

    def remarks(self) -> list[tuple[str, str]]:
        """What makes the data slow to read, and what to do about it. Known without reading."""
        return []

    def lacks(self, index: int, name: str) -> str:
        """For the message about a field that a fetched sample lacks: what there is instead, where that is known."""
        return ""

    def state_of_images(self, name: str) -> str:
        """A digest of what tells, beside the fingerprint, that the images of a field are those of before, as they are
        now, without what its parts have; empty where nothing does."""
        return ""

    @property
    def looks_ahead(self) -> int:
        """So many samples before they are fetched it wants to be told of them, of one fetch at least; 0: of none."""
        return int(type(self).ahead is not Source.ahead)

    @property
    def cache(self) -> Cache | None:
        """The settings of the disk cache that keeps what is read of a storage, its own or of one of its parts; None:
        there is no such."""
        reading = getattr(self, "reading", None)
        caches = [part.cache for part in self.parts] if reading is None else [reading.cache]
        return next((cache for cache in caches if cache is not None), None)

    @cached_property
    def targets(self) -> NDArray[np.int64]:
        """All labels, (len(self),) int64, read-only. Raises DataError where they aren't known without reading."""
        raise DataError(
            f"the labels of {self!r} are known only by reading every sample; where all are needed at once use an image "
            "folder or shards of which 'label' is a class number: gpupipe.Scalar() or, in shards, gpupipe.Scalar('cls')"
        )

    def usual_order(self, shuffle: bool) -> Order:
        """In which the samples come where a loader is given no `order`."""
        from gpupipe.order import Sequential, Shuffled  # late: that imports torch

        return Shuffled(len(self)) if shuffle else Sequential(len(self))

    @property
    def class_counts(self) -> dict[str | int, int]:
        """How many samples each class has: by name where the data names classes, all of these, and else by number.

        Raises DataError where labels aren't known without reading.
        """
        names = self.classes or []
        labels, counts = np.unique(self.targets, return_counts=True)
        known: dict[str | int, int] = dict.fromkeys(names, 0)
        for label, count in zip(labels.tolist(), counts.tolist(), strict=True):
            known[names[label] if 0 <= label < len(names) else label] = count
        return known

    def image_sizes(self, exif_orientation: bool = False) -> NDArray[np.int32]:
        """Height and width of each sample's (first) image, (len(self), 2) int32; 0, 0 of what can't be read.

        From the index; where that has none, as with tables, data by URL and your own dataset, each image is read once,
        and what was found is kept in the cache folder (not of a dataset without a `fingerprint`). They are read again
        where sizes or times of files, or ETags of objects, are others, or the source was opened with rebuild=True.

        exif_orientation: of images that are turned upright, as by recipes that have the same.

        Raises DataError where there are no images.
        """
        from gpupipe.sources.image_sizes import image_shapes

        shapes = image_shapes(self)
        turned = exif_orientation & (shapes[:, 2:] >= 5)
        return np.where(turned, shapes[:, 1::-1], shapes[:, :2])

    # Other sources made of this one; nothing is read for that.

    def filter(self, predicate: Callable[[Known], ArrayLike]) -> SubsetSource:
        """The samples of which `predicate` is true. It is called once, with a mapping of columns, as `column` gives
        them, by the fields' names, and returns a bool for each sample: (len(self),).

            source.filter(lambda columns: (columns["label"] < 10) & (columns["score"] > 0.5))
            source.filter(lambda columns: [key.endswith(".png") for key in columns["key"]])

        Raises ConfigError where it returns something else, DataError for a column that is not known without reading,
        and where it is true of none.
        """
        from gpupipe.sources.lookups import filtered

        return filtered(self, predicate)

    def select(self, indices: Sequence[int] | ArrayLike) -> SubsetSource:
        """The samples at `indices`, in that order; negative ones count from the end. Raises DataError for others."""
        from gpupipe.sources.subset import SubsetSource

        return SubsetSource(self, indices)

    def join(
        self, other: Source, on: str | tuple[str, str] = "key", fields: Sequence[str] | None = None
    ) -> JoinedSource:
        """Each sample with the fields of that sample of `other` which has the same key, as embeddings beside images.
        Where there is none its fields are missing, and what their `missing` says becomes of it.

        on:     by what they are matched: the field's name in both, or in this and in the other; "key": their keys. Both
                columns have to be known without reading.
        fields: those of the other that are taken; None: all but keys, indices and `on`.

        Raises DataError where two samples of the other have the same value, or none is in both, and ConfigError for
        fields that both have, or the other lacks.
        """
        from gpupipe.sources.joined import JoinedSource

        return JoinedSource(self, other, on, fields)

    def sample(self, key: str) -> Any:
        """The sample with that key, as `source[index]` gives it: for a look at one, as all keys are compared in turn.

        Raises KeyError where there is none.
        """
        keys = self.column("key")
        for index, other in enumerate(keys):
            if other == key:
                return self[index]
        raise KeyError(f"{type(self).__name__}: no sample has the key {key!r}; keys are such as {keys[0]!r}")

    def __getitem__(self, index: SupportsIndex) -> Any:
        """One sample; a negative index counts from the end.

        Raises IndexError beyond the ends, so that a loop over a source ends, TypeError for a slice, SampleError where
        it can't be had.
        """
        try:
            number = operator.index(index)
        except TypeError:
            raise TypeError(
                f"{type(self).__name__}: the index {index!r} must be an int; torch's Subset picks several samples"
            ) from None
        size = len(self)
        if not -size <= number < size:
            raise IndexError(f"{type(self).__name__}: there is no sample {number}, there are {size}")
        columns = self.fetch(np.array([number % size]))
        values = {name: _first(field, columns[name]) for name, field in self.fields.items()}
        return tuple(values.values()) if self.fields.is_pair else values


def as_column(field: Field, values: list[Any]) -> Any:
    """The values of a field that is neither image nor mask; numbers as int64 (N,) where all of them are integers."""
    if isinstance(field, Array) and all(type(value) is int for value in values):
        return np.array(values, np.int64)
    return values


def _first(field: Field, column: Any) -> Any:
    value = column.data[0] if isinstance(column, Images) else column[0]
    if value is MISSING and field.missing == "default":
        return field.absent
    return value.item() if isinstance(value, np.generic) else value


def content_fingerprint(names: Sequence[str], arrays: Iterable[NDArray[Any]]) -> str:
    """A hash over strings and arrays, 32 hexadecimal digits; each part counts with its length."""
    digest = hashlib.sha256()
    for part in [name.encode("utf-8", "surrogateescape") for name in names]:
        digest.update(len(part).to_bytes(8, "little") + part)
    for array in arrays:
        digest.update(array.nbytes.to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.hexdigest()[:32]
