"""Recipes from torchvision's transforms: their pixels, their draws, and what is refused by name."""

from __future__ import annotations

import pytest
import torch
from torchvision import transforms as v1
from torchvision.transforms import v2

import gpupipe


def test_a_training_transform() -> None:
    transform = v1.Compose(
        [v1.RandomResizedCrop(96), v1.RandomHorizontalFlip(0.3), v1.ToTensor(), v1.Normalize((0.5,) * 3, (1,) * 3)]
    )
    recipe = gpupipe.Recipe.from_torchvision(transform)
    operations = (
        gpupipe.RandomResizedCrop(96),
        gpupipe.RandomHorizontalFlip(0.3),
        gpupipe.Normalize((0.5,) * 3, (1,) * 3),
    )
    assert recipe == gpupipe.Recipe(operations)


def test_an_evaluation_transform() -> None:
    convert = (v2.ToImage(), v2.ToDtype(torch.float32, scale=True))
    recipe = gpupipe.Recipe.from_torchvision(v2.Compose([v2.Resize(72), v2.CenterCrop(64), *convert]))
    assert recipe == gpupipe.Recipe((gpupipe.ResizeCenterCrop(64, 72),))


def test_what_is_unknown_is_named() -> None:
    with pytest.raises(gpupipe.TranslationError, match="Lambda can't be translated") as raised:
        gpupipe.Recipe.from_torchvision(v1.Compose([v1.Lambda(len)]))
    assert raised.value.operation.endswith("Lambda")
    assert raised.value.alternative
