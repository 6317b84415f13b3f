"""`gpupipe plan`: against what real runs fetch, slow sums, and numbers that are known by hand."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image as Picture
from tars import write_samples

import gpupipe
from gpupipe.sources.remote.coalescing import coalesce, pieces
from gpupipe.sources.remote.objects import Extent, Object
from gpupipe.tools.cli import main
from gpupipe.tools.cli.plan import _seconds
from gpupipe.tools.planning.layout import Layout, layout_of
from gpupipe.tools.planning.planned import Asked, planned
from gpupipe.tools.planning.report import Network, lines

BENCH = Path(__file__).parent.parent / "bench"


IN_ONE_PROCESS = """
import sys
import cache_hits


class InProcess:
    def __init__(self, what, arguments, log, patience):
        self._node = cache_hits.Node(*arguments)

    def ask(self, question):
        return getattr(self._node, question)()

    def kill(self):
        self._node.close()


cache_hits.Child = InProcess
sys.exit(cache_hits.main(sys.argv[1:]))
"""


def test_real_nodes_fetch_what_was_planned_to_the_byte(tmp_path):
    """The script's nodes, in one process that is not pytest's: what has used a client can't be forked any more."""
    options = ["--held", "96", "--nodes", "2", "--epochs", "3", "--shares", "0.4", "--out", str(tmp_path)]
    path = os.pathsep.join([str(BENCH.parent), str(BENCH)])
    command = [sys.executable, "-c", IN_ONE_PROCESS, *options]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path})
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert row["reads"] == 720
    assert 100 < row["hits"] == pytest.approx(row["optimum_of_held"], rel=0.01)
    assert row["hits"] <= row["optimum"]
    assert row["fetched"] == pytest.approx((720 - row["hits"]) * 6_500, rel=0.1)
    assert row["requests"] == pytest.approx(720 - row["hits"], abs=20)


def test_what_differs_from_the_plan_is_told():
    spec = importlib.util.spec_from_file_location("cache_hits", BENCH / "cache_hits.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    plan = SimpleNamespace(found=[SimpleNamespace(hits=[0, 5], fetched=[80, 30])])
    as_planned = [[{"hits": 0, "fetched": 80}, {"hits": 5, "fetched": 30}]]
    assert script.compared(plan, as_planned) == []
    as_planned[0][1]["fetched"] = 31
    assert script.compared(plan, as_planned) == ["node 0, epoch 1: fetched 31, planned 30"]


def test_requests_are_those_of_the_client():
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 200_000, 400) * rng.choice([1, 60], 400, p=[0.98, 0.02])
    objects = rng.integers(0, 4, 400)
    offsets = np.cumsum(sizes + rng.choice([0, 512, 60_000], 400))
    layout = Layout(sizes, objects, offsets)
    for count in (1, 5, 60):
        jobs = [rng.choice(400, count, replace=False) for _ in range(7)]
        spans = []
        for job in jobs:
            parts = zip(objects[job].tolist(), offsets[job].tolist(), sizes[job].tolist(), strict=True)
            spans += coalesce([Extent(Object(str(number), 0, ""), offset, size) for number, offset, size in parts])
        requests = sum(len(pieces(span)) for span in spans)
        assert layout.asked(jobs) == (requests, sum(span.size for span in spans))
        alone = Layout(sizes, None, None).asked(jobs)
        assert alone[1] == sum(int(sizes[job].sum()) for job in jobs)
    assert layout.asked([np.empty(0, np.int64)] * 2) == (0, 0)


@pytest.fixture
def shards(tmp_path):
    for shard in range(3):
        write_samples(tmp_path / f"train-{shard}.tar", first=20 * shard, count=20)
    return tmp_path


def test_layout_of_local_shards_is_that_of_their_samples(shards):
    source = gpupipe.open_source(shards)
    layout = layout_of(source)
    for index in (0, 19, 20, 59):
        data = source[index][0]
        path = sorted(shards.glob("*.tar"))[layout.objects[index]]
        begin = int(layout.offsets[index])
        assert path.read_bytes()[begin : begin + int(layout.sizes[index])] == data.tobytes()


def test_layout_of_a_folder_has_an_object_for_each_sample(folder):
    source = gpupipe.open_source(folder)
    layout = layout_of(source)
    assert layout.asked([np.arange(len(source))]) == (len(source), int(source.sizes.sum()))


def test_a_plan_without_room_and_one_with_room_for_all(shards):
    source = gpupipe.open_source(shards)
    total = int(source.sizes.sum())
    asked = Asked(nodes=2, ranks_per_node=2, batch_size=4, epochs=5, drop_last=True)
    none = planned(source, asked, Network())
    assert none.of("samples").tolist() == [[24] * 5] * 2
    assert none.of("hits").sum() == 0
    assert none.of("bytes").sum() <= 5 * total
    everything = planned(source, Asked(**{**vars(asked), "cache": 100 * total}), Network())
    assert everything.of("hits")[:, 0].sum() == 0
    seen = [set(), set()]
    for epoch in range(5):
        for node in range(2):
            future = everything.run.future(node)
            reads = {sample for step in range(3) for sample in future.uses(epoch, step).tolist()}
            assert everything.of("hits")[node, epoch] == len(reads & seen[node])
            seen[node] |= reads


def plan_with(shards, **network):
    return planned(gpupipe.open_source(shards), Asked(nodes=1, batch_size=10, epochs=2), Network(**network))


def test_what_holds_up_training_is_told(shards):
    plan = plan_with(shards)
    assert "pass --bandwidth" in plan.verdict
    mean = plan.of("fetched")[0, 0] / 60
    slow = plan_with(shards, bandwidth=100 * mean * 8, img_per_s=200)
    assert slow.rates[0] == pytest.approx(100)
    assert "storage holds up training in 2 of 2 epochs: a node gets 100 to 121 img/s of the 200" in slow.verdict
    fast = plan_with(shards, bandwidth=1000 * mean * 8, img_per_s=200)
    assert fast.verdict.startswith("decoding or training holds it up, at 200 img/s")
    late = plan_with(shards, latency=128.0, img_per_s=200)
    assert late.rates[0] == pytest.approx(60 / plan.of("requests")[0, 0])


def test_cost_is_that_of_bytes_and_requests(shards):
    plan = plan_with(shards, price_per_gb=1e9, price_per_request=7.0)
    cost = plan.of("fetched").sum() + 7 * plan.of("requests").sum()
    assert f"requests for {cost:,.2f}" in lines(plan)[2]


def test_the_command_prints_a_table_json_and_a_plot(shards, tmp_path, capsys):
    options = ["plan", str(shards), "--nodes", "2", "--batch-size", "4", "--epochs", "14", "--cache", "1M"]
    options += ["--bandwidth", "1G", "--latency", "30ms", "--img-per-s", "100", "--price-per-gb", "0.09"]
    assert main([*options, "--plot", str(tmp_path / "plan.png")]) == 0
    text = capsys.readouterr().out
    assert "60 samples" in text
    assert "all nodes were gone through" in text
    assert text.count("%") > 14
    with Picture.open(tmp_path / "plan.png") as drawn:
        assert drawn.size[0] > 500
    assert main([*options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["data"]["samples"] == 60
    assert len(found["nodes"]) == 2
    for node in found["nodes"]:
        assert len(node["fetched"]) == 14
        assert sum(node["samples"]) == 14 * 30
        assert all(bytes >= hits for bytes, hits in zip(node["bytes"], node["hit_bytes"], strict=True))
    shares = [point["hit_bytes"] for point in found["curve"]]
    assert shares == sorted(shares)
    assert 0 < shares[-1] < 1


def test_shards_may_be_dealt_anew_every_few_epochs(shards, capsys):
    options = ["plan", str(shards), "--nodes", "3", "--batch-size", "4", "--epochs", "6", "--cache", "40M"]
    assert main([*options, "--node-blocks", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings"]["order"].startswith("node")
    for node in found["nodes"]:
        assert node["hits"][0] == 0
        assert node["hits"][1] == node["samples"][1]  # it has all that it was dealt


def test_what_can_not_be_planned_is_named(shards, capsys):
    assert main(["plan", str(shards), "--batch-size", "100", "--drop-last"]) == 2
    assert "no full batch of 100" in capsys.readouterr().err
    with pytest.raises(argparse.ArgumentTypeError, match="write it as 30ms"):
        _seconds("30")
    assert (_seconds("30ms"), _seconds("0.5s")) == (0.03, 0.5)


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("--epochs=0", "epochs=0 must be at least 1"),
        ("--epochs=-1", "epochs=-1 must be at least 1"),
        ("--nodes=0", "nodes=0 must be at least 1"),
        ("--ranks-per-node=-2", "ranks_per_node=-2 must be at least 1"),
        ("--batch-size=0", "batch_size=0 must be at least 1"),
        ("--node-blocks=0", "node_blocks=0 must be at least 1"),
        ("--workers=-5", "workers=-5 must be at least 0"),
        ("--seed=-1", "seed=-1 must be at least 0"),
        ("--img-per-s=-3", "img_per_s=-3.0 must be at least 0"),
        ("--price-per-gb=-1", "price_per_gb=-1.0 must be at least 0"),
        ("--price-per-request=-1", "price_per_request=-1.0 must be at least 0"),
        ("--plot=x.xyz", "a plot can't be written as 'x.xyz'; let its name end in .png"),
        ("--plot=nowhere/x.png", "there is no folder nowhere; make it first"),
    ],
)
def test_settings_that_can_not_work_are_named_before_the_work(option, reason, shards, capsys):
    assert main(["plan", str(shards), option]) == 2
    told = capsys.readouterr()
    assert reason in told.err
    assert not told.out


def test_sizes_that_only_reading_tells_can_not_be_planned():
    class Unknown(gpupipe.Source):
        fields, fingerprint = gpupipe.Schema({"image": gpupipe.Image()}), "unknown"

        def __len__(self):
            return 10

    with pytest.raises(gpupipe.DataError, match="is not known without reading"):
        layout_of(Unknown())
