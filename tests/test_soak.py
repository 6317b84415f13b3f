"""bench/soak.py for some seconds, and that each of its checks can fail."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parent.parent / "bench"
sys.path.append(str(BENCH))

from soaking import checks  # noqa: E402
from soaking.lives import KINDS, Life, life_of  # noqa: E402

QUIET = checks.Quiet([[2, 0], [1, 3]], [[12, 10], [11, 13]], [[12, 10], [11, 13]])
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
