"""Memory that is used again must never be written while someone may still read it."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

import gpupipe
from gpupipe.host import system
from gpupipe.workers import memory
from gpupipe.workers.memory import SharedMemory
from gpupipe.workers.slots import Slots
from gpupipe.workers.work import Plane

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
        slots = batches._engine._tasks._slots
        del held
        assert sorted([*slots._free, *slots._given]) == list(range(6))


def test_workers_that_are_spawned_write_into_the_same_memory(folder: Path, truth: list[torch.Tensor]) -> None:
    with loader(folder, 1, multiprocessing_context="spawn") as batches:
        made = [images.clone() for images, _ in batches]
    assert all(torch.equal(image, expected) for image, expected in zip(made, truth, strict=True))


def plane(name: str, *shape: int, view: int = 0, dtype: torch.dtype = torch.uint8) -> Plane:
    return Plane(name, view, shape, dtype)


def test_a_slot_is_free_when_its_last_view_is_gone() -> None:
    slots = Slots(2, 3, [plane("image", 4)], shared=False)
    first, second = slots.give(), slots.give()
    assert {first, second} == {0, 1}
    assert slots.give() is None
    slots.planes(first, slice(0, 3))["image"][0].fill_(7)
    (images,) = slots.take(first, (), 2)[1]["image"]
    view = images[1:]
    del images
    assert view.tolist() == [[7] * 4]
    assert slots.give() is None
    del view
    assert slots.give() == first
    slots.take_back()
    assert {slots.give(), slots.give()} == {0, 1}
    np.testing.assert_array_equal(slots.planes(first, slice(0, 3))["image"][0].numpy(), np.full((3, 4), 7))


def test_who_keeps_two_batches_gets_copies_so_that_workers_always_have_slots() -> None:
    slots, kept = Slots(5, 2, [plane("image", 4)], shared=False), []
    for number in range(20):
        slot = slots.give()
        assert slot is not None
        slots.planes(slot, slice(0, 2))["image"][0].fill_(number)
        kept.append(slots.take(slot, (), 2)[1]["image"][0])
        assert len(slots._free) >= 3
    assert [int(images[0, 0]) for images in kept] == list(range(20))


def test_planes_lie_apart_in_a_slot_and_come_back_together() -> None:
    layout = [plane("image", 2, 2), plane("image", 5, view=1), plane("mask", 3, dtype=torch.int64), plane("odd", 1)]
    slots = Slots(1, 3, layout, shared=False)
    slot = slots.give()
    assert slot == 0
    made = slots.planes(slot, slice(0, 3))
    for number, view in enumerate((*made["image"], *made["mask"], *made["odd"]), start=1):
        view.fill_(number)
    lent = slots.take(slot, (), 2)[1]
    assert [view.tolist() for view in lent["image"]] == [[[[1, 1], [1, 1]]] * 2, [[2] * 5] * 2]
    (mask,) = lent["mask"]
    assert (mask.dtype, mask.tolist()) == (torch.int64, [[3] * 3] * 2)
    assert lent.pop("odd")[0].tolist() == [[4]] * 2
    del lent["image"]
    assert slots.give() is None
    del mask, lent
    assert slots.give() == slot


class TestWhatABatchHasBesideItsPlanes:
    """A slot's file has room behind what is mapped."""

    @pytest.mark.parametrize("call", ["", "pwrite", "posix_fallocate"])
    def test_it_comes_back_and_the_message_stays_small(self, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
        slots = Slots(3, 2, [plane("image", 4)], shared=True)
        if call:  # finds no room
            full = OSError(errno.ENOSPC, "No space left on device")
            monkeypatch.setattr(os, call, mock.Mock(side_effect=full))
        large = torch.randn(3, 100_000)
        failures = {1: gpupipe.SampleError(1, "here", "bad" * 1000)}
        rests = [
            (slot, part, {"text": ["a", "bc"], "large": large + slot + part, "number": slot, "failures": failures})
            for slot in (0, 2)
            for part in range(3)
        ]
        put = {slot: [slots.put(slot, one[2], one[1], 3) for one in rests if one[0] == slot] for slot in (0, 2)}
        monkeypatch.undo()
        for slot in (0, 1, 2):
            slots.planes(slot, slice(0, 2))["image"][0].fill_(9)
        for slot, ones in put.items():
            assert all((len(pickle.dumps(one)) < 4096) == (not call) for one in ones)
            for part, back in enumerate(slots.take(slot, ones, 0)[0]):
                assert (back["text"], back["number"]) == (["a", "bc"], slot)
                assert torch.equal(back["large"], large + slot + part)
                back["large"] += 1  # it is the consumer's own
                assert back["failures"][1].reason == "bad" * 1000

    def test_a_slot_is_free_when_the_last_large_array_is_gone(self) -> None:
        slots = Slots(1, 2, [plane("image", 4)], shared=True)
        slot = slots.give()
        assert slot == 0
        put = slots.put(slot, [np.full(1 << 18, 1.5), np.ones(10), np.zeros(1 << 19, np.uint8)])
        large, small, zeros = slots.take(slot, [put], 1)[0][0]
        assert slots.give() is None
        view = large[5:]
        del large, zeros
        assert slots.give() is None
        assert view.tolist() == [1.5] * len(view)
        del view
        assert slots.give() == slot
        assert small.tolist() == [1] * 10

    def test_who_keeps_large_arrays_gets_copies(self) -> None:
        slots, kept = Slots(4, 2, [], shared=True), []
        for number in range(10):
            slot = slots.give()
            assert slot is not None
            put = slots.put(slot, np.full(1 << 18, number))
            kept.append(slots.take(slot, [put], 0)[0][0])
        assert [int(array[-1]) for array in kept] == list(range(10))

    def test_parts_never_write_into_each_other(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("gpupipe.workers.slots.ROOM", 1 << 20)
        slots = Slots(1, 2, [], shared=True)
        large = [np.full(1 << 19, part, np.uint8) for part in range(3)]
        put = [slots.put(0, array, part, 3) for part, array in enumerate(large)]
        assert all(one.within for one in put)
        for made, array in zip(slots.take(0, put, 0)[0], large, strict=True):
            np.testing.assert_array_equal(made, array)

    def test_other_faults_are_raised(self, monkeypatch: pytest.MonkeyPatch) -> None:
        slots = Slots(1, 2, [plane("image", 4)], shared=True)
        monkeypatch.setattr(os, "pwrite", mock.Mock(side_effect=OSError(errno.EIO, "Input/output error")))
        with pytest.raises(OSError, match="Input/output"):
            slots.put(0, {})


def test_memory_that_a_full_disk_lacks_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "shm_bytes_free", lambda: 1 << 20)
    monkeypatch.setattr(system, "shm_bytes_total", lambda: 64 << 20)  # others have 63
    monkeypatch.setattr(os, "posix_fallocate", mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(gpupipe.ConfigError, match=r"/dev/shm has no room for the 3 MiB .*--shm-size=69m"):
        SharedMemory(3 << 20)


@pytest.mark.parametrize("folder", ["/no/such/folder", "/proc"])
def test_memory_needs_no_folder_for_it(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "FOLDER", folder)
    slots = Slots(2, 2, [plane("image", 4)], shared=True)
    slot = slots.give()
    assert slot is not None
    child = os.fork()
    if child == 0:
        slots.planes(slot, slice(0, 2))["image"][0].fill_(3)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert slots.take(slot, (), 2)[1]["image"][0].tolist() == [[3] * 4] * 2
