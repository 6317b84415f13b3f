"""bench/run.py from end to end on a few images, its environments, and what each contender makes that can run here."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import os
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from images import write_folder
from PIL import Image

from gpupipe.errors import ConfigError
from gpupipe.host.usage import memory_mb
from gpupipe.tools.benchmark.checks import antialiased, noise_folder, problem
from gpupipe.tools.benchmark.child import Host, look
from gpupipe.tools.benchmark.measurement import BenchSettings

BENCH = Path(__file__).parent.parent / "bench"
LIBRARIES = {"tf_data": "tensorflow", "spdl_ffmpeg": "spdl.io", "mosaicml_streaming": "streaming"}
LIBRARIES |= {"ffcv_jpeg": "ffcv", "litdata_v2": "litdata", "grain_pillow": "grain", "hf_datasets": "datasets"}
LIBRARIES |= {"simplejpeg_torch": "simplejpeg"}
EXACT = ("simplejpeg", "timm", "ffcv", "grain", "hf-datasets")


@pytest.fixture(autouse=True)
def _bench_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))


def peer_names() -> list[str]:
    sys.path.insert(0, str(BENCH))
    try:
        from peers import PEERS
    finally:
        sys.path.remove(str(BENCH))
    return list(PEERS)


def marked(name: str) -> Any:
    return pytest.param(name, marks=pytest.mark.trainers("timm") if name == "timm" else ())


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize("name", [marked(name) for name in peer_names() if name != "floor"])
def test_each_makes_what_was_asked_for(name: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from peers import PEERS

    monkeypatch.setenv("GPUPIPE_PEERS", str(tmp_path / "cache"))
    module = PEERS[name].partition(":")[0].rpartition(".")[2]
    if module in LIBRARIES:
        pytest.importorskip(LIBRARIES[module])
    data, noise = write_folder(tmp_path / "data", classes=3, per_class=8), noise_folder(tmp_path / "noise")
    settings = BenchSettings(str(data), batch_size=8, size=32, workers=1, threads=1, dtype=dtype)
    host = Host(PEERS[name], settings)
    assert host.available() is None
    host.prepare([str(data), str(noise)])
    assert host.prepare([str(data), str(noise)]) is False  # converted once
    assert antialiased(host.noise(str(noise))) == (name != "tf-data")
    opened = host.open(24)
    round_ = host.run(0.05)
    host.close()
    assert problem(opened, settings, {0: 8, 1: 8, 2: 8}) is None
    assert opened.exact_passes or name not in EXACT
    assert round_.images % 8 == 0


@pytest.mark.large
def test_a_run_writes_tables_for_both_dtypes(tmp_path: Path) -> None:
    write_folder(tmp_path / "data", classes=2, per_class=8, sizes=((300, 400), (90, 120)))
    options = ["--rounds=1", "--seconds=0.2", "--threads=1", "--batch-size=4", "--size=32", "--max-size=100"]
    command = [sys.executable, str(BENCH / "run.py"), str(tmp_path / "data"), "--out", str(tmp_path / "out"), *options]
    command += ["--only", "torchvision-v2,gpupipe-torch", "--cache", str(tmp_path / "cache")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "out" / "results.md").read_text()
    assert text.index("## float32") < text.index("## uint8") < text.index("## Versions")
    for dtype in ("float32", "uint8"):
        with (tmp_path / "out" / dtype / "results.csv").open() as file:
            lines = {line["contender"]: line for line in csv.DictReader(file)}
        assert [float(lines[name]["img_per_s"]) > 0 for name in ("torchvision-v2", "gpupipe-torch")] == [True, True]
        assert lines["gpupipe-torch"]["antialiased"] == "yes"
        assert (tmp_path / "out" / dtype / "results.png").stat().st_size > 10_000
    (shrunk,) = (tmp_path / "cache" / "data").glob("max-100-*")
    sides = [min(Image.open(path).size) for path in shrunk.rglob("*.jpg")]
    assert sorted(sides) == [90] * 8 + [100] * 8
    assert sorted(path.name for path in shrunk.iterdir() if path.is_dir()) == ["class_0", "class_1"]


def test_the_readme_shows_what_is_stored(tmp_path: Path) -> None:
    stored = BENCH / "results" / "cpu-2-cores" / "peers"
    readme, copy = BENCH.parent / "README.md", tmp_path / "README.md"
    copy.write_text(readme.read_text().replace("(C++ kernels)", "(an older table)"))
    command = [sys.executable, str(BENCH / "readme_table.py"), str(stored), str(copy)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert copy.read_text() == readme.read_text()
    assert printed in copy.read_text()
    rates = re.findall(r"^\| [\w-]+ \| ([\d,]+ \([\d,]+ - [\d,]+\))", (stored / "results.md").read_text(), re.MULTILINE)
    shown = [rate for rate in rates if rate in printed]
    assert len(shown) == 2 * (len(printed.splitlines()) - 2) == 16


def test_what_cannot_be_installed_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from peers import environments

    commands: list[list[str]] = []

    def fails(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 1, "", "a line\nERROR: No matching distribution found\n")

    assert environments.interpreter(("numpy>=1", "Typing_Extensions"), tmp_path) == sys.executable
    monkeypatch.setattr(environments, "versions", lambda *_: {})
    monkeypatch.setattr(environments.subprocess, "run", fails)
    with pytest.raises(environments.InstallError, match="No matching distribution found"):
        environments.interpreter(("no-such-library",), tmp_path)
    assert commands[0][:3] == [sys.executable, "-m", "venv"]


def test_an_environment_is_made_again_where_what_it_shares_is_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from peers import environments

    made: list[str] = []
    has = {sys.executable: "2.4"}

    def call(command: list[str]) -> str:
        if command[1:3] == ["-m", "venv"]:
            made.append(command[-1])
            (Path(command[-1]) / "bin").mkdir(parents=True, exist_ok=True)
            has[str(Path(command[-1]) / "bin" / "python")] = "2.1"
        return ""

    monkeypatch.setattr(environments, "call", call)
    monkeypatch.setattr(environments, "share_packages", lambda _: None)
    monkeypatch.setattr(environments, "versions", lambda python, _: {"numpy": has[python]})
    python = environments.interpreter(("numpy<2.2",), tmp_path)
    assert environments.interpreter(("numpy<2.2",), tmp_path) == python
    assert len(made) == 1
    has[python] = "2.4"
    assert environments.interpreter(("numpy<2.2",), tmp_path) == python
    assert made == [str(Path(python).parent.parent)] * 2


def test_a_contender_without_its_environment_is_a_row_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    run = importlib.import_module("run")
    from peers.environments import InstallError

    def fails(needed: tuple[str, ...], folder: Path) -> str:
        if needed:
            raise InstallError(f"can't be installed: {needed[0]}")
        return sys.executable

    monkeypatch.setattr(run, "interpreter", fails)
    pythons, failed = run.install(["gpupipe-torch", "ffcv"])
    assert (pythons, failed) == ({"gpupipe-torch": sys.executable}, {"ffcv": "can't be installed: ffcv"})
    monkeypatch.setattr(run, "measure", lambda references, *_, **__: [run.Result(one) for one in references])
    settings = BenchSettings("data", rounds=1)
    ffcv, ours = run.play(["ffcv", "gpupipe-torch"], settings, Path("out"), pythons, failed)
    assert (ffcv.name, ffcv.reason, ours.name, ours.reason) == ("ffcv", failed["ffcv"], "gpupipe-torch", None)


def test_requirements_are_read_without_importing() -> None:
    from peers import PEERS
    from peers.environments import requirements

    before = set(sys.modules)
    assert "numpy<2" in requirements(PEERS["ffcv"])
    assert requirements(PEERS["gpupipe-torch"]) == ()
    assert not {"ffcv", "peers.ffcv_jpeg"} & (set(sys.modules) - before)


def test_random_boxes_are_those_of_random_resized_crop() -> None:
    from peers.common import random_box

    rng = np.random.default_rng(0)
    boxes = np.array([random_box(rng, 300, 400) for _ in range(4000)])
    top, left, height, width = boxes.T
    assert (top.min() >= 0, left.min() >= 0) == (True, True)
    assert ((top + height).max() <= 300, (left + width).max() <= 400) == (True, True)
    areas = height * width / (300 * 400)
    assert (areas.min() == pytest.approx(0.08, abs=0.01), areas.max() <= 1.01) == (True, True)
    assert np.quantile(width / height, [0, 1]) == pytest.approx([3 / 4, 4 / 3], rel=0.05)
    assert random_box(rng, 10, 1000) == (0, 493, 10, 13)  # nothing of this ratio fits: the middle


def test_arrays_without_torch_are_looked_at() -> None:
    batches = [(np.full((2, 8, 8, 3), value, np.uint8), np.array([0, 1])) for value in (3, 200)]
    opened = look(batches[0], iter(batches[1:]), 4, 0.5)
    assert (opened.shape, opened.dtype, opened.device, opened.contiguous) == ((2, 8, 8, 3), "uint8", "cpu", True)
    assert (opened.low, opened.high, opened.labels) == (3, 200, {0: 2, 1: 2})
    settings = BenchSettings("data", batch_size=2, size=8, dtype="uint8")
    assert problem(opened, settings, {0: 2, 1: 2}) is None
    assert "shape" in (problem(opened, BenchSettings("data", batch_size=2, size=8), None) or "")


def test_memory_counts_what_is_shared_once(tmp_path: Path) -> None:
    size = 40_000_000
    (tmp_path / "file").write_bytes(b"x" * size)
    script = (
        "import mmap, os, sys; f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ);"
        "block = bytearray(os.urandom(int(sys.argv[2]))); sum(m[::4096]); os.fork();"
        "os.write(1, b'%d\\n' % os.getpid()); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "file"), str(size)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        pids = [int(line) for line in islice(process.stdout, 2)]
        together, alone = memory_mb(pids), max(memory_mb([pid]) for pid in pids)
        process.stdin.close()
    assert 2 * size / 1e6 < together < 2 * size / 1e6 + 40
    assert size * 1.5 / 1e6 < alone < together


def test_an_unknown_dtype_is_an_error() -> None:
    with pytest.raises(ConfigError, match="float16"):
        BenchSettings("data", dtype="float16")


def test_peers_cache_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    common = importlib.import_module("peers.common")
    monkeypatch.setenv("GPUPIPE_PEERS", str(tmp_path))
    data = write_folder(tmp_path / "data", classes=1, per_class=2)
    before = common.converted(str(data), "kind")
    assert before.is_relative_to(tmp_path)
    os.truncate(data / "class_0" / "img_0.jpg", 100)
    assert common.converted(str(data), "kind") != before
