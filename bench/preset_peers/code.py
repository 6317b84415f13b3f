"""The code of those who published the presets, as it is found in a folder of the user's, at run time.

The folder is $GPUPIPE_ORIGINALS. `pip install --target` puts packages into it, and beside them lie clones of
repositories under their names (`PLACES`). Nothing of it is kept here.
"""

from __future__ import annotations

import ast
import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import default_collate

__all__ = ["FOLDER", "PLACES", "Missing", "Original", "assigned", "code"]

FOLDER = "GPUPIPE_ORIGINALS"
# Folders in it that modules are imported from, and how they come there.
PLACES = {
    ".": "pip install --target . --no-deps open_clip_torch ftfy regex wcwidth lightly lightly_utils ultralytics "
    "opencv-python-headless",
    "dinov2": "git clone https://github.com/facebookresearch/dinov2",
    "vision": "git clone https://github.com/pytorch/vision",
    "mae": "git clone https://github.com/facebookresearch/mae",
    "dino": "git clone https://github.com/facebookresearch/dino",
    "deit": "git clone https://github.com/facebookresearch/deit",
    "ConvNeXt": "git clone https://github.com/facebookresearch/ConvNeXt",
}


@dataclass(frozen=True)
class Original:
    """transform: of a Pillow image, and of a dict of what lies beside it, if there is any.

    collate: of a list of (image, label); finish: of a batch of them, in the process that trains. dataset: of an image
    folder, in the place of a transform, where samples are made of several.
    """

    transform: Callable[..., Any] = lambda *_: None
    collate: Callable[[list[Any]], Any] = default_collate
    finish: Callable[[Any, torch.Tensor], Any] = lambda images, labels: (images, labels)
    dataset: Callable[[str], Any] | None = None


class Missing(Exception):
    """A folder or package that is not there."""


def folder() -> Path:
    """The user's folder of originals."""
    if not os.environ.get(FOLDER):
        raise Missing(f"no folder of originals: pass --originals or set ${FOLDER}")
    return Path(os.environ[FOLDER]).absolute()


def lacking(place: str) -> Missing:
    """With what to do about it."""
    return Missing(f"the folder of originals lacks it; there, {PLACES[place]}")


def code(place: str, module: str, below: str = "") -> Any:
    """A module of a repository, or of the packages (place ".")."""
    sys.path.insert(0, str(folder() / place / below))
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise lacking(place) if error.name == module.partition(".")[0] else error from None


def assigned(place: str, file: str, name: str, **names: Any) -> Any:
    """What a script, which can't be imported, assigns to a name first."""
    path = folder() / place / file
    if not path.is_file():
        raise lacking(place)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name:
            return eval(compile(ast.Expression(node.value), file, "eval"), names)
    raise Missing(f"{file} of {place} assigns nothing to {name}")
