"""gpupipe profile: the measurement, the rule for the bottleneck, the picture's lanes, and the command."""

from __future__ import annotations

import importlib.metadata
import json
import math
import multiprocessing
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from images import encode, picture
from PIL import Image
from scipy.stats import binom
from torch import nn

import gpupipe
from gpupipe.host.tracing import Span
from gpupipe.kernels import decode_crops
from gpupipe.tools.cli import main
from gpupipe.tools.profiling.report import lanes, lines
from gpupipe.tools.profiling.rounds import (
    Profile,
    ProfileSettings,
    Stretch,
    interval,
    measure,
    open_loader,
    training_step,
)
from gpupipe.tools.profiling.training import WaitClock, build_model, check_model
from gpupipe.tools.profiling.verdict import judge

CLASSES = 5
SHORT = 0.0001  # minutes: as few rounds as there can be


class Clock:
    """Time that passes only where something takes it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def take(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "perf_counter", made)
    return made


class Pictures:
    """A dataset of one picture; `read` is called for every read of it."""

    def __init__(self, side: int = 48, read: Callable[[], Any] = list) -> None:
        self.encoded = encode(picture(side, side), quality=90)
        self.read = read

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        self.read()
        return self.encoded, index % CLASSES


class Light(nn.Module):
    """A model that looks at the mean colour; `work` is called whenever it does."""

    def __init__(self, work: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.work = work
        self.linear = nn.Linear(3, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.work()
        return self.linear(images.mean((2, 3)))


def measured(data: object, model: nn.Module, **changes: object) -> Profile:
    limits = {"minutes": changes.pop("minutes", SHORT), "seconds": changes.pop("seconds", 0.0)}
    settings = ProfileSettings(**(dict(batch_size=4, workers=2, steps=4, size=32, engine="torch") | changes))  # type: ignore[arg-type]
    said: list[str] = []
    with open_loader(data, settings, "cpu") as loader:
        profile = measure(loader, training_step(model, loader.device), settings, said.append, **limits)  # type: ignore[arg-type]
    assert len(said) == 1 + 2 * len(profile.real)
    return profile


class TestMeasurement:
    """On a clock that only reads, decoding and the model move on, in one process."""

    def timed(
        self,
        clock: Clock,
        monkeypatch: pytest.MonkeyPatch,
        *,
        read: float = 0.0,
        decode: float = 0.0,
        model: float = 0.001,
        **changes: object,
    ) -> Profile:
        """read: seconds for a sample; decode, model: for a batch."""

        def slow_decode(*arguments: Any, **options: Any) -> Any:
            clock.take(decode)
            return decode_crops(*arguments, **options)

        monkeypatch.setattr("gpupipe.decode.rendering.decode_crops", slow_decode)
        data = Pictures(read=lambda: clock.take(read))
        return measured(data, Light(lambda: clock.take(model)), workers=0, **changes)

    def test_slow_reads(self, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        profile = self.timed(clock, monkeypatch, read=0.01, decode=0.02, model=0.05)
        assert judge(profile).stage == "read"
        assert profile.per_batch("read") == pytest.approx(4 * 0.01)
        assert profile.per_batch("decode") == pytest.approx(0.02)
        assert profile.waited == pytest.approx(0.06 / 0.11)
        assert profile.speedups == pytest.approx([0.11 / 0.05] * 3)

    def test_a_slow_model(self, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        verdict = judge(self.timed(clock, monkeypatch, read=0.001, model=0.3))
        assert verdict.stage == "model"
        assert "1% faster" in verdict.reason

    def test_large_images(self, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        verdict = judge(self.timed(clock, monkeypatch, read=0.001, decode=0.05, model=0.05))
        assert verdict.stage == "decode"
        assert "shrink" in verdict.advice or "--workers" in verdict.advice

    @pytest.mark.parametrize(("noise", "rounds"), [(0.0, 6), (0.01, 6), (0.1, 40)])
    def test_rounds_go_on_until_the_gain_is_known(
        self, noise: float, rounds: int, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rng = np.random.default_rng(0)

        def work() -> None:
            clock.take(0.05 * math.exp(noise * rng.standard_normal()))

        data = Pictures(read=lambda: clock.take(0.01))
        profile = measured(data, Light(work), workers=0, steps=1, minutes=60)
        assert profile.precise
        assert profile.known.confidence >= 0.95
        assert profile.known.low <= 1.8 <= profile.known.high <= 1.1 * profile.known.low
        assert (len(profile.real) == rounds) if rounds == 6 else (10 < len(profile.real) <= rounds)

    def test_rounds_end_with_the_time(self, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        rng = np.random.default_rng(0)
        model = Light(lambda: clock.take(float(rng.choice([0.2, 2.0]))))
        profile = measured(Pictures(), model, workers=0, steps=1, minutes=1)
        assert not profile.precise
        assert 3 < len(profile.real) < 60
        last = max(part.end for part in profile.real + profile.perfect)
        first = min(part.start for part in profile.real + profile.perfect)
        assert last - first <= 60

    @pytest.mark.parametrize(("seconds", "workers", "steps"), [(0.0, 0, 4), (0.1, 0, 4), (0.93, 0, 19), (0.93, 2, 20)])
    def test_a_part_lasts(self, seconds: float, workers: int, steps: int, clock: Clock) -> None:
        """Of steps that take 0.05 seconds; 19 of them are no whole turns of 2 workers."""
        model = Light(lambda: clock.take(0.05))
        profile = measured(Pictures(), model, workers=workers, steps=4, seconds=seconds)
        assert profile.settings.steps == steps
        assert {len(part.waits) for part in profile.real + profile.perfect} == {steps}
        assert profile.perfect[0].seconds == pytest.approx(0.05 * steps)

    def test_which_loader_comes_first_alternates(self, clock: Clock) -> None:
        profile = measured(Pictures(), Light(lambda: clock.take(1.0)), workers=0, steps=1)
        firsts = [real.start < perfect.start for real, perfect in zip(profile.real, profile.perfect, strict=True)]
        assert firsts == [True, False, True]

    @pytest.mark.parametrize(("engine", "workers"), [("torch", 0), ("dali", 1)])
    def test_other_engines(self, engine: str, workers: int, folder: Path) -> None:
        profile = measured(folder, Light(), engine=engine, workers=workers)
        assert profile.engine == engine
        assert "img/s" in lines(profile, judge(profile))[1]

    def test_what_is_counted(self, folder: Path) -> None:
        profile = measured(folder, Light())
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
        assert measured(Pictures(), Light(), batch_size=13).real[0].images == 52

    def test_workers_end_and_the_loader_stops_recording(self, folder: Path) -> None:
        settings = ProfileSettings(batch_size=4, workers=1, steps=2, size=32, engine="torch")
        with open_loader(folder, settings, "cpu") as loader:
            measure(loader, lambda images, labels: None, settings, lambda text: None, minutes=SHORT)
            assert loader.meter.spans is None
            assert loader.stats()["queue_depth"] == 0
            assert multiprocessing.active_children() == []

    def test_settings_are_checked(self) -> None:
        with pytest.raises(gpupipe.ConfigError, match="steps=0 must be at least 1"):
            ProfileSettings(batch_size=4, workers=1, steps=0)
        with pytest.raises(gpupipe.ConfigError, match="minutes=0 must be above 0"):
            measured(Pictures(), Light(), minutes=0)


def made(
    real: float = 1.0,
    waited: float = 0.5,
    engine: str = "torch",
    device: str = "cpu",
    **stages: float,
) -> Profile:
    """A profile of one step a round: it takes `real` seconds with the real loader and one half with the perfect one.

    Six rounds are alike, which is as many as prove something.
    """
    spans = [
        Span(name, "consumer" if name in ("wait", "finish") else "worker 0", 10.0, 10.0 + seconds)  # type: ignore[arg-type]
        for name, seconds in stages.items()
    ]
    settings = ProfileSettings(batch_size=8, workers=1, steps=1)
    parts = [Stretch(8, 10.0, 10.0 + real, [(10.0, 10.0 + waited * real)], spans)]
    return Profile(settings, engine, device, parts * 6, [Stretch(8, 20.0, 20.5, [(20.0, 20.0)])] * 6, 4.0)


def with_real(*rounds: Profile) -> Profile:
    """A profile of the first rounds of these."""
    return replace(rounds[0], real=[one.real[0] for one in rounds], perfect=rounds[0].perfect[:1] * len(rounds))


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
            (made(engine="dali", read=0.3, decode=0.1, wait=0.4), "read"),
            (made(read=0.3, storage=0.2, decode=0.1, wait=0.4), "storage"),
            (made(engine="dali", read=0.3, storage=0.2, decode=0.1, wait=0.4), "storage"),
            (made(read=0.3, storage=0.1, decode=0.1, wait=0.4), "read"),
            (made(read=0.1, storage=0.1, decode=0.2, wait=0.4), "decode"),
            (made(engine="dali", waited=0.01, device="cuda:0", read=0.002, decode=0.001, wait=0.004), "decode"),
        ],
    )
    def test_the_stage(self, profile: Profile, stage: str) -> None:
        assert judge(profile).stage == stage

    def test_rounds_that_contradict_each_other_prove_no_sharing(self) -> None:
        once, slower = made(waited=0.01, decode=0.2), made(real=0.4, waited=0.01, decode=0.2)
        verdict = judge(with_real(once, once, once, once, once, slower))
        assert verdict.stage == "unclear"
        assert "0.80 to 2.00" in verdict.reason
        assert "again" in verdict.advice
        assert judge(once).stage == "decode"
        assert judge(with_real(*[once] * 5)).stage == "unclear"  # that may be chance
        waiting, slower = made(decode=0.2, wait=0.4), made(real=0.4, decode=0.2, wait=0.4)
        assert judge(with_real(waiting, waiting, slower)).stage == "decode"  # the waits bear it out

    def test_waits_without_a_gain_prove_nothing(self) -> None:
        profile = with_real(*(made(real=seconds, waited=0.3, decode=0.2, wait=0.1) for seconds in (0.4, 0.5, 0.7)))
        assert judge(profile).stage == "unclear"
        assert "waited 30%" in judge(profile).reason
        idle = replace(profile, real=[replace(part, waits=[(10.0, 10.0)]) for part in profile.real])
        assert judge(idle).stage == "model"

    def test_sharing_is_said(self) -> None:
        assert "shares the CPUs" in judge(made(waited=0.01, decode=0.2)).reason
        assert "shares the GPU" in judge(made(waited=0.01, decode=0.2, engine="dali", device="cuda:0")).reason

    def test_a_wait_for_storage_is_told(self) -> None:
        profile = made(read=0.3, storage=0.2, decode=0.1, wait=0.4)
        verdict = judge(profile)
        assert "300 ms (200 ms of it waiting for the storage) to read" in verdict.reason
        assert "cache" in verdict.advice
        assert "  storage      200.0  of it waiting for the storage" in lines(profile, verdict)

    def test_more_workers_where_there_are_cpus(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("gpupipe.tools.profiling.verdict.usable_cpus", lambda: 16)
        assert "from 1 to 16" in judge(made(decode=0.2, wait=0.4)).advice
        monkeypatch.setattr("gpupipe.tools.profiling.verdict.usable_cpus", lambda: 1)
        assert "shrink" in judge(made(decode=0.2, wait=0.4)).advice

    def test_the_gain_is_the_ratio_of_the_rates(self) -> None:
        assert made(real=1.0).speedups == pytest.approx([2.0] * 6)


def rounds_of(*speedups: float, minutes: float = 4.0) -> Profile:
    """A profile with these speedups."""
    once = made()
    real = [replace(once.real[0], end=10.0 + 0.5 * speedup) for speedup in speedups]
    return replace(once, real=real, perfect=once.perfect[:1] * len(real), minutes=minutes)


class TestReport:
    @pytest.mark.parametrize(
        ("speedups", "expected"),
        [
            ((1.5, 1.52, 1.54, 1.5, 1.51, 1.5), "would be 1.51 times as fast (1.50 to 1.54 times as fast with 97%"),
            ((0.9, 1.3, 1.1, 0.95, 1.2, 1.0), "is within the noise (0.90 to 1.30 times as fast with 97% confidence)"),
            ((0.72, 0.74, 0.76), "was no faster: it was 24% to 28% slower, which no loader is the cause of"),
            ((0.74,), "was no faster: it was 26% to 26% slower"),
        ],
    )
    def test_the_gain_is_never_a_loss(self, speedups: tuple[float, ...], expected: str) -> None:
        profile = rounds_of(*speedups)
        said = "\n".join(lines(profile, judge(profile)))
        assert expected in said
        assert not re.search(r"would be 0|\(0\.\d+ to 0\.", said)

    def test_it_says_how_well_the_gain_is_known(self) -> None:
        precise = rounds_of(1.5, 1.52, 1.54, 1.5, 1.51, 1.5)
        assert "known to within 3%: well enough" in lines(precise, judge(precise))[4]
        vague = rounds_of(1.5, 3.0, 1.6, minutes=0.5)
        assert "known to within 100%: the 0.5 minutes were over before it was 10%" in lines(vague, judge(vague))[4]


class TestInterval:
    def test_the_median_lies_within_it_as_often_as_it_says(self) -> None:
        rng = np.random.default_rng(0)
        for count in (3, 6, 9, 20):
            hits, promised = 0, 0.0
            for _ in range(2000):
                low, high, promised = interval(np.exp(rng.standard_normal(count)).tolist())  # a median of 1, skewed
                hits += low <= 1 <= high
            assert hits / 2000 == pytest.approx(promised, abs=0.02)

    @pytest.mark.parametrize(("count", "k"), [(1, 1), (5, 1), (6, 1), (8, 1), (9, 2), (11, 2), (12, 3), (50, 18)])
    def test_against_the_binomial_distribution(self, count: int, k: int) -> None:
        low, high, confidence = interval(range(count))
        assert (low, high) == (k - 1, count - k)
        assert confidence == pytest.approx(1 - 2 * binom.cdf(k - 1, count, 0.5))
        assert count < 6 or 1 - 2 * binom.cdf(k, count, 0.5) < 0.95 <= confidence


def test_lanes() -> None:
    spans = [
        Span("decode", "worker 10", 100.5, 101.0),
        Span("wait", "consumer", 100.0, 101.0),
        Span("read", "worker 2", 100.0, 100.5),
        Span("finish", "consumer", 101.0, 101.25),
    ]
    part = Stretch(8, 100.0, 104.0, [(100.0, 101.25), (102.0, 102.5)], spans)
    assert lanes(part) == {
        "model": [("wait", 0.0, 1.25), ("step", 1.25, 0.75), ("wait", 2.0, 0.5), ("step", 2.5, 1.5)],
        "consumer": [("wait", 0.0, 1.0), ("finish", 1.0, 0.25)],
        "worker 2": [("read", 0.0, 0.5)],
        "worker 10": [("decode", 0.5, 0.5)],
    }
    assert list(lanes(part)) == ["model", "consumer", "worker 2", "worker 10"]


def test_without_workers_the_engine_has_a_lane_of_its_own() -> None:
    part = Stretch(
        8, 0.0, 2.0, [(0.0, 1.0)], [Span("decode", "consumer", 0.2, 0.9), Span("wait", "consumer", 0.0, 1.0)]
    )
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
        *("--steps", "2", "--minutes", "0.0001", "--workers", "1"),
    )

    def test_files_and_words(self, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["profile", str(folder), *self.OPTIONS, "--engine", "torch", "--output", str(tmp_path)]) == 0
        out = capsys.readouterr().out
        assert "perfect loader" in out
        assert "bottleneck: " in out
        content = json.loads((tmp_path / "profile.json").read_text())
        assert content["environment"]["model"] == "tiny"
        assert content["environment"]["versions"]["torch"] == importlib.metadata.version("torch")
        assert len(content["speedups"]) == len(content["real"]) == len(content["perfect"]) == 3
        assert content["speedup"]["low"] == min(content["speedups"])
        assert content["verdict"]["stage"] in ("model", "read", "decode", "finish", "unclear")
        assert str(folder) not in json.dumps(content)
        with Image.open(tmp_path / "timeline.png") as image:
            colors = np.unique(np.asarray(image.convert("RGB")).reshape(-1, 3), axis=0)
        assert {(0, 114, 178), (204, 121, 167)} <= set(map(tuple, colors.tolist()))  # decode and step

    def test_made_images_without_data(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr("gpupipe.tools.benchmark.sample_set.sample_set", lambda: folder)
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

    @pytest.mark.parametrize(
        ("name", "size", "reason"),
        [
            ("squeezenet1_0", 8, "model='squeezenet1_0' can't take images of size=8: RuntimeError: Given input size"),
            pytest.param(
                *("timm:vit_tiny_patch16_224", 64, "of size=64: AssertionError: Input height (64) doesn't match"),
                marks=pytest.mark.trainers("timm"),
            ),
        ],
    )
    def test_a_model_for_other_images(
        self, name: str, size: int, reason: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        options = [*self.OPTIONS, "--model", name, "--size", str(size), "--output", str(tmp_path / "out")]
        assert main(["profile", str(folder), *options]) == 2
        assert reason in capsys.readouterr().err

    def test_a_model_that_is_no_classifier(self) -> None:
        class Segments(nn.Conv2d):
            def forward(self, input: torch.Tensor) -> Any:
                return {"out": super().forward(input)}

        reason = r"it makes dict \('out': Tensor float32 \(2, 5, 9, 9\)\), not scores \(2, 5\); pass another model"
        with pytest.raises(gpupipe.ConfigError, match=reason):
            check_model(Segments(3, CLASSES, 1), "segments", CLASSES, 9)

    @pytest.mark.parametrize("name", ["googlenet", "inception_v3"])
    def test_models_with_further_heads_are_built_without(self, name: str) -> None:
        model = build_model(name, CLASSES).train()
        check_model(model, name, CLASSES, 80)
        step = training_step(model, torch.device("cpu"))
        assert torch.isfinite(step(torch.zeros(2, 3, 80, 80), torch.tensor([1, 2])))

    def test_a_missing_package(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "torchvision" else object())
        assert main(["profile"]) == 2
        assert "gpupipe[bench]" in capsys.readouterr().err
