"""What is packed into which file: known before anything is written, so that a run can go on where one has stopped."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import Frames, Image
from gpupipe.errors import ConfigError, DataError, SampleError
from gpupipe.host.files import read_regular, replacing
from gpupipe.sources import FolderSource, Source
from gpupipe.sources.indexed import IndexedSource
from gpupipe.sources.needing import library
from gpupipe.sources.packed import MOST_PLAN_BYTES, PLAN_NAME, Packing
from gpupipe.sources.stream import StreamSource
from gpupipe.sources.tar import BLOCK
from gpupipe.tools.packing.layout import Layout, laid_out
from gpupipe.tools.packing.samples import damage, fetched, sample
from gpupipe.tools.packing.settings import PackSettings

__all__ = ["Plan", "check", "kept_plan", "ordered"]

VERSION = 2
MOST_LISTED = 10
WINDOW = 16  # row groups, of some 11 MB as Hugging Face writes them
SAMPLES = 32  # of which the layout is found, and the size of the others


@dataclass(frozen=True)
class Plan:
    """How the samples in `order` become files. `cuts`: first and last + 1 position of each; `names`: below the folder.
    `classes`: the source's."""

    settings: PackSettings
    layout: Layout
    order: NDArray[np.int64]
    cuts: list[tuple[int, int]]
    names: list[str]
    classes: list[str] | None

    def part(self, number: int) -> list[int]:
        """The source's indices of the samples of a file."""
        start, end = self.cuts[number]
        part: list[int] = self.order[start:end].tolist()
        return part


def ordered(source: Source, settings: PackSettings) -> NDArray[np.int64]:
    """The samples to pack in their order. Raises DataError for damaged ones that may not be left out."""
    from gpupipe.order import BlockShuffled, Order, Shuffled

    shuffled: Order = Shuffled(len(source))
    if getattr(source, "reads_groups", False):  # of Parquet, where each image costs its row group unless that is kept
        shuffled = BlockShuffled.of_shards(source, WINDOW)
    order = shuffled.indices(settings.seed, 0, np.arange(len(source)))
    shapes = source.shapes(order)
    if shapes is None or source.fields[source.fields.images[0]].missing == "skip":
        return order
    damaged: NDArray[np.bool_] = shapes[:, 0] == 0
    if damaged.all():
        raise DataError(f"all {len(source)} images are damaged, so nothing can be packed: see `gpupipe index`")
    if damaged.any() and not settings.skip_bad:
        some = np.sort(order[damaged])[:MOST_LISTED].tolist()
        listed = "; ".join(f"{source.location(index)} ({damage(source, index)})" for index in some)
        more = " and more" if damaged.sum() > MOST_LISTED else ""
        raise DataError(
            f"{damaged.sum()} of {len(source)} images are damaged: {listed}{more}; repair or remove them, "
            "or leave them out with --skip-bad (skip_bad=True)"
        )
    return order[~damaged]


def check(source: Source, folder: Path, settings: PackSettings) -> None:
    """Raise ConfigError for what can't be packed, or so, and for a folder that is no place to write to."""
    if settings.to != "shards":
        library("pyarrow", "tables")
    if isinstance(source, StreamSource):
        raise ConfigError(f"{source!r} gives its samples in a sequence, which can't be shared out: pack what it reads")
    if source.fields.of_kind(Frames):
        raise ConfigError(f"{source!r} has videos, which are not packed: `tar` their folders, and pass the .tar files")
    following = [name for name, field in source.fields.items() if field.geometric and not isinstance(field, Image)]
    if following and settings.max_size is not None:
        raise ConfigError(f"max_size={settings.max_size} shrinks images, and {', '.join(following)} would not fit them")
    if isinstance(source, FolderSource) and folder.resolve().is_relative_to(Path(source.root).resolve()):
        raise ConfigError(f"{folder} lies in the image folder {source.root} and would become a class: write elsewhere")
    others = [name for pattern in ("shard-*.tar", "*.parquet", "data/*.parquet") for name in folder.glob(pattern)]
    if others and not (folder / PLAN_NAME).exists():
        raise ConfigError(
            f"{folder} has {others[0].name} but no {PLAN_NAME}, so not of this tool: write to a new folder"
        )


def kept_plan(folder: Path, source: Source, settings: PackSettings, order: NDArray[np.int64]) -> Plan:
    """The plan that an earlier run has stored in the folder; where there is none it is made and stored.

    Raises ConfigError where that was of another source or other settings.
    """
    path = folder / PLAN_NAME
    known = {"version": VERSION, "source": source.fingerprint, "samples": len(source), **asdict(settings)}
    if not path.exists():
        new = known | _new(source, settings, order)
        new["files"] = len(_cuts(source, settings, order, new["per_file"]))
        with replacing(path, stale=0) as file:
            file.write(f"{json.dumps(new, indent=1)}\n".encode())
    try:
        plan = json.loads(read_regular(path, MOST_PLAN_BYTES))
        changed = [(name, plan.get(name), value) for name, value in known.items() if plan.get(name) != value]
        if not changed:
            cuts = _cuts(source, settings, order, plan["per_file"])
            return Plan(settings, Layout.from_json(plan), order, cuts, Packing.of(plan).files, source.classes)
    except (OSError, ValueError, LookupError, AttributeError, TypeError) as error:
        raise ConfigError(f"{path} can't be read ({error}): write to a new folder") from error
    how = "; ".join(f"{name} {before!r}, now {value!r}" for name, before, value in changed)
    raise ConfigError(f"{folder} holds another packing ({how}): write to a new folder or remove it")


def _new(source: Source, settings: PackSettings, order: NDArray[np.int64]) -> dict[str, Any]:
    """What some samples, from everywhere, tell of all."""
    some = order[np.linspace(0, len(order) - 1, min(SAMPLES, len(order))).astype(np.int64)].tolist()
    given = {index: columns for index in some if not isinstance(columns := fetched(source, index), SampleError)}
    layout = laid_out(source.fields, settings.to, list(given.values()))
    per_file = settings.samples_per_shard
    if per_file is None and not isinstance(source, IndexedSource):
        samples = [made for index in some if (made := sample(source, layout, settings, index, given.get(index)))]
        if not samples:
            raise DataError(f"{source!r}: none of {len(some)} samples that were tried can be packed")
        size = sum(made.nbytes for made in samples) / len(samples) + BLOCK * 2 * len(layout.parts)
        per_file = max(1, int(settings.shard_size / size))
    return layout.to_json() | {"per_file": per_file}


def _cuts(
    source: Source, settings: PackSettings, order: NDArray[np.int64], per_file: int | None
) -> list[tuple[int, int]]:
    """First and last+1 position of each file."""
    if per_file is not None:
        return [(start, min(start + per_file, len(order))) for start in range(0, len(order), per_file)]
    assert isinstance(source, IndexedSource), "of others the samples of a file are counted"
    ends = np.cumsum(_expected_bytes(source, order, settings.max_size))
    cuts, start, before = [], 0, 0
    while start < len(order):
        end = max(start + 1, int(np.searchsorted(ends, before + settings.shard_size, side="right")))
        cuts.append((start, end))
        start, before = end, int(ends[end - 1])
    return cuts


def _expected_bytes(source: IndexedSource, order: NDArray[np.int64], max_size: int | None) -> NDArray[np.int64]:
    """Bytes of each sample in a shard; for images to be shrunk an estimate by their pixels."""
    sizes, shapes = source.sizes[order], source.shapes(order)
    if max_size is not None and shapes is not None:
        shorter = shapes[:, :2].min(axis=1).clip(1)
        sizes = (sizes * np.minimum(1.0, max_size / shorter) ** 2).astype(np.int64)
    headers = BLOCK * (2 * len(source.fields) - 1)  # of each member a header, and the end of its last block
    padded: NDArray[np.int64] = -(-sizes // BLOCK) * BLOCK + headers
    return padded
