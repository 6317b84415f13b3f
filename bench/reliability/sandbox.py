"""Runs cases, each in a process of its own, forked from a warm one: passed, failed with a reason, hang, or none."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

from gpupipe.host.children import python_path
from reliability.case import Case

__all__ = ["Outcome", "Sandbox", "Status"]

Status = Literal["passed", "failed", "hang", "none"]

COMMAND = "from reliability.warm import main; main()"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # none may start on import


@dataclass(frozen=True)
class Outcome:
    """What became of a case. status: "none" where the contender has no function for it. seconds: in all."""

    status: Status
    reason: str
    seconds: float = 0.0


class Sandbox:
    """A warm process. It runs one case at a time; take two of them for two."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", COMMAND],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | ONE_THREAD | {"PYTHONPATH": python_path()},
        )

    @property
    def pid(self) -> int:
        """Of the warm process."""
        return self._process.pid

    def run_case(self, case: Case, contender: Any, seed: int) -> Outcome:
        """Run a case in a child of the warm process, and look at what the child has left behind."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump((case, contender, seed), self._process.stdin)
        self._process.stdin.flush()
        outcome: Outcome = pickle.load(self._process.stdout)
        return outcome

    def close(self) -> None:
        """End the warm process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(600)  # on a busy machine it may still import
        self._process.stdout.close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
