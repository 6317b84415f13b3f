"""What trainers can be told about their loaders, and what they do to a loader when they are: `trainers/*_options.py`.

Each program runs once, all its cases in turn, and each case is a test.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_trainers import run

import gpupipe

SAMPLES, STEPS = 41, 11  # of an epoch, as in trainers/common.py
VAL = [[0, 1, 2, 3], [4, 5, 6]]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def outcomes(program: str, folder: Path) -> Any:
    done = run(program, folder / "out.json")
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "out.json").read_text())


def order(epoch: int, batch_size: int = 4) -> list[list[int]]:
    """The samples of each step of trainers/common.py's loader."""
    indices = gpupipe.Shuffled(SAMPLES).indices(3, epoch, np.arange(SAMPLES))
    return [indices[start : start + batch_size].tolist() for start in range(0, SAMPLES, batch_size)]


@pytest.fixture(scope="module")
def lightning(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return outcomes("lightning_options.py", tmp_path_factory.mktemp("lightning"))


@pytest.mark.trainers("lightning")
class TestLightning:
    @pytest.mark.parametrize(
        "case",
        [
            "limit_train_batches=3",
            "limit_train_batches=0.3",
            "val_check_interval=0.5",
            "val_check_interval=4",
            "reload_dataloaders_every_n_epochs=1",
            "overfit_batches=2",
            "fast_dev_run",
            "min_size",
            "max_size_cycle",
            "a dict",
        ],
    )
    def test_batches_come_when_those_of_a_data_loader_come(self, lightning: Any, case: str) -> None:
        ours, theirs = (lightning[kind][case] for kind in ("ours", "theirs"))
        assert ours["made"] == theirs["made"]
        assert shapes(ours["seen"]) == shapes(theirs["seen"])

    @pytest.mark.parametrize(
        ("case", "steps"),
        [
            ("limit_train_batches=3", 3),
            ("limit_train_batches=0.3", 3),
            ("val_check_interval=0.5", STEPS),
            ("val_check_interval=4", STEPS),
            ("reload_dataloaders_every_n_epochs=1", STEPS),
        ],
    )
    def test_each_epoch_begins_with_its_own_order(self, lightning: Any, case: str, steps: int) -> None:
        for epoch in range(2):
            assert trained(lightning["ours"][case]["seen"], epoch) == [[batch] for batch in order(epoch)[:steps]]

    def test_overfitting_takes_the_same_batches_in_each_epoch(self, lightning: Any) -> None:
        seen = lightning["ours"]["overfit_batches=2"]["seen"]
        assert trained(seen, 0) == trained(seen, 1) == [[[0, 1, 2, 3]], [[4, 5, 6, 7]]]
        assert seen == lightning["theirs"]["overfit_batches=2"]["seen"]

    def test_overfitting_on_a_shuffled_loader_is_refused_by_lightning(self, lightning: Any) -> None:
        assert "needs to subclass" in lightning["ours"]["overfit_batches=2, shuffled"]["error"]

    def test_fabric_sets_up_no_others_than_torchs(self, lightning: Any) -> None:
        assert "Only PyTorch DataLoader" in lightning["ours"]["Fabric"]["error"]
        assert lightning["theirs"]["Fabric"] == {}

    def test_two_loaders_side_by_side(self, lightning: Any) -> None:
        small, large = order(0), order(0, 8)
        expected = [list(pair) for pair in zip(small, large, strict=False)]
        assert trained(lightning["ours"]["min_size"]["seen"], 0) == expected
        cycled = trained(lightning["ours"]["max_size_cycle"]["seen"], 0)
        assert cycled[: len(expected)] == expected
        assert [pair[0] for pair in cycled] == small
        assert trained(lightning["ours"]["a dict"]["seen"], 0) == cycled

    def test_evaluations_have_every_sample_once(self, lightning: Any) -> None:
        ours = lightning["ours"]["evaluated"]
        assert ours == lightning["theirs"]["evaluated"]
        assert ours["predicted"] == VAL
        assert [kind for kind, _, _ in ours["seen"]] == ["test", "test", "val", "val"]


def trained(seen: Any, epoch: int) -> list[list[list[int]]]:
    return [batches for kind, of, batches in seen if kind == "train" and of == epoch]


def shapes(seen: Any) -> Any:
    """When a batch came, and of how many samples."""
    return [(kind, place, [len(batch) for batch in batches]) for kind, place, batches in seen]


@pytest.fixture(scope="module")
def transformers(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return outcomes("transformers_options.py", tmp_path_factory.mktemp("transformers"))


@pytest.mark.trainers("transformers")
class TestTransformers:
    @pytest.mark.parametrize(
        "case", ["plain", "dataloader_drop_last", "dataloader_num_workers", "group_by_length", "split_batches"]
    )
    def test_settings_of_its_own_loaders_change_nothing(self, transformers: Any, case: str) -> None:
        assert transformers[case] == order(0) + order(1)

    def test_a_number_of_steps(self, transformers: Any) -> None:
        assert transformers["max_steps"] == order(0) + order(1)[:2]

    def test_a_resumed_run_goes_on_unless_it_is_told_not_to_skip(self, transformers: Any) -> None:
        assert transformers["resumed"] == order(1)[2:]
        assert transformers["ignore_data_skip"] == order(1)[: STEPS - 2]  # as ever: the same steps, from the start

    def test_evaluate_and_predict(self, transformers: Any) -> None:
        assert transformers["evaluated"] == [*[list(range(7))] * 4, [7, 3]]

    def test_on_two_processes_each_sample_once(self, tmp_path: Path) -> None:
        launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
        done = run("transformers_ddp.py", tmp_path, launcher=launcher)
        assert done.returncode == 0, done.stderr
        ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
        steps = [one + other for one, other in zip(*(rank["trained"] for rank in ranks), strict=True)]
        expected = order(0) + order(1)
        for epoch in range(2):  # padding: the last global batch has one sample for two ranks
            expected[(epoch + 1) * STEPS - 1] += order(epoch)[0][:1]
        assert steps == expected
        assert all(rank["seen"] == [list(range(7))] * 2 for rank in ranks)

    def test_several_eval_sets(self, transformers: Any) -> None:
        assert transformers["a dict of eval sets"] == ["eval_one_loss", "eval_other_loss"]
        assert "take self.eval_dataset[name]" in transformers["a dict of eval sets, not looked up"]

    @pytest.mark.parametrize("case", ["train", "evaluate"])
    def test_without_the_overrides_an_error_names_them(self, transformers: Any, case: str) -> None:
        error = transformers[f"{case}, without the overrides"]
        assert error.startswith("ConfigError: a DataLoader was given a gpupipe.Loader as its dataset")
        assert "get_test_dataloader" in error


@pytest.fixture(scope="module")
def accelerate(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return outcomes("accelerate_options.py", tmp_path_factory.mktemp("accelerate"))


@pytest.mark.trainers("accelerate")
class TestAccelerate:
    @pytest.mark.parametrize("setting", ["split_batches", "dispatch_batches", "even_batches", "use_seedable_sampler"])
    def test_settings_of_its_own_loaders_change_nothing(self, accelerate: Any, setting: str) -> None:
        assert accelerate[setting] == [True, [4] * 10 + [1]]

    @pytest.mark.parametrize(
        "case",
        [
            "skip_first_batches",
            "skip_first_batches, a worker",
            "accelerator.skip_first_batches",
            "prepare_data_loader",
        ],
    )
    def test_a_loader_built_of_the_parts_says_what_serves_instead(self, accelerate: Any, case: str) -> None:
        assert accelerate[case].startswith("ConfigError: ")
        assert "register_for_checkpointing(loader) and load_state" in accelerate[case]

    def test_which_does_serve(self, accelerate: Any) -> None:
        assert accelerate["state_dict"] is True
