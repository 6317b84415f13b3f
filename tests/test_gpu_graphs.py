"""CUDA graphs and torch.compile over batches of a Loader. What needs a GPU is skipped, never passed, without one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gpupipe

PAGE = (Path(__file__).parent.parent / "docs" / "guide" / "trainers.md").read_text()
STEPS = 12
WARM_UP = 3  # steps with the first batch, as on the page

gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
on_a_gpu = pytest.mark.parametrize("engine", [pytest.param(engine, marks=gpu) for engine in ("dali", "torch")])


def loader(data: Any, engine: str = "torch", steps: int = STEPS, layout: Any = "channels_last") -> gpupipe.Loader:
    """Batches of 8, in bfloat16; an epoch of `steps`."""
    return gpupipe.Loader(
        data,
        gpupipe.imagenet_train(32, dtype="bfloat16", layout=layout),
        8,
        order=gpupipe.VirtualEpochs(gpupipe.Shuffled(25), 8 * steps),
        drop_last=True,
        seed=7,
        num_workers=2 if torch.cuda.is_available() else 0,
        engine=engine,
    )


def small_model() -> nn.Module:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 16, 3, 2), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU())
    return nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 5))


def training(model: nn.Module) -> dict[str, Any]:
    """What the page's example takes for granted."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = model.to(device, memory_format=torch.channels_last)
    lr = torch.tensor(0.05, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9, fused=True)
    return {"torch": torch, "model": model, "optimizer": optimizer, "criterion": nn.CrossEntropyLoss()}


def eager_step(parts: dict[str, Any], images: torch.Tensor, labels: torch.Tensor) -> float:
    with torch.autocast(images.device.type, torch.bfloat16):
        loss = parts["criterion"](parts["model"](images), labels)
    parts["optimizer"].zero_grad()
    loss.backward()
    parts["optimizer"].step()
    return float(loss.detach())


def eager_losses(train: gpupipe.Loader, warm_up: int = 0) -> list[float]:
    parts = training(small_model())
    for _ in range(warm_up):
        eager_step(parts, *next(iter(train)))
    return [eager_step(parts, *batch) for batch in train]


@pytest.fixture
def deterministic() -> Iterator[None]:
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        yield


def same_losses(losses: list[float], expected: list[float]) -> None:
    assert len(losses) == STEPS
    assert max(expected) > 1.05 * min(expected)  # else a batch that is not copied would not be seen
    assert losses == pytest.approx(expected, rel=1e-2)


class Watched:
    """A loader; calls `after` when the body of the loop over it is done with a batch."""

    def __init__(self, train: gpupipe.Loader, after: Callable[[], None]) -> None:
        self.train, self.after = train, after

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for batch in self.train:
            yield batch
            self.after()


@on_a_gpu
@pytest.mark.usefixtures("deterministic")
def test_the_page_captures_a_training_step(folder, engine):
    (block,) = (block for block in re.findall(r"```py\n(.*?)```", PAGE, re.DOTALL) if "CUDAGraph" in block)
    losses: list[float] = []
    names = training(small_model())
    with loader(folder, engine) as train:
        names["train"] = Watched(train, lambda: losses.append(float(names["loss"])))
        exec(block, names)  # the project's own page
    with loader(folder, engine) as train:
        same_losses(losses, eager_losses(train, WARM_UP))


@on_a_gpu
def test_captures_while_the_loader_works(folder, engine):
    """As often as it takes to meet its thread in the middle of an allocation, a copy or a launch."""
    with loader(folder, engine, steps=60) as train:
        expected = [images.float().sum() for images, _ in train]
        train.set_epoch(0)
        batches = iter(train)
        static, _ = (tensor.clone() for tensor in next(batches))
        sums = [static.float().sum()]
        for images, _ in batches:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                total = static.float().sum()
            static.copy_(images)
            graph.replay()
            sums.append(total.clone())
    assert len(sums) == 60
    assert torch.equal(torch.stack(sums), torch.stack(expected))


@on_a_gpu
@pytest.mark.usefixtures("deterministic")
def test_compiled_with_graphs_of_its_own(folder, engine):
    counters = pytest.importorskip("torch._dynamo.utils").counters
    torch.compiler.reset()
    counters.clear()
    parts = training(small_model())
    parts["model"] = torch.compile(parts["model"], mode="reduce-overhead")
    with loader(folder, engine) as train:
        losses = [eager_step(parts, *batch) for batch in train]
    assert counters["stats"]["unique_graphs"] == 1
    assert counters["inductor"]["cudagraph_skips"] == 0
    with loader(folder, engine) as train:
        same_losses(losses, eager_losses(train))


@pytest.mark.parametrize("layout", ["NCHW", "channels_last"])
def test_compiled_once(folder, layout):
    """Batches are alike in all that torch.compile looks at: dtype, device, shape and strides."""
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    with loader(folder, layout=layout, steps=5) as train:
        device = train.device
        compiled = torch.compile(small_model().to(device, torch.bfloat16), backend=backend)
        plain = small_model().to(device, torch.bfloat16)
        strides = set()
        for _ in range(2):
            for images, _labels in train:
                strides.add(images.stride())
                assert torch.equal(compiled(images), plain(images))
    assert (len(graphs), len(strides)) == (1, 1)
