"""What `finish` does, in double precision and in the order of its formulas: slow and plain."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gpupipe.kernels.erase_mix import Erase, Mix, noise

__all__ = ["erased", "finish_reference", "mixed"]


def finish_reference(
    images: torch.Tensor,
    mean: Sequence[float],
    std: Sequence[float],
    dtype: torch.dtype = torch.float32,
    channels_last: bool = False,
    erase: Erase | None = None,
    mix: Mix | None = None,
) -> torch.Tensor:
    """As `finish`."""
    shape = (1, 3, 1, 1)
    unit = images.permute(0, 3, 1, 2).double() / 255
    mean64 = torch.tensor(mean, dtype=torch.float64, device=images.device).view(shape)
    std64 = torch.tensor(std, dtype=torch.float64, device=images.device).view(shape)
    exact = images.permute(0, 3, 1, 2) if dtype == torch.uint8 else (unit - mean64) / std64
    if erase is not None:
        exact = erased(exact, erase)
    if mix is not None:
        exact = mixed(exact, mix)
    return exact.to(dtype).contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)


def erased(exact: torch.Tensor, erase: Erase) -> torch.Tensor:
    """Normalized images (N, 3, height, width) of any floating dtype with their boxes replaced."""
    out = exact.clone()
    for row, (top, left, height, width) in enumerate(erase.boxes.tolist()):
        rows, columns = slice(top, top + height), slice(left, left + width)
        if erase.value is not None:
            filling = torch.tensor(erase.value).view(3, 1, 1)
        else:
            assert erase.keys is not None
            key = (int(erase.keys[row, 0]), int(erase.keys[row, 1]))
            filling = torch.from_numpy(noise(key, *exact.shape[2:])).permute(2, 0, 1)[:, rows, columns]
        out[row, :, rows, columns] = filling.to(out)
    return out


def mixed(exact: torch.Tensor, mix: Mix) -> torch.Tensor:
    """Such images, each mixed with its partner."""
    out = exact.clone()
    for row, (partner, weight) in enumerate(zip(mix.partners.tolist(), mix.weights.tolist(), strict=True)):
        if partner == row:  # whatever the weight and the box
            continue
        top, left, height, width = mix.boxes[row].tolist()
        rows, columns = slice(top, top + height), slice(left, left + width)
        out[row] = weight * exact[row] + (1 - weight) * exact[partner]
        out[row, :, rows, columns] = exact[partner, :, rows, columns]
    return out
