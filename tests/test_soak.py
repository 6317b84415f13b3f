"""bench/soak.py for some seconds, and that each of its checks can fail."""

from __future__ import annotations

import ctypes
import json
import math
import multiprocessing
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parent.parent / "bench"
sys.path.append(str(BENCH))

import soak  # noqa: E402
from soaking import checks, player  # noqa: E402
from soaking.lives import KINDS, Life, life_of  # noqa: E402

QUIET = checks.Quiet([[2, 0], [1, 3]], [[12, 10], [11, 13]], [[12, 10], [11, 13]])
MEGABYTES, BLOCK = 64, 1 << 10  # of each block bytes
KILLED = ("WorkerError", -1, "worker process 77 died")


def test_epochs_under_disturbance(tmp_path: Path) -> None:
    """A loader of each engine; in the first a worker is killed."""
    options = ["--lives", "3", "--epochs", "2", "--seed", "11", "--out", str(tmp_path)]
    done = subprocess.run([sys.executable, BENCH / "soak.py", *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    content = json.loads((tmp_path / "results.json").read_text())
    assert content["wrong"] == []
    assert 3 * 2 * 15 - sum(content["errors"].values()) <= content["batches"] <= 3 * 2 * 15
    assert content["acts"]["kill"] >= 1
    assert content["acts"]["hide"] >= 1
    assert "| a worker was killed |" in (tmp_path / "results.md").read_text()


def test_a_life_follows_from_the_seed() -> None:
    assert life_of(3, 7, 8) == life_of(3, 7, 8) != life_of(4, 7, 8)
    assert [(life.engine, life.form) for life in (life_of(0, number, 1) for number in range(len(KINDS)))] == [*KINDS]


def wrong_with(batches: list[Any], errors: tuple[Any, ...] = (), resumes: bool = False, **others: Any) -> list[str]:
    life = Life(0, "torch", "folder", "skip", resumes, ((),))
    found = {"batches": batches, "errors": errors}
    return [*checks.of_epoch(life, found, others.get("quiet", QUIET), others.get("bad", ()), others.get("away", ()))]


FIRST, SECOND = (0, [2, 0], [12, 10]), (1, [1, 3], [11, 13])


@pytest.mark.parametrize(
    ("batches", "errors", "resumes", "words"),
    [
        ([FIRST, SECOND], (), False, []),
        ([SECOND], (KILLED,), False, []),
        ([SECOND], (KILLED,), True, ["steps [0] did not come"]),
        ([SECOND], (), False, ["steps [0] did not come"]),
        ([FIRST, FIRST, SECOND], (), False, ["came twice"]),
        ([SECOND, FIRST], (), False, ["not in turn"]),
        ([FIRST, (1, [1, 3], [11, 99])], (), False, ["step 1, row 1: sample 3 has another checksum"]),
        ([FIRST, (1, [1, 2], [11, 13])], (), False, ["sample 2 in the place of 3", "another checksum"]),
    ],
)
def test_what_an_epoch_may_not_have(
    batches: list[Any], errors: tuple[Any, ...], resumes: bool, words: list[str]
) -> None:
    wrong = wrong_with(batches, errors, resumes)
    assert len(wrong) == len(words)
    assert all(word in line for word, line in zip(words, wrong, strict=True))


def test_substitutes_are_the_next_of_the_order() -> None:
    """In the place of 0 comes 1; of 3, if it was away as well."""
    anew = checks.Quiet(QUIET.planned, QUIET.rows, [[12, 51], [11, 13]])
    assert wrong_with([(0, [2, 1], [12, 51]), SECOND], quiet=anew, bad=(0,), away=(0,)) == []
    assert wrong_with([(0, [2, 3], [12, 51]), SECOND], quiet=anew, bad=(0,), away=(0,))
    assert wrong_with([(0, [2, 3], [12, 51]), SECOND], quiet=anew, bad=(0,), away=(0, 1)) == []
    assert wrong_with([(0, [2, 1], [12, 51]), SECOND], quiet=anew, bad=(), away=(0,))
    assert wrong_with([(0, [2, 1], [12, 10]), SECOND], quiet=anew, bad=(0,), away=(0,))
    assert wrong_with([(0, [2, 0], [12, 51]), SECOND], quiet=anew, bad=(0,), away=(0,)) == []  # made anew


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, []),
        ({"left": "threads: x"}, ["left behind: threads: x"]),
        ({"bad": [(1, "sample 1 (dogs/1.jpg)")]}, ["nothing of it was renamed"]),
        ({"bad": [(0, "sample 0 (?)")]}, ["no name of ['cats']"]),
        ({"errors": [("WorkerError", -1, "worker process 78 died")]}, ["names none of the killed [77]"]),
        ({"errors": [("SampleError", 0, "sample 0 (cats/0.jpg)")]}, ["on_error='skip' and yet"]),
    ],
)
def test_what_a_life_may_not_have(change: dict[str, Any], words: list[str]) -> None:
    fine = {"left": "", "bad": [(0, "sample 0 (cats/0.jpg)")], "hidden": ["cats"], "killed": [77], "errors": [KILLED]}
    found = fine | change
    life = Life(0, "torch", "folder", "skip", False, ((),))
    wrong = [*checks.of_life(life, found | {"epochs": [found]}, ["cats/0.jpg", "dogs/1.jpg"])]
    assert len(wrong) == len(words)
    assert all(word in line for word, line in zip(words, wrong, strict=True))


FLAT = {"mb": 350.0, "used": 340.0, "files": 4, "threads": 2, "processes": 1, "shm": 0}


@pytest.mark.parametrize(
    ("measure", "more", "grown"),
    [
        ("used", lambda minute: 0.1 * minute, False),
        ("used", lambda minute: 0.12 * minute, True),
        ("used", lambda minute: 2.0 * (minute > 10), False),
        ("mb", lambda minute: 40 * (1 - math.exp(-minute / 15)), False),
        ("mb", lambda minute: 0.7 * minute, True),
        ("threads", lambda minute: minute > 58, False),  # which `left_behind` tells of
        ("threads", lambda minute: minute > 30, True),
    ],
)
def test_what_may_not_grow(measure: str, more: Callable[[int], float], grown: bool) -> None:
    """A life in each minute of an hour."""
    soaked = soak.Soaked()
    for minute in range(-soak.WARM, 61):
        row = {"process": "local", "seconds": 60.0 * minute} | FLAT
        soaked.rows.append(row | {measure: row[measure] + more(max(minute, 0))})
    found = [row["measure"] for row in soak.flatness(soaked) if soak.has_grown(row)]
    assert found == [measure] * grown


def grown() -> dict[str, list[float]]:
    """By how many MB a process has grown with so many blocks, and when all but the last of them are freed again, which
    keeps the others' memory from going back to the system."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_size_t],
        [ctypes.c_void_p],
    )
    before = player.measured()
    blocks = [libc.malloc(BLOCK) for _ in range((MEGABYTES << 20) // BLOCK)]
    for one in blocks:
        ctypes.memset(one, 1, BLOCK)
    leaked = player.measured()
    for one in blocks[:-1]:
        libc.free(one)
    kept = player.measured()
    libc.free(blocks[-1])
    return {name: [at[name] - before[name] for at in (leaked, kept)] for name in ("mb", "used")}


def test_what_has_leaked_is_told_from_what_malloc_keeps() -> None:
    """In a new process: this one's malloc may have kept enough for all blocks of what other tests have freed."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(grown)
    assert all(more > 0.9 * MEGABYTES for more in (*found["mb"], found["used"][0])), found
    assert found["used"][1] < 0.3 * MEGABYTES, found
