"""Data that comes in a sequence: each item once, on any number of ranks and workers, from anywhere on."""

from __future__ import annotations

import gc
import itertools
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
import webdataset
from engines import ENGINES
from images import encode, picture
from tars import write_samples
from torch.utils.data import IterableDataset

import gpupipe
from gpupipe import ConfigError, DataError, Image, Loader, SampleError, Scalar, Stream
from gpupipe.sources.stream import _BEGINNINGS

RECIPE = gpupipe.imagenet_eval(8)
COUNT, BATCH = 43, 4
BYTES = [encode(picture(20 + number, 24, number), "PNG") for number in range(COUNT)]


def numbered(number: int, images: list[bytes] = BYTES) -> Iterator[tuple[bytes, int]]:
    """Pass 0 has the labels 0, 1, 2 ..., pass 1 1000, 1001 ..."""
    return ((data, 1000 * number + place) for place, data in enumerate(images))


class Counted(IterableDataset[Any]):
    """The same, with a state of its own; `read` counts what was read."""

    def __init__(self, images: list[bytes] = BYTES) -> None:
        self.read = self.at = self.number = 0
        self.images = images

    def set_epoch(self, number: int) -> None:
        self.number = number
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]

    def __iter__(self) -> Iterator[Any]:
        for item in itertools.islice(numbered(self.number, self.images), self.at, None):
            self.at, self.read = self.at + 1, self.read + 1
            yield item


class Late(Counted):
    """The same, as Hugging Face's are: its state is that of the item before, also where it has begun anew, or loaded
    another one, and has given nothing since. What is loaded holds for its own pass alone, and for each that begins."""

    def __init__(self, images: list[bytes] = BYTES) -> None:
        super().__init__(images)
        self.state, self.begin = {"at": 0, "number": 0}, {"at": 0, "number": 0}

    def state_dict(self) -> dict[str, int]:
        return self.state

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.begin = state

    def __iter__(self) -> Iterator[Any]:
        self.at = self.begin["at"] if self.begin["number"] == self.number else 0
        for item in super().__iter__():
            self.state = {"at": self.at, "number": self.number}
            yield item


class Going(Counted):
    """The same without passes, and where it has been left it goes on."""

    set_epoch = None  # type: ignore[assignment]


class Slotted:
    """The same, of which there are no weak references."""

    __slots__ = ("data",)

    def __init__(self) -> None:
        self.data = Going()

    def state_dict(self) -> dict[str, int]:
        return self.data.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.data.load_state_dict(state)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.data)


class Once:
    """The same; the first time that it comes to one item of pass 0, it raises an error."""

    def __init__(self, place: int, error: BaseException, images: list[bytes] = BYTES) -> None:
        self.place, self.error, self.images, self.raised = place, error, images, False

    def __call__(self, number: int) -> Iterator[Any]:
        for place, item in enumerate(numbered(number, self.images)):
            if (number, place) == (0, self.place) and not self.raised:
                self.raised = True
                raise self.error
            yield item


def loader(
    data: Any = numbered,
    *,
    buffer_size: int = 0,
    epoch_samples: int | None = None,
    stateful: bool = False,
    **options: Any,
) -> Loader:
    stream = Stream(data, buffer_size, epoch_samples, stateful)
    return Loader(stream, RECIPE, BATCH, **{"device": "cpu", "num_workers": 0, "engine": "torch"} | options)


def labels(batches: Any) -> list[list[int]]:
    return [found.tolist() for _, found in batches]


def rows(numbers: Any) -> list[list[int]]:
    numbers = list(numbers)
    return [numbers[at : at + BATCH] for at in range(0, len(numbers), BATCH)]


class TestOrder:
    @pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"engine": "dali", "num_workers": 2}], ids=str)
    def test_each_pass_is_an_epoch(self, options: dict[str, Any]) -> None:
        with loader(**options) as batches:
            for epoch in range(2):
                assert labels(batches) == rows(range(1000 * epoch, 1000 * epoch + COUNT))
                assert batches.epoch == epoch + 1

    def test_pixels_are_those_of_a_dataset(self) -> None:
        items = list(numbered(0))
        with loader(num_workers=2) as batches, Loader(items, RECIPE, BATCH, num_workers=0, device="cpu") as listed:
            pairs = list(zip(batches, listed, strict=True))
        assert len(pairs) == 11
        for ours, theirs in pairs:
            assert torch.equal(ours[0], theirs[0])
            assert torch.equal(ours[1], theirs[1])

    def test_epochs_of_a_length_of_their_own_go_on_with_the_next_pass(self) -> None:
        """As a plain chain of all passes has them."""
        chain = list(itertools.islice(itertools.chain.from_iterable(map(numbered, itertools.count())), 90))
        with loader(epoch_samples=30, num_workers=2) as batches:
            assert len(batches) == 8
            for epoch in range(3):
                assert labels(batches) == rows(label for _, label in chain[30 * epoch : 30 * epoch + 30])

    def test_a_buffer_shuffles_so_many_at_a_time_anew_in_each_epoch(self) -> None:
        seen = []
        for seed in (0, 1):
            with loader(buffer_size=10, seed=seed) as batches:
                seen += [[label % 1000 for batch in labels(batches) for label in batch] for _ in range(2)]
        for epoch in seen:
            for begin in range(0, COUNT, 10):
                assert sorted(epoch[begin : begin + 10]) == list(range(begin, min(begin + 10, COUNT)))
        assert len({tuple(epoch) for epoch in seen}) == 4
        places = np.array([epoch[:40] for epoch in seen]).reshape(-1, 10) % 10
        assert len(np.unique(places, axis=0)) == 16  # each buffer by a permutation of its own

    @pytest.mark.parametrize("options", [{}, {"buffer_size": 10}, {"epoch_samples": 30}], ids=str)
    def test_ranks_share_what_one_has(self, options: dict[str, Any]) -> None:
        """Each item comes to one rank; where the last batch is short the ranks are made equal, and say by how much."""
        with Loader(Stream(numbered, **options), RECIPE, 12, device="cpu", num_workers=0) as whole:
            alone = labels(whole)
        parts = []
        for rank in range(3):
            found = []
            with loader(rank=rank, world_size=3, **options) as batches:
                for _, label in batches:
                    found.append(label.tolist()[: len(label) - batches.padding])
            parts.append(found)
        assert [list(itertools.chain(*step)) for step in zip(*parts, strict=True)] == alone
        assert {len(part) for part in parts} == {len(alone)}

    @pytest.mark.parametrize("options", [{}, {"epoch_samples": 29}], ids=str)
    def test_crops_of_a_short_batch_are_those_of_one_rank(self, options: dict[str, Any]) -> None:
        """They are drawn by position, which in a last batch of 5 begins elsewhere on each of 2, 3 or 6 ranks."""

        def data(number: int) -> Iterator[Any]:
            return itertools.islice(numbered(number), 29)

        recipe = gpupipe.imagenet_train(8, dtype="uint8")
        with Loader(Stream(data, **options), recipe, 12, device="cpu", num_workers=0) as whole:
            alone = [images.clone() for images, _ in whole]
        for ranks in (2, 3, 6):
            parts = []
            for rank in range(ranks):
                settings = {"rank": rank, "world_size": ranks, "device": "cpu", "num_workers": 0}
                with Loader(Stream(data, **options), recipe, 12 // ranks, **settings) as batches:
                    parts.append([images.clone() for images, _ in batches])
            for step, images in enumerate(alone):
                assert torch.equal(torch.cat([part[step] for part in parts])[: len(images)], images)

    def test_drop_last(self) -> None:
        with loader(drop_last=True) as batches:
            assert labels(batches) == rows(range(40))
            assert labels(batches) == rows(range(1000, 1040))
        with Loader(Stream(numbered), RECIPE, 64, drop_last=True, device="cpu", num_workers=0) as batches:
            assert labels(batches) == []

    def test_a_short_last_batch_is_not_mixed(self) -> None:
        recipe = gpupipe.Recipe((gpupipe.ResizeCenterCrop(8, 8), gpupipe.Normalize(), gpupipe.MixUp(num_classes=50)))
        with Loader(Stream(numbered), recipe, BATCH, device="cpu", num_workers=0) as batches:
            *full, last = [label for _, label in batches]
        assert all((label.max(dim=1).values < 1).any() for label in full)
        assert last.sum(dim=1).tolist() == last.max(dim=1).values.tolist() == [1, 1, 1]

    def test_numbers_of_what_was_delivered(self) -> None:
        with loader(buffer_size=10) as batches:
            for _, label in batches:
                assert batches.last_indices is not None
                assert batches.last_indices.tolist() == label.tolist()


class TestResume:
    @pytest.mark.parametrize("counted", [False, True], ids=["", "its own state"])
    @pytest.mark.parametrize("options", [{}, {"buffer_size": 10}, {"epoch_samples": 30}], ids=str)
    def test_from_every_step(self, options: dict[str, Any], counted: bool) -> None:
        def data() -> Any:
            return Counted() if counted else numbered

        options = options | {"stateful": counted}
        with loader(data(), **options) as batches:
            states, expected = [], []
            for _ in range(2):
                for _, label in batches:
                    expected.append(label.tolist())
                    states.append(json.loads(json.dumps(batches.state_dict())))
        for step, state in enumerate(states):
            with loader(data(), num_workers=0, **options) as resumed:
                resumed.load_state_dict(state)
                found = labels(resumed)
                while len(found) < len(expected) - step - 1:
                    found += labels(resumed)
            assert found == expected[step + 1 :][: len(found)]
            assert len(found) >= len(expected) - step - 1

    @pytest.mark.parametrize("epoch_samples", [None, 30])
    def test_its_own_state_holds_the_pass(self, epoch_samples: int | None) -> None:
        class Passing(Counted):
            def __init__(self) -> None:
                super().__init__()
                self.state: dict[str, Any] = {"place": {}}

            def state_dict(self) -> dict[str, Any]:
                return {"place": {"at": self.at, "number": self.number}}

            def load_state_dict(self, state: dict[str, Any]) -> None:
                self.state = state  # which is its own from now on
                self.at, self.number = state["place"]["at"], state["place"]["number"]

            def set_epoch(self, number: int) -> None:
                super().set_epoch(number)
                self.state["place"]["at"] = 7

        with loader(epoch_samples=epoch_samples) as batches:
            expected = [labels(batches) for _ in range(3)]
        with loader(Passing(), epoch_samples=epoch_samples, stateful=True) as batches:
            assert [labels(batches) for _ in range(3)] == expected
            batches.set_epoch(0)
            next(iter(batches))
            state = batches.state_dict()
            batches.set_epoch(2)
            assert labels(batches) == expected[2]
            batches.load_state_dict(state)
            assert labels(batches) == expected[0][1:]

    @pytest.mark.parametrize("options", [{}, {"buffer_size": 10}, {"epoch_samples": 30}], ids=str)
    def test_again_and_again(self, options: dict[str, Any]) -> None:
        """Each time after two batches, also of data whose state is behind."""
        with loader(Late(BYTES * 2), stateful=True, **options) as batches:
            expected = labels(batches) + labels(batches)
        found: list[list[int]] = []
        state = None
        while len(found) < len(expected):
            with loader(Late(BYTES * 2), stateful=True, **options) as resumed:
                if state is not None:
                    resumed.load_state_dict(state)
                for _ in range(2):
                    found += labels(itertools.islice(resumed, 2))[: len(expected) - len(found)]
                    state = json.loads(json.dumps(resumed.state_dict()))
                    resumed.load_state_dict(state)
        assert found == expected

    def test_in_a_pass_that_is_begun_again(self) -> None:
        with loader(Late(BYTES * 2), stateful=True) as batches:
            assert labels(itertools.islice(batches, 9)) == rows(range(36))
            batches.set_epoch(0)
            next(iter(batches))
            state = batches.state_dict()
        with loader(Late(BYTES * 2), stateful=True) as resumed:
            resumed.load_state_dict(state)
            assert labels(resumed) == rows(range(2 * COUNT))[1:]

    def test_its_own_state_spares_what_was_read(self) -> None:
        with loader(Counted(), stateful=True, buffer_size=10) as batches:
            turns = iter(batches)
            for _ in range(9):
                next(turns)
            state = batches.state_dict()
            rest = labels(turns)
        data = Counted()
        with loader(data, stateful=True, buffer_size=10) as resumed:
            resumed.load_state_dict(state)
            assert labels(resumed) == rest
            assert data.read == COUNT - 30
            assert len(labels(resumed)) == 11  # the next pass, from its beginning
            resumed.set_epoch(0)
            assert sorted(itertools.chain(*labels(resumed))) == list(range(COUNT))
        assert state["stream"]["data"] == {"at": 30}

    @pytest.mark.parametrize("stateful", [True, False])
    @pytest.mark.parametrize("epoch_samples", [None, 30])
    def test_with_the_datas_own_state_or_without(self, stateful: bool, epoch_samples: int | None) -> None:
        """A state of one is one of the other."""
        with loader(Counted(BYTES * 2), epoch_samples=epoch_samples, stateful=stateful) as batches:
            states, expected = [], []
            for _ in range(2):
                for _, label in batches:
                    expected.append(label.tolist())
                    states.append(batches.state_dict())
        for step in range(0, len(states), 5):
            with loader(Counted(BYTES * 2), epoch_samples=epoch_samples, stateful=not stateful) as resumed:
                resumed.load_state_dict(states[step])
                found = labels(resumed) + labels(resumed)
            assert found[: len(expected) - step - 1] == expected[step + 1 :][: len(found)]

    def test_on_other_ranks_and_with_other_batches(self) -> None:
        with loader() as batches:
            turns = iter(batches)
            delivered = [next(turns)[1].tolist() for _ in range(3)]
            state = batches.state_dict()
        with Loader(Stream(numbered), RECIPE, 5, device="cpu", num_workers=0) as resumed:
            resumed.load_state_dict(state, allow_new_global_batch=True)
            rest = labels(resumed)
        assert list(itertools.chain(*delivered, *rest)) == list(range(COUNT))
        assert {len(batch) for batch in rest[:-1]} == {5}

    def test_of_another_stream(self) -> None:
        with loader() as batches, loader(buffer_size=3) as other:
            with pytest.raises(
                gpupipe.StateError, match=r"order is 'stream\(buffer_size=0, .*has 'stream\(buffer_size=3"
            ):
                other.load_state_dict(batches.state_dict())
            state = batches.state_dict() | {"stream": {"total": "many"}}
            with pytest.raises(gpupipe.StateError, match=r"stream is .*'many'.*was changed"):
                batches.load_state_dict(state)

    def test_set_epoch_begins_a_pass(self) -> None:
        with loader(num_workers=2) as batches:
            next(iter(batches))
            batches.set_epoch(5)
            assert labels(batches)[0] == [5000, 5001, 5002, 5003]
            batches.set_epoch(0)
            assert labels(batches)[0] == [0, 1, 2, 3]

    def test_a_worker_that_is_killed_costs_no_item(self) -> None:
        with loader(num_workers=2) as batches:
            found, errors = [], 0
            turns = iter(batches)
            while True:
                try:
                    found.append(next(turns)[1].tolist())
                except gpupipe.WorkerError:
                    errors += 1
                    continue
                except StopIteration:
                    break
                if len(found) == 2:
                    workers = batches._engine._iterator._workers  # type: ignore[union-attr]
                    os.kill(workers[0].pid, signal.SIGKILL)
        whole = rows(range(COUNT))
        assert len(found) + errors == len(whole)
        assert errors <= 1
        assert all(batch in whole for batch in found)
        assert found == sorted(found)


class TestDataOfSeveralLoaders:
    @pytest.mark.parametrize("kind", [Counted, Going])
    def test_each_begins_at_its_beginning(self, kind: type[Counted]) -> None:
        data = kind()
        for _ in range(3):
            with loader(data, stateful=True) as batches:
                assert labels(itertools.islice(batches, 3)) == rows(range(12))
                batches.set_epoch(0)
                assert labels(itertools.islice(batches, 3)) == rows(range(12))

    def test_the_beginning_is_forgotten_with_the_data(self) -> None:
        kept = len(_BEGINNINGS)
        data = Going()
        loader(data, stateful=True).close()
        assert len(_BEGINNINGS) == kept + 1
        del data
        gc.collect()
        assert len(_BEGINNINGS) == kept
        with loader(Slotted(), stateful=True) as batches:
            assert labels(batches) == labels(batches) == rows(range(COUNT))
        assert len(_BEGINNINGS) == kept

    @pytest.mark.trainers("datasets")
    def test_hugging_faces(self) -> None:
        """Also where an item has been looked at before."""
        import datasets

        data = datasets.Dataset.from_dict({"image": BYTES, "label": list(range(COUNT))}).to_iterable_dataset()
        next(iter(data))
        for _ in range(2):
            with loader(data, stateful=True) as batches:
                assert labels(itertools.islice(batches, 3)) == rows(range(12))
                state = batches.state_dict()
                batches.set_epoch(0)
                assert labels(batches) == rows(range(COUNT))
                assert labels(batches) == rows(range(COUNT))
                batches.load_state_dict(state)
                assert labels(batches) == rows(range(COUNT))[3:]


class TestBadInput:
    def test_a_bad_item_has_a_name(self) -> None:
        def data(number: int) -> Iterator[Any]:
            for place, (image, label) in enumerate(numbered(number)):
                yield (b"no image" if place in (5, 6) else image), label

        with loader(data, num_workers=2) as batches:
            turns = iter(batches)
            next(turns)
            with pytest.raises(SampleError, match=r"item 5 of the stream .*data"):
                next(turns)
            assert next(turns)[1].tolist() == [8, 9, 10, 11]
        for workers in (0, 2):
            with loader(data, on_error="skip", num_workers=workers) as batches:
                assert labels(batches) == [[0, 1, 2, 3], [4, 7, 7, 7], *rows(range(COUNT))[2:]]
                assert sorted(error.index for error in batches.bad_samples) == [5, 6]

    @pytest.mark.parametrize("options", ENGINES)
    @pytest.mark.parametrize("on_error", ["skip", "raise"])
    def test_bad_items_of_each_epoch_are_listed(self, on_error: str, options: dict[str, Any]) -> None:
        """Also where they have the numbers of those of another; what is met again in one is listed once."""

        def data(number: int) -> Iterator[Any]:
            for place in range(16):
                yield (b"no image" if place in (1, 9, 14) else BYTES[place]), place

        with loader(data, epoch_samples=8, on_error=on_error, **options) as batches:
            for epoch in (0, 1, 0):
                batches.set_epoch(epoch)
                turns = iter(batches)
                for _ in range(2):
                    with suppress(SampleError):
                        next(turns)
            assert [error.index for error in batches.bad_samples] == [1, 1, 6]
            assert batches.stats()["bad_samples"] == 3

    @pytest.mark.parametrize("options", ENGINES)
    def test_what_stands_in_is_the_same_however_batches_are_cut(self, options: dict[str, Any]) -> None:
        """The next good one of the epoch, as of data that has numbers; at its end those before it in the batch."""
        bad = {3, 5, 6, 11, 26, 27, 28}

        def data(number: int) -> Iterator[Any]:
            for place, (image, label) in enumerate(itertools.islice(numbered(number), 29)):
                yield (b"no image" if place in bad else image), label

        recipe = gpupipe.imagenet_train(8, dtype="uint8")
        settings = {"on_error": "skip", "max_bad": 1.0, "device": "cpu"} | options

        def found(batch_size: int, ranks: int = 1, steps: int | None = None) -> tuple[list[int], torch.Tensor]:
            rows: list[Any] = []
            for rank in range(ranks):
                with Loader(Stream(data), recipe, batch_size, rank=rank, world_size=ranks, **settings) as batches:
                    rows += [
                        (batches.last_step, rank, labels.tolist()[: len(labels) - batches.padding], images.clone())
                        for images, labels in itertools.islice(batches, steps)
                    ]
            rows.sort(key=lambda row: row[:2])
            kept = torch.cat([images[: len(labels)] for _, _, labels, images in rows])
            return [label for _, _, labels, _ in rows for label in labels], kept

        labels, images = found(12)
        assert labels == [0, 1, 2, 4, 4, 7, 7, 7, 8, 9, 10, 12, *range(12, 26), 24, 24, 24]
        for batch_size, ranks in ((4, 3), (2, 6), (1, 12)):
            others, same = found(batch_size, ranks)
            assert others == labels
            assert torch.equal(same, images)
        assert found(1, steps=24)[0] == labels[:24]  # also where a batch has no other sample

    def test_an_item_of_another_form(self) -> None:
        def data(number: int) -> Iterator[Any]:
            yield from numbered(number)
            yield 7

        with loader(data) as batches, pytest.raises(DataError, match="it must be \\(image, label\\)"):
            list(batches)

    @pytest.mark.parametrize("workers", [0, 2])
    def test_what_the_iterator_raises_ends_the_epoch(self, workers: int) -> None:
        def data(number: int) -> Iterator[Any]:
            yield from itertools.islice(numbered(number), 22)
            raise KeyError("gone")

        with loader(data, num_workers=workers) as batches:
            turns = iter(batches)
            assert [next(turns)[1].tolist() for _ in range(5)] == rows(range(20))
            with pytest.raises(KeyError, match=r"it raised KeyError: 'gone' \(item 22 of pass 0\)") as raised:
                next(turns)
            assert isinstance(raised.value, SampleError)
            assert "catch that in the iterator" in str(raised.value)
            assert list(turns) == []
            assert next(iter(batches))[1].tolist() == [1000, 1001, 1002, 1003]

    @pytest.mark.parametrize("options", ENGINES)
    def test_what_it_raises_once_is_read_again(self, options: dict[str, Any]) -> None:
        """From the step at which it came, from one before, and from one behind that another loader has come to."""
        with loader(Once(COUNT, ConnectionError("lost")), **options) as batches:
            states = [batches.state_dict() for _ in batches]
        for delivered in (5, 3, 7):
            with loader(Once(22, ConnectionError("lost")), **options) as batches:
                with pytest.raises(ConnectionError):
                    list(batches)
                batches.load_state_dict(states[delivered - 1])
                assert labels(batches) == rows(range(COUNT))[delivered:]
                assert batches.epoch == 1

    @pytest.mark.parametrize("options", ENGINES[1:])
    @pytest.mark.parametrize("steps", [1, 2])
    def test_what_it_raises_ahead_of_a_loop_that_loads_a_state(self, options: dict[str, Any], steps: int) -> None:
        """Of a step before or of where it stands: nobody has seen it, so that the epoch has all its batches."""
        data = Once(22, ConnectionError("lost"))
        with loader(data, **options | {"prefetch_factor": 8}) as batches:
            turns = iter(batches)
            states = [batches.state_dict() for _ in itertools.islice(turns, 2)]
            deadline = time.monotonic() + 20
            while not data.raised and time.monotonic() < deadline:
                time.sleep(0.01)
            assert data.raised
            batches.load_state_dict(states[steps - 1])
            assert labels(batches) == rows(range(COUNT))[steps:]

    @pytest.mark.parametrize("options", ENGINES)
    @pytest.mark.parametrize("epoch_samples", [None, 30])
    @pytest.mark.parametrize("place", [0, 42])
    def test_a_ctrl_c_while_it_is_read_costs_nothing(
        self, options: dict[str, Any], epoch_samples: int | None, place: int
    ) -> None:
        def delivered(data: Any) -> list[list[int]]:
            found, turns = [], None
            with loader(data, epoch_samples=epoch_samples, **options) as batches:
                while batches.epoch < 2:
                    try:
                        turns = iter(batches) if turns is None else turns
                        found.append(next(turns)[1].tolist())
                    except StopIteration:
                        turns = None
                    except KeyboardInterrupt:
                        continue
            return found

        data = Once(place, KeyboardInterrupt())
        assert delivered(data) == delivered(numbered)
        assert data.raised

    def test_a_ctrl_c_on_the_way_to_an_epoch(self) -> None:
        with loader(Once(20, KeyboardInterrupt()), epoch_samples=30) as batches:
            batches.set_epoch(2)
            with pytest.raises(KeyboardInterrupt):
                next(iter(batches))
            assert next(iter(batches))[1].tolist() == [1017, 1018, 1019, 1020]

    @pytest.mark.parametrize("options", ENGINES)
    def test_what_it_raises_ahead_of_a_loop_that_is_left(self, options: dict[str, Any]) -> None:
        """It is read for its neighbours before its batch is due."""
        with loader(Once(15, ConnectionError("lost")), epoch_samples=30, **options) as batches:
            assert labels(itertools.islice(batches, 3)) == rows(range(12))
            assert labels(batches) == rows([*range(30, COUNT), *range(1000, 1017)])

    @pytest.mark.parametrize("options", ENGINES)
    @pytest.mark.parametrize("place", [5, 9, 13])
    def test_what_it_raises_costs_its_own_epoch_alone(self, options: dict[str, Any], place: int) -> None:
        """At the last step but one, too, after which the next epoch is what comes."""
        with loader(Once(place, ConnectionError("lost")), epoch_samples=16, **options) as batches:
            turns = iter(batches)
            assert labels(itertools.islice(turns, place // BATCH)) == rows(range(16))[: place // BATCH]
            with pytest.raises(ConnectionError):
                next(turns)
            assert labels(turns) == []
            assert labels(batches) == rows(range(16, 32))
            assert labels(batches) == rows([*range(32, COUNT), *range(1000, 1005)])

    @pytest.mark.parametrize("options", ENGINES)
    def test_what_it_raises_before_the_place_of_a_state(self, options: dict[str, Any]) -> None:
        many = BYTES * 2
        error = ConnectionError("lost")
        with loader(Once(len(many), error, many), **options) as batches:
            turns = iter(batches)
            for _ in range(18):
                next(turns)
            state = batches.state_dict()
        with loader(Once(30, error, many), **options) as batches:
            batches.load_state_dict(state)
            with pytest.raises(ConnectionError, match=r"item 30 of the stream .* \(item 30 of pass 0\)") as raised:
                next(iter(batches))
            assert isinstance(raised.value, SampleError)
            batches.load_state_dict(state)
            assert next(iter(batches))[1].tolist() == [72, 73, 74, 75]

    def test_epochs_of_their_own_do_not_pass_over_what_it_raises(self) -> None:
        """The iterator that has raised is not taken for one that has ended: no item behind that is left out unseen."""

        def data(number: int) -> Iterator[Any]:
            yield from itertools.islice(numbered(number), 22)
            raise KeyError("gone")

        with loader(data, epoch_samples=12) as batches:
            assert labels(batches) == rows(range(12))
            turns = iter(batches)
            assert [next(turns)[1].tolist() for _ in range(2)] == rows(range(12, 20))
            with pytest.raises(KeyError, match=r"item 22 of pass 0"):
                next(turns)
            with pytest.raises(KeyError, match=r"item 22 of pass 0"):  # the next epoch begins with item 24
                list(batches)

    def test_an_empty_stream(self, caplog: pytest.LogCaptureFixture) -> None:
        with loader(lambda number: iter(())) as batches:
            assert list(batches) == []
        assert "gave nothing in pass 0" in caplog.text
        with (
            loader(lambda number: iter(()), epoch_samples=8) as batches,
            pytest.raises(DataError, match="so it is empty"),
        ):
            list(batches)

    def test_what_a_stream_can_not(self) -> None:
        with pytest.raises(ConfigError, match=r"shuffle=True: .*buffer_size"):
            loader(shuffle=True)
        with pytest.raises(ConfigError, match="order: a stream"):
            loader(order=gpupipe.Sequential(3))
        with pytest.raises(ConfigError, match="an iterator, which can be read once"):
            Stream(iter([]))
        for data, name in ((7, "int"), (lambda: numbered(0), r".*<lambda>")):
            with pytest.raises(
                ConfigError, match=f"data is {name}, and no IterableDataset, nor a function of the pass"
            ):
                Stream(data)
        with loader(lambda number: 5) as batches, pytest.raises(ConfigError, match="gave int for pass 0, and no"):
            list(batches)
        with pytest.raises(ConfigError, match=r"or gpupipe.Stream\(\.\.\.\) of a function that makes iterators"):
            Loader(numbered, RECIPE, BATCH)
        with pytest.raises(ConfigError, match="stateful=True, but numbered has no state_dict and no load_state_dict"):
            Stream(numbered, stateful=True)
        with pytest.raises(ConfigError, match="buffer_size=-1"):
            Stream(numbered, buffer_size=-1)
        with pytest.raises(ConfigError, match="epoch_samples=0"):
            Stream(numbered, epoch_samples=0)
        with pytest.raises(ConfigError, match="recipe=None needs a map-style dataset"):
            Loader(Stream(numbered), batch_size=2)
        with loader() as batches:
            for ask in (lambda: len(batches), lambda: len(iter(batches)), lambda: len(batches.sampler)):
                with pytest.raises(TypeError, match=r"StreamSource\(numbered\) has no length.*epoch_samples"):
                    ask()
            with pytest.raises(ConfigError, match="last_indices"):
                batches.batch_indices(0)
            assert "StreamSource(numbered)" in repr(batches)
        with pytest.raises(SampleError, match="in their order alone"):
            gpupipe.open_source(Stream(numbered))[0]


class TestOthersData:
    def test_torchs_iterable_dataset_where_workers_are_spawned(self) -> None:
        with Loader(Counted(), RECIPE, BATCH, num_workers=1, multiprocessing_context="spawn", device="cpu") as batches:
            assert labels(batches) == rows(range(COUNT))

    def test_webdatasets(self, tmp_path: Any) -> None:
        shard = write_samples(tmp_path / "a.tar")
        data = webdataset.WebDataset(str(shard), shardshuffle=False)
        fields = {"image": Image("jpg"), "label": Scalar("cls"), "key": gpupipe.Text("__key__")}
        with Loader(shard, RECIPE, 2, fields={"image": Image(), "label": Scalar(), "key": gpupipe.Key()}) as listed:
            expected = list(listed)
        with Loader(Stream(data.map(_number)), RECIPE, 2, fields=fields, device="cpu", num_workers=2) as batches:
            found = list(batches)
        assert len(found) == len(expected) > 0
        for ours, theirs in zip(found, expected, strict=True):
            assert torch.equal(ours["image"], theirs["image"].cpu())
            assert ours["label"].tolist() == theirs["label"].tolist()
            assert ours["key"] == theirs["key"]

    @pytest.mark.trainers("datasets")
    @pytest.mark.parametrize("shuffled", [False, True], ids=["with its state", "shuffled by it, read again"])
    def test_hugging_faces(self, shuffled: bool) -> None:
        import datasets

        def data() -> Any:
            listed = datasets.Dataset.from_dict({"image": BYTES, "label": list(range(COUNT))})
            given = listed.to_iterable_dataset(num_shards=3)
            return given.shuffle(seed=3, buffer_size=9) if shuffled else given

        plain = [item["label"] for item in data()]
        with loader(data(), stateful=not shuffled) as batches:
            turns = iter(batches)
            found = [next(turns)[1].tolist() for _ in range(6)]
            state = json.loads(json.dumps(batches.state_dict()))
        with loader(data(), stateful=not shuffled) as resumed:
            resumed.load_state_dict(state)
            assert found + labels(resumed) == rows(plain)
            assert len(labels(resumed)) == len(rows(plain))


def _number(item: dict[str, Any]) -> dict[str, Any]:
    return item | {"cls": int(item["cls"])}
