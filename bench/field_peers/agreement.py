"""Whether both ways make the same of the same samples, given the boxes and flips that gpupipe draws."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torchvision.transforms.v2 import functional as F

import gpupipe
from field_peers.data import CASES, Samples, prepare
from field_peers.ours import load
from field_peers.torchvision_v2 import as_tensors
from gpupipe.plan import cropping
from gpupipe.tools.benchmark.measurement import BenchSettings

__all__ = ["Agreement", "Disagreement", "compare"]

COMPARED = 64  # samples
BOXES = 1e-3  # pixels
MEAN, LARGEST = 0.1, 2.0  # gray levels; 0.02 and 1 between the kernel and torchvision 0.29


class Disagreement(AssertionError):
    """The two ways make different things, so that their speeds can't be compared."""


@dataclass(frozen=True)
class Agreement:
    """How far they are apart: gray levels in the mean and at most, pixels of boxes; masks and the rest are equal."""

    mean: float
    largest: float
    boxes: float | None


def compare(case: str, settings: BenchSettings) -> Agreement:
    """Raises Disagreement where they are further apart than the two decoders' and resizes' rounding."""
    prepare(settings.data)
    samples = Samples(settings.data, case)
    count = min(COMPARED, len(samples))
    with load(samples, replace(settings, batch_size=count), num_workers=0) as loader:
        batch = next(iter(loader))
    ours = batch if isinstance(batch, dict) else {"image": batch[0], "label": batch[1]}
    theirs = _by_torchvision(samples, settings.size, count)
    far: dict[str, float] = {"mean": 0.0, "largest": 0.0}
    for row, one in enumerate(theirs):
        for name in {"image", "second"} & one.keys():
            apart = (ours[name][row].float() - one[name].float()).abs()
            far["mean"] = max(far["mean"], float(apart.mean()))
            far["largest"] = max(far["largest"], float(apart.max()))
        if "boxes" in one:
            far["boxes"] = max(far.get("boxes", 0.0), _boxes_apart(ours, one, row))
        for name in {"label", "caption", "mask", "classes"} & one.keys():
            _same(case, name, row, ours[name][row], one[name])
    if far["mean"] > MEAN or far["largest"] > LARGEST or far.get("boxes", 0.0) > BOXES:
        raise Disagreement(f"{CASES[case].title}: {far} is further than mean {MEAN}, largest {LARGEST}, boxes {BOXES}")
    return Agreement(far["mean"], far["largest"], far.get("boxes"))


def _by_torchvision(samples: Samples, size: int, count: int) -> list[dict[str, Any]]:
    facts = samples.facts[:count]
    heights, widths = (np.array([one[side] for one in facts], np.int32) for side in ("height", "width"))
    drawn = cropping(gpupipe.imagenet_train(size), 0, 0, np.arange(count), heights, widths)
    made = []
    for row, (window, flip) in enumerate(zip(drawn.windows.tolist(), drawn.flips.tolist(), strict=True)):
        one = as_tensors(samples[row])
        for name in {"image", "second", "mask", "boxes"} & one.keys():
            one[name] = F.resized_crop(one[name], *window, [size, size], antialias=True)
            one[name] = F.horizontal_flip(one[name]) if flip else one[name]
        if "boxes" in one:
            # Their class drops thin boxes, too; the function can be told not to.
            boxes, kept = F.sanitize_bounding_boxes(F.clamp_bounding_boxes(one["boxes"]), min_size=0.0)
            one |= {"boxes": boxes, "classes": one["classes"][kept]}
        if "mask" in one:
            one["mask"] = one["mask"][0]
        made.append(one)
    return made


def _boxes_apart(ours: dict[str, Any], one: dict[str, Any], row: int) -> float:
    mine, other = ours["boxes"][row], one["boxes"]
    if mine.shape != other.shape:
        raise Disagreement(f"sample {row} has {len(mine)} boxes, torchvision keeps {len(other)}")
    return float((mine - other).abs().max()) if len(mine) else 0.0


def _same(case: str, name: str, row: int, mine: Any, other: Any) -> None:
    equal = torch.equal(mine, torch.as_tensor(other).as_subclass(torch.Tensor)) if name != "caption" else mine == other
    if not equal:
        raise Disagreement(f"{CASES[case].title}: {name} of sample {row} differs")
