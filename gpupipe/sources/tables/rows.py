"""What all sources over the rows of a table share: fields out of cells, files at the paths in them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gpupipe.batch import MISSING, Columns, Coming, Field, Index, Key, Scalar, Schema
from gpupipe.errors import DataError, SampleError
from gpupipe.host.whereabouts import note
from gpupipe.sources.reading import read_file
from gpupipe.sources.remote.loose import UNKNOWN, Known, Loose, url_of
from gpupipe.sources.remote.objects import Extent, MissingError, Object, ReadError, is_remote, shown
from gpupipe.sources.remote.reader import LOOKS_AHEAD, Reading
from gpupipe.sources.remote.source import SKIP, RemoteSource
from gpupipe.sources.source import Encoded, as_column, content_fingerprint
from gpupipe.sources.states import states_of
from gpupipe.sources.tables.columns import BadCellError, Path, cells, numbered, paths_of, values, whole_decimals
from gpupipe.texts import printable

__all__ = ["Files", "RowSource", "root_of", "told"]

Files = Mapping[Extent, Encoded]
"""What was read from a storage for some samples."""

NO_FILES: Files = {}


def told(path: str) -> str:
    """A path, or a URL without secrets, that any terminal can print."""
    return shown(path) if is_remote(path) else printable(path)


def root_of(root: str | os.PathLike[str] | None, usual: str | os.PathLike[str], where: str) -> str:
    """The folder of relative paths, or its URL. where: what has them, for messages. Raises DataError."""
    place = os.fspath(usual if root is None else root)
    if is_remote(place):
        return place
    place = os.path.abspath(os.path.expanduser(place))
    if not os.path.isdir(place):
        raise DataError(f"no folder at {place}, which the paths in {where} are below: check root")
    return place


def _leaves(path: str) -> bool:
    """Whether a relative path leads out of the folder that it begins in, by its words alone: links are not followed."""
    return os.path.normpath(path).split(os.sep)[0] == os.pardir


class RowSource(RemoteSource):
    """Samples that are rows: `_rows` gives those of a table, or of a part of it that has the columns that are needed.
    Files that they name may lie in a storage.

    root: the folder of relative paths. paths: the column of each field, as `located` found it. names: of fields whose
    cells are names of classes, the names in the order of their numbers; those of `label` are `classes`.
    """

    is_confined: ClassVar[bool] = True
    """Whether relative paths have to stay below the root."""

    def __init__(self, root: str, fields: Schema, paths: Mapping[str, Path], names: Mapping[str, list[str]]) -> None:
        self.root = root
        self.fields = fields
        self._paths = dict(paths)
        self.names = dict(names)
        self._names = {name: pa.array(some, pa.large_string()) for name, some in names.items()}
        self._loose: dict[str, Loose] = {}
        self.reading = Reading()
        if "label" in names:
            self.classes = list(names["label"])
            self.class_to_idx = {name: number for number, name in enumerate(self.classes)}

    def _rows(self, indices: NDArray[np.int64]) -> pa.Table | pa.RecordBatch:
        """Those rows, in that order. Raises IndexError beyond the end, SampleError for one that can't be had."""
        raise NotImplementedError

    def _whole(self, name: str) -> pa.Array | None:
        """The cells of a field in all rows, where they are at hand without reading any."""
        return None

    def look(self, columns: Mapping[str, pa.Array | None], known: Mapping[str, Known | None] | None = None) -> None:
        """Note which objects the cells of fields name, by their columns. known: as was noted before. Raises
        DataError."""
        for name, column in columns.items():
            paths = None if column is None else paths_of(column)
            if paths is None:
                continue
            if known is not None:
                self._loose |= {name: Loose(paths, self.root, known[name])} if name in known else {}
            elif is_remote(self.root) or pc.any(pc.match_substring(paths, "://")).as_py():
                self._loose[name] = Loose.of(paths, self.root)

    def _paths_in(self, name: str) -> pa.Array | pa.ChunkedArray | None:
        """The paths that a field of files has in all rows, null for one that has its bytes; None: there are none."""
        return None

    def state_of_images(self, name: str) -> str:
        """Of sizes and times of the files that the cells name, and of sizes and ETags of objects, where these are
        known."""
        paths = self._paths_in(name) if name in self._paths else None
        if paths is None:
            return super().state_of_images(name)
        known = self._loose[name].known if name in self._loose else None
        local = [path for path in pc.unique(paths).to_pylist() if path is not None and not self._leads_away(path)]
        return content_fingerprint(
            [self.pinned, "" if known is None else known.fingerprint],
            [states_of([os.path.join(self.root, path) for path in local])],
        )

    def _leads_away(self, path: str) -> bool:
        """Whether it is that of an object."""
        return is_remote(self.root) or is_remote(path)

    @property
    def known(self) -> dict[str, Known | None]:
        """What was noted, for a copy of this source."""
        return {name: loose.known for name, loose in self._loose.items()}

    @property
    def reads_storage(self) -> bool:
        """Whether something is read from a storage."""
        return bool(self._loose)

    @property
    def looks_ahead(self) -> int:
        return LOOKS_AHEAD if self.reads_storage else 0

    def ahead(self, coming: Coming) -> None:
        if self.reads_storage:
            super().ahead(coming)

    def extents(self, index: int) -> list[Extent]:
        """The objects that its cells name."""
        try:
            found = [loose.extent(index) for loose in self._loose.values()]
        except ReadError as error:
            raise self.unread(index, error) from error
        return [one for one in found if one is not None]

    def unread(self, index: int, error: ReadError) -> SampleError:
        remedy = "mend the table, " * isinstance(error, MissingError) + SKIP
        return SampleError(index, self.location(index), str(error), remedy)

    def stored_bytes(self, indices: NDArray[np.int64]) -> NDArray[np.int64] | None:
        if not self._loose or any(loose.has_unknown for loose in self._loose.values()):
            return None
        found = np.zeros(len(indices), np.int64)
        for loose in self._loose.values():
            found += loose.sizes[indices].clip(0)
        return found

    def column(self, name: str) -> NDArray[Any] | list[Any]:
        """All samples' values of a field of numbers or texts. Raises DataError where they aren't known."""
        whole = self._whole(name) if name in self._paths else None
        if whole is None:
            return super().column(name)
        found: NDArray[Any] | list[Any] = self._values(name, self.fields[name], whole, np.arange(len(self)))
        return found

    @cached_property
    def targets(self) -> NDArray[np.int64]:
        """All labels, (len(self),) int64, read-only. Raises DataError where they are no class numbers."""
        labels = self.column("label") if "label" in self._paths and self._whole("label") is not None else None
        if isinstance(labels, list) and (field := self.fields["label"]).missing == "default":
            labels = as_column(field, [field.absent if label is MISSING else label for label in labels])
        if not isinstance(labels, np.ndarray) or labels.ndim != 1 or labels.dtype.kind not in "iub":
            raise DataError(
                f"the labels of {self!r} are not known: there is no field 'label' of a column that has one class "
                "number, or name, in each row"
            )
        found = labels.astype(np.int64)
        found.setflags(write=False)
        return found

    @cached_property
    def _label_is_whole(self) -> bool:
        """Whether labels are class numbers that are stored as floats, as pandas has them beside a null, as decimals, or
        as bools."""
        field, column = self.fields["label"], self._whole("label")
        if column is None or not isinstance(field, Scalar) or field.dtype is not None:
            return False
        if pa.types.is_float32(column.type) or pa.types.is_float64(column.type):
            fits = pc.less(pc.abs(column), 2.0**53)
            return bool(pc.all(pc.and_(fits, pc.equal(pc.floor(column), column))).as_py())
        if pa.types.is_decimal(column.type):
            return whole_decimals(column) is not None
        return bool(pa.types.is_boolean(column.type))

    def fetch(self, indices: NDArray[np.int64]) -> Columns:
        """All fields: images and masks as encoded."""
        rows = self._rows(indices)
        files = self._fetched(indices.tolist()) if self.reads_storage else {}
        return {name: self._made(name, field, rows, indices, files) for name, field in self.fields.items()}

    def _fetched(self, indices: list[int]) -> Files:
        """All that is read from a storage for these samples. Raises SampleError."""
        extents = chain(*map(self.extents, indices))
        return dict(zip(extents, chain(*self.taken(indices)), strict=True))

    def lacks(self, index: int, name: str) -> str:
        """Which cell is null."""
        return f"the column {'.'.join(self._paths[name])!r} is null there" if name in self._paths else ""

    def _made(
        self, name: str, field: Field, rows: pa.Table | pa.RecordBatch, indices: NDArray[np.int64], files: Files
    ) -> Any:
        if isinstance(field, Index):
            return indices.astype(np.int64)
        if isinstance(field, Key):
            return list(map(self.key, indices.tolist()))
        return self._values(name, field, cells(rows, self._paths[name]), indices, files)

    def _values(
        self, name: str, field: Field, column: pa.Array, indices: NDArray[np.int64], files: Files = NO_FILES
    ) -> Any:
        if name in self._names:
            column = numbered(column, self._names[name])
        elif name == "label" and self._label_is_whole:
            column = whole_decimals(column) if pa.types.is_decimal(column.type) else column.cast(pa.int64())
        try:
            return values(field, column, lambda row, path: self._read(name, int(indices[row]), path, files))
        except BadCellError as error:
            index = int(indices[error.row])
            reason = f"its field {name!r} (column {'.'.join(self._paths[name])!r}): {error}"
            raise SampleError(index, self.location(index), reason) from error

    def _read(self, name: str, index: int, path: str, files: Files) -> Encoded:
        """The file of a sample at the path in a cell. Raises SampleError where it can't be read."""
        found = self._loose[name].extent(index) if name in self._loose else None
        if found is not None:
            return files[found]
        note(index)
        if self.is_confined and not self._leads_away(path) and _leaves(path):
            what = f"{printable(path)!r} is no path below {told(self.root)}: its '..' lead out of there"
            remedy = "pass a root above all files, mend the table, or pass on_error='skip'"
            raise SampleError(index, self.location(index), what, remedy)
        place = os.path.join(self.root, path)
        try:
            return read_file(place)
        except (OSError, ValueError) as error:  # ValueError: of a path with a null byte
            what = f"{printable(place)} can't be read: {getattr(error, 'strerror', None) or error}"
            if self._leads_away(path):  # in a column where that was not seen
                return self._alone(index, path)
            remedy = f"relative paths are below {told(self.root)}: pass another root, mend the table"
            raise SampleError(index, self.location(index), what, f"{remedy}, or pass on_error='skip'") from error

    def _alone(self, index: int, path: str) -> Encoded:
        try:
            url = url_of(path, self.root) or path
        except DataError as error:
            raise self.unread(index, ReadError(str(error))) from error
        return self._next(index, self.reading.take([Extent(Object(url, UNKNOWN, ""), 0, UNKNOWN)]))
