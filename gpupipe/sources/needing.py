"""Libraries that only some kinds of data, and a few tools, need."""

from __future__ import annotations

import importlib
from typing import Any

from gpupipe.errors import ConfigError

__all__ = ["library"]


def library(name: str, extra: str) -> Any:
    """The module of this name. Raises ConfigError that names the extra which brings it, where it can't be imported."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"this needs {name.partition('.')[0]}, which can't be imported ({error}): pip install 'gpupipe[{extra}]'"
        ) from error
