"""Datasets without a recipe: what torch's DataLoader makes of the same samples, and what goes wrong by its sample."""

from __future__ import annotations

import random
import re
import traceback
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from engines import forked
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset, default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

import gpupipe
from gpupipe.batch import Batch, Job
from gpupipe.decode.items import Items
from gpupipe.errors import ConfigError, DataError, SampleError
from gpupipe.sources import ItemSource

SIZE = 10
INDICES = [3, 1, 7, 9, 0]

Pair = namedtuple("Pair", "image label")


class Made(Dataset[Any]):
    """Whatever a function makes of the index."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


class Together(Made):
    """One that reads a batch at once."""

    asked: list[list[int]]

    def __init__(self, make: Callable[[int], Any]) -> None:
        super().__init__(make)
        self.asked = []

    def __getitems__(self, indices: list[int]) -> list[Any]:
        self.asked.append(indices)
        return [self.make(index) for index in indices]


def job(indices: Sequence[int] = INDICES, first: int = 4) -> Job:
    return Job(5, 2, np.arange(len(indices)) + first, np.array(indices, np.int64))


def made(dataset: Any, collate_fn: Any = None, what: Job | None = None) -> Batch:
    return Items(ItemSource(dataset), collate_fn)(what or job(), {})


def by_torch(dataset: Any, collate_fn: Any = None) -> Any:
    (batch,) = DataLoader(dataset, batch_sampler=[INDICES], collate_fn=collate_fn)
    return batch


def same(found: Any, expected: Any) -> None:
    """Types, dtypes and values, to the ground."""
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
        assert found.stride() == expected.stride()
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            same(found[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    else:
        assert found == expected


KINDS: dict[str, Callable[[int], Any]] = {
    "tuple": lambda i: (torch.full((2, 3), i, dtype=torch.uint8), i),
    "dict": lambda i: {"image": torch.ones(3) * i, "name": f"sample {i}", "score": i / 3},
    "named tuple": lambda i: Pair(np.full((2, 2), i, np.float32), np.int16(i)),
    "list": lambda i: [i, float(i), bool(i % 2), str(i), b"bytes"],
    "nested": lambda i: {"a": [{"b": (i, {"c": torch.tensor(i)})}], "d": OrderedDict(x=np.arange(i, i + 2))},
    "number": lambda i: i,
    "array": lambda i: np.arange(6, dtype=np.int8).reshape(2, 3) + i,
    "text": lambda i: f"{i}",
    "nothing": lambda i: torch.empty(0, 3),
}


class TestAsTorch:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("dataset", [Made, Together])
    def test_items(self, kind: str, dataset: type[Made]) -> None:
        one = dataset(KINDS[kind])
        batch = made(one)
        assert batch.collated
        assert batch.failures == {}
        assert batch.job.indices.tolist() == INDICES
        same(batch.columns["items"], by_torch(one))

    @pytest.mark.parametrize(
        "dataset",
        [
            TensorDataset(torch.arange(SIZE * 2).view(SIZE, 2), torch.arange(SIZE)),
            ConcatDataset([Made(lambda i: i), Made(lambda i: 10 * i)]),
            Subset(Together(lambda i: i), list(range(SIZE))[::-1]),
            [(i, "x") for i in range(SIZE)],
            torch.arange(SIZE),
            np.arange(SIZE) / 2,
        ],
        ids=lambda dataset: type(dataset).__name__,
    )
    def test_datasets(self, dataset: Any) -> None:
        same(made(dataset).columns["items"], by_torch(dataset))

    def test_a_function_of_the_users(self) -> None:
        def backwards(items: list[Any]) -> Any:
            return default_collate(items[::-1])

        dataset = Made(KINDS["tuple"])
        same(made(dataset, backwards).columns["items"], by_torch(dataset, backwards))


class TestInWorkers:
    @pytest.fixture(autouse=True)
    def worker(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: SimpleNamespace(id=0))

    @pytest.mark.parametrize("kind", KINDS)
    def test_the_same(self, kind: str) -> None:
        same(made(Made(KINDS[kind])).columns["items"], default_collate([KINDS[kind](index) for index in INDICES]))

    def test_memory_is_used_again_only_when_the_batch_is_gone(self) -> None:
        dataset = Made(lambda i: torch.full((1000,), i))
        first = made(dataset).columns["items"]
        place, kept = first.data_ptr(), made(dataset, what=job(INDICES[::-1])).columns["items"]
        assert kept.data_ptr() != place
        assert first[:, 0].tolist() == INDICES
        del first
        assert made(dataset).columns["items"].data_ptr() == place

    @pytest.mark.parametrize(
        "make",
        [
            lambda i: torch.ones(1, dtype=torch.float32 if i else torch.float64),  # torch takes the wider one
            lambda i: torch.ones(2).to_sparse(),
            lambda i: torch.ones(i),
            lambda i: torch.ones(2, requires_grad=True),
        ],
    )
    def test_what_is_not_alike_is_left_to_torch(self, make: Callable[[int], torch.Tensor]) -> None:
        items = [make(index) for index in INDICES]
        try:
            expected = default_collate(items)
        except RuntimeError as error:
            with pytest.raises(DataError, match=re.escape(str(error))):
                made(Made(make))
        else:
            same(made(Made(make)).columns["items"], expected)

    def test_types_of_users(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(default_collate_fn_map, Image.Image, lambda batch, collate_fn_map: len(batch))
        assert made(Made(lambda i: Image.new("L", (2, 2)))).columns["items"] == 5
        monkeypatch.setitem(default_collate_fn_map, torch.Tensor, lambda batch, collate_fn_map: "mine")
        assert made(Made(lambda i: torch.ones(2))).columns["items"] == "mine"


class TestLoader:
    """Through the loader, with and without worker processes."""

    @pytest.mark.parametrize("workers", [0, 2])
    def test_as_torch(self, workers: int) -> None:
        for kind in ("nested", "named tuple", "nothing"):
            dataset = Made(KINDS[kind])
            expected = list(DataLoader(dataset, 4))
            with gpupipe.Loader(dataset, None, 4, **forked(workers), device="cpu") as loader:
                found = list(loader)
            same(found, expected)

    @pytest.mark.parametrize("workers", [0, 1])
    def test_memory_formats_stay(self, workers: int) -> None:
        def collate(items: list[int]) -> Any:
            images = torch.arange(120.0).view(2, 3, 4, 5).to(memory_format=torch.channels_last)
            return images, images[0, :, :, 1].clone().T, torch.empty(3, 0).T, len(items)

        dataset = Made(KINDS["number"])
        expected = list(DataLoader(dataset, 4, collate_fn=collate))
        with gpupipe.Loader(dataset, None, 4, **forked(workers), device="cpu", collate_fn=collate) as loader:
            same(list(loader), expected)

    def test_draws_are_those_of_the_position_on_any_number_of_ranks(self) -> None:
        dataset = Made(lambda i: (i, random.random(), torch.rand(())))

        def rows(batches: Any) -> list[Any]:
            return [row for batch in batches for row in zip(*(column.tolist() for column in batch), strict=True)]

        with gpupipe.Loader(dataset, None, 4, True, num_workers=0, device="cpu") as loader:
            batches = iter(loader)
            expected = rows([next(batches)])
            state = loader.state_dict()
            expected += rows(batches)
        with gpupipe.Loader(dataset, None, 4, True, **forked(1), device="cpu") as loader:
            loader.load_state_dict(state)
            assert rows(loader) == expected[4:]
        ranks = []
        for rank in range(2):
            options = {"rank": rank, "world_size": 2, **forked(1), "device": "cpu"}
            with gpupipe.Loader(dataset, None, 2, True, **options) as loader:
                ranks.append(list(loader))
        assert rows(batch for step in zip(*ranks, strict=True) for batch in step) == expected

    @pytest.mark.parametrize("workers", [0, 2])
    def test_bad_samples(self, workers: int) -> None:
        dataset = Made(lambda i: {"x": torch.full((2,), 10 // (i - 3))})
        options = {**forked(workers), "device": "cpu"}
        with (
            gpupipe.Loader(dataset, None, 5, **options) as loader,
            pytest.raises(ZeroDivisionError, match=r"sample 3 \(Made\[3\]\)"),
        ):
            next(iter(loader))
        with gpupipe.Loader(dataset, None, 5, on_error="skip", **options) as loader:
            first, _ = loader
            assert [bad.index for bad in loader.bad_samples] == [3]
        assert first["x"][:, 0].tolist() == [10 // (index - 3) for index in (0, 1, 2, 4, 4)]

    def test_a_function_of_the_users(self) -> None:
        with gpupipe.Loader(Made(lambda i: i), None, 5, collate_fn=sum, **forked(1), device="cpu") as loader:
            assert list(loader) == [10, 35]

    @pytest.mark.parametrize("workers", [0, 1, 2])
    def test_what_a_function_of_the_users_raises(self, workers: int) -> None:
        options = {"collate_fn": _no_five, **forked(workers), "device": "cpu"}
        with gpupipe.Loader(Made(lambda i: (i, lambda: i)), None, 4, **options) as loader:
            batches = iter(loader)
            assert next(batches) == 6
            with pytest.raises(DataError, match=r"^_no_five raised KeyError: 5; the batch of 4 samples has ") as caught:
                next(batches)
        assert "KeyError: 5" in str(caught.value.__cause__) or isinstance(caught.value.__cause__, KeyError)
        assert "Traceback" not in str(caught.value)


def _refuse(items: list[Any]) -> Any:
    raise KeyError("no 3")


def _no_five(items: list[Any]) -> int:
    numbers = [number for number, _ in items]
    if 5 in numbers:
        raise KeyError(5)
    return sum(numbers)


class TestSeveralAtOnce:
    def test_one_call(self) -> None:
        dataset = Together(lambda i: i)
        made(dataset)
        assert dataset.asked == [INDICES]
        assert all(type(index) is int for index in dataset.asked[0])

    def test_subsets_ask_where_the_dataset_can(self) -> None:
        inner = Together(lambda i: i)
        made(Subset(Subset(inner, range(SIZE)), list(range(SIZE))[::-1]))
        assert inner.asked == [[SIZE - 1 - index for index in INDICES]]
        assert ItemSource(Subset(inner, range(SIZE))).gives_several
        assert not ItemSource(Subset(Made(lambda i: i), range(SIZE))).gives_several

    def test_the_bad_sample_is_found(self, caplog: pytest.LogCaptureFixture) -> None:
        batch = made(Together(lambda i: 1 // (i - 7)))
        assert list(batch.failures) == [2]
        assert "Together.__getitems__ raised ZeroDivisionError" in caplog.text

    def test_one_that_fails_at_a_batch_alone_is_named(self) -> None:
        class Broken(Together):
            def __getitems__(self, indices: list[int]) -> list[Any]:
                if len(indices) > 1:
                    raise OSError("no route")
                return super().__getitems__(indices)

        with pytest.raises(
            OSError,
            match=r"Broken.__getitems__ raised OSError: no route; it was asked for step 0 of epoch 2, 5 samples "
            r"\(3, 1, 7, 9, 0\), and gives each of them alone",
        ) as caught:
            made(Broken(lambda i: i))
        assert isinstance(caught.value, DataError)


def _hundred(indices: list[int]) -> list[Any]:
    return [100 + index for index in indices]


def _as_it_is(batch: Any) -> Any:
    return batch


FORMS: dict[str, Callable[[list[int]], Any]] = {
    "a list": _hundred,
    "fewer": lambda indices: [100 + index for index in indices if index % 3],
    "none": lambda indices: [],
    "a dict": lambda indices: {"x": torch.tensor(indices) * 10, "y": 0, "z": 1},
    "a tensor": lambda indices: torch.tensor(indices) * 10,
    "columns": lambda indices: [torch.tensor(indices) * 10, torch.tensor(indices)],
    "a text": lambda indices: "batch",
    "nothing": lambda indices: None,
}


class Batched(Made):
    """Its `__getitems__` gives other values than its `__getitem__`, and fails at some samples."""

    def __init__(self, several: Callable[[list[int]], Any], bad: Sequence[int] = ()) -> None:
        super().__init__(lambda index: -index)
        self.several = several
        self.bad = bad

    def __getitems__(self, indices: list[int]) -> Any:
        if set(self.bad) & set(indices):
            raise KeyError("no")
        return self.several(indices)


class TestBatchesOfTheDatasets:
    """Whatever `__getitems__` returns is what `collate_fn` gets."""

    @pytest.mark.parametrize("workers", [0, 1])
    @pytest.mark.parametrize("form", FORMS)
    def test_as_torch(self, form: str, workers: int) -> None:
        dataset = Batched(FORMS[form])
        expected = list(DataLoader(dataset, 4, collate_fn=_as_it_is))
        with gpupipe.Loader(dataset, None, 4, collate_fn=_as_it_is, **forked(workers), device="cpu") as loader:
            same(list(loader), expected)

    def test_fewer_are_stacked(self) -> None:
        dataset = Batched(FORMS["fewer"])
        same(made(dataset).columns["items"], by_torch(dataset))

    @pytest.mark.parametrize(
        ("form", "told"), [("a dict", r"dict \('x': Tensor"), ("columns", "list of 2 "), ("fewer", "list")]
    )
    def test_what_collate_fn_raises_tells_of_them(self, form: str, told: str) -> None:
        with pytest.raises(KeyError, match=f"the batch of 5 samples has {told}"):
            made(Batched(FORMS[form]), _refuse)

    @pytest.mark.parametrize("workers", [0, 1])
    @pytest.mark.parametrize("form", FORMS)
    def test_a_bad_sample_is_named(self, form: str, workers: int) -> None:
        dataset = Batched(FORMS[form], bad=[5])
        with pytest.raises(KeyError):
            list(DataLoader(dataset, 4, collate_fn=_as_it_is))
        with gpupipe.Loader(dataset, None, 4, collate_fn=_as_it_is, **forked(workers), device="cpu") as loader:
            batches = iter(loader)
            same(next(batches), FORMS[form]([0, 1, 2, 3]))
            with pytest.raises(
                KeyError, match=r"sample 5 \(Batched\[5\]\): Batched.__getitems__ raised KeyError"
            ) as caught:
                next(batches)
            assert isinstance(caught.value, SampleError)
            same(next(batches), FORMS[form]([8, 9]))

    @pytest.mark.parametrize("workers", [0, 1])
    def test_a_bad_sample_of_a_list_is_replaced_by_one_of_its_own(self, workers: int) -> None:
        options = {"collate_fn": _as_it_is, "on_error": "skip", **forked(workers), "device": "cpu"}
        with gpupipe.Loader(Batched(_hundred, bad=[5]), None, 4, **options) as loader:
            assert list(loader) == [[100, 101, 102, 103], [104, 106, 106, 107], [108, 109]]
            assert [bad.index for bad in loader.bad_samples] == [5]

    @pytest.mark.parametrize("workers", [0, 1])
    @pytest.mark.parametrize("form", [form for form in FORMS if form != "a list"])
    def test_no_other_stands_in_where_there_is_no_list_of_samples(self, form: str, workers: int) -> None:
        dataset = Batched(FORMS[form], bad=[5])
        options = {"collate_fn": _as_it_is, "on_error": "skip", **forked(workers), "device": "cpu"}
        with gpupipe.Loader(dataset, None, 4, **options) as loader:
            batches = iter(loader)
            same(next(batches), FORMS[form]([0, 1, 2, 3]))
            with pytest.raises(KeyError, match=r"sample 5 .*no other can stand in for it, as Batched.__getitems__"):
                next(batches)
            same(next(batches), FORMS[form]([8, 9]))

    def test_nor_for_a_batch_that_is_bad_throughout(self) -> None:
        options = {"collate_fn": _as_it_is, "on_error": "skip", "num_workers": 0, "device": "cpu"}
        with (
            gpupipe.Loader(Batched(FORMS["a dict"], bad=[0]), None, 1, **options) as loader,
            pytest.raises(DataError, match=r"Batched.__getitems__\(\[1\]\) gives no list of one item, but dict"),
        ):
            next(iter(loader))

    @pytest.mark.parametrize("rank", [0, 1])
    def test_a_short_last_batch_of_ranks(self, rank: int) -> None:
        """What the last batch repeats is asked for as the rest of it."""
        dataset = Batched(FORMS["a dict"])
        options = {"collate_fn": _as_it_is, "num_workers": 0, "device": "cpu", "rank": rank, "world_size": 2}
        with gpupipe.Loader(dataset, None, 3, **options) as loader:
            for batch in loader:
                assert loader.last_indices is not None
                same(batch, FORMS["a dict"](loader.last_indices.tolist()))


class TestDraws:
    """From the global generators, by position, whatever the batch."""

    def drawing(self, index: int) -> tuple[float, float, float]:
        return random.random(), np.random.rand(), torch.rand(()).item()  # noqa: NPY002

    @pytest.mark.parametrize("wrap", [lambda dataset: dataset, lambda dataset: Subset(dataset, range(SIZE))])
    def test_follow_the_position(self, wrap: Callable[[Any], Any]) -> None:
        dataset = wrap(Made(self.drawing))
        whole = torch.stack(made(dataset).columns["items"], 1)
        parts = [
            torch.stack(made(dataset, what=job(INDICES[at : at + 1], 4 + at)).columns["items"], 1) for at in range(5)
        ]
        assert torch.equal(whole, torch.cat(parts))
        assert len(set(whole.flatten().tolist())) == 15
        assert not torch.equal(whole, torch.stack(made(dataset, what=job(first=5)).columns["items"], 1))

    def test_of_several_at_once_follow_the_first(self) -> None:
        dataset = Together(self.drawing)
        first, again = (torch.stack(made(dataset).columns["items"], 1) for _ in range(2))
        assert torch.equal(first, again)
        assert torch.equal(first[0], torch.stack(made(Made(self.drawing)).columns["items"], 1)[0])

    def test_the_callers_generators_are_left_alone(self) -> None:
        states = random.getstate(), torch.get_rng_state()
        made(Made(self.drawing))
        assert random.getstate() == states[0]
        assert torch.equal(torch.get_rng_state(), states[1])


class TestFaults:
    def test_a_bad_row_leaves_the_batch_uncollated(self) -> None:
        def make(index: int) -> dict[str, int]:
            return {"x": {0: 0, 1: 1, 3: 3, 9: 9}[index]}

        work = Items(ItemSource(Made(make)))
        batch = work(job(), {})
        assert not batch.collated
        assert batch.columns["items"] == [{"x": 3}, {"x": 1}, None, {"x": 9}, {"x": 0}]
        (error,) = batch.failures.values()
        assert isinstance(error, SampleError)
        assert isinstance(error, KeyError)  # of the dataset's type, too
        assert (error.index, error.location) == (7, "Made[7]")
        with pytest.raises(KeyError, match=r"sample 7 \(Made\[7\]\): Made.__getitem__ raised KeyError: 7"):
            raise error
        batch.columns["items"][2] = {"x": 5}  # a substitute's
        assert work.collate(batch).columns["items"]["x"].tolist() == [3, 1, 5, 9, 0]
        assert work.collate(batch).columns["items"]["x"].tolist() == [3, 1, 5, 9, 0]  # once is enough

    def test_items_that_do_not_fit_together(self) -> None:
        def make(index: int) -> dict[str, Any]:
            return {"boxes": torch.zeros(1 if index < 9 else 2, 4), "name": "a"}

        with pytest.raises(
            DataError,
            match=r"default_collate raised RuntimeError: stack expects.*; the batch of 5 samples has "
            r"Made\[3\]: dict \('boxes': Tensor float32 \(1, 4\), 'name': str\); "
            r"Made\[9\]: dict \('boxes': Tensor float32 \(2, 4\), 'name': str\) \(docs",
        ):
            made(Made(make))

    @pytest.mark.parametrize("workers", [0, 1])
    def test_it_is_of_the_type_that_collate_fn_raised(self, workers: int) -> None:
        """As torch's DataLoader has it; with arguments of its own, and as the text of a KeyError would be quoted."""
        options: dict[str, Any] = {**forked(workers), "device": "cpu", "collate_fn": _refuse}
        with (
            gpupipe.Loader(Made(lambda i: i), None, 4, **options) as loader,
            pytest.raises(KeyError, match=r"^_refuse raised KeyError: 'no 3'; the batch of 4 samples has ") as caught,
        ):
            next(iter(loader))
        assert isinstance(caught.value, DataError)
        assert "in _refuse" in "".join(traceback.format_exception(caught.value))

    def test_items_that_torch_does_not_stack(self) -> None:
        dataset = Made(lambda i: (Image.new("L", (2, 2)), i))
        with pytest.raises(DataError, match=r"raised TypeError: .*has Made\[3\]: tuple of 2 \(Image, int\)"):
            made(dataset)

    def test_many_forms(self) -> None:
        with pytest.raises(DataError, match=r"Made\[9\]: ndarray float64 \(9,\); and 1 more \(docs"):
            made(Made(lambda i: np.zeros(i)))

    @pytest.mark.parametrize("data", ["images/train", Path("images")], ids=str)
    def test_files_need_a_recipe(self, data: Any) -> None:
        with pytest.raises(ConfigError, match="names files, which recipe=None does not read: pass a recipe"):
            ItemSource(data)

    def test_what_is_not_map_style(self) -> None:
        class Stream(IterableDataset[int]):
            def __len__(self) -> int:
                return 3

            def __iter__(self) -> Iterator[int]:
                return iter(range(3))

        for data, name in ((Stream(), "Stream"), (iter([1]), "list_iterator"), (Dataset(), "Dataset")):
            with pytest.raises(ConfigError, match=rf"data is {name}, but recipe=None needs a map-style dataset"):
                ItemSource(data)
        with pytest.raises(DataError, match="the dataset list is empty"):
            ItemSource([])


class TestSource:
    def test_knows_its_samples(self) -> None:
        source = ItemSource(Made(lambda i: (i, "x")))
        assert (len(source), source[4], source.key(4), source.location(4)) == (SIZE, (4, "x"), "4", "Made[4]")
        assert source.fetch(np.array([2, 0])) == {"items": [(2, "x"), (0, "x")]}
        assert source.fields is None

    def test_fingerprint(self) -> None:
        one = Made(lambda i: i)
        assert ItemSource(one).fingerprint == ItemSource(Made(lambda i: -i)).fingerprint
        assert ItemSource(one).fingerprint != ItemSource(Together(lambda i: i)).fingerprint
        one.fingerprint = "of its own"  # type: ignore[attr-defined]
        assert ItemSource(one).fingerprint != ItemSource(Made(lambda i: i)).fingerprint
