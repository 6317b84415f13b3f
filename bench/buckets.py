"""Images of several sizes in batches: what is padded, and images a second, with buckets and without.

    python bench/buckets.py [DATA] --out results
    python bench/buckets.py imagenet/train --out results --size 480 --batch-size 16

First, by the images' sizes alone, what of an epoch's batches is padding: of images resized to a shorter side, as for
detection, and padded to the largest of their batch along each side, in multiples of 32; of sequences of patches of 16
pixels, 256 at most and no image enlarged, padded to the longest of their batch; and what crops of aspect-ratio buckets
cut off, where nothing is padded. Batches are random, of groups of aspect ratios as in torchvision's references
(--aspect-ratio-group-factor 3), or of `Buckets`. Then uint8 batches by gpupipe's torch engine and by torchvision v2 in
a DataLoader with persistent workers, in turn, each in a process of its own, while the others stand still: whole epochs.

DATA is an image folder, by default the made sample set. Writes results.md, buckets.csv and buckets.json.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from bucket_ways import MULTIPLE, WAYS, bucket_crop, order_of, resize
from in_turn import cell, options, parsed, settings_of, write

import gpupipe
from gpupipe.host.children import Child, ChildError
from gpupipe.order import Order, RankBatches, Shuffled, cut_by
from gpupipe.plan import cropping
from gpupipe.tools.benchmark.measurement import BenchSettings, Round
from gpupipe.tools.benchmark.report import describe, environment

__all__ = ["main"]

EPOCHS = 10  # of which the padding is the mean
PATCH, LENGTH = 16, 256


@dataclass(frozen=True)
class Padding:
    """The part of the batches' pixels, or patches, that is padding, or of the images' that is cut off."""

    what: str
    batches: str
    padded: float
    largest_batch: int


@dataclass(frozen=True)
class Row:
    """A contender: images a second over the rounds, CPU time of all processes, and pixels an image, padding counted."""

    contender: str
    img_per_s: float | None
    img_per_s_min: float | None
    img_per_s_max: float | None
    cpu_ms_per_img: float | None
    pixels_per_img: float | None
    reason: str


def padding(what: str, batches: str, order: Order, batch_size: int, sizes: np.ndarray, rounded: int = 1) -> Padding:
    """Of samples (N, 1 or 2), in batches of that size or the order's own, padded to the largest along each side."""
    real = padded = largest = 0
    cut = cut_by(order, 0)
    steps = RankBatches(len(order), order.largest if cut else batch_size, cut=cut)  # type: ignore[attr-defined]
    for epoch in range(EPOCHS):
        for step in range(len(steps.at(epoch))):
            own = sizes[order.indices(0, epoch, steps.at(epoch).positions(step))]
            real += int(own.prod(axis=1).sum())
            padded += len(own) * int((-(-own.max(axis=0) // rounded) * rounded).prod())
            largest = max(largest, len(own))
    return Padding(what, batches, 1 - real / padded, largest)


def wasted(sizes: np.ndarray, settings: BenchSettings) -> list[Padding]:
    """By every order."""
    batch, outputs = settings.batch_size, gpupipe.output_sizes(resize(settings.size), sizes)
    kinds = {"random": "random", "groups": "groups of aspect ratios", "size": "Buckets.by_size"}
    found = [
        padding("resized images", name, order_of(kind, sizes, settings), batch, outputs, MULTIPLE)
        for kind, name in kinds.items()
    ]
    tokens = (gpupipe.output_sizes(gpupipe.ResizeToSequence(PATCH, LENGTH, 1.0), sizes) // PATCH).prod(axis=1)
    budget = max(batch * int(tokens.mean()), int(tokens.max()))
    orders: dict[str, Order] = {
        "random": Shuffled(len(sizes)),
        "Buckets.by_size": gpupipe.Buckets.by_size(tokens, budget),
    }
    found += [padding("sequences", name, order, batch, tokens[:, None]) for name, order in orders.items()]
    whole = batch * LENGTH
    found.insert(3, Padding("sequences", f"all of {LENGTH}", 1 - batch * float(tokens.mean()) / whole, batch))
    return [*found, cut_off(sizes, settings)]


def cut_off(sizes: np.ndarray, settings: BenchSettings) -> Padding:
    """Of images by their buckets, of which the order's batches have one size."""
    heights, widths = sizes.astype(np.int32).T
    crops = cropping(gpupipe.Recipe((bucket_crop(settings.size),)), 0, 0, np.arange(len(sizes)), heights, widths)
    left = crops.sizes.prod(axis=1).astype(np.int64).sum() / crops.resized.astype(np.int64).prod(axis=1).sum()
    order: Any = order_of("aspect", sizes, settings)
    return Padding("crops of buckets, cut off", "Buckets.by_aspect", 1 - float(left), order.largest)


def rated(names: Sequence[str], settings: BenchSettings, logs: Path) -> list[Row]:
    """The contenders in turn."""
    logs.mkdir(parents=True, exist_ok=True)
    rounds: dict[str, list[tuple[Round, int]]] = {name: [] for name in names}
    reasons = dict.fromkeys(names, "")
    with ExitStack() as stack:
        children = {}
        for name in names:
            with (logs / f"{name.replace(' ', '-')}.log").open("ab") as log:
                children[name] = Child("bucket_ways:Host", (name, settings), log, settings.timeout)
            stack.callback(children[name].end)
        for number in range(settings.rounds + 1):
            for name, child in children.items():
                if reasons[name]:
                    continue
                print(f"round {number}: {name}" if number else f"opening {name}", file=sys.stderr)
                try:
                    if number:
                        rounds[name].append(child.ask("run", settings.seconds, extra_time=60 * settings.seconds))
                    else:
                        child.ask("open")
                except ChildError as error:
                    reasons[name] = str(error)
    return [row(name, found, reasons[name]) for name, found in rounds.items()]


def row(name: str, found: Sequence[tuple[Round, int]], reason: str) -> Row:
    """Medians; the first smallest and largest of the rates."""
    if not found:
        return Row(name, None, None, None, None, None, reason)
    rates = [one.rate for one, _ in found]
    cpu = statistics.median(one.cpu_ms for one, _ in found)
    pixels = sum(pixels for _, pixels in found) / sum(one.images for one, _ in found)
    return Row(name, statistics.median(rates), min(rates), max(rates), cpu, pixels, reason)


def markdown(lost: Sequence[Padding], measured: Sequence[Row], facts: dict[str, Any]) -> str:
    """Two tables."""
    lines = [describe(facts), "", "| | batches | padded | largest batch |", "|---|---|---|---|"]
    lines += [f"| {one.what} | {one.batches} | {one.padded:.1%} | {one.largest_batch} |" for one in lost]
    lines += ["", "| | img/s (min - max) | CPU ms | pixels an image |", "|---|---|---|---|"]
    for one in measured:
        rest = "- | -" if one.cpu_ms_per_img is None else f"{one.cpu_ms_per_img:.2f} | {one.pixels_per_img:,.0f}"
        rates = cell(one.img_per_s, one.img_per_s_min, one.img_per_s_max)
        lines.append(f"| {one.contender} | {rates} | {rest} |{f' {one.reason}' * bool(one.reason)}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Count, measure, write. Exit code 1 if one of gpupipe's could not be measured."""
    numbers = {str(number): name for number, name in enumerate(WAYS)}
    parser = options(__doc__, numbers)
    parser.add_argument("--size", type=int, default=256, metavar="PX", help="shorter side (default: 256)")
    args = parsed(parser, argv, numbers)
    if args is None:
        return 1
    settings = settings_of(args, threads=1, size=args.size, dtype="uint8")
    facts = environment(settings)
    lost = wasted(gpupipe.open_source(settings.data).image_sizes(), settings)
    measured = rated([numbers[one] for one in args.only], settings, args.out / "logs")
    content = {"environment": facts, "padding": [asdict(one) for one in lost]}
    write(args.out, "buckets", markdown(lost, measured, facts), measured, content)
    print((args.out / "results.md").read_text())
    return int(any(one.contender.startswith("gpupipe") and one.img_per_s is None for one in measured))


if __name__ == "__main__":
    sys.exit(main())
