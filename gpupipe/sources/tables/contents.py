"""What fingerprints of tables are made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gpupipe.sources.tables.columns import as_numpy, is_binary, is_text

__all__ = ["contents"]


def contents(array: pa.Array) -> Iterator[NDArray[Any]]:
    """What a fingerprint is made of: not Arrow's own buffers, which may differ for the same values."""
    kind, types = array.type, pa.types
    yield np.packbits(as_numpy(array.is_null())) if array.null_count else np.empty(0, np.uint8)
    if types.is_null(kind):
        return
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        yield as_numpy(pc.list_value_length(array.drop_null())).astype(np.int64)
        yield from contents(pc.list_flatten(array))
    elif types.is_struct(kind):
        for number in range(kind.num_fields):
            yield from contents(pc.struct_field(array, number))
    elif types.is_dictionary(kind):
        yield from contents(array.dictionary_decode())
    elif is_text(kind) or is_binary(kind):
        plain = array.cast(pa.large_binary()).drop_null()
        yield as_numpy(pc.binary_length(plain))
        _, offsets, data = plain.buffers()
        first, last = np.frombuffer(offsets, np.int64)[[plain.offset, plain.offset + len(plain)]].tolist()
        yield np.frombuffer(data or b"", np.uint8)[first:last]
    elif types.is_decimal(kind):
        yield from contents(array.cast(pa.string()))
    else:
        yield as_numpy(array.drop_null())
