"""How long data of many samples takes to open, and how much private memory that takes.

    python bench/sources_open.py [--samples 1000000] [--classes 1000] [--only folder,csv] [--folder FOLDER]

Makes each kind of data with so many samples, without images or with small ones, and opens it in a new process: for
the first time, and again, when what was found is stored. It prints the seconds that `open_source` and a first batch of
256 labels and keys take, and the private memory (Private_Clean and Private_Dirty of /proc/self/smaps_rollup) that
opening adds. A folder is made with its index: what is timed is never the first scan of its files.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from gpupipe.sources.folder import INDEX_NAME, times_of
from gpupipe.sources.storage import pack_strings, write_index

__all__ = ["KINDS", "main", "measure"]

FILE = 50_000

CHILD = """
import json, sys, time
import numpy as np
import gpupipe
from gpupipe.sources import open_source

def private():
    with open("/proc/self/smaps_rollup") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("Private_")) / 1024

data = eval(sys.argv[1])
before = private()
start = time.perf_counter()
source = open_source(data)
opened = time.perf_counter()
after = private()
again = time.perf_counter()
rows = np.linspace(0, len(source) - 1, 256).astype(np.int64)
source.targets[rows], [source.key(row) for row in rows.tolist()]
done = time.perf_counter()
print(json.dumps({"samples": len(source), "open_s": opened - start, "batch_s": done - again,
                  "private_mib": after - before}))
"""


def labels_of(samples: int, classes: int) -> NDArray[np.int64]:
    """Class by class."""
    return np.arange(samples, dtype=np.int64) * classes // samples


def names_of(samples: int, classes: int) -> Iterator[tuple[str, str]]:
    """A path as long as ImageNet's and a class name for each sample."""
    for number, label in enumerate(labels_of(samples, classes).tolist()):
        name = f"n{label:08d}"
        yield f"{name}/{name}_{number}.JPEG", name


def write_folder(folder: Path, samples: int, classes: int) -> str:
    """Class folders without images, and the index that says there are images in them."""
    names = [f"n{number:08d}" for number in range(classes)]
    for name in names:
        (folder / name).mkdir(parents=True)
    blob, offsets = pack_strings([path for path, _ in names_of(samples, classes)])
    arrays: dict[str, NDArray[Any]] = {
        "labels": labels_of(samples, classes),
        "sizes": np.full(samples, 110_000, np.int64),
        "heights": np.full(samples, 400, np.int32),
        "widths": np.full(samples, 500, np.int32),
        "orientations": np.ones(samples, np.uint8),
        "keys": blob,
        "key_offsets": offsets,
    }
    directories = {name: times_of((folder / name).stat()) for name in names}
    info = {"kind": "folder", "classes": names, "directories": directories, "unread": []}
    write_index(folder / INDEX_NAME, "made", info, arrays, folder.stat().st_ino)
    return repr(str(folder))


def write_csv(folder: Path, samples: int, classes: int) -> str:
    """With names of classes."""
    with open(folder / "data.csv", "w") as file:
        file.write("image,label\n")
        file.writelines(f"{path},{name}\n" for path, name in names_of(samples, classes))
    return repr(str(folder / "data.csv"))


def write_json_lines(folder: Path, samples: int, classes: int) -> str:
    """The same."""
    with open(folder / "data.jsonl", "w") as file:
        file.writelines(f'{{"image": "{path}", "label": "{name}"}}\n' for path, name in names_of(samples, classes))
    return repr(str(folder / "data.jsonl"))


def write_sqlite(folder: Path, samples: int, classes: int) -> str:
    """The same, whose query is run each time."""
    with closing(sqlite3.connect(folder / "data.db")) as database:
        database.execute("CREATE TABLE images (id INTEGER PRIMARY KEY, image TEXT, label TEXT)")
        database.executemany("INSERT INTO images (image, label) VALUES (?, ?)", names_of(samples, classes))
        database.commit()
    return f"gpupipe.Query({f'sqlite:///{folder}/data.db'!r}, 'SELECT image, label FROM images ORDER BY id')"


def write_parquet(folder: Path, samples: int, classes: int) -> str:
    """With 40 bytes for each image, in row groups of 100 and files of 50,000."""
    names = (path for path, _ in names_of(samples, classes))
    labels = labels_of(samples, classes)
    for number, first in enumerate(range(0, samples, FILE)):
        cells = [{"bytes": bytes(40), "path": path} for path in islice(names, FILE)]
        table = pa.table({"image": cells, "label": labels[first : first + FILE]})
        pq.write_table(table, folder / f"{number:05}.parquet", row_group_size=100, compression="none")
    return repr(str(folder))


def write_hugging_face(folder: Path, samples: int, classes: int) -> str:
    """The same as Hugging Face saves it; it is opened by Hugging Face before the clock starts."""
    from datasets import Dataset

    write_parquet(folder, samples, classes)
    Dataset.from_parquet(f"{folder}/*.parquet", cache_dir=str(folder / "cache")).save_to_disk(folder / "saved")
    return f"__import__('datasets').load_from_disk({str(folder / 'saved')!r})"


def write_zip(folder: Path, samples: int, classes: int) -> str:
    """Of one small image."""
    with zipfile.ZipFile(folder / "data.zip", "w") as archive:
        for path, _ in names_of(samples, classes):
            archive.writestr(path, small_image())
    return repr(str(folder / "data.zip"))


def write_lmdb(folder: Path, samples: int, classes: int) -> str:
    """The same."""
    with lmdb.open(str(folder), map_size=1 << 40) as opened, opened.begin(write=True) as transaction:
        for path, _ in names_of(samples, classes):
            transaction.put(path.encode(), small_image())
    return repr(str(folder))


def write_npz(folder: Path, samples: int, classes: int) -> str:
    """Pixels."""
    np.savez(folder / "data.npz", images=np.zeros((samples, 8, 8, 3), np.uint8), labels=labels_of(samples, classes))
    return repr(str(folder / "data.npz"))


@cache
def small_image() -> bytes:
    """A PNG."""
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "PNG")
    return file.getvalue()


KINDS: dict[str, Callable[[Path, int, int], str]] = {
    "folder": write_folder,
    "csv": write_csv,
    "jsonl": write_json_lines,
    "sqlite": write_sqlite,
    "parquet": write_parquet,
    "hugging-face": write_hugging_face,
    "zip": write_zip,
    "lmdb": write_lmdb,
    "npz": write_npz,
}
"""What writes each, and says by what expression it is opened."""


def measure(data: str, cache: Path) -> dict[str, float]:
    """Open it in a new process; seconds and MiB by name."""
    command = [sys.executable, "-c", CHILD, data]
    run = subprocess.run(
        command, check=True, capture_output=True, text=True, env=os.environ | {"GPUPIPE_CACHE": str(cache)}
    )
    figures: dict[str, float] = json.loads(run.stdout)
    return figures


def main(argv: Sequence[str] | None = None) -> None:
    """Make, open, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--only", default=",".join(KINDS), metavar="A,B", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--folder", type=Path, help="where to make it; default: a temporary folder")
    args = parser.parse_args(argv)
    print("| data | | samples | open, s | first batch, s | private memory, MiB |\n|---|---|---|---|---|---|")
    for kind in args.only.split(","):
        with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
            (Path(temporary) / "data").mkdir()
            data = KINDS[kind](Path(temporary) / "data", args.samples, args.classes)
            for time in ("first", "again"):
                made = measure(data, Path(temporary) / "cache")
                figures = f"{made['open_s']:.3f} | {made['batch_s']:.4f} | {made['private_mib']:.1f}"
                print(f"| {kind} | {time} | {made['samples']:,} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
