"""The fuzzers of the C++ kernels, which kernels/fuzz/build.sh builds with sanitizers."""

from __future__ import annotations

import hashlib
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["PROGRAMS", "turn"]

BUILD = Path(__file__).resolve().parent.parent.parent / "kernels" / "fuzz" / "build.sh"
PROGRAMS = ("decoding", "covering", "augment", "calls", "threads", "forks")
PYTHON = {"PYTHON": sys.executable}
COUNT = re.compile(r"^(\d+) |number_of_executed_units: (\d+)", re.MULTILINE)
LIMITS = ["-max_len=8192", "-timeout=20", "-rss_limit_mb=2048", "-entropic=0", "-verbosity=0", "-print_final_stats=1"]


def turn(name: str, folder: Path, seed: int, seconds: float) -> dict[str, Any]:
    """For so many seconds; built where that was not yet done."""
    place = folder / "kernels"
    if not (place / "done").exists() or (place / "done").stat().st_mtime < _changed():
        subprocess.run(["sh", str(BUILD), str(place)], check=True, stdout=sys.stderr, env=os.environ | PYTHON)
    if not (place / name).exists():  # without clang
        return {"inputs": 0, "seconds": 0.0, "findings": {}}
    found = place / "found"
    found.mkdir(exist_ok=True)
    arguments = {
        "covering": [f"-max_total_time={int(seconds)}", f"-seed={seed}", *LIMITS, str(found), str(place / "seeds")],
        "decoding": [str(place / "seeds"), str(seconds), str(seed)],
    }.get(name, [str(seconds), str(seed)])
    options = {
        "ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=0",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    }
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [str(place / name), *arguments],
        cwd=place,
        env=os.environ | options,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    inputs = sum(int(one or other) for one, other in COUNT.findall(done.stdout + done.stderr))
    if done.returncode == 0:
        return {"inputs": inputs, "seconds": used, "findings": {}}
    said = done.stderr[-4000:]
    finding = f"died-{hashlib.sha256(said.encode()).hexdigest()[:12]}"
    kept = folder / "findings" / name / finding
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.with_suffix(".txt").write_text(f"{name} {' '.join(arguments)}\n{done.stderr}")
    for crash in place.glob("crash-*"):
        shutil.move(crash, kept)
    return {"inputs": inputs, "seconds": used, "findings": {finding: said}}


def _changed() -> float:
    """When something that is built was changed."""
    sources = [*BUILD.parent.iterdir(), *(BUILD.parent.parent / "cpu").iterdir()]
    return max(path.stat().st_mtime for path in sources)
