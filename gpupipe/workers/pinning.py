"""Tensors in page-locked memory, wherever they are in a batch."""

from __future__ import annotations

from collections.abc import MutableMapping
from copy import copy
from typing import Any

__all__ = ["pinned"]


def pinned(value: Any) -> Any:
    """The same with all tensors in page-locked memory: in dicts, lists and tuples, and whatever pins itself.

    As `torch.utils.data.DataLoader` does it.
    """
    if callable(getattr(value, "pin_memory", None)):  # a tensor, Ragged, a user's own
        return value.pin_memory()
    if isinstance(value, tuple):
        parts = [pinned(one) for one in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, MutableMapping | list):
        clone: Any = copy(value)
        for place, one in value.items() if isinstance(value, MutableMapping) else enumerate(value):
            clone[place] = pinned(one)
        return clone
    return value
