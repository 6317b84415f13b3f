"""Crops by which the size that comes out follows from the image's own: that of a bucket, or of so many patches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from gpupipe.errors import ConfigError
from gpupipe.recipe.checks import count, named, number, pair, settle
from gpupipe.recipe.operations import LONGEST, Crop, Filter

__all__ = ["BucketCrop", "ResizeToSequence"]


@dataclass(frozen=True, repr=False)
class BucketCrop(Crop):
    """The image, resized so that it just covers its bucket, then the bucket's size of it: as diffusion models are
    trained on images of several aspect ratios. `Buckets.by_aspect` is the order whose batches have one size.

    buckets: (height, width), each of another aspect ratio: an image's is that whose ratio differs by the smallest
             factor, by which the least is cut off.
    place:   which part is left: "center" or "random".

    Sides and the centre are rounded as by kohya's sd-scripts; the filter is antialiased, where theirs, OpenCV's, takes
    the mean of areas. `interpolation` is "bilinear" or "bicubic".
    """

    buckets: tuple[tuple[int, int], ...]
    place: Literal["center", "random"] = "center"
    interpolation: Filter = "bilinear"

    varies = True

    def __post_init__(self) -> None:
        settle(self, interpolation=(named, *get_args(Filter)), place=(named, "center", "random"))
        given = tuple(self.buckets) if isinstance(self.buckets, Sequence) else ()
        buckets = tuple(pair("BucketCrop: a bucket", bucket) for bucket in given)
        if len({height / width for height, width in buckets}) < max(1, len(buckets)):
            raise ConfigError(f"BucketCrop: buckets={self.buckets!r} must be (height, width), each of another ratio")
        object.__setattr__(self, "buckets", buckets)

    @classmethod
    def of_area(
        cls,
        size: int | tuple[int, int],
        min_size: int = 256,
        max_size: int = 1024,
        divisible: int = 64,
        *,
        place: Literal["center", "random"] = "center",
        interpolation: Filter = "bilinear",
    ) -> BucketCrop:
        """With as many pixels as `size` at most, and sides from `min_size` to `max_size` that are multiples of
        `divisible`: the buckets of kohya's `make_bucket_resolutions`; of two of one ratio the larger one."""
        for name, value in (("min_size", min_size), ("max_size", max_size), ("divisible", divisible)):
            count(f"BucketCrop.of_area: {name}={value!r}", value, 1, LONGEST)
        area = math.prod(pair("BucketCrop.of_area: size", size))
        square = int(math.sqrt(area) // divisible) * divisible
        found = [(square, square)]
        for side in range(min_size, max_size + 1, divisible):
            other = min(max_size, area // side // divisible * divisible)
            found += [(side, other), (other, side)] if other >= min_size else []
        by_ratio = {height / width: (height, width) for height, width in sorted(found) if width}
        if len(by_ratio) < 2:
            raise ConfigError(
                f"BucketCrop.of_area: size={size} has room for no buckets with sides from min_size={min_size} to "
                f"max_size={max_size} by divisible={divisible}, but for a square; lower min_size, to about half of "
                "size, or divisible"
            )
        return cls(tuple(by_ratio.values()), place, interpolation)

    @property
    def output_size(self) -> tuple[int, int]:
        """(height, width), the largest of each."""
        heights, widths = zip(*self.buckets, strict=True)
        return max(heights), max(widths)

    @property
    def most_pixels(self) -> int:
        """Of the largest bucket."""
        return max(map(math.prod, self.buckets))


@dataclass(frozen=True, repr=False)
class ResizeToSequence(Crop):
    """The whole image, resized so that it has as many patches as can be of `patch_size` pixels, `max_seq_len` at most,
    and both sides are multiples of that: for models that take sequences of patches (NaFlex, SigLIP 2, NaViT).

    The ratio is kept but for that rounding, which goes up. max_ratio: by which images are enlarged at most.

    The same as timm's transform of that name. `interpolation` is "bilinear" or "bicubic".
    """

    patch_size: int = 16
    max_seq_len: int = 1024
    max_ratio: float | None = None
    interpolation: Filter = "bicubic"

    varies = True

    def __post_init__(self) -> None:
        settle(self, patch_size=(count, 1, 1024), max_seq_len=(count, 1, LONGEST))
        settle(self, interpolation=(named, *get_args(Filter)))
        if self.max_ratio is not None:
            settle(self, max_ratio=(number, 1e-5))

    @property
    def output_size(self) -> tuple[int, int]:
        """(height, width), the largest of each."""
        return self.patch_size * self.max_seq_len, self.patch_size * self.max_seq_len

    @property
    def most_pixels(self) -> int:
        """Of all patches."""
        return self.patch_size**2 * self.max_seq_len
