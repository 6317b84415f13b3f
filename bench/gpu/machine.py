"""Is this machine what run.sh needs? Prints what it has, builds the C++ kernels where they lack, writes machine.json.

    python3 -m gpu.machine --out FOLDER

Exit code 1, with the reasons, where a GPU, DALI, another library or the C++ kernels are missing. The kernels need a C++
compiler and libjpeg-turbo's headers and library; where these lie in folders of their own, name them in CFLAGS (-I) and
LDFLAGS (-L).
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpupipe.host.machine import machine

__all__ = ["ANYWAY", "main"]

ROOT = Path(__file__).resolve().parents[2]
ANYWAY = "GPUPIPE_GPU_RUN_ANYWAY"
NEEDED = ("torch", "torchvision", "nvidia.dali", "webdataset", "psutil", "rich", "pytest", "pytest_timeout")
WELCOME = ("nvidia.nvimgcodec", "triton", "spdl.pipeline", "matplotlib")


def imported() -> dict[str, str]:
    """Module -> its version, or why it can't be imported."""
    found = {}
    for name in (*NEEDED, *WELCOME):
        try:
            found[name] = str(getattr(importlib.import_module(name), "__version__", "there"))
        except Exception as error:  # a library that does not load fails in ways of its own
            found[name] = f"missing: {type(error).__name__}: {error}"
    return found


def nvidia_smi() -> list[str]:
    """GPU, driver, memory, clocks, and other processes' memory, as the driver's tool says."""
    fields = "name,driver_version,memory.total,memory.used,clocks.sm,clocks.max.sm,power.limit,mig.mode.current"
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={fields}", "--format=csv"], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [f"nvidia-smi: {error}"]
    return (done.stdout or done.stderr).splitlines()


def kernels() -> str | None:
    """Why there are no C++ kernels, after an attempt to build them; None if they are there."""
    if kernel_problem() is None:
        return None
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    print(done.stdout, done.stderr, sep="\n")
    problem = kernel_problem()
    return problem and f"{problem}; the attempt to build them said: {' '.join(done.stderr.split())[-300:]}"


def kernel_problem() -> str | None:
    """As a new process sees it."""
    code = "from gpupipe.kernels import native; print(native.problem() or '')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    return (done.stdout + done.stderr).strip() or None


def problems(modules: dict[str, str], gpus: Sequence[str]) -> list[str]:
    """What makes a run pointless, or its figures misleading."""
    found = [] if gpus or os.environ.get(ANYWAY) else ["torch finds no GPU here; python3 -m gpupipe doctor says more"]
    found += [f"{name} is {modules[name]}" for name in NEEDED if modules[name].startswith("missing")]
    problem = kernels()
    if problem:
        found.append(f"NO C++ KERNELS: the CPU's share of every batch will be slow: {problem}")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Check, print, write."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--out", type=Path, required=True, metavar="DIR")
    args = made.parse_args(argv)
    modules, facts = imported(), machine()
    found = problems(modules, facts["gpus"])
    content: dict[str, Any] = facts | {"modules": modules, "nvidia_smi": nvidia_smi(), "problems": found}
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "machine.json").write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps(content, indent=1))
    for problem in found:
        print(f"!! {problem}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
