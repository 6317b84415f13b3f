"""torchvision's references of segmentation and detection, and the resize of the models that they train."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torchvision import tv_tensors
from torchvision.models.detection.transform import GeneralizedRCNNTransform

from gpupipe.recipe import IMAGENET_MEAN, IMAGENET_STD
from preset_peers.code import Original, code

__all__ = ["detection_eval", "detection_train", "segmentation"]

# The faster of their backends, in CPU time an image: 9.5 ms, where "pil" takes 12.8; and 23, where tensors take 28.
SEGMENTATION = {"backend": "tv_tensor", "use_v2": True}
DETECTION = {"backend": "pil", "use_v2": True}


def segmentation(preset: str, size: int, **options: Any) -> Original:
    """With the base size that its train.py has."""
    pad = code("vision", "v2_extras", "references/segmentation").PadIfSmaller
    if "_transform" in vars(pad):  # written before torchvision 0.21 gave them other names
        pad.make_params, pad.transform = pad._get_params, pad._transform
    presets = code("vision", "presets", "references/segmentation")
    made = getattr(presets, preset)(base_size=520, **options, **SEGMENTATION)

    def transform(picture: Any, beside: dict[str, Any]) -> dict[str, Any]:
        image, mask = made(picture, tv_tensors.Mask(beside["mask"]))
        return {"image": image, "mask": mask[0]}

    return Original(transform)


def detection_train(augmentation: str, size: int) -> Original:
    """Images leave it in many sizes, but for "lsj": the models bring them to one. Those of "multiscale" are left so."""
    presets = code("vision", "presets", "references/detection")
    # In v2 its FixedSizeCrop, which stands in v1 alone, does not see boxes.
    backend = {"backend": "pil", "use_v2": False} if augmentation == "lsj" else DETECTION
    return detecting(presets.DetectionPresetTrain(data_augmentation=augmentation, **backend), augmentation, size)


def detection_eval(size: int) -> Original:
    """It makes tensors; the models resize."""
    presets = code("vision", "presets", "references/detection")
    return detecting(presets.DetectionPresetEval(**DETECTION), "", size)


def detecting(made: Any, augmentation: str, size: int) -> Original:
    fixed = (size, size) if augmentation.startswith("ssd") else None
    # What fits into a square is padded to it, after it is normalized. SSD's two pad nothing: levels of 0 to 1.
    mean, std = ([0.0] * 3, [1.0] * 3) if fixed else (IMAGENET_MEAN, IMAGENET_STD)
    to_model = GeneralizedRCNNTransform(size, size, mean, std, 1 if fixed else size, fixed)

    def transform(picture: Any, beside: dict[str, Any]) -> dict[str, Any]:
        sides = (picture.height, picture.width)
        boxes = tv_tensors.BoundingBoxes(beside["boxes"], format="XYXY", canvas_size=sides)
        target = {"boxes": boxes, "labels": torch.from_numpy(np.array(beside["classes"]))}
        image, target = made(picture, target)
        boxes = target["boxes"]
        if augmentation not in ("lsj", "multiscale"):
            batch, (target,) = to_model([image], [target])
            image = batch.tensors[0]
        return {"image": image, "boxes": torch.as_tensor(target["boxes"]).as_subclass(torch.Tensor)}

    return Original(transform)
