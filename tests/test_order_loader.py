"""Every order through the Loader: other workers and ranks take it up at any step and give the undisturbed sequence."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from engines import ENGINES
from images import Numbered, encode, picture
from orders import EVERY_ORDER, LABELS, SIZE, Users, everything

import gpupipe
from gpupipe.order import Order

GLOBAL_BATCH, SEED = 8, 11
FILES = [encode(picture(24, 32, seed=index), quality=80) for index in range(SIZE)]

Batch = tuple[torch.Tensor, torch.Tensor]  # ids and pixels of a global batch


class World:
    """So many ranks in one process, in step."""

    def __init__(self, order: Order, ranks: int, workers: int = 0) -> None:
        self.loaders = [
            gpupipe.Loader(
                Numbered(SIZE, FILES),
                gpupipe.imagenet_train(16, dtype="uint8"),
                GLOBAL_BATCH // ranks,
                order=order,
                seed=SEED,
                engine="torch",
                device="cpu",
                num_workers=workers,
                rank=rank,
                world_size=ranks,
            )
            for rank in range(ranks)
        ]

    def run(self, epochs: range, most: int = 10**9) -> list[Batch]:
        """The next global batches, `most` or as many as these epochs still have; padding is cut off."""
        made: list[Batch] = []
        for epoch in epochs:
            for loader in self.loaders:
                loader.set_epoch(epoch)
            for parts in zip(*self.loaders, strict=True):
                images, labels = (torch.cat([part[which] for part in parts]) for which in (0, 1))
                padding = sum(loader.padding for loader in self.loaders)
                made.append((labels[: len(labels) - padding].clone(), images[: len(images) - padding].clone()))
                if len(made) == most:
                    return made
        return made

    def states(self) -> list[dict]:
        return [loader.state_dict() for loader in self.loaders]

    def load(self, state: dict) -> None:
        for loader in self.loaders:
            loader.load_state_dict(state)

    def close(self) -> None:
        for loader in self.loaders:
            loader.close()


@pytest.mark.parametrize("make", EVERY_ORDER.values(), ids=EVERY_ORDER)
def test_goes_on_with_other_ranks_and_workers(make: Callable[[], Order]) -> None:
    undisturbed = World(make(), ranks=1)
    whole = undisturbed.run(range(2))
    undisturbed.close()
    expected = [everything(make(), SEED, epoch) for epoch in range(2)]
    assert torch.cat([ids for ids, _ in whole]).tolist() == np.concatenate(expected).tolist()

    rng = np.random.default_rng(len(whole))
    cuts = np.sort(rng.choice(np.arange(1, len(whole)), 2, replace=False)).tolist()
    resumed: list[Batch] = []
    state, epoch = None, 0
    for ranks, workers, steps in zip((8, 2, 8), (0, 1, 0), np.diff([0, *cuts, len(whole)]).tolist(), strict=True):
        world = World(make(), ranks, workers)
        if state is not None:
            world.load(state)
        resumed += world.run(range(epoch, 2), most=steps)
        states = world.states()
        world.close()
        assert all(other == states[0] for other in states)
        state, epoch = states[0], states[0]["epoch"]

    assert len(resumed) == len(whole)
    for (ids, pixels), (other_ids, other_pixels) in zip(whole, resumed, strict=True):
        assert ids.tolist() == other_ids.tolist()
        assert torch.equal(pixels, other_pixels)


def test_repeats_of_a_sample_are_cropped_differently() -> None:
    world = World(gpupipe.Repeated(gpupipe.Sequential(SIZE), 4), ranks=1)
    ids, pixels = world.run(range(1), most=1)[0]
    world.close()
    assert ids.tolist() == [0, 1, 0, 1, 0, 1, 0, 1]
    assert all(not torch.equal(pixels[0], pixels[copy]) for copy in (2, 4, 6))


def test_a_split_is_two_datasets() -> None:
    source = gpupipe.open_source(Numbered(SIZE, FILES))
    train, val = gpupipe.split(source, (0.8, 0.2))
    orders = gpupipe.Subset(train, shuffle=True), gpupipe.Subset(val)
    delivered = []
    for order in orders:
        world = World(order, ranks=2)
        delivered.append(torch.cat([ids for ids, _ in world.run(range(1))]).tolist())
        world.close()
    assert sorted(delivered[0]) == train.tolist()
    assert delivered[1] == val.tolist()
    assert sorted(delivered[0] + delivered[1]) == list(range(SIZE))


def test_an_order_of_a_larger_dataset_is_refused() -> None:
    for order in (gpupipe.BlockShuffled([SIZE, 1], 1), gpupipe.Stratified([0] * (SIZE + 1), 8)):
        with pytest.raises(gpupipe.ConfigError, match=f"{SIZE + 1} samples or more"):
            World(order, ranks=1)


@pytest.mark.parametrize(("batch_size", "told"), [(4, False), (8, True)])
def test_shares_of_another_global_batch_are_told(batch_size: int, told: bool, caplog: pytest.LogCaptureFixture) -> None:
    order = gpupipe.NodeBlocks([4] * (SIZE // 4), nodes=2, batch_size=2 * batch_size)
    World(order, ranks=2).close()
    assert ("nodes read of each other's shares" in caplog.text) is told


def bucketed(order: Order, ranks: int = 1, **options: Any) -> list[gpupipe.Loader]:
    """A loader for each rank, of samples whose label is their number."""
    recipe = gpupipe.imagenet_eval(16, dtype="uint8")
    settings = {"engine": "torch", "device": "cpu", "num_workers": 0, "world_size": ranks, "seed": SEED} | options
    return [gpupipe.Loader(Numbered(SIZE, FILES), recipe, order=order, rank=rank, **settings) for rank in range(ranks)]


@pytest.mark.parametrize("engine", ENGINES)
def test_batches_are_the_orders(engine: dict[str, Any]) -> None:
    order = gpupipe.Buckets(LABELS, [4, 7])
    (loader,) = bucketed(order, **engine)
    assert loader.batch_size == 7
    assert len(loader) == len(loader.batch_sampler) == -(-13 // 4) - (-24 // 7)
    for epoch in range(2):
        batches = [labels.tolist() for _, labels in loader]
        starts = order.starts(SEED, epoch).tolist()
        listed = everything(order, SEED, epoch).tolist()
        assert batches == [listed[begin:end] for begin, end in itertools.pairwise(starts)]
    loader.set_epoch(1)
    assert list(loader.batch_sampler) == batches
    loader.close()


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_gathered_batches_have_each_sample_once(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    order = gpupipe.BudgetBatches(gpupipe.Shuffled(SIZE), 1 + LABELS, 10, 9)
    loaders = bucketed(order, ranks)
    seen: list[int] = []
    for parts in zip(*loaders, strict=True):
        rows = torch.cat([labels for _, labels in parts])
        monkeypatch.setattr("gpupipe.loader.loader.gathered", lambda values, world, rows=rows: rows)
        whole = [loader.gather(labels) for loader, (_, labels) in zip(loaders, parts, strict=True)]
        assert all(torch.equal(one, whole[0]) for one in whole)
        assert sum(loader.padding for loader in loaders) == len(rows) - len(whole[0]) < ranks
        seen += whole[0].tolist()
        told = {loader._remainder for loader in loaders}
    assert seen == everything(order, SEED, 0).tolist()
    assert told == {len(whole[0]) if len(rows) > len(whole[0]) else 0}, "what Accelerate is told of the last batch"
    assert {len(loader.sampler) for loader in loaders} == {sum(1 for loader in loaders[:1] for _ in loader.sampler)}


def test_a_bad_sample_is_replaced_by_one_of_its_bucket() -> None:
    files = [b"no image" if index % 5 == 0 else file for index, file in enumerate(FILES)]
    loader = gpupipe.Loader(
        Numbered(SIZE, files),
        gpupipe.imagenet_eval(16),
        order=gpupipe.Buckets(LABELS, 4),
        engine="torch",
        device="cpu",
        num_workers=0,
        on_error="skip",
    )
    for _ in loader:
        found = loader.last_indices
        assert found is not None
        assert (found % 5 != 0).all()
        assert len(set(LABELS[found].tolist())) == 1
    assert sorted(bad.index for bad in loader.bad_samples) == list(range(0, SIZE, 5))


@pytest.mark.parametrize(
    "order",
    [
        gpupipe.Buckets([int(index == 7) for index in range(SIZE)], 4),
        gpupipe.BudgetBatches(gpupipe.Shuffled(SIZE), [3 * (index != 7) for index in range(SIZE)], 12, 8),
    ],
    ids=["the only one of its bucket", "unreadable, so that it costs nothing"],
)
def test_a_bad_sample_like_which_there_is_no_other_is_replaced(order: Order) -> None:
    files = [b"no image" if index == 7 else file for index, file in enumerate(FILES)]
    options = {"engine": "torch", "device": "cpu", "num_workers": 0, "on_error": "skip", "order": order}
    loader = gpupipe.Loader(Numbered(SIZE, files), gpupipe.imagenet_eval(16), **options)
    seen = sorted(label for _, labels in loader for label in labels.tolist())
    assert len(seen) == SIZE
    assert set(seen) == set(range(SIZE)) - {7}


def test_a_bad_sample_of_a_users_batch_is_replaced_by_another_of_it() -> None:
    class Own(Users):
        largest = 5

        def starts(self, seed: int, epoch: int) -> np.ndarray:
            return np.append(np.arange(0, SIZE, 5), SIZE)

    files = [b"no image" if index in (4, 20, 21, 22, 23, 24) else file for index, file in enumerate(FILES)]
    recipe, order = gpupipe.imagenet_eval(16), Own()
    options = {"engine": "torch", "device": "cpu", "num_workers": 0, "on_error": "skip", "order": order}
    loader = gpupipe.Loader(Numbered(SIZE, files), recipe, **options)
    batches = iter(loader)
    assert next(batches)[1].tolist() == [0, 1, 2, 3, 0]
    with pytest.raises(gpupipe.DataError, match=r"the 5 samples .* are all bad"):
        list(batches)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (
            {"batch_size": 3},
            "batch_size=3, but the order, Buckets, makes the batches itself: of 8 samples at mo",
        ),
        ({"drop_last": True}, "drop_last=True, but the order, Buckets, .*; pass it to the order"),
        ({"shuffle": True}, "exclude each other"),
    ],
)
def test_what_does_not_go_with_batches_of_the_order(options: dict[str, Any], match: str) -> None:
    with pytest.raises(gpupipe.ConfigError, match=match):
        bucketed(gpupipe.Buckets(LABELS, 8), 2, **options)
    assert bucketed(gpupipe.Buckets(LABELS, 8), 2, batch_size=4)[0].batches.global_batch == 8


def test_buckets_of_fewer_samples_than_there_are_are_refused() -> None:
    sizes = [(40, 50)] * (SIZE - 3)
    orders = gpupipe.Buckets.by_aspect(sizes, [(16, 16)], 4), gpupipe.Buckets.by_size(sizes, 4000)
    for order in (*orders, gpupipe.Buckets([0] * (SIZE - 3), 4, drop_last=True)):
        with pytest.raises(gpupipe.ConfigError, match=f"buckets of {SIZE - 3} samples, and the other 3 "):
            gpupipe.Loader(Numbered(SIZE, FILES), gpupipe.imagenet_eval(), order=order)


def test_mixing_does_not_go_with_batches_of_the_order() -> None:
    recipe = gpupipe.Recipe([gpupipe.RandomResizedCrop(16), gpupipe.MixUp(SIZE)])
    with pytest.raises(gpupipe.ConfigError, match="mixes neighbours, and Buckets"):
        gpupipe.Loader(Numbered(SIZE, FILES), recipe, order=gpupipe.Buckets(LABELS, 8))


def test_a_state_of_other_buckets_is_refused() -> None:
    (loader,) = bucketed(gpupipe.Buckets(LABELS, [4, 7]))
    next(iter(loader))
    state = loader.state_dict()
    for other in (gpupipe.Buckets(LABELS, [7, 4]), gpupipe.Buckets(1 - LABELS % 2, [4, 7])):
        with pytest.raises(gpupipe.StateError, match="order is"):
            bucketed(other)[0].load_state_dict(state, allow_new_global_batch=True)
    with pytest.raises(gpupipe.StateError, match="which is no step"):
        loader.load_state_dict(state | {"position": state["position"] - 1})
