"""The child process that measures, started again after a candidate that broke it."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from gpupipe.decode.tuned import Tuned
from gpupipe.host.children import Child, ChildError
from gpupipe.tools.benchmark.measurement import Round
from gpupipe.tools.tuning.settings import TuneSettings

__all__ = ["Rig"]

BENCH = "gpupipe.tools.tuning.child:Bench"
READING = 1800  # seconds that opening the data and reading the sample may take
STARTING = 90  # more seconds for a child's first candidate: imports, CUDA's start, kernels to compile


class Rig:
    """Measures candidates one after the other on `device`; what they print goes to the file `log`."""

    def __init__(self, settings: TuneSettings, device: str, log: Path) -> None:
        self._settings = settings
        self._device = device
        self._log = log
        self._child: Child | None = None
        self._warm = False

    def read(self) -> int:
        """Read the images that candidates will load; how many there are. Raises ChildError."""
        count: int = self._running().ask("read", extra_time=READING)
        return count

    def __call__(self, candidate: Tuned) -> Round:
        """Raises ChildError where the candidate fails; whatever it has left behind is gone then."""
        patience = 0 if self._warm else STARTING
        try:
            measured: Round = self._running().ask("measure", candidate, extra_time=patience)
        except ChildError:
            self.close()
            raise
        self._warm = True
        return measured

    def _running(self) -> Child:
        if self._child is None:
            with self._log.open("ab") as log:
                self._child = Child(BENCH, (self._settings, self._device), log, self._settings.timeout)
        return self._child

    def close(self) -> None:
        """End the child and all its children."""
        if self._child is not None:
            self._child.end()
        self._child, self._warm = None, False

    def __enter__(self) -> Rig:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
