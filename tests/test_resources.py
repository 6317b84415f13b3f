"""What a process lacks (files, shared memory, memory) is named, with what to do about it."""

from __future__ import annotations

import errno
import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from engines import forked
from images import write_folder
from tars import write_samples

import gpupipe
from gpupipe.decode import rendering
from gpupipe.errors import ConfigError, DataError, GpupipeError, SampleError


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("folder") / "data")


def open_loader(data: Any, **options: Any) -> gpupipe.Loader:
    settings = {"engine": "torch", "num_workers": 1, "device": "cpu"} | options
    return gpupipe.Loader(data, gpupipe.imagenet_eval(8), 4, **settings)


def test_files_that_can_not_be_opened_are_no_bad_samples(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Any, flags: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with open_loader(root, num_workers=0, on_error="skip") as loader:
        monkeypatch.setattr("gpupipe.host.files.os.open", refuse)
        with pytest.raises(GpupipeError, match=r"img_.*jpg can't be opened: Too many open files; raise `ulimit -n`"):
            next(iter(loader))
        monkeypatch.undo()


@pytest.fixture
def few_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = set(map(int, os.listdir("/proc/self/fd")))
    free = [number for number in range(len(opened) + 20) if number not in opened]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[19] + 1, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_more_loaders_than_files_may_be_open(root: Path, few_files: None) -> None:
    loaders: list[gpupipe.Loader] = []

    def first_batches_of_many() -> None:
        iterators = []
        for _ in range(6):
            loaders.append(open_loader(root))
            iterators.append(iter(loaders[-1]))
            next(iterators[-1])

    try:
        with pytest.raises(ConfigError, match=r"Too many open files\): this process may have \d+ files .*`ulimit -n`"):
            first_batches_of_many()
    finally:
        for loader in loaders:
            loader.close()


def test_shared_memory_that_was_filled_since_the_loader_was_built(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_loader(root) as loader:
        full = mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
        with monkeypatch.context() as patched:
            patched.setattr("multiprocessing.synchronize.SemLock.__init__", full)
            with pytest.raises(ConfigError, match=r"num_workers=1 can't be started .* /dev/shm.*MiB free: delete what"):
                next(iter(loader))
        assert len(list(loader)) == 3


def test_an_index_that_is_gone_is_what_workers_did_not_find(tmp_path: Path) -> None:
    shard = write_samples(tmp_path / "a.tar", count=8)
    with open_loader(shard, multiprocessing_context="forkserver") as loader:
        engine: Any = loader._engine
        assert engine._unreadable() == ""
        Path(loader.source.index_path).unlink()  # type: ignore[attr-defined]
        assert re.match(r"index .* can't be opened any more .*: it was removed, or", engine._unreadable())


def out_of_memory(*_: Any, **__: Any) -> Any:
    raise MemoryError


@pytest.mark.parametrize("workers", [0, 1])
class TestMemory:
    def test_for_a_sample(self, tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
        shard = write_samples(tmp_path / "a.tar", count=8)
        monkeypatch.setattr(rendering.native, "library", lambda: None)  # Pillow makes all of it
        monkeypatch.setattr("gpupipe.decode.pixels.as_rgb", out_of_memory)
        said = r"sample 0 .*no memory for its 60 x 40 pixels; raise the limit"
        with open_loader(shard, **forked(workers)) as loader, pytest.raises(SampleError, match=said):
            next(iter(loader))

    def test_for_a_batch(self, tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
        shard = write_samples(tmp_path / "a.tar", count=8)
        monkeypatch.setattr(rendering, "crops_of", out_of_memory)
        said = r"step 0 of epoch 0, 4 samples \(0, 1, 2, 3\): memory ran out; raise the limit .* num_workers"
        with open_loader(shard, **forked(workers)) as loader, pytest.raises(GpupipeError, match=said):
            next(iter(loader))


SAID = """Critical error in pipeline:
Error in CPU operator `nvidia.dali.fn.decoders.image_slice`,
which was used in the pipeline definition with the following traceback:

  File "graph.py", line 87, in _graph
    outputs += _field()

encountered:

std::bad_alloc
Current pipeline object is no longer valid."""


def test_what_dali_lacks_is_told_with_its_batch(root: Path) -> None:
    with open_loader(root, engine="dali") as loader:
        expected = [labels.tolist() for _, labels in loader]
        loader.set_epoch(0)
        engine: Any = loader._engine
        batches = iter(loader)
        next(batches)
        pipeline = engine._pipeline
        engine._pipeline = mock.Mock(outputs=mock.Mock(side_effect=RuntimeError(SAID)))
        said = r"step 1 of epoch 0, 4 samples \(.*\): DALI failed: std::bad_alloc; memory ran out: raise the limit"
        with pytest.raises(GpupipeError, match=said):
            next(batches)
        assert engine._pipeline is not pipeline
        assert [labels.tolist() for _, labels in batches] == expected[2:]


def test_a_shard_that_is_a_link_to_itself(tmp_path: Path) -> None:
    write_samples(tmp_path / "0.tar")
    (tmp_path / "1.tar").symlink_to("1.tar")
    with pytest.raises(DataError, match=r"1\.tar: it is a link to what is not there"):
        gpupipe.open_source(tmp_path)
