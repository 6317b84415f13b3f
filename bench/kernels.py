"""The kernels by themselves: `augment` and `finish` on batches, beside other libraries that do the same work.

    python bench/kernels.py [--batch-size 256] [--size 224] [--rounds 5] [--only gpupipe,kornia] [--out FOLDER]

On a GPU: microseconds of each call by CUDA events, warm, with the queue full, so of the GPU alone as long as the call
waits for nothing; and the bytes that must move (each input read once, each output written once) per second, beside a
device-to-device copy of as many bytes. `host us` is how long a call keeps the host. On the CPU: the same calls on CPU
tensors, smaller batches, images a second.

All calls take uint8 batches that lie on the device, from a ring of several, so that none is in the cache. Output is
looked at first: that of gpupipe, and of contenders which do the same arithmetic with the same draws, must be that of
gpupipe's definitions in plain torch, within a level in nearly all values; those that draw for themselves are asked for
shape, dtype and range. Then all contenders take turns, a number of calls each, `--rounds` times. A contender that lacks
a function, a library or memory is a row with its reason.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))

from augmenters import CONTENDERS, load
from augmenters.work import MEAN, STD, Contender, Finish, Lacking, Work, program, works

from gpupipe.host.machine import machine
from gpupipe.kernels import augment_reference, finish_reference

__all__ = ["main"]

RING = 4  # batches in turn: four of 256 x 224 x 224 are 154 MB, more than a GPU's cache holds
COPY = "copy"
MOST_CALLS = 100  # in a round: a GPU's queue takes about a thousand launches before the host has to wait
CYCLES = 2e9  # of a GPU in a second, roughly
OURS = "gpupipe"
AIMS = {"copy": " (aim: 80%)", "finish": " (aim: below 4)", "others": " (aim: 10)"}
APART = {"alone": 1e-3, "whole": 2e-2}  # the share of values that may differ by more than a level


@dataclass(frozen=True)
class Row:
    """What one contender took for one work: microseconds a call over the rounds, or why it was not measured."""

    work: str
    contender: str
    median_us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    host_us: float | None = None
    images_per_s: float | None = None
    gb_per_s: float | None = None
    of_copy: float | None = None
    reason: str = ""


@dataclass
class Entrant:
    """A contender's call for a work, how many batches it makes ahead, and how many calls are a round."""

    name: str
    call: Callable[[], torch.Tensor]
    ahead: int = 0
    count: int = 1
    host_s: float = 0.0  # a call keeps the host for so long


def batches(count: int, size: int, device: torch.device) -> list[torch.Tensor]:
    """The ring: smooth pictures with noise, uint8 (N, size, size, 3)."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for _ in range(RING):
        coarse = torch.rand(count, 3, 8, 8, generator=generator)
        smooth = torch.nn.functional.interpolate(coarse, (size, size), mode="bicubic").permute(0, 2, 3, 1)
        noise = torch.randn(count, size, size, 1, generator=generator)
        made.append((255 * smooth + 12 * noise).clamp(0, 255).to(torch.uint8).contiguous().to(device))
    return made


def copier(work: Work, ring: Sequence[torch.Tensor]) -> Callable[[], torch.Tensor]:
    """Copies half of the bytes that the work moves, as each is read and written."""
    half = work.moved(len(ring[0]), ring[0].shape[1]) // 2
    pairs = cycle([tuple(torch.zeros(half, dtype=torch.uint8, device=ring[0].device) for _ in "ab") for _ in range(2)])

    def call() -> torch.Tensor:
        source, target = next(pairs)
        return target.copy_(source)

    return call


def expected(work: Work, images: torch.Tensor) -> torch.Tensor:
    """By the definitions: uint8 (N, height, width, 3), or finished."""
    size = images.shape[1]
    made = images if work.draws is None else augment_reference(images, *program(work.draws, size))
    form = work.finish
    if form is None:
        return made
    return finish_reference(made, MEAN, STD, form.dtype, form.channels_last, erase=form.erase, mix=form.mix)


def problem(work: Work, made: torch.Tensor, truth: torch.Tensor, same: bool) -> str | None:
    """What is wrong with a contender's output; None if nothing is."""
    form = work.finish
    height = truth.shape[2]
    shapes = [truth.shape] if form else [truth.shape, (len(truth), 3, height, height)]
    if made.shape not in shapes:
        return f"made {tuple(made.shape)}, not {tuple(truth.shape)}"
    dtypes = (form.dtype,) if form else (torch.uint8,) if same else (torch.uint8, torch.float32)
    if made.dtype not in dtypes:
        return f"made {made.dtype}, not {dtypes[0]}"
    wanted = torch.channels_last if form and form.channels_last else torch.contiguous_format
    if form and not made.is_contiguous(memory_format=wanted):
        return f"made strides {made.stride()}, which are not those of {wanted}"
    if same and not (form and form.erase and form.erase.value is None):
        return different(work, made if made.shape == truth.shape else made.permute(0, 2, 3, 1), truth)
    low, high = value_range(made, form)
    if not low <= float(made.min()) < float(made.max()) <= high:
        return f"values lie in [{float(made.min()):.2f}, {float(made.max()):.2f}], not in [{low:.2f}, {high:.2f}]"
    return None


def value_range(made: torch.Tensor, form: Finish | None) -> tuple[float, float]:
    """What the values lie in: levels, numbers from 0 to 1, or normalized ones with some room for rounding and noise."""
    if form is None:
        return (0.0, 255.0) if made.dtype == torch.uint8 else (-1e-3, 1 + 1e-3)
    noisy = 10.0 if form.erase and form.erase.value is None else 0.02
    return (
        min(-m / s for m, s in zip(MEAN, STD, strict=True)) - noisy,
        max((1 - m) / s for m, s in zip(MEAN, STD, strict=True)) + noisy,
    )


def different(work: Work, made: torch.Tensor, truth: torch.Tensor) -> str | None:
    """Whether more values than allowed lie further apart than a level, or than rounding where nothing is augmented."""
    form = work.finish
    level = 1.0 if form is None else 1 / 255 / min(STD) + (2**-6 if form.dtype == torch.bfloat16 else 1e-4)
    if work.draws is None:
        level = 2**-6 if form and form.dtype == torch.bfloat16 else 1e-5
    apart = float(((made.float() - truth.float()).abs() > level).float().mean())
    allowed = APART["alone" if work.draws is None or len(work.draws[0]) == 1 else "whole"]
    return f"{apart:.2%} of the values are not those of the definition" if apart > allowed else None


def enter(
    work: Work, loaded: dict[str, Contender], ring: Sequence[torch.Tensor], target_s: float
) -> tuple[list[Entrant], list[Row]]:
    """Those that do the work, each warm and with the calls of a round counted; rows with the others' reasons."""
    entrants, failed = [Entrant(COPY, copier(work, ring))], []
    truth = expected(work, ring[0])
    for name, contender in loaded.items():
        try:
            call = contender.open(work, ring)
            wrong = problem(work, call(), truth, contender.same)
            if wrong is None:
                entrants.append(Entrant(name, call, contender.ahead))
        except Lacking as error:
            wrong = str(error)
        except Exception as error:  # a library that fails takes its row, not the others'
            wrong = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        if wrong is not None:
            failed.append(Row(work.name, name, reason=wrong))
    for entrant in entrants:
        elapsed(entrant, 2)
        seconds, entrant.host_s = elapsed(entrant, 2)
        entrant.count = max(1, min(MOST_CALLS, round(target_s / max(seconds, 1e-6))))
    return entrants, failed


def elapsed(entrant: Entrant, count: int) -> tuple[float, float]:
    """Seconds a call of `count`, warm: by CUDA events where there is a GPU; and until the host could go on.

    The GPU first waits for as long as the host will need to fill its queue, so that the events time the GPU alone,
    also where launching takes longer than the work. What a call itself waits for counts.
    """
    kept: deque[torch.Tensor] = deque(maxlen=RING)  # so that outputs too take turns in memory
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in "ab")
    for _ in range(entrant.ahead):
        entrant.call()  # what lies ready took no time; from here on each call waits for a batch to be made
    if cuda:
        torch.cuda._sleep(int(CYCLES * min(1.5 * entrant.host_s * count, 1.0)))
        start.record()
    begin = time.perf_counter()
    for _ in range(count):
        kept.append(entrant.call())
    host = time.perf_counter() - begin
    if not cuda:
        return host / count, host / count
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3 / count, host / count


def measure(work: Work, entrants: Sequence[Entrant], rounds: int, images: int, size: int) -> list[Row]:
    """A row for each, after `rounds` in turn."""
    times: dict[str, list[tuple[float, float]]] = {entrant.name: [] for entrant in entrants}
    for _ in range(rounds):
        for entrant in entrants:
            times[entrant.name].append(elapsed(entrant, entrant.count))
    copy = statistics.median(seconds for seconds, _ in times[COPY])
    rows = []
    for name, measured in times.items():
        seconds = [one for one, _ in measured]
        median = statistics.median(seconds)
        rows.append(
            Row(
                work.name,
                name,
                median_us=1e6 * median,
                low_us=1e6 * min(seconds),
                high_us=1e6 * max(seconds),
                host_us=1e6 * statistics.median(host for _, host in measured),
                images_per_s=images / median,
                gb_per_s=work.moved(images, size) / median / 1e9,
                of_copy=copy / median,
            )
        )
    return rows


def targets(rows: Sequence[Row], loaded: dict[str, Contender]) -> list[str]:
    """What gpupipe's figures come to, on a GPU beside what was aimed at."""
    aims = AIMS if torch.cuda.is_available() else dict.fromkeys(AIMS, "")
    median = {(row.work, row.contender): row.median_us for row in rows if row.median_us}
    remarks = []
    for work in [work for work, name in median if name == OURS]:
        own, plain = median[work, OURS], median.get((work.replace("whole", "finish"), OURS))
        if work.startswith("finish"):
            remarks.append(f"{work}: {median[work, COPY] / own:.0%} of the speed of a copy{aims['copy']}")
        elif work.startswith("whole") and plain:
            remarks.append(f"{work}: {own / plain:.2f} times the finish alone{aims['finish']}")
        for per_image in (True, False):
            others = [name for name, one in loaded.items() if name != OURS and one.per_image == per_image]
            times = {name: median[work, name] for name in others if (work, name) in median}
            if times:
                fastest = min(times, key=lambda name: times[name])
                what = "that draws for each image" if per_image else "that draws for the batch"
                aim = aims["others"] if work.startswith("whole") else ""
                remarks.append(f"{work}: {times[fastest] / own:.2f} times as fast as the best {what}, {fastest}{aim}")
    return remarks


def line(row: Row) -> str:
    """A row of the table."""
    if row.median_us is None or row.low_us is None or row.high_us is None or row.host_us is None:
        return f"  {row.contender:24} {row.reason}"
    return (
        f"  {row.contender:24} {row.median_us:10,.0f} {row.low_us:10,.0f} {row.high_us:10,.0f} {row.host_us:10,.0f} "
        f"{row.images_per_s:12,.0f} {row.gb_per_s:8,.1f} {row.of_copy:7.1%}"
    )


def write(folder: Path, rows: Sequence[Row], remarks: Sequence[str], facts: dict[str, Any]) -> None:
    """kernels.csv and kernels.json, again after every work, so that a run that is ended leaves what it has."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "kernels.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(asdict(rows[0]))
        table.writerows(asdict(row).values() for row in rows)
    content = {"environment": facts, "remarks": remarks, "rows": [asdict(row) for row in rows]}
    (folder / "kernels.json").write_text(json.dumps(content, indent=1) + "\n")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, metavar="N", help="default: 256 on a GPU, 32 on the CPU")
    parser.add_argument("--size", type=int, default=224, metavar="PX", help="side of the images")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--milliseconds", type=float, default=30, metavar="MS", help="of one contender in a round")
    parser.add_argument("--only", type=names, metavar="A,B", help=f"of {', '.join(CONTENDERS)}")
    parser.add_argument(
        "--works", type=names, default=("",), metavar="A,B", help="those with one of these in their names"
    )
    parser.add_argument("--limit", type=float, metavar="S", help="seconds after which no other work is begun")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for kernels.csv and kernels.json")
    return parser.parse_args(argv)


def names(text: str) -> tuple[str, ...]:
    """The parts of a list with commas."""
    return tuple(text.split(","))


def contenders(wanted: Sequence[str]) -> dict[str, Contender]:
    """Those whose libraries are there; the others are named."""
    loaded = {}
    for name in wanted:
        try:
            loaded[name] = load(name)
        except ImportError as error:
            print(f"{name} is not measured: {error}")
    return loaded


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write. Exit code 1 if gpupipe could not be measured somewhere."""
    args = parse(argv)
    begin = time.monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    count = args.batch_size or (256 if device.type == "cuda" else 32)
    loaded = contenders(args.only or list(CONTENDERS))
    ring, rows = batches(count, args.size, device), []
    facts = machine() | {"settings": {"batch_size": count, "size": args.size, "rounds": args.rounds}}
    columns = ("us", "min", "max", "host us")
    print(f"  {'':24} {' '.join(f'{name:>10}' for name in columns)} {'img/s':>12} {'GB/s':>8} {'of copy':>7}")
    for work in works(count, args.size):
        if not any(text in work.name for text in args.works):
            continue
        if args.limit and time.monotonic() - begin > args.limit:
            print(f"{work.name}: left out, as {args.limit:.0f} s are over")
            continue
        entrants, failed = enter(work, loaded, ring, args.milliseconds / 1e3)
        measured = measure(work, entrants, args.rounds, count, args.size) + failed
        rows += measured
        print(work.name, *map(line, measured), sep="\n", flush=True)
        if args.out:
            write(args.out, rows, targets(rows, loaded), facts)
    print(*targets(rows, loaded), sep="\n")
    return int(any(row.contender == OURS and row.reason for row in rows))


if __name__ == "__main__":
    sys.exit(main())
