"""What sources of videos share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import Columns, Frames, Index, Key, Scalar, Schema, Video
from gpupipe.errors import ConfigError
from gpupipe.sources.source import Source
from gpupipe.texts import printable

__all__ = ["VideoSource", "wants_labels"]


def wants_labels(schema: Schema) -> bool:
    """Whether it has a class number. Raises ConfigError for a field that videos do not have."""
    for name, field in schema.items():
        is_class = name == "label" and type(field) is Scalar and field.source is None
        if not isinstance(field, Frames | Key | Index) and not is_class:
            raise ConfigError(
                f"fields: {name!r} is {field!r}; of videos there are gpupipe.Frames(), a 'label' that is a "
                "gpupipe.Scalar() without source, Key and Index; for others pass a dataset of your own, or join them"
            )
    return "label" in schema


class VideoSource(Source):
    """Videos by their number; `fetch` opens none, but gives what reads the frames that are drawn."""

    def __init__(self, schema: Schema) -> None:
        self.fields = schema

    def fetch(self, indices: NDArray[np.int64]) -> Columns:
        columns: Columns = {}
        for name, field in self.fields.items():
            if isinstance(field, Frames):
                columns[name] = [self._video(index, name) for index in indices.tolist()]
            elif isinstance(field, Key):
                columns[name] = list(map(self.key, indices.tolist()))
            else:
                columns[name] = indices.astype(np.int64) if isinstance(field, Index) else self.targets[indices]
        return columns

    def location(self, index: int) -> str:
        """Printable on any terminal."""
        return printable(self._where(index))

    def _frames(self, name: str) -> Frames:
        field = self.fields[name]
        assert isinstance(field, Frames)
        return field

    def _where(self, index: int) -> str:
        raise NotImplementedError

    def _video(self, index: int, name: str) -> Video | None:
        """The video for a field; None where there is none."""
        raise NotImplementedError
