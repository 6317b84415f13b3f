"""gpupipe beside the other ways to feed a GPU, on the same images, in turn, with the same output.

    python3 -m gpu.loaders DATA --out FOLDER
    python3 -m gpu.loaders DATA --out FOLDER --dtype float32 --part loaders-float32
    python3 -m gpu.loaders DATA --out FOLDER --max-size 400 --only "gpupipe, tuned;gpupipe, not" --part loaders-400

Before anything is timed the runner looks at each one's batches: shape, dtype, range, every label of the first pass, and
whether white noise comes out filtered. Native DALI takes part with several values of hw_decoder_load: the best counts.
With --max-size the images are also packed as `gpupipe pack` does it, and measured again from the shards.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from gpu.arguments import loader_settings, parser, say
from gpu.comparing import compare
from gpu.rows import rates, write_part
from gpupipe.sources import open_source
from gpupipe.tools.benchmark.measurement import DTYPES
from gpupipe.tools.pack import PackSettings, pack

__all__ = [
    "NATIVE",
    "PACKED",
    "SPDL",
    "TORCH",
    "TORCHVISION_GPU",
    "TORCHVISION_V2",
    "TUNED",
    "UNTUNED",
    "contenders",
    "main",
]

TUNED, UNTUNED, PACKED = "gpupipe, tuned", "gpupipe, not tuned", ", packed"
NATIVE = "native DALI"
TORCHVISION_V2 = "torch DataLoader, torchvision v2"
TORCH = "gpupipe, torch engine"
TORCHVISION_GPU = "torchvision GPU decode"
SPDL = "SPDL with nvJPEG"
CROP_LOADS, FULL_LOADS = (0.0, 0.5, 0.65, 0.8, 1.0), (0.65, 1.0)


def contenders(on_gpu: bool) -> dict[str, str]:
    """Label -> contender of the runner; on a CPU what can be tried there, under the same labels."""
    where = "gpu" if on_gpu else "cpu"
    device = "cuda" if on_gpu else "cpu"
    return {
        TUNED: "gpupipe-tuned",
        UNTUNED: f"gpupipe-dali-{where}",
        **native(on_gpu),
        TORCHVISION_V2: "torchvision-v2",
        TORCH: "gpupipe-torch",
        TORCHVISION_GPU: f"gpu.contenders.torchvision_gpu:TorchvisionGpu?device={device}",
        SPDL: f"gpu.contenders.spdl_nvjpeg:SpdlNvjpeg?device={device}",
    }


def native(on_gpu: bool) -> dict[str, str]:
    """Native DALI: image_random_crop, and whole images with random_resized_crop."""
    if not on_gpu:
        return {f"{NATIVE}, crop": "dali-native-cpu", f"{NATIVE}, full": "dali-native-cpu?crop_decode=False"}
    plans = [(True, load) for load in CROP_LOADS] + [(False, load) for load in FULL_LOADS]
    return {
        f"{NATIVE}, {'crop' if crop else 'full'}, hw {load:g}": (
            f"dali-native-gpu?crop_decode={crop}&hw_decoder_load={load}"
        )
        for crop, load in plans
    }


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--part", default="loaders", help="name of the JSON file")
    made.add_argument("--dtype", choices=DTYPES, default="uint8", help="of the batches")
    made.add_argument("--only", type=lambda text: tuple(text.split(";")), metavar="A;B", help="labels that start so")
    made.add_argument("--max-size", type=int, metavar="PX", help="also on the images packed at this size")
    return made.parse_args(argv)


def shards(data: str, folder: Path, max_size: int) -> str:
    """The images, shrunk and packed."""
    packed = pack(open_source(data), folder / "packed", PackSettings(max_size=max_size))
    say(f"packed at {max_size} px: {int(packed.source.sizes.sum()):,} bytes in {len(packed.source)} samples")
    return str(folder / "packed" / "*.tar")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, write. Exit code 1 if a loader gave no figure; of native DALI one setting must give one."""
    args = parse(argv)
    settings = loader_settings(args, args.dtype)
    named = contenders(torch.cuda.is_available())
    if args.only:
        named = {label: name for label, name in named.items() if label.startswith(args.only)}
    rows = compare(args.part, named, settings)
    if args.max_size:
        with tempfile.TemporaryDirectory(prefix="gpupipe-") as folder:
            packed = replace(settings, data=shards(settings.data, Path(folder), args.max_size))
            rows += compare(args.part, {label + PACKED: name for label, name in named.items()}, packed)
    write_part(args.out, args.part, rows, settings)
    say(rates(rows))
    measured = {kind(row.name) for row in rows if row.median is not None}
    return int(any(kind(row.name) not in measured for row in rows))


def kind(name: str) -> str:
    """A loader, whatever its settings."""
    return NATIVE if name.startswith(NATIVE) else name


if __name__ == "__main__":
    sys.exit(main())
