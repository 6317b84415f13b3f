"""What there is in a data set: how large its images are, how many samples its classes have, and which are bad."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import Array, Boxes, Job
from gpupipe.decode.fetching import Fetched, fetch
from gpupipe.errors import DataError, SampleError
from gpupipe.sources import Source
from gpupipe.sources.headers import indexed_damage
from gpupipe.tools.packing.samples import damage
from gpupipe.tools.showing.marks import name_of

__all__ = ["Survey", "survey"]

LOOKED_AT = 500  # samples that are read where what is asked for is not known without: 0.2 s of files on a disk
AT_ONCE = 50
LISTED = 100  # bad samples


@dataclass
class Survey:
    """sizes:  (N, 2), heights and widths as stored of the images that are not damaged. of_all: whether these are of all
            samples, or of `looked` of them, evenly spread.
    classes: what was counted, and how often each class is there.
    bad:    reason by sample. found: how many are known to be.
    """

    sizes: NDArray[np.int32]
    of_all: bool
    looked: int = 0
    classes: dict[str, dict[str, int]] = field(default_factory=dict)
    bad: dict[int, str] = field(default_factory=dict)
    found: int = 0

    def add(self, errors: list[SampleError]) -> None:
        """Samples that were met to be bad."""
        for error in errors:
            self.found += error.index not in self.bad
            self.bad.setdefault(error.index, error.reason)


def survey(source: Source) -> Survey:
    """Of what is known without reading; where that is not all, of some samples besides."""
    shapes = source.shapes(np.arange(len(source)))
    schema = source.fields
    boxes = [labels[0] for name in schema.of_kind(Boxes) if (labels := schema.labels_of(name))]
    surveyed = Survey(np.empty((0, 2), np.int32), shapes is not None)
    labelled = isinstance(schema.get("label"), Array) and "label" not in schema.labels
    if labelled:
        try:
            surveyed.classes["samples"] = {str(name): count for name, count in source.class_counts.items()}
        except DataError:  # known only by reading, or no class numbers
            boxes.append("label")
    if shapes is None or boxes:
        fetched = _looked_at(source)
        surveyed.looked = sum(len(part.job) for part in fetched)
        _count(surveyed, source, fetched, boxes)
        if shapes is None:
            sizes = [part.columns[schema.images[0]].sizes for part in fetched]
            surveyed.sizes = np.concatenate([size[size[:, 0] > 0, :2] for size in sizes])
    if shapes is not None:
        surveyed.sizes = shapes[shapes[:, 0] > 0, :2]
        damaged = np.flatnonzero(shapes[:, 0] == 0).tolist()
        surveyed.bad |= {index: damage(source, index) for index in damaged[:LISTED]}
        surveyed.found += len(damaged)
    return surveyed


def _looked_at(source: Source) -> list[Fetched]:
    indices = np.unique(np.linspace(0, len(source) - 1, min(LOOKED_AT, len(source))).astype(np.int64))
    return [fetch(source, Job(0, 0, part, part)) for part in np.split(indices, range(AT_ONCE, len(indices), AT_ONCE))]


def _count(surveyed: Survey, source: Source, fetched: list[Fetched], labels: list[str]) -> None:
    """Labels and bad samples of those that were looked at."""
    image = source.fields.images[0]
    counts: dict[str, Counter[str]] = {name: Counter() for name in labels}
    for part in fetched:
        for row in range(len(part.job)):
            if part.columns[image].sizes[row, 0] == 0 and row not in part.failures:
                part.fail(row, *indexed_damage(part.columns[image].data[row].tobytes()))
            if row in part.failures:
                surveyed.add([part.failures[row]])
                continue
            for name, counter in counts.items():
                values = np.asarray(part.columns[name][row]).reshape(-1).tolist()
                counter.update(name_of(source, name, value) for value in values)
    surveyed.classes |= {name: dict(counter) for name, counter in counts.items() if counter}
