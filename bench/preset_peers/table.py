"""The presets that are measured, and whose code each is beside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import gpupipe
from gpupipe.recipe import MultiCrop, Recipe

__all__ = ["CLASSES", "PRESETS", "Preset"]

CLASSES = 1000  # of the labels; a folder may have fewer
CLASSIFICATION = "references/classification of torchvision"
SEGMENTATION = "references/segmentation of torchvision, v2"
DETECTION = "references/detection of torchvision, and the resize of its models"
TIMM = "create_transform of timm"
YOLO = "YOLODataset of Ultralytics, mosaics of a buffer of decoded images"
COLORS = ("red", "green", "blue", "contrast", "colour", "left to right", "top to bottom")
CLIP = "image_transform of OpenCLIP"


@dataclass(frozen=True)
class Preset:
    """source: whose code is beside it. samples: what lies beside an image, a case of fields.py's data.

    batch_size: smaller where an image is much work or memory, so that what lies ready is soon taken.
    also:       presets that are the same to a loader. apart: facts (agreement.py) in which it differs, as its docs say.
    """

    make: Callable[[int], Recipe | MultiCrop]
    source: str
    size: int = 224
    samples: Literal["label", "mask", "boxes"] = "label"
    batch_size: int = 64
    also: str = ""
    apart: tuple[str, ...] = ()

    @property
    def recipe(self) -> Recipe | MultiCrop:
        """In its size."""
        return self.make(self.size)


def longest(size: int) -> Recipe:
    """Of OpenCLIP's three ways to resize the one that pads."""
    return gpupipe.openclip_eval(size, resize_mode="longest")


def mixing(preset: Callable[..., Recipe], *arguments: str) -> Callable[[int], Recipe]:
    """What those make that need the number of classes."""
    return lambda size: preset(*arguments, size, num_classes=CLASSES)


def detection(
    preset: Callable[..., Recipe], size: int, *augmentation: str, normalize: bool = False, apart: tuple[str, ...] = ()
) -> Preset:
    """normalize: as the models do it in the same place, before they pad."""

    def make(size: int) -> Recipe:
        recipe = preset(*augmentation, size)
        return replace(recipe, operations=(*recipe.operations, gpupipe.Normalize())) if normalize else recipe

    return Preset(make, DETECTION, size, "boxes", 8 if size > 512 else 32, apart=apart)


PRESETS = {
    "imagenet_train": Preset(gpupipe.imagenet_train, CLASSIFICATION),
    "imagenet_eval": Preset(gpupipe.imagenet_eval, CLASSIFICATION),
    "resnet50_v2_train": Preset(mixing(gpupipe.resnet50_v2_train), CLASSIFICATION, 176),
    "resnet50_v2_eval": Preset(gpupipe.resnet50_v2_eval, "the weights' transforms of torchvision"),
    "timm_a_train-A1": Preset(mixing(gpupipe.timm_a_train, "A1"), TIMM, also="-A2"),
    "timm_a_train-A3": Preset(mixing(gpupipe.timm_a_train, "A3"), TIMM, 160),
    "timm_a_eval": Preset(gpupipe.timm_a_eval, TIMM),
    "deit3_train": Preset(mixing(gpupipe.deit3_train), "augment.py of DeiT"),
    "deit3_eval": Preset(gpupipe.deit3_eval, "datasets.py of DeiT"),
    "convnext_train": Preset(
        mixing(gpupipe.convnext_train), "datasets.py of ConvNeXt", also="swin_train, mae_finetune"
    ),
    "convnext_eval": Preset(gpupipe.convnext_eval, "datasets.py of ConvNeXt"),
    "swin_eval": Preset(gpupipe.swin_eval, TIMM),
    "mae_train": Preset(gpupipe.mae_train, "main_pretrain.py of MAE"),
    "simclr_train": Preset(gpupipe.simclr_train, "SimCLRTransform of Lightly", batch_size=32),
    "byol_train": Preset(gpupipe.byol_train, "BYOLTransform of Lightly", batch_size=32),
    "dino_train": Preset(gpupipe.dino_train, "DataAugmentationDINO of DINO", batch_size=16),
    "dino_eval": Preset(gpupipe.dino_eval, "eval_linear.py of DINO"),
    "dinov2_train": Preset(gpupipe.dinov2_train, "DataAugmentationDINO of DINOv2", batch_size=16),
    "openclip_train": Preset(gpupipe.openclip_train, CLIP),
    "openclip_eval": Preset(gpupipe.openclip_eval, CLIP),
    "openclip_eval-longest": Preset(longest, CLIP),
    "siglip_train": Preset(gpupipe.siglip_train, CLIP),
    "siglip_eval": Preset(gpupipe.siglip_eval, CLIP),
    "segmentation_train": Preset(gpupipe.segmentation_train, SEGMENTATION, 480, "mask", 16),
    "segmentation_eval": Preset(gpupipe.segmentation_eval, SEGMENTATION, 520, "mask", 16),
    "detection_train-hflip": detection(gpupipe.detection_train, 1024, "hflip", normalize=True),
    "detection_train-lsj": detection(gpupipe.detection_train, 1024, "lsj"),
    "detection_train-multiscale": detection(gpupipe.detection_train, 1333, "multiscale"),
    "detection_train-ssd": detection(gpupipe.detection_train, 300, "ssd", apart=COLORS),
    "detection_train-ssdlite": detection(gpupipe.detection_train, 320, "ssdlite"),
    "detection_eval": detection(gpupipe.detection_eval, 1024, normalize=True),
    "yolo_train": Preset(gpupipe.yolo_train, YOLO, 640, "boxes", 16, apart=(*COLORS, "detail across", "detail down")),
}
