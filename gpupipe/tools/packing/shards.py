"""Samples as members of a .tar shard, as WebDataset has them."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable, Iterator
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from gpupipe.tools.packing.images import extension
from gpupipe.tools.packing.layout import Layout, Stored
from gpupipe.tools.packing.samples import Sample

__all__ = ["write_shard"]


def write_shard(file: IO[bytes], layout: Layout, samples: Iterable[Sample]) -> None:
    """Write a shard; equal samples give equal bytes: time, user and mode of all members are tarfile's usual ones."""
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for sample in samples:
            for name, data in _members(layout, sample.values):
                member = tarfile.TarInfo(f"{sample.name}.{name}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


def _members(layout: Layout, values: dict[str, Stored]) -> Iterator[tuple[str, bytes]]:
    """Extension and bytes of each member, the class number first."""
    document: dict[str, Any] = {}
    members = []
    for name, value in values.items():
        part = layout.parts[name]
        if part.place == "cls":
            yield "cls", str(int(value)).encode()
        elif part.place == "json":
            document[name] = value.tolist() if isinstance(value, np.ndarray) else value
        elif isinstance(value, np.ndarray):
            members.append((part.place, _npy(value)))
        elif part.form == "file":
            assert isinstance(value, bytes)
            members.append((".".join(filter(None, (part.place, extension(value)))), value))
        else:
            members.append((part.place, value.encode() if isinstance(value, str) else value))
    yield from members
    if document:
        yield "json", json.dumps(document).encode()


def _npy(array: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    npy.write_array(buffer, np.asarray(array, order="C"), allow_pickle=False)
    return buffer.getvalue()
