"""The fuzzers of tests/fuzz in short: what was a finding once, and some inputs of each target."""

from __future__ import annotations

import subprocess
import sys
from mmap import mmap
from pathlib import Path

import numpy as np
import pytest
from fuzz import jpegs
from fuzz.__main__ import TARGETS
from fuzz.harness import Finding
from images import encode, picture

from gpupipe.kernels import native

pytestmark = pytest.mark.skipif(native.library() is None, reason=f"without the C++ kernels: {native.problem()}")

FUZZ = Path(__file__).parent / "fuzz"


def test_nothing_is_found(tmp_path: Path) -> None:
    # In a process of its own, which limits its memory, and may die.
    command = [sys.executable, str(FUZZ), "--once", "--inputs", "25", "--seed", "1", "--folder", str(tmp_path)]
    command += ["--targets", ",".join(TARGETS)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert run.returncode == 0, run.stdout + run.stderr[-3000:]
    counted = [line.split()[0] for line in run.stdout.splitlines() if " inputs in " in line]
    assert counted == TARGETS


def test_memory_beyond_what_is_allowed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def hoards(*arguments: object) -> None:
        # Of the system: malloc may have free chunks that other tests have used, by which a process grows by nothing.
        np.frombuffer(mmap(-1, jpegs.FIXED + (16 << 20)), np.uint8)[::4096] = 1
        decode(*arguments)

    decoding, image, decode = jpegs.Decoding(slow=10), encode(picture(70, 70)), jpegs.decode_images
    assert decoding(image) == "equal"
    monkeypatch.setattr(jpegs, "decode_images", hoards)
    with pytest.raises(Finding, match=r"memory: 4\d MiB for 4900 pixels"):
        decoding(image)
