"""What is known of all samples without reading them, and sources made of others by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from images import write_folder
from tars import jpeg, write_samples
from torch.utils.data import Subset

import gpupipe
from gpupipe.errors import DataError
from gpupipe.sources import Source, open_source


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """12 images, of which none may be read."""
    return unread(open_source(write_folder(tmp_path / "data")), monkeypatch)


def unread(source: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    def read(index: int, number: int) -> Any:
        raise AssertionError(f"sample {index} was read")

    monkeypatch.setattr(source, "_file", read)
    return source


def test_columns_are_what_each_sample_has(folder: Any) -> None:
    names = sorted(str(path.relative_to(folder.location(0).rpartition("/class_0")[0])) for path in files(folder))
    assert folder.column("key") == names
    assert folder.column("label").tolist() == [int(name[6]) for name in names]  # class_0/...
    assert folder.column("index").tolist() == list(range(12))


def files(folder: Any) -> list[Path]:
    return [path for path in Path(folder.location(0)).parent.parent.rglob("*.jpg") if path.is_file()]


def test_columns_of_a_part_are_its_own(folder: Any) -> None:
    part = open_source(Subset(Subset(folder, [7, 3, 0]), [2, 1, 1]))
    assert part.column("key") == [folder.key(index) for index in (0, 3, 3)]
    assert part.column("label").tolist() == [0, 0, 0]
    assert part.column("index").tolist() == [0, 1, 2]


def test_fields_of_keys_and_indices_by_their_names(tmp_path: Path) -> None:
    fields = {"image": gpupipe.Image(), "name": gpupipe.Key(), "number": gpupipe.Index(), "label": gpupipe.Scalar()}
    shards = open_source(write_samples(tmp_path / "0.tar", 3, 4), fields=fields)
    for source in (shards, open_source(Subset(shards, [3, 1]))):
        columns = source.fetch(np.arange(len(source)))
        for name in ("name", "number", "label"):
            assert list(source.column(name)) == list(columns[name])


def test_what_is_not_known_says_so(folder: Any) -> None:
    dataset: Source = open_source([(jpeg(0), 3), (jpeg(1), 4)])
    assert dataset.column("key") == ["0", "1"]
    for source, name, message in (
        (folder, "image", "'image' of all samples of Fold.* is known only by reading them; .*'key' and 'index'"),
        (folder, "depth", "'depth' of all samples of FolderSource.* is none of its fields, image, label;"),
        (dataset, "label", "the labels of DatasetSource.* are known only by reading every sample"),
        (open_source(Subset(dataset, [1])), "label", "the labels of DatasetSource"),
    ):
        with pytest.raises(DataError, match=message):
            source.column(name)
