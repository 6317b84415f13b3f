"""What torch and DALI say of a machine, and which start methods work there, asked in child processes."""

from __future__ import annotations

import functools
import multiprocessing
import tempfile
from typing import Any

from gpupipe.host.children import Child, ChildError

__all__ = ["machine_facts", "run_start_methods"]

FACTS = "gpupipe.decode.selftest.facts:Facts"

START_METHODS = ("forkserver", "spawn")  # not fork: it fails once CUDA is initialized
TIMEOUT = 120.0  # seconds; the first CUDA start on a node with many GPUs can take half a minute


@functools.lru_cache(maxsize=1)
def machine_facts(timeout: float = TIMEOUT) -> dict[str, Any]:
    """What torch and DALI say of this machine, asked once, in a child process that may crash.

    Keys: `torch`, `torch_cuda`, `dali`, `dali_cuda` (versions, None where absent), `errors` (texts of failed imports),
    `cuda_available`, `gpus` (a list of `name`, `total`, `free` in bytes).
    """
    try:
        return _asked("of_machine", timeout)
    except ChildError as error:
        reason = f"the child that imports torch and DALI {error}"
        return {"errors": [reason], "cuda_available": False, "gpus": []}


def run_start_methods(timeout: float = 60.0) -> dict[str, str]:
    """Start method -> "ok" or what went wrong, tried with a process and a queue (which needs /dev/shm)."""
    try:
        return _asked("of_start_methods", timeout)
    except ChildError as error:
        return dict.fromkeys(START_METHODS, str(error))


def _asked(question: str, timeout: float) -> dict[str, Any]:
    with tempfile.TemporaryFile() as log:
        child = Child(FACTS, (), log, timeout)
        try:
            found: dict[str, Any] = child.ask(question)
            return found
        finally:
            child.kill()


class Facts:
    """What runs in the child."""

    def of_machine(self) -> dict[str, Any]:
        """The answer behind `machine_facts`."""
        errors: list[str] = []
        found: dict[str, Any] = {"cuda_available": False, "gpus": [], "errors": errors}
        for name, part in (("torch", _torch_facts), ("dali", _dali_facts)):
            try:
                found.update(part())
            except Exception as error:  # an import can fail in any way: a missing library, a driver's complaint
                errors.append(f"{name}: {type(error).__name__}: {error}")
        return found

    def of_start_methods(self) -> dict[str, str]:
        """The answer behind `run_start_methods`."""
        return {method: _try_start_method(method) for method in START_METHODS}


def _torch_facts() -> dict[str, Any]:
    import torch

    gpus = []
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(i)
            gpus.append({"name": torch.cuda.get_device_name(i), "total": total, "free": free})
    return {
        "torch": str(torch.__version__),
        "torch_cuda": torch.version.cuda,
        "cuda_available": torch.cuda.is_available(),
        "gpus": gpus,
    }


def _dali_facts() -> dict[str, Any]:
    from nvidia import dali

    digits = str(getattr(dali, "__cuda_version__", ""))  # 12.9.86 is written as 12986: major, minor, build run together
    return {"dali": dali.__version__, "dali_cuda": f"{digits[:2]}.{digits[2]}" if len(digits) >= 3 else None}


def _try_start_method(method: str) -> str:
    try:
        context: Any = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        process = context.Process(target=_say_hello, args=(queue,), daemon=True)
        process.start()
        process.join()
        return "ok" if process.exitcode == 0 and not queue.empty() else f"the process ended with {process.exitcode}"
    except (OSError, ValueError) as error:  # no such method, no /dev/shm for its semaphores, no file to open
        return f"{type(error).__name__}: {error}"


def _say_hello(queue: Any) -> None:
    queue.put("hello")
