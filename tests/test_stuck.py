"""Reads that never end, as those of a mount whose server is gone: `timeout` ends them by name, and so does a Ctrl-C.
Locks of processes that are stopped, or of others."""

from __future__ import annotations

import fcntl
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from images import write_folder
from tars import jpeg, write_samples

import gpupipe
from gpupipe.errors import LoaderTimeoutError
from gpupipe.host import cache, files, interrupting, readers
from gpupipe.host.interrupting import Interrupted, Interrupter
from gpupipe.host.readers import Readers, StuckError
from gpupipe.host.whereabouts import note
from gpupipe.sources.shards import ShardSource

ENGINES = ("torch", "dali")


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """Set at the end of a test, for threads that wait for it."""
    event = threading.Event()
    yield event
    event.set()


def open_loader(data: Any, engine: str, workers: int = 0, **options: Any) -> gpupipe.Loader:
    return gpupipe.Loader(
        data, gpupipe.imagenet_eval(8), 4, engine=engine, num_workers=workers, device="cpu", **options
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_the_timeout_names_the_sample_and_the_next_batches_come(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch, released: threading.Event
) -> None:
    shard = write_samples(tmp_path / "a.tar", count=24)
    read, hung = ShardSource._file, []

    def once(source: ShardSource, index: int, number: int) -> Any:
        data = read(source, index, number)
        if index == 13 and not hung:
            hung.append(threading.current_thread())
            released.wait()
        return data

    monkeypatch.setattr(ShardSource, "_file", once)
    with open_loader(shard, engine, workers=2 * (engine == "dali"), timeout=2) as loader:
        batches = iter(loader)
        given = [next(batches)[1].tolist() for _ in range(3)]
        with pytest.raises(LoaderTimeoutError, match=r"timeout=2 s: sample 13 \(key '.*/?0013' in shard .*a\.tar"):
            next(batches)
        given += [labels.tolist() for _, labels in batches]
        assert hung[0].is_alive()
        again = [labels.tolist() for _, labels in loader]
    assert given == [batch for step, batch in enumerate(again) if step != 3]
    assert len(again) == 6


class Fifo:
    """A user's dataset of files, one of which has become a FIFO that nobody writes into."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, jpeg(0)
        os.mkfifo(folder / "fifo")

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        return (self.folder / "fifo").read_bytes() if index == 9 else self.file, index


@pytest.mark.parametrize("engine", [*ENGINES, None])
def test_a_users_dataset_is_interrupted(tmp_path: Path, engine: str | None) -> None:
    before, others = signal.getsignal(signal.SIGINT), set(threading.enumerate())
    options: dict[str, Any] = {"timeout": 2, "num_workers": int(engine == "dali"), "device": "cpu"}
    recipe = None if engine is None else gpupipe.imagenet_eval(8)
    collate = (
        {"collate_fn": lambda items: (None, torch.tensor([label for _, label in items]))} if engine is None else {}
    )
    with gpupipe.Loader(Fifo(tmp_path), recipe, 4, engine=engine or "auto", **options, **collate) as loader:
        batches = iter(loader)
        given = [next(batches)[1].tolist() for _ in range(2)]
        said = r"step 2 of epoch 0, .* timeout=2 s: sample 9 \(Fifo\[9\]\).* which line of your dataset waits"
        with pytest.raises(LoaderTimeoutError, match=said) as caught:
            next(batches)
        assert isinstance(caught.value.__cause__, KeyboardInterrupt)
        given += [labels.tolist() for _, labels in batches]
    assert given == [[0, 1, 2, 3], [4, 5, 6, 7], [12, 13, 14, 15]]
    assert signal.getsignal(signal.SIGINT) is before
    left = set(threading.enumerate()) - others  # those may read for loaders of other tests
    assert [thread.name for thread in left if thread.name.startswith("gpupipe-")] == []


class Connected(gpupipe.Source):
    """Of a connection that belongs to its thread."""

    fields, fingerprint = gpupipe.Schema({"image": gpupipe.Image(), "label": gpupipe.Scalar("int64")}), "rows"

    def __init__(self) -> None:
        self.rows = sqlite3.connect(":memory:")
        self.rows.execute("CREATE TABLE rows (image BLOB)")
        self.rows.executemany("INSERT INTO rows VALUES (?)", [(jpeg(number),) for number in range(8)])

    def __len__(self) -> int:
        return 8

    def fetch(self, indices: Any) -> Any:
        found = [self.rows.execute("SELECT image FROM rows WHERE rowid=?", (int(at) + 1,)) for at in indices]
        images = [np.frombuffer(rows.fetchone()[0], np.uint8) for rows in found]
        return {"image": gpupipe.Images(images), "label": indices}


def test_a_users_source_is_asked_by_the_thread_that_made_it() -> None:
    for source in (Connected(), Connected().select([5, 2, 3, 0])):
        with open_loader(source, "torch") as loader:
            assert len([labels for _, labels in loader]) == len(source) // 4


class Waiting(Connected):
    def fetch(self, indices: Any) -> Any:
        note(int(indices[0]))
        if indices[0] == 4:
            threading.Event().wait(60)
        return super().fetch(indices)


def test_a_users_source_is_interrupted() -> None:
    with open_loader(Waiting(), "torch", timeout=1) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(LoaderTimeoutError, match=r"timeout=1 s: sample 4 \(Waiting\[4\]\)"):
            next(batches)


class TestInterrupter:
    @pytest.fixture(autouse=True)
    def as_in_a_terminal(self) -> Iterator[None]:
        """A shell's background jobs inherit that SIGINT is ignored."""
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
        signal.signal(signal.SIGINT, before)

    @pytest.fixture
    def interrupter(self) -> Iterator[Interrupter]:
        found = Interrupter(0.1)
        yield found
        found.close()

    def test_where_no_handler_of_pythons_is_set_nothing_is_interrupted(
        self, interrupter: Interrupter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(signal, "getsignal", lambda _: None)  # as where Python is embedded
        with interrupter.limited():
            time.sleep(0.3)

    def test_a_signal_that_is_blocked_is_not_waited_for(self, interrupter: Interrupter) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with interrupter.limited():
                time.sleep(0.3)
            assert signal.sigtimedwait({signal.SIGINT}, 0) is not None
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def test_each_block_has_its_time(self, interrupter: Interrupter) -> None:
        for _ in range(2):
            with pytest.raises(Interrupted), interrupter.limited():
                threading.Event().wait(60)
        with interrupter.limited():
            pass

    def test_a_block_that_ends_meanwhile_is_interrupted_too(self, interrupter: Interrupter) -> None:
        """So that the signal does not come later, upon others."""
        with pytest.raises(Interrupted), interrupter.limited():  # noqa: PT012
            with suppress(KeyboardInterrupt):
                threading.Event().wait(60)
            interrupter._arrived = False
            os.kill(os.getpid(), signal.SIGINT)

    def test_a_ctrl_c_stays_one(self) -> None:
        interrupter = Interrupter(60)
        with pytest.raises(KeyboardInterrupt) as caught, interrupter.limited():
            os.kill(os.getpid(), signal.SIGINT)
        interrupter.close()
        assert caught.type is KeyboardInterrupt

    def test_a_ctrl_c_that_another_thread_gets_ends_a_read(self, released: threading.Event) -> None:
        """As one does that comes just before the wait begins: it does not end that."""
        ended = []

        def read(item: int) -> None:
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)
            released.wait(20)
            ended.append(item)

        with pytest.raises(KeyboardInterrupt):
            Readers(1, 60).map(read, [0])
        assert not ended

    def test_a_handler_of_the_users_is_called(self) -> None:
        calls = []
        signal.signal(signal.SIGINT, lambda number, frame: calls.append(number))
        interrupter = Interrupter(60)
        with interrupter.limited():
            os.kill(os.getpid(), signal.SIGINT)
        interrupter.close()
        assert calls == [signal.SIGINT]

    def test_who_wants_to_be_ended_by_it_is(self) -> None:
        """As GUI programs do, whose own loop lets no Python run."""
        script = (
            "import os, signal, gpupipe.host.interrupting as found\n"
            "signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
            "with found.Interrupter(60).limited():\n    os.kill(os.getpid(), signal.SIGINT)\n    signal.pause()"
        )
        assert subprocess.run([sys.executable, "-c", script], timeout=50, check=False).returncode == -signal.SIGINT

    def test_who_debugs_has_time(self) -> None:
        assert not interrupting._is_debugged(threading.main_thread())
        frame = sys._getframe()
        frame.f_trace = lambda *_: None
        assert interrupting._is_debugged(threading.main_thread())
        frame.f_trace = None


PROGRAM = """
import os, signal, sys, gpupipe
from gpupipe.sources.shards import ShardSource
signal.signal(signal.SIGINT, signal.default_int_handler)

read, (pipe, _) = ShardSource._file, os.pipe()

def never(source, index, number):
    if index == 9:
        print("stuck", flush=True)
        os.read(pipe, 1)
    return read(source, index, number)

ShardSource._file = never
recipe = gpupipe.imagenet_eval(8)
with gpupipe.Loader(sys.argv[1], recipe, 4, engine=sys.argv[2], num_workers=int(sys.argv[3]), device="cpu") as loader:
    list(loader)
"""


@pytest.mark.parametrize(("engine", "workers"), [("torch", 0), ("dali", 2)])
def test_a_ctrl_c_ends_the_program(tmp_path: Path, engine: str, workers: int) -> None:
    shard = write_samples(tmp_path / "a.tar", count=24)
    command = [sys.executable, "-c", PROGRAM, str(shard), engine, str(workers)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "stuck\n"
        program.send_signal(signal.SIGINT)
        try:
            _, said = program.communicate(timeout=60)
        finally:
            program.kill()
    assert program.returncode == -signal.SIGINT
    assert said.count("Traceback") == 1
    assert said.endswith("KeyboardInterrupt\n")


class TestReaders:
    def test_results_are_in_order_and_the_first_error_is_raised(self) -> None:
        before = threading.enumerate()
        pool = Readers(3)
        try:
            assert pool.map(lambda item: item * 2, range(20)) == [2 * item for item in range(20)]
            with pytest.raises(ZeroDivisionError):
                pool.map(lambda item: 1 // (item - 3), range(6))
            with pytest.raises(TimeoutError, match="its own"):  # no thread is stuck
                pool.map(lambda _: (_ for _ in ()).throw(TimeoutError("its own")), range(1))
            assert pool.map(str, range(4)) == ["0", "1", "2", "3"]
        finally:
            pool.close()
        assert not set(threading.enumerate()) - set(before)

    def test_what_is_stuck_is_named_and_left(self, released: threading.Event) -> None:
        pool = Readers(2, timeout=1)

        def read(item: int) -> int:
            note(item)
            if item == 7:
                released.wait()
            note(item + 100)
            return item

        with pytest.raises(StuckError) as caught:
            pool.map(read, [1, 7, 2])
        assert caught.value.index == 7
        assert caught.value.seconds >= 0.9
        assert pool.map(read, [1, 2]) == [1, 2]
        pool.close()  # waits for none that is stuck

    def test_who_has_not_begun_is_at_no_sample(self, released: threading.Event) -> None:
        with pytest.raises(StuckError) as caught:
            Readers(1, timeout=0.1).map(lambda _: released.wait(), range(2))
        assert caught.value.index is None

    def test_closing_waits_for_a_while(self, released: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(readers, "GRACE", 0.05)
        pool = Readers(1)
        asked = threading.Thread(target=pool.map, args=(lambda _: released.wait(), [0]), daemon=True)
        asked.start()
        while not pool._threads:
            pass
        pool.close()
        assert asked.is_alive()

    def test_a_fork_starts_its_own(self) -> None:
        pool = Readers(1)
        assert pool.map(abs, [-1]) == [1]
        child = os.fork()
        if not child:
            os._exit(pool.map(abs, [-7])[0])
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        pool.close()


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A folder, and the process that has locked it and is stopped."""
    (tmp_path / "locked").mkdir()
    child = os.fork()
    if not child:
        fcntl.flock(os.open(tmp_path / "locked", os.O_RDONLY), fcntl.LOCK_EX)
        os.kill(os.getpid(), signal.SIGSTOP)
    os.waitpid(child, os.WUNTRACED)
    yield tmp_path / "locked", child
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


class TestLocks:
    def test_who_can_read_data_can_not_keep_others_from_its_index(self, tmp_path: Path) -> None:
        root = write_folder(tmp_path / "data")
        held = os.open(root, os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_EX)
        assert len(gpupipe.open_source(root)) == 12
        os.close(held)

    def test_a_stopped_process_is_named_and_waited_for_no_longer(
        self, stopped: tuple[Path, int], caplog: pytest.LogCaptureFixture
    ) -> None:
        folder, pid = stopped
        said = rf"process {pid}, which is stopped, builds it, and has given no sign of life for 0 s \(lock: {folder}\)"
        with (
            pytest.raises(TimeoutError, match=said),
            files.folder_lock(folder, doing="builds it", patience=0.2),
        ):
            pass
        (record,) = caplog.records
        assert record.levelname == "WARNING"
        assert f"process {pid}, which is stopped, builds it: this process waits" in record.getMessage()

    def test_others_go_on_without_it(
        self, stopped: tuple[Path, int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        folder, _ = stopped
        monkeypatch.setattr(cache, "PATIENCE", 0.2)
        monkeypatch.setattr(cache, "cache_folder", lambda: folder.parent)
        (folder.parent / "locks").symlink_to(folder.parent)
        with cache.alone("locked", "builds it"):
            pass
        assert caplog.records[-1].levelname == "WARNING"
        assert caplog.messages[-1].endswith(": this one goes on without waiting for it")

    def test_one_that_lives_gives_signs_of_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(files, "BEAT", 0.01)
        os.utime(tmp_path, (0, 0))
        with files.folder_lock(tmp_path, patience=60):
            while not tmp_path.stat().st_mtime:
                pass
        with files.folder_lock(tmp_path, patience=60, alive=lambda: None):  # its work stands still
            os.utime(tmp_path, (0, 0))
        assert not tmp_path.stat().st_mtime
