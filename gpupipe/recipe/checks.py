"""What the settings of operations are checked with: each raises a ConfigError; most give the value in its one form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from gpupipe.errors import ConfigError

__all__ = [
    "Fill",
    "RangeLike",
    "check_count",
    "check_fill",
    "check_interpolation",
    "check_jitter",
    "check_number",
    "check_pair",
    "check_range",
    "check_triple",
    "floats",
]

Fill: TypeAlias = tuple[float, float, float] | None
RangeLike: TypeAlias = float | tuple[float, float] | None


def floats(value: Any) -> tuple[float, ...]:
    """`value` as floats; empty where it is no sequence of numbers."""
    if isinstance(value, str):
        return ()
    try:
        return tuple(float(v) for v in value)
    except (TypeError, ValueError):
        return ()


def check_pair(owner: str, field: str, value: int | Sequence[int]) -> tuple[int, int]:
    """`value` as (height, width), both at least 1."""
    pair = tuple(value) if isinstance(value, Sequence) else (value, value)
    if len(pair) != 2 or not all(isinstance(side, int) and side >= 1 for side in pair):
        raise ConfigError(f"{owner}: {field}={value!r} must be a positive int or a (height, width) pair of them")
    return (pair[0], pair[1])


def check_range(owner: str, field: str, value: Sequence[float], highest: float = math.inf) -> tuple[float, float]:
    """`value` as (low, high) with 0 < low <= high, and high at most `highest`, or finite."""
    pair = floats(value)
    if len(pair) != 2 or not 0 < pair[0] <= pair[1] <= highest or pair[1] == math.inf:
        limit = f" <= {highest:g}" if highest < math.inf else ""
        raise ConfigError(f"{owner}: {field}={value!r} must be (low, high) with 0 < low <= high{limit}")
    return (pair[0], pair[1])


def check_triple(owner: str, field: str, value: Sequence[float]) -> tuple[float, float, float]:
    """`value` as three finite numbers."""
    triple = floats(value)
    if len(triple) != 3 or not all(math.isfinite(v) for v in triple):
        raise ConfigError(f"{owner}: {field}={value!r} must have one value for each of R, G, B")
    return (triple[0], triple[1], triple[2])


def check_number(owner: str, field: str, value: Any, low: float, high: float) -> float:
    """`value` as a float in [low, high]."""
    number = () if isinstance(value, str) else floats([value])
    if not number or not low <= number[0] <= high or math.isinf(number[0]):
        span = f"lie in [{low:g}, {high:g}]" if high < math.inf else f"be {low:g} or more"
        raise ConfigError(f"{owner}: {field}={value!r} must {span}")
    return number[0]


def check_count(owner: str, field: str, value: Any, low: int, high: int) -> None:
    """Raise ConfigError unless `value` is an int in [low, high]."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(f"{owner}: {field}={value!r} must be an int from {low} to {high}")


def check_fill(owner: str, value: Any) -> Fill:
    """`value`, a level or three of them from 0 to 255, as three; None stays."""
    if value is None:
        return None
    levels = floats(value) or floats([value]) * 3
    if len(levels) != 3 or not all(0 <= level <= 255 for level in levels):
        raise ConfigError(f"{owner}: fill={value!r} must be None, a level from 0 to 255 or three of them, R, G and B")
    return (levels[0], levels[1], levels[2])


def check_interpolation(owner: str, value: Any, known: Sequence[str]) -> None:
    """Raise ConfigError unless `value` is one of the names in `known`."""
    if value not in known:
        raise ConfigError(f"{owner}: interpolation={value!r} must be one of {', '.join(known)}")


def check_jitter(
    owner: str, field: str, value: Any, middle: float, low: float, high: float
) -> tuple[float, float] | None:
    """torchvision's rule for ColorJitter: a number is the distance from `middle` to either side; (low, high) stays.

    None where nothing would change.
    """
    if value is None:
        return None
    pair = floats(value)
    if not pair:
        (distance,) = (() if isinstance(value, str) else floats([value])) or (math.nan,)
        # Only factors are cut at 0; a turn of the hue can go both ways.
        pair = (max(middle - distance, 0.0) if low == 0 else middle - distance, middle + distance)
    if len(pair) != 2 or not low <= pair[0] <= pair[1] <= high or math.isinf(pair[1]):
        raise ConfigError(
            f"{owner}: {field}={value!r} must be a number of 0 or more, or (low, high) with "
            f"{low:g} <= low <= high{f' <= {high:g}' if high < math.inf else ''}"
        )
    return None if pair[0] == pair[1] == middle else (pair[0], pair[1])
