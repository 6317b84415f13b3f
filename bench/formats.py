"""Image formats: who decodes each on which engine, how near to Pillow's pixels, and how fast.

    python bench/formats.py [DATA] --out results [--images 32] [--rounds 5] [--only PNG,AVIF]

The first images of DATA (default: the made sample set) are written by Pillow in each format and kind. From the same
bytes, held in memory, all make the same uint8 random resized crops to 224: Pillow alone (open, convert, crop, resize),
the torch engine without workers, and DALI's on the CPU with one thread. The process and all its threads have one CPU.
First the pixels are compared: the torch engine's have to be Pillow's to the bit. Then they are measured in turn, each
kind by itself; median, smallest and largest of the rounds. Writes results.md (the table of docs/guide/formats.md),
formats.csv and formats.json; with --page, puts the table into that page, in the place of the one there.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))

from in_turn import cell, words, write

import gpupipe
from gpupipe.decode.dali.screen import unfit_rows
from gpupipe.decode.pixels import parse, resized_by_pillow
from gpupipe.kernels import Crops, decode_crops
from gpupipe.plan import cropping
from gpupipe.sources.headers import FORMATS, probe_bytes
from gpupipe.sources.rgb import as_rgb
from gpupipe.tools.benchmark.measurement import BenchSettings
from gpupipe.tools.benchmark.report import environment
from gpupipe.tools.benchmark.sample_set import sample_set

__all__ = ["KINDS", "encoded", "main"]

SIZE = 224
RECIPE = gpupipe.Recipe((gpupipe.RandomResizedCrop(SIZE), gpupipe.RandomHorizontalFlip()), dtype="uint8")
SEED = 0


def encoded(image: Image.Image, kind: str, mode: str = "RGB", **options: Any) -> bytes:
    """The image in that mode, as a file of that kind."""
    buffer = io.BytesIO()
    converted = image if image.mode == mode else image.convert(mode)
    converted.save(buffer, kind, **options)
    return buffer.getvalue()


def _deep(image: Image.Image) -> Image.Image:
    """Gray of 16 bits."""
    return Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)


def _see_through(image: Image.Image) -> Image.Image:
    """With its own gray as alpha."""
    image = image.copy()
    image.putalpha(image.convert("L"))
    return image


def _as(kind: str, mode: str = "RGB", **options: Any) -> Callable[[Image.Image], bytes]:
    return lambda image: encoded(image, kind, mode, **options)


KINDS: dict[str, Callable[[Image.Image], bytes]] = {
    "JPEG": _as("JPEG", quality=90),
    "JPEG, progressive": _as("JPEG", quality=90, progressive=True),
    "JPEG, gray": _as("JPEG", "L", quality=90),
    "JPEG, CMYK": _as("JPEG", "CMYK", quality=90),
    "PNG": _as("PNG"),
    "PNG, gray": _as("PNG", "L"),
    "PNG, palette": _as("PNG", "P"),
    "PNG, 1 bit": _as("PNG", "1"),
    "PNG, alpha": lambda image: encoded(_see_through(image), "PNG", "RGBA"),
    "PNG, 16 bit gray": lambda image: encoded(_deep(image), "PNG", "I;16"),
    "WebP": _as("WEBP", quality=85),
    "WebP, lossless": _as("WEBP", lossless=True, method=0),
    "WebP, alpha": lambda image: encoded(_see_through(image), "WEBP", "RGBA"),
    "AVIF": _as("AVIF", quality=75, speed=9),
    "AVIF, alpha": lambda image: encoded(_see_through(image), "AVIF", "RGBA", speed=9),
    "TIFF": _as("TIFF"),
    "TIFF, LZW": _as("TIFF", compression="tiff_lzw"),
    "TIFF, deflate": _as("TIFF", compression="tiff_deflate"),
    "TIFF, JPEG": _as("TIFF", compression="jpeg"),
    "TIFF, CMYK": _as("TIFF", "CMYK"),
    "TIFF, 16 bit gray": lambda image: encoded(_deep(image), "TIFF", "I;16"),
    "BMP": _as("BMP"),
    "BMP, palette": _as("BMP", "P"),
    "GIF": _as("GIF", "P"),
    "GIF, animated": lambda image: encoded(
        image, "GIF", save_all=True, append_images=[image.transpose(Image.Transpose.ROTATE_180)]
    ),
    "JPEG 2000": _as("JPEG2000", irreversible=True, quality_layers=[20]),
    "JPEG 2000, lossless": _as("JPEG2000"),
    "PPM": _as("PPM"),
    "PGM, 16 bit": lambda image: encoded(_deep(image), "PPM", "I;16"),
}
"""A file of each format and kind of an RGB image."""

TABLE = re.compile(r"^\| format \|.*\n(\|.*\n)+(\n.*; Pillow [\d.]+; .*\n)?", re.MULTILINE)
"""The table in a page, and the line about where it was measured."""

NEEDED = {"AVIF": "AVIF", "JPEG 2000": "JPEG2000"}


def available() -> list[str]:
    """The kinds that this Pillow has."""
    return [kind for kind in KINDS if NEEDED.get(kind.split(",")[0], "JPEG") in FORMATS]


@dataclass(frozen=True)
class Row:
    """A kind: by what it is decoded, how far DALI's crops are from Pillow's in levels, and images a second."""

    kind: str
    torch_by: str
    dali_by: str
    dali_levels_mean: float
    dali_levels_max: int
    torch: tuple[float, float, float]
    dali: tuple[float, float, float]
    pillow: tuple[float, float, float]


class Files:
    """A dataset of encoded images."""

    def __init__(self, files: Sequence[bytes]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        return self.files[index], index


def crops_of(files: Sequence[bytes]) -> Crops:
    """What a loader draws for them in its first epoch."""
    sizes = np.array([probe_bytes(data)[:2] for data in files], np.int32)
    return cropping(RECIPE, SEED, 0, np.arange(len(files)), sizes[:, 0], sizes[:, 1])


def by_pillow(files: Sequence[bytes], crops: Crops) -> np.ndarray:
    """Decoded and cropped without gpupipe's decoders: (N, size, size, 3)."""
    made = []
    for row, data in enumerate(files):
        with Image.open(io.BytesIO(data)) as image:
            made.append(resized_by_pillow(as_rgb(image), crops.row(row)))
    return np.stack(made)


def by_loader(loader: gpupipe.Loader) -> np.ndarray:
    """An epoch, the first one each time: (N, size, size, 3)."""
    loader.set_epoch(0)
    return np.concatenate([images.permute(0, 2, 3, 1).numpy() for images, _ in loader])


def who(files: Sequence[bytes], crops: Crops) -> tuple[str, str]:
    """What decodes them on the torch engine, and on DALI's."""
    arrays = [np.frombuffer(data, np.uint8) for data in files]
    refused = decode_crops(arrays, [crops]).failures
    own = "C++ kernel" if not refused else "Pillow" if parse(arrays[0]) is None else "nvImageCodec"
    unfit = unfit_rows(arrays, np.array([probe_bytes(data) for data in files], np.int32), False)
    return own, f"{own}, beside DALI" if unfit else "DALI"


def measured(kind: str, files: Sequence[bytes], rounds: int) -> Row:
    """Their pixels compared, then each in turn."""
    crops = crops_of(files)
    truth = by_pillow(files, crops)
    common: dict[str, Any] = dict(seed=SEED, device="cpu", drop_last=False)
    with (
        gpupipe.Loader(Files(files), RECIPE, len(files), engine="torch", num_workers=0, **common) as torch_loader,
        gpupipe.Loader(Files(files), RECIPE, len(files), engine="dali", num_workers=1, **common) as dali_loader,
    ):
        contenders: dict[str, Callable[[], np.ndarray]] = {
            "torch": lambda: by_loader(torch_loader),
            "dali": lambda: by_loader(dali_loader),
            "pillow": lambda: by_pillow(files, crops),
        }
        assert np.array_equal(contenders["torch"](), truth), f"{kind}: the torch engine's pixels are not Pillow's"
        apart = np.abs(contenders["dali"]().astype(int) - truth)
        times: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(rounds):
            for name, call in contenders.items():
                start = time.perf_counter()
                call()
                times[name].append(len(files) / (time.perf_counter() - start))
    rates = {name: (statistics.median(found), min(found), max(found)) for name, found in times.items()}
    return Row(kind, *who(files, crops), float(apart.mean()), int(apart.max()), **rates)


def markdown(rows: Sequence[Row]) -> str:
    """A line for each kind."""
    lines = [
        "| format | torch engine: by, img/s | DALI on the CPU: by, img/s | apart: mean, most | Pillow alone, img/s |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        exact = row.dali_levels_max == 0
        apart = "0" if exact else f"{row.dali_levels_mean:.2f}, {row.dali_levels_max}"
        own, dali = f"{row.torch_by}, {cell(*row.torch)}", f"{row.dali_by}, {cell(*row.dali)}"
        lines.append(f"| {row.kind} | {own} | {dali} | {apart} | {cell(*row.pillow)} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", help="image folder (default: the made sample set)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the results")
    parser.add_argument("--images", type=int, default=32, metavar="N", help="of each kind (default: 32)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="of each contender (default: 5)")
    parser.add_argument("--only", type=words, default=available(), metavar="A,B", help="formats, as PNG,WebP")
    parser.add_argument("--page", type=Path, metavar="FILE", help="docs/guide/formats.md")
    args = parser.parse_args(argv)
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])  # before the first thread
    data = args.data or str(sample_set())
    source = gpupipe.open_source(data)
    files = source.fetch(np.arange(min(args.images, len(source))))["image"].data
    images = [Image.open(io.BytesIO(file.tobytes())).convert("RGB") for file in files]
    kinds = [kind for kind in available() if {kind, kind.split(",")[0]} & set(args.only)]
    rows = [measured(kind, [KINDS[kind](image) for image in images], args.rounds) for kind in kinds]
    facts = environment(BenchSettings(data=data, batch_size=len(images), rounds=args.rounds, workers=1))
    where = f"{facts['cpu']}, one CPU; {len(images)} images of each, {args.rounds} rounds; Pillow {PIL.__version__}"
    text = f"{markdown(rows)}\n\n{where}; {facts['date'][:10]}"
    print(text)
    write(args.out, "formats", text, rows, {"environment": facts})
    if args.page:
        args.page.write_text(TABLE.sub(lambda _: text + "\n", args.page.read_text(), count=1))


if __name__ == "__main__":
    main()
