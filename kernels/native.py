"""The compiled CPU kernels, called by ctypes: one library for every Python version, and the GIL is free meanwhile."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Augment",
    "Finish",
    "Images",
    "Limits",
    "View",
    "Walks",
    "addresses",
    "library",
    "problem",
    "variant_name",
    "variants",
]

ABI = 7  # GP_ABI of cpu/api.h
MESSAGE_BYTES = 200  # GP_MESSAGE of cpu/jpeg.h
REMEDY = (
    "install a C++ compiler and the headers of libjpeg-turbo 2.1 or later (Debian, Ubuntu: apt-get install g++ "
    "libjpeg-dev), then gpupipe again with `pip install --force-reinstall --no-deps --no-cache-dir`"
)


class Limits(ctypes.Structure):
    """gp_limits of cpu/jpeg.h."""

    _fields_ = (
        ("max_pixels", ctypes.c_int64),
        ("max_memory", ctypes.c_int64),
        ("max_scans", ctypes.c_int32),
    )


class View(ctypes.Structure):
    """gp_view of cpu/api.h."""

    _fields_ = (
        ("out_height", ctypes.c_int32),
        ("out_width", ctypes.c_int32),
        ("filter", ctypes.c_int32),
        ("windows", ctypes.c_void_p),
        ("resized", ctypes.c_void_p),
        ("anchors", ctypes.c_void_p),
        ("flips", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
    )


class Images(ctypes.Structure):
    """gp_images of cpu/api.h."""

    _fields_ = (
        ("count", ctypes.c_int32),
        ("view_count", ctypes.c_int32),
        ("fast", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("variant", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_void_p),
        ("sizes", ctypes.c_void_p),
        ("orientations", ctypes.c_void_p),
        ("views", ctypes.c_void_p),
        ("limits", Limits),
        ("codes", ctypes.c_void_p),
        ("messages", ctypes.c_void_p),
    )


class Finish(ctypes.Structure):
    """gp_finish of cpu/api.h."""

    _fields_ = (
        ("count", ctypes.c_int32),
        ("height", ctypes.c_int32),
        ("width", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("channels_last", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("variant", ctypes.c_char_p),
        ("offset", ctypes.c_float * 3),
        ("scale", ctypes.c_float * 3),
        ("table", ctypes.c_void_p),
        ("exact", ctypes.c_void_p),
        ("input", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("erase_boxes", ctypes.c_void_p),
        ("erase_value", ctypes.c_void_p),
        ("erase_keys", ctypes.c_void_p),
        ("partners", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("mix_boxes", ctypes.c_void_p),
    )


class Augment(ctypes.Structure):
    """gp_augment of cpu/api.h."""

    _fields_ = (
        ("count", ctypes.c_int32),
        ("height", ctypes.c_int32),
        ("width", ctypes.c_int32),
        ("steps", ctypes.c_int32),
        ("values", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("variant", ctypes.c_char_p),
        ("ops", ctypes.c_void_p),
        ("numbers", ctypes.c_void_p),
        ("fill", ctypes.c_void_p),
        ("input", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
    )


class Walks(ctypes.Structure):
    """gp_walks of cpu/api.h."""

    _fields_ = (
        ("count", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("max_scans", ctypes.c_int32),
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_void_p),
        ("headers", ctypes.c_void_p),
        ("odd", ctypes.c_void_p),
    )


def library() -> Any | None:
    """The library, or None where it was not built or can't be used; `problem` says why."""
    return _opened()[0]


def problem() -> str | None:
    """Why there is no library, and what to do; None where there is one."""
    return _opened()[1]


@lru_cache(maxsize=1)
def _opened() -> tuple[Any | None, str | None]:
    path = Path(__file__).resolve().parent / "_cpu.so"
    if not path.exists():
        return None, f"the C++ kernels were not built; {REMEDY}"
    try:
        opened = ctypes.CDLL(os.fspath(path))
    except OSError as error:
        return None, f"the C++ kernels can't be loaded ({error}); {REMEDY}"
    if opened.gp_abi() != ABI:
        return None, f"the C++ kernels in {path} are of another version of gpupipe; {REMEDY}"
    opened.gp_best_variant.restype = ctypes.c_char_p
    return opened, None


def variants() -> list[str]:
    """The instruction sets with code of their own on this CPU, the one in use first; empty without the library."""
    opened = library()
    if opened is None:
        return []
    best = opened.gp_best_variant().decode()
    others = [name for name in ("avx512", "avx2", "portable") if opened.gp_has_variant(name.encode())]
    return [best, *(name for name in others if name != best)]


def variant_name(name: str | None) -> bytes | None:
    """As the library takes it. Raises ValueError for one that this CPU lacks."""
    if name is None:
        return None
    if name not in variants():
        raise ValueError(f"variant={name!r}: this CPU has {', '.join(variants()) or 'none'}")
    return name.encode()


def addresses(arrays: Sequence[NDArray[Any]]) -> NDArray[np.uintp]:
    """Where each array's memory begins."""
    return np.array([array.ctypes.data for array in arrays], dtype=np.uintp)
