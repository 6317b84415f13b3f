"""The documentation's site, built once for all tests of a run."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

__all__ = ["built_site"]

ROOT = Path(__file__).resolve().parents[1]


def built_site(folders: pytest.TempPathFactory) -> Path:
    """Its folder. Of pytest's processes the first builds it, the others wait; a warning is a failure."""
    common = folders.getbasetemp()
    common = common.parent if "PYTEST_XDIST_WORKER" in os.environ else common
    built, made = common / "site", common / "site.new"
    with (common / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(made)]
            settings = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
            done = subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
            made.rename(built)
    return built.resolve()
