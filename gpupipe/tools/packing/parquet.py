"""Samples as rows of a Parquet file, with the features by which Hugging Face's `datasets` knows images and classes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gpupipe.sources.packed import AS_STORED
from gpupipe.tools.packing.layout import Layout, Part
from gpupipe.tools.packing.samples import Sample

__all__ = ["write_parquet"]

# As Hugging Face writes images. Most readers read the group of an image that they want: 6 ms, of groups of 10 rows
# 1 ms, of 1,000 rows 76 ms (500 ImageNet images x 4, pyarrow, one core of an Intel Xeon).
ROWS = 100
MOST_BYTES = 128 << 20  # of a group: it is in memory several times, and an array of Arrow's takes 2 GiB at most
# Nothing is compressed, and images have no dictionary: so gpupipe reads one by itself, in 0.04 ms, where by Snappy it
# takes 0.09 ms and by zstd 5 ms, for the whole group (those images, row groups not kept). Snappy would make the files
# 0.5 % smaller, zstd 1.4 %.
FILE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def write_parquet(file: IO[bytes], layout: Layout, samples: Iterable[Sample], classes: list[str] | None) -> None:
    """Write a file. Image and mask columns are structs of bytes and path, which is the sample's key."""
    schema = _schema(layout, classes)
    plain = [name for name, part in layout.parts.items() if part.form == "numbers" and not part.sides]
    with pq.ParquetWriter(file, schema, compression="none", use_dictionary=False, write_statistics=plain) as writer:
        for group in _groups(samples):
            columns = [_column(name, part, group) for name, part in layout.parts.items()]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema), row_group_size=ROWS)


def _groups(samples: Iterable[Sample]) -> Iterator[list[Sample]]:
    group: list[Sample] = []
    size = 0
    for sample in samples:
        group.append(sample)
        size += sample.nbytes
        if len(group) == ROWS or size >= MOST_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _column(name: str, part: Part, group: list[Sample]) -> pa.Array:
    cells = []
    for sample in group:
        value: Any = sample.values.get(name)
        if value is not None and part.form == "file":
            value = {"bytes": value, "path": sample.key}
        elif isinstance(value, np.ndarray):
            value = value.tolist()
        cells.append(value)
    return pa.array(cells, _type(part))


def _type(part: Part) -> Any:
    if part.form == "file":
        return FILE
    if part.form != "numbers":
        return pa.string() if part.form == "text" else pa.binary()
    kind = pa.from_numpy_dtype(part.dtype)
    for _ in range(part.sides):
        kind = pa.list_(kind)
    return kind


def _schema(layout: Layout, classes: list[str] | None) -> pa.Schema:
    schema = pa.schema([(name, _type(part)) for name, part in layout.parts.items()])
    features = {name: _feature(name, part, classes) for name, part in layout.parts.items()}
    return schema.with_metadata({"huggingface": json.dumps({"info": {"features": features}}), AS_STORED: b"1"})


def _feature(name: str, part: Part, classes: list[str] | None) -> Any:
    """As `datasets` stores it; a list of one for lists, which all its versions read."""
    if part.form == "file":
        return {"_type": "Image"}
    if name == "label" and classes is not None and not part.sides and np.dtype(part.dtype).kind in "iu":
        return {"_type": "ClassLabel", "names": classes}
    dtype = {"text": "string", "bytes": "binary"}.get(part.form, part.dtype)
    feature: Any = {"_type": "Value", "dtype": dtype}
    for _ in range(part.sides):
        feature = [feature]
    return feature
