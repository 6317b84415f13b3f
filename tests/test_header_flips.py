"""No flipped bit of a header ends the process, and what one engine refuses every engine refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("header_flips.py")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "count"), [(0, 400), *(pytest.param(seed, 1000, marks=pytest.mark.large) for seed in (1, 2))]
)
def test_a_flipped_bit_in_a_header_is_a_verdict_about_its_sample(tmp_path: Path, seed: int, count: int) -> None:
    """In a child process, as DALI dies of SIGSEGV over many of these files when it gets them."""
    command = [sys.executable, str(PROGRAM), str(tmp_path), str(seed), str(count)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=170)
    assert ended.returncode == 0, ended.stderr[-2000:]
    found = json.loads(ended.stdout)
    assert found["batches of 256"]["samples"] == found["damaged after indexing"]["samples"] == count * 17 // 8
    for way, result in found.items():
        assert 0.2 < result["bad"] / result["samples"] < 0.8, way  # else the flips are not what they are meant to be
        assert result["differ"] == [], way
        assert result["mean"] < 0.2, way
        assert result["worst"] < 1, way
