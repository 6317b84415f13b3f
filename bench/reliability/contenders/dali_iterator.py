"""DALI's own readers and iterators, its CPU backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from reliability import forms
from reliability.case import NoFunction
from reliability.contenders.base import Stored
from reliability.contenders.stores import OfStores

__all__ = ["DaliIterator"]


class DaliIterator(OfStores):
    """fn.readers.file or fn.readers.webdataset; DALIClassificationIterator, or the generic one for labels in texts."""

    name = "dali"
    library = "nvidia.dali"
    kinds = ("folder", "tar")
    caches = False

    @classmethod
    def write(cls, folder: Path, samples: Mapping[int, bytes], kind: str = "", beside: Any = None) -> None:
        forms.write(cls.kind_of(kind), folder, samples, beside)

    @classmethod
    def read(cls, stored: Stored) -> Iterator[tuple[int, float]]:
        if stored.local is None:
            raise NoFunction(f"{cls.name} reads no storage")
        return super().read(stored)

    @classmethod
    def written(cls, folder: Path, samples: Mapping[int, bytes], beside: Any) -> Iterator[Any]:
        raise AssertionError("others write for it")

    @classmethod
    def batches(cls, stored: Stored) -> Iterator[Any]:
        from nvidia.dali.plugin.base_iterator import LastBatchPolicy
        from nvidia.dali.plugin.pytorch import DALIClassificationIterator, DALIGenericIterator

        tar = cls.kind_of(stored.kind) == "tar"
        pipeline = _pipeline(stored, tar, batch_size=stored.batch, num_threads=max(1, stored.workers), device_id=None)
        kind, names = (DALIGenericIterator, (["data", "label"],)) if tar else (DALIClassificationIterator, ())
        for (batch,) in kind(pipeline, *names, reader_name="reader", last_batch_policy=LastBatchPolicy.PARTIAL):
            yield _numbers(batch["label"]), batch["data"].permute(0, 3, 1, 2)


def _numbers(labels: torch.Tensor) -> torch.Tensor:
    """Of a shard as texts."""
    if labels.dtype != torch.uint8:
        return labels.flatten()
    return torch.tensor([int(bytes(row.tolist())) for row in labels])


def _pipeline(stored: Stored, tar: bool, **options: Any) -> Any:
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(**options, **stored.options)
    def made() -> Any:
        if tar:
            paths = sorted(map(str, Path(str(stored.local)).glob("*.tar")))
            files, labels = fn.readers.webdataset(paths=paths, ext=["jpg", "cls"], random_shuffle=True, name="reader")
            labels = fn.pad(labels, fill_value=ord(" "))
        else:
            files, labels = fn.readers.file(file_root=str(stored.local), random_shuffle=True, name="reader")
        images = fn.decoders.image(files, device="cpu", output_type=types.RGB)
        images = fn.resize(images, resize_shorter=stored.size, interp_type=types.INTERP_LINEAR, antialias=True)
        return fn.crop(images, crop=(stored.size, stored.size)), labels

    return made()
