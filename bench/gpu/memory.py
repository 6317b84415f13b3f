"""Device memory while 2,000 batches pass: it must come to a level and stay there.

    python3 -m gpu.memory DATA --out FOLDER

What the process takes of the GPU beyond a bare CUDA context, by the driver, DALI's own memory with it; what torch's
allocator has given out and holds; and host memory of the process with its workers.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import torch

from gpu.arguments import loader_settings, parser, say
from gpu.feeding import device, feed
from gpu.rows import Row, write_part
from gpupipe.host.usage import memory_mb, process_tree

__all__ = ["GROWTH", "main"]

PART = "memory"
MB = 1e6
GROWTH = "growth MB"
AFTER = (100, 500, 1000, 2000)  # batches


class Gauge:
    """Megabytes of each kind."""

    def __init__(self) -> None:
        self.on_gpu = device().type == "cuda"
        if self.on_gpu:
            torch.zeros(1, device="cuda")  # the context comes with it
            torch.cuda.synchronize()
        self.free = self._free()

    def _free(self) -> int:
        return int(torch.cuda.mem_get_info()[0]) if self.on_gpu else 0

    def __call__(self) -> dict[str, float]:
        """By quantity."""
        host = {"host MB": memory_mb(process.pid for process in process_tree())}
        if not self.on_gpu:
            return host
        torch.cuda.synchronize()
        return {
            "device MB": (self.free - self._free()) / MB,
            "torch allocated MB": torch.cuda.memory_allocated() / MB,
            "torch reserved MB": torch.cuda.memory_reserved() / MB,
        } | host


def growth(rows: Sequence[Row]) -> list[Row]:
    """Of each quantity, from the second reading (the first may lie before all buffers have grown) to the last."""
    grown = []
    for quantity in dict.fromkeys(row.quantity for row in rows):
        values = [row.median for row in rows if row.quantity == quantity and row.median is not None][1:]
        if len(values) > 1:
            change = values[-1] - values[0]
            grown.append(Row(PART, quantity.removesuffix(" MB"), GROWTH, change, change, change))
    return grown


def main(argv: Sequence[str] | None = None) -> int:
    """Read, write. Exit code 1 if the time was over before the third reading."""
    made = parser(__doc__)
    made.add_argument("--after", type=lambda text: tuple(map(int, text.split(","))), default=AFTER, metavar="A,B")
    made.add_argument("--limit", type=float, default=60, metavar="S", help="seconds after which it ends early")
    args = made.parse_args(argv)
    settings = loader_settings(args, "float32")
    gauge, rows, start = Gauge(), [], time.monotonic()
    with feed(settings) as batches:
        for number, (images, _) in enumerate(batches, 1):
            images.sum()  # something that uses the batch
            over = time.monotonic() - start > args.limit
            if number not in args.after and not over:
                continue
            rows += [Row(PART, f"after {number} batches", key, value, value, value) for key, value in gauge().items()]
            say(f"after {number} batches: " + ", ".join(f"{row.quantity} {row.median:,.0f}" for row in rows[-4:]))
            if over or number >= args.after[-1]:
                break
    rows += growth(rows)
    write_part(args.out, PART, rows, settings)
    return int(len({row.name for row in rows if row.quantity != GROWTH}) < min(3, len(args.after)))


if __name__ == "__main__":
    sys.exit(main())
