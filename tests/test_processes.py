"""What the loader says of workers that die or hang, and of user code that fails. Rows 19 to 26 themselves are run by
test_reliability.py."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

BENCH = Path(__file__).parent.parent / "bench"
sys.path.append(str(BENCH))

import processes_fakes as fakes  # noqa: E402
from reliability.case import Case  # noqa: E402
from reliability.contenders import contender  # noqa: E402
from reliability.data import Numbered  # noqa: E402
from reliability.rows import ROWS  # noqa: E402
from reliability.sandbox import Sandbox  # noqa: E402

import gpupipe  # noqa: E402
from gpupipe.batch import Job  # noqa: E402
from gpupipe.host import processes, whereabouts  # noqa: E402
from gpupipe.workers.board import BATCH, IDLE, Board  # noqa: E402
from gpupipe.workers.interrupts import interrupts_held  # noqa: E402
from gpupipe.workers.pickling import check_picklable  # noqa: E402
from gpupipe.workers.watched import _Watched  # noqa: E402

ENGINES = [("torch", 0), ("torch", 2), ("dali", 1)]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        yield sandbox


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in fakes.MESSAGES + fakes.OTHERS])
def test_case(sandbox: Sandbox, case: Case) -> None:
    outcome = sandbox.run_case(case, contender("gpupipe"), 0)
    assert outcome.status == "passed", outcome.reason


DALI_CASES = [
    *[case for case in ROWS[22].cases if case.name in ("SIGINT in the first batch", "SIGINT in a later epoch")],
    *[case for case in ROWS[23].cases if case.name == "kill -9"],
    *ROWS[25].cases,
]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in DALI_CASES])
def test_dali(sandbox: Sandbox, case: Case) -> None:
    outcome = sandbox.run_case(case, contender("gpupipe-dali"), 0)
    assert outcome.status == "passed", outcome.reason


def open_loader(data: Any, engine: str = "torch", workers: int = 0, **options: Any) -> gpupipe.Loader:
    return gpupipe.Loader(
        data, gpupipe.imagenet_train(8), 4, engine=engine, num_workers=workers, device="cpu", **options
    )


def test_a_hang_ends_by_default() -> None:
    with open_loader(Numbered(8), workers=1) as loader:
        assert loader.timeout == 300


class Broken(Numbered):
    def touch(self, index: int) -> None:
        if index == 5:
            raise LookupError("the user's own words")


@pytest.mark.parametrize(("engine", "workers"), ENGINES)
class TestUserCode:
    def test_a_datasets_exception_keeps_its_traceback(self, engine: str, workers: int) -> None:
        with (
            open_loader(Broken(8), engine, workers) as loader,
            pytest.raises(
                gpupipe.SampleError, match=r"sample 5 \(Broken\[5\]\): .*LookupError: the user's own"
            ) as caught,
        ):
            list(loader)
        error = caught.value
        assert isinstance(error.__cause__, LookupError)
        raised = 'raise LookupError("the user\'s own words")'
        if engine == "dali" or not workers:  # else a worker has met it, whose frames come as text
            assert traceback.extract_tb(error.__cause__.__traceback__)[-1].line == raised
        assert raised in "".join(traceback.format_exception(error))
        assert error.original.rstrip().endswith("LookupError: the user's own words")
        assert "in touch" in error.original

    def test_it_stays_where_the_sample_is_skipped(self, engine: str, workers: int) -> None:
        with open_loader(Broken(8), engine, workers, on_error="skip") as loader:
            list(loader)
            (error,) = loader.bad_samples
        sent = pickle.loads(pickle.dumps(error))
        for one in (error, sent):
            assert (one.index, one.location) == (5, "Broken[5]")
            assert "in touch" in one.original
            assert "in touch" in "".join(traceback.format_exception(one))

    def test_an_orders_exception_names_the_step(self, engine: str, workers: int) -> None:
        with (
            open_loader(Numbered(16), engine, workers, order=fakes.Late(16)) as loader,
            pytest.raises(
                gpupipe.ConfigError, match=r"LookupError at step 2 of epoch 0 \(positions 8 to 11\)"
            ) as caught,
        ):
            list(loader)
        assert caught.value.__cause__ is fakes.Late.error

    def test_a_samplers_exception_names_the_step(self, engine: str, workers: int) -> None:
        class Sampler(torch.utils.data.Sampler[int]):
            def __len__(self) -> int:
                return 8

            def __iter__(self) -> Iterator[int]:
                yield 1
                raise LookupError("no such class")

        with (
            open_loader(Numbered(16), engine, workers, order=Sampler()) as loader,
            pytest.raises(gpupipe.ConfigError, match="LookupError at step 0") as caught,
        ):
            list(loader)
        assert isinstance(caught.value.__cause__, LookupError)


class Holder:
    """Has parts."""

    def __init__(self, **parts: Any) -> None:
        self.__dict__.update(parts)


class TestPickling:
    @pytest.mark.parametrize(
        ("sent", "path"),
        [
            (Holder(first=1, decode=lambda data: data), r"dataset\.decode \(function\)"),
            (Holder(inner=Holder(lock=threading.Lock())), r"dataset\.inner\.lock \(lock\)"),
            (
                Holder(steps=[len, {"last": Holder(made=(x for x in ()))}]),
                r"dataset\.steps\[1\]\['last'\]\.made \(generator\)",
            ),
        ],
    )
    def test_the_part_is_named(self, sent: Any, path: str) -> None:
        with pytest.raises(gpupipe.ConfigError, match=path):
            check_picklable("dataset", sent, "spawn")

    def test_what_only_a_start_may_pickle_is_allowed(self) -> None:
        context = multiprocessing.get_context("spawn")
        array = np.arange(4)
        sent = Holder(
            lock=context.Lock(), value=context.Value("i"), array=array, tensor=torch.arange(4), fork=os.getpid
        )
        before = len(os.listdir("/proc/self/fd"))
        check_picklable("dataset", sent, "spawn")
        assert len(os.listdir("/proc/self/fd")) <= before  # fewer where what earlier tests left is collected now
        assert not sent.tensor.is_shared()
        with pytest.raises(RuntimeError, match="inheritance"):
            pickle.dumps(sent.lock)

    def test_a_circle_is_searched_no_longer_than_needed(self) -> None:
        sent = Holder(decode=lambda data: data)
        sent.__dict__ = {"me": sent, **sent.__dict__}
        with pytest.raises(gpupipe.ConfigError, match=r"me.* \(Holder\) can't be pickled"):
            check_picklable("dataset", sent, "spawn")


def test_the_program_may_choose_a_start_method_after_it_has_built_a_loader() -> None:
    program = (
        "import multiprocessing, gpupipe\n"
        "with gpupipe.Loader([(b'', 0)], gpupipe.imagenet_eval(8), num_workers=1, engine='torch', device='cpu'):\n"
        "    multiprocessing.set_start_method('spawn')\n"
        "assert multiprocessing.get_start_method() == 'spawn'"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=BENCH.parent)


SPAWNING = """
import gpupipe

class Images(list):
    pass

try:
    with gpupipe.Loader(
        Images([(b"", 0)]), gpupipe.imagenet_eval(8), engine="torch", device="cpu", num_workers=1,
        multiprocessing_context="spawn",
    ) as loader:
        next(iter(loader))
except gpupipe.WorkerError as error:
    print(error)
"""


class TestSpawnedWorkersThatDoNotStart:
    def told(self, *arguments: str, program: str = "") -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            input=program,
            capture_output=True,
            text=True,
            check=True,
            cwd=BENCH.parent,
            env=os.environ | {"PYTHONPATH": str(BENCH.parent)},
        )
        assert "Error: " in done.stderr  # why, as the worker printed it
        assert "at its start; what it printed says why; with spawn or forkserver" in done.stdout
        return done.stdout

    @pytest.mark.parametrize("how", ["-c", "stdin"])
    def test_a_program_without_a_file_is_not_told_of_main(self, how: str) -> None:
        """As in a notebook, whose `__main__` has no file either."""
        message = self.told("-c", SPAWNING) if how == "-c" else self.told("-", program=SPAWNING)
        assert "put the dataset into a module" in message
        assert "multiprocessing_context='fork'" in message
        assert "__main__" not in message

    def test_a_script_is(self, tmp_path: Path) -> None:
        (tmp_path / "script.py").write_text(SPAWNING)
        assert "below `if __name__ == '__main__':`" in self.told(str(tmp_path / "script.py"))


class TestPersistentWorkers:
    def test_an_interrupt_before_they_have_begun_anew(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupt(iterator: object) -> None:
            raise KeyboardInterrupt

        with open_loader(Numbered(40), workers=2, persistent_workers=True) as loader:
            next(iter(loader))
            with monkeypatch.context() as patches:
                patches.setattr(_Watched, "_get_data", interrupt)  # which waits until each says that it begins anew
                with pytest.raises(KeyboardInterrupt):
                    next(iter(loader))
            assert [labels.tolist() for _, labels in loader] == np.arange(40).reshape(10, 4).tolist()
        assert not multiprocessing.active_children()


class Interrupted(threading.Condition):
    """Ctrl-C in one of the moments that Python's own has for it: the lock is taken, or its waiter has been woken."""

    where: str | None = None

    def __enter__(self) -> bool:
        taken = super().__enter__()
        self.interrupt("lock")
        return taken

    def notify(self, n: int = 1) -> None:
        if self.where == "notify" and self._waiters:
            self._waiters[0].release()
        self.interrupt("notify")
        super().notify(n)

    def interrupt(self, where: str) -> None:
        if where == self.where:
            type(self).where = None
            raise KeyboardInterrupt


@pytest.mark.parametrize("where", ["lock", "notify"])
def test_a_ctrl_c_while_a_task_is_sent_keeps_no_worker_from_its_end(where: str) -> None:
    with open_loader(Numbered(400), workers=2) as loader:
        iterator = iter(loader)
        next(iterator)
        inner = loader._engine._iterator
        once = type("Once", (Interrupted,), {"where": where})
        for tasks in inner._index_queues:
            while not tasks._notempty._waiters:  # for something to send
                time.sleep(0.001)
            tasks._notempty.__class__ = once
        with pytest.raises(KeyboardInterrupt):
            list(iterator)
    assert [worker.exitcode for worker in inner._workers] == [0, 0]  # by themselves, as they were told


AT_EXIT = """
import threading, torch, gpupipe

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 10**9

    def __getitem__(self, index):
        return index

loader = gpupipe.Loader(Numbers(), None, 4, num_workers=1, multiprocessing_context="fork")
iterator = iter(loader)
begun = threading.Event()

def iterate():
    for batch in iterator:
        begun.set()

if __name__ == "__main__":
    {how}
"""


@pytest.mark.parametrize(
    "how", ["next(iterator)", "threading.Thread(target=iterate, daemon=True).start(); begun.wait()"]
)
def test_a_program_that_leaves_its_loader_open_ends_without_a_word(how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AT_EXIT.format(how=how)], capture_output=True, text=True, check=True, cwd=BENCH.parent
    )
    assert done.stderr == ""


FORKING = """
import os, torch, gpupipe

class Opened(torch.utils.data.Dataset):
    opened = False

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor([index, torch.utils.data.get_worker_info().dataset.opened])

def init(worker):
    torch.utils.data.get_worker_info().dataset.opened = True

data = Opened()
order = torch.utils.data.SequentialSampler(data)
options = dict(order=order, num_workers=2, worker_init_fn=init, multiprocessing_context="fork")
with gpupipe.Loader(data, None, 4, **options) as loader:
    expected = [batch.tolist() for batch in loader]
    assert expected == [[[number, 1] for number in range(first, first + 4)] for first in (0, 4)]
    child = os.fork()
    same = [batch.tolist() for batch in loader] == expected
    if not child:
        loader.close()
        os._exit(not same)  # else multiprocessing ends the workers of the parent, which it takes for this one's
    assert os.waitpid(child, 0)[1] == 0
    assert same and [batch.tolist() for batch in loader] == expected
"""


def test_a_fork_between_two_epochs_has_workers_of_its_own_that_are_set_up() -> None:
    command = [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", FORKING]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=BENCH.parent, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_workers_end_also_where_they_cannot_be_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(iterator: object) -> bool:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_Watched, "_asked_to_end", fail)
    with open_loader(Numbered(40), workers=2) as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(RuntimeError, match="new thread"):
            loader.close()
    assert not multiprocessing.active_children()


@pytest.mark.usefixtures("interruptible")
class TestInterrupts:
    def test_comes_at_the_end_and_once(self) -> None:
        steps = []

        def interrupted() -> None:
            with interrupts_held() as held:
                for _ in range(2):
                    signal.raise_signal(signal.SIGINT)
                steps.append(held.pending)

        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert steps == [True]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def test_not_on_top_of_another(self) -> None:
        def interrupted() -> None:
            try:
                raise KeyboardInterrupt("the first")
            finally:
                with interrupts_held():
                    signal.raise_signal(signal.SIGINT)

        with pytest.raises(KeyboardInterrupt, match="the first"):
            interrupted()

    def test_a_finalizer_says_nothing(self, capsys: pytest.CaptureFixture[str]) -> None:
        def iteration() -> Iterator[int]:
            try:
                yield 1
            finally:
                with interrupts_held():
                    signal.raise_signal(signal.SIGINT)

        next(iteration())
        assert capsys.readouterr().err == ""

    def test_a_handler_of_the_users_is_called(self) -> None:
        calls: list[int] = []
        before = signal.signal(signal.SIGINT, lambda number, frame: calls.append(number))
        try:
            with interrupts_held():
                signal.raise_signal(signal.SIGINT)
                assert calls == []
            assert calls == [signal.SIGINT]
        finally:
            signal.signal(signal.SIGINT, before)

    def test_elsewhere_than_in_the_main_thread_nothing_is_held(self) -> None:
        found = []

        def run() -> None:
            with interrupts_held():
                found.append(signal.getsignal(signal.SIGINT))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        assert found == [signal.default_int_handler]


def no_descriptor(path: Path) -> bytes:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))


class TestProcesses:
    def test_states_and_ends(self) -> None:
        with subprocess.Popen(["sleep", "100"]) as child:
            identity = processes.Identity(child.pid, processes._fields(child.pid)[processes.START_TIME])
            assert identity.runs()
            assert not processes.Identity(child.pid, "1").runs()  # an earlier process of that number
            child.send_signal(signal.SIGSTOP)
            while not processes.is_stopped(child.pid):
                time.sleep(0.001)
            assert processes.state(child.pid) == "is stopped"
            assert identity.runs()
            child.kill()
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            assert not identity.runs()  # though it is not reaped
            assert processes.state(child.pid) == "has ended"
        assert not identity.runs()
        assert processes.state(child.pid) == "has ended"
        assert not processes.is_stopped(child.pid)
        assert processes.Identity.own().runs()

    def test_what_cannot_be_read_counts_as_running(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A process without a free file descriptor must not take the loader's for dead."""
        identity = processes.Identity.own()
        monkeypatch.setattr(Path, "read_bytes", no_descriptor)
        assert identity.runs()
        assert not processes.is_stopped(identity.pid)
        assert processes.state(identity.pid) == "is in a state that can't be read (Too many open files)"

    def test_endings(self) -> None:
        assert processes.ending(-9) == "was killed by SIGKILL"
        assert processes.ending(-60) == "was killed by signal 60"
        assert processes.ending(0) == "ended with exit code 0"


def test_a_board_tells_what_each_worker_is_at() -> None:
    board = Board(2, 8)
    try:
        assert board.starting(1)
        assert board.doing(1) == "at its start"
        board.open_row(1)
        assert (board.starting(1), board.doing(1)) == (False, "between two batches")
        assert board.place(1) is None
        board.begin(1, Job(0, 3, np.arange(8), np.arange(100, 108), step=2))
        assert board.place(1) == (3, 2)
        assert board.sample(1) is None
        assert board.doing(1) == "at a batch of 8 samples (100, 101, 102, 103, 104, 105, ...)"
        whereabouts.note(104)
        assert board.sample(1) == 104
        assert 0 <= board.seconds(1) < 60
        whereabouts.note(BATCH)
        assert board.sample(1) is None
        whereabouts.note(IDLE)
        assert board.doing(1) == "between two batches"
        assert board.place(1) is board.place(0) is None
        assert board.starting(0)
        board.clear()
        assert board.starting(1)
    finally:
        whereabouts.note_in(memoryview(bytearray(16)).cast("q"))
