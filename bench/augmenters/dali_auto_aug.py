"""DALI's auto_aug and its own functions in a pipeline that is fed with batches of uint8 tensors.

Each image has its own operations: DALI splits the batch by operation and merges it again. It mixes no images and makes
no bfloat16, so that is left to plain torch. Feeding and taking the batch out are a part of the time.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from itertools import cycle
from typing import Any

import nvidia.dali.fn as fn
import nvidia.dali.types as types
import torch
from nvidia.dali import pipeline_def
from nvidia.dali.auto_aug import augmentations as single, rand_augment, trivial_augment
from nvidia.dali.auto_aug.core import signed_bin

from augmenters.torch_batched import mixed
from augmenters.work import BLUR, JITTER, MEAN, STD, Finish, Lacking, Work
from gpupipe.host.system import usable_cpus

__all__ = ["Dali"]

BINS, BIN = 31, 9
ALONE = {
    "ShearX": single.shear_x,
    "TranslateX": single.translate_x.augmentation((0, 100 / 224), True),
    "Rotate": single.rotate,
    "RotateBilinear": single.rotate,
    "Brightness": single.brightness,
    "Contrast": single.contrast,
    "Color": single.color,
    "Sharpness": single.sharpness,
    "Posterize": single.posterize,
    "Solarize": single.solarize,
    "SolarizeAdd": single.solarize_add,
    "AutoContrast": single.auto_contrast,
    "Equalize": single.equalize,
    "Invert": single.invert,
}
POLICIES = ("RandAugment", "TrivialAugmentWide", "ColorJitter", "GaussianBlur", "Hue", "Grayscale")
AFFINE = ("ShearX", "TranslateX", "Rotate", "RotateBilinear")
SIGNED = (*AFFINE, "Brightness", "Contrast", "Color", "Sharpness")


class Dali:
    """A pipeline for each work."""

    same = False
    per_image = True
    ahead = 2  # batches in DALI's queues

    def open(self, work: Work, ring: Sequence[torch.Tensor]) -> Callable[[], torch.Tensor]:
        """The pipeline, then what DALI has not."""
        batches = cycle(ring)
        device = "gpu" if ring[0].is_cuda else "cpu"
        shape = ring[0].shape
        feed = (lambda: next(batches)) if device == "gpu" else (lambda: next(batches).numpy())
        check(work)
        with redirect_stderr(io.StringIO()):  # DALI warns of its own modules, which use what it deprecates
            pipe = build(work, shape[0], shape[1], device, feed)
        form = work.finish

        def call() -> torch.Tensor:
            (output,) = pipe.run()
            made = torch.from_dlpack(output.as_tensor())
            return made if form is None else rest(made, form)

        return call


def check(work: Work) -> None:
    """Raises Lacking."""
    if work.policy is not None and work.policy not in (*POLICIES, *ALONE):
        raise Lacking(f"no {work.policy}")
    if work.finish is not None and work.finish.erase is not None and work.finish.erase.value is None:
        raise Lacking("erases with numbers only")


def rest(made: torch.Tensor, form: Finish) -> torch.Tensor:
    """What DALI has not: mixing and bfloat16."""
    if form.channels_last:
        made = made.permute(0, 3, 1, 2)
    if form.mix is not None:
        made = mixed(made, form.mix)
    return made.to(form.dtype)


def build(work: Work, count: int, size: int, device: str, source: Callable[[], Any]) -> Any:
    """The built pipeline: external source, augmentation, normalization, erasing."""

    @pipeline_def(
        batch_size=count,
        num_threads=usable_cpus(),
        device_id=torch.cuda.current_device() if device == "gpu" else None,
        enable_conditionals=True,
        seed=0,
        prefetch_queue_depth=2,
    )
    def pipeline() -> Any:
        images = fn.external_source(source=source, batch=True, device=device, dtype=types.UINT8, ndim=3, layout="HWC")
        if work.policy is not None:
            images = augmented(images, work.policy, size)
        return images if work.finish is None else normalized(images, work.finish)

    made = pipeline()
    made.build()
    return made


def augmented(images: Any, policy: str, size: int) -> Any:
    """uint8 to uint8."""
    warp = {"fill_value": 0, "interp_type": types.INTERP_NN}
    if policy == "RandAugment":
        return rand_augment.rand_augment(images, n=2, m=BIN, shape=(size, size), **warp)
    if policy == "TrivialAugmentWide":
        return trivial_augment.trivial_augment_wide(images, shape=(size, size), **warp)
    if policy == "ColorJitter":
        return fn.color_twist(
            images,
            brightness=fn.random.uniform(range=around(JITTER[0])),
            contrast=fn.random.uniform(range=around(JITTER[1])),
            saturation=fn.random.uniform(range=around(JITTER[2])),
            hue=fn.random.uniform(range=(-360 * JITTER[3], 360 * JITTER[3])),
        )
    if policy == "GaussianBlur":
        return fn.gaussian_blur(images, sigma=fn.random.uniform(range=(0.1, 2.0)), window_size=BLUR)
    if policy == "Hue":
        return fn.hue(images, hue=fn.random.uniform(range=(-36.0, 36.0)))
    if policy == "Grayscale":
        return fn.saturation(images, saturation=0.0)
    if policy == "RotateBilinear":
        warp = {"fill_value": 0, "interp_type": types.INTERP_LINEAR}
    strength = {"magnitude_bin": signed_bin(BIN), "num_magnitude_bins": BINS} if policy in SIGNED else {}
    if policy in ("Posterize", "Solarize", "SolarizeAdd"):
        strength = {"magnitude_bin": BIN, "num_magnitude_bins": BINS}
    place = {"shape": (size, size)} if policy == "TranslateX" else {}
    return ALONE[policy](images, **strength, **place, **(warp if policy in AFFINE else {}))


def around(limit: float) -> tuple[float, float]:
    """Factors about 1."""
    return 1 - limit, 1 + limit


def normalized(images: Any, form: Finish) -> Any:
    """uint8 HWC to float32 in the wanted layout, with a box erased."""
    if form.erase is not None:
        # Before normalizing, as normalizing writes float32: the mean becomes 0, up to rounding to whole levels.
        anchor, shape = fn.random.uniform(range=(0.0, 0.5), shape=2), fn.random.uniform(range=(0.14, 0.57), shape=2)
        mean = [round(255 * value) for value in MEAN]
        images = fn.erase(
            images,
            anchor=anchor,
            shape=shape,
            axis_names="HW",
            normalized=True,
            fill_value=mean,
        )
    return fn.crop_mirror_normalize(
        images,
        dtype=types.FLOAT,
        output_layout="HWC" if form.channels_last else "CHW",
        mean=[255 * value for value in MEAN],
        std=[255 * value for value in STD],
    )
