"""`gpupipe bench` from end to end on a few small images, and contenders that misbehave."""

from __future__ import annotations

import csv
import json
import os
import re
import time
from pathlib import Path

import psutil
import pytest
from images import write_folder
from living import lives
from PIL import Image

from gpupipe.tools.benchmark.measurement import BenchSettings
from gpupipe.tools.benchmark.runner import measure, start
from gpupipe.tools.cli import main
from gpupipe.tools.cli.bench import EXTRA
from gpupipe.tools.cli.options import require

TINY = ["--batch-size", "4", "--size", "32", "--workers", "1", "--threads", "1", "--seconds", "0.2", "--rounds", "1"]
IMAGES = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("bench") / "data", classes=3, per_class=IMAGES // 3)


def bench(folder: Path, output: Path, *names: str) -> tuple[int, dict]:
    code = main(["bench", str(folder), *TINY, "--output", str(output), "--only", *names])
    return code, json.loads((output / "results.json").read_text())


@pytest.fixture(scope="module")
def measured(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    output = tmp_path_factory.mktemp("out")
    names = ("gpupipe-torch", "gpupipe-dali-cpu", "torchvision-pillow")
    code, content = bench(folder, output, *names)
    assert code == 0
    return output, content


def test_contenders_are_measured(measured: tuple[Path, dict]) -> None:
    _, content = measured
    for row in content["rows"]:
        assert row["not_measured"] is None, row
        assert row["img_per_s"] > 0
        assert row["cpu_ms_per_img"] > 0
        assert row["memory_mb"] > 50
    by_name = {row["contender"]: row for row in content["rows"]}
    assert by_name["torchvision-pillow"]["ratio"] == 1.0
    expected = by_name["gpupipe-torch"]["img_per_s"] / by_name["torchvision-pillow"]["img_per_s"]
    assert by_name["gpupipe-torch"]["ratio"] == pytest.approx(expected)


def test_a_contender_stands_still_between_commands(folder: Path, tmp_path: Path) -> None:
    """With its workers, which else would fill their queues while the next one is measured."""
    settings = BenchSettings(str(folder), batch_size=4, size=32, workers=1, threads=1, seconds=0.2, rounds=1)
    contender = start("torchvision-v2", settings, tmp_path / "log")
    try:
        contender.ask("open", 0)
        own = psutil.Process(contender.pid)
        children = own.children(recursive=True)  # one of which, not of its group, waits for its end
        tree = [own, *(child for child in children if os.getpgid(child.pid) == own.pid)]
        assert len(tree) > 1
        for _ in range(2):
            until = time.monotonic() + 10  # the system stops a process when that next runs
            while time.monotonic() < until and any(process.status() != psutil.STATUS_STOPPED for process in tree):
                time.sleep(0.02)
            assert {process.status() for process in tree} == {psutil.STATUS_STOPPED}
            assert contender.ask("run", 0.2).images > 0
    finally:
        contender.end()
    assert not any(lives(process.pid) for process in tree)


def test_contenders_were_checked_to_make_the_same(measured: tuple[Path, dict]) -> None:
    _, content = measured
    for result in content["results"]:
        assert result["opened"]["shape"] == [4, 3, 32, 32]
        assert result["opened"]["labels"] == {"0": 8, "1": 8, "2": 8}
        assert result["noise_std"] < 15  # antialiased
        assert result["rounds"][0]["images"] % 4 == 0


def test_files_hold_the_results_and_the_environment(measured: tuple[Path, dict]) -> None:
    output, content = measured
    with (output / "results.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["contender"] for line in lines] == [row["contender"] for row in content["rows"]]
    assert float(lines[0]["img_per_s"]) == pytest.approx(content["rows"][0]["img_per_s"], abs=1e-3)
    with Image.open(output / "results.png") as plot:
        assert plot.width > 600
        assert len(set(plot.convert("L").resize((50, 50)).tobytes())) > 5  # not blank
    facts = content["environment"]
    assert facts["settings"]["batch_size"] == 4
    assert {"torch", "torchvision", "pillow", "numpy"} <= set(facts["versions"])
    assert facts["usable_cpus"] >= 1


@pytest.mark.slow
def test_a_bad_contender_is_a_row_with_its_reason(folder: Path, tmp_path: Path, capsys) -> None:
    fakes = [f"bench_fakes:{name}" for name in ("Unavailable", "Fails", "Dies", "Aborts", "Crude", "DiesLater")]
    code, content = bench(folder, tmp_path, *fakes, "no_such_module:Thing")
    reasons = {row["contender"].partition(":")[2]: row["not_measured"] for row in content["rows"]}
    assert code == 1
    assert reasons["Unavailable"] == "no such machine"
    assert reasons["Fails"] == "RuntimeError: the data are not to its taste"
    assert reasons["Dies"].startswith("died during 'noise': exit code 3")
    assert reasons["Aborts"].startswith("died during 'noise': SIGABRT")
    assert "does not antialias" in reasons["Crude"]
    assert reasons["DiesLater"].startswith("died during 'run': exit code 4")
    assert "no_such_module" in reasons["Thing"]
    assert "last words" in (tmp_path / "logs" / "bench_fakes-Dies.log").read_text()
    assert "no such machine" in capsys.readouterr().out


@pytest.mark.slow
def test_a_hanging_contender_is_ended(folder: Path, tmp_path: Path) -> None:
    settings = BenchSettings(
        str(folder), batch_size=4, size=32, workers=1, threads=1, seconds=0.2, rounds=1, timeout=10
    )
    steps: list[str] = []
    hanging, other = measure(["bench_fakes:Hangs", "bench_fakes:Unavailable"], settings, tmp_path, steps.append)
    # On a busy machine it may not have got as far as to the noise, where it hangs.
    assert re.fullmatch(r"no answer to '(available|noise)' within 10 s", hanging.reason or "")
    assert hanging.rounds == []
    assert other.reason == "no such machine"  # its turn came
    assert (hanging.failed, other.failed) == (True, False)
    assert len(steps) == 2 * (1 + settings.rounds)
    left = [child for child in psutil.Process().children(recursive=True) if "serve(" in " ".join(child.cmdline())]
    assert left == []


def test_an_unknown_name_is_an_error_that_lists_the_names(folder: Path, tmp_path: Path, capsys) -> None:
    assert main(["bench", str(folder), "--output", str(tmp_path / "out"), "--only", "torchvison"]) == 2
    message = capsys.readouterr().err
    assert "torchvison" in message
    assert "torchvision-pillow" in message
    assert not (tmp_path / "out").exists()


def test_list_names_the_contenders(capsys) -> None:
    assert main(["bench", "--list"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    ours = {"gpupipe-dali-gpu", "gpupipe-dali-cpu", "gpupipe-torch"}
    assert ours | {"torchvision-pillow", "torchvision-v2"} <= set(listed)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "psutil" else object())
    with pytest.raises(Exception, match=r"needs psutil; .*gpupipe\[bench\]"):
        require(*EXTRA)
    assert "psutil" in EXTRA
