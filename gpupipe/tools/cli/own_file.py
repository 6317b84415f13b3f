"""What a Python file of the user's has, as FILE.py:NAME: a recipe, or the fields of a data set."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from gpupipe.errors import ConfigError

__all__ = ["load"]

MODULE = "gpupipe_own_file"  # what the file is called while it runs, so that it takes no other module's name


def load(what: str, text: str, fits: Callable[[Any], bool], kind: str) -> Any:
    """What `text` names as FILE.py:NAME: a value that fits, or a function without arguments that makes one.

    what: the setting, and kind: what fits it, for messages. The file runs as it does when it is imported, with its
    folder on the path. Raises ConfigError.
    """
    said = f"{what} {text!r}"
    file, _, name = text.rpartition(":")
    path = Path(file).expanduser().absolute()
    if path.suffix != ".py" or not name.isidentifier():
        raise ConfigError(f"{said} is not of the form FILE.py:NAME, as in my_training.py:train_{what}")
    if not path.is_file():
        raise ConfigError(f"{said}: there is no file {path}; check the path")
    module = _ran(path, said)
    if not hasattr(module, name):
        known = ", ".join(key for key, value in vars(module).items() if fits(value))
        raise ConfigError(f"{said}: {path} has no {name}; the {what.rstrip('s')}s in it: {known or 'none'}")
    found = getattr(module, name)
    made = _called(found, path, said) if callable(found) else found
    if not fits(made):
        origin = f"what {name}() returned" if callable(found) else name
        its = f"{type(made).__module__}.{type(made).__qualname__}"
        raise ConfigError(f"{said}: {origin} in {path} is a {its}, {made!r:.80}, not {kind}")
    return made


def _ran(path: Path, said: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(MODULE, path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module  # dataclasses look themselves up there
    sys.path.insert(0, str(path.parent))
    _called(lambda: spec.loader.exec_module(module), path, said)  # type: ignore[union-attr]
    return module


def _called(call: Callable[[], Any], path: Path, said: str) -> Any:
    """What a user's code returns; whatever it raises is said with the line of the file."""
    try:
        return call()
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        where = f", line {lines[-1]}" if lines else ""
        raise ConfigError(f"{said}: {path}{where} raised {type(error).__name__}: {error}") from error
