"""What several ranks do together, in processes joined by gloo."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from images import Numbered, encode, picture

import gpupipe

JPEG = encode(picture(16, 16))


def open_loader(size: int, **options: Any) -> gpupipe.Loader:
    recipe = gpupipe.imagenet_eval(8)
    return gpupipe.Loader(Numbered(size, [JPEG]), recipe, 4, engine="torch", device="cpu", num_workers=0, **options)


def on_ranks(world: int, body: Callable[[int], Any], folder: Path) -> list[Any]:
    """What `body(rank)` returns on each of `world` processes; an exception comes back as its text."""
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(world)]

    def work(rank: int) -> None:
        store = dist.FileStore(str(folder / "store"), world)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
        try:
            pipes[rank][1].send(body(rank))
        except Exception as error:
            pipes[rank][1].send(f"{type(error).__name__}: {error}")
        dist.barrier()

    processes = [context.Process(target=work, args=(rank,), daemon=True) for rank in range(world)]
    for process in processes:
        process.start()
    results = [receiver.recv() if receiver.poll(60) else "nothing within 60 s" for receiver, _ in pipes]
    for process in processes:
        process.join(10)
    return results


@pytest.mark.parametrize(("world", "size"), [(2, 17), (3, 25), (3, 24), (3, 26)])
def test_gathered_evaluation_has_each_sample_once_in_order(world: int, size: int, tmp_path: Path) -> None:
    def evaluate(rank: int) -> list[list[int]]:
        with open_loader(size) as loader:
            assert (loader.rank, loader.world_size) == (rank, world)
            return [loader.gather(labels * 10).tolist() for _, labels in loader]

    results = on_ranks(world, evaluate, tmp_path)
    assert results == [results[0]] * world
    assert [label for step in results[0] for label in step] == [10 * index for index in range(size)]


def test_gather_takes_rows_of_any_shape(tmp_path: Path) -> None:
    def evaluate(rank: int) -> list[tuple[int, ...]]:
        with open_loader(9) as loader:
            return [tuple(loader.gather(images.mean(dim=1)).shape) for images, _ in loader]

    assert on_ranks(2, evaluate, tmp_path) == [[(8, 8, 8), (1, 8, 8)]] * 2


def test_forks_that_iterate_one_loader_have_memory_of_their_own() -> None:
    files = [encode(np.full((16, 16, 3), level, np.uint8)) for level in range(0, 250, 10)]
    recipe = gpupipe.imagenet_eval(8, dtype="uint8")
    loader = gpupipe.Loader(
        Numbered(25, files), recipe, 4, engine="torch", device="cpu", num_workers=2, rank=0, world_size=1
    )

    def iterate(delay: float) -> None:
        found = []
        for _ in range(3):
            for images, labels in loader:
                time.sleep(delay)
                found += [(int(label), int(image[0, 0, 0])) for image, label in zip(images, labels, strict=True)]
        assert [label for label, _ in found] == list(range(25)) * 3
        assert all(abs(level - 10 * label) <= 2 for label, level in found)

    context = multiprocessing.get_context("fork")
    forks = [context.Process(target=iterate, args=(delay,)) for delay in (0, 0.01)]
    for fork in forks:
        fork.start()
    for fork in forks:
        fork.join(60)
    assert [fork.exitcode for fork in forks] == [0, 0]


def test_a_loader_built_before_the_process_group_is_refused(tmp_path: Path) -> None:
    early = open_loader(9)
    chosen = open_loader(9, rank=0, world_size=1)

    def iterate(rank: int) -> int:
        assert len(list(chosen)) == 3  # every rank reads all, as was asked for
        return len(list(early))

    for result in on_ranks(2, iterate, tmp_path):
        assert result.startswith("ConfigError: the Loader was built for world_size=1, but torch.distributed now has 2")


def test_gather_on_one_rank_changes_nothing() -> None:
    with open_loader(9) as loader:
        assert [loader.gather(labels).tolist() for _, labels in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]


def test_gather_refuses_what_is_not_of_the_batch() -> None:
    with open_loader(9) as loader:
        with pytest.raises(gpupipe.ConfigError, match="no batch has been delivered"):
            loader.gather(torch.zeros(4))
        next(iter(loader))
        with pytest.raises(gpupipe.ConfigError, match="got 3 rows, but the batch delivered last has 4"):
            loader.gather(torch.zeros(3))
    with open_loader(9, rank=0, world_size=2) as loader:
        next(iter(loader))
        with pytest.raises(gpupipe.ConfigError, match=r"world_size=2, so torch\.distributed .* not been initialized"):
            loader.gather(torch.zeros(4))
