"""Writes the seeds of kernels/fuzz into a folder: every kind of JPEG behind several headers that drive the geometry."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from hostile import bad_kinds, good_kinds

HEADER = 32  # kHeader of decoding.cpp
EACH = 3


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(1)
    kinds = good_kinds() | bad_kinds()
    for name, data in kinds.items():
        for number in range(EACH):
            header = bytearray(draw.randbytes(HEADER))
            header[0] |= 36  # repeated, and compared with plain libjpeg
            header[1] &= 0xE0  # geometry within the image, usual limits
            (folder / f"{name}-{number}").write_bytes(bytes(header) + data)
    print(f"{len(kinds) * EACH} seeds of {len(kinds)} kinds in {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
