"""Runs all fuzzers, or some, for so many minutes; see README.md beside it."""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent)]

SLICE = 120.0  # seconds of a target, then the next one has its turn
NEEDED = ("h5py", "lmdb", "pyarrow", "torchvision")
PATIENCE = 900.0  # seconds more, after which a process is ended
TOLD = 30  # last lines of a process that has died
SHOWN = 300  # characters of a finding

from fuzz import kernels  # noqa: E402
from fuzz.harness import Target, run  # noqa: E402
from gpupipe.kernels import native  # noqa: E402

Outcome = dict[str, Any]
"""Of a target: inputs, seconds of CPU time, counts, findings."""

NAMES = {
    "jpegs": ("jpeg",),
    "images": ("headers", "images", "masks"),
    "archives": ("tar", "shard", "zip"),
    "members": ("members",),
    "items": ("items",),
    "loaders": ("loaders",),
    "walks": ("walks",),
    "dataloaders": ("dataloaders",),
    "stores": ("lmdb", "npy", "npz", "hdf5"),
    "tables": ("parquet", "lists"),
    "kept": ("index", "cache", "state"),
    "responses": ("responses",),
}
"""The targets, by their module: which is imported, with all that it needs, by the process that runs them."""

TARGETS = [name for names in NAMES.values() for name in names]


def opened(name: str) -> Target:
    module = next(module for module, names in NAMES.items() if name in names)
    return next(one for one in import_module(f"fuzz.{module}").TARGETS if one.name == name)  # type: ignore[no-any-return]


def child(names: Sequence[str], folder: Path, seed: int, seconds: float, inputs: int) -> dict[str, Outcome]:
    """Some targets, in a process of their own."""
    found = {}
    for name in names:
        with tempfile.TemporaryDirectory(prefix=f"fuzz-{name}-") as scratch:
            os.environ["GPUPIPE_CACHE"] = f"{scratch}/kept"
            result = run(opened(name), Path(scratch), folder, seed=seed, seconds=seconds, inputs=inputs)
            found[name] = asdict(result)
    return found


def repeat(name: str, file: Path) -> None:
    """What one input does, told with a traceback."""
    target = opened(name)
    with tempfile.TemporaryDirectory() as scratch:
        target.seeds(Path(scratch))
        print("accepted:", target.opened(Path(scratch))(file.read_bytes()))


def one_turn(names: Sequence[str], folder: Path, seed: int, seconds: float, inputs: int) -> dict[str, Outcome]:
    """Of targets, by a process; where it died that is a finding."""
    if names[0] in kernels.PROGRAMS:
        return {name: kernels.turn(name, folder, seed, seconds) for name in names}
    command = [sys.executable, str(HERE), "--child", ",".join(names), "--folder", str(folder), "--seed", str(seed)]
    command += ["--seconds", str(seconds), "--inputs", str(inputs)]
    limit = seconds * len(names) + PATIENCE
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=limit, check=False)
        if done.returncode == 0:
            return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]
        said = f"died, status {done.returncode}: " + "\n".join(done.stderr.splitlines()[-TOLD:])
    except subprocess.TimeoutExpired:
        said = "it hangs"
    inputs_at = [path for name in names if (path := folder / "findings" / name / "current").exists()]
    current = max(inputs_at, key=lambda path: path.stat().st_mtime, default=folder / "findings" / "died")
    data = current.read_bytes() if current.exists() else b""
    kept = current.with_name(f"died-{hashlib.sha256(data).hexdigest()[:12]}")
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(data)
    kept.with_suffix(".txt").write_text(said)
    return {current.parent.name: {"inputs": 0, "seconds": 0.0, "findings": {kept.name: said}}}


def turns(names: Sequence[str], minutes: float, seed: int) -> Iterator[tuple[list[str], int, float]]:
    """(target, seed, seconds) for as long as there is time: each in its turn."""
    end, number = time.monotonic() + 60 * minutes, 0
    each = min(SLICE, max(5.0, 60 * minutes / len(names)))
    while time.monotonic() < end:
        for name in names:
            if time.monotonic() < end:
                yield [name], seed + number, each
        number += 1


class Ran:
    """Inputs, seconds of CPU time and findings of each target, since its folder was made."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "ran.json"
        self.all: dict[str, dict[str, float]] = json.loads(self._path.read_text()) if self._path.exists() else {}
        self.found = 0

    def add(self, name: str, result: Outcome) -> None:
        known = self.all.setdefault(name, {"inputs": 0, "seconds": 0.0})
        for count, number in {
            "inputs": result["inputs"],
            "seconds": result["seconds"],
            **result.get("counts", {}),
        }.items():
            known[count] = round(known.get(count, 0) + number, 1)
        self._path.write_text(json.dumps(self.all, indent=1))
        for finding, said in result["findings"].items():
            self.found += 1
            print(f"FOUND {name}/{finding}: {said[:SHOWN]}", flush=True)
        counts = ", ".join(f"{count} {number:,}" for count, number in result.get("counts", {}).items())
        print(f"{name:10} {result['inputs']:>9,} inputs in {result['seconds']:6.1f} s of CPU; {counts}", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python tests/fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="for all of them together")
    parser.add_argument("--inputs", type=int, default=1 << 60, help="at most so many of a Python target in a turn")
    parser.add_argument("--folder", type=Path, help="keeps corpora, findings and counts from run to run")
    parser.add_argument("--targets", default=",".join([*TARGETS, *kernels.PROGRAMS]), help="some of %(default)s")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of random numbers")
    parser.add_argument("--once", action="store_true", help="one turn of each, of --inputs, in one process")
    parser.add_argument("--repeat", nargs=2, metavar=("TARGET", "FILE"), help="run one input, and say what it does")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    given = arguments()
    if problem := native.problem():  # most targets are of the C++ kernels, or fall back to others without them
        raise SystemExit(problem)
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise SystemExit(f"{', '.join(missing)} not installed: pip install -e '.[test]'")
    if given.repeat:
        repeat(given.repeat[0], Path(given.repeat[1]))
        return 0
    if given.child:
        made = child(given.child.split(","), given.folder, given.seed, given.seconds, given.inputs)
        print("\n" + json.dumps(made))
        return 0
    names = given.targets.split(",")
    if unknown := set(names) - {*TARGETS, *kernels.PROGRAMS}:
        raise SystemExit(
            f"no such target: {', '.join(sorted(unknown))}; there are {', '.join([*TARGETS, *kernels.PROGRAMS])}"
        )
    with tempfile.TemporaryDirectory() as temporary:
        folder = (given.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        ran = Ran(folder)
        if given.once:
            together = [[name for name in names if name in TARGETS], *([name] for name in names if name not in TARGETS)]
            todo: Iterable[tuple[list[str], int, float]] = [(some, given.seed, 60.0) for some in together if some]
        else:
            todo = turns(names, given.minutes, given.seed)
        for together, seed, seconds in todo:
            for name, result in one_turn(together, folder, seed, seconds, given.inputs).items():
                ran.add(name, result)
        print("nothing found" if not ran.found else f"{ran.found} findings, in {folder}/findings")
        return bool(ran.found)


if __name__ == "__main__":
    sys.exit(main())
