"""Operations of the user's own, called with keyed generators: on one image in a worker, or on a batch on its device."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.batch import Images, Job
from gpupipe.decode.fetching import Fetched, check_shared_sizes
from gpupipe.errors import ConfigError
from gpupipe.host.generators import drawing, seed_all
from gpupipe.host.whereabouts import note
from gpupipe.plan import own_words
from gpupipe.recipe import OnBatch, PerImage, Recipe
from gpupipe.sources.raised import as_raised, collate_error, form_of

__all__ = ["change_images", "changed_whole", "on_batch", "on_images"]

Pixels = NDArray[np.uint8]


# Images, one by one.


def changed_whole(fetched: Fetched, recipe: Recipe, view: int, whole: Mapping[str, Pixels]) -> Fetched:
    """One sample with its images as the operations before a view's crop make them; `whole` are they before that, by
    field. What can't be made is a failure."""
    columns = dict(fetched.columns)
    for name, pixels in whole.items():
        pixels = pixels.copy()
        for at in range(recipe.before_crop.stop):
            words = _words(fetched, recipe, at, view, name)[0]
            made = None if fetched.failures else _changed(fetched, 0, name, recipe, at, pixels, words)
            pixels = pixels if made is None else np.ascontiguousarray(made)
        columns[name] = Images([pixels], np.array([[*pixels.shape[:2], 1]], np.int32))
    changed = replace(fetched, columns=columns)
    check_shared_sizes(changed)
    return changed


def change_images(
    fetched: Fetched, recipe: Recipe, at: int, view: int, name: str, images: Sequence[torch.Tensor] | torch.Tensor
) -> None:
    """The recipe's operation at that place on each image of a field's view, uint8 (height, width, 3), in place, on all
    frames of a row's clip with the same words. What it can't do is a failure."""
    words = _words(fetched, recipe, at, view, name)
    frames = len(images) // len(words)
    for row, image in ((place // frames, image.numpy()) for place, image in enumerate(images)):
        made = None if row in fetched.failures else _changed(fetched, row, name, recipe, at, image, words[row])
        if made is not None:
            image[...] = made


def _words(fetched: Fetched, recipe: Recipe, at: int, view: int, name: str) -> list[list[int]]:
    job, field = fetched.job, fetched.source.fields.number(name)
    return own_words(recipe, at, job.seed, job.epoch, job.positions, view, field)


def _changed(
    fetched: Fetched, row: int, name: str, recipe: Recipe, at: int, pixels: Pixels, words: list[int]
) -> Pixels | None:
    """What the operation makes of one row's image; None where it fails."""
    operation = recipe.operations[at]
    assert isinstance(operation, PerImage)
    said = str(operation) if len(fetched.source.fields.images) == 1 else f"{name!r}: {operation}"
    index, shape = int(fetched.job.indices[row]), pixels.shape
    note(index)
    try:
        made = _called(operation, pixels, words)
    except Exception as error:  # code of the user's
        reason = f"{said} raised {type(error).__name__}: {error}"
        fetched.failures[row] = as_raised(error, index, fetched.source.location(index), reason)
        return None
    resizes = at < recipe.before_crop.stop and operation.geometric
    if _is_image(made) and (resizes or made.shape == shape):
        return made
    wanted = "(height, width, 3)" if resizes else f"{shape}"
    why = "" if operation.geometric else ", as geometric=False says that it moves no pixel"
    fetched.fail(
        row,
        f"{said} returned {form_of(made)} for an image of {shape}",
        f"here it must return uint8 {wanted}{why}; a change of size goes before the crop, floats go to OnBatch",
    )
    return None


def _called(operation: PerImage, pixels: Pixels, words: list[int]) -> Any:
    if not operation.is_transform:
        key = np.array(words, np.uint64)
        bits = np.random.Philox(key=key[::2] | key[1::2] << np.uint64(32))
        return operation.fn(pixels, np.random.Generator(bits))
    image = torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
    tv_tensors = sys.modules.get("torchvision.tv_tensors")
    with torch.no_grad(), drawing(words):
        made = operation.fn(image if tv_tensors is None else tv_tensors.Image(image))
    return made.permute(1, 2, 0).numpy() if torch.is_tensor(made) and made.ndim == 3 else made


def _is_image(made: Any) -> TypeGuard[Pixels]:
    if not isinstance(made, np.ndarray) or made.dtype != np.uint8 or made.ndim != 3:
        return False
    return made.shape[2] == 3 and made.size > 0


# Batches.


def on_images(recipe: Recipe, at: int, images: torch.Tensor, job: Job, view: int, field: int) -> torch.Tensor:
    """What the recipe's operation at that place makes of a view's images (N, 3, height, width): images of the same
    shape and dtype but at the recipe's end. field: see `Schema.number`.

    Raises CollateError for what the operation raises, ConfigError where it returns what can't go on.
    """
    made = on_batch(recipe, at, images, job, images.device, view, field)
    is_last = at + 1 == len(recipe.operations)
    shape, dtype = images.shape, images.dtype
    if is_last and torch.is_tensor(made) and made.ndim and len(made) == len(images):
        return made
    if torch.is_tensor(made) and (made.shape, made.dtype, made.device) == (shape, dtype, images.device):
        return made
    where = f" on {made.device}" if torch.is_tensor(made) and made.device != images.device else ""
    raise ConfigError(
        f"{recipe.operations[at]} returned {form_of(made)}{where} at step {job.step} of epoch {job.epoch}, but it must "
        f"return a tensor of {f'{len(images)} rows' if is_last else f'{dtype} {tuple(shape)} on {images.device}'}"
    )


def on_batch(recipe: Recipe, at: int, given: Any, job: Job, device: torch.device, view: int = 0, field: int = 0) -> Any:
    """What the recipe's operation at that place, -1 for the last, makes of a batch on `device`.

    Raises CollateError for what the operation raises.
    """
    operation = recipe.operations[at]
    assert isinstance(operation, OnBatch)
    (words,) = own_words(recipe, at, job.seed, job.epoch, job.positions[:1], view, field)
    try:
        with torch.no_grad():
            if operation.is_transform:
                with drawing(words, device):
                    return operation.fn(given)
            generator = torch.Generator(device)
            seed_all([generator], words)
            return operation.fn(given, generator)
    except Exception as error:  # code of the user's
        raise collate_error(
            error,
            f"{operation} raised {type(error).__name__} at step {job.step} of epoch {job.epoch} "
            f"(positions {job.positions[0]} to {job.positions[-1]}): {error}",
        ) from error
