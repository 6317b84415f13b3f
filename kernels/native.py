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
    *(
        "Augment",
        "CImages",
        "CLimits",
        "Feistel",
        "Finish",
        "HeldStep",
        "Line",
        "View",
        "Walks",
        "addresses",
        "library",
        "problem",
        "variant_name",
    ),
    "variants",
]

ABI = 23  # GP_ABI of cpu/api.h
MESSAGE_BYTES = 200  # GP_MESSAGE of cpu/jpeg.h
REMEDY = (
    "install a C++ compiler and the headers of libjpeg-turbo 2.1 or later (Debian, Ubuntu: apt-get install g++ "
    "libjpeg-dev), then gpupipe again with `pip install --force-reinstall --no-deps --no-cache-dir`"
)


# By the names that the structures below have for them.
TYPES: dict[str, Any] = {
    "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
    "floats": ctypes.c_float * 3,
    "text": ctypes.c_char_p,
    "pointer": ctypes.c_void_p,
}


def _structure(name: str, *parts: str) -> Any:
    """One of cpu/api.h; each part is a type and its fields."""
    fields = [(field, TYPES[kind]) for kind, *names in map(str.split, parts) for field in names]
    TYPES[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    return TYPES[name]


CLimits = _structure("gp_limits", "int64 max_pixels max_memory", "int32 max_scans")
View = _structure(
    *("gp_view", "int32 out_height out_width", "pointer windows resized anchors flips bicubic out fill"),
    *("int32 padding", "pointer outputs", "int64 stride"),
)
CImages = _structure(
    "gp_images",
    *("int32 count view_count fast threads", "text variant", "pointer data bytes sizes orientations views"),
    *("gp_limits limits", "pointer codes messages"),
)
Finish = _structure(
    "gp_finish",
    *("int32 count height width dtype channels_last threads", "text variant", "floats offset scale"),
    "pointer table exact input out erase_boxes erase_value erase_keys partners weights mix_boxes rows sizes around",
)
Augment = _structure(
    "gp_augment",
    *("int32 count height width steps values threads", "text variant", "pointer ops numbers fill input out"),
)
Feistel = _structure(
    "gp_feistel", "int64 count", "pointer numbers a b keys", "int32 rounds each_domain each_key back portable"
)
Line = _structure(
    "gp_line",
    *("int64 count", "pointer numbers begins moves region_begins a b keys regions found"),
    *("int64 block_count region_count", "int32 rounds back portable"),
)
HeldStep = _structure(
    "gp_held_step", "pointer held", "int64 now busy count", "pointer indices sizes times hits keep", "int64 named"
)
Walks = _structure("gp_walks", "int32 count threads max_scans", "pointer data bytes headers odd")


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
    opened.gp_held_new.restype, opened.gp_held_bytes.restype = ctypes.c_void_p, ctypes.c_int64
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
