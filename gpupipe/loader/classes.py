"""How many classes mixed labels have, and how many images are mixed alike, settled when a loader is built."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import ConfigError, DataError
from gpupipe.recipe import Mixing, MultiCrop, Recipe
from gpupipe.sources import Source

__all__ = ["check_labels", "with_numbers"]


def with_numbers(
    recipe: Recipe | MultiCrop | None, source: Source, batch_size: int, every_sample: bool
) -> Recipe | MultiCrop | None:
    """The recipe with a number where its mixing has `num_classes=None` or `alike=None`.

    every_sample: whether an epoch has each sample of the source; then every label that is known now is checked, else
    the labels are as they come (an order may leave out the classes that are too many).

    Raises ConfigError for labels that do not fit the number, and where none was given and the source does not know.
    """
    if not isinstance(recipe, Recipe) or recipe.mixing is None:
        return recipe
    mixing = replace(recipe.mixing, alike=recipe.mixing.alike or batch_size)
    labels = _labels(source)
    if mixing.num_classes is None:
        mixing = replace(mixing, num_classes=_count(source, labels, type(mixing).__name__))
    if labels is not None and every_sample:
        check_labels(labels, None, mixing, source)
    operations = tuple(mixing if isinstance(operation, Mixing) else operation for operation in recipe.operations)
    return replace(recipe, operations=operations)


def _labels(source: Source) -> NDArray[np.int64] | None:
    try:
        return source.targets
    except DataError:
        return None


def _count(source: Source, labels: NDArray[np.int64] | None, mixing: str) -> int:
    """One for each name and each label: a class may have no sample here, or samples no name."""
    names = len(source.classes or ())
    if labels is None and not names:
        raise ConfigError(
            f"{mixing}(num_classes=None) takes the number from the data, but the labels of {source!r} are known only "
            "by reading them all; pass num_classes, or give the dataset a list `classes` of its classes' names"
        )
    return max(names, 1, 0 if labels is None else int(labels.max(initial=-1)) + 1)


def check_labels(labels: NDArray[np.int64], indices: NDArray[np.int64] | None, mixing: Mixing, source: Source) -> None:
    """Raise ConfigError unless all labels are places in a row of `num_classes`.

    indices: the samples that they are of; None: of all, in turn.
    """
    assert mixing.num_classes is not None
    if labels.ndim != 1 or labels.dtype != np.int64:
        raise ConfigError(
            f"{type(mixing).__name__} of the recipe mixes class numbers, int64 (N,), but the labels are {labels.dtype} "
            f"{labels.shape}; give class numbers, or take a recipe without it"
        )
    outside = np.flatnonzero((labels < 0) | (labels >= mixing.num_classes))
    if not len(outside):
        return
    row = int(outside[0])
    index = row if indices is None else int(indices[row])
    name = type(mixing).__name__
    raise ConfigError(
        f"sample {index} ({source.location(index)}) has the label {int(labels[row])}, but {name} of the recipe has "
        f"num_classes={mixing.num_classes}, for labels from 0 to {mixing.num_classes - 1}; pass the dataset's number "
        "of classes, or None, which finds it where labels are known without reading"
    )
