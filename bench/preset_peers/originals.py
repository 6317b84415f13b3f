"""What the original of each preset makes of a sample, or of a batch: by the code of those who published it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from torch.utils.data import default_collate

from preset_peers.code import Original, assigned, code
from preset_peers.dense import detection_eval, detection_train, segmentation
from preset_peers.mosaics import yolo_train
from preset_peers.table import CLASSES

__all__ = ["ORIGINALS"]


def classification(preset: str, size: int, **options: Any) -> Any:
    """A class of torchvision's references."""
    presets = code("vision", "presets", "references/classification")
    return getattr(presets, preset)(crop_size=size, **options)


def resnet50_v2_train(size: int) -> Original:
    """As its README trains ResNet-50 for the second weights."""
    made = classification("ClassificationPresetTrain", size, auto_augment_policy="ta_wide", random_erase_prob=0.1)
    transforms = code("vision", "transforms", "references/classification")
    mix = transforms.get_mixup_cutmix(mixup_alpha=0.2, cutmix_alpha=1.0, num_classes=CLASSES, use_v2=False)
    return Original(made, collate=lambda samples: mix(*default_collate(samples)))


def resnet50_v2_eval(size: int) -> Original:
    from torchvision.models import ResNet50_Weights

    return Original(ResNet50_Weights.IMAGENET1K_V2.transforms(crop_size=size))


def mixup(alpha: float, smoothing: float) -> Any:
    """timm's, on the finished batch, as its training script has it."""
    from timm.data import Mixup

    return Mixup(mixup_alpha=alpha, cutmix_alpha=1.0, label_smoothing=smoothing, num_classes=CLASSES)


def timm_train(size: int, magnitude: int, alpha: float, smoothing: float) -> Original:
    from timm.data import create_transform

    policy = f"rand-m{magnitude}-mstd0.5-inc1"
    made = create_transform(size, is_training=True, color_jitter=None, auto_augment=policy, interpolation="bicubic")
    return Original(made, finish=mixup(alpha, smoothing))


def timm_eval(size: int, crop_pct: float) -> Original:
    from timm.data import create_transform

    return Original(create_transform(size, interpolation="bicubic", crop_pct=crop_pct))


def deit3_train(size: int) -> Original:
    """Its augment.py, of timm's old days."""
    import timm.data.transforms

    timm.data.transforms._pil_interp = timm.data.transforms.str_to_pil_interp  # as it was called then
    arguments = SimpleNamespace(input_size=size, src=False, color_jitter=0.3)
    return Original(code("deit", "augment").new_data_aug_generator(arguments), finish=mixup(0.8, 0.0))


def deit3_eval(size: int) -> Original:
    """With the --eval-crop-ratio of its README_revenge.md."""
    return Original(
        code("deit", "datasets").build_transform(False, SimpleNamespace(input_size=size, eval_crop_ratio=1))
    )


def convnext(training: bool, size: int) -> Original:
    """Its datasets.py."""
    arguments = SimpleNamespace(
        input_size=size,
        imagenet_default_mean_and_std=True,
        color_jitter=0.4,
        aa="rand-m9-mstd0.5-inc1",
        train_interpolation="bicubic",
        reprob=0.25,
        remode="pixel",
        recount=1,
        crop_pct=None,
    )
    made = code("ConvNeXt", "datasets").build_transform(training, arguments)
    return Original(made, finish=mixup(0.8, 0.1)) if training else Original(made)


def script(place: str, file: str, name: str, size: int, alias: str = "transforms") -> Original:
    """A transform that stands in a script of theirs."""
    from torchvision import transforms

    return Original(assigned(place, file, name, args=SimpleNamespace(input_size=size), **{alias: transforms}))


def lightly(module: str, name: str) -> Original:
    """Of 224 pixels by default."""
    return Original(getattr(code(".", f"lightly.transforms.{module}"), name)())


def dino_train(size: int) -> Original:
    """With its default scales."""
    return Original(code("dino", "main_dino").DataAugmentationDINO((0.4, 1.0), (0.05, 0.4), 8))


def dinov2_train(size: int) -> Original:
    """With the scales of its ssl_default_config.yaml; without what it has for the teacher, which is the same again."""
    made = code("dinov2", "dinov2.data.augmentations").DataAugmentationDINO((0.32, 1.0), (0.05, 0.32), 8, size)
    return Original(lambda picture: [view for kind in ("global_crops", "local_crops") for view in made(picture)[kind]])


def open_clip(training: bool, half: bool, size: int, **how: Any) -> Original:
    """half: as its SigLIP models' configurations say."""
    statistics = {"mean": (0.5,) * 3, "std": (0.5,) * 3} if half else {}
    return Original(code(".", "open_clip.transform").image_transform(size, training, **statistics, **how))


ORIGINALS: dict[str, Callable[[int], Original]] = {
    "imagenet_train": lambda size: Original(classification("ClassificationPresetTrain", size)),
    "imagenet_eval": lambda size: Original(classification("ClassificationPresetEval", size)),
    "resnet50_v2_train": resnet50_v2_train,
    "resnet50_v2_eval": resnet50_v2_eval,
    "timm_a_train-A1": partial(timm_train, magnitude=7, alpha=0.2, smoothing=0.1),
    "timm_a_train-A3": partial(timm_train, magnitude=6, alpha=0.1, smoothing=0.0),
    "timm_a_eval": partial(timm_eval, crop_pct=0.95),
    "deit3_train": deit3_train,
    "deit3_eval": deit3_eval,
    "convnext_train": partial(convnext, True),
    "convnext_eval": partial(convnext, False),
    "swin_eval": partial(timm_eval, crop_pct=0.9),
    "mae_train": partial(script, "mae", "main_pretrain.py", "transform_train"),
    "simclr_train": lambda size: lightly("simclr_transform", "SimCLRTransform"),
    "byol_train": lambda size: lightly("byol_transform", "BYOLTransform"),
    "dino_train": dino_train,
    "dino_eval": partial(script, "dino", "eval_linear.py", "val_transform", alias="pth_transforms"),
    "dinov2_train": dinov2_train,
    "openclip_train": partial(open_clip, True, False),
    "openclip_eval": partial(open_clip, False, False),
    "openclip_eval-longest": partial(open_clip, False, False, resize_mode="longest"),
    "siglip_train": partial(open_clip, True, True),
    "siglip_eval": partial(open_clip, False, True, resize_mode="squash"),
    "segmentation_train": partial(segmentation, "SegmentationPresetTrain", crop_size=480),
    "segmentation_eval": partial(segmentation, "SegmentationPresetEval"),
    "detection_train-hflip": partial(detection_train, "hflip"),
    "detection_train-lsj": partial(detection_train, "lsj"),
    "detection_train-multiscale": partial(detection_train, "multiscale"),
    "detection_train-ssd": partial(detection_train, "ssd"),
    "detection_train-ssdlite": partial(detection_train, "ssdlite"),
    "detection_eval": detection_eval,
    "yolo_train": yolo_train,
}
