"""Compiles the Triton kernels for an H200, which needs no GPU, and prints what became of them as JSON.

A program of its own: where TRITON_INTERPRET is set, as in the tests, kernels can't be compiled.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gpupipe.kernels.gpu import OPTIONS, augment, augment_kernels, finish, finish_kernels, tables

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
BYTES = ("images", "source", "middle", "out", "tables", "kept")
WORDS = ("records", "tasks", "steps")
POINTERS = {**dict.fromkeys(BYTES, "*u8"), **dict.fromkeys(WORDS, "*i32"), "filtered": "*fp32", "total": "*fp32"}
FLOATS = ("offset", "scale", "value", "fill")


def compiled(kernel: Any, constants: dict[str, Any], warps: int, aligned: tuple[str, ...] = (), out: str = "u8") -> Any:
    """As Triton compiles a call whose pointers, and the numbers in `aligned`, are multiples of 16."""
    types = POINTERS | {"out": f"*{out}"} | dict.fromkeys(constants, "constexpr")
    names = kernel.arg_names
    signature = {name: types.get(name, "fp32" if name.rstrip("0123456789") in FLOATS else "i32") for name in names}
    attributes = {
        (number,): [["tt.divisibility", 16]]
        for number, name in enumerate(names)
        if name in aligned or signature[name].startswith("*")
    }
    source = ASTSource(kernel, signature, constants, attributes)
    options = {"num_warps": warps, **OPTIONS}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def facts(binary: Any) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(binary.asm["cubin"])
        command = [str(CUOBJDUMP), "-res-usage", str(file)]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    numbers = {name.lower(): int(value) for name, value in re.findall(r"(REG|STACK|SHARED):(\d+)", usage)}
    instructions = re.findall(r"^\s+(?:@%\w+ )?([a-z][\w.:]+)\s", binary.asm["ptx"], re.MULTILINE)
    return {**numbers, "ptx": sorted(set(instructions))}


def finish_cases() -> dict[str, Any]:
    """For 224 x 224, by names that test_kernels_gpu.py uses."""
    aligned = ("count", "width")
    planes = {"PIXELS": finish.PIXELS, "WORDS": True, "FLOAT": True}
    plain, full = {"ERASE": 0, "MIX": False}, {"ERASE": finish_kernels.NOISE, "MIX": True}
    by_planes, flat = finish_kernels.finish_planes, finish_kernels.finish_flat
    return {
        "planes float32": compiled(by_planes, {**planes, **plain}, finish.WARPS, aligned, "fp32"),
        "planes bfloat16": compiled(by_planes, {**planes, **plain}, finish.WARPS, aligned, "bf16"),
        "planes noise mix": compiled(by_planes, {**planes, **full}, finish.WARPS, aligned, "bf16"),
        "flat bfloat16": compiled(flat, {"BYTES": finish.LEVELS_OF_TWO_BYTES, **plain}, finish.WARPS, aligned, "bf16"),
        "flat noise mix": compiled(flat, {"BYTES": finish.LEVELS, **full}, finish.WARPS, aligned, "fp32"),
    }


def augment_cases() -> dict[str, Any]:
    block = {"PIXELS": augment.PIXELS, "FAR": False}
    whole = {**block, "WORDS": True, "FILL": True}
    plain, elastic = {"BICUBIC": False, "OWN": False, "ELASTIC": False}, {"ELASTIC": True}
    return {
        "apply": compiled(augment_kernels.apply, {**whole, **plain}, augment.WARPS),
        "apply bicubic": compiled(augment_kernels.apply, {**whole, **plain, "BICUBIC": True}, augment.WARPS),
        "apply own": compiled(augment_kernels.apply, {**whole, **plain, "OWN": True}, augment.WARPS),
        "apply elastic": compiled(augment_kernels.apply, {**whole, **plain, **elastic}, augment.WARPS),
        "filter rows": compiled(augment_kernels.filter_rows, {**block, "ELASTIC": False}, augment.WARPS),
        "filter rows elastic": compiled(augment_kernels.filter_rows, {**block, **elastic}, augment.WARPS),
        "tables": compiled(tables.make_tables, {"PIXELS": augment.TABLE_PIXELS}, augment.TABLE_WARPS),
    }


def main() -> None:
    assert "TRITON_INTERPRET" not in os.environ
    cases = {**finish_cases(), **augment_cases()}
    json.dump({name: facts(binary) for name, binary in cases.items()}, sys.stdout)


if __name__ == "__main__":
    main()
