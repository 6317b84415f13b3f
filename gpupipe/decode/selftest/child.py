"""`python -m gpupipe.decode.selftest.child`: answer one question in this process, as one JSON line; it may crash."""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Any

__all__ = ["main"]

LENGTH = 400  # characters of an error: DALI's go on with a stack trace
LONGEST = 600  # seconds, more than those who ask have patience


def main(argv: Sequence[str] | None = None) -> int:
    """Print the answer; returns 0, or 1 where there is none."""
    parser = argparse.ArgumentParser(prog="python -m gpupipe.decode.selftest.child", description=__doc__)
    question = parser.add_mutually_exclusive_group(required=True)
    question.add_argument("--facts", action="store_true", help="what torch and DALI see")
    question.add_argument("--start-methods", action="store_true", help="which of multiprocessing's start methods work")
    question.add_argument("--decode", metavar="DEVICE", help="decode there (cpu, cuda:N), once stdin has a line")
    parser.add_argument("--crop-decode", action="store_true", help="only the crop's window, not the whole image")
    parser.add_argument("--hardware", action="store_true", help="with the GPU's JPEG engines")
    args = parser.parse_args(argv)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # a crash is expected
    if args.decode:
        _decode(args)
    from gpupipe.decode.selftest.facts import facts, start_methods

    answer: dict[str, Any] = facts() if args.facts else dict(start_methods())
    print(json.dumps(answer), flush=True)
    return 0


def _decode(args: argparse.Namespace) -> None:
    """Ends this process at once: a crash while DALI and CUDA are taken down says nothing of decoding."""
    try:
        from gpupipe.decode.selftest.plans import DecodePlan
        from gpupipe.decode.selftest.trial import Trials

        trials = Trials(args.decode)
        if not sys.stdin.readline():
            raise EOFError("the process that asked is gone")
        signal.alarm(LONGEST)  # ends even a decoder that hangs, where nobody is left to do that
        answer = trials.run(DecodePlan(args.crop_decode, args.hardware))
    except Exception as error:
        traceback.print_exc()
        message = " ".join(str(error).split())[:LENGTH]  # the last line of stderr is what is reported
        print(f"{type(error).__name__}: {message}", file=sys.stderr, flush=True)
        os._exit(1)
    print(json.dumps(answer), flush=True)
    os._exit(0)


if __name__ == "__main__":
    raise SystemExit(main())
