"""The Loader on a GPU, against the CPU. Skipped, never passed, where there is none."""

from __future__ import annotations

import pytest
import torch

import gpupipe

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


@pytest.mark.parametrize("engine", ENGINES)
def test_a_slow_consumer_on_a_side_stream_never_sees_a_buffer_used_again(folder, engine):
    order = gpupipe.Weighted([1.0] * 25, num_samples=8 * 200)
    options = {"order": order, "engine": engine, "device": "cuda", "num_workers": 2, "seed": 1}
    sums: dict[bool, list[torch.Tensor]] = {True: [], False: []}
    for slow, results in sums.items():
        with (
            gpupipe.Loader(folder, gpupipe.imagenet_train(96), 8, **options) as loader,
            torch.cuda.stream(torch.cuda.Stream()),
        ):
            for images, labels in loader:
                if slow:
                    torch.cuda._sleep(20_000_000)  # the kernels below wait, while the host goes on and drops the batch
                else:
                    torch.cuda.synchronize()
                results.append(images.double().sum() + labels.sum())
                del images, labels
            torch.cuda.synchronize()
    assert torch.equal(torch.stack(sums[True]), torch.stack(sums[False]))


@pytest.mark.parametrize("engine", ENGINES)
def test_bad_samples_are_replaced_on_the_gpu(folder, tmp_path, engine):
    import shutil

    root = shutil.copytree(folder, tmp_path / "data", ignore=shutil.ignore_patterns(".gpupipe*"))
    (root / "class_1" / "img_1.jpg").write_bytes(b"")
    images, labels = epoch(root, gpupipe.imagenet_train(64), "cuda", engine, on_error="skip")
    truth, true_labels = epoch(root, gpupipe.imagenet_train(64), "cpu", "torch", on_error="skip")
    assert labels.tolist() == true_labels.tolist()
    assert ((images.cpu() - truth).abs() * 58).mean() < 2


def test_memory_does_not_grow(folder):
    order = gpupipe.Weighted([1.0] * 25, num_samples=8 * 300)
    with gpupipe.Loader(folder, gpupipe.imagenet_train(96), 8, order=order, engine="dali", num_workers=2) as loader:
        free = []
        for step, _ in enumerate(loader):
            if step in (100, 299):
                torch.cuda.synchronize()
                free.append(torch.cuda.mem_get_info()[0])
    assert free[0] - free[1] < 64 << 20
