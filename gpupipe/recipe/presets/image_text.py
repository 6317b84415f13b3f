"""Recipes of learning from images and texts: OpenCLIP's and SigLIP's.

Each takes, as `settings`, `dtype`, `layout`, `exif_orientation` and `decode` of `Recipe`. The texts beside the images
are a field, `gpupipe.Text(choose=True, tokenizer=...)`.
"""

from __future__ import annotations

from typing import Any

from gpupipe.recipe.operations import Normalize, RandomResizedCrop
from gpupipe.recipe.presets.parts import normalization, resized_center
from gpupipe.recipe.recipe import Recipe

__all__ = ["openclip_eval", "openclip_train", "siglip_eval", "siglip_train"]

CLIP = Normalize((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
SIGLIP = Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def openclip_train(size: int = 224, **settings: Any) -> Recipe:
    """OpenCLIP's training of CLIP models: a crop of 0.9 of the image or more, bicubic, with CLIP's mean and deviation.

    Source: `image_transform(is_train=True)` in open_clip/transform.py of mlfoundations/open_clip, with its defaults.

    Not the loader's: the models, the loss over all ranks' pairs, AdamW.
    """
    return _crop(size, CLIP, settings)


def openclip_eval(size: int = 224, **settings: Any) -> Recipe:
    """OpenCLIP's evaluation of CLIP models: the shorter side becomes `size`, the centre is taken, bicubic.

    Source: `image_transform(is_train=False)` in open_clip/transform.py, resize_mode="shortest", its default.
    """
    return resized_center(size, size, settings, normalize=CLIP)


def siglip_train(size: int = 224, **settings: Any) -> Recipe:
    """OpenCLIP's training of SigLIP models: as `openclip_train`, but with a mean and deviation of 0.5.

    Source: open_clip/transform.py with what its SigLIP models' configurations say. SigLIP's own training (Zhai et al.
    2023, arXiv 2303.15343, and google-research/big_vision) crops nothing: `siglip_eval`.
    """
    return _crop(size, SIGLIP, settings)


def siglip_eval(size: int = 224, **settings: Any) -> Recipe:
    """The evaluation of SigLIP models: the whole image, squashed to a square, bicubic.

    Source: resize_mode="squash" in open_clip/transform.py.
    Differs: OpenCLIP resizes with Pillow's bicubic filter, as here; big_vision with TensorFlow's bilinear one.
    """
    return resized_center(size, (size, size), settings, normalize=SIGLIP)


def _crop(size: int, normalize: Normalize, settings: dict[str, Any]) -> Recipe:
    crop = RandomResizedCrop(size, (0.9, 1.0), interpolation="bicubic")
    return Recipe((crop, *normalization(settings, normalize)), **settings)
