"""gpupipe profile: the measurement, the rule for the bottleneck, the picture's lanes, and the command."""

from __future__ import annotations

import importlib.metadata
import json
import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from images import encode, picture
from PIL import Image
from torch import nn

import gpupipe
from gpupipe.cli import main
from gpupipe.profiling.report import lines
from gpupipe.profiling.rounds import Part, Profile, measure, open_loader, training_step
from gpupipe.profiling.settings import ProfileSettings
from gpupipe.profiling.timeline import lanes
from gpupipe.profiling.training import WaitClock
from gpupipe.profiling.verdict import judge
from gpupipe.tracing import Span

CLASSES = 5


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads of a model that wait for each other lose much on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Pictures:
    """A dataset of one picture, whose every read takes `seconds`."""

    def __init__(self, side: int, seconds: float = 0.0) -> None:
        self.encoded = encode(picture(side, side), quality=90)
        self.seconds = seconds

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        time.sleep(self.seconds)
        return self.encoded, index % CLASSES


class Light(nn.Module):
    """A model that looks at the mean colour, and takes `seconds` for it."""

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__()
        self.seconds = seconds
        self.linear = nn.Linear(3, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return self.linear(images.mean((2, 3)))


def measured(data: object, model: nn.Module, **changes: object) -> Profile:
    settings = ProfileSettings(**(dict(batch_size=4, workers=2, steps=4, size=32, engine="torch", rounds=3) | changes))
    said: list[str] = []
    with open_loader(data, settings, "cpu") as loader:
        profile = measure(loader, training_step(model, loader.device), settings, said.append)
    assert len(said) == 1 + 2 * settings.rounds
    return profile


class TestMeasurement:
    def test_slow_reads(self) -> None:
        profile = measured(Pictures(48, seconds=0.01), Light())
        assert judge(profile).stage == "read"
        assert profile.per_batch("read") >= 4 * 0.01

    def test_a_slow_model(self) -> None:
        profile = measured(Pictures(48), Light(seconds=0.3), steps=2, workers=1)
        assert judge(profile).stage == "model"

    def test_large_images(self) -> None:
        verdict = judge(measured(Pictures(1200), Light()))
        assert verdict.stage == "decode"
        assert "shrink" in verdict.advice or "--workers" in verdict.advice

    @pytest.mark.parametrize(("engine", "workers"), [("torch", 0), ("dali", 1)])
    def test_other_engines(self, engine: str, workers: int, folder: Path) -> None:
        profile = measured(folder, Light(), engine=engine, workers=workers, rounds=1)
        assert profile.reads_itself == (engine == "dali")
        assert profile.engine == engine
        assert "img/s" in lines(profile, judge(profile))[1]

    def test_what_is_counted(self, folder: Path) -> None:
        profile = measured(folder, Light(), rounds=2)
        for part in profile.real + profile.perfect:
            assert part.images == 16
            assert len(part.waits) == 4
            assert part.start <= part.waits[0][0] <= part.waits[-1][1] <= part.end
            assert 0 <= part.waited < 1
        for part in profile.real:
            consumer = [span.stage for span in part.spans if span.who == "consumer"]
            assert consumer == ["wait", "finish"] * 4
            assert all(span.end > part.start and span.start < part.end for span in part.spans)
        assert not any(part.spans for part in profile.perfect)

    def test_a_dataset_smaller_than_a_round(self) -> None:
        assert measured(Pictures(48), Light(), batch_size=13, rounds=1).real[0].images == 52

    def test_workers_end_and_the_loader_stops_recording(self, folder: Path) -> None:
        settings = ProfileSettings(batch_size=4, workers=1, steps=2, size=32, engine="torch", rounds=1)
        with open_loader(folder, settings, "cpu") as loader:
            measure(loader, lambda images, labels: None, settings, lambda text: None)
            assert loader.meter.spans is None
            assert loader.stats()["queue_depth"] == 0
            assert multiprocessing.active_children() == []

    def test_settings_are_checked(self) -> None:
        with pytest.raises(gpupipe.ConfigError, match="steps=0 must be at least 1"):
            ProfileSettings(batch_size=4, workers=1, steps=0)


def made(
    real: float = 1.0,
    waited: float = 0.5,
    engine: str = "torch",
    device: str = "cpu",
    reads_itself: bool = False,
    **stages: float,
) -> Profile:
    """A profile of one step a round: it takes `real` seconds with the real loader and one half with the perfect one."""
    spans = [
        Span(name, "consumer" if name in ("wait", "finish") else "worker 0", 10.0, 10.0 + seconds)  # type: ignore[arg-type]
        for name, seconds in stages.items()
    ]
    settings = ProfileSettings(batch_size=8, workers=1, steps=1, rounds=1)
    parts = [Part(8, 10.0, 10.0 + real, [(10.0, 10.0 + waited * real)], spans)]
    return Profile(settings, engine, device, reads_itself, parts, [Part(8, 20.0, 20.5, [(20.0, 20.0)])])


class TestVerdict:
    @pytest.mark.parametrize(
        ("profile", "stage"),
        [
            (made(real=0.51, read=5, decode=1, wait=1), "model"),  # 2% is to be gained, whatever the workers do
            (made(real=0.45, read=5, decode=1, wait=1), "model"),  # noise: slower with the perfect loader
            (made(read=0.2, decode=0.1, wait=0.4, finish=0.1), "read"),
            (made(read=0.1, decode=0.2, wait=0.4, finish=0.1), "decode"),
            (made(read=0.1, decode=0.2, wait=0.1, finish=0.15), "finish"),  # workers are ahead of the consumer
            (made(read=0.1, decode=0.2, wait=0.3, finish=0.25), "decode"),
            (made(waited=0.01, read=0.1, decode=0.2, wait=0.01, finish=0.05), "decode"),  # they share the CPUs
            (made(waited=0.01, read=0.1, decode=0.2, wait=0.01, finish=0.3), "finish"),
            (made(engine="dali", reads_itself=True, read=0.2, decode=0.1, wait=0.4), "decode"),
            (made(engine="dali", read=0.3, decode=0.1, wait=0.4), "read"),
            (made(engine="dali", waited=0.01, device="cuda:0", read=0.002, decode=0.001, wait=0.004), "decode"),
        ],
    )
    def test_the_stage(self, profile: Profile, stage: str) -> None:
        assert judge(profile).stage == stage

    def test_rounds_that_contradict_each_other_prove_no_sharing(self) -> None:
        once, slower = made(waited=0.01, decode=0.2), made(real=0.4, waited=0.01, decode=0.2)
        verdict = judge(replace(once, real=[*once.real * 4, *slower.real], perfect=once.perfect * 5))
        assert verdict.stage == "model"
        assert "0.80 to 2.00" in verdict.reason
        assert "again" in verdict.advice
        assert judge(replace(once, real=once.real * 5, perfect=once.perfect * 5)).stage == "decode"
        waiting, slower = made(decode=0.2, wait=0.4), made(real=0.4, decode=0.2, wait=0.4)
        assert (
            judge(replace(waiting, real=[*waiting.real * 2, *slower.real], perfect=waiting.perfect * 3)).stage
            == "decode"
        )

    def test_sharing_is_said(self) -> None:
        assert "shares the CPUs" in judge(made(waited=0.01, decode=0.2)).reason
        assert "shares the GPU" in judge(made(waited=0.01, decode=0.2, engine="dali", device="cuda:0")).reason

    def test_more_workers_where_there_are_cpus(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("gpupipe.profiling.verdict.usable_cpus", lambda: 16)
        assert "from 1 to 16" in judge(made(decode=0.2, wait=0.4)).advice
        monkeypatch.setattr("gpupipe.profiling.verdict.usable_cpus", lambda: 1)
        assert "shrink" in judge(made(decode=0.2, wait=0.4)).advice

    def test_the_gain_is_the_ratio_of_the_rates(self) -> None:
        assert made(real=1.0).speedups == [pytest.approx(2.0)]


def test_lanes() -> None:
    spans = [
        Span("decode", "worker 10", 100.5, 101.0),
        Span("wait", "consumer", 100.0, 101.0),
        Span("read", "worker 2", 100.0, 100.5),
        Span("finish", "consumer", 101.0, 101.25),
    ]
    part = Part(8, 100.0, 104.0, [(100.0, 101.25), (102.0, 102.5)], spans)
    assert lanes(part) == {
        "model": [("wait", 0.0, 1.25), ("step", 1.25, 0.75), ("wait", 2.0, 0.5), ("step", 2.5, 1.5)],
        "consumer": [("wait", 0.0, 1.0), ("finish", 1.0, 0.25)],
        "worker 2": [("read", 0.0, 0.5)],
        "worker 10": [("decode", 0.5, 0.5)],
    }
    assert list(lanes(part)) == ["model", "consumer", "worker 2", "worker 10"]


def test_without_workers_the_engine_has_a_lane_of_its_own() -> None:
    part = Part(8, 0.0, 2.0, [(0.0, 1.0)], [Span("decode", "consumer", 0.2, 0.9), Span("wait", "consumer", 0.0, 1.0)])
    assert list(lanes(part)) == ["model", "consumer", "consumer's engine"]


def test_wait_clock_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """With stand-ins for CUDA's events: the host runs ahead, and the GPU's own times count."""
    now = {"host": 50.0, "gpu": 1000.0}

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = now["gpu"]

        def elapsed_time(self, later: Event) -> float:
            return 1000 * (later.at - self.at)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(synchronize=lambda: None))
    monkeypatch.setattr(time, "perf_counter", lambda: now["host"])

    def batches():
        for number in range(2):
            now["gpu"] += 0.25  # the GPU stands still for so long
            now["host"] += 9.0
            yield number

    clock = WaitClock(torch.device("cuda", 0))
    for _ in clock.timed(batches()):
        now["gpu"] += 2.0
    assert clock.waits() == [(50.0, 50.25), (52.25, 52.5)]
    assert clock.seconds() == 0.5


class TestCommand:
    OPTIONS = (
        *("--model", "tiny", "--size", "32", "--batch-size", "4"),
        *("--steps", "2", "--rounds", "2", "--workers", "1"),
    )

    def test_files_and_words(self, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["profile", str(folder), *self.OPTIONS, "--engine", "torch", "--output", str(tmp_path)]) == 0
        out = capsys.readouterr().out
        assert "perfect loader" in out
        assert "bottleneck: " in out
        content = json.loads((tmp_path / "profile.json").read_text())
        assert content["environment"]["model"] == "tiny"
        assert content["environment"]["versions"]["torch"] == importlib.metadata.version("torch")
        assert content["settings"]["rounds"] == len(content["speedups"]) == len(content["real"]) == 2
        assert content["verdict"]["stage"] in ("model", "read", "decode", "finish")
        assert str(folder) not in json.dumps(content)
        with Image.open(tmp_path / "timeline.png") as image:
            colors = np.unique(np.asarray(image.convert("RGB")).reshape(-1, 3), axis=0)
        assert {(0, 114, 178), (204, 121, 167)} <= set(map(tuple, colors.tolist()))  # decode and step

    def test_made_images_without_data(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr("gpupipe.benchmark.sample_set.sample_set", lambda: folder)
        assert main(["profile", *self.OPTIONS, "--output", str(tmp_path)]) == 0
        assert "tiny: training on" in capsys.readouterr().out

    def test_a_wrong_value(self, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["profile", str(folder), "--batch-size", "0", "--output", str(tmp_path / "out")]) == 2
        assert "batch_size=0" in capsys.readouterr().err
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize(
        "name", ["no_such_net", pytest.param("timm:no_such_net", marks=pytest.mark.trainers("timm"))]
    )
    def test_a_wrong_model(self, name: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["profile", str(folder), "--model", name, "--output", str(tmp_path / "out")]) == 2
        assert f"model='{name}' is not one of" in capsys.readouterr().err

    def test_a_missing_package(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "torchvision" else object())
        assert main(["profile"]) == 2
        assert "gpupipe[bench]" in capsys.readouterr().err
