"""How iterations begin, go on after an error, end, and what they say of the batches that they delivered."""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from images import Numbered, encode, picture
from test_loader import ENGINES, assert_equal, collect, open_loader

import gpupipe

IMAGE = encode(picture(40, 40))


@pytest.fixture(params=ENGINES)
def engine(request):
    return request.param


class TestLeftEarly:
    def test_the_next_iteration_is_the_next_epoch(self, folder, engine, caplog):
        caplog.set_level(logging.INFO, "gpupipe")
        with open_loader(folder, **engine) as loader:
            epochs = [collect(loader) for _ in range(3)]
            loader.set_epoch(0)
            for epoch in range(3):
                for step, (images, _) in enumerate(loader):
                    assert torch.equal(images, epochs[epoch][step][0])
                    assert (loader.epoch, loader.state_dict()["position"]) == (epoch, 4 * step + 4)
                    if step == 1:
                        break
                assert (loader.epoch, loader.state_dict()["position"]) == (epoch, 8)
        told = [record.message for record in caplog.records if "left after" in record.message]
        assert told == [
            "gpupipe: the iteration of epoch 0 was left after 2 of 7 batches; the next one is epoch 1, and so on "
            "(set_epoch goes to any; a state saved before goes on where the epoch was left)"
        ]

    def test_a_state_goes_on_where_it_was_left(self, folder, engine):
        with open_loader(folder, **engine) as loader:
            whole, later = collect(loader), collect(loader)
            loader.set_epoch(0)
            for _ in zip(range(3), loader, strict=False):
                pass
            state = loader.state_dict()
            next(iter(loader))
        with open_loader(folder, **engine) as resumed:
            resumed.load_state_dict(state)
            iter(resumed), iter(resumed)  # nobody asks these for a batch
            assert_equal(collect(resumed), whole[3:])
            assert_equal(collect(resumed), later)

    def test_set_epoch_begins_the_same_one_again(self, folder, engine):
        with open_loader(folder, **engine) as loader:
            whole = collect(loader)
            for _ in range(2):
                loader.set_epoch(0)
                assert torch.equal(next(iter(loader))[0], whole[0][0])
            loader.set_epoch(0)
            assert loader.state_dict()["position"] == 0

    def test_set_epoch_to_the_epoch_that_is_under_way_changes_nothing_in_it(self, folder):
        with open_loader(folder, engine="torch", num_workers=0) as loader:
            whole, later = collect(loader), collect(loader)
            loader.set_epoch(0)
            batches = iter(loader)
            some = [next(batches)]
            loader.set_epoch(0)
            assert loader.state_dict()["position"] == 4
            some += [next(batches), next(batches)]
            assert_equal(some, whole[:3])
            del batches  # left after what set_epoch said: the next one it is
            assert torch.equal(next(iter(loader))[0], later[0][0])
            loader.set_epoch(1)
            assert torch.equal(next(iter(loader))[0], later[0][0])

    def test_without_a_batch_it_is_the_same_epoch(self, folder, engine):
        with open_loader(folder, **engine) as loader:
            for _ in range(3):
                iter(loader)
            assert loader.epoch == 0

    def test_ranks_agree(self, folder):
        parts = []
        for rank in range(2):
            with open_loader(folder, batch_size=2, rank=rank, world_size=2, engine="torch", num_workers=0) as loader:
                for _ in zip(range(3), loader, strict=False):
                    pass
                parts.append([(loader.last_indices.tolist(), loader.epoch) for _ in loader])
        expected = gpupipe.Shuffled(25).indices(5, 1, np.arange(24)).reshape(6, 2, 2)
        for rank, part in enumerate(parts):
            assert part[:6] == [(step[rank].tolist(), 1) for step in expected]


def test_a_loader_that_was_opened_in_inference_mode_serves_outside(folder, engine):
    """As Lightning opens those of its evaluations."""
    with torch.inference_mode():
        loader = open_loader(folder, **engine)
        first = [(images.clone(), labels.clone()) for images, labels in loader]
    with loader:
        next(iter(loader))
        loader.set_epoch(0)
        outside = collect(loader)
        assert not any(images.is_inference() for images, _ in outside)
        assert_equal(outside, first)


class TestWorkersStart:
    def test_with_iter_and_persist(self, folder):
        with open_loader(folder, engine="torch", num_workers=2) as loader:
            iter(loader)
            workers = {child.pid for child in multiprocessing.active_children()}
            assert len(workers) == 2
            next(iter(loader))
            collect(loader)
            assert {child.pid for child in multiprocessing.active_children()} == workers
        assert not multiprocessing.active_children()

    def test_with_iter_and_end_with_it(self, folder):
        with open_loader(folder, engine="torch", num_workers=2, persistent_workers=False) as loader:
            batches = iter(loader)
            assert len(multiprocessing.active_children()) == 2
            next(batches)
            del batches
            assert not multiprocessing.active_children()
            batches = iter(loader)
            assert len(list(batches)) == 7
            assert not multiprocessing.active_children()

    def test_and_end_where_no_batch_is_asked_for(self, folder):
        with open_loader(folder, engine="torch", num_workers=2, persistent_workers=False) as loader:
            iter(loader)
            assert not multiprocessing.active_children()

    def test_errors_come_with_the_first_batch(self, folder):
        class Wrong(gpupipe.Sequential):
            def indices(self, seed, epoch, positions):
                raise KeyError("no such position")

        with open_loader(folder, shuffle=False, order=Wrong(12), engine="torch", num_workers=1) as loader:
            batches = iter(loader)
            with pytest.raises(gpupipe.ConfigError, match="no such position"):
                next(batches)


@pytest.fixture
def damaged(folder, tmp_path):
    """The shared folder's images, of which three are damaged."""
    root = Path(shutil.copytree(folder, tmp_path / "data", ignore=shutil.ignore_patterns(".gpupipe*")))
    for number in (1, 13, 14):
        sorted(root.glob("*/*.jpg"))[number].write_bytes(b"")
    return root


def tolerant(loader):
    """What a loop over `next` gets that goes on after errors: batches, and the errors in their places."""
    batches, found = iter(loader), []
    while True:
        try:
            found.append(next(batches))
        except StopIteration:
            return found
        except Exception as error:
            found.append(error)


class Deadly(Numbered):
    """Kills its worker at two samples."""

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        if index in (5, 14):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Odd(Numbered):
    """Gives something else at one sample."""

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        return None if index == 9 else super().__getitem__(index)  # type: ignore[return-value]


class TestErrors:
    def test_the_next_batch_comes_after_a_bad_sample(self, damaged, engine):
        with open_loader(damaged, on_error="skip", **engine) as skipping:
            truth = collect(skipping)
        with open_loader(damaged, **engine) as loader:
            order = [loader.batch_indices(step).tolist() for step in range(len(loader))]
            found = tolerant(loader)
            assert loader.epoch == 1
        assert len(found) == len(truth)
        for batch, indices, (images, labels) in zip(found, order, truth, strict=True):
            if {1, 13, 14} & set(indices):
                assert isinstance(batch, gpupipe.SampleError)
                assert batch.index in indices
            else:
                assert torch.equal(batch[0], images)
                assert torch.equal(batch[1], labels)

    def test_the_state_stands_before_the_batch_until_another_has_come(self, damaged, engine):
        with open_loader(damaged, shuffle=False, **engine) as loader:
            batches = iter(loader)
            with pytest.raises(gpupipe.SampleError):
                next(batches)
            assert loader.state_dict()["position"] == 0
            assert loader.last_step is None
            next(batches)
            assert loader.state_dict()["position"] == 8
            assert (loader.last_step, loader.last_indices.tolist()) == (1, [4, 5, 6, 7])

    @pytest.mark.parametrize("workers", [1, 2, 3])
    @pytest.mark.parametrize("persistent", [False, True])
    def test_a_death_takes_the_place_of_its_own_batch_and_new_workers_take_over(self, workers, persistent):
        """Though it is noticed while others make the batches before that."""
        options = {"num_workers": workers, "persistent_workers": persistent}
        with open_loader(Deadly(20, [IMAGE]), shuffle=False, engine="torch", **options) as loader:
            found = tolerant(loader)
            kinds = [tuple, gpupipe.WorkerError, tuple, gpupipe.WorkerError, tuple]
            assert [type(one) for one in found] == kinds
            assert all(f"sample {index} " in str(found[step]) for step, index in ((1, 5), (3, 14)))
            assert [found[step][1].tolist() for step in (0, 2, 4)] == [
                list(range(4 * step, 4 * step + 4)) for step in (0, 2, 4)
            ]
        assert not multiprocessing.active_children()

    def test_what_lies_before_an_item_of_another_kind_comes_first(self, engine):
        with open_loader(Odd(20, [IMAGE]), shuffle=False, **engine) as loader:
            found = tolerant(loader)
        assert [type(one) for one in found] == [tuple, tuple, gpupipe.DataError, tuple, tuple]
        assert [one[1].tolist() for one in found[3:]] == [[12, 13, 14, 15], [16, 17, 18, 19]]

    def test_an_order_that_fails_at_a_step_fails_there(self, folder, engine):
        class Failing(gpupipe.Sequential):
            def indices(self, seed, epoch, positions):
                if 9 in positions or 21 in positions:
                    raise LookupError("not there")
                return positions

        with open_loader(folder, shuffle=False, order=Failing(24), **engine) as loader:
            found = tolerant(loader)
            assert loader.epoch == 1
        kinds = [tuple, tuple, gpupipe.ConfigError, tuple, tuple, gpupipe.ConfigError]
        assert [type(one) for one in found] == kinds

    def test_a_ctrl_c_takes_no_batch(self, folder, engine, monkeypatch):
        def interrupt(*arguments, **options):
            raise KeyboardInterrupt

        with open_loader(folder, **engine) as loader:
            whole = collect(loader)
            loader.set_epoch(0)
            batches = iter(loader)
            some = [next(batches)]
            with monkeypatch.context() as patches:
                patches.setattr("gpupipe.device.pixels.finish", interrupt)
                with pytest.raises(KeyboardInterrupt):
                    next(batches)
            assert_equal([*some, *batches], whole)

    def test_an_iterator_that_is_over_stays_over(self, folder, engine):
        with open_loader(folder, **engine) as loader:
            batches = iter(loader)
            assert len(list(batches)) == 7
            assert list(batches) == []
            assert loader.epoch == 1


class TestNewGlobalBatch:
    @pytest.mark.parametrize(("before", "after", "steps"), [(4, 3, 2), (4, 8, 3), (4, 5, 0), (5, 7, 5), (3, 25, 1)])
    def test_each_sample_still_once_and_the_same_pixels(self, folder, engine, before, after, steps):
        with open_loader(folder, batch_size=before, **engine) as loader:
            whole = [torch.cat(parts) for parts in zip(*collect(loader), strict=True)]
            later = collect(loader)
            loader.set_epoch(0)
            for _ in zip(range(steps), loader, strict=False):
                pass
            state = loader.state_dict()
        with open_loader(folder, batch_size=after, **engine) as loader:
            loader.load_state_dict(state, allow_new_global_batch=True)
            rest = collect(loader)
            assert {len(labels) for _, labels in rest[:-1]} <= {after}
            for tail, parts in zip(whole, zip(*rest, strict=True), strict=True) if rest else ():
                assert torch.equal(torch.cat(parts), tail[before * steps :])
            assert sum(len(labels) for _, labels in rest) == 25 - before * steps
            assert (loader.epoch, len(loader)) == (1, -(-25 // after))
            labels = torch.cat([labels for _, labels in collect(loader)])
            assert torch.equal(labels, torch.cat([labels for _, labels in later]))

    def test_to_other_ranks_and_back_within_an_epoch(self, folder):
        plan = [(4, 1, 2), (3, 2, 1), (2, 3, 1), (5, 1, 99)]  # rows a rank, ranks, steps
        state, seen = None, []
        for batch_size, world, steps in plan:
            parts = []
            for rank in range(world):
                with open_loader(
                    folder, batch_size=batch_size, rank=rank, world_size=world, engine="torch", num_workers=0
                ) as loader:
                    if state is not None:
                        loader.load_state_dict(state, allow_new_global_batch=True)
                    parts.append([loader.last_indices.tolist() for _ in zip(range(steps), loader, strict=False)])
                    after = loader.state_dict()
            seen += [index for step in zip(*parts, strict=True) for part in step for index in part]
            state = after
        assert seen == gpupipe.Shuffled(25).indices(5, 0, np.arange(25)).tolist()

    def test_a_state_saved_in_such_an_epoch_goes_on_at_every_step(self, folder):
        with open_loader(folder, batch_size=3, engine="torch", num_workers=0) as loader:
            for _ in zip(range(3), loader, strict=False):
                pass
            state = loader.state_dict()
        with open_loader(folder, batch_size=4, engine="torch", num_workers=0) as loader:
            loader.load_state_dict(state, allow_new_global_batch=True)
            steps = [(loader.state_dict(), labels.clone(), loader.last_step) for _, labels in loader]
            assert [step for _, _, step in steps] == [3, 4, 5, 6]
            assert [state["position"] for state, _, _ in steps] == [13, 17, 21, 25]
            for number, (saved, _, _) in enumerate(steps):
                loader.load_state_dict(saved)
                rest = [labels for _, labels in collect(loader)]
                assert len(rest) == len(steps) - number - 1
                for labels, (_, expected, _) in zip(rest, steps[number + 1 :], strict=True):
                    assert torch.equal(labels, expected)

    def test_mixed_pairs_stay_pairs(self, folder):
        recipe = gpupipe.timm_a_train("A3", num_classes=5)
        options = {"engine": "torch", "num_workers": 0, "drop_last": True}
        with open_loader(folder, recipe, batch_size=4, **options) as loader:
            whole = [torch.cat(parts) for parts in zip(*collect(loader), strict=True)]
            loader.set_epoch(0)
            next(iter(loader))
            state = loader.state_dict()
        with open_loader(folder, recipe, batch_size=6, **options) as loader:
            loader.load_state_dict(state, allow_new_global_batch=True)
            rest = [torch.cat(parts) for parts in zip(*collect(loader), strict=True)]
        for tail, found in zip(whole, rest, strict=True):
            assert len(found) == 18
            assert torch.equal(found, tail[4:22])

    def test_is_refused_unless_it_is_asked_for(self, folder):
        with open_loader(folder, num_workers=0) as saved, open_loader(folder, batch_size=5, num_workers=0) as other:
            with pytest.raises(gpupipe.StateError, match=r"global_batch is 4, .* has 5; .*allow_new_global_batch"):
                other.load_state_dict(saved.state_dict())
            with pytest.raises(gpupipe.StateError, match="position is 3, which is no step of 4"):
                other.load_state_dict(saved.state_dict() | {"position": 3}, allow_new_global_batch=True)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"global_batch": 0}, "global_batch is 0"),
            ({"origin": 4}, "origin is 4"),
            ({"origin": -1}, "origin is -1"),
            ({"origin": 1, "position": 4}, "position is 4"),
        ],
    )
    def test_damaged_states_are_refused(self, folder, change, message):
        with open_loader(folder, num_workers=0) as loader, pytest.raises(gpupipe.StateError, match=message):
            loader.load_state_dict(loader.state_dict() | change, allow_new_global_batch=True)

    def test_states_without_an_origin_still_load(self, folder):
        with open_loader(folder, num_workers=0) as loader:
            state = loader.state_dict() | {"position": 8}
            del state["origin"]
            loader.load_state_dict(state)
            assert len(collect(loader)) == 5


class TestLastBatch:
    def test_nothing_before_the_first(self, folder):
        with open_loader(folder, num_workers=0) as loader:
            iter(loader)
            assert loader.last_step is None
            assert loader.last_indices is None

    def test_names_substitutes(self, damaged, engine):
        with open_loader(damaged, on_error="skip", shuffle=False, **engine) as loader:
            targets = loader.dataset.targets
            found = []
            for step, (_, labels) in enumerate(loader):
                assert loader.last_step == step
                assert labels.tolist() == targets[loader.last_indices].tolist()
                found += loader.last_indices.tolist()
            assert loader.batch_indices(0).tolist() == [0, 1, 2, 3]
        assert found == [0, 2, 2, 3, *range(4, 13), 15, 15, *range(15, 25)]

    def test_goes_on_after_a_resume(self, folder, engine):
        with open_loader(folder, **engine) as loader:
            loader.load_state_dict(loader.state_dict() | {"position": 12})
            order = gpupipe.Shuffled(25).indices(5, 0, np.arange(25)).tolist()
            for step, _ in enumerate(loader, start=3):
                assert loader.last_step == step
                assert loader.last_indices.tolist() == order[4 * step : 4 * step + 4]

    def test_padding_is_in_it(self, folder):
        order = gpupipe.Shuffled(25).indices(5, 0, np.arange(25)).tolist()
        with open_loader(folder, batch_size=3, rank=2, world_size=3, engine="torch", num_workers=0) as loader:
            collect(loader)
            assert loader.last_indices.tolist() == [order[24], order[0], order[1]]
            assert loader.padding == 2


EXIT = """
import sys
sys.path[:0] = {path!r}
from images import Numbered, encode, picture
import gpupipe

data = Numbered(40, [encode(picture(20, 24))])
loader = gpupipe.Loader(data, gpupipe.imagenet_train(16), 4, device="cpu", **{options!r})
if {thread}:
    from test_ahead import Lane
    loader._supply.lane = Lane()
batches = iter(loader)
next(batches)
"""


@pytest.mark.parametrize("thread", [False, True], ids=["alone", "thread"])
@pytest.mark.parametrize("persistent", [False, True])
def test_nothing_is_said_at_exit(engine, persistent, thread):
    workers = engine["engine"] == "torch" and engine["num_workers"] > 0
    if persistent and not workers:
        pytest.skip("has no workers")
    options = engine | ({"persistent_workers": persistent} if workers else {})
    script = EXIT.format(path=[str(Path(__file__).parent)], options=options, thread=thread)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
