"""DALI and worker processes on shares of each batch, on DALI's CPU backend."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from images import encode, picture
from test_loader import collect

import gpupipe
from gpupipe.batch import Job
from gpupipe.decode import choose
from gpupipe.decode.dali.engine import DaliEngine
from gpupipe.decode.sharing import Share, SharingEngine
from gpupipe.decode.torch import TorchEngine
from gpupipe.decode.tuned import Tuned, keep
from gpupipe.errors import ConfigError
from gpupipe.host.system import default_workers
from gpupipe.plan import cropping
from gpupipe.sources import open_source

HALF = gpupipe.Decoders(cpu_share=0.5, cpu_workers=1)
TRAIN = gpupipe.imagenet_train(32, dtype="uint8")


def open_shared(data, recipe=TRAIN, batch_size=6, decoders=HALF, **options):
    options = {"shuffle": True, "seed": 5, "num_workers": 2} | options
    return gpupipe.Loader(data, recipe, batch_size, engine="dali", device="cpu", decoders=decoders, **options)


def alone(data, engine, recipe=TRAIN, **options):
    options = {"shuffle": True, "seed": 5, "num_workers": 1, "batch_size": 6} | options
    with gpupipe.Loader(data, recipe, engine=engine, device="cpu", **options) as loader:
        batches = collect(loader)
    return torch.cat([images for images, _ in batches]), torch.cat([labels for _, labels in batches])


@pytest.mark.parametrize("data", ["folder", "shards"])
def test_each_row_is_that_of_the_engine_that_has_it(data, request):
    data = request.getfixturevalue(data)
    with open_shared(data) as loader:
        assert isinstance(loader._engine, SharingEngine)
        jobs = [loader._job(step) for step in range(len(loader))]
        ours = torch.cat([images for images, _ in collect(loader)])
    by_cpu = torch.from_numpy(np.concatenate([Share(open_source(data), (TRAIN,), 0.5)(job) for job in jobs]))
    assert by_cpu.any()
    assert not by_cpu.all()
    (dali, labels), (torch_engine, _) = alone(data, "dali"), alone(data, "torch")
    assert torch.equal(ours[by_cpu], torch_engine[by_cpu])
    assert torch.equal(ours[~by_cpu], dali[~by_cpu])
    with open_shared(data) as loader:
        assert torch.equal(torch.cat([batch for _, batch in loader]), labels)


def test_a_sample_has_the_same_pixels_in_whatever_batch_on_whatever_rank(folder):
    with open_shared(folder) as loader:
        whole = torch.cat([images for images, _ in collect(loader)])
    ranks = []
    for rank in range(2):
        with open_shared(folder, batch_size=3, rank=rank, world_size=2) as loader:
            ranks.append([images for images, _ in collect(loader)])
    together = torch.cat([images for pair in zip(*ranks, strict=True) for images in pair])
    assert torch.equal(together[: len(whole)], whole)


@pytest.mark.parametrize("share", [0.1, 0.4, 0.8])
def test_the_share_is_met_with_the_smallest_crops(share, tmp_path):
    sizes = [(60 + 7 * n % 90, 70 + 11 * n % 80) for n in range(40)]
    (tmp_path / "a").mkdir()
    for number, (height, width) in enumerate(sizes):
        (tmp_path / "a" / f"{number}.jpg").write_bytes(encode(picture(height, width, number)))
    source = open_source(tmp_path)
    chosen = Share(source, (TRAIN,), share)
    positions = np.arange(4000)
    job = Job(9, 2, positions, positions % len(source))
    by_cpu = chosen(job)
    assert abs(by_cpu.mean() - share) < 0.15  # the limit is set by 40 images
    heights, widths, _ = source.shapes(job.indices).T
    windows = cropping(TRAIN, 9, 2, positions, heights, widths).windows
    parts = windows[:, 2] * windows[:, 3] / (heights * widths)
    assert parts[by_cpu].max() <= parts[~by_cpu].min() + 0.011
    # The same for a row by itself.
    for row in (0, 1, 17):
        one = Job(9, 2, positions[row : row + 1], job.indices[row : row + 1])
        assert chosen(one)[0] == by_cpu[row]


def test_images_of_one_size_and_one_crop_are_shared_too(tmp_path):
    (tmp_path / "a").mkdir()
    for number in range(64):
        (tmp_path / "a" / f"{number}.jpg").write_bytes(encode(picture(40, 48, number)))
    source = open_source(tmp_path)
    recipe = gpupipe.Recipe((gpupipe.ResizeCenterCrop((32, 32), 32),))
    positions = np.arange(2000)
    by_cpu = Share(source, (recipe,), 0.5)(Job(0, 0, positions, positions % 64))
    assert abs(by_cpu.mean() - 0.5) < 0.15


def test_samples_whose_size_is_not_known_are_shared_too():
    data = [(encode(picture(40, 48, 1)), 0)] * 64
    positions = np.arange(2000)
    by_cpu = Share(open_source(data), (TRAIN,), 0.3)(Job(0, 0, positions, positions % 64))
    assert abs(by_cpu.mean() - 0.3) < 0.15


@pytest.mark.parametrize("share", [0.02, 0.98])
def test_batches_without_a_row_for_one_of_them(folder, share):
    """Most batches of two have no row for one of the engines."""
    decoders = gpupipe.Decoders(cpu_share=share, cpu_workers=1)
    with open_shared(folder, batch_size=2, decoders=decoders) as loader:
        rows = torch.cat([labels for _, labels in collect(loader)])
    assert torch.equal(rows, alone(folder, "torch", batch_size=2)[1])


@pytest.mark.parametrize("others", [0, 1])
def test_rows_that_come_late_or_never_for_one_of_them(folder, others):
    """Epochs follow each other without end, so that it can't look for ever."""
    asked = []

    def share(job):
        asked.append(job)
        return np.full(len(job), others if job.epoch != 20 else 1 - others, bool)

    truth = alone(folder, "torch", batch_size=2)[1]
    with open_shared(folder, batch_size=2) as loader:
        loader._engine._share = share
        for epoch in (0, 1, 19, 20, 21):
            loader.set_epoch(epoch)
            labels = torch.cat([labels for _, labels in collect(loader)])
            assert sorted(labels) == sorted(truth)
            assert len(asked) < 13 * 100


def test_workers_are_forked_before_dali_runs(folder, monkeypatch):
    """A fork inherits whatever lock a thread of DALI's holds at that moment, and nobody to release it."""
    begun = []
    for engine in (DaliEngine, TorchEngine):
        monkeypatch.setattr(engine, "stream", _noted(engine.stream, engine.name, begun))
    with open_shared(folder, batch_size=2) as loader:
        next(iter(loader))
    assert begun[:2] == ["torch", "dali"]


def _noted(stream, name, begun):
    return lambda self, jobs: (begun.append(name), stream(self, jobs))[1]


def test_resumes_anywhere(folder):
    with open_shared(folder) as loader:
        whole = collect(loader)
    for step in (1, len(whole) - 1):
        with open_shared(folder) as first, open_shared(folder) as second:
            batches = iter(first)
            for _ in range(step):
                next(batches)
            second.load_state_dict(first.state_dict())
            for (images, labels), (true, true_labels) in zip(collect(second), whole[step:], strict=True):
                assert torch.equal(images, true)
                assert torch.equal(labels, true_labels)


def test_recipes_are_applied_once_to_every_row(folder):
    recipe = gpupipe.timm_a_train("A3", num_classes=5)
    with open_shared(folder, recipe, drop_last=True) as loader:
        ours = collect(loader)
    with gpupipe.Loader(
        folder, recipe, 6, shuffle=True, seed=5, engine="torch", device="cpu", num_workers=0, drop_last=True
    ) as loader:
        truth = collect(loader)
    for (images, labels), (true, true_labels) in zip(ours, truth, strict=True):
        assert torch.equal(labels, true_labels)
        # An augmentation may spread a level's difference of DALI's; one that was left out or done twice would show.
        assert (images - true).abs().median() < 0.03


def test_several_views(folder):
    recipe = gpupipe.MultiCrop((TRAIN, gpupipe.imagenet_train(16, dtype="uint8")))
    with open_shared(folder, recipe) as loader:
        ours = [views for views, _ in loader]
    with gpupipe.Loader(folder, recipe, 6, shuffle=True, seed=5, engine="torch", device="cpu", num_workers=0) as loader:
        for views, (truth, _) in zip(ours, loader, strict=True):
            assert [view.shape for view in views] == [view.shape for view in truth]
            for view, true in zip(views, truth, strict=True):
                assert (view.float() - true.float()).abs().mean() < 1


@pytest.mark.parametrize("kind", ["empty", "text"])
def test_bad_samples_are_replaced_in_either_part(folder, tmp_path, kind):
    import shutil

    root = shutil.copytree(folder, tmp_path / "data", ignore=shutil.ignore_patterns(".gpupipe*"))
    bad = {"class_1/img_1.jpg", "class_2/img_0.jpg", "class_3/img_3.jpg", "class_4/img_2.jpg"}
    for name in bad:
        assert (root / name).exists()
        (root / name).write_bytes(b"" if kind == "empty" else b"no image" * 99)
    with open_shared(root, on_error="skip") as loader:
        images, labels = (torch.cat(parts) for parts in zip(*collect(loader), strict=True))
        names = {error.location for error in loader.bad_samples}
    truth, true_labels = alone(root, "torch", on_error="skip")
    assert {name for name in bad if any(location.endswith(name) for location in names)} == bad
    assert torch.equal(labels, true_labels)
    assert (images.float() - truth.float()).abs().mean() < 1


def test_a_worker_that_dies_is_an_error_and_the_next_iteration_goes_on(folder):
    import os
    import signal

    with open_shared(folder, batch_size=2) as loader:
        batches = iter(loader)
        next(batches)
        for worker in loader._engine._cpu._iterator._workers:
            os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(gpupipe.WorkerError, match="SIGKILL"):
            list(batches)
        state = loader.state_dict()
        loader.load_state_dict(state)
        assert len(collect(loader)) == len(loader) - state["position"] // 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(cpu_share=1.0, cpu_workers=1), "engine='torch'"),
        (dict(cpu_share=0.5), "both must be 0, or neither"),
        (dict(cpu_workers=2), "both must be 0, or neither"),
        (dict(cpu_share=0.5, cpu_workers=-1), "cpu_workers=-1"),
        (dict(hw_decoder_load=1.5), "hw_decoder_load=1.5"),
        (dict(hw_decoder_load=None), "hw_decoder_load=None must be a number"),
        (dict(cpu_share="0.4"), "cpu_share='0.4' must be a number"),
        (dict(cpu_share=0.4, cpu_workers=True), "cpu_workers=True"),
        (dict(crop_decode="yes"), "crop_decode='yes'"),
    ],
)
def test_settings_that_make_no_sense(settings, message):
    with pytest.raises(ConfigError, match=message):
        gpupipe.Decoders(**settings)


def test_settings_that_do_not_fit_the_loader(folder):
    with pytest.raises(ConfigError, match="at least one thread of DALI"):
        open_shared(folder, num_workers=1)
    with pytest.raises(ConfigError, match="needs engine='dali'"):
        gpupipe.Loader(folder, TRAIN, engine="torch", device="cpu", decoders=HALF)
    with pytest.raises(ConfigError, match=r"must be a gpupipe\.Decoders"):
        open_shared(folder, decoders={"cpu_share": 0.5})


class TestSettings:
    """What a Loader on a GPU is run with, without opening one."""

    GPU = torch.device("cuda", 0)

    @pytest.fixture
    def machine(self, monkeypatch, tmp_path):
        """A machine with a GPU by name only, and a cache of its own."""
        monkeypatch.setenv("GPUPIPE_CACHE", str(tmp_path))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "GPU of a test")
        monkeypatch.setattr(choose, "fit", lambda decoders, device: decoders)
        return monkeypatch

    def settle(self, wish="auto", num_workers=None, prefetch_factor=None, decoders=None):
        return choose.concurrency(wish, "dali", self.GPU, num_workers, prefetch_factor, decoders)

    def test_nothing_tuned(self, machine):
        assert self.settle() == Tuned("dali", default_workers(), 3, gpupipe.Decoders())

    def test_tuned_settings_are_taken_where_nothing_is_said(self, machine):
        best = Tuned("dali", 20, 4, gpupipe.Decoders(0.3, 8, 0.8, True))
        assert keep(self.GPU, best)
        assert self.settle() == best
        assert self.settle(num_workers=5) == Tuned("dali", 5, 3, gpupipe.Decoders())
        assert self.settle(decoders=HALF).decoders == HALF
        machine.setattr(torch.cuda, "get_device_name", lambda device: "another GPU")
        assert self.settle().decoders == gpupipe.Decoders()

    def test_auto_follows_a_tuned_engine_and_a_wish_does_not(self, machine):
        best = Tuned("torch", 16, 2)
        keep(self.GPU, best)
        assert self.settle("auto") == best
        assert self.settle("dali").engine == "dali"

    def test_damaged_settings_are_as_none(self, machine, tmp_path):
        keep(self.GPU, Tuned("dali", 20, 4, gpupipe.Decoders()))
        (file,) = tmp_path.glob("*.json")
        for text in ("{", "[]", file.read_text().replace("cpu_share", "share"), file.read_text().replace("0.65", "7")):
            file.write_text(text)
            assert self.settle().num_workers == default_workers()

    def test_what_the_self_test_rules_out_is_not_used(self, machine, caplog):
        machine.setattr(choose, "fit", lambda decoders, device: replace(decoders, hw_decoder_load=0.0))
        assert self.settle().decoders == gpupipe.Decoders(hw_decoder_load=0.0)

        def none_left(decoders, device):
            raise gpupipe.EngineUnavailableError("no plan passed")

        machine.setattr(choose, "fit", none_left)
        assert self.settle() == Tuned("torch", default_workers(), 2)
        assert "the CPU decodes, since no plan passed" in caplog.text
        with pytest.raises(gpupipe.EngineUnavailableError, match="no plan"):
            self.settle("dali")
