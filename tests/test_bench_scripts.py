"""Small runs of the measuring scripts that no other test runs."""

from __future__ import annotations

import csv
import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gpupipe.kernels import native

BENCH = Path(__file__).parent.parent / "bench"


def test_loader_cost(capsys):
    spec = importlib.util.spec_from_file_location("loader_cost", BENCH / "loader_cost.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.main(["--batch-size", "8", "--samples", "64", "--repeat", "3"])
    rows = capsys.readouterr().out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["folder"] * 5 + ["shards"] * 5 + ["2*10^9"] * 3
    for row in rows:
        median, low, high = (float(figure) for figure in row.split()[-3:])
        assert 0 < low <= median <= high


@pytest.mark.skipif(
    native.library() is None or shutil.which("g++") is None, reason="needs the C++ kernels and a compiler"
)
def test_decode(folder, tmp_path):
    options = ["--images", "10", "--rounds", "1", "--photos", "2", "--megapixels", "0.3", "--out", tmp_path]
    command = [sys.executable, BENCH / "decode.py", folder, *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "decode.csv") as file:
        rows = list(csv.DictReader(file))
    names = {row["what"] for row in rows}
    assert {"floor: decoding alone", "kernel, portable", "0.3 MP train, fast", "0.3 MP eval, exact"} <= names
    assert all(0 < float(row["low"]) <= float(row["median"]) <= float(row["high"]) for row in rows)
    remarks = json.loads((tmp_path / "decode.json").read_text())["remarks"]
    assert [remark.split(":")[0] for remark in remarks] == ["0.3 MP train", "0.3 MP eval"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_the_gpu_script_refuses_a_machine_without_one(tmp_path):
    done = subprocess.run(["bash", BENCH / "gpu" / "run.sh", tmp_path], capture_output=True, text=True)
    assert done.returncode == 1
    assert "no GPU" in done.stderr
    assert not list(tmp_path.iterdir())
