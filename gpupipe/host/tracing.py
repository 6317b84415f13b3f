"""What a stage of the pipeline took, and the same stage as a range in torch.profiler and in NVIDIA's Nsight Systems.

    wait     the consumer stands in next() until the engine's batch is there
    read     the encoded bytes of a batch are fetched
    storage  as far as it waits there for an object storage; no range of its own
    decode   they become uint8 pixels, cropped and resized
    finish   uint8 pixels become the recipe's dtype and layout

The ranges are called "gpupipe.wait" and so on. A profiler shows those of its own process and thread: wait and finish in
the training process; read and decode there too where the torch engine has no workers.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Literal, NamedTuple

import torch
import torch.utils.data

__all__ = ["AHEAD", "Span", "Stage", "StageName", "beside_consumer", "who"]

AHEAD = "gpupipe-ahead"  # the thread that makes batches ahead of the consumer

StageName = Literal["wait", "read", "storage", "decode", "finish"]


class Span(NamedTuple):
    """When someone was busy with a stage.

    who:        "worker 0" and so on, "consumer" for the process that iterates, "DALI" for DALI's threads and the GPU.
    start, end: seconds of `time.perf_counter`, on Linux (CLOCK_MONOTONIC) one clock for all processes of a machine.
    """

    stage: StageName
    who: str
    start: float
    end: float


class Stage:
    """`with Stage("read") as read: ...` measures the block and marks it as a range for whatever profiler listens.

    Where none listens that costs 1.5 us (2 cores of an AMD EPYC, a virtual machine). `record_function` alone would take
    16 us even then, so it is used only while a profiler runs on this thread; `emit_nvtx` counts as one and turns its
    ranges into NVTX ranges. Else NVTX ranges are opened directly where this process uses CUDA, for Nsight Systems.
    """

    __slots__ = ("_nvtx", "_record", "end", "name", "start")

    def __init__(self, name: StageName) -> None:
        self.name: StageName = name
        self.start = self.end = 0.0
        self._record: Any = None
        self._nvtx = False

    def __enter__(self) -> Stage:
        if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
            self._record = torch.profiler.record_function(f"gpupipe.{self.name}")
            self._record.__enter__()
        elif torch.cuda.is_initialized():
            torch.cuda.nvtx.range_push(f"gpupipe.{self.name}")
            self._nvtx = True
        self.start = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.end = time.perf_counter()
        if self._record is not None:
            self._record.__exit__(*error)
            self._record = None
        elif self._nvtx:
            torch.cuda.nvtx.range_pop()
            self._nvtx = False

    @property
    def seconds(self) -> float:
        """How long the block took."""
        return self.end - self.start

    def span(self, who: str) -> Span:
        """The block as a span."""
        return Span(self.name, who, self.start, self.end)


def who() -> str:
    """Who runs this: a DataLoader's worker, by its number, or the consumer."""
    worker = torch.utils.data.get_worker_info()
    return "consumer" if worker is None else f"worker {worker.id}"


def beside_consumer() -> bool:
    """Whether this is the thread that makes batches ahead, so that the consumer's runs at the same time."""
    return threading.current_thread().name == AHEAD
