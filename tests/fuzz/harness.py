"""Runs one target on mutated files: what it makes of each is right, or an error that may be shown to a user."""

from __future__ import annotations

import faulthandler
import hashlib
import os
import random
import re
import resource
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch  # noqa: F401 - before its address space is measured: paths of errors import it

from fuzz.mutators import Mutator
from gpupipe.errors import ConfigError, DataError, SampleError
from gpupipe.texts import MOST_MESSAGE, printable

LONGEST = 2 * MOST_MESSAGE  # characters: of a sample's error place and reason are bounded each
SLOWEST = 10.0  # seconds for one input; so long, in a file of kilobytes, nothing takes
HANGS = 120.0  # after so many the process ends, with all stacks
MEMORY = 3 << 30  # bytes of address space that inputs may take, beside what there is at the start
KEPT = 3000  # files of a corpus
REGRESSIONS = Path(__file__).parent / "regressions"  # by target: what was a finding once


class Finding(Exception):
    """What may not happen."""


@dataclass
class Target:
    """seeds: good files, made in a folder. opened: a function that takes one in, in that folder, and gives what is to
    be told of it, or raises; Finding, where it does what it must not."""

    name: str
    seeds: Callable[[Path], Sequence[bytes]]
    opened: Callable[[Path], Callable[[bytes], Hashable]]
    mutate: Mutator
    named: str = ""  # what each message about data has to name


@dataclass
class Result:
    """inputs: how many there were. kinds: outcomes that differ."""

    inputs: int = 0
    kinds: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    findings: dict[str, str] = field(default_factory=dict)


def run(
    target: Target, scratch: Path, corpus: Path, *, seed: int, inputs: int = 1 << 60, seconds: float = 1e9
) -> Result:
    """Try mutants. What has an outcome of its own is kept in the corpus, what is a finding beside it."""
    warnings.simplefilter("ignore")
    found = corpus / "findings" / target.name
    kept = corpus / target.name
    for folder in (found, kept, scratch):
        folder.mkdir(parents=True, exist_ok=True)
    known_cases = sorted((REGRESSIONS / target.name).glob("*"))
    files = [*(path.read_bytes() for path in known_cases), *target.seeds(scratch)]
    good = len(files)
    files += [path.read_bytes() for path in sorted(kept.iterdir())]
    check, draw, result, known = target.opened(scratch), random.Random(seed), Result(), set[str]()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))
    began, end = cpu_seconds(), time.monotonic() + seconds
    with open(found / "current", "wb", buffering=0) as current:
        while result.inputs < inputs and time.monotonic() < end:
            first = result.inputs < (len(files) if inputs > len(files) else len(known_cases))
            data = files[result.inputs] if first else target.mutate(draw, _chosen(draw, files, good), files)
            current.truncate(0)
            current.seek(0)
            current.write(data)
            faulthandler.dump_traceback_later(HANGS, exit=True)
            before = time.process_time()
            kind, fault = outcome(target, check, data)
            took = time.process_time() - before
            result.inputs += 1
            result.slowest = max(result.slowest, took)
            sort = kind.split(":", 1)[0]  # of which there are few
            result.counts[sort] = result.counts.get(sort, 0) + 1
            if not fault and took > SLOWEST:
                fault = f"{took:.1f} s of CPU time"
            if fault:
                _keep(found, hashlib.sha256(_plain(fault).encode()).hexdigest()[:12], data, fault, result)
            elif kind not in known:
                known.add(kind)
                if len(files) < KEPT and not first:
                    files.append(data)
                    (kept / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    faulthandler.cancel_dump_traceback_later()
    (found / "current").unlink()
    result.kinds, result.seconds = len(known), cpu_seconds() - began
    return result


def cpu_seconds() -> float:
    """CPU time of this process and of its children that have ended: workers of loaders are such."""
    return sum(os.times()[:4])


def _chosen(draw: random.Random, files: Sequence[bytes], good: int) -> bytes:
    """One to begin with, mostly a good one: most that are kept have been refused."""
    return files[draw.randrange(good if draw.random() < 0.7 else len(files))]


def outcome(target: Target, check: Callable[[bytes], Hashable], data: bytes) -> tuple[str, str]:
    """What came of it, and what is wrong with that, or an empty string."""
    try:
        found = check(data)
        return (_plain(found) if isinstance(found, str) else f"accepted: {found}"), ""
    except Finding as error:
        return "finding", str(error)
    except (DataError, SampleError, ConfigError) as error:
        named = "" if isinstance(error, ConfigError) else target.named
        return f"refused: {type(error).__name__}: {_plain(str(error))}", unfit(str(error), named)
    except KeyboardInterrupt:
        raise
    except MemoryError:
        return "finding", f"no memory: {_where()}"
    except BaseException as error:
        return "finding", f"{type(error).__name__} {_where()}: {str(error)[:300]}"


def unfit(message: str, named: str) -> str:
    """Why an error's message may not be shown, or an empty string."""
    if len(message) > LONGEST:
        return f"a message of {len(message)} characters: {_plain(message)[:200]}"
    if named and named not in message:
        return f"a message that does not name {named}: {_plain(message)[:200]}"
    if not message.isprintable() and printable(message, LONGEST) != message:
        return f"a message that is not printable: {_plain(message)[:200]!r}"
    return ""


def _where() -> str:
    """The places of the current exception, in files of ours."""
    frames = traceback.extract_tb(sys.exception().__traceback__ if sys.version_info >= (3, 11) else sys.exc_info()[2])
    own = [frame for frame in frames if "gpupipe" in frame.filename] or frames
    return " > ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in own[-3:])


def _plain(text: str) -> str:
    """Without what differs from file to file."""
    text = re.sub(r"(?<!\w)b?(['\"]).*?\1(?!\w)", "S", text)
    return re.sub(r"\b[0-9a-fA-F]{6,}\b|\d+", "N", text)[:400]


def _keep(found: Path, name: str, data: bytes, fault: str, result: Result) -> None:
    result.findings[name] = fault
    path = found / name
    if not path.exists() or len(data) < path.stat().st_size:
        path.write_bytes(data)
        path.with_suffix(".txt").write_text(fault)
