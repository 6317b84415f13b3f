"""A recipe out of a Python file of the user's own."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from gpupipe.errors import ConfigError
from gpupipe.recipe import MultiCrop, Recipe

__all__ = ["load_recipe"]

MODULE = "gpupipe_recipe_file"  # what the file is called while it runs, so that it takes no other module's name


def load_recipe(text: str) -> Recipe | MultiCrop:
    """The recipe that `text` names as FILE.py:NAME: a Recipe, a MultiCrop, or a function that makes one of nothing.

    The file runs as it does when it is imported, with its folder on the path. Raises ConfigError.
    """
    file, _, name = text.rpartition(":")
    path = Path(file).expanduser().absolute()
    if path.suffix != ".py" or not name.isidentifier():
        raise ConfigError(f"recipe {text!r} is not of the form FILE.py:NAME, as in my_training.py:train_recipe")
    if not path.is_file():
        raise ConfigError(f"recipe {text!r}: there is no file {path}; check the path")
    module = _ran(path, text)
    if not hasattr(module, name):
        known = ", ".join(key for key, value in vars(module).items() if isinstance(value, (Recipe, MultiCrop)))
        raise ConfigError(f"recipe {text!r}: {path} has no {name}; the recipes in it: {known or 'none'}")
    found = getattr(module, name)
    made = _called(found, path, text) if callable(found) else found
    if not isinstance(made, (Recipe, MultiCrop)):
        what = f"what {name}() returned" if callable(found) else name
        kind = f"{type(made).__module__}.{type(made).__qualname__}"
        raise ConfigError(
            f"recipe {text!r}: {what} in {path} is a {kind}, {made!r:.80}, not a gpupipe.Recipe or MultiCrop"
        )
    return made


def _ran(path: Path, text: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(MODULE, path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module  # dataclasses look themselves up there
    sys.path.insert(0, str(path.parent))
    _called(lambda: spec.loader.exec_module(module), path, text)  # type: ignore[union-attr]
    return module


def _called(call: Callable[[], Any], path: Path, text: str) -> Any:
    """What a user's code returns; whatever it raises is said with the line of the file."""
    try:
        return call()
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        where = f", line {lines[-1]}" if lines else ""
        raise ConfigError(f"recipe {text!r}: {path}{where} raised {type(error).__name__}: {error}") from error
