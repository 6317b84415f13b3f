"""What each rank does in a launch of torchrun; rank 0 writes what came of it.

torchrun --standalone --nproc-per-node N torchrun_program.py results.json [--load state.json] --save state.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from images import Numbered, encode, picture

import gpupipe

SAMPLES, SMALL = 1201, 45  # no multiple of any world size but 1, and of 1 and 3
GLOBAL_BATCH = 168  # a multiple of 1, 2, 3, 4, 7 and 8
CLASSES, RATE = 4, 0.1


def dataset(samples: int) -> Numbered:
    """Sixteen pictures under many numbers."""
    return Numbered(samples, [encode(picture(16, 16, seed), quality=90) for seed in range(16)])


def open_loader(samples: int = SAMPLES, **options: Any) -> gpupipe.Loader:
    """On the CPU; rank and world size are those of torch.distributed, as nothing is said."""
    recipe = options.pop("recipe", gpupipe.imagenet_train(8))
    options = {"shuffle": True, "seed": 7, "num_workers": 0, "engine": "torch", "device": "cpu"} | options
    return gpupipe.Loader(dataset(samples), recipe, GLOBAL_BATCH // dist.get_world_size(), **options)


def from_all(value: Any) -> list[Any]:
    """The value of each rank."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def gathered_labels(loader: gpupipe.Loader, steps: int | None = None) -> Iterator[list[int]]:
    """The labels of each global batch, with an all_reduce on every step."""
    for step, (_, labels) in enumerate(loader, 1):
        ones = torch.ones(1)
        dist.all_reduce(ones)
        assert ones == dist.get_world_size()
        yield loader.gather(labels).tolist()
        if step == steps:
            return


def epoch() -> dict[str, Any]:
    """An epoch that does not divide: what each rank was given and flagged, and what gather makes of it."""
    with open_loader(num_workers=1) as loader:
        given, gathered = [], []
        for _, labels in loader:
            ones = torch.ones(1)
            dist.all_reduce(ones)
            assert ones == dist.get_world_size()
            given.append((labels.tolist(), loader.padding))
            gathered.append(loader.gather(labels).tolist())
        places = (loader.rank, loader.world_size, loader.batch_size)
    with open_loader(num_workers=0) as loader:
        again = list(gathered_labels(loader))
    return {"places": from_all(places), "given": from_all(given), "gathered": gathered, "without workers": again}


def training() -> dict[str, Any]:
    """The weights of a model that learns for an epoch under DistributedDataParallel, on each rank."""
    torch.manual_seed(dist.get_rank())  # DDP starts from rank 0's weights
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3 * 8 * 8, CLASSES))
    with torch.no_grad():
        for weights in model.parameters():
            weights.zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    with open_loader(drop_last=True) as loader:
        for images, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(images.flatten(1)), labels % CLASSES)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    weights = torch.cat([weights.detach().flatten() for weights in model.parameters()])
    return {"weights": from_all(weights.tolist())}


def evaluation() -> dict[str, Any]:
    """A value for each sample, gathered, and the mean over them."""
    with open_loader(recipe=gpupipe.imagenet_eval(8), shuffle=False) as loader:
        rows = []
        for images, labels in loader:
            means = images.mean(dim=(1, 2, 3))
            rows.append(loader.gather(torch.stack([labels.float(), means], dim=1)))
    found = torch.cat(rows)
    return {"labels": found[:, 0].int().tolist(), "mean": float(found[:, 1].double().mean())}


def every_step() -> dict[str, Any]:
    """The tails of an epoch of a small set, resumed at each step, and what the next epoch is after each."""
    with open_loader(GLOBAL_BATCH * 2 + SMALL) as loader:
        states = [loader.state_dict()]
        whole = []
        for batch in gathered_labels(loader):
            whole.append(batch)
            states.append(loader.state_dict())
        after = loader.state_dict()
        following = list(gathered_labels(loader))
    tails = [resumed(state) for state in states]
    return {"whole": whole, "following": following, "tails": tails, "after": resumed(after)}


def resumed(state: dict[str, Any]) -> list[list[list[int]]]:
    """What comes after the state: the rest of the epoch, and the next one."""
    with open_loader(GLOBAL_BATCH * 2 + SMALL) as loader:
        loader.load_state_dict(json.loads(json.dumps(state)))
        return [list(gathered_labels(loader)), list(gathered_labels(loader))]


def prefetched() -> dict[str, Any]:
    """The position after two steps with a queue that holds more."""
    with open_loader(num_workers=1, prefetch_factor=3) as loader:
        iterator = iter(loader)
        next(iterator)
        next(iterator)
        return {"positions": from_all(loader.state_dict()["position"])}


def refused() -> dict[str, Any]:
    """What each rank says to states of other runs."""
    with open_loader() as loader:
        state = loader.state_dict()
        others = [("seed", 8), ("global_batch", GLOBAL_BATCH + 1), ("drop_last", True), ("source", "other")]
        return {name: from_all(complaint(loader, state | {name: value})) for name, value in others}


def complaint(loader: gpupipe.Loader, state: dict[str, Any]) -> str:
    """The message of the error; nothing if there is none."""
    try:
        loader.load_state_dict(state)
    except gpupipe.StateError as error:
        return str(error)
    return ""


def left_early() -> dict[str, Any]:
    """The first steps of iterations that are left, and then a whole one."""
    with open_loader() as loader:
        starts = [list(gathered_labels(loader, steps)) for steps in (1, 3, 2)]
        return {"starts": starts, "then": list(gathered_labels(loader))}


def go_on(load: Path | None, save: Path, steps: int | None) -> dict[str, Any]:
    """Some steps of an epoch that other launches have begun, on DALI where there are two ranks."""
    engine = "dali" if dist.get_world_size() == 2 else "torch"
    with open_loader(engine=engine) as loader:
        if load is not None:
            loader.load_state_dict(json.loads(load.read_text()))
        batches = list(gathered_labels(loader, steps))
        states = from_all(loader.state_dict())
    if dist.get_rank() == 0:
        save.write_text(json.dumps(states[0]))
    return {"batches": batches, "states": states}


def main() -> None:
    """All parts, and the results of rank 0 as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path)
    parser.add_argument("--load", type=Path)
    parser.add_argument("--save", type=Path, required=True)
    parser.add_argument("--steps", type=int)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    parts = (epoch, training, evaluation, every_step, prefetched, refused, left_early)
    results = {part.__name__: part() for part in parts}
    results["go_on"] = go_on(args.load, args.save, args.steps)
    if dist.get_rank() == 0:
        args.results.write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
