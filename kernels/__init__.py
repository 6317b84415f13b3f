"""What is hot and no library does as well. Plain arrays and tensors in and out; imported as `gpupipe.kernels`."""

from __future__ import annotations

from gpupipe.kernels.augment import augment
from gpupipe.kernels.augment_reference import augment_reference
from gpupipe.kernels.costs import jpeg_costs, jpeg_costs_reference
from gpupipe.kernels.crops import Crops
from gpupipe.kernels.decode import BadImage, Decoded, Walked, crop_resize, decode_crops, walk_jpegs
from gpupipe.kernels.erase_mix import Erase, Mix, noise, soft_targets
from gpupipe.kernels.finish import finish, finish_reference
from gpupipe.kernels.operations import (
    Op,
    affine_matrix,
    elastic_values,
    gaussian_weights,
    noise_key,
    perspective_matrix,
)
from gpupipe.kernels.plain import plain_sizes

__all__ = [
    "BadImage",
    "Crops",
    "Decoded",
    "Erase",
    "Mix",
    "Op",
    "Walked",
    "affine_matrix",
    "augment",
    "augment_reference",
    "crop_resize",
    "decode_crops",
    "elastic_values",
    "finish",
    "finish_reference",
    "gaussian_weights",
    "jpeg_costs",
    "jpeg_costs_reference",
    "noise",
    "noise_key",
    "perspective_matrix",
    "plain_sizes",
    "soft_targets",
    "walk_jpegs",
]
