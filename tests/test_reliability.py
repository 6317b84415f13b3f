"""The scoreboard: gpupipe passes each of its cases, and each of its checks can fail."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

BENCH = Path(__file__).parent.parent / "bench"
sys.path.append(str(BENCH))

import reliability_fakes as fakes  # noqa: E402
from reliability.case import Case  # noqa: E402
from reliability.contenders import CONTENDERS, contender  # noqa: E402
from reliability.rows import ROWS, order  # noqa: E402
from reliability.sandbox import Outcome, Sandbox  # noqa: E402

from gpupipe.benchmark.runner import python_path  # noqa: E402

SEEDS = range(2)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        yield sandbox


def gpupipe_cases() -> list[object]:
    return [
        pytest.param(case, seed, id=f"{row.number}-{case.name}-{seed}")
        for row in ROWS.values()
        for case in row.cases
        for seed in SEEDS
    ]


@pytest.mark.parametrize(("case", "seed"), gpupipe_cases())
def test_gpupipe_passes(sandbox: Sandbox, case: Case, seed: int) -> None:
    outcome = sandbox.run_case(case, contender("gpupipe"), seed)
    assert outcome.status == "passed", outcome.reason


@pytest.mark.parametrize("name", ["fine", "victims"])
def test_a_good_case_passes(sandbox: Sandbox, name: str) -> None:
    outcome = sandbox.run_case(fakes.CASES[name], fakes.Right, 0)
    assert (outcome.status, outcome.reason) == ("passed", "")


@pytest.mark.parametrize(
    ("name", "status", "reasons"),
    [
        ("hangs", "hang", ["nothing after 2 s", "in wait_here"]),
        ("hangs_at_exit", "hang", ["nothing after 2 s", "in wait_here"]),
        ("dies_at_exit", "failed", ["exit code 4 after the case"]),
        ("leaks_a_child", "failed", ["left behind", "sleep", "still there", "children"]),
        ("leaks_an_orphan", "failed", ["left behind", "sleep"]),
        ("leaks_shared_memory", "failed", ["/dev/shm entries reliability-test-"]),
        ("leaks_a_file", "failed", ["open files", "reliability_fakes.py"]),
        ("leaks_a_thread", "failed", ["threads: "]),
        ("crashes", "failed", ["ended by SIGSEGV", "last words"]),
        ("exits", "failed", ["exit code 3"]),
        ("raises", "failed", ["reliability_fakes.py", "KeyError: 'no such thing'"]),
    ],
)
def test_what_goes_wrong_is_seen_and_cleared_away(sandbox: Sandbox, name: str, status: str, reasons: list[str]) -> None:
    outcome = sandbox.run_case(fakes.CASES[name], fakes.Right, 0)
    assert outcome.status == status
    assert [reason for reason in reasons if reason not in outcome.reason] == [], outcome.reason
    (warm,) = [child for child in psutil.Process().children() if child.pid == sandbox.pid]
    assert warm.children(recursive=True) == []
    for path in Path("/dev/shm").glob("reliability-test-*"):
        path.unlink()


def once(sandbox: Sandbox, who: type, seed: int) -> Outcome:
    return sandbox.run_case(Case("uneven", order.once_uneven), who, seed)


def test_repeats_and_gaps_are_counted(sandbox: Sandbox) -> None:
    assert once(sandbox, fakes.Right, 1).status == "passed"
    assert "1 repeated and not flagged" in once(sandbox, fakes.Repeats, 1).reason
    assert "1 of " in once(sandbox, fakes.Loses, 1).reason


@pytest.mark.parametrize("name", list(CONTENDERS))
def test_each_contender_gives_each_sample_once(sandbox: Sandbox, name: str) -> None:
    pytest.importorskip({"stateful": "torchdata"}.get(name, "torch"))  # which no extra installs
    outcome = sandbox.run_case(Case("even", order.once_even), contender(name), 0)
    assert outcome.status == "passed", outcome.reason


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH / "reliability" / "run.py"), *options]
    environment = os.environ | {"PYTHONPATH": python_path()}
    return subprocess.run(command, capture_output=True, text=True, timeout=150, env=environment)


def test_a_run_writes_its_results(tmp_path: Path) -> None:
    chosen = ["--rows", "1", "--contenders", "gpupipe,torch", "--seeds", "2", "--first-seed", "2"]
    done = run("--out", str(tmp_path), *chosen)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "results.md").read_text()
    assert "| 1 Exactly once | samples left over | 2/2 | 0/2 |" in text
    assert "1 samples left over, torch, seed 2: 0 of" in text
    with (tmp_path / "results.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 2 * 2 * 2
    assert {line["status"] for line in lines if line["contender"] == "gpupipe"} == {"passed"}
    content = json.loads((tmp_path / "results.json").read_text())
    assert [entry["seed"] for entry in content["not_passed"]] == [2, 3]
    assert "torch" in content["environment"]["versions"]


def test_wrong_names_are_refused(tmp_path: Path) -> None:
    for option in (["--rows", "99"], ["--contenders", "torhc"]):
        done = run("--out", str(tmp_path / "no"), *option)
        assert done.returncode == 2
        assert "there are " in done.stderr
    assert not (tmp_path / "no").exists()
