"""What rows on resources and hostile files share: pictures in a form of data, epochs that are right or refused."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from reliability.case import Context, Failed, NoFunction, expect, expect_equal
from reliability.contenders.base import Stored
from reliability.data import gray, pictures
from reliability.forms import TABLES

__all__ = [
    "APART",
    "LOOSE",
    "SAMPLES",
    "expect_right",
    "files_of",
    "laid",
    "levels",
    "others",
    "right_or_named",
    "write",
]

LOOSE = ("folder", "manifest", "lines", "dataset")  # a file for each image
SAMPLES, APART = 36, 2.4  # levels that decoders may be off; pictures are five apart

Found = list[tuple[int, float]]


@cache
def levels() -> list[float]:
    """The gray level of each picture."""
    return [gray(image) for image in pictures(SAMPLES).values()]


def others() -> dict[int, bytes]:
    """Under each number another picture, and in another order."""
    return {SAMPLES - 1 - number: image for number, image in pictures(SAMPLES).items()}


def laid(context: Context, kinds: tuple[str, ...] = (), **values: Any) -> Stored:
    """The pictures on this disk in one of these forms that the contender reads, of all if none are named.

    The folder of what gpupipe finds out is the case's own.
    """
    os.environ["GPUPIPE_CACHE"] = str(context.folder / "found")
    known = [kind for kind in context.contender.kinds if not kinds or kind in kinds]
    if not known:
        raise NoFunction(f"it reads no {' or '.join(kinds) or 'files'}")
    (kind,) = context.in_turn(known)
    folder = context.folder / "data"
    write(context, folder, pictures(SAMPLES), kind)
    return Stored(local=folder, kind=kind, **({"workers": context.random.randint(0, 2)} | values))


def write(context: Context, folder: Path, samples: Mapping[int, bytes], kind: str) -> None:
    """As the contender has it."""
    folder.mkdir(exist_ok=True)
    context.contender.write(folder, samples, kind)


def files_of(where: Stored) -> list[Path]:
    """Those with images in them."""
    assert where.local is not None
    files = [path for path in sorted(where.local.rglob("*")) if path.is_file() and not path.name.startswith(".")]
    return [path for path in files if path.suffix not in TABLES and path.name != "index.json"]


def expect_right(found: Found, whole: bool = True, other: bool = False) -> None:
    """Each sample once with its own picture, or if `other` that of `others`; all of them where `whole`."""
    wanted = levels()
    for number, level in found:
        expect(0 <= number < SAMPLES, f"there is no sample {number}")
        fits = [wanted[number], *([wanted[SAMPLES - 1 - number]] if other else [])]
        expect(
            min(abs(level - fit) for fit in fits) <= APART,
            f"sample {number} came with gray {level:.0f}, not {' or '.join(f'{fit:.0f}' for fit in fits)}",
        )
    numbers = sorted(number for number, _ in found)
    expect_equal(numbers, list(range(SAMPLES)) if whole else sorted(set(numbers)), "the samples of an epoch")


def right_or_named(
    context: Context,
    where: Stored,
    names: tuple[str, ...] = (),
    after: Callable[[], None] | None = None,
    other: bool = False,
) -> Exception | None:
    """An epoch that is right, or right until an error that has one of the names in it.

    after: called once the first sample has come.
    """
    found: Found = []
    try:
        for one in context.contender.read(where):
            found.append(one)
            if len(found) == 1 and after is not None:
                after()
    except (NoFunction, Failed):
        raise
    except Exception as error:
        expect_right(found, whole=False, other=other)
        told = f"{type(error).__name__}: {error}"
        expect(not names or any(name in told for name in names), f"none of {names} is in: {told}")
        return error
    expect_right(found, other=other)
    return None
