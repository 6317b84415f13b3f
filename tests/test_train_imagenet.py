"""bench/train_imagenet.py: a tiny epoch with either loader, on one process and two; and that it learns."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from gpupipe.benchmark.made_classes import made_classes

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
    environment["OMP_NUM_THREADS"] = "1"  # threads that wait for each other lose much on a busy machine
    environment |= {"GPUPIPE_CACHE": str(cache)} if cache else {}
    command = [sys.executable, *launcher, str(SCRIPT), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stdout


@pytest.mark.parametrize("loader", ["gpupipe", "torch"])
def test_a_tiny_epoch(loader: str, data: list[str], tmp_path: Path) -> None:
    result, out = run(*data, *TINY, "--loader", loader, "--json", str(tmp_path / "out.json"))
    assert json.loads((tmp_path / "out.json").read_text()) == result
    assert result["loader"] == loader
    assert result["img_per_s"] > 0
    assert 0 <= result["data_wait_share"] <= 1
    assert result["top1"] * 20 == pytest.approx(round(result["top1"] * 20))  # a share of the 20 validation images
    assert "epoch 1/1" in out


@pytest.mark.slow
@pytest.mark.parametrize("loader", ["gpupipe", "torch"])
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
