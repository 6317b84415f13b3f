"""Clips as pictures: their frames side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import Frames

if TYPE_CHECKING:
    import torch

__all__ = ["clips_of", "strip"]

Pixels = NDArray[np.uint8]
A_LINE = 8  # frames
GAP = 2  # white pixels between them


def clips_of(field: Frames, column: torch.Tensor | Sequence[torch.Tensor], row: int, view: int) -> list[torch.Tensor]:
    """One row's clips in a view, as a batch has them: each (frames, 3, height, width)."""
    given = [column] if hasattr(column, "shape") else list(column)
    clips = [one[row].cpu() for one in given[view :: len(given) // field.clips]]
    return [clip.transpose(0, 1) if field.channels == "first" else clip for clip in clips]


def strip(clips: Sequence[Sequence[Pixels]]) -> Pixels:
    """The frames (height, width, 3) of clips in lines, each clip's from a line's begin."""
    lines = [clip[at : at + A_LINE] for clip in clips for at in range(0, len(clip), A_LINE)]
    height, width = lines[0][0].shape[:2]
    longest = max(map(len, lines))
    picture = np.full((len(lines) * (height + GAP) - GAP, longest * (width + GAP) - GAP, 3), 255, np.uint8)
    for down, line in enumerate(lines):
        for right, frame in enumerate(line):
            top, left = down * (height + GAP), right * (width + GAP)
            picture[top : top + height, left : left + width] = frame
    return picture
