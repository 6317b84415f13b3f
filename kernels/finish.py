"""The last step of every batch: uint8 HWC pixels to normalized numbers in the wanted dtype and layout."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.host.system import usable_cpus
from gpupipe.kernels import gpu, native
from gpupipe.kernels.erase_mix import Erase, Mix, noise

__all__ = ["erased", "finish", "finish_padded", "finish_reference", "mixed"]

DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.uint8: 3}  # Dtype of cpu/finish.h


def finish(
    images: torch.Tensor,
    mean: Sequence[float],
    std: Sequence[float],
    dtype: torch.dtype = torch.float32,
    channels_last: bool = False,
    out: torch.Tensor | None = None,
    *,
    erase: Erase | None = None,
    mix: Mix | None = None,
    threads: int | None = None,
    variant: str | None = None,
) -> torch.Tensor:
    """`(images / 255 - mean) / std` per channel, erased, mixed, and rounded once to `dtype`, in one pass over memory.

    images: uint8 (N, height, width, 3), contiguous, on any device. mean, std: three numbers each, for values in
    [0, 1]. Returns (N, 3, height, width) on the same device, contiguous or in torch's channels_last strides; that is
    `out` if it is given, which then must have that shape, dtype and layout, else ValueError. For dtype uint8 mean and
    std are not used, and a channels_last result shares the memory of `images`.
    erase, mix: see `Erase` and `Mix`; default neither. `finish_reference` is the definition. Up to the last rounding
    all is float32, and what is mixed are the images' pixels, not rows of `out`: `weight * own + (1 - weight) *
    partner's`, each product and the sum rounded. Not for dtype uint8, which has no numbers to erase or mix with.
    threads: on the CPU at most so many at once, this one among them; default the CPUs that the process may use.
    variant: on the CPU "avx512", "avx2" or "portable" instead of the best; all give the same bits.
    On a GPU a Triton kernel works on the current stream, and the host does not wait for it. Without the C++ kernels, or
    Triton, plain torch does the work, with the same bits.

    Raises ValueError for tensors of wrong shapes, dtypes or layouts, and for boxes, keys, partners or weights that are
    out of range, naming the row.
    """
    _check(images, dtype, erase, mix)
    if out is not None:
        _check_out(out, images.shape, dtype, channels_last)
    on_cpu_by_kernel = images.device.type == "cpu" and native.library() is not None
    on_gpu_by_kernel = gpu.usable(images.device, "finish")
    if dtype == torch.uint8 and (not (on_cpu_by_kernel or on_gpu_by_kernel) or (channels_last and out is None)):
        return _rearranged(images, channels_last, out)
    if out is None:
        out = empty_batch(images.shape, dtype, channels_last, images.device)
    offset, scale = tuple(255 * m for m in mean), tuple(1 / (255 * s) for s in std)
    if on_cpu_by_kernel:
        _finish_native(images, offset, scale, channels_last, out, erase, mix, threads, variant)
    elif on_gpu_by_kernel:
        from gpupipe.kernels.gpu.finish import finish as finish_on_gpu  # not before it is used: it imports Triton

        _check_contiguous(images)
        if images[0:1].numel() >= 2**31:  # its numbers are counted in 32 bits
            raise ValueError(f"images are {tuple(images.shape)}; on a GPU one must have less than 2**31 levels")
        finish_on_gpu(images, offset, scale, channels_last, out, erase, mix)
    else:
        _finish_plain(images, offset, scale, out, erase, mix)
    return out


def finish_padded(
    rows: Sequence[torch.Tensor],
    out: torch.Tensor,
    mean: Sequence[float],
    std: Sequence[float],
    value: float = 0.0,
    *,
    erase: Erase | None = None,
    threads: int | None = None,
    variant: str | None = None,
) -> torch.Tensor:
    """Images of sizes of their own, finished into the upper left corners of `out`, with `value` around them.

    rows: uint8 (height, width, 3), contiguous, on the CPU. out: (N, 3, height, width), as large as the largest of each,
    contiguous or in channels_last strides; its dtype is that of the numbers. erase: see `Erase`; its boxes lie in the
    images. All as `finish` does it. By the C++ kernels alone: raises RuntimeError where they were not built, ValueError
    for tensors of wrong shapes, dtypes or layouts.
    """
    sizes = np.array([row.shape[:2] for row in rows], np.int32).reshape(-1, 2)
    most = tuple(sizes.max(axis=0, initial=0).tolist())
    if native.library() is None:
        raise RuntimeError(native.problem())
    wrong = [row for row in rows if row.dtype != torch.uint8 or row.shape[2:] != (3,) or not row.is_contiguous()]
    if wrong or any(row.device.type != "cpu" for row in rows):
        raise ValueError("rows must be contiguous uint8 (height, width, 3) on the CPU")
    if len(out) != len(rows) or out.ndim != 4 or out.shape[2] < most[0] or out.shape[3] < most[1]:
        raise ValueError(f"out is {tuple(out.shape)}, but ({len(rows)}, 3, {most[0]}, {most[1]}) or more is needed")
    channels_last = not out.is_contiguous()
    _check_out(out, (len(rows), *out.shape[2:], 3), out.dtype, channels_last)
    if out.dtype not in DTYPES or (out.dtype == torch.uint8 and erase is not None):
        raise ValueError(f"out is {out.dtype}; give one of {', '.join(map(str, DTYPES))}, and to erase one of floats")
    if erase is not None:
        erase.check(len(rows), *out.shape[2:])
    around = torch.tensor([value], dtype=out.dtype, device="cpu")
    offset, scale = tuple(255 * m for m in mean), tuple(1 / (255 * s) for s in std)
    padding = {"rows": np.array([row.data_ptr() for row in rows], np.uintp), "sizes": sizes}
    _run_native(out, offset, scale, channels_last, erase, None, threads, variant, around=around.data_ptr(), **padding)
    return out


def _check(images: torch.Tensor, dtype: torch.dtype, erase: Erase | None, mix: Mix | None) -> None:
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[3] != 3:
        raise ValueError(f"images are {images.dtype} {tuple(images.shape)}; give uint8 (N, height, width, 3)")
    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype}; give one of {', '.join(map(str, DTYPES))}")
    if dtype == torch.uint8 and (erase is not None or mix is not None):
        raise ValueError(
            "dtype=torch.uint8 leaves the pixels as they are, so there is nothing normalized to erase or mix; take "
            "torch.bfloat16, torch.float16 or torch.float32, or leave out erase and mix"
        )
    count, height, width, _ = images.shape
    if erase is not None:
        erase.check(count, height, width)
    if mix is not None:
        mix.check(count, height, width)


def _check_out(out: torch.Tensor, shape: Sequence[int], dtype: torch.dtype, channels_last: bool) -> None:
    n, height, width, channels = shape
    wanted = (n, channels, height, width)
    if out.shape != wanted or out.dtype != dtype:
        raise ValueError(f"out is {out.dtype} {tuple(out.shape)}, but {dtype} {wanted} is to be written")
    if not out.is_contiguous(memory_format=_memory_format(channels_last)):
        raise ValueError(f"out has strides {out.stride()}, which are not those of {_memory_format(channels_last)}")


def _check_contiguous(images: torch.Tensor) -> None:
    if not images.is_contiguous():
        raise ValueError(f"images have strides {images.stride()}, but contiguous (N, height, width, 3) is needed")


def _memory_format(channels_last: bool) -> torch.memory_format:
    return torch.channels_last if channels_last else torch.contiguous_format


def empty_batch(
    shape: Sequence[int],
    dtype: torch.dtype,
    channels_last: bool,
    device: torch.device | str = "cpu",
    pinned: bool = False,
) -> torch.Tensor:
    """An uninitialized (N, 3, height, width) tensor for images of `shape` (N, height, width, 3)."""
    n, height, width, channels = shape
    options: dict[str, Any] = {"memory_format": _memory_format(channels_last), "pin_memory": pinned}
    return torch.empty((n, channels, height, width), dtype=dtype, device=device, **options)


def _rearranged(images: torch.Tensor, channels_last: bool, out: torch.Tensor | None) -> torch.Tensor:
    planes = images.permute(0, 3, 1, 2)
    if out is not None:
        return out.copy_(planes)
    return planes if channels_last else planes.contiguous()


def _finish_native(
    images: torch.Tensor,
    offset: tuple[float, ...],
    scale: tuple[float, ...],
    channels_last: bool,
    out: torch.Tensor,
    erase: Erase | None,
    mix: Mix | None,
    threads: int | None,
    variant: str | None,
) -> None:
    _check_contiguous(images)
    _run_native(out, offset, scale, channels_last, erase, mix, threads, variant, input=images.data_ptr())


def _run_native(
    out: torch.Tensor,
    offset: tuple[float, ...],
    scale: tuple[float, ...],
    channels_last: bool,
    erase: Erase | None,
    mix: Mix | None,
    threads: int | None,
    variant: str | None,
    **given: Any,
) -> None:
    """given: what the images are, by the names of `native.Finish`."""
    table, exact = _table(offset, scale, out.dtype), _table(offset, scale, torch.float32)
    arrays = _arrays(erase, mix)  # in a name of their own: the library reads their memory
    arrays |= {name: array for name, array in given.items() if isinstance(array, np.ndarray)}
    opened = native.library()
    assert opened is not None
    batch = native.Finish(
        count=out.shape[0],
        height=out.shape[2],
        width=out.shape[3],
        dtype=DTYPES[out.dtype],
        channels_last=channels_last,
        threads=usable_cpus() if threads is None else threads,
        variant=native.variant_name(variant),
        offset=offset,
        scale=scale,
        table=table.data_ptr(),
        exact=exact.data_ptr(),
        out=out.data_ptr(),
        **given | {name: array.ctypes.data for name, array in arrays.items()},
    )
    opened.gp_finish_batch(ctypes.byref(batch))


def _arrays(erase: Erase | None, mix: Mix | None) -> dict[str, NDArray[Any]]:
    """By the names of `native.Finish`; one that is not there is a null pointer, which means none."""
    arrays: dict[str, NDArray[Any]] = {}
    if erase is not None:
        arrays["erase_boxes"] = erase.boxes
        if erase.value is not None:
            arrays["erase_value"] = np.array(erase.value, dtype=np.float32)
        elif erase.keys is not None:
            arrays["erase_keys"] = erase.keys
    if mix is not None:
        arrays |= {"partners": mix.partners, "weights": mix.weights, "mix_boxes": mix.boxes}
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}


@lru_cache(maxsize=16)
def _table(offset: tuple[float, ...], scale: tuple[float, ...], dtype: torch.dtype) -> torch.Tensor:
    """What each level of each channel becomes, (3, 256) of `dtype`; the vector code computes the same."""
    levels = torch.arange(256, dtype=torch.float32, device="cpu")
    constants = torch.tensor([offset, scale], dtype=torch.float32, device="cpu").view(2, 3, 1)
    return ((levels - constants[0]) * constants[1]).to(dtype)


def _finish_plain(
    images: torch.Tensor,
    offset: tuple[float, ...],
    scale: tuple[float, ...],
    out: torch.Tensor,
    erase: Erase | None,
    mix: Mix | None,
) -> None:
    constants = torch.tensor([offset, scale], dtype=torch.float32, device="cpu").to(images.device, non_blocking=True)
    exact = images.permute(0, 3, 1, 2).to(torch.float32)
    exact.sub_(constants[0].view(1, 3, 1, 1)).mul_(constants[1].view(1, 3, 1, 1))
    exact = exact if erase is None else erased(exact, erase)
    out.copy_(exact if mix is None else mixed(exact, mix))


def finish_reference(
    images: torch.Tensor,
    mean: Sequence[float],
    std: Sequence[float],
    dtype: torch.dtype = torch.float32,
    channels_last: bool = False,
    erase: Erase | None = None,
    mix: Mix | None = None,
) -> torch.Tensor:
    """What `finish` does, in double precision and in the order of its formulas: slow and plain."""
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
            filling = torch.tensor(erase.value, device="cpu").view(3, 1, 1)
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
