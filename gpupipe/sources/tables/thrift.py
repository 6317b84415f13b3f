"""Structs of Thrift's compact protocol, in which Parquet's headers and footers are."""

from __future__ import annotations

from typing import Any

__all__ = ["signed", "struct", "unsigned"]

TRUE, FALSE, BYTE, DOUBLE, BINARY, LIST, SET, MAP, STRUCT, UUID = 1, 2, 3, 7, 8, 9, 10, 11, 12, 13
INTEGERS = (4, 5, 6)
FIXED = {BYTE: 1, DOUBLE: 8, UUID: 16}  # bytes


def struct(data: bytes, at: int) -> tuple[dict[int, Any], int]:
    """By its fields' numbers, and where it ends: integers, bools, lists and structs; others are passed over. Raises
    IndexError, ValueError and RecursionError for what is damaged."""
    fields: dict[int, Any] = {}
    number = 0
    while kind := data[at]:
        step, kind = divmod(kind, 16)
        at += 1
        if step:
            number += step
        else:
            number, at = signed(data, at)
        if kind in (TRUE, FALSE):
            fields[number] = kind == TRUE
        else:
            fields[number], at = _value(data, at, kind)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind in INTEGERS:
        return signed(data, at)
    if kind == BINARY:
        size, at = unsigned(data, at)
        return None, at + size
    if kind == STRUCT:
        return struct(data, at)
    if kind in (LIST, SET):
        count, inner = divmod(data[at], 16)
        at += 1
        if count == 15:
            count, at = unsigned(data, at)
        found = []
        for _ in range(count):
            one, at = (None, at + 1) if inner in (TRUE, FALSE) else _value(data, at, inner)
            found.append(one)
        return found, at
    if kind in FIXED:
        return None, at + FIXED[kind]
    raise ValueError(f"a field is of the unknown kind {kind}")


def unsigned(data: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at


def signed(data: bytes, at: int) -> tuple[int, int]:
    """The same of one that may be negative."""
    value, at = unsigned(data, at)
    return value >> 1 ^ -(value & 1), at
