"""How long an indexed image folder takes to open, and how much private memory that takes.

    python bench/index_open.py [--samples 1281167] [--classes 1000] [--folder FOLDER]

Makes the index of a folder with so many samples, without its images, and opens it in a new process. It prints the
seconds that `open_source` and a first batch of 256 facts take, and the private memory (Private_Clean and Private_Dirty
of /proc/self/smaps_rollup) before and after opening. The first figure is what Python, torch and the other imports take
by themselves; the difference is what the opened dataset takes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.sources.folder import INDEX_NAME
from gpupipe.sources.storage import pack_strings, write_index

__all__ = ["main", "make_index", "measure"]

CHILD = """
import json, sys, time
import numpy as np
from gpupipe.sources import open_source

def private():
    with open("/proc/self/smaps_rollup") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("Private_")) / 1024

before = private()
start = time.perf_counter()
source = open_source(sys.argv[1])
opened = time.perf_counter()
after = private()
again = time.perf_counter()
source.shapes(np.linspace(0, len(source) - 1, 256).astype(np.int64))
done = time.perf_counter()
print(json.dumps({"samples": len(source), "open_s": opened - start, "batch_s": done - again,
                  "private_mib_before": before, "private_mib_after": after}))
"""


def make_index(folder: Path, samples: int, classes: int) -> None:
    """Class folders without images, and the index that says there are images in them."""
    names = [f"n{number:08d}" for number in range(classes)]
    for name in names:
        (folder / name).mkdir(parents=True)
    labels = np.arange(samples, dtype=np.int64) * classes // samples
    keys = [f"{names[label]}/{names[label]}_{number}.JPEG" for number, label in enumerate(labels.tolist())]
    blob, offsets = pack_strings(keys)
    arrays: dict[str, NDArray[Any]] = {
        "labels": labels,
        "sizes": np.full(samples, 110_000, np.int64),
        "heights": np.full(samples, 400, np.int32),
        "widths": np.full(samples, 500, np.int32),
        "orientations": np.ones(samples, np.uint8),
        "keys": blob,
        "key_offsets": offsets,
    }
    directories = {name: (folder / name).stat().st_mtime_ns for name in names}
    info = {"kind": "folder", "classes": names, "directories": directories}
    write_index(folder / INDEX_NAME, "made", info, arrays)


def measure(folder: Path) -> dict[str, float]:
    """Open the folder in a new process; seconds and MiB by name."""
    command = [sys.executable, "-c", CHILD, str(folder)]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(run.stdout)
    return figures


def main() -> None:
    """Make, open, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1_281_167, help="default: ImageNet's")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--folder", type=Path, help="where to make it; default: a temporary folder")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        make_index(Path(temporary), args.samples, args.classes)
        for name, value in measure(Path(temporary)).items():
            print(f"{name:20s} {value:.4g}")


if __name__ == "__main__":
    main()
