"""What bench/gpu/run.sh is made of, as far as that goes without a GPU."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from images import write_folder

from gpupipe.errors import ConfigError
from gpupipe.kernels import native
from gpupipe.tools.benchmark.checks import antialiased, noise_folder, problem
from gpupipe.tools.benchmark.child import Host
from gpupipe.tools.benchmark.contenders import describe, load, options, reference
from gpupipe.tools.benchmark.measurement import BenchSettings, Result, Round
from gpupipe.tools.benchmark.runner import measure

BENCH = Path(__file__).parent.parent / "bench"
RUN = BENCH / "gpu" / "run.sh"
ON_CPU = pytest.mark.skipif(torch.cuda.is_available(), reason="tries on the CPU what this machine's GPU is for")
SIZES = ["--batch-size", "4", "--size", "32", "--workers", "1"]


@pytest.fixture(autouse=True)
def _bench_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("gpu") / "data", classes=3, per_class=8)


# Contenders with options.


def test_options_stand_behind_the_name() -> None:
    name = "dali-native-gpu?hw_decoder_load=0.5&crop_decode=False"
    assert options(name) == {"hw_decoder_load": 0.5, "crop_decode": False}
    assert reference(name) == reference("dali-native-gpu")
    assert describe(name) == describe("dali-native-gpu")
    assert options("mine:Loader?device=cpu&a=None") == {"device": "cpu", "a": None}
    made: Any = load(name)
    assert (made.hw_decoder_load, made.crop_decode) == (0.5, False)


@pytest.mark.parametrize("name", ["dali-native-gpu?", "gpupipe-torch?a&b", "gpupipe-torch?=1&"])
def test_options_that_make_no_sense(name: str) -> None:
    if name.endswith("gpu?"):
        assert options(name) == {}
        return
    with pytest.raises(ConfigError, match=r"name\?first=1&second=0.5"):
        reference(name)


def test_all_contenders_of_the_parts_can_be_made() -> None:
    from gpu import decoders, loaders

    args = decoders.parse(["data", "--out", "out", "--workers", "16"])
    plans = decoders.plans(args)
    assert len(plans) == len({plan.label for plan in plans}) == 2 * 6 + 3 * 2
    names = list(decoders.contenders(plans, on_gpu=True).values())
    for on_gpu in (False, True):
        names += [name for label, name in loaders.contenders(on_gpu).items() if label != loaders.SPDL]
    for name in set(names):
        assert load(name).name


def test_contenders_are_opened_together(images: Path, tmp_path: Path) -> None:
    settings = BenchSettings(str(images), batch_size=4, size=16, seconds=0.1, rounds=1)
    lines: list[str] = []
    names = ["bench_fakes:Unavailable", "bench_fakes:Crude"]
    absent, made = measure(names, settings, tmp_path, lines.append, require_antialias=False, together=True)
    assert absent.reason == "no such machine"
    assert made.reason is None
    assert made.rounds[0].images > 0
    assert sorted(lines[:2]) == sorted(f"opening {name}" for name in names)
    assert lines[2:] == [f"round 1 of 1: {name}" for name in names]


@pytest.mark.parametrize("name", ["torchvision_gpu:TorchvisionGpu?device=cpu", "crop_kernel:CropKernel", "spdl"])
def test_contenders_make_what_was_asked_for(name: str, images: Path, tmp_path: Path) -> None:
    if name == "spdl":
        pytest.importorskip("spdl.pipeline")
        name = "spdl_nvjpeg:SpdlNvjpeg?device=cpu"
    if name.startswith("crop_kernel") and native.library() is None:
        pytest.skip("needs the C++ kernels")
    noise = noise_folder(tmp_path / "noise")
    host = Host(f"gpu.contenders.{name}", BenchSettings(str(images), 8, 32, workers=1, threads=1, dtype="uint8"))
    assert host.available() is None
    assert antialiased(host.noise(str(noise)))
    opened = host.open(24)
    measured = host.run(0.05)
    host.close()
    assert problem(opened, host.settings, {0: 8, 1: 8, 2: 8}) is None
    assert measured.images % 8 == 0


def test_the_crops_of_gpu_contenders_are_normalized() -> None:
    from gpu.contenders.cropped import Cropper

    settings = BenchSettings("data", 4, 32)
    gray = torch.full((3, 50, 60), 124, dtype=torch.uint8)
    batch = Cropper(settings, seed=0)([gray, gray])
    assert batch.shape == (2, 3, 32, 32)
    expected = (124 / 255 - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    torch.testing.assert_close(batch, expected.view(3, 1, 1).expand_as(batch), rtol=0, atol=1e-5)


# Parts.


@ON_CPU
def test_host_and_memory(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    from gpu import host, memory

    monkeypatch.setenv("GPUPIPE_CACHE", str(tmp_path / "cache"))  # nothing is tuned there
    monkeypatch.setattr(host, "PACE", 2)
    assert host.main([str(images), "--out", str(tmp_path), *SIZES, "--model", "tiny", "--batches", "3"]) == 0
    rows = json.loads((tmp_path / "host.json").read_text())["rows"]
    assert len(rows) == 6
    assert all(0 < row["low"] <= row["median"] <= row["high"] for row in rows)
    assert memory.main([str(images), "--out", str(tmp_path), *SIZES, "--after", "1,2,3"]) == 0
    rows = json.loads((tmp_path / "memory.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["after 1 batches", "after 2 batches", "after 3 batches", "host"]
    assert rows[3]["median"] == pytest.approx(rows[2]["median"] - rows[1]["median"])
    assert memory.main([str(images), "--out", str(tmp_path), *SIZES, "--after", "1,2,99999", "--limit", "0"]) == 1


def test_rows_of_results(tmp_path: Path) -> None:
    from gpu.rows import from_results, write_csv

    fast = Result("x", None, None, 6.0, 300.0, [Round(100, 1 / rate, 0.4) for rate in (1.0, 4.0, 2.0)])
    rows = from_results("part", ["fast", "none"], [fast, Result("y", "no GPU")])
    assert [(row.name, row.quantity, row.median, row.low, row.high, row.note) for row in rows] == [
        ("fast", "img/s", 200.0, 100.0, 400.0, ""),
        ("none", "img/s", None, None, None, "no GPU"),
        ("fast", "CPU ms/img", 4.0, 4.0, 4.0, ""),
        ("fast", "host MB", 300.0, 300.0, 300.0, ""),
    ]
    write_csv(tmp_path / "rows.csv", rows)
    with open(tmp_path / "rows.csv") as file:
        assert [row["median"] for row in csv.DictReader(file)] == ["200.0", "", "4.0", "300.0"]


# The table.


def figures(**changes: float | None) -> Iterator[Any]:
    """Rows with which every target is reached, but for `changes`."""
    from gpu.decoders import CPU_WORKERS
    from gpu.host import WAITING
    from gpu.loaders import PACKED, SPDL, TORCH, TORCHVISION_GPU, TORCHVISION_V2, TUNED
    from gpu.rows import Row

    values = {
        "tuned": ("loaders", TUNED, "img/s", 28_000.0),
        "native": ("loaders", "native DALI, crop, hw 0.65", "img/s", 20_000.0),
        "native_best": ("loaders", "native DALI, full, hw 1", "img/s", 21_000.0),
        "v2": ("loaders", TORCHVISION_V2, "img/s", 8_000.0),
        "torch": ("loaders", TORCH, "img/s", 15_000.0),
        "torchvision": ("loaders", TORCHVISION_GPU, "img/s", 9_000.0),
        "spdl": ("loaders", SPDL, "img/s", 9_500.0),
        "sum_tuned": ("decoders", TUNED, "img/s", 28_100.0),
        "hardware": ("decoders", "DALI full, hw 1, 4 threads", "img/s", 15_000.0),
        "hybrid": ("decoders", "DALI full, hw 0.65, 16 threads", "img/s", 22_000.0),
        "kernel": ("decoders", CPU_WORKERS, "img/s", 15_500.0),
        "files": ("loaders-400", TUNED, "img/s", 27_900.0),
        "packed": ("loaders-400", TUNED + PACKED, "img/s", 56_000.0),
        "ceiling": ("training", "device", "img/s", 3_000.0),
        "trained": ("training", "gpupipe", "of ceiling", 0.98),
        "median": ("host", WAITING, "median ms", 0.2),
        "p99": ("host", WAITING, "p99 ms", 0.9),
        "level": ("memory", "after 2000 batches", "device MB", 4_000.0),
        "grown": ("memory", "device", "growth MB", 2.0),
    }
    for key, (part, name, quantity, value) in values.items():
        yield Row(part, name, quantity, changes.get(key, value))


def reached(**changes: float | None) -> list[bool | None]:
    from gpu.table import lines

    return [line.reached for line in lines(figures(**changes))]


def test_every_target_can_be_reached_missed_and_unknown() -> None:
    from gpu.table import lines

    assert reached() == [True] * 12
    assert [line.reached for line in lines([])] == [None] * 12
    missed = {
        0: {"native_best": 28_001.0},  # the best of native DALI counts
        1: {"v2": 28_001.0},
        2: {"torch": 28_000.0},  # more, not as many
        3: {"torchvision": 30_000.0},
        4: {"spdl": 30_000.0},
        5: {"hardware": 16_000.0},  # 28,100 of 31,500 are 89%
        6: {"sum_tuned": 27_499.0},
        7: {"packed": 55_799.0},
        8: {"trained": 0.969},
        9: {"median": 1.0},
        10: {"p99": 1.5},
        11: {"grown": 65.0},
    }
    for place, change in missed.items():
        found = reached(**change)
        assert found[place] is False, change
        assert set(found[:place] + found[place + 1 :]) == {True}, change
    assert reached(tuned=None)[:5] == [None] * 5
    assert reached(spdl=None)[4] is None
    assert reached(level=None)[11] is None


def test_targets_that_depend_on_others() -> None:
    from gpu.table import lines, markdown

    assert reached(hardware=10_000.0, sum_tuned=25_000.0)[5:7] == [True, None]  # the sum does not allow 27,500
    assert reached(ceiling=30_000.0, trained=0.9)[8] is None  # the loader alone is slower than the ceiling
    assert reached(tuned=None, trained=0.9)[8] is None
    assert reached(tuned=None)[8] is True
    text = markdown(lines(figures(packed=None, spdl=40_000.0)), ["a GPU"])
    assert text.startswith("a GPU\n\n| what |")
    assert "| loader alone, beside SPDL with nvJPEG | more | 28,000 img/s, SPDL with nvJPEG: 40,000 | NO |" in text
    assert "no figure of gpupipe, tuned, packed | unknown |" in text
    assert "92%: 28,100 of 15,000 (DALI full, hw 1, 4 threads) + 15,500 (CPU kernel, worker processes) img/s" in text


def test_the_table_of_two_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from dataclasses import asdict

    from gpu import table

    rows = [asdict(row) for row in figures()]
    first = {"rows": [row for row in rows if row["part"] in ("loaders", "host")]}
    again = {"rows": [row | {"median": 2.0} for row in rows if row["part"] == "host"]}
    for name, content in (("a", first), ("b", again)):
        facts = {"machine": {"gpus": ["Some GPU"], "cpu": "Some CPU", "usable_cpus": 16, "date": "2000-01-01T"}}
        (tmp_path / f"{name}.json").write_text(json.dumps(content | {"contents": facts}))
    paths = [str(tmp_path / f"{name}.json") for name in "ab"]
    assert table.main([*paths, "--out", str(tmp_path / "table.md")]) == 0
    text = (tmp_path / "table.md").read_text()
    assert text.startswith("Some GPU; Some CPU, 16 CPUs; 2000-01-01\n\n")
    assert re.findall(r"\| (yes|NO|unknown) \|", text) == ["yes"] * 5 + ["unknown"] * 4 + ["NO", "NO"] + ["unknown"]
    assert "missed: host time of `next`, median; host time of `next`, p99" in capsys.readouterr().out


# The report, from what each part writes.


def test_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import asdict

    from gpu import report

    monkeypatch.setenv("GPUPIPE_CACHE", str(tmp_path / "cache"))
    work, out = tmp_path / "work", tmp_path / "out"
    work.mkdir()
    out.mkdir()
    (work / "parts.csv").write_text("part,start,end,exit_code\nmachine,100,103,0\nloaders,103,200,124\n")
    parts: dict[str, list[dict[str, Any]]] = {}
    for row in figures():
        parts.setdefault(row.part, []).append(asdict(row))
    training = parts.pop("training")
    measured = {"img_per_s_min": 1.0, "img_per_s_max": 9_000.0, "waited": None, "waited_min": None, "waited_max": None}
    measured |= {"of_ceiling": 0.98, "of_ceiling_min": 0.9, "of_ceiling_max": 1.0, "not_measured": ""}
    names = {"device": training[0]["median"], "gpupipe": 1.5}
    contents: dict[str, dict[str, Any]] = {part: {"rows": rows, "settings": {}} for part, rows in parts.items()}
    contents["training"] = {
        "rows": [{"contender": name, "img_per_s": rate, **measured} for name, rate in names.items()]
    }
    plan = {"crop_decode": True, "hardware": True}
    trial = {"plan": plan, "outcome": "crashed", "detail": "SIGSEGV", "seconds": 1.0, "mean": None, "largest": None}
    contents["selftest"] = {"trials": [trial, trial | {"outcome": "passed", "detail": "fine", "largest": 9}]}
    contents["tune"] = {"winner": {"img_per_s": 5.0}, "code": "gpupipe.Loader(...)"}
    kernel = {"work": "finish", "contender": "gpupipe", "median_us": 7.0, "low_us": 6.0, "high_us": 8.0, "reason": ""}
    contents["kernels"] = {"rows": [kernel]}
    odd = {"file": "b.avi", "outcomes": {"dies": 1}}
    contents["video_on_graph"] = {"files": [{"file": "a.mp4", "right": True, "mean": 5.5, "outcomes": {}}, odd]}
    contents["machine"] = {"gpus": [], "cpu": "Some CPU", "usable_cpus": 2, "date": "2000-01-01T"}
    for part, content in contents.items():
        (work / f"{part}.json").write_text(json.dumps(content))

    assert report.main([str(work), str(out), "all"]) == 0
    assert {path.name for path in out.iterdir()} == {"all.json", "all.csv", "all.md", "all.png"}
    assert (out / "all.png").stat().st_size > 10_000
    text = (out / "all.md").read_text()
    assert text.startswith("NO GPU: not what the targets are for; Some CPU, 2 CPUs; 2000-01-01")
    assert len(re.findall(r"\| yes \|", text)) == 12
    everything = json.loads((out / "all.json").read_text())
    assert everything["parts"][1] == {"part": "loaders", "start": "103", "end": "200", "exit_code": "124"}
    assert everything["tuned"] is None
    with open(out / "all.csv") as file:
        rows = list(csv.DictReader(file))
    assert {row["part"] for row in rows} == {*contents} - {"machine"}
    crash = next(row for row in rows if row["note"] == "crashed: SIGSEGV")
    assert (crash["name"], crash["median"]) == ("crop decode, with hardware engines", "")
    assert next(row for row in rows if row["part"] == "kernels")["median"] == "7.0"
    videos = [(row["name"], row["median"], row["note"]) for row in rows if row["part"] == "video_on_graph"]
    assert videos == [("a.mp4", "5.5", ""), ("b.avi", "", "dies: 1")]


def test_a_machine_without_a_gpu_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu import machine

    monkeypatch.setattr(machine, "kernels", lambda: None)
    monkeypatch.delenv(machine.ANYWAY, raising=False)
    there = dict.fromkeys(machine.NEEDED, "1.0")
    assert machine.problems(there, ["Some GPU"]) == []
    assert "no GPU" in machine.problems(there, [])[0]
    monkeypatch.setattr(machine, "kernels", lambda: "no compiler")
    found = machine.problems(there | {"nvidia.dali": "missing: ImportError: x"}, ["Some GPU"])
    assert found[0] == "nvidia.dali is missing: ImportError: x"
    assert found[1].endswith("no compiler")


# The script.


def test_an_unknown_part(tmp_path: Path) -> None:
    environment = os.environ | {"GPUPIPE_GPU_PARTS": "loaders decoder"}
    done = subprocess.run(["bash", RUN, tmp_path / "out"], capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert "no part is called 'decoder'; there are: selftest tune" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.large
@pytest.mark.timeout(600)
@ON_CPU
def test_a_whole_run(images: Path, tmp_path: Path) -> None:
    parts = "tune loaders host decoders training memory loaders-400"
    environment = os.environ | {"GPUPIPE_GPU_RUN_ANYWAY": "1", "GPUPIPE_GPU_PARTS": parts}
    environment |= {
        "GPUPIPE_CACHE": str(tmp_path / "cache"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    environment |= {"GPUPIPE_BENCH_SECONDS": "0.1", "GPUPIPE_BENCH_ROUNDS": "1", "GPUPIPE_BENCH_BATCH": "8"}
    done = subprocess.run(["bash", RUN, tmp_path / "out", images], capture_output=True, text=True, env=environment)
    name = parts.replace(" ", "-")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        f"{name}.{kind}" for kind in ("json", "csv", "md", "png", "log")
    }, done.stdout
    content = json.loads((tmp_path / "out" / f"{name}.json").read_text())
    codes = {one["part"]: int(one["exit_code"]) for one in content["parts"]}
    assert list(codes) == ["machine", *parts.split()]
    lacking = {"machine"} if native.library() is None else set()  # a compiler, or libjpeg's headers
    try:
        import spdl.pipeline  # noqa: F401
    except ImportError:
        lacking.add("loaders")  # it says that SPDL is missing
    assert {part for part, code in codes.items() if code} <= lacking, done.stdout
    assert done.returncode == int(any(codes.values()))
