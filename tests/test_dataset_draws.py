"""What a user's dataset draws from the global random generators, and its worker_init_fn."""

from __future__ import annotations

import multiprocessing
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from engines import ENGINES
from images import Numbered, encode, picture

import gpupipe
from gpupipe.batch import Job
from gpupipe.decode.fetching import fetch
from gpupipe.device.ahead import Ahead
from gpupipe.sources import open_source

SIZE = 22
JPEG = encode(picture(16, 16))
BITS = 20


def drawn() -> list[int]:
    """A number of each generator."""
    return [int(torch.randint(2**BITS, ())), int(np.random.randint(2**BITS)), random.randrange(2**BITS)]  # noqa: NPY002


class Drawing:
    """A dataset whose labels are what its code draws; sample 7 is bad if asked for."""

    def __init__(self, bad: bool = False) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        if self.bad and index == 7:
            random.random()
            raise LookupError("no such row")
        first, second, third = drawn()
        return JPEG, first | second << BITS | third << 2 * BITS


def open_loader(data: Any = None, batch_size: int = 4, **options: Any) -> gpupipe.Loader:
    options = {"device": "cpu", "shuffle": True, "seed": 5, "engine": "torch", "num_workers": 0} | options
    data = Drawing() if data is None else data
    return gpupipe.Loader(data, gpupipe.imagenet_eval(8, dtype="uint8"), batch_size, **options)


def labels_of(loader: gpupipe.Loader) -> list[int]:
    return [label for _, labels in loader for label in labels.tolist()]


def parts(labels: list[int]) -> list[tuple[int, ...]]:
    return [tuple(label >> shift & (2**BITS - 1) for shift in (0, BITS, 2 * BITS)) for label in labels]


@pytest.fixture(scope="module")
def epochs() -> list[list[int]]:
    with open_loader() as loader:
        return [labels_of(loader) for _ in range(2)]


class TestDraws:
    def test_differ_by_position_epoch_and_seed_and_from_each_other(self, epochs: list[list[int]]) -> None:
        with open_loader(seed=5 + 2**32) as loader:
            other = labels_of(loader)
        every = [number for label in parts(epochs[0] + epochs[1] + other) for number in label]
        assert len(set(every)) > 0.99 * 9 * SIZE

    def test_are_pinned(self, epochs: list[list[int]]) -> None:
        assert parts(epochs[1][:2]) == GOLDEN

    @pytest.mark.parametrize("engine", ENGINES)
    def test_are_those_of_the_position_on_every_engine(self, engine: dict[str, Any], epochs: list[list[int]]) -> None:
        with open_loader(**engine) as loader:
            assert [labels_of(loader) for _ in range(2)] == epochs

    @pytest.mark.parametrize("engine", ENGINES)
    def test_are_those_of_the_position_in_a_part_too(self, engine: dict[str, Any], epochs: list[list[int]]) -> None:
        whole = torch.utils.data.Subset(open_source(Drawing()), range(SIZE))  # type: ignore[arg-type]
        with open_loader(torch.utils.data.Subset(whole, range(SIZE - 1, -1, -1)), **engine) as loader:
            assert [labels_of(loader) for _ in range(2)] == epochs

    @pytest.mark.parametrize("engine", ENGINES)
    def test_ranks_share_them_out(self, engine: dict[str, Any], epochs: list[list[int]]) -> None:
        ranks = []
        for rank in range(2):
            with open_loader(batch_size=2, rank=rank, world_size=2, **engine) as loader:
                ranks.append([labels.tolist() for _, labels in loader])
        assert [label for step in zip(*ranks, strict=True) for batch in step for label in batch] == epochs[0]

    @pytest.mark.parametrize("engine", ENGINES)
    def test_go_on_after_a_resume(self, engine: dict[str, Any], epochs: list[list[int]]) -> None:
        with open_loader() as loader:
            batches = iter(loader)
            for _ in range(2):
                next(batches)
            state = loader.state_dict()
        with open_loader(**engine) as loader:
            loader.load_state_dict(state)
            assert labels_of(loader) == epochs[0][8:]
            assert labels_of(loader) == epochs[1]

    @pytest.mark.parametrize("engine", ENGINES)
    def test_a_substitute_has_the_numbers_of_its_place(self, engine: dict[str, Any], epochs: list[list[int]]) -> None:
        with open_loader(Drawing(bad=True), on_error="skip", **engine) as loader:
            assert labels_of(loader) == epochs[0]
            assert [bad.index for bad in loader.bad_samples] == [7]

    @pytest.mark.parametrize("engine", ENGINES)
    def test_the_consumers_generators_are_left_alone(self, engine: dict[str, Any]) -> None:
        def draws(step: Callable[[], Any]) -> list[list[int]]:
            torch.manual_seed(1)
            np.random.seed(2)  # noqa: NPY002
            random.seed(3)
            found = []
            for _ in range(5):
                step()
                found.append(drawn())
            return found

        alone = draws(lambda: None)
        with open_loader(Drawing(bad=True), on_error="skip", **engine) as loader:
            batches = iter(loader)
            assert draws(lambda: next(batches)) == alone


class Lane:
    """Batches pass from thread to thread as they are."""

    def entered(self) -> Any:
        return nullcontext()

    def before(self) -> None:
        return

    def made(self, item: Any) -> None:
        return

    def taken(self, item: Any) -> None:
        return


class TestInAThreadBesideTheConsumer:
    """As the loader has for a GPU."""

    def run(self, dataset: Any, between: Callable[[], None]) -> list[int]:
        source = open_source(dataset)
        consumed = threading.Semaphore(0)

        def fetched() -> Iterator[list[int]]:
            for step in range(3):
                positions = np.arange(4) + 4 * step
                yield fetch(source, Job(5, 0, positions, positions)).columns["label"].tolist()
                consumed.acquire(timeout=10)

        labels: list[int] = []
        for batch in (ahead := Ahead(fetched(), 2, Lane(), lambda: None)):
            labels += batch
            between()
            consumed.release()
        ahead.close()
        return labels

    def test_a_dataset_that_draws_has_its_own_numbers(self, caplog: pytest.LogCaptureFixture) -> None:
        source = open_source(Drawing())
        expected = fetch(source, Job(5, 0, np.arange(12), np.arange(12))).columns["label"].tolist()
        assert self.run(Drawing(), between=lambda: None) == expected
        (record,) = [record for record in caplog.records if "draws from the global" in record.message]
        assert "Drawing" in record.message

    @pytest.mark.parametrize("engine", ENGINES)
    def test_on_every_engine(self, engine: dict[str, Any], epochs: list[list[int]]) -> None:
        with open_loader(Drawing(bad=True), on_error="skip", **engine) as loader:
            loader._supply.lane = Lane()  # type: ignore[assignment]
            assert [labels_of(loader) for _ in range(2)] == epochs

    @pytest.mark.parametrize("engine", ENGINES)
    def test_a_sampler_lists_in_the_consumers_thread(self, engine: dict[str, Any]) -> None:
        listed: list[bool] = []

        class Noting(torch.utils.data.RandomSampler):
            def __iter__(self) -> Iterator[int]:
                listed.append(threading.current_thread() is threading.main_thread())
                return super().__iter__()

        with open_loader(shuffle=False, order=Noting(range(SIZE)), **engine) as loader:  # type: ignore[arg-type]
            loader._supply.lane = Lane()  # type: ignore[assignment]
            assert [len(labels_of(loader)) for _ in range(2)] == [SIZE] * 2
        assert listed == [True] * 2

    def test_one_that_does_not_leaves_the_generators_to_the_consumer(self, caplog: pytest.LogCaptureFixture) -> None:
        torch.manual_seed(1)
        np.random.seed(2)  # noqa: NPY002
        random.seed(3)
        alone = [drawn() for _ in range(3)]
        torch.manual_seed(1)
        np.random.seed(2)  # noqa: NPY002
        random.seed(3)
        found: list[list[int]] = []
        assert self.run(Numbered(12, [JPEG]), between=lambda: found.append(drawn())) == list(range(12))
        assert found == alone
        assert not caplog.records


class Started:
    """A dataset that tells what its worker's start has left, by its labels."""

    def __init__(self) -> None:
        self.opened = -1

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        return JPEG, self.opened


def opens(worker: int) -> None:
    """What is done in each worker of a dataset with a handle of its own."""
    info = torch.utils.data.get_worker_info()
    assert info is not None
    assert info.id == worker
    assert torch.initial_seed() == info.seed
    info.dataset.opened = info.seed % 2**50 * 10 + worker


def fails(worker: int) -> None:
    raise KeyError(f"no file for {worker}")


class TestWorkerInitFn:
    def starts(self, **options: Any) -> list[int]:
        with open_loader(Started(), worker_init_fn=opens, shuffle=False, **options) as loader:
            return labels_of(loader)

    def test_is_called_in_each_worker_with_torchs_seeds(self) -> None:
        found = self.starts(num_workers=2)
        first, second = sorted(set(found), key=lambda opened: opened % 10)
        assert (first % 10, second % 10) == (0, 1)
        assert second // 10 == first // 10 + 1  # the workers' seeds follow each other
        assert found == [first] * 2 + [second] * 2 + ([first] * 4 + [second] * 4) * 2 + [first] * 2

    def test_a_warning_says_where_it_is_not_called(self, caplog: pytest.LogCaptureFixture) -> None:
        with open_loader(worker_init_fn=fails, engine="dali", num_workers=1) as loader:
            labels_of(loader)
        assert "worker_init_fn is not called for what DALI decodes" in caplog.text

    def test_finds_the_dataset_where_workers_are_no_forks(self) -> None:
        forked, spawned = (self.starts(num_workers=1, multiprocessing_context=method) for method in ("fork", "spawn"))
        assert spawned == forked

    def test_a_stop_iteration_is_no_end_of_the_epoch(self) -> None:
        fails = lambda worker: next(iter(()))  # noqa: E731
        with (
            open_loader(worker_init_fn=fails, num_workers=1, multiprocessing_context="fork") as loader,
            pytest.raises(RuntimeError, match="worker_init_fn raised StopIteration"),
        ):
            list(loader)

    def test_seeds_follow_from_seed_and_rank(self) -> None:
        found = [
            self.starts(num_workers=1, **options)[0]
            for options in (
                {},
                {},
                {"seed": 6},
                {"rank": 1, "world_size": 2},
            )
        ]
        assert found[0] == found[1]
        assert len(set(found)) == 3

    def test_dalis_helpers_call_it_too(self) -> None:
        options = {"engine": "dali", "num_workers": 2, "decoders": gpupipe.Decoders(cpu_share=0.6, cpu_workers=1)}
        found = set(self.starts(**options))
        assert len(found) == 2
        assert -1 in found

    def test_is_not_called_without_workers(self) -> None:
        assert set(self.starts(num_workers=0)) == {-1}

    def test_its_exception_has_its_type(self) -> None:
        with open_loader(worker_init_fn=fails, num_workers=1) as loader, pytest.raises(KeyError, match="no file for 0"):
            next(iter(loader))

    @pytest.mark.parametrize("method", ["fork", "forkserver"])
    def test_has_to_be_picklable_where_it_is_sent(self, method: str) -> None:
        context = multiprocessing.get_context(method)

        def build() -> gpupipe.Loader:
            return open_loader(worker_init_fn=lambda worker: None, num_workers=1, multiprocessing_context=context)

        if method == "fork":
            with build() as loader:
                assert len(labels_of(loader)) == SIZE
            return
        with pytest.raises(gpupipe.ConfigError, match=r"worker_init_fn to its workers.*worker_init_fn \(function\)"):
            build()

    def test_has_to_be_callable(self) -> None:
        with pytest.raises(gpupipe.ConfigError, match="worker_init_fn=3"):
            open_loader(worker_init_fn=3)


# A change here would change the data of every run that is resumed.
GOLDEN = [(776925, 93910, 591382), (609325, 602336, 943261)]
