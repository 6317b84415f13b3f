"""The Loader on a GPU, against the CPU. Skipped, never passed, where there is none."""

from __future__ import annotations

import pytest
import torch

import gpupipe
from gpupipe.device.finishing import Finisher

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
ENGINES = ["dali", "torch"]


def epoch(data, recipe, device, engine, **options):
    with gpupipe.Loader(
        data, recipe, 8, shuffle=True, seed=4, engine=engine, device=device, num_workers=2, **options
    ) as loader:
        pairs = [(images.clone(), labels.clone()) for images, labels in loader]
    return torch.cat([images for images, _ in pairs]), torch.cat([labels for _, labels in pairs])


def test_auto_takes_dali_on_the_gpu(folder):
    with gpupipe.Loader(folder, gpupipe.imagenet_train(64), 4) as loader:
        assert (loader.engine, loader.device.type) == ("dali", "cuda")
        images, labels = next(iter(loader))
        assert images.is_cuda
        assert labels.is_cuda


@pytest.mark.parametrize("layout", ["NCHW", "channels_last"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "uint8"])
@pytest.mark.parametrize("engine", ENGINES)
def test_batches_are_what_the_spec_says(folder, engine, dtype, layout):
    images, labels = epoch(folder, gpupipe.imagenet_train(64, dtype=dtype, layout=layout), "cuda", engine)
    truth, true_labels = epoch(folder, gpupipe.imagenet_train(64, dtype=dtype, layout=layout), "cpu", "torch")
    assert labels.tolist() == true_labels.tolist()
    assert images.dtype == truth.dtype
    assert images.shape == truth.shape
    levels = 1 if dtype == "uint8" else 58
    # nvJPEG rounds and upsamples chroma in its own way: a few levels at edges, little in the mean.
    tolerance = 2.0 if engine == "dali" else 0.6
    assert ((images.cpu().float() - truth.float()).abs() * levels).mean() < tolerance


@pytest.mark.parametrize("data", ["folder", "shards"])
def test_sources_feed_the_gpu(data, request):
    some, labels = epoch(request.getfixturevalue(data), gpupipe.imagenet_eval(64), "cuda", "dali")
    assert some.is_cuda
    assert sorted(labels.tolist()) == [c for c in range(5) for _ in range(5)]


WAYS = {
    "dali": {"engine": "dali", "num_workers": 2},
    "torch": {"engine": "torch", "num_workers": 2},
    "shared": {
        "engine": "dali",
        "num_workers": 4,
        "decoders": gpupipe.Decoders(cpu_share=0.5, cpu_workers=2),
    },
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("dtype", ["bfloat16", "uint8"])
@pytest.mark.parametrize("way", WAYS)
def test_a_slow_consumer_on_a_side_stream_never_sees_a_buffer_used_again(folder, way, dtype):
    """Two thousand batches: a buffer that is given away too early has another checksum by the time it is read."""
    order = gpupipe.Weighted([1.0] * 25, num_samples=4 * 2000)
    recipe = gpupipe.imagenet_train(64, dtype=dtype, layout="channels_last")
    sums: dict[bool, list[torch.Tensor]] = {True: [], False: []}
    for slow, results in sums.items():
        with (
            gpupipe.Loader(folder, recipe, 4, order=order, device="cuda", seed=1, **WAYS[way]) as loader,
            torch.cuda.stream(torch.cuda.Stream()),
        ):
            for images, labels in loader:
                if slow:
                    torch.cuda._sleep(2_000_000)  # the kernels below wait, while the host goes on and drops the batch
                else:
                    torch.cuda.synchronize()
                results.append(images.double().sum() + labels.sum())
                del images, labels
            torch.cuda.synchronize()
    assert torch.equal(torch.stack(sums[True]), torch.stack(sums[False]))


@pytest.mark.parametrize("way", WAYS)
def test_buffers_are_kept_until_the_loaders_own_stream_has_read_them(folder, way, monkeypatch):
    """Its kernels wait, while its host goes on, lets go of what they read, and has the next batches decoded."""
    order = gpupipe.Weighted([1.0] * 25, num_samples=8 * 300)
    sums = {}
    finish = Finisher.__call__

    def late(self, batch, mixed):
        torch.cuda._sleep(4_000_000)
        return finish(self, batch, mixed)

    for lags, call in {True: late, False: finish}.items():
        monkeypatch.setattr(Finisher, "__call__", call)
        recipe = gpupipe.imagenet_train(64, dtype="uint8")
        with gpupipe.Loader(folder, recipe, 8, order=order, device="cuda", seed=1, **WAYS[way]) as loader:
            sums[lags] = torch.stack([images.double().sum() for images, _ in loader])
    assert torch.equal(sums[True], sums[False])


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_that_is_kept_stays_what_it_was(folder, way):
    order = gpupipe.Weighted([1.0] * 25, num_samples=8 * 60)
    with gpupipe.Loader(folder, gpupipe.imagenet_train(64), 8, order=order, device="cuda", **WAYS[way]) as loader:
        kept = [(images, images.clone()) for images, _ in loader]
    assert all(torch.equal(images, copy) for images, copy in kept)


@pytest.mark.parametrize("way", WAYS)
def test_the_consumers_host_never_waits_for_the_gpu(folder, way):
    order = gpupipe.Weighted([1.0] * 25, num_samples=8 * 100)
    recipe = gpupipe.timm_a_train("A3", num_classes=5)
    with gpupipe.Loader(folder, recipe, 8, order=order, device="cuda", **WAYS[way]) as loader:
        batches = iter(loader)
        next(batches)  # kernels are compiled, which synchronizes
        torch.cuda.set_sync_debug_mode("error")  # for all threads
        try:
            assert len(list(batches)) == 99
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("way", ["dali", "shared"])
def test_rows_do_not_depend_on_the_ranks(folder, way):
    """But for a few levels: DALI says which images of a batch the hardware engines take, which the hybrid decoder."""
    options = dict(shuffle=True, seed=4, device="cuda", **WAYS[way])
    with gpupipe.Loader(folder, gpupipe.imagenet_train(64, dtype="uint8"), 8, **options) as loader:
        whole = torch.cat([images for images, _ in loader])
    ranks = []
    for rank in range(2):
        with gpupipe.Loader(
            folder, gpupipe.imagenet_train(64, dtype="uint8"), 4, rank=rank, world_size=2, **options
        ) as loader:
            ranks.append([images for images, _ in loader])
    together = torch.cat([images for pair in zip(*ranks, strict=True) for images in pair])
    assert (together[: len(whole)].float() - whole.float()).abs().mean() < 1


@pytest.mark.parametrize("engine", ENGINES)
def test_bad_samples_are_replaced_on_the_gpu(folder, tmp_path, engine):
    import shutil

    root = shutil.copytree(folder, tmp_path / "data", ignore=shutil.ignore_patterns(".gpupipe*"))
    (root / "class_1" / "img_1.jpg").write_bytes(b"")
    images, labels = epoch(root, gpupipe.imagenet_train(64), "cuda", engine, on_error="skip")
    truth, true_labels = epoch(root, gpupipe.imagenet_train(64), "cpu", "torch", on_error="skip")
    assert labels.tolist() == true_labels.tolist()
    assert ((images.cpu() - truth).abs() * 58).mean() < 2


@pytest.mark.parametrize("collate", ["list", gpupipe.Pad(multiple=32, mask=True)])
@pytest.mark.parametrize("engine", ENGINES)
def test_images_of_sizes_of_their_own(folder, engine, collate):
    operations = (gpupipe.Resize((48, 80, 112), 160), gpupipe.RandomHorizontalFlip(), gpupipe.RandomRotation(20))
    recipe = gpupipe.Recipe((*operations, gpupipe.Normalize(), gpupipe.RandomErasing(0.5)))
    fields = {"image": gpupipe.Image(collate=collate), "key": gpupipe.Key()}
    made = []
    for device, name in (("cuda", engine), ("cpu", "torch")):
        options = {"fields": fields, "engine": name, "device": device, "num_workers": 2}
        with gpupipe.Loader(folder, recipe, 8, **options) as loader:
            made.append([{name: list(column) for name, column in batch.items()} for batch in loader])
    for batch, truth in zip(*made, strict=True):
        assert batch["key"] == truth["key"]
        for image, wanted in zip(batch["image"], truth["image"], strict=True):
            assert image.is_cuda
            assert image.shape == wanted.shape
            assert ((image.cpu() - wanted).abs() * 58).mean() < 2
        assert all(map(torch.equal, [mask.cpu() for mask in batch.get("image_mask", [])], truth.get("image_mask", [])))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", WAYS)
def test_memory_does_not_grow(folder, way):
    order = gpupipe.Weighted([1.0] * 25, num_samples=4 * 2000)
    used = []
    with gpupipe.Loader(folder, gpupipe.imagenet_train(96), 4, order=order, device="cuda", **WAYS[way]) as loader:
        for step, _ in enumerate(loader):
            if step in (200, 1999):
                torch.cuda.synchronize()
                used.append(loader.stats()["gpu_used_mb"])
    assert used[1] - used[0] < 64


def test_a_consumer_that_lags_behind_gets_no_more_memory(folder):
    """The host would run ahead for thousands of batches; the loader lets it have a few."""
    order = gpupipe.Weighted([1.0] * 25, num_samples=8 * 300)
    with gpupipe.Loader(folder, gpupipe.imagenet_train(224), 8, order=order, device="cuda", num_workers=2) as loader:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        for _ in loader:
            torch.cuda._sleep(10_000_000)
        batch = 8 * 3 * 224 * 224 * 4
        assert torch.cuda.max_memory_allocated() - before < 16 * batch
