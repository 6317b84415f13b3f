"""Samples fetched on several threads are those that one fetches."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.utils.data
from images import write_folder
from tars import jpeg, write_samples

from gpupipe.batch import Job
from gpupipe.decode.fetching import Fetched, fetch
from gpupipe.host.readers import Readers
from gpupipe.sources import Source, open_source


class Items:
    """A user's dataset."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        return jpeg(index), index % 4


def folder(path: Path) -> Any:
    return write_folder(path / "data")


def shards(path: Path) -> Any:
    return [write_samples(path / f"{number}.tar", 4 * number) for number in range(3)]


def subset(path: Path) -> Any:
    return torch.utils.data.Subset(open_source(shards(path)), list(range(11, -1, -1)))


def threads_of(source: Source, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the threads that read from now on; each waits until another reads too, or a second has passed."""
    names: set[str] = set()
    read, both = type(source).fetch, threading.Barrier(2)

    def noted(self: Source, *args: Any) -> Any:
        names.add(threading.current_thread().name)
        with suppress(threading.BrokenBarrierError):
            both.wait(1)
        return read(self, *args)

    monkeypatch.setattr(type(source), "fetch", noted)
    return names


def by_threads(source: Source, one: Job, threads: int) -> Fetched:
    readers = Readers(threads)
    try:
        return fetch(source, one, readers)
    finally:
        readers.close()


def job(indices: list[int]) -> Job:
    return Job(seed=0, epoch=0, positions=np.arange(len(indices)), indices=np.array(indices, np.int64))


@pytest.mark.parametrize("make", [folder, shards, subset])
def test_files_are_read_by_several_threads(tmp_path: Path, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source, wanted = open_source(make(tmp_path)), job([5, 0, 11, 5, 3, 7])
    expected = fetch(source, wanted).columns
    names = threads_of(source, monkeypatch)
    found = by_threads(source, wanted, 2)
    assert len(names) == 2
    assert threading.main_thread().name not in names
    for one, other in zip(found.columns["image"].data, expected["image"].data, strict=True):
        assert np.array_equal(one, other)
    assert np.array_equal(found.columns["image"].sizes, expected["image"].sizes)
    assert list(found.columns["label"]) == list(expected["label"])
    assert found.failures == {}


def test_a_dataset_of_the_users_is_asked_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(Items())
    names = set()
    ask = Items.__getitem__

    def noted(self: Items, index: int) -> tuple[bytes, int]:
        names.add(threading.current_thread().name)
        return ask(self, index)

    monkeypatch.setattr(Items, "__getitem__", noted)
    assert len(by_threads(source, job([1, 2, 3, 4]), 4).columns["image"]) == 4
    assert names == {threading.main_thread().name}


def test_what_can_not_be_read_is_told_by_row(tmp_path: Path) -> None:
    source = open_source(shards(tmp_path))
    os.truncate(tmp_path / "1.tar", 600)
    found = by_threads(source, job([0, 5, 9, 4, 1]), 3)
    assert sorted(found.failures) == [1, 3]
    assert [found.failures[row].index for row in (1, 3)] == [5, 4]
    assert [data.size == 0 for data in found.columns["image"].data] == [False, True, False, True, False]
