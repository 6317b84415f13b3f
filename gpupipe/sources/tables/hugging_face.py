"""Datasets of Hugging Face: images as they lie in the Arrow table, not decoded by them.

They map its files into memory, where what is written to these is seen at once: so rows are copied out of the table, and
the files have to be the same before and after that.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gpupipe.batch import Array, Bytes, Columns, Field, Image, Mask, Schema
from gpupipe.errors import DataError, SampleError
from gpupipe.host.whereabouts import note
from gpupipe.sources.dataset import DatasetSource
from gpupipe.sources.reading import OpenFiles, Stamp
from gpupipe.sources.source import Source, content_fingerprint
from gpupipe.sources.tables.columns import Path, as_indices, cells, large, located, paths_of, type_at
from gpupipe.sources.tables.contents import contents
from gpupipe.sources.tables.numbering import numberings, tell_of_numberings
from gpupipe.sources.tables.rows import Files, RowSource
from gpupipe.sources.tables.upright import MODES, turn
from gpupipe.texts import printable

__all__ = ["HuggingFaceSource", "open_hugging_face"]


class HuggingFaceSource(RowSource):
    """The rows of a `datasets.Dataset` without a format. Made by `open_hugging_face`.

    The mapping of its indices is looked up once. Images are upright, as the dataset has them: those few that have to be
    turned are decoded here, unless its feature is `Image(decode=False)`.
    """

    is_confined = False  # to the current folder: the dataset itself opens whatever a path leads to

    def __init__(self, dataset: Any, fields: Schema) -> None:
        self._mapped, self._ends = _files(dataset.data)
        self._files = OpenFiles()
        self._stamps: dict[str, Stamp] = {path: self._files.stamp(path) for path in chain(*self._mapped)}
        table = _stored(dataset.data.table)
        paths = located(fields, table.schema, "the dataset")
        self.dataset = dataset
        self._table = table.select(sorted({path[0] for path in paths.values()}))
        self._batches = self._table.to_batches()
        self._starts: list[int] = np.cumsum([0] + [batch.num_rows for batch in self._batches]).tolist()
        mapped = dataset._indices
        self._numbers: NDArray[np.int64] = (
            np.arange(len(dataset)) if mapped is None else mapped.column(0).to_numpy().astype(np.int64)
        )
        self._blobs = {name for name in paths if isinstance(fields[name], Image | Mask | Bytes)}
        self._turned = {name for name in fields.images if getattr(_feature(dataset, paths[name]), "decode", False)}
        columns = (
            (name, self._cells(path))
            for name, path in paths.items()
            if name not in self._blobs and isinstance(fields[name], Array)
        )
        names = numberings(columns, "the dataset")
        super().__init__(os.getcwd(), fields, paths, names)
        known = getattr(_feature(dataset, paths["label"]), "names", None) if "label" in paths else None
        if known is not None:
            self.classes, self.class_to_idx = list(known), {name: number for number, name in enumerate(known)}
        self.fingerprint = self._fingerprint()
        self._check_files()

    def __len__(self) -> int:
        return len(self._numbers)

    def __repr__(self) -> str:
        return f"HuggingFaceSource({', '.join(self._table.column_names)}, {len(self)} samples)"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.dataset, self.fields, self._stamps)

    def _fingerprint(self) -> str:
        """Of the numbers and texts of all rows, and the sizes of their images."""
        sizes = [self._sizes(path) for name, path in sorted(self._paths.items()) if name in self._blobs]
        others = [self._cells(path) for name, path in sorted(self._paths.items()) if name not in self._blobs]
        return content_fingerprint(["Hugging Face"], [*sizes, *chain.from_iterable(map(contents, others))])

    def _cells(self, path: Path) -> pa.Array:
        """Of all rows, copied, with offsets for a column of any size."""
        parts = (cells(batch, path) for batch in self._batches)  # of a struct this part alone is taken
        chunks = [part.cast(large(part.type)) for part in parts]
        if self.dataset._indices is None:
            return pa.concat_arrays(chunks)
        return pa.chunked_array(chunks).take(as_indices(self._numbers)).combine_chunks()

    def _sizes(self, path: Path) -> NDArray[np.int64]:
        """Bytes of each row's image; where there are none, of its path."""
        kind: Any = type_at(self._table.schema.field(path[0]).type, path[1:])
        is_struct = pa.types.is_struct(kind)
        ends = [(name,) for name in ("bytes", "path") if kind.get_field_index(name) >= 0] if is_struct else [()]
        parts = [[cells(batch, (*path, *end)) for batch in self._batches] for end in ends]
        sizes = [pc.binary_length(pa.chunked_array(part).cast(pa.large_binary())) for part in parts]
        found: NDArray[np.int64] = pc.coalesce(*sizes, pa.scalar(-1)).to_numpy()
        return found[self._numbers]

    def _paths_in(self, name: str) -> pa.ChunkedArray | None:
        parts = [paths_of(cells(batch, self._paths[name])) for batch in self._batches]
        return None if any(part is None for part in parts) else pa.chunked_array(parts)

    def location(self, index: int) -> str:
        """The dataset's row."""
        return f"Dataset[{index}]"

    def _whole(self, name: str) -> pa.Array | None:
        if name in self._blobs:
            return None
        self._check_files()
        try:
            return self._cells(self._paths[name])
        finally:
            self._check_files()

    def _check_files(self) -> None:
        """Raise DataError if any was written to since it was opened."""
        for file in self._stamps:
            if changed := self._changed(file):
                raise DataError(f"{changed}; make the loader again with the files as they are now")

    def fetch(self, indices: NDArray[np.int64]) -> Columns:
        """All fields, copied out of files that are as they were: others are errors of the samples in them."""
        if len(indices) and not 0 <= indices.min() <= indices.max() < len(self):
            raise IndexError(f"samples {indices} of {self!r}")
        numbers = zip(indices.tolist(), self._numbers[indices].tolist(), strict=True)
        files = {file: index for index, number in numbers for file in self._mapped[bisect_right(self._ends, number)]}
        self._check(files)  # what was cut would end the process with a bus error
        try:
            return super().fetch(indices)
        finally:
            self._check(files)

    def _check(self, files: Mapping[str, int]) -> None:
        """Raise SampleError for a sample, that of a file that was written to since it was opened."""
        for file, index in files.items():
            if changed := self._changed(file):
                remedy = "put the file back, or make the loader again with the files as they are now"
                raise SampleError(index, self.location(index), changed, remedy)

    def _changed(self, file: str) -> str:
        """What became of a file since it was opened; empty for nothing."""
        try:
            now = self._files.stamp(file)
        except OSError as error:
            return f"its file {printable(file)} can't be read: {error.strerror}"
        return self._stamps[file].difference(now, f"file {printable(file)}", "opened")

    def _rows(self, indices: NDArray[np.int64]) -> pa.Table:
        rows = []
        for index, number in zip(indices.tolist(), self._numbers[indices].tolist(), strict=True):
            note(index)
            batch = bisect_right(self._starts, number) - 1
            rows.append(self._batches[batch].slice(number - self._starts[batch], 1))
        table = pa.Table.from_batches(rows, self._table.schema)
        columns = [pa.concat_arrays(column.chunks) if rows else column for column in table.columns]  # copied
        return pa.table(columns, table.schema)

    def _made(self, name: str, field: Field, rows: pa.Table, indices: NDArray[np.int64], files: Files) -> Any:
        made = super()._made(name, field, rows, indices, files)
        if isinstance(field, Image) and name in self._turned:
            turn(field, made)
        return made


def open_hugging_face(dataset: Any, fields: Mapping[str, Field] | None = None) -> Source:
    """The source for a `datasets.Dataset`: for its table, where it has no format or transform, which are code of the
    user's, and its images are as they are stored or in RGB; else for the items that it gives.

    Raises ConfigError for fields that it has no columns for, DataError where it is empty.
    """
    if not len(dataset):
        raise DataError("the dataset is empty: its len() is 0")
    features = [feature for feature in dataset.features.values() if type(feature).__name__ == "Image"]
    if dataset.format["type"] is not None or any(feature.mode not in MODES for feature in features):
        return DatasetSource(dataset, fields)
    source = HuggingFaceSource(dataset, Schema.of(fields))
    tell_of_numberings(source.names, repr(source))
    return source


def _reopened(dataset: Any, fields: Schema, stamps: Mapping[str, Stamp]) -> HuggingFaceSource:
    source = HuggingFaceSource(dataset, fields)
    now = source._stamps
    if now.keys() != stamps.keys() or any(stamps[file].difference(now[file], "file") for file in stamps):
        raise DataError(f"{source!r}: its files were changed while a loader used them; make the loader again")
    return source


def _files(table: Any) -> tuple[list[list[str]], list[int]]:
    """The files that are mapped for each part of a dataset's table, and where these parts end."""
    parts = getattr(table, "blocks", [[table]])
    files = [[part.path for part in row if hasattr(part, "path")] for row in parts]
    return files, np.cumsum([len(row[0]) for row in parts]).tolist()


def _stored(table: pa.Table) -> pa.Table:
    """The table, of types of Hugging Face's own, as Array2D, with the lists that they are kept as."""
    for number, field in enumerate(table.schema):
        if isinstance(field.type, pa.BaseExtensionType):
            chunks = [chunk.storage for chunk in table.column(number).chunks]
            kept = pa.chunked_array(chunks, field.type.storage_type)
            table = table.set_column(number, field.name, kept)
    return table


def _feature(dataset: Any, path: Path) -> Any:
    """The feature of a column, or of a part of it; None where there is none."""
    feature: Any = dataset.features
    for key in path:
        feature = feature.get(key) if isinstance(feature, Mapping) else None
    return feature
