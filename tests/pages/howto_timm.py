"""Photographs in two folders, and what docs/howto/timm.md promises of timm's arguments."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from images import write_folder

import gpupipe

NEEDS = ("timm",)


def setup(folder: Path, names: dict[str, Any]) -> None:
    write_folder(folder / "photos/train", 3, 14, ((40, 50), (64, 70)))
    write_folder(folder / "photos/val", 3, 3, ((40, 50),))


def check(folder: Path, names: dict[str, Any]) -> None:
    printed = names["printed"]
    assert re.search(r"epoch 0: \d+% of 9 are right\nepoch 1: ", printed)
    assert "TimmRandAugment" in str(names["loader"].translation)
    assert names["loader"].translation.complete
    assert names["loader"].batch_size == 8
    assert re.search(r"AutoAugment\(.* can't be translated: .*pass auto_augment=", printed)
    targets = names["after"]["A loop of your own"]["targets"]
    assert (targets.shape, targets.dtype) == ((8, 3), torch.float32)
    assert names["train"].source.classes == ["class_0", "class_1", "class_2"]
    assert isinstance(names["recipe"].mixing, gpupipe.MixUpOrCutMix)
    _of_the_script()
    _natural_order(folder)
    _odd_batch(names)
    _last_batch(names)


def _of_the_script() -> None:
    """The import that the page shows is one that timm's own package can serve, and is before ours."""
    import timm.data

    page = (Path(__file__).parents[2] / "docs/howto/timm.md").read_text()
    (imported,) = re.findall(r"^ from timm.data import (.*)$", page, re.MULTILINE)
    assert [name for name in imported.split(", ") if not hasattr(timm.data, name)] == []


def _natural_order(folder: Path) -> None:
    from timm.data import create_dataset

    from gpupipe.integrations.timm import create_loader

    for number in ("2", "10"):
        write_folder(folder / "numbers" / number, 1, 2, ((40, 50),))
        for file in (folder / "numbers" / number / "class_0").iterdir():
            file.rename(folder / "numbers" / number / file.name)
        (folder / "numbers" / number / "class_0").rmdir()
    dataset = create_dataset("", str(folder / "numbers"))
    with create_loader(dataset, (3, 32, 32), 2, num_workers=0, device=torch.device("cpu")) as loader:
        theirs = {Path(loader.source.location(int(i))).parent.name: int(label) for i, label in _labelled(loader)}
    assert theirs == {"2": 0, "10": 1}
    assert gpupipe.open_source(str(folder / "numbers")).class_to_idx == {"10": 0, "2": 1}


def _labelled(loader: Any) -> list[tuple[int, int]]:
    return [pair for _, labels in loader for pair in zip(loader.last_indices.tolist(), labels.tolist(), strict=True)]


def _odd_batch(names: dict[str, Any]) -> None:
    with pytest.raises(gpupipe.ConfigError, match="even"):
        gpupipe.Loader("photos/train", names["recipe"], 7, drop_last=True, num_workers=0)


def _last_batch(names: dict[str, Any]) -> None:
    *_, (_, labels) = gpupipe.Loader("photos/train", names["recipe"], 8, num_workers=0, engine="torch")
    assert (labels.shape, labels.dtype) == ((42 % 8, 3), torch.float32)
    torch.testing.assert_close(labels.amax(1), torch.full((2,), 0.9 + 0.1 / 3))  # not mixed, smoothed
