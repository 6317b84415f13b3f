"""The constructor's arguments and the attributes beside DataLoader's own."""

from __future__ import annotations

import inspect
import json
import math
import multiprocessing
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from images import Numbered, encode, picture
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

import gpupipe
from gpupipe.loader.attributes import FIXED

DATA = Numbered(10, [encode(picture(20, 20))])
MANY = list(range(1000))
RECIPE = gpupipe.imagenet_eval(8)


class Every(Sampler[int]):
    """A sampler of a user's own."""

    def __init__(self, data: Any) -> None:
        self.data = data


def named(value: object) -> str:
    """A test's name, without addresses: the processes of pytest -n have to agree on it."""
    return re.sub(r" at 0x\w+", "", str(value))[:60]


def open_loader(data: Any = DATA, **options: Any) -> gpupipe.Loader:
    return gpupipe.Loader(data, RECIPE, **{"engine": "torch", "device": "cpu", "num_workers": 0, **options})


def torch_loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(list(range(10)), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 0},
        {"batch_size": -4},
        {"batch_size": True},
        {"batch_size": 2.0},
        {"batch_size": "4"},
        {"drop_last": 3},
        {"drop_last": None},
        {"num_workers": -1},
        {"num_workers": "2"},
        {"prefetch_factor": 2, "num_workers": 0},
        {"prefetch_factor": -1, "num_workers": 1},
        {"persistent_workers": True, "num_workers": 0},
        {"timeout": -1, "num_workers": 1},
        {"timeout": "60", "num_workers": 1},
        {"multiprocessing_context": "threads", "num_workers": 1},
        {"multiprocessing_context": 3, "num_workers": 1},
        {"multiprocessing_context": "fork", "num_workers": 0},
        {"generator": 5, "shuffle": True},
        {"sampler": [1, 2], "shuffle": True},
        {"batch_sampler": [[1], [2]], "batch_size": 4},
    ],
    ids=str,
)
def test_what_dataloader_refuses_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError, AttributeError)):
        next(iter(torch_loader(**options)))
    with pytest.raises(gpupipe.ConfigError, match=next(iter(options))):
        open_loader(**options)
    with pytest.raises(gpupipe.ConfigError, match=next(iter(options))):
        open_loader("no/such/folder", **options)  # before the data is looked at


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": None}, "batch_size=None must be an int of 1 or more"),
        ({"shuffle": 3}, "shuffle=3 must be True or False"),
        ({"drop_last": "no"}, "drop_last='no' must be True or False"),
        ({"pin_memory": 3}, "pin_memory=3 must be True or False"),
        ({"persistent_workers": 1, "num_workers": 1}, "persistent_workers=1 must be True or False"),
        ({"num_workers": True}, "num_workers=True"),
        ({"num_workers": 2.0}, "num_workers=2.0"),
        ({"prefetch_factor": True, "num_workers": 1}, "prefetch_factor=True"),
        ({"prefetch_factor": 0, "num_workers": 1}, "prefetch_factor=0"),
        ({"timeout": True}, "timeout=True"),
        ({"timeout": math.nan}, "timeout=nan"),
        ({"timeout": math.inf}, "timeout=inf"),
        ({"seed": True}, "seed=True"),
        ({"seed": 2**64}, r"seed=18446744073709551616 must be an int in \[0, 2\*\*64\)"),
        ({"seed": 1.0}, "seed=1.0"),
        ({"rank": True, "world_size": 2}, "rank=True"),
        ({"rank": 0, "world_size": 0}, "world_size=0"),
        ({"rank": 2, "world_size": 2}, "rank must lie in"),
        ({"device": None}, "device=None must be"),
        ({"generator": torch.Generator(), "seed": 1}, r"initial_seed\(\) is the seed"),
        ({"collate_fn": list}, "each field has its own"),
        ({"in_order": False}, "in_order=False is not taken: batches always come in the order of the epoch"),
        ({"in_order": 1}, "in_order=1"),
        ({"pin_memory_device": "cuda:1"}, "pin_memory_device='cuda:1' is not taken: pass device="),
        ({"batch_sampler": BatchSampler(range(10), 2, False)}, r"pass order= .* and batch_size="),
        ({"sampler": [3, 1]}, r"sampler=\[3, 1\] is not taken: pass order=gpupipe\.Subset\(indices\)"),
        ({"sampler": MANY}, r"sampler=\[0, 1, 2, 3, 4, 5, \.\.\.\] is not taken"),
        ({"sampler": Every(DATA)}, "pass it as order="),
        ({"order": MANY}, r"order=\[0, 1, 2, 3, 4, 5, \.\.\.\] must be .*gpupipe\.Subset\(indices\)"),
        ({"sampler": RandomSampler(range(10))}, "pass shuffle=True"),
        ({"sampler": SequentialSampler(range(10))}, "leave it out"),
        ({"sampler": SubsetRandomSampler([1, 2])}, r"order=gpupipe\.Subset\(indices, shuffle=True\)"),
        ({"sampler": WeightedRandomSampler([0.5] * 10, 10)}, r"order=gpupipe\.Weighted\(weights\)"),
        ({"sampler": DistributedSampler(range(10), 2, 0)}, "each rank takes its own part of the epoch"),  # type: ignore[arg-type]
        ({"label_field": "class"}, r"open_source\(data, label_field=\.\.\.\)"),
        ({"transform": list}, "what is done to the images is the recipe"),
    ],
    ids=named,
)
def test_what_else_is_refused_says_what_serves(options: dict[str, Any], message: str) -> None:
    with pytest.raises(gpupipe.ConfigError, match=message):
        open_loader(**options)


def test_names_of_other_loaders_come_before_what_is_missing() -> None:
    with pytest.raises(gpupipe.ConfigError, match="called `data`"):
        gpupipe.Loader(dataset=DATA, recipe=RECIPE)  # type: ignore[call-arg]
    with pytest.raises(gpupipe.ConfigError, match="recipe"):
        gpupipe.Loader(DATA, transform=list)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'batchsize'\. Did you mean 'batch_size'\?"):
        open_loader(batchsize=4)
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'zzz'$"):
        open_loader(zzz=4)
    with pytest.raises(gpupipe.ConfigError, match="recipe"):
        gpupipe.Loader("some/folder")


def test_the_signature_is_still_there() -> None:
    parameters = inspect.signature(gpupipe.Loader).parameters
    assert list(parameters)[:4] == ["data", "recipe", "batch_size", "shuffle"]
    known = set(inspect.signature(DataLoader).parameters) - {"dataset"}
    assert known <= set(parameters)


def test_workers_persist_where_nothing_is_said() -> None:
    for workers, expected in ((1, True), (0, False)):
        with open_loader(num_workers=workers) as loader:
            assert loader.persistent_workers is expected


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_size": 4, "shuffle": None, "drop_last": True},
        {"num_workers": 1, "multiprocessing_context": "spawn"},
        {"num_workers": 1, "multiprocessing_context": multiprocessing.get_context("fork")},
        {"num_workers": 2, "prefetch_factor": 3, "persistent_workers": True, "timeout": 30},
        {
            "sampler": None,
            "batch_sampler": None,
            "collate_fn": None,
            "in_order": True,
            "pin_memory_device": "",
        },
        {"generator": torch.Generator().manual_seed(3), "shuffle": True},
        {"worker_init_fn": print, "num_workers": 1},
    ],
    ids=named,
)
def test_attributes_are_dataloaders(options: dict[str, Any]) -> None:
    theirs = torch_loader(**{"num_workers": 0, **options})
    with open_loader(**{"persistent_workers": False} | options) as ours:
        for name in (
            "batch_size",
            "drop_last",
            "num_workers",
            "prefetch_factor",
            "persistent_workers",
            "pin_memory",
            "pin_memory_device",
            "in_order",
            "multiprocessing_context",
            "generator",
            "worker_init_fn",
        ):
            assert getattr(ours, name) == getattr(theirs, name), name
        assert ours.timeout == (options.get("timeout", 300) if ours.num_workers else theirs.timeout)
        assert len(ours) == len(theirs)
        assert len(iter(ours)) == len(iter(theirs))  # type: ignore[arg-type]
        assert len(ours.sampler) == (8 if ours.drop_last else 10)
        assert len(ours.batch_sampler) == len(theirs.batch_sampler)  # type: ignore[arg-type]
        assert (ours.batch_sampler.batch_size, ours.batch_sampler.drop_last) == (ours.batch_size, ours.drop_last)


def test_every_attribute_of_a_dataloader_is_there() -> None:
    theirs = torch_loader()
    with open_loader() as ours:
        for name in inspect.signature(DataLoader).parameters:
            assert hasattr(ours, name) == hasattr(theirs, name), name


def test_the_dataset_is_the_users_own(folder: Path, shards: str) -> None:
    opened = gpupipe.open_source(DATA)
    for data in (DATA, [(b"x", 0)], opened, Subset(opened, [3, 5]), Subset(DATA, [3, 5])):  # type: ignore[arg-type]
        with open_loader(data) as loader:
            assert loader.dataset is data
            assert len(loader.source) == len(loader.dataset)
    assert opened.location(0) == "Numbered[0]"
    for files in (folder, shards, [shards]):
        with open_loader(files) as loader:
            assert loader.dataset is loader.source
            assert len(loader.source.targets) == 25


class TestSetting:
    @pytest.mark.parametrize(
        "name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"]
    )
    def test_what_dataloader_refuses_is_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match=name):
            setattr(torch_loader(), name, None)
        with open_loader() as loader, pytest.raises(ValueError, match=f"{name} can't be set"):
            setattr(loader, name, None)

    @pytest.mark.parametrize("name", sorted(FIXED))
    def test_what_would_change_nothing_is_refused(self, name: str) -> None:
        with (
            open_loader() as loader,
            pytest.raises(gpupipe.ConfigError, match=f"{name} can't be set .* build another one with "),
        ):
            setattr(loader, name, None)

    def test_arguments_are_all_covered(self) -> None:
        arguments = set(inspect.signature(gpupipe.Loader).parameters) - {"data"}
        assert arguments | {"dataset", "source"} == set(FIXED)

    def test_anything_else_can_be_set(self) -> None:
        with open_loader() as loader:
            loader.of_a_trainer = 3  # type: ignore[attr-defined]
            assert loader.of_a_trainer == 3  # type: ignore[attr-defined]


def test_a_generators_seed_is_the_loaders() -> None:
    generator = torch.Generator().manual_seed(5)
    generator.seed()
    generator.manual_seed(7)
    torch.rand(3, generator=generator)  # what has been drawn does not count
    before = generator.get_state()
    with (
        open_loader(generator=generator, shuffle=True, batch_size=10) as given,
        open_loader(seed=7, shuffle=True, batch_size=10) as seeded,
        open_loader(shuffle=True, batch_size=10) as plain,
    ):
        assert given.generator is generator
        assert given.seed == 7
        assert plain.seed == 0
        assert given.state_dict() == seeded.state_dict()
        orders = [next(iter(loader))[1].tolist() for loader in (given, seeded, plain)]
    assert orders[0] == orders[1] != orders[2]
    assert torch.equal(generator.get_state(), before)
    with open_loader(generator=torch.Generator().manual_seed(-1)) as loader:
        assert loader.seed == 2**64 - 1


def test_numpys_numbers_are_as_good() -> None:
    with open_loader(
        batch_size=np.int64(4),
        seed=np.int32(3),
        num_workers=np.int16(1),
        prefetch_factor=np.uint8(2),
        timeout=np.float32(60),
        rank=np.int64(1),
        world_size=np.int64(2),
        drop_last=np.True_,
        shuffle=np.False_,
        pin_memory=np.False_,
    ) as loader:
        assert json.loads(json.dumps(loader.state_dict()))["seed"] == 3
        assert [labels.tolist() for _, labels in loader] == [[4, 5, 6, 7]]
        for value in (loader.batch_size, loader.seed, loader.num_workers, loader.prefetch_factor, loader.rank):
            assert type(value) is int
        assert type(loader.drop_last) is type(loader.pin_memory) is bool
        assert type(loader.timeout) is float


def test_subclasses_may_take_more() -> None:
    class Own(gpupipe.Loader):
        def __init__(self, data: Any, size: int, **options: Any) -> None:
            super().__init__(data, gpupipe.imagenet_eval(size), **options)

    with Own(DATA, size=8, engine="torch", device="cpu", num_workers=0) as loader:
        assert next(iter(loader))[0].shape == (1, 3, 8, 8)
