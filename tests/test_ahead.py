"""Batches made ahead in a thread: the thread by itself, the Loader with it, and the hand-over between CUDA streams.

The Loader takes this way for a GPU alone; here it gets a lane that does nothing, or one with streams that are played.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from images import Numbered, encode, picture
from test_loader import assert_equal, collect

import gpupipe
from gpupipe.batch import Batch, Job
from gpupipe.device import ahead as ahead_module, handover
from gpupipe.device.ahead import Ahead
from gpupipe.device.finishing import Finished
from gpupipe.device.handover import BEHIND, HandOver
from gpupipe.host.tracing import Stage

TRAIN = gpupipe.imagenet_train(32)


class Lane:
    """Notes what it is told, and in which thread."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, Any, str]] = []

    def _note(self, what: str, item: Any = None) -> None:
        self.notes.append((what, item, threading.current_thread().name))

    def entered(self) -> AbstractContextManager[object]:
        self._note("entered")
        return nullcontext()

    def before(self) -> None:
        self._note("before")

    def made(self, item: Any) -> None:
        self._note("made", item)

    def taken(self, item: Any) -> None:
        self._note("taken", item)


def nothing() -> None: ...


def settled(ahead: Ahead[Any], count: int) -> None:
    """Wait until so many items lie ready, and give the thread time for one too many."""
    until = time.monotonic() + 10
    while len(ahead) < count and time.monotonic() < until:
        time.sleep(0.001)
    time.sleep(0.02)


class TestThread:
    def test_items_come_in_order_and_no_more_than_the_depth_ahead(self) -> None:
        made = []

        def items() -> Generator[int, None, None]:
            for number in range(10):
                made.append(number)
                yield number

        ahead = iter(Ahead(items(), 3, Lane(), nothing))
        settled(ahead, 3)
        assert (len(ahead), made) == (3, [0, 1, 2])
        assert next(ahead) == 0
        settled(ahead, 3)
        assert made == [0, 1, 2, 3]
        assert list(ahead) == list(range(1, 10))
        assert next(ahead, None) is None

    def test_the_lane_is_told_where_things_happen(self) -> None:
        lane = Lane()
        ahead = Ahead((number for number in (7, 8)), 1, lane, nothing)
        assert list(ahead) == [7, 8]
        theirs = [note[:2] for note in lane.notes if note[2] == "gpupipe-ahead"]
        assert theirs == [
            ("entered", None),
            ("before", None),
            ("made", 7),
            ("before", None),
            ("made", 8),
            ("before", None),
        ]
        ours = [note[:2] for note in lane.notes if note[2] != "gpupipe-ahead"]
        assert ours == [("taken", 7), ("taken", 8)]

    def test_an_error_comes_after_the_items_before_it_and_once(self) -> None:
        def items() -> Generator[int, None, None]:
            yield 1
            yield 2
            raise ValueError("third")

        ahead = iter(Ahead(items(), 5, Lane(), nothing))
        assert [next(ahead), next(ahead)] == [1, 2]
        with pytest.raises(ValueError, match="third"):
            next(ahead)
        assert next(ahead, "over") == "over"

    def test_an_error_holds_nothing_once_it_is_handled(self) -> None:
        class Batch: ...

        batches: list[weakref.ref[Batch]] = []

        def items() -> Generator[int, None, None]:
            batch = Batch()
            batches.append(weakref.ref(batch))
            raise ValueError("made of a batch")
            yield

        ahead = iter(Ahead(items(), 1, Lane(), nothing))
        ahead._thread.join()
        gc.disable()  # memory of a GPU is not to wait for a collection
        try:
            with contextlib.suppress(ValueError):
                next(ahead)
            assert batches[0]() is None
        finally:
            gc.enable()

    def test_a_fork_does_not_wait_for_the_threads_lock(self) -> None:
        ahead = iter(Ahead((number for number in range(10)), 2, Lane(), nothing))
        held, forked = threading.Event(), threading.Event()

        def hold() -> None:
            with ahead._changed:
                held.set()
                forked.wait()

        holder = threading.Thread(target=hold)
        holder.start()
        held.wait()
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(5)  # ends it, were it to wait
            ahead.close()
            os._exit(0)
        forked.set()
        holder.join()
        assert os.waitpid(child, 0)[1] == 0
        ahead.close()

    def test_the_thread_has_ended_when_later_imports_end_theirs(self) -> None:
        """DALI, imported for the first loader, shuts down at exit what the thread may be working with."""
        program = """
            import atexit, contextlib, itertools, threading
            from gpupipe.device.ahead import Ahead

            class Lane:
                before = made = taken = lambda self, item=None: None
                entered = contextlib.nullcontext

            atexit.register(lambda: print([thread.name for thread in threading.enumerate()]))
            next(iter(Ahead((number for number in itertools.count()), 2, Lane(), print)))
        """
        run = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
        assert (run.stdout, run.stderr) == ("['MainThread']\n", "")

    def test_closing_ends_the_thread_and_the_items_in_it(self) -> None:
        ended = []

        def items() -> Generator[int, None, None]:
            try:
                yield from range(1000)
            finally:
                ended.append(threading.current_thread().name)

        ahead = iter(Ahead(items(), 2, Lane(), nothing))
        next(ahead)
        ahead.close()
        ahead.close()
        assert ended == ["gpupipe-ahead"]
        assert not ahead._thread.is_alive()
        assert next(ahead, "over") == "over"

    @pytest.mark.parametrize("helps", [True, False])
    def test_a_thread_that_waits_is_interrupted_and_else_left(
        self, helps: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(ahead_module, "GRACE", 0.05)
        wait, over = threading.Event(), threading.Event()

        def items() -> Generator[int, None, None]:
            wait.wait()
            over.set()
            raise ValueError("interrupted")
            yield

        ahead = iter(Ahead(items(), 2, Lane(), wait.set if helps else nothing))
        ahead.close()
        assert over.is_set() == helps
        assert ("left to itself" in caplog.text) != helps
        wait.set()
        ahead._thread.join()


class TestLoader:
    @contextmanager
    def opened(self, data: Any, **options: Any) -> Iterator[gpupipe.Loader]:
        options = {"shuffle": True, "seed": 5, "device": "cpu", "engine": "torch", "num_workers": 1} | options
        with gpupipe.Loader(data, TRAIN, 4, **options) as loader:
            loader._supply.lane = Lane()  # type: ignore[assignment]
            yield loader
        assert not any(thread.name == "gpupipe-ahead" for thread in threading.enumerate())

    @pytest.mark.parametrize("persistent", [False, True])
    def test_gives_the_same_batches_epoch_after_epoch(self, folder: Any, persistent: bool) -> None:
        with gpupipe.Loader(folder, TRAIN, 4, shuffle=True, seed=5, device="cpu", num_workers=0) as loader:
            truth = [collect(loader), collect(loader)]
        with self.opened(folder, persistent_workers=persistent) as loader:
            for batches in truth:
                assert_equal(collect(loader), batches)

    def test_an_iteration_left_early_counts_what_was_delivered(self, folder: Any) -> None:
        with self.opened(folder, engine="dali") as loader:
            whole, later = collect(loader), collect(loader)
            loader.set_epoch(0)
            for _, _ in zip(range(2), loader, strict=False):
                pass
            state = loader.state_dict()
            assert state["position"] == 8
            assert_equal(collect(loader), later)
            loader.load_state_dict(state)
            assert_equal(collect(loader), whole[2:])

    def test_a_newer_iteration_ends_an_older_one_that_is_still_held(self, folder: Any) -> None:
        with self.opened(folder) as loader:
            older = iter(loader)
            first, _ = next(older)
            newer = iter(loader)
            loader.set_epoch(0)
            assert torch.equal(next(newer)[0], first)
            with pytest.raises(gpupipe.GpupipeError, match="newer one"):
                next(older)
            assert len(list(newer)) == len(loader) - 1

    def test_a_ctrl_c_while_the_thread_is_started_leaves_none_behind(
        self, folder: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        start = threading.Thread.start

        def interrupted(thread: threading.Thread) -> None:
            start(thread)
            if thread.name == "gpupipe-ahead":
                raise KeyboardInterrupt

        with self.opened(folder) as loader:
            truth = collect(loader)
            loader.set_epoch(0)
            with monkeypatch.context() as patch:
                patch.setattr(threading.Thread, "start", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    next(iter(loader))
            assert not any(thread.name == "gpupipe-ahead" for thread in threading.enumerate())
            assert_equal(collect(loader), truth)

    def test_none_begins_beside_a_thread_that_still_waits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Both would take each other's batches from the engine."""
        monkeypatch.setattr(ahead_module, "GRACE", 0.05)
        asked, storage = threading.Event(), threading.Event()

        class Slow(Numbered):
            def __getitem__(self, index: int) -> tuple[bytes, int]:
                if index >= 8:
                    asked.set()
                    storage.wait()
                return super().__getitem__(index)

        with self.opened(Slow(20, [encode(picture(40, 40))]), num_workers=0, shuffle=False) as loader:
            batches = iter(loader)
            assert next(batches)[1].tolist() == [0, 1, 2, 3]
            asked.wait()
            del batches
            with pytest.raises(gpupipe.GpupipeError, match="still waits for a sample"):
                next(iter(loader))
            storage.set()
            assert torch.cat([labels for _, labels in loader]).tolist() == list(range(20))

    @pytest.mark.parametrize("engine", ["dali", "torch"])
    def test_an_empty_queue_is_told(self, folder: Any, engine: str) -> None:
        with self.opened(folder, engine=engine, persistent_workers=False) as loader:
            assert loader.stats()["queue_depth"] == 0
            collect(loader)
            assert loader.stats()["queue_depth"] == 0

    def test_errors_name_the_sample(self, folder: Any, tmp_path: Any) -> None:
        import shutil

        root = shutil.copytree(folder, tmp_path / "data", ignore=shutil.ignore_patterns(".gpupipe*"))
        (root / "class_1" / "img_1.jpg").write_bytes(b"")
        with self.opened(root) as loader, pytest.raises(gpupipe.SampleError, match=r"img_1\.jpg"):
            list(loader)

    def test_closing_does_not_wait_for_a_worker_that_is_stopped(
        self, folder: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ahead_module, "GRACE", 1.0)
        with self.opened(folder, num_workers=1, prefetch_factor=1) as loader:
            batches = iter(loader)
            next(batches)
            os.kill(loader._engine._iterator._workers[0].pid, signal.SIGSTOP)  # type: ignore[union-attr]

    def test_mixing_goes_by_what_held_at_the_start(self, folder: Any) -> None:
        recipe = gpupipe.timm_a_train("A3", num_classes=5)
        options = {"shuffle": True, "device": "cpu", "num_workers": 0, "drop_last": True}
        with gpupipe.Loader(folder, recipe, 4, **options) as loader:
            truth = collect(loader)
        with gpupipe.Loader(folder, recipe, 4, **options) as loader:
            loader._supply.lane = Lane()  # type: ignore[assignment]
            batches = iter(loader)
            some = [next(batches)]
            loader.mixup_enabled = False
            some += batches
            assert_equal(some, truth)
            assert (next(iter(loader))[1].amax(1) > 0.8).all()


class Played:
    """The streams and events of torch.cuda, played: who waits for what is noted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.notes: list[str] = []
        self.current = PlayedStream(self, "consumer")
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: PlayedStream(self, "made on"))
        monkeypatch.setattr(torch.cuda, "Event", lambda blocking: PlayedEvent(self, "passed"))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self.current)


class PlayedEvent:
    def __init__(self, played: Played, name: str) -> None:
        self.played, self.name = played, name

    def record(self, stream: PlayedStream) -> None:
        self.played.notes.append(f"{self.name} recorded on {stream.name}")

    def synchronize(self) -> None:
        self.played.notes.append(f"host waits for {self.name}")


class PlayedStream:
    device = torch.device("cpu")

    def __init__(self, played: Played, name: str) -> None:
        self.played, self.name = played, name

    def record_event(self) -> PlayedEvent:
        return PlayedEvent(self.played, "whole")

    def wait_event(self, event: PlayedEvent) -> None:
        self.played.notes.append(f"{self.name} waits for {event.name}")


class PlayedTensor(torch.Tensor):
    played: Played
    label: str
    is_cuda = True

    @staticmethod
    def of(played: Played, label: str) -> PlayedTensor:
        tensor = torch.zeros(1).as_subclass(PlayedTensor)
        tensor.played, tensor.label = played, label
        return tensor

    def record_stream(self, stream: PlayedStream) -> None:
        self.played.notes.append(f"{self.label} is used on {stream.name}")


class TestHandOver:
    def batch(self, played: Played) -> Any:
        tensors: Any = [PlayedTensor.of(played, name) for name in ("view 1", "view 2", "labels")]
        columns = {"image": tensors[:2], "label": tensors[2]}
        return Finished(columns, Batch(Job(0, 0, np.arange(2), np.arange(2)), columns), Stage("finish"))

    def test_the_consumers_stream_waits_and_the_host_does_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        played = Played(monkeypatch)
        lane, batch = HandOver(torch.device("cpu")), self.batch(played)
        lane.before()
        lane.made(batch)
        lane.taken(batch)
        assert played.notes == [
            "consumer waits for whole",
            "view 1 is used on consumer",
            "view 2 is used on consumer",
            "labels is used on consumer",
            "passed recorded on consumer",
        ]

    def test_a_tensor_on_the_cpu_is_passed_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Such as a user's operation on whole batches may give."""
        played = Played(monkeypatch)
        lane, batch = HandOver(torch.device("cpu")), self.batch(played)
        batch.output["label"] = torch.zeros(1)
        lane.made(batch)
        lane.taken(batch)
        assert [note for note in played.notes if "used" in note] == [
            "view 1 is used on consumer",
            "view 2 is used on consumer",
        ]

    def test_only_the_thread_waits_for_a_consumer_that_lags_behind(self, monkeypatch: pytest.MonkeyPatch) -> None:
        played = Played(monkeypatch)
        lane = HandOver(torch.device("cpu"))
        for _ in range(BEHIND + 2):
            batch = self.batch(played)
            lane.made(batch)
            lane.taken(batch)
        assert "host waits for passed" not in played.notes
        lane.before()
        assert played.notes.count("host waits for passed") == 2
        lane.before()
        assert played.notes.count("host waits for passed") == 2
        assert len(lane._passed) == handover.BEHIND
