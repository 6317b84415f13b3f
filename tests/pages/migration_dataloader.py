"""What docs/migration/dataloader.md takes for granted, and what it promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from images import write_folder
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

import gpupipe


def setup(folder: Path, names: dict[str, Any]) -> None:
    transform = transforms.Compose([transforms.RandomResizedCrop(32), transforms.ToTensor()])
    names["gpupipe"] = gpupipe
    names["loader"] = DataLoader(ImageFolder(write_folder(folder / "photos"), transform), batch_size=4)


def check(folder: Path, names: dict[str, Any]) -> None:
    assert isinstance(names["loader"], gpupipe.Loader)
    assert "RandomResizedCrop" in names["printed"]
    assert [len(labels) for _, labels in names["loader"]] == [4, 4, 4]
