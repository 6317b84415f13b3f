"""Random erasing, after normalization."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from gpupipe.errors import ConfigError
from gpupipe.recipe.checks import check_number, check_range, floats

__all__ = ["RandomErasing"]


@dataclass(frozen=True)
class RandomErasing:
    """A random box of the image is replaced, with probability `p` (Zhong et al. 2017, arXiv 1708.04896).

    scale: (low, high), the box's part of the image's area. ratio: (low, high), its height by its width.
    value: a number or three of them, for R, G and B, in what comes out, so after `Normalize`; or "random":
           independent standard normal numbers.

    As torchvision's `v2.RandomErasing` after `Normalize`, in the order of its reference training. Raises ConfigError.
    """

    p: float = 0.5
    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)
    value: float | tuple[float, float, float] | Literal["random"] = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", check_number("RandomErasing", "p", self.p, 0, 1))
        object.__setattr__(self, "scale", check_range("RandomErasing", "scale", self.scale, 1.0))
        object.__setattr__(self, "ratio", check_range("RandomErasing", "ratio", self.ratio))
        object.__setattr__(self, "value", self._value())

    def _value(self) -> tuple[float, float, float] | Literal["random"]:
        if self.value == "random":
            return "random"
        numbers = floats(self.value) or (() if isinstance(self.value, str) else floats([self.value]) * 3)
        if len(numbers) != 3 or not all(math.isfinite(number) for number in numbers):
            raise ConfigError(f"RandomErasing: value={self.value!r} must be a number, three of them, or 'random'")
        return (numbers[0], numbers[1], numbers[2])

    @property
    def constant(self) -> tuple[float, float, float] | None:
        """The three numbers; None for random ones."""
        return self.value if isinstance(self.value, tuple) else None
