"""What the settings of operations are checked with.

Each check takes what a message calls a setting, such as "MixUp: p=2", its value and limits; it gives the value in its
one form, or raises ConfigError.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, TypeAlias

from gpupipe.errors import ConfigError

__all__ = [
    *("PROBABILITY", "Fill", "RangeLike", "count", "filling", "floats", "jitter", "named", "number", "pair", "settle"),
    *("shown", "span", "triple"),
]

Fill: TypeAlias = tuple[float, float, float] | None
RangeLike: TypeAlias = float | tuple[float, float] | None


def settle(settings: Any, **checks: Any) -> None:
    """Put the named settings of a frozen dataclass into their one form, by a check each, or by a tuple of a check and
    its limits."""
    for name, given in checks.items():
        check, *limits = given if isinstance(given, tuple) else (given,)
        value = getattr(settings, name)
        object.__setattr__(settings, name, check(f"{type(settings).__name__}: {name}={value!r}", value, *limits))


def shown(settings: Any, *younger: str) -> str:
    """As a dataclass prints itself, without those of the `younger` fields that have their defaults: saved states hold
    these texts' fingerprints, and most of them are older than these fields."""
    told = [f for f in fields(settings) if f.name not in younger or getattr(settings, f.name) != f.default]
    return f"{type(settings).__name__}({', '.join(f'{f.name}={getattr(settings, f.name)!r}' for f in told)})"


def floats(value: Any) -> tuple[float, ...]:
    """`value` as floats; empty where it is no sequence of numbers."""
    try:
        return () if isinstance(value, str) else tuple(float(v) for v in value)
    except (TypeError, ValueError):
        return ()


def pair(said: str, value: Any) -> tuple[int, int]:
    """(height, width) of a pair or of one int, both at least 1."""
    sides = tuple(value) if isinstance(value, Sequence) else (value, value)
    if len(sides) != 2 or not all(isinstance(side, int) and side >= 1 for side in sides):
        raise ConfigError(f"{said} must be a positive int or a (height, width) pair of them")
    return (sides[0], sides[1])


def span(said: str, value: Any, highest: float = math.inf) -> tuple[float, ...]:
    """(low, high) with 0 < low <= high, and high at most `highest`, or finite."""
    ends = floats(value)
    if len(ends) != 2 or not 0 < ends[0] <= ends[1] <= highest or ends[1] == math.inf:
        limit = f" <= {highest:g}" if highest < math.inf else ""
        raise ConfigError(f"{said} must be (low, high) with 0 < low <= high{limit}")
    return ends


def triple(said: str, value: Any) -> tuple[float, ...]:
    """Three finite numbers."""
    numbers = floats(value)
    if len(numbers) != 3 or not all(math.isfinite(v) for v in numbers):
        raise ConfigError(f"{said} must have one value for each of R, G, B")
    return numbers


def number(said: str, value: Any, low: float, high: float = math.inf) -> float:
    """A finite float in [low, high]."""
    found = () if isinstance(value, str) else floats([value])
    if not found or not low <= found[0] <= high or math.isinf(found[0]):
        limits = f"lie in [{low:g}, {high:g}]" if high < math.inf else f"be {low:g} or more"
        raise ConfigError(f"{said} must {'' if found else 'be one number and '}{limits}")
    return found[0]


PROBABILITY = (number, 0, 1)


def count(said: str, value: Any, low: int, high: int) -> int:
    """An int in [low, high]."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(f"{said} must be an int from {low} to {high}")
    return value


def named(said: str, value: Any, *known: str) -> Any:
    """One of the names."""
    if value not in known:
        raise ConfigError(f"{said} must be one of {', '.join(known)}")
    return value


def filling(said: str, value: Any) -> tuple[float, ...] | None:
    """A level or three of them from 0 to 255, as three; None stays."""
    levels = () if value is None else floats(value) or floats([value]) * 3
    if value is not None and (len(levels) != 3 or not all(0 <= level <= 255 for level in levels)):
        raise ConfigError(f"{said} must be None, a level from 0 to 255 or three of them, R, G and B")
    return levels or None


def jitter(said: str, value: Any, middle: float, low: float, high: float = math.inf) -> tuple[float, ...] | None:
    """torchvision's rule for ColorJitter: a number is the distance from `middle` to either side; (low, high) stays.

    None where nothing would change.
    """
    if value is None:
        return None
    ends = floats(value)
    if not ends:
        (distance,) = (() if isinstance(value, str) else floats([value])) or (math.nan,)
        # Only factors are cut at 0; a turn of the hue can go both ways.
        ends = (max(middle - distance, 0.0) if low == 0 else middle - distance, middle + distance)
    if len(ends) != 2 or not low <= ends[0] <= ends[1] <= high or math.isinf(ends[1]):
        raise ConfigError(
            f"{said} must be a number of 0 or more, or (low, high) with "
            f"{low:g} <= low <= high{f' <= {high:g}' if high < math.inf else ''}"
        )
    return None if ends[0] == ends[1] == middle else ends
