"""Every order through the Loader: other workers and ranks take it up at any step and give the undisturbed sequence."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from images import Numbered, encode, picture
from orders import EVERY_ORDER, SIZE, everything

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
                padding = sum(loader.padding for loader in self.loaders) if self._at_the_end() else 0
                made.append((labels[: len(labels) - padding].clone(), images[: len(images) - padding].clone()))
                if len(made) == most:
                    return made
        return made

    def _at_the_end(self) -> bool:
        loader = self.loaders[0]
        return loader.state_dict()["position"] == len(loader.order)

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
