"""What must hold of what a loader delivered, beside a quiet run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from soaking.lives import Life

__all__ = ["Quiet", "of_epoch", "of_life"]


@dataclass(frozen=True)
class Quiet:
    """What a quiet run gives in an epoch's steps: the order's samples, and the checksums of their rows.

    anew: with the samples that were delivered, as the CPU's decoder makes a row anew that could not be read.
    """

    planned: list[list[int]]
    rows: list[list[int]]
    anew: list[list[int]]


def of_life(life: Life, found: Mapping[str, Any], locations: list[str]) -> Iterator[str]:
    """What is wrong with it as a whole."""
    if found["left"]:
        yield f"left behind: {found['left']}"
    for index, message in found["bad"]:
        yield from _named(index, message, found["hidden"], locations)
    for epoch in found["epochs"]:
        for kind, index, message in epoch["errors"]:
            if kind == "SampleError":
                yield from _named(index, message, found["hidden"], locations)
                if life.on_error == "skip":
                    yield f"on_error='skip' and yet: {message}"
            elif not any(str(pid) in message for pid in found["killed"]):
                yield f"{kind} names none of the killed {found['killed']}: {message}"


def _named(index: int, message: str, hidden: Collection[str], locations: list[str]) -> Iterator[str]:
    """A sample that was called bad lies in what was renamed, and the message says where."""
    if not _lies_in(locations[index], hidden):
        yield f"sample {index} was called bad, and nothing of it was renamed: {message}"
    elif not any(name in message for name in hidden):
        yield f"no name of {sorted(hidden)} in: {message}"


def _lies_in(location: str, names: Collection[str]) -> bool:
    return any(name in location for name in names)


def of_epoch(
    life: Life, found: Mapping[str, Any], quiet: Quiet, bad: Collection[int], away: Collection[int]
) -> Iterator[str]:
    """bad: the samples that the loader lists. away: those that were renamed at any time of its life."""
    steps = [step for step, _, _ in found["batches"]]
    missing = sorted(set(range(len(quiet.planned))) - set(steps))
    if steps != sorted(set(steps)):
        yield f"steps came twice or not in turn: {steps}"
    if len(missing) != (0 if life.resumes else len(found["errors"])):
        yield f"steps {missing} did not come, with {len(found['errors'])} errors: {found['errors']}"
    order = [index for step in quiet.planned for index in step]
    for step, indices, checksums in found["batches"]:
        first = sum(map(len, quiet.planned[:step]))
        for row, (index, planned) in enumerate(zip(indices, quiet.planned[step], strict=True)):
            what = f"step {step}, row {row}: sample {index}"
            if index != planned and not (planned in bad and _follows(index, order, first + row, away)):
                yield f"{what} in the place of {planned}"
            right = [quiet.anew[step][row]] if planned in away else []
            right += [quiet.rows[step][row]] if index == planned else []
            if checksums[row] not in right:
                yield f"{what} has another checksum than in a quiet run"


def _follows(index: int, order: list[int], position: int, away: Collection[int]) -> bool:
    """Whether the sample is the next of the order, but for such as were renamed."""
    for other in order[position + 1 :] + order[:position]:
        if other == index or other not in away:
            return other == index
    return False
