"""Memory that is used again must never be written while someone may still read it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import gpupipe
from gpupipe.workers.slots import Slots

ALIASING = gpupipe.imagenet_train(32, dtype="uint8", layout="channels_last")  # what the consumer gets is a slot itself


def loader(folder: Path, workers: int, **options: object) -> gpupipe.Loader:
    return gpupipe.Loader(
        folder, ALIASING, batch_size=2, shuffle=True, engine="torch", device="cpu", num_workers=workers, **options
    )


@pytest.fixture(scope="module")
def truth(folder: Path) -> list[torch.Tensor]:
    """The first epoch's batches, each copied before the next was made."""
    with loader(folder, 0) as batches:
        return [images.clone() for images, _ in batches]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_batches_that_are_kept_stay_as_they_are(folder: Path, workers: int, truth: list[torch.Tensor]) -> None:
    """There are more of them than slots."""
    with loader(folder, workers) as batches:
        kept = [images for images, _ in batches]
        assert len(kept) > 2 + 2 * workers
        again = [images for images, _ in batches]
        assert all(torch.equal(image, expected) for image, expected in zip(kept, truth, strict=True))
        assert not all(torch.equal(image, expected) for image, expected in zip(again, truth, strict=True))


@pytest.mark.parametrize("workers", [0, 2])
def test_memory_is_used_again(folder: Path, workers: int) -> None:
    addresses = set()
    with loader(folder, workers, persistent_workers=workers > 0) as batches:
        for _ in range(3):
            for images, _ in batches:
                addresses.add(images.data_ptr())
            del images
    assert len(addresses) <= 2 + 2 * workers


@pytest.mark.parametrize("persistent", [False, True])
def test_an_epoch_left_early_gives_its_memory_back(folder: Path, persistent: bool, truth: list[torch.Tensor]) -> None:
    with loader(folder, 2, persistent_workers=persistent) as batches:
        for _ in range(4):
            batches.set_epoch(0)
            held = next(iter(batches))[0]
        batches.set_epoch(0)
        made = [images.clone() for images, _ in batches]
        assert all(torch.equal(image, expected) for image, expected in zip(made, truth, strict=True))
        assert torch.equal(held, truth[0])
        slots = batches._engine._slots
        del held
        assert sorted(slots._free) == list(range(6))


def test_workers_that_are_spawned_write_into_the_same_memory(folder: Path, truth: list[torch.Tensor]) -> None:
    with loader(folder, 1, multiprocessing_context="spawn") as batches:
        made = [images.clone() for images, _ in batches]
    assert all(torch.equal(image, expected) for image, expected in zip(made, truth, strict=True))


def test_a_slot_is_free_when_its_last_view_is_gone() -> None:
    slots = Slots(2, 3, [(4,)], shared=False)
    first, second = slots.give(), slots.give()
    assert {first, second} == {0, 1}
    assert slots.give() is None
    slots.batch(first, 3)[0].fill_(7)
    slots.labels(first, 3).fill_(5)
    (images,), labels = slots.lend(first, 2)
    view = images[1:]
    del images
    assert view.tolist() == [[7] * 4]
    assert labels.tolist() == [5, 5]
    assert slots.give() is None
    del view
    assert slots.give() == first
    slots.take_back()
    assert {slots.give(), slots.give()} == {0, 1}
    np.testing.assert_array_equal(slots.batch(first, 3)[0].numpy(), np.full((3, 4), 7))


def test_who_keeps_two_batches_gets_copies_so_that_workers_always_have_slots() -> None:
    slots, kept = Slots(5, 2, [(4,)], shared=False), []
    for number in range(20):
        slot = slots.give()
        assert slot is not None
        slots.batch(slot, 2)[0].fill_(number)
        kept.append(slots.lend(slot, 2)[0][0])
        assert len(slots._free) >= 3
    assert [int(images[0, 0]) for images in kept] == list(range(20))


def test_views_of_several_sizes_lie_apart_in_a_slot_and_come_back_together() -> None:
    slots = Slots(1, 3, [(2, 2), (5,)], shared=False)
    slot = slots.give()
    assert slot == 0
    for number, view in enumerate(slots.batch(slot, 3), start=1):
        view.fill_(number)
    large, small = slots.lend(slot, 2)[0]
    assert large.tolist() == [[[1, 1], [1, 1]]] * 2
    assert small.tolist() == [[2] * 5] * 2
    del large
    assert slots.give() is None
    del small
    assert slots.give() == slot
