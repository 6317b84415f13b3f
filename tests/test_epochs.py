"""One epoch after the other: what is made ahead of an epoch's end, what is dropped, and that nobody sees it."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from images import Numbered, encode, picture
from test_ahead import Lane
from test_iteration import tolerant
from test_loader import ENGINES, assert_equal, collect, open_loader

import gpupipe

IMAGE = encode(picture(40, 40))
WORKERS = [{"engine": "torch", "num_workers": 2}, {"engine": "dali", "num_workers": 2}]


@pytest.fixture(autouse=True)
def _no_workers_of_other_tests() -> None:
    """What an exception's traceback holds lives on until the garbage collector comes, and its workers with it."""
    gc.collect()


@pytest.fixture(params=ENGINES)
def engine(request):
    return request.param


@pytest.fixture(params=WORKERS, ids=["torch", "dali"])
def ahead(request):
    """An engine that makes the next epoch's batches while the last of this one are consumed."""
    return request.param


class Following(gpupipe.Sequential):
    """Other samples in each epoch: 12 of them, those that follow."""

    def __init__(self, asked: list[tuple[int, int]] | None = None) -> None:
        super().__init__(12)
        self.__dict__["asked"] = [] if asked is None else asked

    def indices(self, seed: int, epoch: int, positions: np.ndarray) -> np.ndarray:
        self.asked.append((epoch, int(positions[0]) // 4))  # type: ignore[attr-defined]
        return positions + 12 * epoch


@contextmanager
def opened(data: Any, thread: bool = False, **options: Any) -> Iterator[gpupipe.Loader]:
    """Epochs of three batches of four. thread: whether batches are finished in one, as for a GPU."""
    with open_loader(data, **{"shuffle": False, "order": Following()} | options) as loader:
        if thread:
            loader._supply.lane = Lane()
        yield loader


def streams_of(loader: gpupipe.Loader, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The streams that the engine is asked for, from now on."""
    begun, stream = [], loader._engine.stream
    monkeypatch.setattr(loader._engine, "stream", lambda jobs: begun.append(jobs) or stream(jobs))
    return begun


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not condition() and time.monotonic() < until:
        time.sleep(0.005)
    assert condition()


def labels_of(batches: Any) -> list[list[int]]:
    return [labels.tolist() for _, labels in batches]


def expected(*epochs: int) -> list[list[int]]:
    return [list(range(first, first + 4)) for epoch in epochs for first in range(12 * epoch, 12 * epoch + 12, 4)]


@pytest.mark.parametrize("thread", [False, True], ids=["alone", "thread"])
class TestOneStream:
    def test_runs_on_from_epoch_to_epoch(self, ahead, thread, monkeypatch):
        with opened(Numbered(60, [IMAGE]), thread, **ahead) as loader:
            begun = streams_of(loader, monkeypatch)
            for epoch in range(4):
                if epoch != 1:
                    loader.set_epoch(epoch)
                iterator = iter(loader)
                assert labels_of(iterator) == expected(epoch)
                loader.set_epoch(epoch + 1)
                loader.load_state_dict(loader.state_dict())
            assert len(begun) == 1

    def test_has_made_the_next_epochs_batches_when_one_ends(self, ahead, thread):
        with opened(Numbered(60, [IMAGE]), thread, **ahead) as loader:
            order = loader.order
            batches = iter(loader)
            for _ in range(3):
                next(batches)
            wait_for(lambda: (1, 1) in order.asked)
            assert len(set(order.asked)) <= 3 + 8  # no more than ever: 2 workers' 4 and one at each, the thread's 2
            assert next(batches, None) is None
            assert labels_of(loader) == expected(1)

    @pytest.mark.parametrize(
        "change",
        [
            lambda loader: loader.set_epoch(3),
            lambda loader: loader.set_epoch(0),
            lambda loader: loader.load_state_dict(loader.state_dict() | {"epoch": 1, "position": 4}),
            lambda loader: next(iter(loader)),
        ],
        ids=["a later epoch", "an earlier one", "a state", "left early"],
    )
    def test_begins_anew_where_an_iteration_begins_elsewhere(self, ahead, thread, change, monkeypatch):
        with opened(Numbered(80, [IMAGE]), thread, **ahead) as loader:
            begun = streams_of(loader, monkeypatch)
            assert labels_of(loader) == expected(0)
            change(loader)
            after = loader.epoch if loader.last_step != 0 else loader.epoch + 1
            first = loader.state_dict()["position"] // 4 if loader.last_step != 0 else 0
            assert labels_of(loader) == expected(after)[first:]
            assert labels_of(loader) == expected(after + 1)
            assert len(begun) == 2

    def test_ends_with_each_epoch_where_workers_do(self, ahead, thread, monkeypatch):
        with opened(Numbered(60, [IMAGE]), thread, persistent_workers=False, **ahead) as loader:
            begun = streams_of(loader, monkeypatch)
            for epoch in range(3):
                assert labels_of(loader) == expected(epoch)
                assert not multiprocessing.active_children()
                assert not any(thread.name == "gpupipe-ahead" for thread in threading.enumerate())
            assert {epoch for epoch, _ in loader.order.asked} == {0, 1, 2}
            assert len(begun) == 3


@pytest.mark.parametrize("persistent", [False, None])
@pytest.mark.parametrize("thread", [False, True], ids=["alone", "thread"])
def test_an_epoch_whose_end_is_not_asked_for(engine, thread, persistent):
    """As where a loop breaks at its last batch."""
    with opened(Numbered(60, [IMAGE]), thread, persistent_workers=persistent, **engine) as loader:
        for epoch in range(3):
            loader.set_epoch(epoch)
            assert labels_of(batch for _, batch in zip(range(3), loader, strict=False)) == expected(epoch)
        assert labels_of(loader) == expected(3)


def test_without_workers_nothing_is_asked_for_before_its_time():
    with opened(Numbered(60, [IMAGE]), engine="torch", num_workers=0) as loader:
        asked = loader.order.asked
        for number, _ in enumerate([*loader, *loader], start=1):
            assert number <= 6
        assert sorted(set(asked)) == [(epoch, step) for epoch in range(2) for step in range(3)]
        batches = iter(loader)
        next(batches)
        assert max(asked) == (2, 0)


class Remembering(torch.utils.data.Sampler[int]):
    """Lists what it was last told, and notes when."""

    def __init__(self) -> None:
        self.first = 0
        self.listed = 0

    def __len__(self) -> int:
        return 12

    def __iter__(self) -> Iterator[int]:
        self.listed += 1
        return iter(range(self.first, self.first + 12))


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_sampler_is_asked_when_its_epoch_begins(ahead, wrapped):
    """Its weights may follow from what the epoch before has shown."""
    sampler = Remembering()
    order = gpupipe.Repeated(gpupipe.order.SamplerOrder(sampler), 1) if wrapped else sampler
    with opened(Numbered(60, [IMAGE]), order=order, **ahead) as loader:
        for epoch in range(3):
            assert labels_of(loader) == expected(epoch)
            assert sampler.listed == epoch + 1
            sampler.first += 12


def test_so_is_one_of_a_mixtures_source(ahead):
    sampler = Remembering()
    orders = {"a": gpupipe.order.SamplerOrder(sampler)}
    data = gpupipe.Mixture({"a": (Numbered(60, [IMAGE]), 1)}, num_samples=12, orders=orders)
    with opened(data, order=None, **ahead) as loader:
        for epoch in range(3):
            labels = sorted(label for batch in labels_of(loader) for label in batch)
            assert labels == list(range(sampler.first, sampler.first + 12))
            assert sampler.listed == epoch + 1
            sampler.first += 12


class TestState:
    def test_is_exact_at_every_step_around_the_ends(self, folder, engine):
        """Of epochs of 7 batches, of which workers have most when the state is taken."""
        truth = []
        for epoch in range(3):
            with open_loader(folder, **engine) as loader:
                loader.set_epoch(epoch)
                truth.append(collect(loader))
        with open_loader(folder, **engine) as loader:
            states = [(0, 0, loader.state_dict())]
            for epoch in range(2):
                batches = iter(loader)
                for step in range(7):
                    next(batches)
                    states.append((epoch, step + 1, loader.state_dict()))
                    assert (loader.epoch, loader.last_step) == (epoch, step)
                assert next(batches, None) is None
                states.append((epoch + 1, 0, loader.state_dict()))
            assert [state["epoch"] for _, _, state in states] == [epoch for epoch, _, _ in states]
            for epoch, step, state in states[5:12]:
                loader.load_state_dict(json.loads(json.dumps(state)))
                assert_equal(collect(loader), truth[epoch][step:])
                assert_equal(collect(loader), truth[epoch + 1])

    def test_last_says_what_was_delivered(self, ahead):
        with opened(Numbered(60, [IMAGE]), order=gpupipe.Subset(range(10)), rank=1, world_size=2, **ahead) as loader:
            for _ in range(2):
                for step, (_, labels) in enumerate(loader):
                    assert (loader.last_step, loader.last_indices.tolist()) == (step, labels.tolist())
                assert (len(labels), loader.padding, loader.last_step) == (1, 0, 1)
                assert loader.stats()["images"] % 5 == 0

    def test_an_epoch_of_new_batches_is_followed_by_a_whole_one(self, folder, ahead):
        recipe = gpupipe.timm_a_train("A3", num_classes=5)
        with open_loader(folder, recipe, batch_size=6, engine="torch", num_workers=0) as loader:
            loader.load_state_dict(
                loader.state_dict() | {"global_batch": 4, "position": 8}, allow_new_global_batch=True
            )
            truth = [collect(loader) for _ in range(2)]
        for thread in (False, True):
            with open_loader(folder, recipe, batch_size=6, **ahead) as loader:
                if thread:
                    loader._supply.lane = Lane()
                state = loader.state_dict() | {"global_batch": 4, "position": 8}
                loader.load_state_dict(state, allow_new_global_batch=True)
                for whole in truth:
                    made = collect(loader)
                    assert [len(labels) for _, labels in made] == [len(labels) for _, labels in whole]
                    if ahead["engine"] == "torch":
                        assert_equal(made, whole)


def test_mixing_that_is_switched_between_epochs(folder, ahead):
    recipe = gpupipe.timm_a_train("A3", num_classes=5)
    for thread in (False, True):
        with open_loader(folder, recipe, drop_last=True, **ahead) as loader:
            if thread:
                loader._supply.lane = Lane()
            mixed = []
            for enabled in (True, False, False, True):
                loader.mixup_enabled = enabled
                batches = iter(loader)
                first = next(batches)
                loader.mixup_enabled = True
                mixed.append([bool((labels.amax(1) < 0.8).any()) for _, labels in [first, *batches]])
        assert [any(epoch) for epoch in mixed] == [True, False, False, True]


class Fails(Following):
    """Fails in epoch 1, at its second step."""

    def indices(self, seed: int, epoch: int, positions: np.ndarray) -> np.ndarray:
        if epoch == 1 and positions[0] == 4:
            raise LookupError("not there")
        return super().indices(seed, epoch, positions)


class Deadly(Numbered):
    """Ends its worker, or stops it, at a sample of epoch 1's second step."""

    end = signal.SIGKILL

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        if index == 17:
            os.kill(os.getpid(), self.end)
        return super().__getitem__(index)


class Stopping(Deadly):
    end = signal.SIGSTOP


class Damaged(Numbered):
    """Has a bad sample in epoch 1's first step, and one in its second."""

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        return (b"no image", index) if index in (13, 17) else super().__getitem__(index)


@pytest.mark.parametrize("thread", [False, True], ids=["alone", "thread"])
class TestErrors:
    @pytest.mark.parametrize(
        ("data", "order", "error"),
        [
            (Numbered(60, [IMAGE]), Fails(), gpupipe.ConfigError),
            (Deadly(60, [IMAGE]), Following(), gpupipe.WorkerError),
            (Stopping(60, [IMAGE]), Following(), gpupipe.LoaderTimeoutError),
        ],
        ids=["order", "death", "stop"],
    )
    def test_come_in_their_own_epoch(self, thread, data, order, error):
        """A worker that is stopped or killed keeps what it has made, and not yet sent, of the batches before."""
        options = {"order": order, "engine": "torch", "num_workers": 2, "timeout": 3}
        with opened(data, thread, **options) as loader:
            assert labels_of(loader) == expected(0)
            found = tolerant(loader)
            assert [type(one) for one in found] == [tuple, error, tuple]
            assert [one[1].tolist() for one in (found[0], found[2])] == [expected(1)[0], expected(1)[2]]
            assert labels_of(loader) == expected(2)

    def test_of_an_order_come_in_their_place_where_the_source_looks_ahead(self, thread, engine):
        with opened(Numbered(60, [IMAGE]), thread, order=Fails(), **engine) as loader:
            loader._supply._looks_ahead = 2
            assert labels_of(loader) == expected(0)
            assert [type(one) for one in tolerant(loader)] == [tuple, gpupipe.ConfigError, tuple]
            assert labels_of(loader) == expected(2)

    @pytest.mark.parametrize("data", [Numbered(60, [IMAGE]), Deadly(60, [IMAGE])], ids=["order", "death"])
    def test_of_an_epoch_that_never_comes_are_not_raised(self, thread, data):
        order = Following() if isinstance(data, Deadly) else Fails()
        with opened(data, thread, order=order, engine="torch", num_workers=2) as loader:
            for epoch in (0, 2):
                loader.set_epoch(epoch)
                assert labels_of(loader) == expected(epoch)

    @pytest.mark.parametrize("on_error", ["skip", "raise"])
    def test_bad_samples_are_listed_with_their_batch(self, thread, ahead, on_error):
        with opened(Damaged(60, [IMAGE]), thread, on_error=on_error, **ahead) as loader:
            assert labels_of(loader) == expected(0)
            wait_for(lambda: loader.stats().get("queue_depth", 2) >= 2)
            assert loader.bad_samples == []
            assert loader.stats()["bad_samples"] == 0
            batches = iter(loader)
            for count in (1, 2):
                if on_error == "skip":
                    next(batches)
                else:
                    with pytest.raises(gpupipe.SampleError):
                        next(batches)
                assert [bad.index for bad in loader.bad_samples] == [13, 17][:count]
            loader.set_epoch(1)
            tolerant(loader)
            assert [bad.index for bad in loader.bad_samples] == [13, 17]

    def test_bad_samples_that_were_dropped_are_listed_when_they_come(self, thread, ahead):
        with opened(Damaged(60, [IMAGE]), thread, on_error="skip", **ahead) as loader:
            labels_of(loader)
            loader.set_epoch(2)
            labels_of(loader)
            assert loader.bad_samples == []
            loader.set_epoch(1)
            labels_of(loader)
            assert [bad.index for bad in loader.bad_samples] == [13, 17]


class TestLeavesNothingBehind:
    @pytest.mark.parametrize("thread", [False, True], ids=["alone", "thread"])
    @pytest.mark.parametrize("left", [False, True], ids=["ended", "left"])
    def test_a_loader_that_is_dropped(self, folder, ahead, thread, left):
        loader = open_loader(folder, **ahead)
        if thread:
            loader._supply.lane = Lane()
        before = set(os.listdir("/dev/shm"))
        if left:
            next(iter(loader))
        else:
            collect(loader)
        assert bool(multiprocessing.active_children()) == (ahead["engine"] == "torch")
        gc.disable()
        try:
            del loader
            assert not multiprocessing.active_children()
            assert not any(thread.name == "gpupipe-ahead" for thread in threading.enumerate())
        finally:
            gc.enable()
        assert not {name for name in set(os.listdir("/dev/shm")) - before if str(os.getpid()) in name}

    @pytest.mark.parametrize("thread", [False, True], ids=["alone", "thread"])
    @pytest.mark.parametrize("end", ["", "del loader", "loader.close()", "1 / 0", "fork()"])
    def test_a_process_that_ends(self, ahead, thread, end):
        script = PROGRAM.format(path=[str(Path(__file__).parent)], options=ahead, thread=thread, end=end)
        # from Python 3.12 on the interpreter warns of the program's own fork beside threads
        command = [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", script]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        pids = json.loads(done.stdout.splitlines()[0])
        assert len(pids) == (2 if ahead["engine"] == "torch" else 0)
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
        assert done.returncode == (1 if "/" in end else 0)
        assert ("ZeroDivisionError" in done.stderr) if "/" in end else not done.stderr
        assert done.stdout.splitlines()[1:] == (["7 more"] if end == "fork()" else [])


PROGRAM = """
import json, multiprocessing, os, sys
sys.path[:0] = {path!r}
from images import Numbered, encode, picture
from test_ahead import Lane
import gpupipe
from gpupipe.loader import supply

def fork():
    child = os.fork()
    if not child:
        global loader
        try:
            next(iter(loader))
        except gpupipe.GpupipeError as error:
            assert "is a fork" in str(error)
        else:
            os._exit(1)
        if loader.engine == "torch":  # a pipeline of DALI's waits for threads that a fork lacks
            del loader
        supply._end_all()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    print(len(list(loader)), "more")

data = Numbered(28, [encode(picture(20, 24))])
loader = gpupipe.Loader(data, gpupipe.imagenet_train(16), 4, device="cpu", **{options!r})
if {thread}:
    loader._supply.lane = Lane()
assert len(list(loader)) == 7
print(json.dumps([child.pid for child in multiprocessing.active_children()]), flush=True)
{end}
"""
