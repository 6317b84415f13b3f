"""Statistics on known numbers, the checks of what contenders make, endless orders, the report's rows."""

from __future__ import annotations

import dataclasses
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from images import write_folder
from rich.console import Console

from gpupipe.errors import ConfigError
from gpupipe.tools.benchmark.checks import problem
from gpupipe.tools.benchmark.contenders import BASELINE, Contender
from gpupipe.tools.benchmark.contenders.dali_native import DaliNativeCpu
from gpupipe.tools.benchmark.contenders.gpupipe_loader import GpupipeTorch, many_passes
from gpupipe.tools.benchmark.contenders.torch_loader import EndlessShuffle, TorchvisionPillow, TorchvisionV2
from gpupipe.tools.benchmark.measurement import BenchSettings, Opened, Result, Round, Spread, ratio, spread
from gpupipe.tools.benchmark.report import environment, remarks, rows, table

SETTINGS = BenchSettings("data", batch_size=8, size=16)
OPENED = Opened(1.5, "cpu", (8, 3, 16, 16), "torch.float32", True, -2.1, 2.6, {0: 4, 1: 4})


def result(name: str, *rates: float, reason: str | None = None) -> Result:
    rounds = [Round(images=100, seconds=100 / rate, cpu_seconds=0.4) for rate in rates]
    return Result(name, reason, OPENED, 6.0, 321.0, rounds)


def test_round() -> None:
    one = Round(images=500, seconds=2.0, cpu_seconds=3.0)
    assert one.rate == 250.0
    assert one.cpu_ms == 6.0


def test_spread() -> None:
    assert spread([5.0, 1.0, 9.0]) == Spread(5.0, 1.0, 9.0)
    assert spread([4.0, 1.0, 2.0, 9.0]) == Spread(3.0, 1.0, 9.0)
    assert spread([]) is None


def test_ratio_is_between_the_medians() -> None:
    fast, slow = result("fast", 100, 300, 1000), result(BASELINE, 90, 150, 160)
    assert ratio(fast, slow) == pytest.approx(2.0)
    assert ratio(fast, None) is None
    assert ratio(fast, result("none")) is None


def test_rows_and_remarks() -> None:
    made = rows([result("fast", 100, 300, 1000), result(BASELINE, 150), result("none", reason="no CUDA device")])
    assert [row["contender"] for row in made] == ["fast", BASELINE, "none"]
    fast, base, none = made
    assert (fast["img_per_s_min"], fast["img_per_s"], fast["img_per_s_max"]) == pytest.approx((100, 300, 1000))
    assert fast["ratio"] == pytest.approx(2.0)
    assert fast["cpu_ms_per_img"] == pytest.approx(4.0)
    assert (base["first_batch_s"], base["memory_mb"], base["batches_on"]) == (1.5, 321.0, "cpu")
    assert none["img_per_s"] is None
    assert remarks(made) == ["not measured: none: no CUDA device"]


def test_table_shows_the_fastest_first_and_fits_a_terminal() -> None:
    made = rows([result(BASELINE, 12_345), result("gpupipe-dali-gpu", 123_456, 234_567)])
    console = Console(width=100, record=True)
    console.print(table(made, environment(SETTINGS)))
    text = console.export_text()
    assert text.index("gpupipe-dali-gpu") < text.index(BASELINE)
    assert "12,345" in text
    assert "123,456 - 234,567" in text
    assert "…" not in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": (8, 16, 16, 3)}, "shape"),
        ({"dtype": "torch.uint8"}, "torch.uint8"),
        ({"contiguous": False}, "contiguous"),
        ({"low": 0.0, "high": 255.0}, "normalized"),
        ({"low": 0.0, "high": 0.5}, "normalized"),
        ({"labels": {0: 5, 1: 3}}, "label"),
    ],
)
def test_problem_names_what_differs(change: dict, message: str) -> None:
    assert problem(OPENED, SETTINGS, {0: 4, 1: 4}) is None
    assert problem(OPENED, SETTINGS, None) is None
    assert message in (problem(dataclasses.replace(OPENED, **change), SETTINGS, {0: 4, 1: 4}) or "")


def test_endless_orders_hold_each_sample_once_a_pass() -> None:
    passes = np.fromiter(islice(EndlessShuffle(10), 30), dtype=np.int64).reshape(3, 10)
    order = many_passes(10)
    ours = order.indices(3, 0, np.arange(30)).reshape(3, 10)
    for array in (passes, ours):
        assert (np.sort(array, axis=1) == np.arange(10)).all()
        assert len({tuple(line) for line in array.tolist()}) == 3
    assert (order.indices(3, 0, np.array([25, 7])) == ours.ravel()[[25, 7]]).all()
    assert len(order) > 1_000_000


@pytest.mark.parametrize("contender", [TorchvisionPillow(), TorchvisionV2(), DaliNativeCpu(), GpupipeTorch()])
def test_the_first_pass_holds_each_image_once(contender: Contender, tmp_path: Path) -> None:
    settings = BenchSettings(str(write_folder(tmp_path, classes=3, per_class=4)), batch_size=8, size=16, workers=1)
    stream = contender.open(settings)
    batches = list(islice(iter(stream), 4))
    stream.close()
    seen = torch.cat([labels for _, labels in batches])
    assert seen.dtype == torch.int64
    assert [torch.bincount(part).tolist() for part in (seen[:12], seen[12:24])] == [[4, 4, 4]] * 2
    for images, _ in batches:
        assert (images.shape, images.dtype) == ((8, 3, 16, 16), torch.float32)
        assert (images.min() >= -2.12, images.max() <= 2.65) == (True, True)


@pytest.mark.parametrize("contender", [TorchvisionPillow(), TorchvisionV2(), DaliNativeCpu()])
def test_shards_are_not_for_those_that_read_folders(contender: Contender, tmp_path: Path) -> None:
    assert contender.available(BenchSettings(str(tmp_path))) is None
    assert contender.available(BenchSettings(str(tmp_path / "shard.tar"))) == "reads image folders only"


@pytest.mark.parametrize("field", ["batch_size", "size", "workers", "threads", "rounds", "seconds", "timeout"])
def test_settings_are_checked(field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field}=0"):
        BenchSettings("data", **{field: 0})
