"""Loader.stats(): what is counted, over which window, and that progress bars and logs take it as it is."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import torch
from images import encode, picture

import gpupipe
from gpupipe.batch import Batch, Job
from gpupipe.device.finishing import Finished
from gpupipe.host.tracing import Span, Stage
from gpupipe.loader.stats import Meter, gpu_memory

ENGINES = [("torch", 0), ("torch", 2), ("dali", 1)]


def loader(data: object, engine: str = "torch", workers: int = 0, **options: object) -> gpupipe.Loader:
    recipe = gpupipe.imagenet_eval(32)
    return gpupipe.Loader(data, recipe, 4, engine=engine, num_workers=workers, device="cpu", **options)


@pytest.mark.parametrize(("engine", "workers"), ENGINES)
def test_counters(engine: str, workers: int, folder: Path) -> None:
    sizes = [path.stat().st_size for path in sorted(folder.glob("*/*.jpg"))]
    with loader(folder, engine, workers) as made:
        for step, (images, _) in enumerate(made, start=1):
            stats = made.stats()
            assert stats["batches"] == step
            assert stats["images"] == min(4 * step, 25)
            assert stats["bytes_read"] == sum(sizes[: 4 * step])
            assert len(images) == (4 if step < 7 else 1)
        for _ in made:
            break
        assert made.stats()["images"] == 25 + 4  # over the loader's life
        assert made.stats()["bad_samples"] == 0


@pytest.mark.parametrize(("engine", "workers"), ENGINES)
def test_values_are_plain_numbers(engine: str, workers: int, folder: Path) -> None:
    with loader(folder, engine, workers) as made:
        assert {type(value) for value in made.stats().values()} <= {int, float}
        list(made)
        stats = made.stats()
        assert {type(value) for value in stats.values()} <= {int, float}
        assert 0 <= stats["wait_share"] <= 1
        assert stats["img_per_s"] > 0
        assert stats["mb_per_s"] > 0
        assert 0 < stats["first_batch_s"] <= stats["wait_s"] + stats["finish_s"]
        assert ("queue_depth" in stats) == (engine == "torch")
    assert "queue_depth" not in made.stats()  # closed


class Script:
    """A meter between an engine and a consumer whose times are written down."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        self.meter = Meter()

    def iterate(self, waits: list[float], finish: float, step: float) -> None:
        def batches():
            for wait in waits:
                self.now += wait
                yield Batch(Job(0, 0, np.arange(8), np.arange(8)), {}, bytes_read=2_000_000)

        self.meter.begin()
        made = batches()
        while (batch := self.meter.waited(made)) is not None:
            with Stage("finish") as stage:
                self.now += finish
            self.meter.delivered(Finished(None, batch, stage))
            self.now += step


def test_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch)
    script.iterate([10.0, 1.0, 2.0], finish=0.5, step=3.5)
    stats = script.meter.as_dict()
    # From the first batch to the third: twice 3.5 of step and 0.5 of finish, and waits of 1 and 2.
    assert stats["img_per_s"] == pytest.approx(16 / 11)
    assert stats["mb_per_s"] == pytest.approx(4 / 11)
    assert stats["wait_share"] == pytest.approx(3 / 11)
    assert stats["first_batch_s"] == pytest.approx(10.5)
    assert stats["wait_s"] == pytest.approx(13)
    assert stats["finish_s"] == pytest.approx(1.5)
    script.iterate([2.0, 4.0], finish=0.5, step=0.5)
    stats = script.meter.as_dict()
    assert stats["img_per_s"] == pytest.approx(8 / 5)  # of the new iteration
    assert stats["first_batch_s"] == pytest.approx(2.5)
    assert stats["wait_s"] == pytest.approx(19)  # of both
    assert stats["batches"] == 5


def test_rates_need_two_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch)
    assert script.meter.as_dict()["img_per_s"] == 0
    script.iterate([1.0], finish=0.0, step=1.0)
    stats = script.meter.as_dict()
    assert (stats["img_per_s"], stats["wait_share"], stats["images"]) == (0, 0, 8)


def test_queue_depth_is_what_the_workers_have_made(folder: Path) -> None:
    def filled(made: gpupipe.Loader) -> float:
        until = time.monotonic() + 30
        while made.stats()["queue_depth"] < 4 and time.monotonic() < until:
            time.sleep(0.01)
        return made.stats()["queue_depth"]

    with loader(folder, workers=2, prefetch_factor=2) as made:
        batches = iter(made)
        next(batches)
        assert filled(made) == 4  # 2 workers with 2 batches each
        list(batches)
        assert filled(made) == 4  # of the next epoch
    with loader(folder, workers=2, prefetch_factor=2, persistent_workers=False) as made:
        list(made)
        assert made.stats()["queue_depth"] == 0


def test_queue_depth_counts_a_batch_that_waits_for_an_earlier_one() -> None:
    class FirstIsSlow:
        def __len__(self) -> int:
            return 16

        def __getitem__(self, index: int) -> tuple[bytes, int]:
            if index == 4:
                time.sleep(1)
            return encode(picture(40, 40, index)), index

    with loader(FirstIsSlow(), workers=2, prefetch_factor=1, multiprocessing_context="fork") as made:
        batches = iter(made)
        next(batches)
        next(batches)  # the second came while the third was in the queue
        assert made.stats()["queue_depth"] >= 1


def test_bad_samples_are_counted(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for number in range(4):
        (tmp_path / "a" / f"{number}.jpg").write_bytes(encode(picture(40, 50, number)))
    (tmp_path / "a" / "2.jpg").write_bytes(b"no image")
    with loader(tmp_path, on_error="skip") as made:
        list(made)
        assert made.stats()["bad_samples"] == 1


@pytest.mark.parametrize(("engine", "workers"), ENGINES)
def test_spans_say_who_did_what_when(engine: str, workers: int, folder: Path) -> None:
    with loader(folder, engine, workers) as made:
        spans: list[Span] = []
        made.meter.spans = spans
        begin = time.perf_counter()
        count = len(list(made))
        end = time.perf_counter()
    assert sorted({span.stage for span in spans}) == ["decode", "finish", "read", "wait"]
    assert sum(span.stage == "finish" for span in spans) == count
    parts = count + (max(workers, 1) - 1 if engine == "torch" else 0)  # all workers make the first batch
    assert [sum(span.stage == stage for span in spans) for stage in ("read", "decode")] == [parts, parts]
    assert all(begin <= span.start <= span.end <= end for span in spans)
    who = {stage: {span.who for span in spans if span.stage == stage} for stage in ("wait", "read", "decode")}
    assert who["wait"] == {"consumer"}
    if engine == "dali":
        assert who["decode"] == {"DALI"}
    else:
        assert who["read"] == who["decode"] == ({"worker 0", "worker 1"} if workers else {"consumer"})


def test_tqdm_takes_them(folder: Path) -> None:
    tqdm = pytest.importorskip("tqdm")
    with loader(folder) as made, tqdm.tqdm(made, disable=False, file=open("/dev/null", "w")) as bar:
        for _ in bar:
            bar.set_postfix(made.stats())
        assert "img_per_s=" in bar.postfix
        assert "bytes_read=" in bar.postfix


def test_tensorboard_takes_them(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with loader(folder) as made, SummaryWriter(str(tmp_path)) as writer:
        for step, _ in enumerate(made):
            for name, value in made.stats().items():
                writer.add_scalar(f"loader/{name}", value, step)
    events = EventAccumulator(str(tmp_path)).Reload()
    images = [event.value for event in events.Scalars("loader/images")]
    assert images == [4, 8, 12, 16, 20, 24, 25]
    assert np.isfinite([event.value for event in events.Scalars("loader/img_per_s")]).all()


def test_gpu_memory_is_what_the_driver_and_torch_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100_000_000, 140_000_000_000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 2_000_000_000)
    assert gpu_memory(torch.device("cuda", 0)) == {"gpu_used_mb": 139_900.0, "gpu_torch_mb": 2000.0}
    assert gpu_memory(torch.device("cpu")) == {}
