"""bench/remote.py: the loaders that can run here have the folder's images, a small run, and the table."""

from __future__ import annotations

import csv
import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from images import write_folder
from servers.nginx import Nginx

from gpupipe.host.children import ChildError
from gpupipe.tools.benchmark.measurement import BenchSettings

BENCH = Path(__file__).parent.parent / "bench"
LIBRARIES = {"litdata": "litdata", "streaming": "streaming", "fsspec": "s3fs", "s3torchconnector": "s3torchconnector"}


@pytest.fixture(autouse=True)
def script(monkeypatch: pytest.MonkeyPatch, data: Path) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.setenv("GPUPIPE_PEERS", str(data.parent / "peers"))
    return importlib.import_module("remote")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("remote") / "data", classes=4, per_class=8)  # 2 a shard


@pytest.fixture
def settings(data: Path) -> BenchSettings:
    return BenchSettings(str(data), batch_size=4, size=32, workers=1, threads=1, dtype="uint8")


@pytest.mark.parametrize("name", ["webdataset", "webdataset-cache", *LIBRARIES])
def test_each_has_the_images_of_the_folder(
    name: str, settings: BenchSettings, serve: Callable[..., Nginx], tmp_path: Path
) -> None:
    if name in LIBRARIES:
        pytest.importorskip(LIBRARIES[name])
    from peers.common import converted
    from remote_peers import CONTENDERS, FOLDER
    from remote_peers.common import Place
    from remote_peers.host import Host

    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "files").symlink_to(settings.data)
    for kind in ("tar", "mds", "litdata"):
        (tmp_path / "served" / kind).symlink_to(converted(settings.data, f"remote-{kind}"))
    place = Place(settings.data, serve(tmp_path / "served").url, str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    wanted, found = (Host(CONTENDERS[one], settings).check(place) for one in (FOLDER, name))
    assert wanted.samples.startswith("32 images")
    assert (found.samples, found.batches) == (wanted.samples, "(4, 3, 32, 32) torch.uint8")
    host = Host(CONTENDERS[name], settings)
    assert host.open(place) == (name not in ("webdataset", "s3torchconnector"))
    cold, warm, cut = host.run(1, 60), host.run(1, 0, 60), host.run(1, 0)
    host.close()
    assert cold.whole == warm.whole == 32
    assert cold.images == 28
    assert warm.images == cut.images == 4
    assert (cold.through, warm.through, cut.through) == (True, True, False)


def test_a_small_run(script: ModuleType, data: Path, tmp_path: Path, serve: Callable[..., Nginx]) -> None:
    serve(tmp_path, latency=0.001)  # skipped where that is not to be had
    size = ["--copies", "1", "--batch-size", "4", "--size", "32", "--workers", "1", "--skip", "1"]
    command = [str(data), "--out", str(tmp_path), "--only", "gpupipe", "--latency", "5", "--rounds", "1", *size]
    assert script.main(command) == 0, (tmp_path / "results.md").read_text()
    with open(tmp_path / "remote.csv") as file:
        cold, warm = csv.DictReader(file)
    assert (cold["loader"], cold["cache"], cold["through"], cold["reason"]) == ("gpupipe", "cold", "True", "")
    assert float(cold["bytes_per_img"]) > 500
    assert float(warm["bytes_per_img"]) < float(cold["bytes_per_img"])  # the second pass begins during the first
    content = json.loads((tmp_path / "remote.json").read_text())
    assert content["environment"]["rate_mb_per_s"] == 90
    assert script.main([*command, "--only", "none"]) == 1


def test_what_differs_is_left_out(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from remote_peers.host import Looked

    wanted = Looked("(4, 3, 8, 8) torch.uint8", 100.0, "24 images, abc")
    answers: list[Looked] = []

    class Bench(script.Bench):
        def __init__(self) -> None: ...

        def ask(self, *_: object) -> Looked:
            return answers.pop()

    for found, said in (
        (Looked("(4, 3, 8, 8) torch.uint8", 104.0, "23 images, abd"), "a pass has 23 images, abd for 24 images, abc"),
        (Looked("(4, 3, 8, 8) torch.float32", 100.0, "24 images, abc"), "batches are"),
        (Looked("(4, 3, 8, 8) torch.uint8", 120.0, "24 images, abc"), "batches are"),
    ):
        answers.append(found)
        with pytest.raises(ChildError, match=f"left out: {said}"):
            Bench().check("one", None, wanted)
    answers.append(wanted)
    assert Bench().check("one", None, wanted) == wanted


def test_table(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from remote_peers.host import Pass

    def rounds(rate: float, through: bool = True) -> list[object]:
        return [script.Round(Pass(100, 100 / rate / n, 0.2, 0.5, 120, through), 0.012, 240, 12_000) for n in (1, 2, 3)]

    folder, own = script.Entry(), script.Entry()
    folder.rounds, own.rounds = {"cold": rounds(100), "warm": rounds(200)}, {"cold": rounds(50, False), "warm": []}
    entries = {50.0: {"folder": folder, "gpupipe": own, "litdata": script.Entry(reason="it broke")}}
    entries[50.0]["webdataset"] = script.Entry({"cold": rounds(20), "warm": []}, keeps=False)
    monkeypatch.setattr(script, "usable_cpus", lambda: 2)
    made = script.rows(entries)
    assert [row.to_folder for row in made] == [1, 1, 0.5, None, None, None, 0.2]
    assert made[2].through is False
    # 0.01 s of the server's for the 100 images of 1 s, on two CPUs
    assert made[2].alone_to_folder == pytest.approx(100 / (1 - 0.01 / 2) / 200)
    facts = {"gpus": [], "cpu": "CPU", "usable_cpus": 2, "date": "2026-01-01T"}
    text = script.markdown(made, facts | {"settings": {"batch_size": 4, "size": 8, "workers": 1, "threads": 1}})
    assert "| gpupipe | cold | 100 (50 - 150) | 50.0% | 50.3% | 0.50 | 2.00 | 0.10 | 2.00 | 0 |" in text
    assert "- gpupipe, 50 ms, warm: the cold pass did not come to its end" in text
    assert "- litdata, 50 ms, cold: it broke" in text
    assert "- no warm pass, as they keep nothing: webdataset\n" in text
    assert "webdataset, 50 ms, warm" not in text
