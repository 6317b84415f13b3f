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

from gpupipe.kernels.gpu import finish_kernels
from gpupipe.kernels.gpu.finish import LEVELS, LEVELS_OF_TWO_BYTES, PIXELS, WARPS

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
POINTERS = {"images": "*u8", "records": "*i32"}
FLOATS = ("offset", "scale", "value")


def compiled(kernel: Any, pointers: dict[str, str], constants: dict[str, Any], aligned: set[str], warps: int) -> Any:
    """As Triton compiles a call whose arguments in `aligned` are multiples of 16."""
    names = kernel.arg_names
    types = {name: "fp32" if name.rstrip("0123456789") in FLOATS else "i32" for name in names}
    signature = types | POINTERS | pointers
    signature = {name: "constexpr" if name in constants else signature[name] for name in names}
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source = ASTSource(kernel, signature, constants, attributes)
    options = {"enable_fp_fusion": False, "num_warps": warps}
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
    aligned = {"images", "out", "records", "count", "width"}  # as for 224 x 224
    cases = {}
    for dtype, erase, mix in (("fp32", 0, False), ("bf16", 0, False), ("bf16", finish_kernels.NOISE, True)):
        flags = {"ERASE": erase, "MIX": mix}
        name = f"{dtype}{' erase mix' if erase else ''}"
        cases[f"planes {name}"] = compiled(
            finish_kernels.finish_planes,
            {"out": f"*{dtype}"},
            {"PIXELS": PIXELS, "WORDS": True, "FLOAT": True, **flags},
            aligned,
            WARPS,
        )
        levels = LEVELS_OF_TWO_BYTES if dtype == "bf16" and not erase else LEVELS
        cases[f"flat {name}"] = compiled(
            finish_kernels.finish_flat, {"out": f"*{dtype}"}, {"BYTES": levels, **flags}, aligned, WARPS
        )
    return cases


def main() -> None:
    assert "TRITON_INTERPRET" not in os.environ
    json.dump({name: facts(binary) for name, binary in finish_cases().items()}, sys.stdout)


if __name__ == "__main__":
    main()
