"""Try this machine's decode plans now, and write what they gave.

python3 -m gpu.selftest --out FOLDER
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import torch

from gpupipe.decode.selftest import CPU_PLANS, PlanTrial, new_verdict, try_plans
from gpupipe.host.machine import decoder_facts


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line for each plan; returns 0 where one of them passed, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="cpu or cuda:N (default: the first GPU, else the CPU)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write selftest.json there")
    args = parser.parse_args(argv)
    device = torch.device(args.device or ("cuda:0" if torch.cuda.is_available() else "cpu"))
    trials = _trials(device)
    for trial in trials:
        print(f"{trial.plan.name}: {trial.outcome} in {trial.seconds:.1f} s: {trial.detail}", flush=True)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        found = decoder_facts(device) | {"trials": [dataclasses.asdict(trial) for trial in trials]}
        (args.out / "selftest.json").write_text(json.dumps(found, indent=1) + "\n")
    return 0 if any(trial.passed for trial in trials) else 1


def _trials(device: torch.device) -> tuple[PlanTrial, ...]:
    """On a GPU those of a new verdict, which later loaders take."""
    return new_verdict(device).trials if device.type == "cuda" else tuple(try_plans("cpu", CPU_PLANS))


if __name__ == "__main__":
    raise SystemExit(main())
