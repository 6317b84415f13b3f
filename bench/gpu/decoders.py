"""Each decoder alone: images a second of decode, crop and resize to uint8 batches, through the loader.

    python3 -m gpu.decoders DATA --out FOLDER        (with bench/ on PYTHONPATH, as run.sh does it)

The hardware engines and the hybrid decoder with several values of hw_decoder_load, whole images and crops, and numbers
of DALI's threads; gpupipe's CPU kernel in worker processes, and by itself on threads. Measured in turn, each in a
process of its own; one that crashes is a row with its reason.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gpu.arguments import loader_settings, parser, say
from gpu.comparing import compare
from gpu.loaders import TUNED
from gpu.rows import Row, rates, write_part
from gpupipe.decode.selftest import DecodePlan, find_verdict

__all__ = ["CPU_THREADS", "CPU_WORKERS", "DALI", "Plan", "contenders", "main", "plans"]

PART = "decoders"
LOADS = (0.0, 0.25, 0.5, 0.65, 0.8, 1.0)
THREADS = (1, 4, 8)  # besides one for each CPU
THREAD_LOADS = (0.65, 1.0)  # DALI's default, and all that the engines can decode
DALI = "DALI"
CPU_WORKERS = "CPU kernel, worker processes"
CPU_THREADS = "CPU kernel, threads"


@dataclass(frozen=True)
class Plan:
    """One way in which DALI decodes."""

    crop: bool
    load: float
    threads: int

    @property
    def label(self) -> str:
        """For a row."""
        return f"{DALI} {'crop' if self.crop else 'full'}, hw {self.load:g}, {self.threads} threads"

    def contender(self, engine: str) -> str:
        """For the runner."""
        return f"{engine}?crop_decode={self.crop}&hw_decoder_load={self.load}&num_workers={self.threads}"


def plans(args: argparse.Namespace) -> list[Plan]:
    """All loads with a thread for each CPU, then fewer threads."""
    made = [Plan(crop, load, args.workers) for crop in args.crop_decode for load in args.loads]
    few = [n for n in args.threads if n < args.workers]
    return made + [Plan(False, load, n) for n in few for load in THREAD_LOADS if load in args.loads]


def contenders(allowed: Sequence[Plan], on_gpu: bool) -> dict[str, str]:
    """Label -> contender of the runner."""
    engine = f"gpupipe-dali-{'gpu' if on_gpu else 'cpu'}"
    return {plan.label: plan.contender(engine) for plan in allowed} | {
        CPU_WORKERS: "gpupipe-torch",
        CPU_THREADS: "gpu.contenders.crop_kernel:CropKernel",
        TUNED: "gpupipe-tuned",
    }


def ruled_out(plan: Plan) -> str | None:
    """Why the self-test does not allow a plan on this GPU: the loader would take another one in its place."""
    if not torch.cuda.is_available():
        return None
    tried = DecodePlan(plan.crop, plan.load > 0)
    trials = [trial for trial in find_verdict(torch.device("cuda", 0)).trials if trial.plan == tried]
    if any(trial.passed for trial in trials):
        return None
    return "; ".join(f"ruled out: {trial.outcome}, {trial.detail}" for trial in trials) or "ruled out: not tried"


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--loads", type=floats, default=LOADS, metavar="A,B", help="of the hardware engines")
    made.add_argument("--threads", type=ints, default=THREADS, metavar="A,B", help="of DALI, fewer than --workers")
    made.add_argument("--crop-decode", type=booleans, default=(False, True), metavar="A,B", help="0, 1 or both")
    return made.parse_args(argv)


def floats(text: str) -> tuple[float, ...]:
    """Numbers with commas."""
    return tuple(float(part) for part in text.split(",") if part)


def ints(text: str) -> tuple[int, ...]:
    """Whole numbers with commas."""
    return tuple(int(part) for part in text.split(",") if part)


def booleans(text: str) -> tuple[bool, ...]:
    """0 and 1 with commas."""
    return tuple(bool(int(part)) for part in text.split(",") if part)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, write. Exit code 1 if DALI or the CPU kernel gave no figure."""
    args = parse(argv)
    settings = loader_settings(args)
    reasons = {plan: ruled_out(plan) for plan in plans(args)}
    named = contenders([plan for plan, reason in reasons.items() if reason is None], torch.cuda.is_available())
    rows = compare(PART, named, settings)
    rows += [Row(PART, plan.label, "img/s", None, note=reason) for plan, reason in reasons.items() if reason]
    write_part(args.out, PART, rows, settings)
    say(rates(rows))
    measured = [row.name for row in rows if row.median is not None]
    return int(CPU_WORKERS not in measured or not any(name.startswith(DALI) for name in measured))


if __name__ == "__main__":
    sys.exit(main())
