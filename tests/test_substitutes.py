"""Where there are workers, nobody else asks a user's dataset, not even for what stands in for a bad sample."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from typing import Any

import numpy as np
import pytest
import torch
from engines import forked
from torch.utils.data import get_worker_info

import gpupipe

SIZE = 24
BAD = (5, 6, 17)
IMAGE = np.zeros((8, 8, 3), np.uint8)


class Records:
    """What a file has that each worker opens; numbers are its samples, of which some are bad."""

    def __init__(self, bad: tuple[int, ...] = BAD) -> None:
        self.bad = bad
        self.file: list[int] | None = None
        self.asked = 0

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        assert self.file is not None
        self.asked += 1
        if index in self.bad:
            raise ValueError(f"record {index} has a bad checksum")
        return self.file[index]


class Images(Records):
    def __getitem__(self, index: int) -> Any:
        return IMAGE, super().__getitem__(index)


def opened(_: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.file = list(range(SIZE))


def loader(data: Records, workers: int = 2, **options: Any) -> gpupipe.Loader:
    usual: dict[str, Any] = {"device": "cpu", "engine": "torch", "worker_init_fn": opened}
    options = usual | forked(workers) | options
    recipe = gpupipe.imagenet_eval(8) if isinstance(data, Images) else None
    return gpupipe.Loader(data, recipe, 4, True, seed=3, **options)


def numbers(batches: Any) -> list[int]:
    return [int(one) for batch in batches for one in (batch if torch.is_tensor(batch) else batch[1])]


def met(kind: type[Records], workers: int, **options: Any) -> tuple[list[int], list[int], float]:
    """Two epochs' samples, the bad ones, and how many rows were replaced."""
    data = kind()
    if not workers:
        data.file = list(range(SIZE))
    with loader(data, workers, on_error="skip", **options) as batches:
        made = numbers(batches) + numbers(batches)
        assert bool(data.asked) == (workers == 0)
        return made, [bad.index for bad in batches.bad_samples], batches.stats()["replaced"]


@pytest.mark.parametrize("kind", [Records, Images])
@pytest.mark.parametrize("options", [{}, {"persistent_workers": False}, {"multiprocessing_context": "spawn"}], ids=str)
def test_they_are_those_that_there_are_without_workers(kind: type[Records], options: dict[str, Any]) -> None:
    alone = met(kind, 0)
    assert met(kind, 2, **options) == alone
    assert sorted(alone[1]) == list(BAD)
    assert alone[2] == 2 * len(BAD)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("kind", [Records, Images])
def test_the_error_is_the_workers_own(kind: type[Records]) -> None:
    data = kind(bad=(5,))
    with loader(data) as batches, pytest.raises(ValueError, match="raised ValueError: record 5 has a bad checksum"):
        list(batches)
    assert not data.asked


def test_what_lacks_a_field_is_replaced_by_a_worker() -> None:
    class Lacking(Images):
        def __getitem__(self, index: int) -> dict[str, Any]:
            image, number = super().__getitem__(index)
            return {"image": image} | ({} if index == 7 else {"label": number})

    data = Lacking(bad=())
    with loader(data, fields={"image": gpupipe.Image(), "label": gpupipe.Scalar(missing="skip")}) as batches:
        made = numbers(batches)
    assert not data.asked
    assert len(made) == SIZE
    assert set(made) == set(range(SIZE)) - {7}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [Records, Images])
def test_an_error_that_passes_costs_nothing(kind: type[Records], workers: int) -> None:
    seen: set[int] = set()

    class Passing(kind):  # type: ignore[misc, valid-type]
        def __getitem__(self, index: int) -> Any:
            self.bad = () if index in seen else (5,)
            seen.add(index)
            return super().__getitem__(index)

    data = Passing(bad=())
    data.file = list(range(SIZE))
    with loader(data, workers) as batches:
        assert sorted(numbers(batches)) == list(range(SIZE))
        assert not batches.bad_samples


@pytest.mark.parametrize("persistent", [False, True])
def test_their_worker_ends_with_the_others(persistent: bool) -> None:
    with loader(Records(), on_error="skip", persistent_workers=persistent) as batches:
        for _ in range(2):
            iterator = iter(batches)
            numbers(next(iterator) for _ in range(len(batches)))
            assert len(multiprocessing.active_children()) == 3
            assert next(iterator, None) is None
            assert len(multiprocessing.active_children()) == 3 * persistent
    assert not multiprocessing.active_children()


class Stopping(Records):
    """Fails at a sample in the workers, and does something else where another stands in for it."""

    def __init__(self, how: str) -> None:
        super().__init__(bad=(2,))
        self.how = how

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        if info is not None and info.num_workers == 1:
            time.sleep(60) if self.how == "hangs" else os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pytest.mark.parametrize(
    ("how", "error"), [("hangs", gpupipe.LoaderTimeoutError), ("dies", gpupipe.WorkerError)], ids=["hangs", "dies"]
)
def test_one_that_stops_takes_the_place_of_its_batch(how: str, error: type[Exception]) -> None:
    with loader(Stopping(how), on_error="skip", timeout=2) as batches:
        order = [batches.batch_indices(step).tolist() for step in range(len(batches))]
        made: list[int] = []
        iterator = iter(batches)
        for some in order:
            if 2 in some:
                with pytest.raises(error, match=r"at sample \d+ \(Stopping\["):
                    next(iterator)
            else:
                made += numbers([next(iterator)])
    assert made == [one for some in order if 2 not in some for one in some]
    assert not multiprocessing.active_children()


def test_a_ctrl_c_leaves_the_batch_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    with loader(Records(), on_error="skip") as batches:
        beside = batches._engine._beside  # type: ignore[union-attr]
        first, once = beside._opened, [KeyboardInterrupt]
        made: list[int] = []
        iterator = iter(batches)

        def opening() -> Any:
            if once:
                raise once.pop()
            return first()

        monkeypatch.setattr(beside, "_opened", opening)
        while len(made) < SIZE:
            try:
                made += numbers([next(iterator)])
            except KeyboardInterrupt:
                continue
        assert not once
    assert made == met(Records, 0)[0][:SIZE]
