"""Work with storage in a process of its own, which ends with it.

A process that is forked from one which has used storage can't use it. So what opens data, and may fork workers later,
does not: it has this done apart.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any

from gpupipe import errors
from gpupipe.host.cache import cache_folder
from gpupipe.host.children import python_path
from gpupipe.host.processes import ending
from gpupipe.sources.remote import objects

__all__ = ["apart"]

KNOWN = ("ConfigError", "DataError", "MissingError", "ReadError", "ReplacedError")


def apart(what: str, **arguments: Any) -> Any:
    """What the function "module:name" returns for these arguments, in another process; both are what JSON can hold.

    ConfigError, DataError and ReadError are raised here as they were there; of all else RuntimeError, with its
    traceback, and where the process died.
    """
    command = [sys.executable, "-m", "gpupipe.sources.remote.apart"]
    environment = os.environ | {"PYTHONPATH": python_path(), "GPUPIPE_CACHE": str(cache_folder())}
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        start_new_session=True,  # a terminal's Ctrl-C is for this process, which ends the other
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdin.write(json.dumps([what, arguments]).encode() + b"\n")
        child.stdin.flush()  # and stays open: where this process dies, the other one sees it end
        answer = child.stdout.read()
    except BrokenPipeError:
        answer = b""
    except BaseException:
        child.kill()
        raise
    finally:
        code = child.wait()
        with suppress(BrokenPipeError):
            child.stdin.close()
        child.stdout.close()
    if code or not answer:
        raise RuntimeError(f"the process for {what} {ending(code)}; what it said stands above")
    error, value = json.loads(answer)
    if error is None:
        return value
    raise (getattr(errors, error, None) or getattr(objects, error, None) or RuntimeError)(value)


def _serve() -> None:
    """In the child: answers go where stdout was, and what is printed to stderr."""
    answers = os.dup(1)
    os.dup2(2, 1)
    what, arguments = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    answer = _answer(what, arguments)
    with open(answers, "wb") as pipe:
        pipe.write(json.dumps(answer).encode())


def _answer(what: str, arguments: dict[str, Any]) -> tuple[str | None, Any]:
    module, _, name = what.partition(":")
    try:
        return None, getattr(importlib.import_module(module), name)(**arguments)
    except Exception as error:
        kind = type(error).__name__
        if kind in KNOWN:
            return kind, str(error)
        import traceback

        return "RuntimeError", traceback.format_exc()


def _end_with_parent() -> None:
    while sys.stdin.buffer.read(1):
        pass
    os._exit(1)


if __name__ == "__main__":
    _serve()
    sys.stderr.flush()
    os._exit(0)  # without waiting for requests that nobody wants any more
