"""What the rows on bad data share: an epoch of what a contender has written, and whether it is sound."""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reliability.case import Context, Failed, NoFunction, expect, expect_equal
from reliability.contenders.base import Stored
from reliability.data import gray

__all__ = ["APART", "Reading", "both", "expect_sound", "kinds", "level_of", "levels_of", "make", "read", "sound"]

APART = 2.5  # gray levels: decoders and their resizing differ by less, samples by more

Levels = Mapping[int, float]


@dataclass(frozen=True)
class Reading:
    """An epoch of a form of data: what came, how it ended if not well, and what was printed, with the error's text."""

    kind: str
    found: list[tuple[int, float]]
    error: Exception | None
    said: str


def kinds(context: Context) -> list[str]:
    """Two of the forms of data that the contender reads, or its only one: others for other seeds."""
    context.contender.kind_of("")
    return context.in_turn(context.contender.kinds, 2)


def make(context: Context, samples: Mapping[int, bytes], kind: str = "", name: str = "data") -> Path:
    """These images in a new folder, as the contender has them."""
    folder = context.folder / name / kind
    folder.mkdir(parents=True)
    context.contender.write(folder, samples, kind)
    return folder


def read(context: Context, folder: Path, kind: str = "", skip: bool = False, **values: Any) -> Reading:
    """An epoch, by one worker or, as a rule, in the process itself."""
    os.environ["GPUPIPE_CACHE"] = str(context.folder / "found")
    log = Path(os.readlink("/proc/self/fd/2"))  # the sandbox has a file there, for workers too
    begin = log.stat().st_size
    warnings.filterwarnings("default", category=UserWarning)  # what was said once is said again, as in a new process
    found: list[tuple[int, float]] = []
    error: Exception | None = None
    values = {"workers": int(context.random.random() < 0.3)} | values
    try:
        for one in context.contender.read(Stored(local=folder, kind=kind, skip=skip, **values)):
            found.append(one)
    except (NoFunction, Failed):
        raise
    except Exception as raised:
        expect("timed out" not in str(raised), f"it hung: {raised}")
        error = raised.with_traceback(None)  # whose frames would hold files and workers
    said = log.read_bytes()[begin:].decode(errors="replace")
    return Reading(kind, found, error, f"{said}\n{error}" if error else said)


def level_of(image: bytes) -> float | None:
    """What Pillow makes of it, without regard to its warnings; None if it refuses."""
    with suppress(Exception):
        return gray(image)
    return None


def levels_of(samples: Mapping[int, bytes]) -> dict[int, float]:
    """Of good images."""
    return {number: gray(image) for number, image in samples.items()}


def expect_sound(found: Reading, good: Levels, bad: Mapping[int, float | None], whole: bool = False) -> None:
    """Nothing wrong was delivered, and nothing is missing without a word.

    good:  what has to come unless there is an error.
    bad:   what may be left out, with a word, or come as the reference decoder has it; None where that refuses.
    whole: whether all of it has to come, without an error.
    """
    try:
        _expect_sound(found, good, bad, whole)
    except Failed as error:
        raise Failed(f"{found.kind}: {error}") from None


def _expect_sound(found: Reading, good: Levels, bad: Mapping[int, float | None], whole: bool) -> None:
    for number, level in found.found:
        wanted = good.get(number, bad.get(number))
        expect(wanted is not None, f"sample {number}, which is bad, came with gray {level:.0f}")
        assert wanted is not None
        expect(abs(level - wanted) <= APART, f"sample {number} came with gray {level:.1f}, not {wanted:.1f}")
    counts = Counter(number for number, _ in found.found)
    if found.error is not None:
        expect(bool(bad) and not whole, f"an error, though nothing is wrong: {_shown(found.error)}")
        repeats = counts.total() - len(counts)
        expect(repeats <= len(bad), f"{repeats} repeats of samples before the error")
        return
    expect_equal(sorted(good.keys() - counts.keys()), [], "samples that did not come")
    lost = bad.keys() - counts.keys()
    expect(counts.total() - len(counts) in (0, len(lost)), f"{counts.total() - len(counts)} repeats of samples")
    expect(not lost or bool(_WORDS.search(found.said)), f"without a word there was nothing of samples {sorted(lost)}")


_WORDS = re.compile(r"Error|bad sample")
"""Of a log or a warning about a sample."""


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def sound(
    context: Context, samples: Mapping[int, bytes], good: Levels, bad: Mapping[int, float | None], **values: Any
) -> None:
    """In all forms of data, where bad samples raise and where they are passed over."""
    for kind in kinds(context):
        folder = make(context, samples, kind)
        both(lambda skip: expect_sound(_of_policy(context, folder, kind, skip, **values), good, bad))  # noqa: B023


def _of_policy(context: Context, folder: Path, kind: str, skip: bool, **values: Any) -> Reading:
    """Where bad samples are passed over, no error may come of them."""
    found = read(context, folder, kind, skip, **values)
    expect(not (skip and found.error), f"{kind}: in spite of the policy: {found.error and _shown(found.error)}")
    return found


def both(check: Callable[[bool], None]) -> None:
    """With the policy to raise, and to pass over where there is such a function."""
    check(False)
    with suppress(NoFunction):
        check(True)


def names_of(number: int) -> Sequence[str]:
    """What a message may call a sample: its file, its key in a shard, its place in a dataset, its row in a table."""
    return f"{number:05d}", f"{number:09d}", f"[{number}]", f"row {number} "
