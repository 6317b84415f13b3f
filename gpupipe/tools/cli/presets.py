"""Short names of presets, as --recipe takes them."""

from __future__ import annotations

__all__ = ["PRESETS"]

# --recipe NAME -> the preset of gpupipe and its arguments.
PRESETS: dict[str, tuple[str, tuple[str, ...]]] = {
    "train": ("imagenet_train", ()),
    "eval": ("imagenet_eval", ()),
    "resnet50-v2": ("resnet50_v2_train", ()),
    "timm-a1": ("timm_a_train", ("A1",)),
    "timm-a2": ("timm_a_train", ("A2",)),
    "timm-a3": ("timm_a_train", ("A3",)),
    "deit3": ("deit3_train", ()),
    "dino": ("dino_train", ()),
}
