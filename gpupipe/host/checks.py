"""Checks of arguments that several rooms take."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from gpupipe.errors import ConfigError

__all__ = ["at_least", "flag", "whole"]


def whole(name: str, value: Any, least: int, below: int | None = None) -> int:
    """`value` as an int; numpy's integers are as good as Python's, bools are none. Raises ConfigError."""
    span = f"of {least} or more" if below is None else f"in [{least}, {_power(below)})"
    try:
        number = operator.index(value)
    except TypeError:
        raise ConfigError(f"{name}={value!r} must be an int {span}") from None
    if isinstance(value, bool) or number < least or (below is not None and number >= below):
        raise ConfigError(f"{name}={value!r} must be an int {span}")
    return number


def _power(number: int) -> str:
    return f"2**{number.bit_length() - 1}" if number & (number - 1) == 0 else str(number)


def flag(name: str, value: Any) -> bool:
    """`value` as a bool. Raises ConfigError for another number: it may have been meant for another argument."""
    if not isinstance(value, bool | np.bool_):
        raise ConfigError(f"{name}={value!r} must be True or False")
    return bool(value)


def at_least(settings: Any, names: str, least: int, above: bool = False) -> None:
    """Check these of some settings; None is no number. above: `least` itself is too small. Raises ConfigError."""
    for name in names.split():
        value = getattr(settings, name)
        if value is not None and (value < least or (above and value == least)):
            raise ConfigError(f"{name}={value} must be {'above' if above else 'at least'} {least}")
