"""Batches of any work, made by worker processes: what comes out, and that it is the consumer's own."""

from __future__ import annotations

import os
from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from gpupipe.batch import Batch, Columns, Job, Ragged
from gpupipe.decode.torch import TorchEngine
from gpupipe.workers.packing import pack, unpack
from gpupipe.workers.pinning import pinned
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

    def __call__(self, job: Job, out: Columns) -> Batch:
        for name, dtype in (("image", torch.uint8), ("mask", torch.int64)):
            for view in out[name]:
                view.copy_(torch.from_numpy(job.indices).to(dtype).view(-1, *[1] * (view.dim() - 1)).expand_as(view))
        text = [f"sample {index}" for index in job.indices]
        return Batch(job, {"key": text, **out, "label": torch.from_numpy(job.indices)}, bytes_read=len(job))


class Objects:
    """Batches of a dataset of any kind."""

    layout = ()

    def __call__(self, job: Job, out: Columns) -> Batch:
        assert out == {}
        images = torch.from_numpy(job.indices).view(-1, 1, 1).expand(-1, 300, 300).float()
        return Batch(job, {"": Pair({"images": images}, [int(job.indices[0]), "text"])})


def jobs(steps: int) -> Iterator[Job]:
    for step in range(steps):
        rows = np.arange(step * ROWS, (step + 1) * ROWS)
        yield Job(0, 0, rows, rows, step)


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


@pytest.mark.parametrize(
    ("workers", "options"),
    [(0, {}), (1, {}), (2, {}), (2, {"multiprocessing_context": "spawn"})],
    ids=["none", "one", "two", "spawned"],
)
def test_a_batch_comes_with_its_job_and_all_its_columns(workers: int, options: dict[str, Any]) -> None:
    engine = opened(Numbers(), workers, **options)
    try:
        batches = list(engine.stream(jobs(12)))  # more than slots
    finally:
        engine.close()
    assert [batch.job.step for batch in batches] == list(range(12))
    for batch in batches:
        numbers = batch.job.indices.tolist()
        assert list(batch.columns) == ["key", "image", "mask", "label"]
        assert batch.columns["key"] == [f"sample {number}" for number in numbers]
        assert batch.columns["label"].tolist() == numbers
        assert [view.shape for view in batch.columns["image"]] == [(ROWS, 5, 4, 3), (ROWS, 2, 2, 3)]
        for view in (*batch.columns["image"], *batch.columns["mask"]):
            assert view.flatten(1).amin(1).tolist() == view.flatten(1).amax(1).tolist() == numbers
        assert batch.bytes_read == ROWS


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
    array, tensor = np.random.default_rng(0).random((300, 400)), torch.randn(200, 200)
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
    made = pinned(value)
    theirs = torch.utils.data._utils.pin_memory.pin_memory(value)
    assert str(made) == str(theirs)
    assert type(made["more"]) is OrderedDict
    assert made["boxes"].values.tolist() == [1, 1]
    assert zero.tolist() == [0, 0]
    assert value["pair"].second[0] is zero
