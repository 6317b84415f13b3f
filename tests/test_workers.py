"""Batches of any work, made by worker processes: what comes out, and that it is the consumer's own."""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import re
import signal
import time
import types
from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gpupipe
from gpupipe.batch import Batch, Columns, Job, Ragged
from gpupipe.decode.torch import TorchEngine
from gpupipe.host.tracing import Span, who
from gpupipe.workers import watched
from gpupipe.workers.board import Board
from gpupipe.workers.packing import pack, unpack
from gpupipe.workers.slots import Slots
from gpupipe.workers.tasks import Answer, Tasks
from gpupipe.workers.work import Plane

ROWS = 6
Pair = namedtuple("Pair", "first second")


class Numbers:
    """Each row is full of its sample's number."""

    layout = (
        Plane("image", 0, (5, 4, 3), torch.uint8),
        Plane("image", 1, (2, 2, 3), torch.uint8),
        Plane("mask", 0, (5, 4), torch.int64),
    )
    in_parts = True

    def __call__(self, job: Job, out: Columns) -> Batch:
        for name, dtype in (("image", torch.uint8), ("mask", torch.int64)):
            for view in out[name]:
                view.copy_(torch.from_numpy(job.indices).to(dtype).view(-1, *[1] * (view.dim() - 1)).expand_as(view))
        columns = {
            "key": [f"sample {index}" for index in job.indices],
            **out,
            "label": job.indices + 1,
            "boxes": ([np.full((index % 3, 4), index) for index in job.indices], job.indices / 2),
        }
        failures = {row: gpupipe.SampleError(int(n), "here", "bad") for row, n in enumerate(job.indices) if n == 4}
        spans = (Span("decode", who(), 1, 2),)
        collated = job.whole and not failures
        return Batch(job, columns, failures, augmented=True, collated=collated, bytes_read=len(job), spans=spans)


class Objects:
    """Batches of a dataset of any kind."""

    layout = ()
    in_parts = False

    def __call__(self, job: Job, out: Columns) -> Batch:
        assert out == {}
        images = torch.from_numpy(job.indices).view(-1, 1, 1).expand(-1, 300, 300).float()
        return Batch(job, {"": Pair({"images": images}, [int(job.indices[0]), "text"])})


def jobs(steps: int) -> Iterator[Job]:
    for step in range(steps):
        rows = np.arange(step * ROWS, (step + 1) * ROWS)
        yield Job(0, 0, rows, rows, step)


class Traced(Numbers):
    """Says which process made which rows."""

    def __call__(self, job: Job, out: Columns) -> Batch:
        batch = super().__call__(job, out)
        batch.columns["pid"] = np.full(len(job), os.getpid())
        return batch


def opened(work: Any, workers: int, **options: Any) -> TorchEngine:
    if workers:
        options = {"prefetch_factor": 2, "timeout": 60} | options
    return TorchEngine(
        work,
        torch.device("cpu"),
        batch_size=ROWS,
        num_workers=workers,
        dataset=None,
        describe=str,
        generator=torch.Generator(),
        **options,
    )


def check(batches: list[Batch], steps: int) -> None:
    """Those of `Numbers`, in order, whole."""
    assert [batch.job.step for batch in batches] == list(range(steps))
    for batch in batches:
        numbers = batch.job.indices.tolist()
        assert sorted(batch.columns) == ["boxes", "image", "key", "label", "mask"]
        assert batch.columns["key"] == [f"sample {number}" for number in numbers]
        assert batch.columns["label"].tolist() == [number + 1 for number in numbers]
        boxes, halves = batch.columns["boxes"]
        assert [box.tolist() for box in boxes] == [[[number] * 4] * (number % 3) for number in numbers]
        assert halves.tolist() == [number / 2 for number in numbers]
        assert [view.shape for view in batch.columns["image"]] == [(ROWS, 5, 4, 3), (ROWS, 2, 2, 3)]
        for view in (*batch.columns["image"], *batch.columns["mask"]):
            assert view.flatten(1).amin(1).tolist() == view.flatten(1).amax(1).tolist() == numbers
        assert (batch.bytes_read, batch.augmented) == (ROWS, True)
        assert {row: error.index for row, error in batch.failures.items()} == {n: n for n in numbers if n == 4}


@pytest.mark.parametrize(
    ("workers", "options"),
    [(0, {}), (1, {}), (2, {}), (2, {"multiprocessing_context": "spawn"})],
    ids=["none", "one", "two", "spawned"],
)
def test_a_batch_comes_with_its_job_and_all_its_columns(workers: int, options: dict[str, Any]) -> None:
    engine = opened(Numbers(), workers, **options)
    try:
        check(list(engine.stream(jobs(12))), 12)  # more than slots
    finally:
        engine.close()


class TestTheFirstBatch:
    """No worker has anything else to do while it is waited for."""

    def test_all_workers_make_it_together(self) -> None:
        engine = opened(Traced(), 2)
        try:
            first, *others = list(engine.stream(jobs(5)))
        finally:
            engine.close()
        pids = first.columns["pid"].tolist()
        assert pids == sorted(pids, key=pids.index)
        assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [ROWS // 2] * 2
        assert sorted(span.who for span in first.spans) == ["worker 0", "worker 1"]
        assert not first.collated
        for batch in others:
            assert len(set(batch.columns["pid"])) == 1
            assert batch.collated

    def test_a_batch_of_one_row_is_not_shared(self) -> None:
        engine = opened(Traced(), 2)
        row = np.arange(1)
        try:
            (batch,) = engine.stream([Job(0, 0, row, row)])
        finally:
            engine.close()
        assert batch.columns["key"] == ["sample 0"]
        assert batch.collated

    def test_every_stream_has_one(self) -> None:
        engine = opened(Traced(), 2, persistent_workers=True)
        try:
            for _ in range(3):
                batches = list(engine.stream(jobs(3)))
                assert [len(set(batch.columns["pid"])) for batch in batches] == [2, 1, 1]
        finally:
            engine.close()


class Slow(Traced):
    def __call__(self, job: Job, out: Columns) -> Batch:
        (Path(self.folder) / f"{job.seed} {job.step} {job.indices[0]}").touch()
        time.sleep(0.2)
        return super().__call__(job, out)


def test_what_is_left_of_a_stream_is_not_made(tmp_path: Path) -> None:
    """Workers that persist are free for the next one at once."""
    work = Slow()
    work.folder = str(tmp_path)
    engine = opened(work, 2, persistent_workers=True, prefetch_factor=4)
    try:
        stream = engine.stream(replace(job, seed=1) for job in jobs(20))
        next(stream)
        newer = engine.stream(replace(job, seed=2) for job in jobs(3))
        assert list(stream) == []
        stream.close()  # does nothing to the newer one
        assert [batch.job.step for batch in newer] == [0, 1, 2]
        begun = {name.split()[1] for name in os.listdir(tmp_path) if name.startswith("1 ")}
        assert begun <= {"0", "1", "2", "3", "4"}  # of 0 to 8, which had been given to the workers
    finally:
        engine.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_what_the_jobs_raise_comes_after_the_batches_before_it(workers: int) -> None:
    def failing() -> Iterator[Job]:
        yield from jobs(3)
        raise LookupError("no fourth job") from KeyError("the cause")

    engine = opened(Numbers(), workers, **({"persistent_workers": True} if workers else {}))
    try:
        stream = engine.stream(failing())
        check([next(stream) for _ in range(3)], 3)
        with pytest.raises(LookupError, match="no fourth job") as caught:
            next(stream)
        assert isinstance(caught.value.__cause__, KeyError)
        with pytest.raises(StopIteration):
            next(stream)
        check(list(engine.stream(jobs(4))), 4)
    finally:
        engine.close()


def test_what_a_stopped_worker_has_sent_is_there() -> None:
    """Large tensors, too: nothing has to be asked of it."""
    engine = opened(Objects(), 2, timeout=2, multiprocessing_context="fork")  # which starts in time
    try:
        stream = engine.stream(jobs(20))
        next(stream)
        while engine.ready() < 4:
            time.sleep(0.01)
        time.sleep(0.5)  # what counts as ready is with a thread of the worker's, which sends it in a moment
        for worker in multiprocessing.active_children():
            os.kill(worker.pid, signal.SIGSTOP)
        assert [float(next(stream).columns[""].first["images"][0, 1, 2]) for _ in range(4)] == [6, 12, 18, 24]
        with pytest.raises(gpupipe.LoaderTimeoutError, match="is stopped between two batches"):
            next(stream)
    finally:
        engine.close()


# Parts of torch that a later one may lack.


def without(part: str, patches: pytest.MonkeyPatch) -> None:
    """torch's DataLoader, in which that part has another name."""
    module, new = importlib.import_module("torch.utils.data.dataloader"), f"{part}_of_later"
    later = types.ModuleType(module.__name__)
    later.__file__, later.__package__ = module.__file__, module.__package__
    exec(re.sub(rf"\b{part}\b", new, Path(module.__file__).read_text()), vars(later))
    patches.setattr(torch.utils.data, "dataloader", later)
    patches.setattr(torch.utils.data, "DataLoader", later.DataLoader)
    signals = later._utils.signal_handling
    if hasattr(signals, part):
        patches.setattr(signals, new, getattr(signals, part), raising=False)
        patches.delattr(signals, part)


def test_all_parts_of_torchs_that_are_used_are_looked_for() -> None:
    ours = set(vars(watched._Watched)) - {"_get_data", "_process_data", "_reset", "_shutdown_workers"}
    ours |= {
        "_owner",
        "_received",
        "_starting",
        "_cond",
        "_flag",
        "_notempty",
        "_reader",
    }  # the last four are multiprocessing's
    module = set(vars(watched))
    used = {name for name in watched._names(watched._Watched) if re.match("_[a-z]", name)} - ours - module
    assert used == set(watched.PARTS)


LACKED = [*watched.PARTS, "_get_iterator", "_remove_worker_pids", "_MultiProcessingDataLoaderIter"]


@pytest.mark.parametrize(("number", "part"), list(enumerate(LACKED)), ids=LACKED)
def test_a_torch_that_lacks_a_part_still_loads_all_batches(
    number: int, part: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = set(multiprocessing.active_children())  # of loaders that other tests have left to the garbage collector
    watched._say.cache_clear()
    assert watched.missing_parts() == []
    without(part, monkeypatch)
    assert part in watched.missing_parts() or part == "_MultiProcessingDataLoaderIter"
    engine = opened(Numbers(), 2, persistent_workers=number % 2 > 0)
    assert type(engine._loader) is torch.utils.data.DataLoader
    try:
        stream = engine.stream(jobs(9))
        first = next(stream)
        check([first, *stream], 9)
        assert engine.ready() in (None, 0)
        check(list(engine.stream(jobs(2))), 2)
    finally:
        engine.close()
    del engine, stream
    gc.collect()
    assert not set(multiprocessing.active_children()) - before
    (said,) = [record for record in caplog.records if "inner parts" in record.message]
    assert watched.missing_parts()[0] in said.message


def test_errors_of_such_a_torch_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    without("_task_info", monkeypatch)
    engine = opened(Dying(), 2)
    try:
        with pytest.raises(RuntimeError, match=r"DataLoader worker .* exited unexpectedly|killed by signal"):
            list(engine.stream(jobs(9)))
        with pytest.raises(RuntimeError, match=r"exited unexpectedly|killed by signal"):
            list(engine.stream(jobs(9)))
    finally:
        engine.close()


class Dying(Numbers):
    def __call__(self, job: Job, out: Columns) -> Batch:
        if job.step == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(job, out)


@pytest.mark.parametrize("workers", [0, 2])
def test_objects_of_any_kind_need_no_layout(workers: int) -> None:
    engine = opened(Objects(), workers)
    before = len(os.listdir("/proc/self/fd"))
    try:
        batches = list(engine.stream(jobs(8)))
        if workers == 0:
            assert len(os.listdir("/proc/self/fd")) == before
    finally:
        engine.close()
    for step, batch in enumerate(batches):
        made = batch.columns[""]
        assert type(made) is Pair
        assert made.second == [step * ROWS, "text"]
        assert made.first["images"][:, 7, 9].tolist() == list(range(step * ROWS, (step + 1) * ROWS))
        made.first["images"].add_(1)  # it is the consumer's own


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).view(2, 3).t(),
        torch.tensor(3.5),
        torch.zeros(0, 4),
        torch.from_numpy(np.zeros(0, np.int64)),  # whose stride is 0
        torch.tensor(7).expand(1),
        torch.tensor([True, False]),
        torch.randn(3).bfloat16(),
        torch.randn(4).to(torch.float8_e4m3fn),
        torch.randn(2, 2, dtype=torch.complex64),
        torch.randn(2, 2, dtype=torch.complex64).conj(),
        torch.randn(100, 1000),
        torch.randn(3, requires_grad=True),
        torch.nn.Parameter(torch.randn(3)),
        torch.eye(3).to_sparse(),
    ],
    ids=lambda tensor: f"{tensor.dtype} {tuple(tensor.shape)}",
)
def test_any_tensor_comes_back_as_it_was(tensor: torch.Tensor) -> None:
    parts = pack({"key": [tensor, "text"]})
    back = unpack([bytearray(part) for part in parts])["key"][0]
    assert (type(back), back.dtype, back.shape, back.requires_grad) == (
        type(tensor),
        tensor.dtype,
        tensor.shape,
        tensor.requires_grad,
    )
    assert torch.equal(back.to_dense().to(torch.complex128), tensor.to_dense().to(torch.complex128))


def test_large_arrays_are_not_copied_into_the_pickle() -> None:
    array, tensor = np.random.default_rng(0).random((300, 400)), torch.randn(300, 300)
    parts = pack([array, {"x": tensor}])
    assert len(parts[0]) < 1000
    assert [part.nbytes for part in parts[1:]] == [array.nbytes, 4 * tensor.numel()]
    back, inner = unpack([bytearray(part) for part in parts])
    np.testing.assert_array_equal(back, array)
    assert torch.equal(inner["x"], tensor)


def test_all_tensors_are_pinned_as_torch_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self, *_: self + 1)
    zero = torch.zeros(2, dtype=torch.int64)
    value = {
        "images": (zero, zero),
        "boxes": Ragged(zero, zero),
        "pair": Pair(zero, [zero, "text"]),
        "more": OrderedDict(a=zero, b=b"bytes"),
        "array": np.zeros(2),
    }
    tasks = Tasks(Slots(1, 1, [], shared=False), Board(1, 1), 0)
    job = Job(0, 0, np.arange(1), np.arange(1))
    made = Answer(id(tasks), batch=Batch(job, value)).pin_memory().columns
    theirs = torch.utils.data._utils.pin_memory.pin_memory(value)
    assert str(made) == str(theirs)
    assert type(made["more"]) is OrderedDict
    assert made["boxes"].values.tolist() == [1, 1]
    assert zero.tolist() == [0, 0]
    assert value["pair"].second[0] is zero
