"""Ranges for profilers: their names, how they nest, and that nothing is opened where nobody listens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import gpupipe
from gpupipe.host.tracing import Stage


def ranges(data: Path, engine: str, workers: int) -> list[tuple[str, float, float]]:
    """The ranges of an epoch that torch.profiler sees: name, start, end."""
    recipe = gpupipe.imagenet_eval(32)
    with gpupipe.Loader(data, recipe, 8, engine=engine, num_workers=workers, device="cpu") as loader:
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            steps = len(list(loader))
        assert steps == 4
    events = [event for event in profiler.events() if event.name.startswith("gpupipe.")]
    return sorted(((e.name, e.time_range.start, e.time_range.end) for e in events), key=lambda e: e[1])


def inside(inner: tuple[str, float, float], outer: tuple[str, float, float]) -> bool:
    return outer[1] <= inner[1] <= inner[2] <= outer[2]


def test_all_four_without_workers(folder: Path) -> None:
    found = ranges(folder, "torch", 0)
    by_name = {name: [e for e in found if e[0] == f"gpupipe.{name}"] for name in ("wait", "read", "decode", "finish")}
    assert {name: len(events) for name, events in by_name.items()} == {"wait": 4, "read": 4, "decode": 4, "finish": 4}
    for step in range(4):
        wait, read, decode, finish = (by_name[name][step] for name in by_name)
        assert inside(read, wait)
        assert inside(decode, wait)
        assert wait[1] <= read[2] <= decode[1]
        assert wait[2] <= finish[1] <= finish[2]
        assert step == 3 or finish[2] <= by_name["wait"][step + 1][1]


def test_wait_and_finish_with_workers(folder: Path) -> None:
    assert [name for name, _, _ in ranges(folder, "torch", 1)] == ["gpupipe.wait", "gpupipe.finish"] * 4


def test_dali(folder: Path) -> None:
    names = [name for name, _, _ in ranges(folder, "dali", 1)]
    assert {"gpupipe.wait", "gpupipe.read", "gpupipe.decode"} <= set(names)


@pytest.fixture
def nvtx(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stands in for NVTX: what is pushed and popped."""
    calls: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", lambda name: calls.append(f"push {name}"))
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: calls.append("pop"))
    return calls


def test_nvtx_where_cuda_is_in_use(nvtx: list[str]) -> None:
    with Stage("wait"), Stage("read"):
        pass
    assert nvtx == ["push gpupipe.wait", "push gpupipe.read", "pop", "pop"]


def test_nvtx_is_popped_after_an_error(nvtx: list[str]) -> None:
    with pytest.raises(ValueError, match="bad"), Stage("wait"):
        raise ValueError("bad")
    assert nvtx == ["push gpupipe.wait", "pop"]


def test_a_profiler_takes_the_place_of_nvtx(nvtx: list[str]) -> None:
    with profile(activities=[ProfilerActivity.CPU]), Stage("wait"):
        pass
    assert nvtx == []


def test_a_range_in_which_the_profiler_starts_or_stops_is_closed_as_it_was_opened(nvtx: list[str]) -> None:
    profiler = profile(activities=[ProfilerActivity.CPU])
    with Stage("wait"):
        profiler.start()
    with Stage("read"):
        profiler.stop()
    assert nvtx == ["push gpupipe.wait", "pop"]


def test_nothing_is_opened_where_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("opened")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", refuse)
    monkeypatch.setattr(torch.profiler, "record_function", refuse)
    with Stage("decode") as stage:
        pass
    assert stage.end >= stage.start > 0
    assert stage.span("worker 1") == ("decode", "worker 1", stage.start, stage.end)
