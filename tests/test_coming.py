"""What a source is told ahead: by the process that reads, of all that it reads, in its order."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpupipe
from gpupipe.batch import Coming, Images, Job
from gpupipe.batch.coming import looking_ahead
from gpupipe.order import Sequential

SAMPLES = 60
RECIPE = gpupipe.imagenet_eval(16, resize=16)


def coming(number: int) -> Coming:
    return Coming(np.array([number]))


@pytest.mark.parametrize("readers", [1, 2, 5])
@pytest.mark.parametrize("turns", [0, 1, 3, 30])
def test_each_reader_is_told_of_each_item_of_its_own_once_and_in_time(readers: int, turns: int) -> None:
    told: dict[int, list[int]] = defaultdict(list)
    given = []
    for number, ahead in looking_ahead(range(20), coming, readers, turns):
        reader, place = number % readers, number // readers
        given.append(number)
        for one in ahead:
            told[reader] += one.indices.tolist()
            assert one.indices[0] == number + one.turns * readers
        assert len(told[reader]) == (min(place + turns + 1, len(range(reader, 20, readers))) if turns else 0)
    assert given == list(range(20))
    if turns:
        assert all(told[reader] == list(range(reader, 20, readers)) for reader in range(readers))


def test_no_item_is_taken_beyond_those_that_are_told_of_and_none_is_lost_by_an_error() -> None:
    taken = []

    def items() -> Iterator[int]:
        for number in range(10):
            taken.append(number)
            yield number
        raise OSError("over")

    feed = looking_ahead(items(), coming, 2, 2)
    assert [next(feed)[0], taken[-1], next(feed)[0], taken[-1]] == [0, 4, 1, 5]
    assert [next(feed)[0] for _ in range(8)] == list(range(2, 10))
    with pytest.raises(OSError, match="over"):
        next(feed)


def test_what_is_kept_and_dropped_goes_with_the_rows() -> None:
    drop = np.array([7, 8])
    job = Job(0, 0, np.arange(4), np.arange(10, 14), keep=np.array([True, False, True, True]), drop=drop)
    part = job.take(np.array([1, 2])).coming
    assert (part.indices.tolist(), part.keep.tolist(), part.drop.tolist()) == ([11, 12], [False, True], [7, 8])
    told = job.telling((part,))
    assert (told.keep, len(told.drop), told.ahead) == (None, 0, (part,))
    elsewhere = part.mapped(lambda numbers: numbers * 2)
    assert (elsewhere.indices.tolist(), elsewhere.drop.tolist()) == ([22, 24], [14, 16])
    assert job.standing_in(1, {11: 3}).ahead == ()


class Noting(gpupipe.Source):
    """Notes in a file what its process is told, and what it is asked for."""

    fields, fingerprint = gpupipe.Schema({"image": gpupipe.Image(), "label": gpupipe.Index()}), "noting"
    looks_ahead = 25

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __len__(self) -> int:
        return SAMPLES

    def ahead(self, coming: Coming) -> None:
        self._note("told", coming.turns, coming.indices)

    def fetch(self, indices: Any) -> Any:
        self._note("asked", 0, indices)
        return {"image": Images([np.zeros((16, 16, 3), np.uint8)] * len(indices)), "label": indices}

    def _note(self, what: str, turns: int, indices: Any) -> None:
        with open(self._folder / str(os.getpid()), "a") as file:
            print(what, turns, *indices.tolist(), file=file)


def notes(folder: Path) -> list[list[tuple[str, int, list[int]]]]:
    """Of each process what it was told and asked for since the last time."""
    found = []
    for file in sorted(folder.iterdir()):
        lines = [line.split() for line in file.read_text().splitlines()]
        found.append([(line[0], int(line[1]), list(map(int, line[2:]))) for line in lines])
        file.unlink()
    return found


def check(process: list[tuple[str, int, list[int]]], at_end: bool) -> None:
    """All that was asked for was told before it, so many turns before, since the last stream began."""
    due: list[tuple[int, list[int]]] = []
    asked = 0
    for what, turns, indices in process:
        if what == "told":
            due = due if turns else []
            due += [(asked + turns, indices)] if indices else []  # else a stream has been left
        else:
            assert due.pop(0) == (asked, indices)
            asked += 1
    assert not (at_end and due)


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("batch_size", [2, 10])
def test_workers_are_told_of_what_they_read(workers: int, batch_size: int, tmp_path: Path) -> None:
    """Also where the first batch is shared out, after an iteration that was left, and over an epoch's end."""
    options: dict[str, Any] = dict(engine="torch", num_workers=workers, device="cpu")
    with gpupipe.Loader(Noting(tmp_path), RECIPE, batch_size, **options) as loader:
        for batch in loader:
            assert batch["label"].tolist() == list(range(batch_size))
            break
        assert sum(len(batch["label"]) for batch in loader) == SAMPLES
    for process in notes(tmp_path):
        assert any(what == "asked" for what, _, _ in process)
        check(process, at_end=False)
    options["persistent_workers"] = False if workers else None
    with gpupipe.Loader(Noting(tmp_path), RECIPE, batch_size, **options) as loader:
        assert sum(len(batch["label"]) for batch in loader) == SAMPLES
    for process in notes(tmp_path):
        check(process, at_end=True)


@pytest.mark.parametrize(("batch_size", "turns", "after"), [(2, 13, True), (5, 5, True), (10, 3, False)])
def test_what_is_far_is_told_when_the_batch_before_has_been_read(
    batch_size: int, turns: int, after: bool, tmp_path: Path
) -> None:
    options: dict[str, Any] = dict(engine="torch", num_workers=1, device="cpu")
    with gpupipe.Loader(Noting(tmp_path), RECIPE, batch_size, **options) as loader:
        assert sum(len(batch["label"]) for batch in loader) == SAMPLES
    process = max(notes(tmp_path), key=len)
    second = [at for at, (what, _, _) in enumerate(process) if what == "asked"][1]
    assert len([None for what, _, _ in process[:second] if what == "told"]) == turns + 1 + (not after)


def test_dali_and_the_workers_beside_it_are_told_of_their_parts(tmp_path: Path) -> None:
    options: dict[str, Any] = dict(engine="dali", device="cpu", order=Sequential(SAMPLES))
    for decoders in (gpupipe.Decoders(), gpupipe.Decoders(cpu_share=0.5, cpu_workers=1)):
        threads = 1 + decoders.cpu_workers
        with gpupipe.Loader(Noting(tmp_path), RECIPE, 10, decoders=decoders, num_workers=threads, **options) as loader:
            assert [label for batch in loader for label in batch["label"].tolist()] == list(range(SAMPLES))
        processes = notes(tmp_path)
        assert len(processes) == 1 + bool(decoders.cpu_share)
        for process in processes:
            check(process, at_end=False)
