"""What every source offers, and the facts about a batch of samples that are known without decoding."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, SupportsIndex

import numpy as np
from numpy.typing import NDArray

__all__ = ["Encoded", "SampleMeta", "Source", "content_fingerprint"]

Encoded = NDArray[np.uint8]
"""The bytes of one image file: a 1-D uint8 array."""


@dataclass(frozen=True)
class SampleMeta:
    """Labels and sizes of N samples.

    `labels` (N,) int64. `heights` and `widths` (N,) int32, as stored in the file and before any rotation; both are 0
    where the image is known to be damaged. `orientations` (N,) uint8: the EXIF orientation 1 to 8, 1 where absent.
    `sizes` (N,) int64: bytes of the encoded image.
    """

    labels: NDArray[np.int64]
    heights: NDArray[np.int32]
    widths: NDArray[np.int32]
    orientations: NDArray[np.uint8]
    sizes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: NDArray[np.int64]) -> SampleMeta:
        """Copies of the facts at `indices`, in that order."""
        return SampleMeta(
            self.labels[indices],
            self.heights[indices],
            self.widths[indices],
            self.orientations[indices],
            self.sizes[indices],
        )


class Source(Protocol):
    """Random access to encoded images and what is known of them.

    It is a map-style dataset of torch's, too: `source[index]` is (encoded bytes, label): a 1-D uint8 array and an int.

    `classes` and `class_to_idx` are None where the data names no classes. `fingerprint` identifies the content (names,
    byte sizes, labels): it depends neither on where the data is mounted nor on modification times.
    """

    classes: list[str] | None
    class_to_idx: dict[str, int] | None
    fingerprint: str

    def __len__(self) -> int: ...

    @property
    def targets(self) -> NDArray[np.int64]:
        """All labels, (len(self),) int64, read-only. Raises DataError where they aren't known without reading."""
        ...

    def meta(self, indices: NDArray[np.int64]) -> SampleMeta:
        """Labels and sizes of the samples at `indices`, in that order."""
        ...

    def read(self, index: int) -> Encoded:
        """The encoded bytes of one sample. Raises SampleError where they can't be had."""
        ...

    def location(self, index: int) -> str:
        """Where the sample lies, for messages: a path, or key, shard and offset."""
        ...

    def key(self, index: int) -> str:
        """The name of the sample: its path below the root, or its key in the shard."""
        ...

    def paths(self, indices: NDArray[np.int64]) -> list[str] | None:
        """Absolute file paths where every sample is a whole file, else None."""
        ...

    def fetch(self, indices: NDArray[np.int64]) -> tuple[list[Encoded], SampleMeta]:
        """Bytes and facts of the samples at `indices` at once. Raises SampleError for the first that can't be read."""
        return [self.read(int(index)) for index in indices], self.meta(indices)

    def __getitem__(self, index: SupportsIndex) -> tuple[Encoded, int]:
        """Bytes and label of one sample; a negative index counts from the end.

        Raises IndexError beyond the ends, so that a loop over a source ends, TypeError for a slice, SampleError where
        the bytes can't be had.
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
        data, meta = self.fetch(np.array([number % size]))
        return data[0], int(meta.labels[0])


def content_fingerprint(names: Sequence[str], arrays: Iterable[NDArray[Any]]) -> str:
    """A hash over strings and arrays, 32 hexadecimal digits; each part counts with its length."""
    digest = hashlib.sha256()
    for part in [name.encode("utf-8", "surrogateescape") for name in names]:
        digest.update(len(part).to_bytes(8, "little") + part)
    for array in arrays:
        digest.update(array.nbytes.to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.hexdigest()[:32]
