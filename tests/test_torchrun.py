"""Real launches of torchrun on 2 and 7 processes: order, accounting, resume and DDP, without a word about ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torchrun_program import CLASSES, GLOBAL_BATCH, RATE, SAMPLES, SMALL, dataset

import gpupipe
from gpupipe.host.children import python_path

pytestmark = pytest.mark.slow

Weights = NDArray[np.float64]

PROGRAM = Path(__file__).with_name("torchrun_program.py")
WORLDS = (7, 2)  # in the order of the launches: each goes on with the epoch that the one before it has left
STEPS = -(-SAMPLES // GLOBAL_BATCH)


class Launches:
    """Each world size is launched once, after those before it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.results: dict[int, dict[str, Any]] = {}

    def __getitem__(self, world: int) -> dict[str, Any]:
        for number, each in enumerate(WORLDS[: WORLDS.index(world) + 1]):
            if each not in self.results:
                self.results[each] = self._launch(number)
        return self.results[world]

    def _launch(self, number: int) -> dict[str, Any]:
        results = self.folder / f"results-{number}.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(WORLDS[number]), str(PROGRAM), str(results)]
        command += ["--save", str(self.folder / f"state-{number}.json")]
        command += ["--load", str(self.folder / f"state-{number - 1}.json")] if number else []
        command += ["--steps", "1"] if number < len(WORLDS) - 1 else []
        environment = os.environ | {"PYTHONPATH": python_path()}
        done = subprocess.run(command, capture_output=True, text=True, timeout=170, env=environment)
        assert done.returncode == 0, done.stderr[-5000:]
        found: dict[str, Any] = json.loads(results.read_text())
        return found


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> Launches:
    return Launches(tmp_path_factory.mktemp("torchrun"))


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


@pytest.fixture
def launched(launches: Launches, world: int) -> dict[str, Any]:
    return launches[world]


def alone(**options: Any) -> gpupipe.Loader:
    """The same loader in this process, which is a single rank."""
    recipe = options.pop("recipe", gpupipe.imagenet_train(8))
    options = {"shuffle": True, "seed": 7, "num_workers": 0, "engine": "torch", "device": "cpu"} | options
    return gpupipe.Loader(dataset(SAMPLES), recipe, GLOBAL_BATCH, **options)


@pytest.fixture(scope="module")
def whole() -> list[list[int]]:
    with alone() as loader:
        return [labels.tolist() for _, labels in loader]


@pytest.fixture(scope="module")
def learnt() -> Weights:
    """The weights after an epoch of the program's training in a single process, in numpy."""
    weights, biases = np.zeros((CLASSES, 3 * 8 * 8)), np.zeros(CLASSES)
    with alone(drop_last=True) as loader:
        for images, labels in loader:
            inputs = images.flatten(1).double().numpy()
            scores = inputs @ weights.T + biases
            shares = np.exp(scores - scores.max(1, keepdims=True))
            errors = shares / shares.sum(1, keepdims=True) - np.eye(CLASSES)[labels.numpy() % CLASSES]
            weights -= RATE * errors.T @ inputs / len(labels)
            biases -= RATE * errors.mean(0)
    return np.concatenate([weights.ravel(), biases])


class TestEpoch:
    def test_ranks_are_those_of_torch_distributed(self, launched: dict[str, Any], world: int) -> None:
        places = launched["epoch"]["places"]
        assert places == [[rank, world, GLOBAL_BATCH // world] for rank in range(world)]

    def test_ranks_take_equal_steps_and_rows(self, launched: dict[str, Any]) -> None:
        given = launched["epoch"]["given"]
        assert [len(batches) for batches in given] == [STEPS] * len(given)
        for step in range(STEPS):
            assert len({len(batches[step][0]) for batches in given}) == 1

    def test_each_sample_comes_once_but_for_flagged_padding(self, launched: dict[str, Any], world: int) -> None:
        given = [batch for batches in launched["epoch"]["given"] for batch in batches]
        unflagged = Counter(label for labels, padding in given for label in labels[: len(labels) - padding])
        assert unflagged == Counter(range(SAMPLES))
        assert sum(padding for _, padding in given) == -(SAMPLES % GLOBAL_BATCH) % world

    def test_gather_gives_the_order_of_a_single_rank(self, launched: dict[str, Any], whole: list[list[int]]) -> None:
        assert launched["epoch"]["gathered"] == whole
        assert launched["epoch"]["without workers"] == whole

    def test_iterations_left_early_are_followed_by_the_next_epoch(self, launched: dict[str, Any]) -> None:
        found = launched["left_early"]
        epochs = []
        with alone() as loader:
            for epoch in range(4):
                loader.set_epoch(epoch)
                epochs.append([labels.tolist() for _, labels in loader])
        assert found["starts"] == [epochs[0][:1], epochs[1][:3], epochs[2][:2]]
        assert found["then"] == epochs[3]


class TestTraining:
    def test_ranks_stay_in_step(self, launched: dict[str, Any]) -> None:
        first, *others = launched["training"]["weights"]
        assert np.abs(first).max() > 0.01
        assert all(weights == first for weights in others)

    def test_the_model_is_that_of_a_single_process(self, launched: dict[str, Any], learnt: Weights) -> None:
        found = np.array(launched["training"]["weights"][0])
        np.testing.assert_allclose(found, learnt, rtol=0, atol=1e-5)  # of 0.1: sums in another order

    def test_evaluation_sees_each_sample_once(self, launched: dict[str, Any]) -> None:
        assert launched["evaluation"]["labels"] == list(range(SAMPLES))
        with alone(recipe=gpupipe.imagenet_eval(8), shuffle=False) as loader:
            means = torch.cat([images.mean(dim=(1, 2, 3)) for images, _ in loader])
        assert launched["evaluation"]["mean"] == pytest.approx(float(means.double().mean()), abs=1e-6)


class TestResume:
    def test_at_every_step(self, launched: dict[str, Any]) -> None:
        found = launched["every_step"]
        samples = GLOBAL_BATCH * 2 + SMALL
        assert sorted(label for batch in found["whole"] for label in batch) == list(range(samples))
        assert found["following"] != found["whole"]
        assert len(found["tails"]) == 4
        for step, tail in enumerate(found["tails"]):
            assert tail == [found["whole"][step:], found["following"]]

    def test_after_an_epoch(self, launched: dict[str, Any]) -> None:
        found = launched["every_step"]
        assert found["after"][0] == found["following"]

    def test_with_batches_in_the_queue(self, launched: dict[str, Any], world: int) -> None:
        assert launched["prefetched"]["positions"] == [2 * GLOBAL_BATCH] * world

    def test_states_of_other_runs_are_refused_on_each_rank(self, launched: dict[str, Any], world: int) -> None:
        for field, messages in launched["refused"].items():
            assert len(messages) == world
            assert all(message.startswith(f"state_dict: {field} is ") for message in messages)

    def test_by_launches_of_other_sizes(self, launches: Launches, world: int, whole: list[list[int]]) -> None:
        launches[world]
        done = [batch for each in WORLDS[: WORLDS.index(world) + 1] for batch in launches[each]["go_on"]["batches"]]
        assert done == whole[: len(done)]
        assert len(done) == (STEPS if world == WORLDS[-1] else WORLDS.index(world) + 1)

    def test_each_rank_has_the_same_state(self, launched: dict[str, Any]) -> None:
        first, *others = launched["go_on"]["states"]
        assert all(state == first for state in others)
