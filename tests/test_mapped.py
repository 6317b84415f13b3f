"""Arrays of users that lie in mapped files: copied as they are, and no bus error where such a file is cut."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from engines import forked
from images import write_folder
from tars import jpeg, write_samples

import gpupipe
from gpupipe.errors import SampleError, WorkerError
from gpupipe.host import mapped
from gpupipe.host.mapped import unmapped

PIXELS = np.random.default_rng(0).integers(0, 256, (40, 32, 48, 3), dtype=np.uint8)


class Rows:
    """A user's dataset of the rows of an array, as it lies there."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.array[index], index


class Copied(Rows):
    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.array[index].copy(), index


def stored(path: Path, array: Any) -> Any:
    np.save(path, array)
    return np.load(path, mmap_mode="r")


def open_loader(data: Any, engine: str, workers: int) -> gpupipe.Loader:
    """Its workers have the file mapped, too: others than forks would be sent copies of what is in it."""
    return gpupipe.Loader(data, gpupipe.imagenet_eval(8), 4, engine=engine, **forked(workers), device="cpu")


def encoded() -> Any:
    files = [np.frombuffer(jpeg(seed), np.uint8) for seed in range(40)]
    rows = np.zeros((40, max(map(len, files))), np.uint8)
    for row, data in zip(rows, files, strict=True):
        row[: len(data)] = data
    return rows


@pytest.mark.parametrize(("engine", "workers"), [("torch", 0), ("torch", 1), ("dali", 1)])
@pytest.mark.parametrize("array", [pytest.param(PIXELS, id="pixels"), pytest.param(encoded(), id="encoded")])
def test_a_file_that_is_cut_is_an_error_of_its_samples(tmp_path: Path, engine: str, workers: int, array: Any) -> None:
    with open_loader(Rows(stored(tmp_path / "a.npy", array)), engine, workers) as loader:
        batches = iter(loader)
        assert next(batches)[1].tolist() == [0, 1, 2, 3]
        os.truncate(tmp_path / "a.npy", 4096)
        with pytest.raises(SampleError, match="'image': it lies in a file that is mapped into memory, and was cut"):
            list(batches)


def test_what_a_worker_reads_itself_of_one_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with open_loader(Copied(stored(tmp_path / "a.npy", PIXELS)), "torch", 1) as loader:
        os.truncate(tmp_path / "a.npy", 4096)
        with pytest.raises(WorkerError, match=r"SIGBUS at sample 0 .*a file that the dataset maps was shortened"):
            next(iter(loader))
    assert "shared memory" not in capfd.readouterr().err


@pytest.mark.parametrize(
    "part", [np.s_[3], np.s_[3, 4:9, 5:40], np.s_[:, 3, ::-2], np.s_[2:5, ..., 1], np.s_[5:5, 3:4], np.s_[1, 2, 3]]
)
def test_any_part_is_copied_as_it_is(tmp_path: Path, part: Any) -> None:
    there = stored(tmp_path / "a.npy", PIXELS)[part]
    copy = unmapped(there)
    assert type(copy) is np.ndarray
    assert copy.dtype == PIXELS.dtype
    assert np.array_equal(copy, PIXELS[part])
    assert not np.shares_memory(copy, there)


def test_other_arrays_are_not_copied() -> None:
    part = PIXELS[3, 4:9]
    assert unmapped(part) is part


def test_the_rest_of_the_last_page_is_not_taken_for_zeros(tmp_path: Path) -> None:
    there = stored(tmp_path / "a.npy", PIXELS)
    os.truncate(tmp_path / "a.npy", 2000)
    with pytest.raises(ValueError, match="was cut"):
        unmapped(there[0, 10])


def test_memory_without_a_file_is_not_copied() -> None:
    """Which processes share that were forked: nobody can cut it."""
    memory = mmap.mmap(-1, 4096)
    for there in (np.frombuffer(memory, np.uint8), np.ndarray((64, 64), np.uint8, buffer=memory)):
        assert unmapped(there) is there


def test_a_buffer_of_a_mapped_file_is_copied(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(range(200)) * 50)
    with (tmp_path / "a").open("rb") as file:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    there = np.frombuffer(memoryview(memory)[16:], np.uint8, 5000)
    assert unmapped(there).tobytes() == (bytes(range(200)) * 50)[16:5016]
    os.truncate(tmp_path / "a", 0)
    with pytest.raises(ValueError, match="was cut"):
        unmapped(there)


def test_where_the_call_is_not_to_be_had_numpy_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = stored(tmp_path / "a.npy", PIXELS)
    ctypes.set_errno(errno.EPERM)
    for call in (None, lambda *_: -1):
        monkeypatch.setattr(mapped, "_system_call", lambda call=call: call)
        assert np.array_equal(unmapped(there[7]), PIXELS[7])


def folder(path: Path) -> Any:
    return write_folder(path / "folder")


def shard(path: Path) -> Any:
    return write_samples(path / "a.tar", count=12)


def archive(path: Path) -> Any:
    with zipfile.ZipFile(path / "a.zip", "w") as found:
        for number in range(12):
            found.writestr(f"class_{number % 3}/{number}.jpg", jpeg(number))
    return path / "a.zip"


def arrays(path: Path) -> Any:
    np.save(path / "image.npy", PIXELS)
    np.save(path / "label.npy", np.arange(40))
    return gpupipe.open_source({"image": path / "image.npy", "label": path / "label.npy"})


def table(path: Path) -> Any:
    rows = {"image": [jpeg(number) for number in range(12)], "label": list(range(12))}
    pq.write_table(pa.table(rows), path / "a.parquet")
    return path / "a.parquet"


@pytest.mark.parametrize("engine", ["torch", "dali"])
@pytest.mark.parametrize("make", [folder, shard, archive, arrays, table])
def test_no_file_of_the_data_and_no_index_is_mapped(tmp_path: Path, make: Any, engine: str) -> None:
    """Else what a process touches of them would add to its memory, epoch after epoch."""
    with open_loader(make(tmp_path), engine, int(engine == "dali")) as loader:
        assert len(list(loader)) >= 3
        assert str(tmp_path) not in Path("/proc/self/maps").read_text()
