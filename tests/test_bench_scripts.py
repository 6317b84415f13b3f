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
from scipy.stats import hypergeom

from gpupipe.host.system import usable_cpus
from gpupipe.kernels import Op, native

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


def run(script: str, *options: object) -> str:
    """The standard output of a script in bench/."""
    done = subprocess.run([sys.executable, BENCH / script, *map(str, options)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def table_rows(text: str) -> list[list[str]]:
    """The cells of a Markdown table's rows."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]


def test_orders(tmp_path):
    made = table_rows(
        run("orders.py", "--large", 20_000, "--listed", 2000, "--rounds", 2, "--batches", 2, "--out", tmp_path)
    )
    assert {row[0] for row in made} >= {"Shuffled", "Stratified", "BlockShuffled, 10,000 shards", "Weighted.balanced"}
    assert {row[1] for row in made} == {"1,000", "20,000", "1,000 listed", "2,000 listed"}
    content = json.loads((tmp_path / "results.json").read_text())
    assert content["environment"]["settings"]["batch_size"] == 256
    assert [order["name"] for order in content["orders"]] == [row[0] for row in made]
    for order in content["orders"]:
        assert 0 <= order["kept_mb"] <= order["peak_mb"] < 10
        assert len(order["batch_us"]) == len(order["first_ms"]) == 2
        assert min(order["batch_us"]) > 0
        assert len(order["back_us"]) == (0 if order["name"].startswith(("Weighted", "Sampler", "Budget")) else 2)
    kept = {order["name"]: order["kept_mb"] for order in content["orders"] if order["samples"] == 2000}
    assert kept["Subset, shuffled"] == pytest.approx(2000 * 8 / 1e6, abs=0.005)


def test_mixing(tmp_path):
    options = ["--shards", 20, "--per-shard", 50, "--classes", 10, "--epochs", 4, "--nodes", 4, "--batch-size", 20]
    made = table_rows(run("mixing.py", *options, "--out", tmp_path))
    names = ["full shuffle", *(f"BlockShuffled, window={n}" for n in (1, 4, 16))]
    assert [row[0] for row in made][:7] == [*names, *(f"NodeBlocks, every={n}" for n in (1, 2, 5))]
    content = json.loads((tmp_path / "results.json").read_text())
    law, node_law = hypergeom(1000, 100, 20), hypergeom(1000, 100, 5)  # of one class in a batch, and in a node's part
    expected = [10 * (1 - law.pmf(0)), 10 * (1 - node_law.pmf(0))]
    assert content["expected_classes"] == pytest.approx(expected)
    rows = content["epochs"]
    full, narrow = rows["full shuffle"], rows["BlockShuffled, window=1"]
    assert all(0.8 < value < 1.2 for value in full["spread"])
    assert all(abs(value - expected[0]) < 0.5 for value in full["classes"])
    assert all(abs(value - expected[1]) < 0.3 for value in full["node_classes"])
    assert all(0.15 < value < 0.35 for value in full["stays"])
    assert 0.5 < sum(full["again"]) / 3 < 1.5
    assert all(value > 5 for value in narrow["spread"])
    assert max(narrow["classes"]) <= 2  # a batch of 20 lies in one shard of 50 of one class, or across a border
    nodes = [rows[f"NodeBlocks, every={n}"] for n in (1, 2, 5)]
    assert all(abs(value - expected[0]) < 0.9 for row in nodes for value in row["classes"])
    assert all(value < expected[1] for row in nodes for value in row["node_classes"])
    assert nodes[2]["stays"] == [1, 1, 1]
    assert nodes[1]["stays"][::2] == [1, 1]
    assert nodes[1]["stays"][1] < 0.6
    assert 3 < sum(nodes[2]["again"]) / 3 < 5  # a share is a quarter of the data
    turn = rows["webdataset, shards in turn, shuffle(1000)"]
    assert turn["stays"] == [1, 1, 1]
    assert min(turn["correlation"]) > max(full["correlation"])
    assert (tmp_path / "results.png").stat().st_size > 1000


def test_cache_rules(tmp_path):
    made = table_rows(run("cache_rules.py", "--samples", 800, "--epochs", 5, "--nodes", 8, "--out", tmp_path))
    assert (tmp_path / "results.png").stat().st_size > 1000
    assert [row[0] for row in made] == ["full shuffle", "NodeBlocks, every=5"] * 3
    assert [row[2] for row in made[::2]] == ["5%", "10%", "25%"]
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert len(rows) == len(made)
    for row in rows:
        assert row["gpupipe"] == pytest.approx(row["Belady"], abs=0.03)  # it decides step by step
        assert max(row["LRU"], row["pinned"]) <= row["Belady"] + 0.001
    whole = {row["order"]: row for row in rows if row["cache"] == 0.25}
    assert whole["full shuffle"]["Belady"] > 2 * whole["full shuffle"]["pinned"]
    assert whole["NodeBlocks, every=5"]["Belady"] >= 0.8  # a share is an eighth, which is read once in 5 epochs


def test_lookahead(tmp_path):
    made = table_rows(run("lookahead.py", "--samples", 10_000, "--rounds", 1, "--out", tmp_path))
    assert [row[2] for row in made] == ["1"] * 3 + ["8"] * 3 + ["32"] * 3
    for row in json.loads((tmp_path / "cost.json").read_text())["rows"]:
        assert min(*row["next_use_ns"], *row["plan_ns"]) > 0
    options = ["--scale", "--samples", 8000, "--shards", 40, "--nodes", 2, "--ranks", 2]
    options += ["--steps", 4, "--out", tmp_path]
    assert "bytes a sample" in run("lookahead.py", *options)
    content = json.loads((tmp_path / "scale.json").read_text())
    assert [row["order"] for row in content["rows"]] == [row[0] for row in made[:3]]
    assert 8 * 4 < content["index_bytes"][0] < 100  # offset, bytes, label and key of a sample, as 64-bit numbers
    for row in content["rows"]:
        assert 0 < row["held"] <= 4000
        assert row["bytes_per_held"] >= 8


def test_augment_agreement(tmp_path):
    made = table_rows(run("augment_agreement.py", "--sizes", "13x17", "--steps", 2, "--out", tmp_path))
    assert {row[0] for row in made} == {op.name for op in Op} - {"IDENTITY"}
    with open(tmp_path / "results.csv") as file:
        rows = list(csv.DictReader(file))
    names = ["reference", *(f"C++ {variant}" for variant in native.variants())]
    assert [row["path"] for row in rows] == names * len(made)
    assert all(int(row["largest"]) <= 1 for row in rows if not row["operation"].endswith("_NEAREST"))
    assert all(0 <= float(row["differing"]) < 0.05 for row in rows)
    assert len({(row["operation"], row["largest"], row["differing"]) for row in rows}) == len(made)  # the same bits
    settings = json.loads((tmp_path / "results.json").read_text())["environment"]["settings"]
    assert settings == {"sizes": ["13x17"], "steps": 2}


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_the_gpu_script_refuses_a_machine_without_one(tmp_path):
    done = subprocess.run(["bash", BENCH / "gpu" / "run.sh", tmp_path], capture_output=True, text=True)
    assert done.returncode == 1
    assert "no GPU" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.trainers("ray")
def test_packing(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("GPUPIPE_PEERS", str(tmp_path / "peers"))
    text = run("packing.py", folder, "--copies", 1, "--rounds", 1, "--only", "parquet", "--out", tmp_path / "out")
    assert "25 images, 16 files; median" in text
    with open(tmp_path / "out" / "packing.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["by"] for row in rows] == ["1 thread", f"{usable_cpus()} threads", f"Ray, {usable_cpus()} CPUs"]
    for row in rows:
        assert 0 < float(row["img_per_s_min"]) <= float(row["img_per_s"]) <= float(row["img_per_s_max"])
    assert 0 < float(rows[0]["read_back"]) < 1


def test_augmentations(tmp_path):
    options = ["--size", 32, "--batch-size", 2, "--rounds", 1, "--only", "RandomInvert,GaussianNoise"]
    said = run("augmentations.py", *options, "--out", tmp_path).splitlines()
    assert [line.split("`")[1].split("(")[0] for line in said[2:]] == ["RandomInvert", "GaussianNoise"]
    with open(tmp_path / "augmentations.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["operation"] for row in rows if not row["median_us"]] == [
        "GaussianNoise(mean=0.0, sigma=0.1)"
    ]  # Pillow
    assert all(0 < float(row["low_us"]) <= float(row["high_us"]) for row in rows if row["median_us"])
    assert (tmp_path / "results.md").read_text().splitlines() == said
