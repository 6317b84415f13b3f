"""What a sample and a batch are: fields of a schema, columns, the job that asks for them. It knows nothing else."""

from __future__ import annotations

from gpupipe.batch.batch import Batch as Batch, Job as Job
from gpupipe.batch.columns import Columns as Columns, Images, Ragged
from gpupipe.batch.fields import (
    MISSING as MISSING,
    Array,
    Boxes,
    Bytes,
    Field,
    Image,
    Index,
    Key,
    Mask,
    Pad,
    Points,
    Scalar,
    Text,
)
from gpupipe.batch.schema import Schema

__all__ = [
    "Array",
    "Boxes",
    "Bytes",
    "Field",
    "Image",
    "Images",
    "Index",
    "Key",
    "Mask",
    "Pad",
    "Points",
    "Ragged",
    "Scalar",
    "Schema",
    "Text",
]
