"""What commands need beyond gpupipe's own dependencies."""

from __future__ import annotations

import importlib.util

from gpupipe.errors import GpupipeError

__all__ = ["MissingExtraError", "require"]


class MissingExtraError(GpupipeError):
    """A package of the extra `bench` is not installed."""


def require(*packages: str) -> None:
    """Raise MissingExtraError where one of these packages of the extra `bench` is missing."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtraError(f"needs {', '.join(missing)}; install them with: pip install 'gpupipe[bench]'")
