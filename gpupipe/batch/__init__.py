"""What a sample and a batch are: fields of a schema, columns, the job that asks for them. It knows nothing else."""

from __future__ import annotations

# ruff: noqa: F403, F405  (as a list of words, which type checkers understand)
from gpupipe.batch.batch import Batch as Batch, Job as Job, StorageUse as StorageUse
from gpupipe.batch.columns import Clip as Clip, Columns as Columns, Images, Ragged, Video as Video
from gpupipe.batch.coming import Coming as Coming
from gpupipe.batch.fields import *
from gpupipe.batch.fields import MISSING as MISSING
from gpupipe.batch.schema import Schema

__all__ = ["Array", "Boxes", "Bytes", "Field", "Frames", "Image", "Images", "Index", "Key", "Mask", "Pad", "Points"]
__all__ += ["Ragged", "Scalar", "Schema", "Text"]
