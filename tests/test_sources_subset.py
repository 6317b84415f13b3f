"""Parts of a source, as torch's utilities for map-style datasets cut and join them, given to a Loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from images import write_folder
from tars import jpeg
from torch.utils.data import ConcatDataset, DataLoader, Subset, random_split

import gpupipe
from gpupipe.errors import DataError, SampleError
from gpupipe.host import whereabouts
from gpupipe.sources import DatasetSource, SubsetSource, open_source

RECIPE = gpupipe.imagenet_eval(16, resize=16)


@pytest.fixture
def whole(tmp_path: Path) -> Any:
    return open_source(write_folder(tmp_path / "data"))


def loaded(data: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    options = {"engine": "torch", "num_workers": 0, "device": "cpu"} | options
    with gpupipe.Loader(data, RECIPE, 4, **options) as loader:
        batches = [(images.clone(), labels.clone()) for images, labels in loader]
    return torch.cat([images for images, _ in batches]), torch.cat([labels for _, labels in batches])


def test_what_is_known_stays_known(whole: Any) -> None:
    picked = [5, 0, -1, 7]
    part, indices = open_source(Subset(whole, picked)), np.array([5, 0, 11, 7])
    assert isinstance(part, SubsetSource)
    assert part.targets.tolist() == whole.targets[indices].tolist()
    assert not part.targets.flags.writeable
    assert (part.classes, part.class_to_idx) == (whole.classes, whole.class_to_idx)
    assert [part.key(index) for index in range(4)] == [whole.key(index) for index in indices]
    assert [part.location(index) for index in range(4)] == [whole.location(index) for index in indices]
    assert part.shapes(np.arange(4)).tolist() == whole.shapes(indices).tolist()


def test_nothing_is_read_for_it(whole: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(index: int, number: int) -> Any:
        raise AssertionError(f"sample {index} was read")

    monkeypatch.setattr(whole, "_file", read)
    assert open_source(Subset(whole, [1, 2])).shapes(np.arange(2))[:, 0].tolist() == [200, 97]


def test_the_fingerprint_is_that_of_the_picked_samples(whole: Any) -> None:
    def fingerprint(*indices: int) -> str:
        return open_source(Subset(whole, indices)).fingerprint

    assert fingerprint(1, 2) == fingerprint(1, -10) == open_source(Subset(whole, [1, 2])).fingerprint
    prints = {whole.fingerprint, fingerprint(1, 2), fingerprint(2, 1), fingerprint(*range(12))}
    assert len(prints) == 4


def test_what_is_no_plain_subset_of_a_source_stays_a_dataset(whole: Any) -> None:
    class Relabelled(Subset):  # type: ignore[type-arg]
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index)[0], 9

        def __getitems__(self, indices: list[int]) -> Any:
            return [self[index] for index in indices]

    items = [(jpeg(number), number) for number in range(4)]
    for data in (Subset(items, [0, 1]), Subset(Subset(items, [0, 1]), [1]), Relabelled(whole, [0, 1])):
        assert isinstance(open_source(data), DatasetSource)
    assert loaded(Relabelled(whole, [0, 1]))[1].tolist() == [9, 9]


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([0, 12], "sample 12 is not in a source of 12 samples"),
        ([-13], "sample -13 is not in a source of 12"),
        ([0.5], "its indices are float64"),
        ([], "one or more integers"),
        (np.array([2**64 - 1], np.uint64), "sample 18446744073709551615 is not in a source of 12"),
        (np.array([0, 12], np.uint8), "sample 12 is not in a source of 12"),
        (np.array([-13], np.int8), "sample -13 is not in a source of 12"),
        ([[0, 1]], r"of shape \(1, 2\)"),
    ],
)
def test_indices_that_do_not_fit_are_refused(whole: Any, indices: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_source(Subset(whole, indices))


@pytest.mark.parametrize("kind", ["uint8", "int8", "uint16", "int32", "uint64"])
def test_integers_of_any_kind_pick_from_a_source_of_more_samples_than_they_count(kind: str) -> None:
    whole = open_source([(jpeg(0), number) for number in range(300)])
    picked = np.array([7, 0, 100], kind)
    for data in (
        whole.select(picked),
        open_source(Subset(whole, picked)),
        open_source(Subset(whole, torch.tensor(picked))),
    ):
        assert data.fetch(np.arange(3))["label"].tolist() == [7, 0, 100]
    if kind.startswith("int"):
        assert whole.select(np.array([-1, -100], kind)).fetch(np.arange(2))["label"].tolist() == [299, 200]
    assert gpupipe.Subset(picked).indices(0, 0, np.arange(3)).tolist() == [7, 0, 100]


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"engine": "dali", "num_workers": 1}], ids=str)
def test_a_random_split_loads_what_it_picked(whole: Any, options: dict[str, Any]) -> None:
    images, labels = loaded(whole, **options)
    with gpupipe.Loader(whole, RECIPE, 4, engine="torch", num_workers=0) as loader:
        train, val = random_split(loader.dataset, (0.75, 0.25), torch.Generator().manual_seed(0))
    assert len(train) == 9
    for part in (train, val):
        assert isinstance(open_source(part), SubsetSource)
        got = loaded(part, **options)
        assert torch.equal(got[0], images[part.indices])
        assert torch.equal(got[1], labels[part.indices])


def test_joined_sources_load_one_after_the_other(whole: Any) -> None:
    both = ConcatDataset([Subset(whole, [3, 1]), whole])
    images, labels = loaded(whole)
    got = loaded(both)
    assert torch.equal(got[0], torch.cat([images[[3, 1]], images]))
    assert torch.equal(got[1], torch.cat([labels[[3, 1]], labels]))


def test_a_data_loader_of_torch_reads_a_source(whole: Any) -> None:
    batches = list(DataLoader(whole, batch_size=5, collate_fn=list))
    items = [item for batch in batches for item in batch]
    assert [label for _, label in items] == whole.targets.tolist()
    assert all(np.array_equal(data, whole[index][0]) for index, (data, _) in enumerate(items))


def test_a_bad_sample_has_its_index_in_the_part_and_its_file_by_name(whole: Any) -> None:
    Path(whole.location(7)).unlink()
    part = open_source(Subset(whole, [0, 1, 7, 2]))
    for look in (lambda index: part.fetch(np.array([0, index])), part.__getitem__):
        with pytest.raises(SampleError, match=r"sample 2 \(.*class_1/img_3.jpg\): can't be read") as raised:
            look(2)
        assert raised.value.index == 2
    with gpupipe.Loader(part, RECIPE, 4, engine="torch", num_workers=0, on_error="skip") as loader:
        ((_, labels),) = loader
        assert labels.tolist() == [0, 0, 0, 0]  # sample 3 of the part, of class 0, in the place of its sample 2
        assert [error.index for error in loader.bad_samples] == [2]


def test_what_a_dataset_raises_keeps_its_type_in_a_part() -> None:
    class Lost(list[Any]):
        def __getitem__(self, index: Any) -> Any:
            if index == 2:
                raise KeyError("no such blob")
            return super().__getitem__(index)

    part = open_source(Subset(open_source(Lost([(jpeg(0), 0)] * 4)), [3, 2, 1]))
    for error in (KeyError, SampleError):
        with pytest.raises(error, match=r"sample 1 \(Lost\[2\]\): .*KeyError: 'no such blob'") as raised:
            part.fetch(np.arange(3))
        assert raised.value.args == ("no such blob",)
        assert isinstance(raised.value.__cause__, KeyError)


def test_what_is_noted_is_the_index_in_the_part(whole: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = memoryview(bytearray(16)).cast("q")
    monkeypatch.setattr(whereabouts._Here, "cell", cell)
    seen = []
    read = whole._file

    def watched(index: int, number: int) -> Any:
        data = read(index, number)
        seen.append((index, cell[0]))
        return data

    monkeypatch.setattr(whole, "_file", watched)
    part = open_source(Subset(whole, [7, 1]))
    part.fetch(np.array([1, 0]))
    part[1]
    open_source(ConcatDataset([Subset(whole, [3]), part]))[2]  # a dataset of the user's around it
    assert seen == [(1, 1), (7, 0), (1, 1), (1, 2)]
    whole[4]
    assert seen[-1] == (4, 4)
