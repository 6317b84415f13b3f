"""bench/train_imagenet.py: a tiny epoch of each kind of loader, on one process and two; that it learns; --compare."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from gpupipe.tools.profiling.rounds import ProfileSettings
from gpupipe.tools.profiling.training import TrainingStep

sys.path.append(str(Path(__file__).parent.parent / "bench"))
from training.made_classes import made_classes

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "bench" / "train_imagenet.py"
TINY = ["--model", "tiny", "--size", "32", "--batch-size", "16", "--epochs", "1", "--workers", "1"]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_imagenet", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    train, val = made_classes(tmp_path_factory.mktemp("classes"), train=6, val=2)
    return ["--data", str(train), "--val-data", str(val)]


def run(*arguments: str, launcher: tuple[str, ...] = (), cache: Path | None = None) -> tuple[dict[str, Any], str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    environment |= {"GPUPIPE_CACHE": str(cache)} if cache else {}
    command = [sys.executable, *launcher, str(SCRIPT), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stdout


@pytest.mark.parametrize("loader", ["gpupipe", "torchvision-pillow"])
def test_a_tiny_epoch(loader: str, data: list[str], tmp_path: Path) -> None:
    result, out = run(*data, *TINY, "--loader", loader, "--json", str(tmp_path / "out.json"))
    assert json.loads((tmp_path / "out.json").read_text()) == result
    assert result["loader"] == loader
    assert result["img_per_s"] > 0
    assert 0 <= result["data_wait_share"] <= 1
    assert result["top1"] * 20 == pytest.approx(round(result["top1"] * 20))  # a share of the 20 validation images
    assert "epoch 1/1" in out


@pytest.mark.slow
@pytest.mark.parametrize("loader", ["gpupipe", "torchvision-pillow"])
def test_two_processes(loader: str, data: list[str]) -> None:
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0", "--standalone")
    result, out = run(*data, *TINY, "--loader", loader, launcher=launcher)
    assert result["world"] == 2
    assert out.count("epoch 1/1") == 1


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.mark.large
def test_it_learns_the_made_classes(cache: Path) -> None:
    result, _ = run("--made-classes", "--epochs", "5", "--loader", "gpupipe", cache=cache)
    assert result["top1"] > 0.9


def test_learning_rate_rises_then_falls_to_zero(script: ModuleType) -> None:
    args = script.parse(["--data", "x", "--lr", "0.1", "--batch-size", "512", "--epochs", "10", "--warmup-epochs", "2"])
    assert script.learning_rate(args, 1, 1.0) == pytest.approx(0.1, rel=0.02)
    assert script.learning_rate(args, 1, 2.0) == pytest.approx(0.2)
    assert script.learning_rate(args, 2, 2.0) == pytest.approx(0.4)
    assert script.learning_rate(args, 1, 6.0) == pytest.approx(0.1)
    assert script.learning_rate(args, 1, 10.0) == pytest.approx(0.0, abs=1e-9)


def test_small_defaults_hold_for_made_classes_only(script: ModuleType) -> None:
    assert script.parse(["--data", "x"]).size == 224
    assert script.parse(["--made-classes"]).size == 64
    assert script.parse(["--made-classes", "--size", "96"]).size == 96
    with pytest.raises(SystemExit):
        script.parse([])


def test_models_by_name(script: ModuleType) -> None:
    assert script.build_model("resnet18", 7)(torch.zeros(1, 3, 64, 64)).shape == (1, 7)
    assert script.build_model("tiny", 7)(torch.zeros(1, 3, 64, 64)).shape == (1, 7)


def test_wait_clock_counts_the_waits_only(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(script.time, "perf_counter", lambda: now[0])

    def batches():
        for number in range(3):
            now[0] += 2.0  # each batch takes two seconds to come
            yield number

    clock = script.WaitClock(torch.device("cpu"))
    for _ in clock.timed(batches()):
        now[0] += 5.0  # each step takes five
    assert clock.seconds() == 6.0


COMPARE = ["--compare", "--model", "tiny", "--size", "32"]


def test_compare(script: ModuleType, data: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = ["--batch-size", "8", "--workers", "2", "--steps", "3", "--rounds", "2", "--out", str(tmp_path)]
    names = ["torchvision-v2", "gpupipe", "gpupipe-torch", "device"]
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    assert script.main([*COMPARE, *data, *numbers, "--engine", "dali"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if line.startswith("round")] == [
        f"round {turn} of 2: {name}" for turn in (1, 2) for name in names
    ]
    content = json.loads((tmp_path / "training.json").read_text())
    rounds = {name: content["contenders"][name]["rounds"] for name in names}
    ceiling = [part["img_per_s"] for part in rounds["device"]]
    with (tmp_path / "training.csv").open() as file:
        rows = {row["contender"]: row for row in csv.DictReader(file)}
    assert list(rows) == names
    for name, row in rows.items():
        assert [part["images"] for part in rounds[name]] == [32, 32]  # 3 steps are no whole turns of 2 workers
        rates = [part["images"] / part["seconds"] for part in rounds[name]]
        assert float(row["img_per_s"]) == pytest.approx(statistics.median(rates), abs=1e-3)
        shares = [rate / best for rate, best in zip(rates, ceiling, strict=True)]
        assert float(row["of_ceiling_max"]) == pytest.approx(max(shares), abs=1e-3)
        assert 0 < float(row["waited_min"]) <= float(row["waited"]) <= float(row["waited_max"]) < 1
        assert f"| {name} | {float(row['img_per_s']):,.0f} (" in (tmp_path / "training.md").read_text()
    facts = content["contenders"]["gpupipe"]["loader"]
    assert (facts["engine"], facts["device"], facts["num_workers"]) == ("dali", device, "2")
    assert content["contenders"]["gpupipe-torch"]["loader"]["engine"] == "torch"
    assert (tmp_path / "training.png").stat().st_size > 1000


def test_compare_goes_on_without_a_contender_that_fails(
    script: ModuleType,
    shards: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.startswith("matplotlib")]:
        monkeypatch.setitem(sys.modules, name, None)  # as where it is not installed
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    numbers = ["--batch-size", "4", "--workers", "0", "--steps", "1", "--rounds", "1", "--out", str(tmp_path)]
    assert script.main([*COMPARE, "--data", shards, *numbers, "--contenders", "torchvision-v2", "gpupipe"]) == 1
    assert "NOT MEASURED: torchvision-v2: FileNotFoundError" in capsys.readouterr().out
    rows = json.loads((tmp_path / "training.json").read_text())["rows"]
    assert [row["img_per_s"] is None for row in rows] == [True, False]
    assert rows[1]["of_ceiling"] is None  # nobody measured it
    assert not (tmp_path / "training.png").exists()


class Pictures:
    """Batches of noise that take `first` seconds of `clock` each, and from the fourth on `later` seconds."""

    def __init__(self, clock: list[float], first: float, later: float) -> None:
        self.clock, self.first, self.later = clock, first, later

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for number in range(9):
            self.clock[0] += self.first if number < 3 else self.later
            yield torch.randn(4, 3, 8, 8), torch.zeros(4, dtype=torch.int64)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that the measurement sees; a step takes one."""
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def step(self: TrainingStep, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        now[0] += 1.0
        return images.mean()

    monkeypatch.setattr(TrainingStep, "__call__", step)
    return now


def test_compare_counts_no_settling_steps(script: ModuleType, clock: list[float]) -> None:
    from training import compare

    step = TrainingStep(torch.nn.Linear(1, 1), torch.device("cpu"), amp=False, layout=torch.contiguous_format)
    part = compare.run(step, Pictures(clock, 50.0, 3.0), ProfileSettings(4, workers=2, steps=6, size=8))
    assert (part.images, part.seconds, part.waited) == (24, 24.0, 0.75)


def test_compare_refuses_what_is_no_training(script: ModuleType, clock: list[float]) -> None:
    from training import compare

    step = TrainingStep(torch.nn.Linear(1, 1), torch.device("cpu"), amp=False, layout=torch.contiguous_format)
    with pytest.raises(ValueError, match=r"shape \(4, 3, 8, 8\).*expected \(4, 3, 16, 16\)"):
        compare.run(step, Pictures(clock, 1.0, 1.0), ProfileSettings(4, workers=0, steps=1, size=16))
    settings, labels = ProfileSettings(4, workers=0, steps=1, size=8), torch.zeros(4)
    with pytest.raises(ValueError, match="mean 0 and the deviation 0"):
        compare.check(settings, torch.zeros(4, 3, 8, 8), labels, torch.zeros(()))
    with pytest.raises(ValueError, match="loss is nan"):
        compare.check(settings, torch.randn(4, 3, 8, 8), labels, torch.tensor(torch.nan))


def test_with_amp_the_loader_rounds_as_autocast_would(script: ModuleType, data: list[str]) -> None:
    batches = []
    for options in (["--amp", "--channels-last"], ["--no-amp", "--no-channels-last"]):
        args = script.parse([*data, *TINY, *options, "--workers", "0"])
        with script.make_loader(args, args.data, train=True) as loader:
            batches.append(next(iter(loader))[0].clone())
    assert batches[0].dtype == torch.bfloat16
    assert batches[0].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(batches[0], batches[1].bfloat16())


def test_compile_wraps_the_model(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    monkeypatch.setattr(script.torch, "compile", lambda model: compiled.append(model) or model)
    for options in ([], ["--compile"]):
        args = script.parse(["--data", "x", *TINY, *options])
        process = script.Process()
        script.prepare(args, process)
        trainer = script.Trainer(args, process, classes=3)
    assert compiled == [trainer.step.model]
