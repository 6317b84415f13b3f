"""Recipes of learning from images and texts: OpenCLIP's and SigLIP's.

Each takes, as `settings`, `dtype`, `layout`, `exif_orientation` and `decode` of `Recipe`. The texts beside the images
are a field, `gpupipe.Text(choose=True, tokenizer=...)`.
"""

from __future__ import annotations

from typing import Any, Literal

from gpupipe.errors import ConfigError
from gpupipe.recipe.augmentations import ColorJitter, RandomApply, RandomGrayscale
from gpupipe.recipe.operations import LetterBox, Normalize, RandomResizedCrop
from gpupipe.recipe.presets.parts import normalization, resized_center
from gpupipe.recipe.recipe import Recipe

__all__ = ["openclip_eval", "openclip_train", "siglip_eval", "siglip_train"]

CLIP = Normalize((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
SIGLIP = Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def openclip_train(
    size: int = 224,
    *,
    scale: tuple[float, float] = (0.9, 1.0),
    color_jitter: tuple[float, float, float, float] | None = None,
    color_jitter_prob: float | None = None,
    gray_scale_prob: float | None = None,
    normalize: Normalize = CLIP,
    **settings: Any,
) -> Recipe:
    """OpenCLIP's training of CLIP models: a crop of 0.9 of the image or more, bicubic, with CLIP's mean and deviation.

    scale, color_jitter, color_jitter_prob, gray_scale_prob: as in its `aug_cfg` (without `use_timm`).

    Source: `image_transform(is_train=True)` in open_clip/transform.py of mlfoundations/open_clip, with its defaults.

    Not the loader's: the models, the loss over all ranks' pairs, AdamW.
    """
    if (color_jitter is None) != (not color_jitter_prob):
        raise ConfigError(
            f"color_jitter={color_jitter!r} and color_jitter_prob={color_jitter_prob!r} go together: brightness, "
            "contrast, saturation and hue, and how often they are drawn"
        )
    jitter = (
        [RandomApply((ColorJitter(*color_jitter),), color_jitter_prob)] if color_jitter and color_jitter_prob else []
    )
    gray = [RandomGrayscale(gray_scale_prob)] if gray_scale_prob else []
    crop = RandomResizedCrop(size, scale, interpolation="bicubic")
    return Recipe((crop, *jitter, *gray, *normalization(settings, normalize)), **settings)


def openclip_eval(
    size: int = 224,
    *,
    resize_mode: Literal["shortest", "longest", "squash"] = "shortest",
    fill_color: int = 0,
    normalize: Normalize = CLIP,
    **settings: Any,
) -> Recipe:
    """OpenCLIP's evaluation of CLIP models: the shorter side becomes `size`, the centre is taken, bicubic.

    resize_mode: "longest": the longer side becomes `size`, the rest is `fill_color`; "squash": both do.

    Source: `image_transform(is_train=False)` in open_clip/transform.py.
    """
    if resize_mode == "longest":
        crop = LetterBox(size, fill_color, "bicubic")
        return Recipe((crop, *normalization(settings, normalize)), **settings)
    if resize_mode not in ("shortest", "squash"):
        raise ConfigError(f"openclip_eval: resize_mode={resize_mode!r} must be one of shortest, longest, squash")
    return resized_center(size, size if resize_mode == "shortest" else (size, size), settings, normalize=normalize)


def siglip_train(size: int = 224, **settings: Any) -> Recipe:
    """OpenCLIP's training of SigLIP models: as `openclip_train`, but with a mean and deviation of 0.5.

    settings: of `openclip_train`, too.

    Source: open_clip/transform.py with what its SigLIP models' configurations say. SigLIP's own training (Zhai et al.
    2023, arXiv 2303.15343, and google-research/big_vision) crops nothing: `siglip_eval`.
    """
    return openclip_train(size, normalize=SIGLIP, **settings)


def siglip_eval(size: int = 224, **settings: Any) -> Recipe:
    """The evaluation of SigLIP models: the whole image, squashed to a square, bicubic.

    Source: resize_mode="squash" in open_clip/transform.py.
    Differs: OpenCLIP resizes with Pillow's bicubic filter, as here; big_vision with TensorFlow's bilinear one.
    """
    return openclip_eval(size, resize_mode="squash", normalize=SIGLIP, **settings)
