"""Photos for docs/migration/litdata.md; and its dataset of chunks beside a stand-in for litdata."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from images import encode, picture, write_folder

import gpupipe


class StreamingDataset:
    """Stored samples, each deserialized as litdata does it."""

    def __init__(self, folder: str, serializers: dict[str, Any]) -> None:
        assert folder == "optimized"
        self.serializers = serializers

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> dict[str, Any]:
        kind = ("jpeg", "image")[index % 2]
        return {"image": self.serializers[kind].deserialize(bytearray(stored(index))), "label": index % 3}


def stored(index: int) -> bytes:
    return encode(picture(40 + index, 60, seed=index))


def setup(folder: Path, names: dict[str, Any]) -> None:
    write_folder(folder / "photos", classes=3, per_class=4)


def check(folder: Path, names: dict[str, Any]) -> None:
    assert len(list((folder / "packed").glob("*.tar"))) > 1
    modules = {name: ModuleType(name) for name in ("litdata", "litdata.streaming", "litdata.streaming.serializers")}
    modules["litdata"].StreamingDataset = StreamingDataset  # type: ignore[attr-defined]
    modules["litdata.streaming.serializers"].Serializer = object  # type: ignore[attr-defined]
    chunks: dict[str, Any] = {}
    with mock.patch.dict(sys.modules, modules):
        exec((folder / "chunks.py").read_text(), chunks)  # the project's own page
    data = chunks["Chunks"]("optimized")
    assert [data[index] for index in range(6)] == [(stored(index), index % 3) for index in range(6)]
    with gpupipe.Loader(data, gpupipe.imagenet_eval(16), 3, num_workers=0, device="cpu") as loader:
        assert [labels.tolist() for _, labels in loader] == [[0, 1, 2], [0, 1, 2]]
