"""Torch samplers as orders: what they draw from, what a state says of them, and whether ranks agree on them."""

from __future__ import annotations

import copy
import json
import multiprocessing
import pickle
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from images import Numbered, encode, picture
from orders import everything
from test_distributed import on_ranks
from torch.utils.data import DistributedSampler, RandomSampler, Sampler, SubsetRandomSampler, WeightedRandomSampler

import gpupipe
from gpupipe.errors import ConfigError, StateError
from gpupipe.order import Interleaved, SamplerOrder

SIZE = 30
RANGE = range(SIZE)
JPEG = encode(picture(16, 16))


class Drawing(Sampler[int]):
    """A permutation by `draw`."""

    def __init__(self, draw: Callable[[Any], Any], **parts: Any) -> None:
        self.draw = draw
        self.__dict__.update(parts)

    def __len__(self) -> int:
        return SIZE

    def __iter__(self) -> Iterator[int]:
        return iter([int(index) for index in self.draw(self)])


class Wrapping(Sampler[int]):
    """Gives what another one gives."""

    def __init__(self, inner: Sampler[int]) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return SIZE

    def __iter__(self) -> Iterator[int]:
        return iter(self.inner)


def shuffled(rng: random.Random) -> list[int]:
    return rng.sample(range(SIZE), SIZE)


SAMPLERS: dict[str, Callable[[], Sampler[int]]] = {
    "torch": lambda: RandomSampler(range(SIZE)),
    "torch's generator": lambda: RandomSampler(
        range(SIZE), generator=torch.Generator().manual_seed(random.getrandbits(40))
    ),
    "numpy": lambda: Drawing(lambda self: np.random.permutation(SIZE)),  # noqa: NPY002
    "random": lambda: Drawing(lambda self: random.sample(range(SIZE), SIZE)),
    "own RandomState": lambda: Drawing(lambda self: self.rng.permutation(SIZE), rng=np.random.RandomState()),
    "own Generator": lambda: Drawing(lambda self: self.rng.permutation(SIZE), rng=np.random.default_rng()),
    "own Generator of another kind": lambda: Drawing(
        lambda self: self.rng.permutation(SIZE), rng=np.random.Generator(np.random.Philox())
    ),
    "own Random": lambda: Drawing(lambda self: shuffled(self.rng), rng=random.Random()),
    "inner": lambda: Wrapping(Drawing(lambda self: shuffled(self.rng), rng=random.Random())),
    "inner's inner": lambda: Wrapping(Wrapping(Drawing(lambda self: shuffled(self.rng), rng=random.Random()))),
    "in place": lambda: Drawing(lambda self: random.shuffle(self.left) or self.left, left=list(range(SIZE))),
    "in place, of a dict": lambda: Drawing(lambda self: random.shuffle(self.of[0]) or self.of[0], of={0: [*RANGE]}),
    "in place, of numpy": lambda: Drawing(lambda self: np.random.shuffle(self.left) or self.left, left=np.arange(SIZE)),  # noqa: NPY002
    "set_epoch of another": lambda: Wrapping(DistributedSampler(range(SIZE), num_replicas=1, rank=0, seed=3)),  # type: ignore[arg-type]
    "set_epoch": lambda: DistributedSampler(range(SIZE), num_replicas=1, rank=0, seed=3),  # type: ignore[arg-type]
    "weighted": lambda: WeightedRandomSampler(np.arange(SIZE) + 1.0, SIZE),  # type: ignore[arg-type]
}


def global_draws() -> list[float]:
    return [float(torch.rand(())), float(np.random.rand()), random.random()]  # noqa: NPY002


@pytest.mark.parametrize("name", SAMPLERS)
class TestDraws:
    def test_are_pure(self, name: str) -> None:
        order, other = SamplerOrder(SAMPLERS[name]()), SamplerOrder(SAMPLERS[name]())
        global_draws()
        first = everything(order, 3, 1).tolist()
        second = everything(order, 3, 2).tolist()
        global_draws()
        assert first != second
        assert everything(other, 3, 2).tolist() == second
        assert everything(other, 3, 1).tolist() == first
        if name != "weighted":
            assert sorted(first) == list(range(SIZE))

    def test_put_all_generators_back(self, name: str) -> None:
        def draws(sampler: Sampler[int], between: Callable[[], Any]) -> list[Any]:
            torch.manual_seed(1)
            np.random.seed(2)  # noqa: NPY002
            random.seed(3)
            between()
            return [list(sampler), list(sampler), global_draws()]

        sampler = SAMPLERS[name]()
        order = SamplerOrder(sampler)
        twin = copy.deepcopy(sampler)
        told = getattr(twin, "inner", twin)
        if isinstance(told, DistributedSampler):
            told.set_epoch(1)  # as a training loop would
        assert draws(twin, lambda: None) == draws(sampler, lambda: (everything(order, 3, 1), order.fingerprint))

    def test_the_fingerprint_changes_nothing(self, name: str) -> None:
        asked, silent = SamplerOrder(SAMPLERS[name]()), SamplerOrder(SAMPLERS[name]())
        found = []
        for order in (asked, silent):
            for epoch in range(3):
                found.append(everything(order, 5, epoch).tolist())
                if order is asked:
                    before = getattr(order.sampler, "epoch", None)
                    assert order.fingerprint == asked.fingerprint
                    assert getattr(order.sampler, "epoch", None) == before
        assert found[:3] == found[3:]

    def test_the_fingerprint_is_that_of_its_like(self, name: str) -> None:
        order, other = SamplerOrder(SAMPLERS[name]()), SamplerOrder(SAMPLERS[name]())
        everything(other, 5, 2)
        assert order.fingerprint == other.fingerprint


def test_a_cuda_generator_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "manual_seed", lambda seed: pytest.fail("seeds the GPU's generators, too"))
    everything(SamplerOrder(RandomSampler(range(SIZE))))


def test_what_is_listed_for_golden_runs() -> None:
    # Pinned: a change here would change the order of every run that is resumed.
    assert everything(SamplerOrder(RandomSampler(range(8))), 7, 3).tolist() == GOLDEN


@pytest.mark.parametrize(
    ("yields", "kind"), [([[0, 1], [2, 3]], r"int64 of shape \(2,\)"), ([0.5, 1.0], "float64"), ([True, False], "bool")]
)
def test_what_yields_no_samples_is_refused(yields: list[Any], kind: str) -> None:
    class Odd(Drawing):
        def __iter__(self) -> Iterator[Any]:
            return iter(yields)

    with pytest.raises(ConfigError, match=f"Odd yields {kind}.*one integer for each sample"):
        everything(SamplerOrder(Odd(shuffled)))


def open_loader(order: Any, batch_size: int = 4, **options: Any) -> gpupipe.Loader:
    options = {"engine": "torch", "num_workers": 0, "device": "cpu"} | options
    return gpupipe.Loader(Numbered(SIZE, [JPEG]), gpupipe.imagenet_eval(8), batch_size, order=order, **options)


def labels_of(batches: Any) -> list[int]:
    return [label for _, labels in batches for label in labels.tolist()]


def weighted(power: float = 1.0) -> WeightedRandomSampler:
    return WeightedRandomSampler(((np.arange(SIZE) + 1.0) ** power).tolist(), SIZE)


def saved(order: Any, path: Path) -> None:
    with open_loader(order) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        path.write_text(json.dumps([state, labels_of(batches)]))


class TestStates:
    @pytest.mark.parametrize("method", ["fork", "spawn"])
    def test_another_process_goes_on_with_the_same_weights(self, method: str, tmp_path: Path) -> None:
        process = multiprocessing.get_context(method).Process(target=saved, args=(weighted(), tmp_path / "state"))
        process.start()
        process.join(60)
        state, rest = json.loads((tmp_path / "state").read_text())
        assert len(json.dumps(state)) < 1000
        with open_loader(weighted()) as loader:
            loader.load_state_dict(state)
            assert labels_of(loader) == rest
        ranks = [open_loader(weighted(), batch_size=2, rank=rank, world_size=2) for rank in range(2)]
        for loader in ranks:
            loader.load_state_dict(state)
        steps = [[labels.tolist() for _, labels in loader] for loader in ranks]
        assert [label for step in zip(*steps, strict=True) for part in step for label in part] == rest
        for loader in ranks:
            loader.close()

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            (lambda: weighted(), lambda: weighted(2.0)),
            (lambda: SubsetRandomSampler(range(20)), lambda: SubsetRandomSampler(range(1, 21))),
            (lambda: SAMPLERS["numpy"](), lambda: Drawing(lambda self: range(SIZE))),
            (
                lambda: gpupipe.Repeated(SamplerOrder(weighted()), 2),
                lambda: gpupipe.Repeated(SamplerOrder(weighted(2.0)), 2),
            ),
        ],
    )
    def test_another_list_is_refused(self, first: Callable[[], Any], second: Callable[[], Any]) -> None:
        with open_loader(first()) as loader, open_loader(second()) as other:
            next(iter(loader))
            with pytest.raises(StateError, match=r"order is '.*', but this loader has '.*same weights or indices"):
                other.load_state_dict(loader.state_dict())

    def test_weights_may_change_from_epoch_to_epoch(self) -> None:
        def run(loader: gpupipe.Loader, sampler: Any) -> None:
            labels_of(loader)
            loader.state_dict()
            sampler.weights = torch.tensor((np.arange(SIZE) + 1.0) ** 3)

        sampler, other = weighted(), weighted(3.0)
        with open_loader(sampler) as loader, open_loader(other) as resumed:
            run(loader, sampler)
            batches = iter(loader)
            next(batches)
            resumed.load_state_dict(loader.state_dict())
            assert labels_of(resumed) == labels_of(batches)

    @pytest.mark.parametrize(
        "wrap",
        [
            lambda order: Interleaved([order], [SIZE], [1]),
            lambda order: gpupipe.BudgetBatches(order, np.ones(SIZE, np.int64), 4, 4),
        ],
    )
    def test_so_may_those_within_another_order(self, wrap: Callable[[Any], Any]) -> None:
        sampler = weighted()
        order, other = wrap(SamplerOrder(sampler)), wrap(SamplerOrder(weighted(3.0)))
        everything(order)
        before = order.fingerprint
        sampler.weights = torch.tensor((np.arange(SIZE) + 1.0) ** 3)
        everything(order, 0, 1)
        assert before != order.fingerprint == other.fingerprint

    @pytest.mark.parametrize("count", [10, 25, 0])
    def test_another_length_is_refused(self, count: int) -> None:
        sampler = SubsetRandomSampler(range(20))
        with open_loader(sampler) as loader:
            batches = iter(loader)
            next(batches)
            sampler.indices = list(range(count))
            assert len(labels_of(batches)) == 16  # of an epoch that has begun
            assert len(loader) == 5
            with pytest.raises(ConfigError, match=f"Sampler has {count} samples in epoch 1, but had 20 when .* anew"):
                labels_of(loader)
        with open_loader(sampler) as loader:
            assert sorted(labels_of(loader)) == list(range(count))

    def test_an_order_is_pickled(self) -> None:
        order = SamplerOrder(weighted())
        everything(order, 1, 1)
        assert pickle.loads(pickle.dumps(order)).fingerprint == order.fingerprint

    def test_threads_take_turns(self) -> None:
        def draw(self: Any) -> list[int]:
            time.sleep(0.0005)  # lets another thread go on, between the seed and the draw
            return random.sample(range(SIZE), SIZE)

        order = SamplerOrder(Drawing(draw))
        expected = [everything(order, 1, epoch).tolist() for epoch in range(8)]
        found: dict[int, list[int]] = {}

        def work(epoch: int) -> None:
            for _ in range(4):
                found[epoch] = everything(order, 1, epoch).tolist()
                assert order.fingerprint

        threads = [threading.Thread(target=work, args=(epoch,)) for epoch in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [found[epoch] for epoch in range(8)] == expected


def differing(rank: int, same: int) -> Sampler[int]:
    """The ranks agree on the first samples only."""
    return Drawing(lambda self: [*range(same), *((np.arange(SIZE - same) + rank) % (SIZE - same) + same)])


class TestRanks:
    @pytest.mark.parametrize("name", SAMPLERS)
    def test_read_each_sample_once(self, name: str, tmp_path: Path) -> None:
        def read(rank: int) -> list[list[int]]:
            torch.manual_seed(rank)
            np.random.seed(rank)  # noqa: NPY002
            random.seed(rank)
            with open_loader(SAMPLERS[name](), batch_size=3) as loader:
                return [labels_of(loader) for _ in range(2)]

        parts = on_ranks(2, read, tmp_path)
        for epoch in range(2):
            steps = [np.array(part[epoch]).reshape(-1, 3) for part in parts]
            assert np.hstack(steps).ravel().tolist() == everything(SamplerOrder(SAMPLERS[name]()), 0, epoch).tolist()

    @pytest.mark.parametrize(("same", "where"), [(0, "the first position"), (9, "a position between 8 and 16")])
    @pytest.mark.parametrize("engine", ["torch", "dali"])
    def test_different_lists_are_an_error_on_the_later_rank(
        self, same: int, where: str, engine: str, tmp_path: Path
    ) -> None:
        def read(rank: int) -> int:
            with open_loader(differing(rank, same), engine=engine, num_workers=int(engine == "dali")) as loader:
                return len(labels_of(loader))

        results = on_ranks(2, read, tmp_path)
        (refused,) = [rank for rank in range(2) if isinstance(results[rank], str)]
        assert results[1 - refused] == SIZE // 2
        assert results[refused].startswith(
            f"ConfigError: order sampler-Drawing-{SIZE}: Drawing lists other samples in epoch 0 on rank {refused} than "
            f"on rank {1 - refused}, from {where} on. "
        )

    def test_a_list_that_differs_only_later_is_found_there(self, tmp_path: Path) -> None:
        def read(rank: int) -> list[Any]:
            sampler = DistributedSampler(range(SIZE), num_replicas=1, rank=0, seed=1)  # type: ignore[arg-type]
            with open_loader(sampler) as loader:
                first = len(labels_of(loader))
                sampler.seed += rank
                try:
                    return [first, len(labels_of(loader))]
                except ConfigError as error:
                    return [first, str(error)]

        results = on_ranks(2, read, tmp_path)
        assert [result[0] for result in results] == [SIZE // 2] * 2
        assert sum("in epoch 1 on rank" in str(result[1]) for result in results) == 1

    def test_different_lists_of_a_mixtures_sources_are_an_error(self, tmp_path: Path) -> None:
        def read(rank: int) -> int:
            shared, own = (SamplerOrder(differing(among, 9)) for among in (0, rank))
            orders = {"a": gpupipe.Repeated(shared, 1), "b": gpupipe.Repeated(own, 1), "c": shared}
            data = gpupipe.Mixture({name: (Numbered(SIZE, [JPEG]), 1) for name in "abc"}, orders=orders)
            with gpupipe.Loader(data, gpupipe.imagenet_eval(8), 45, engine="torch", num_workers=0) as loader:
                assert [len(inner.watchers) for inner in (shared, own)] == [1, 1]
                return len(labels_of(loader))

        results = on_ranks(2, read, tmp_path)
        (refused,) = [rank for rank in range(2) if isinstance(results[rank], str)]
        assert results[1 - refused] == SIZE * 3 // 2
        assert f"Drawing lists other samples in epoch 0 on rank {refused} than on rank" in results[refused]

    def test_one_that_remembers_is_found_where_an_epoch_is_read_again(self, tmp_path: Path) -> None:
        def read(rank: int) -> str:
            counted: list[int] = []  # out of sight
            sampler = Drawing(lambda self: counted.append(1) or np.roll(np.arange(SIZE), len(counted)))
            with open_loader(sampler) as loader:
                for epoch in (0, 1):
                    loader.set_epoch(epoch)
                    labels_of(loader)
                loader.set_epoch(0)
                return str(labels_of(loader))

        assert all("in epoch 0" in result for result in on_ranks(2, read, tmp_path))

    @pytest.mark.parametrize("world", [1, 2])
    def test_loaders_with_ranks_of_their_own_take_no_part(self, world: int, tmp_path: Path) -> None:
        def read(rank: int) -> int:
            with open_loader(differing(rank, 0), rank=rank % world, world_size=world) as loader:
                return len(labels_of(loader))

        assert on_ranks(2, read, tmp_path) == [SIZE // world] * 2

    def test_nobody_waits_for_a_rank_that_lists_later_or_never(self, tmp_path: Path) -> None:
        def read(rank: int) -> int:
            loader = open_loader(weighted())
            if rank == 0:
                dist.barrier()  # the other one reads, alone, before this one begins
            found = len(labels_of(loader))
            if rank == 1:
                dist.barrier()
            return found

        assert on_ranks(2, read, tmp_path) == [SIZE // 2] * 2

    def test_loaders_are_told_apart(self, tmp_path: Path) -> None:
        def read(rank: int) -> list[int]:
            with open_loader(weighted()) as one, open_loader(weighted(2.0)) as two:
                loaders = [one, two] if rank else [two, one]  # in whatever order they are read
                return [len(labels_of(loader)) for loader in loaders]

        assert on_ranks(2, read, tmp_path) == [[SIZE // 2] * 2] * 2

    def test_a_store_that_cannot_compare_is_left_alone(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def fails() -> Any:
            raise ValueError("no store")

        monkeypatch.setattr("torch.distributed.distributed_c10d._get_default_store", fails)

        def read(rank: int) -> int:
            with open_loader(differing(rank, 0)) as loader:
                return len(labels_of(loader))

        assert on_ranks(2, read, tmp_path) == [SIZE // 2] * 2


GOLDEN = [0, 6, 7, 1, 5, 4, 3, 2]
