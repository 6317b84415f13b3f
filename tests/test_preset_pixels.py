"""Presets against the originals: their settings as translated from the originals' transforms, and their pixels as
torchvision v2's functions make them of the same draws."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from images import encode, picture
from numpy.typing import NDArray
from PIL import Image
from torchvision import transforms as v1, tv_tensors
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.transforms import v2
from torchvision.transforms.v2 import InterpolationMode, functional as F

import gpupipe
from gpupipe.kernels import Crops, Op
from gpupipe.plan import augmentation, cropping
from gpupipe.recipe import MultiCrop, Recipe

BICUBIC = v1.InterpolationMode.BICUBIC
IMAGENET = v1.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP = v1.Normalize((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
HALF = v1.Normalize((0.5,) * 3, (0.5,) * 3)
WEAK = v1.ColorJitter(0.4, 0.4, 0.2, 0.1)
SEED, SIDES = 5, [(150, 200), (231, 140), (64, 300), (300, 260)]


def chain(crop: Any, *steps: Any, normalize: Any = IMAGENET) -> v1.Compose:
    return v1.Compose([crop, *steps, v1.ToTensor(), normalize])


def view(crop: Any, *blurred: Any, jitter: Any = WEAK) -> v1.Compose:
    return chain(crop, v1.RandomHorizontalFlip(), v1.RandomApply([jitter], 0.8), v1.RandomGrayscale(0.2), *blurred)


def blur(kernel_size: int, p: float) -> v1.RandomApply:
    return v1.RandomApply([v1.GaussianBlur(kernel_size, (0.1, 2.0))], p)


def solarized() -> Any:
    return v1.RandomSolarize(128, 0.2)


def crop(size: int, *scale: float, interpolation: Any = BICUBIC) -> v1.RandomResizedCrop:
    return v1.RandomResizedCrop(size, scale or (0.08, 1.0), interpolation=interpolation)


def evaluation(resize: Any, size: int, normalize: Any = IMAGENET) -> v1.Compose:
    return chain(v1.Resize(resize, BICUBIC), v1.CenterCrop(size), normalize=normalize)


# Each view's transform as the original's code builds it: SimCLRTrainDataTransform of Lightning Bolts 0.7 (strength 1),
# BYOLTransform of Lightly 1.6 with the paper's filter and kernel, DataAugmentationDINO of dinov2 (whose GaussianBlur
# hands 1 - p to RandomApply), MAETransform of Lightly 1.6, image_transform of open_clip 3.3.
LARGE, SMALL = (0.32, 1.0), (0.05, 0.32)
ORIGINALS: dict[str, tuple[Recipe | MultiCrop, list[v1.Compose]]] = {
    "simclr_train": (
        gpupipe.simclr_train(),
        [view(crop(224, interpolation="bilinear"), blur(23, 0.5), jitter=v1.ColorJitter(0.8, 0.8, 0.8, 0.2))] * 2,
    ),
    "byol_train": (
        gpupipe.byol_train(),
        [view(crop(224), v1.GaussianBlur(23, (0.1, 2.0))), view(crop(224), blur(23, 0.1), solarized())],
    ),
    "dinov2_train": (
        gpupipe.dinov2_train(),
        [
            view(crop(224, *LARGE)),
            view(crop(224, *LARGE), blur(9, 1 - 0.1), solarized()),
            *[view(crop(96, *SMALL), blur(9, 1 - 0.5))] * 8,
        ],
    ),
    "mae_train": (gpupipe.mae_train(), [chain(crop(224, 0.2, 1.0), v1.RandomHorizontalFlip())]),
    "openclip_train": (gpupipe.openclip_train(), [chain(crop(224, 0.9, 1.0), normalize=CLIP)]),
    "openclip_eval": (gpupipe.openclip_eval(), [evaluation(224, 224, CLIP)]),
    "siglip_train": (gpupipe.siglip_train(), [chain(crop(224, 0.9, 1.0), normalize=HALF)]),
    "siglip_eval": (gpupipe.siglip_eval(), [chain(v1.Resize((224, 224), BICUBIC), normalize=HALF)]),
    "convnext_eval": (gpupipe.convnext_eval(), [evaluation(256, 224)]),
    "swin_eval": (gpupipe.swin_eval(), [evaluation(248, 224)]),
}


@pytest.mark.parametrize("name", ORIGINALS)
def test_settings_are_the_originals(name: str) -> None:
    ours, theirs = ORIGINALS[name]
    assert list(ours.view_recipes) == [Recipe.from_torchvision(one) for one in theirs]


def test_openclips_options_are_settings() -> None:
    jitter = v1.RandomApply([v1.ColorJitter(0.32, 0.32, 0.32, 0.08)], 0.8)
    gray = v1.RandomGrayscale(0.2)
    options: dict[str, Any] = {
        "color_jitter": (0.32, 0.32, 0.32, 0.08),
        "color_jitter_prob": 0.8,
        "gray_scale_prob": 0.2,
    }
    for preset, statistics in ((gpupipe.openclip_train, CLIP), (gpupipe.siglip_train, HALF)):
        theirs = v1.Compose([crop(64, 0.5, 1.0), jitter, gray, v1.ToTensor(), statistics])
        assert preset(64, scale=(0.5, 1.0), **options) == Recipe.from_torchvision(theirs)
    with pytest.raises(gpupipe.ConfigError, match="color_jitter_prob=None go together"):
        gpupipe.openclip_train(color_jitter=(0.32, 0.32, 0.32, 0.08))
    with pytest.raises(gpupipe.ConfigError, match="resize_mode='widest' must be one of shortest, longest, squash"):
        gpupipe.openclip_eval(resize_mode="widest")  # type: ignore[arg-type]
    assert gpupipe.openclip_eval(64, resize_mode="squash", normalize=gpupipe.Normalize((0.5,) * 3, (0.5,) * 3)) == (
        gpupipe.siglip_eval(64)
    )


def test_openclips_longest_side_is_its_own_resize() -> None:
    """Its ResizeKeepRatio and CenterCropOrPad, of a color."""
    sides = [*SIDES, (224, 111), (333, 500)]
    images = [picture(*one, number) for number, one in enumerate(sides)]
    recipe = gpupipe.openclip_eval(96, resize_mode="longest", fill_color=9, dtype="uint8")
    data = [(encode(image, "PNG"), 0) for image in images]
    with gpupipe.Loader(data, recipe, len(data), engine="torch", num_workers=0, device="cpu") as loader:
        ours = next(iter(loader))[0]
    for row, (image, one) in enumerate(zip(images, sides, strict=True)):
        ratio = max(one) / 96
        height, width = (round(side / ratio) for side in one)
        truth = Image.fromarray(image).resize((width, height), Image.Resampling.BICUBIC)
        left, top, right, bottom = (96 - width) // 2, (96 - height) // 2, (97 - width) // 2, (97 - height) // 2
        padded = F.pil_to_tensor(v1.functional.pad(truth, [left, top, right, bottom], fill=9))
        apart = (ours[row].int() - padded.int()).abs().float()
        assert apart.mean() <= 0.1, row
        assert apart.quantile(0.999) <= 1, row


def test_strength_and_sides_are_settings() -> None:
    assert gpupipe.simclr_train(32, strength=0.5).augmentations[0] == gpupipe.RandomApply(
        (gpupipe.ColorJitter(0.4, 0.4, 0.4, 0.1),), 0.8
    )
    assert gpupipe.simclr_train(96).augmentations[-1].parts == (gpupipe.GaussianBlur(9, (0.1, 2.0)),)
    assert gpupipe.dinov2_train(local_views=0).views == 2
    with pytest.raises(gpupipe.ConfigError, match="simclr_train: strength=3"):
        gpupipe.simclr_train(strength=3)
    with pytest.raises(gpupipe.ConfigError, match="dinov2_train: local_views=255"):
        gpupipe.dinov2_train(local_views=255)
    assert gpupipe.swin_train(192, num_classes=7) == gpupipe.mae_finetune(192, num_classes=7)


@pytest.mark.trainers("timm")
def test_timms_arguments_make_convnexts_recipe() -> None:
    """Those of facebookresearch/ConvNeXt, microsoft/Swin-Transformer and MAE's fine-tuning."""
    from timm.data import Mixup
    from timm.models import get_pretrained_cfg

    mixup = Mixup(0.8, 1.0, label_smoothing=0.1, num_classes=10, mode="elem")
    theirs = Recipe.from_timm(
        input_size=224,
        is_training=True,
        color_jitter=0.4,
        auto_augment="rand-m9-mstd0.5-inc1",
        interpolation="bicubic",
        re_prob=0.25,
        re_mode="pixel",
        re_count=1,
        mixup=mixup,
    )
    ours = gpupipe.convnext_train(num_classes=10)
    assert theirs.operations[:4] + theirs.operations[5:] == ours.operations[:4] + ours.operations[5:]
    assert theirs.erasing is not None
    assert ours.erasing is not None
    for setting in ("p", "scale", "ratio", "value"):
        assert getattr(theirs.erasing, setting) == pytest.approx(getattr(ours.erasing, setting))
    for model, made in (
        ("convnext_tiny.fb_in1k", gpupipe.convnext_eval()),
        ("swin_tiny_patch4_window7_224.ms_in1k", gpupipe.swin_eval()),
    ):
        config = get_pretrained_cfg(model)
        assert made == Recipe.from_timm(
            input_size=224, crop_pct=config.crop_pct, interpolation=config.interpolation, mean=config.mean
        )


# Pixels.

TORCHVISION: dict[Op, Callable[[torch.Tensor, NDArray[np.float32]], torch.Tensor]] = {
    Op.IDENTITY: lambda image, values: image,
    Op.BRIGHTNESS: lambda image, values: F.adjust_brightness(image, float(values[0])),
    Op.CONTRAST: lambda image, values: F.adjust_contrast(image, float(values[0])),
    Op.SATURATION: lambda image, values: F.adjust_saturation(image, float(values[0])),
    Op.HUE: lambda image, values: F.adjust_hue(image, float(values[0])),
    Op.SHARPNESS: lambda image, values: F.adjust_sharpness(image, float(values[0])),
    Op.POSTERIZE: lambda image, values: F.posterize(image, int(values[0])),
    Op.SOLARIZE: lambda image, values: F.solarize(image, float(values[0])),
    Op.SOLARIZE_ADD: lambda image, values: torch.where(
        image < 128, (image.int() + int(values[0])).clamp(0, 255), image
    ).to(torch.uint8),
    Op.AUTOCONTRAST: lambda image, values: F.autocontrast(image),
    Op.EQUALIZE: lambda image, values: F.equalize(image),
    Op.INVERT: lambda image, values: F.invert(image),
    Op.GRAYSCALE: lambda image, values: F.rgb_to_grayscale(image, 3),
    Op.GAUSSIAN_BLUR: lambda image, values: blurred(image, values),
    Op.CHANNELS: lambda image, values: F.permute_channels(image, list(permutations(range(3)))[int(values[0])]),
    Op.AFFINE_BICUBIC: lambda image, values: moved(image, values),
}


def blurred(image: torch.Tensor, weights: NDArray[np.float32]) -> torch.Tensor:
    """By the kernel size and sigma that the weights have: exp(-1 / (2 sigma^2)) is their first step."""
    reach = int(np.flatnonzero(weights)[-1]) if weights[1:].any() else 1
    sigma = 0.1 if weights[1] == 0 else float((-0.5 / np.log(weights[1] / weights[0])) ** 0.5)
    return F.gaussian_blur(image, [2 * reach + 1] * 2, [sigma] * 2)


def moved(image: torch.Tensor, matrix: NDArray[np.float32]) -> torch.Tensor:
    """As Pillow, whose pixels' centres lie at halves; filled with timm's gray."""
    a, b, c, d, e, f = matrix[:6].astype(np.float64).tolist()
    data = (a, b, c + 0.5 - (a + b) / 2, d, e, f + 0.5 - (d + e) / 2)
    how: dict[str, Any] = {"resample": Image.Resampling.BICUBIC, "fillcolor": (124, 116, 104)}
    pixels = F.to_pil_image(image).transform((image.shape[2], image.shape[1]), Image.Transform.AFFINE, data, **how)
    return F.pil_to_tensor(pixels)


def by_torchvision(pixels: torch.Tensor, crops: Crops, ops: Any, values: Any) -> Any:
    """One view of one decoded image, by functional calls on uint8."""
    top, left, height, width = crops.windows[0].tolist()
    filter = InterpolationMode.BICUBIC if crops.bicubic[0] else InterpolationMode.BILINEAR
    if crops.fill is not None:
        beyond = [left + width - pixels.shape[2], top + height - pixels.shape[1]]
        padding = [max(0, side) for side in (-left, -top, *beyond)]
        pixels = F.pad(pixels, padding, fill=list(crops.fill))
        left, top = left + padding[0], top + padding[1]
    image = F.resized_crop(F.to_pil_image(pixels), top, left, height, width, crops.resized[0].tolist(), filter)
    image = F.crop(F.pil_to_tensor(image), *crops.anchors[0].tolist(), *crops.size)
    if crops.flips[0]:
        image = F.horizontal_flip(image)
    for op, numbers in zip(ops, values, strict=True):
        image = TORCHVISION[Op(op)](image, numbers)
    return image


SMALLER: dict[str, dict[str, Any]] = {"dinov2_train": {"local_size": 48, "local_views": 2}}


def ablated(size: int, **settings: Any) -> Recipe:
    """ConvNeXt's without what floats alone have, erasing and mixing, which have tests of their own."""
    return Recipe(gpupipe.convnext_train(size).operations[:3], **settings)


@pytest.mark.parametrize("name", [*ORIGINALS, "convnext_train"])
def test_pixels_are_torchvisions_of_the_same_draws(name: str) -> None:
    preset = ablated if name == "convnext_train" else getattr(gpupipe, name)
    made = preset(96, dtype="uint8", **SMALLER.get(name, {}))
    images = [picture(*sides, number) for number, sides in enumerate(SIDES)]
    data = [(encode(image, "PNG"), 0) for image in images]
    with gpupipe.Loader(data, made, len(data), seed=SEED, engine="torch", num_workers=0, device="cpu") as loader:
        views = next(iter(loader))[0]
    positions, (heights, widths) = np.arange(len(data)), np.array(SIDES, np.int32).T
    for number, (one, ours) in enumerate(zip(made.view_recipes, views if made.views > 1 else [views], strict=True)):
        crops = cropping(one, SEED, 0, positions, heights, widths, number)
        drawn = augmentation(one, SEED, 0, positions, number)
        for row, image in enumerate(images):
            pixels = torch.from_numpy(image.copy()).permute(2, 0, 1)
            program = (drawn.ops[row], drawn.values[row]) if drawn else ((), ())
            truth = by_torchvision(pixels, crops.row(row), *program)
            apart = (ours[row].int() - truth.int()).abs().float()
            assert apart.mean() <= 0.5, (number, row)
            assert apart.quantile(0.999) <= (4 if drawn else 1), (number, row)


# Segmentation and detection.


DENSE: dict[str, tuple[Recipe, bool, Any]] = {
    "segmentation": (gpupipe.segmentation_train(96, base_size=104, dtype="uint8"), True, 0),
    "segmentation, eval": (gpupipe.segmentation_eval(96, dtype="uint8"), True, 0),
    "lsj": (gpupipe.detection_train("lsj", 96, dtype="uint8"), False, [123, 117, 104]),
    "hflip": (gpupipe.detection_train("hflip", 96, dtype="uint8"), True, [123, 117, 104]),
    "detection, eval": (gpupipe.detection_eval(96, dtype="uint8"), True, [123, 117, 104]),
}


def of_the_reference(sample: Any, crops: Crops, mirrored_first: bool, fill: Any) -> Any:
    """Resize, flip, pad right and below, crop: in this order, or with the flip at the end, as its lsj."""
    height, width = crops.resized[0].tolist()
    top, left = crops.anchors[0].tolist()
    sample = F.resize(sample, [height, width], InterpolationMode.BILINEAR)
    if crops.flips[0] and mirrored_first:
        sample, left = F.horizontal_flip(sample), width - left - crops.size[1]
    assert min(top, left) >= 0
    missing = [0, 0, max(0, left + crops.size[1] - width), max(0, top + crops.size[0] - height)]
    fill = 255 if isinstance(sample, tv_tensors.Mask) else fill
    sample = F.crop(F.pad(sample, missing, fill=fill), top, left, *crops.size)
    return F.horizontal_flip(sample) if crops.flips[0] and not mirrored_first else sample


@pytest.mark.parametrize("engine", [{"num_workers": 0}, {"engine": "dali", "num_workers": 1}], ids=["torch", "dali"])
@pytest.mark.parametrize("name", DENSE)
def test_images_masks_and_boxes_are_the_references_of_the_same_draws(name: str, engine: dict[str, Any]) -> None:
    recipe, mirrored_first, fill = DENSE[name]
    sides = SIDES * 3
    images = [picture(*one, number) for number, one in enumerate(sides)]
    masks = [np.ascontiguousarray(image[:, :, 0]) for image in images]
    boxes = [np.array([[5, 8, 60, 50], [30, 20, one[1], one[0]]], np.float32) for one in sides]
    data = [
        {"image": encode(image, "PNG"), "mask": mask, "boxes": some}
        for image, mask, some in zip(images, masks, boxes, strict=True)
    ]
    fields = {"image": gpupipe.Image(), "mask": gpupipe.Mask(), "boxes": gpupipe.Boxes(collate="list")}
    source = gpupipe.open_source(data, fields=fields)  # type: ignore[arg-type]
    options = {"engine": "torch", "seed": SEED, "device": "cpu"} | engine
    with gpupipe.Loader(source, recipe, len(data), **options) as loader:  # type: ignore[arg-type]
        batch = next(iter(loader))
    planned = cropping(recipe, SEED, 0, np.arange(len(data)), *np.array(sides, np.int32).T)
    assert 0 < planned.flips.sum() < len(data) or recipe.flip is None
    for row, one in enumerate(sides):
        how = planned.row(row), mirrored_first, fill
        truth = of_the_reference(F.to_pil_image(torch.from_numpy(images[row].copy()).permute(2, 0, 1)), *how)
        apart = (batch["image"][row].int() - F.pil_to_tensor(truth).int()).abs().float()
        assert apart.mean() <= 0.5
        assert apart.quantile(0.999) <= (1 if options["engine"] == "torch" else 6)
        mask = of_the_reference(tv_tensors.Mask(torch.from_numpy(masks[row])[None]), *how)
        assert torch.equal(batch["mask"][row], mask[0])
        given = tv_tensors.BoundingBoxes(torch.from_numpy(boxes[row]), format="XYXY", canvas_size=one)  # type: ignore[call-overload]
        moved = F.clamp_bounding_boxes(of_the_reference(given, *how))
        kept = ((moved[:, 2:] - moved[:, :2]).prod(1) >= 1).tolist()
        torch.testing.assert_close(batch["boxes"][row], torch.Tensor(moved)[kept], atol=1e-3, rtol=0)


@pytest.mark.parametrize("name", ["ssd", "ssdlite"])
def test_ssds_pixels_are_torchvisions_of_the_same_draws(name: Any) -> None:
    recipe = gpupipe.detection_train(name, dtype="uint8")
    assert recipe.crop.output_size == {"ssd": (300, 300), "ssdlite": (320, 320)}[name]
    recipe, sides = gpupipe.detection_train(name, 96, dtype="uint8"), SIDES * 2
    images = [picture(*one, number) for number, one in enumerate(sides)]
    boxes = [np.array([[5, 8, 60, 50], [30, 20, one[1], one[0]]], np.float32) for one in sides]
    data = [{"image": encode(image, "PNG"), "boxes": some} for image, some in zip(images, boxes, strict=True)]
    source = gpupipe.open_source(data, fields={"image": gpupipe.Image(), "boxes": gpupipe.Boxes()})  # type: ignore[arg-type]
    with gpupipe.Loader(source, recipe, len(data), seed=SEED, engine="torch", num_workers=0, device="cpu") as loader:
        ours = next(iter(loader))["image"]
    positions, (heights, widths) = np.arange(len(data)), np.array(sides, np.int32).T
    given = [one.astype(np.float64) for one in boxes]
    crops = cropping(recipe, SEED, 0, positions, heights, widths, boxes=given)
    drawn = augmentation(recipe, SEED, 0, positions)
    assert (name == "ssd") == bool((crops.windows[:, :2] < 0).any())
    for row, image in enumerate(images):
        program = (drawn.ops[row], drawn.values[row]) if drawn else ((), ())
        truth = by_torchvision(torch.from_numpy(image.copy()).permute(2, 0, 1), crops.row(row), *program)
        apart = (ours[row].int() - truth.int()).abs().float()
        assert apart.mean() <= 0.5, row
        assert apart.quantile(0.999) <= (4 if drawn else 1), row


def test_ssds_settings_are_torchvisions() -> None:
    crop, zoom, part = gpupipe.detection_train("ssd").crop, v2.RandomZoomOut(), v2.RandomIoUCrop()
    assert (crop.zoom_out, crop.p, crop.color) == (tuple(zoom.side_range), zoom.p, (123, 117, 104))
    for kind in ("ssd", "ssdlite"):
        crop = gpupipe.detection_train(kind).crop
        scales = part.min_scale, part.max_scale, part.min_aspect_ratio, part.max_aspect_ratio
        assert (crop.min_scale, crop.max_scale, crop.min_aspect_ratio, crop.max_aspect_ratio) == scales
        assert (list(crop.sampler_options), crop.trials) == (part.options, part.trials)
    assert crop.zoom_out is None
    distort, theirs = gpupipe.RandomPhotometricDistort(), v2.RandomPhotometricDistort()
    for name in ("brightness", "contrast", "saturation", "hue"):
        assert tuple(getattr(distort, name)) == tuple(getattr(theirs, name))
    assert gpupipe.detection_eval(300, squash=True).crop.resize == (300, 300)


def test_segmentations_scales_are_the_references() -> None:
    """As torchvision's RandomResize draws them: shorter sides from 260 to below 1040."""
    recipe, count = gpupipe.segmentation_train(), 8000
    assert (recipe.crop.output_size, recipe.statistics) == ((480, 480), gpupipe.imagenet_eval().statistics)
    drawn = cropping(recipe, SEED, 0, np.arange(count), np.full(count, 300), np.full(count, 400)).resized[:, 0]
    resize = v2.RandomResize(260, 1040)
    theirs = [resize.make_params([])["size"] for _ in range(count)]
    assert (drawn.min(), drawn.max()) == (260, 1039)
    edges = np.linspace(260, 1040, 9)
    ours_in, theirs_in = (np.histogram(some, edges)[0] for some in (drawn, theirs))
    assert (abs(ours_in - theirs_in) < 200).all()  # 1,000 each


def test_sizes_of_detection_are_the_models_own() -> None:
    """A model leaves the images that the preset has resized as they are."""
    assert gpupipe.detection_train("multiscale").crop == gpupipe.Resize(tuple(range(480, 801, 32)), 1333)
    data = [(encode(picture(*one, number), "PNG"), 0) for number, one in enumerate([*SIDES, (333, 500)])]
    fields = {"image": gpupipe.Image(collate="list"), "label": gpupipe.Scalar()}
    source = gpupipe.open_source(data, fields=fields)
    with gpupipe.Loader(source, gpupipe.detection_eval(None), len(data), num_workers=0, device="cpu") as loader:
        images = next(iter(loader))[0]
    model = GeneralizedRCNNTransform(800, 1333, [0.0] * 3, [1.0] * 3)
    of_files = [torch.zeros(3, *one) for one in [*SIDES, (333, 500)]]
    sizes = [tuple(image.shape[1:]) for image in images]
    assert sizes == model(of_files)[0].image_sizes == model(images)[0].image_sizes


def test_other_augmentations_of_detection_are_refused() -> None:
    with pytest.raises(gpupipe.ConfigError, match="augmentation='mosaic' must be one of hflip, lsj, multiscale, ssd"):
        gpupipe.detection_train("mosaic")  # type: ignore[arg-type]
    assert gpupipe.detection_train("lsj").normalize is None
