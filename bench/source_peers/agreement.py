"""Whether every kind of data gives the folder's images and labels, to gpupipe and to its users' own loader."""

from __future__ import annotations

from itertools import islice

import numpy as np
import torch

from gpupipe.sources import Source
from gpupipe.tools.benchmark.contenders import load as load_contender
from gpupipe.tools.benchmark.measurement import BenchSettings
from source_peers.kinds import KINDS, prepare, stored
from source_peers.ours import FOLDER, load, opened
from source_peers.rivals import decoded

__all__ = ["Disagreement", "check"]

COMPARED = 64  # samples of the rival, which may differ by the rounding of another decoder
MEAN, LARGEST = 0.1, 8.0  # gray levels


class Disagreement(AssertionError):
    """They make different things, so that their speeds can't be compared."""


def check(kind: str, settings: BenchSettings) -> None:
    """Raises Disagreement for another label, for pixels that are not to the bit the folder's in gpupipe's batches, or
    that are further away in the rival's samples than another decoder's rounding."""
    prepare(settings.data, kind)
    folder, source = opened(settings.data, FOLDER), opened(settings.data, kind)
    if len(folder) != len(source):
        raise Disagreement(f"{kind}: {len(source)} samples for {len(folder)}")
    for step, (one, other) in enumerate(zip(*(_batches(one, settings) for one in (folder, source)), strict=True)):
        if not all(torch.equal(mine, theirs) for mine, theirs in zip(one, other, strict=True)):
            raise Disagreement(f"{kind}: batch {step} is not that of the folder")
    _check_rival(kind, folder, settings)


def _batches(source: Source, settings: BenchSettings) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Of a whole epoch; of images their sums, which are enough to tell them apart."""
    with load(source, settings, num_workers=0, seed=1, shuffle=True) as loader:
        return [(images.sum((1, 2, 3)), labels.clone()) for images, labels in loader]


def _check_rival(kind: str, folder: Source, settings: BenchSettings) -> None:
    rival = load_contender(KINDS[kind].rival[1])
    samples = rival.samples(stored(settings.data, kind))  # type: ignore[attr-defined]
    for index, (image, label) in enumerate(islice(samples, COMPARED)):
        data, own = folder[index]
        if label != own:
            raise Disagreement(f"{kind}, {rival.name}: sample {index} has the label {label}, not {own}")
        expected = decoded(data.tobytes())
        apart = np.abs(image.numpy().astype(float) - expected.numpy()) if image.shape == expected.shape else np.inf
        if np.mean(apart) > MEAN or np.max(apart) > LARGEST:
            raise Disagreement(f"{kind}, {rival.name}: sample {index} has other pixels")
