"""What a sample and a batch are: fields of a schema, columns, the job that asks for them. It knows nothing else."""

from __future__ import annotations

from gpupipe.batch.batch import Batch
from gpupipe.batch.columns import Columns, Images, Ragged
from gpupipe.batch.fields import (
    MISSING,
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
from gpupipe.batch.job import Job
from gpupipe.batch.schema import Schema

__all__ = [
    "MISSING",
    "Array",
    "Batch",
    "Boxes",
    "Bytes",
    "Columns",
    "Field",
    "Image",
    "Images",
    "Index",
    "Job",
    "Key",
    "Mask",
    "Pad",
    "Points",
    "Ragged",
    "Scalar",
    "Schema",
    "Text",
]
