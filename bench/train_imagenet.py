"""ImageNet-style training that says what its data loading costs.

    python bench/train_imagenet.py --data imagenet/train --val-data imagenet/val
    torchrun --nproc-per-node 8 bench/train_imagenet.py --data ... --val-data ... --loader torchvision-pillow
    python bench/train_imagenet.py --made-classes        # ten made classes: minutes on a CPU
    python bench/train_imagenet.py --data imagenet/train --compare --out results

SGD with momentum, a cosine after a warm-up, label smoothing, bfloat16 autocast and channels_last on a GPU. Each epoch
prints images a second, top-1 and the share of time in which the device waited for data; the end is one line of JSON.
With --compare nothing is trained to an end: the loaders take turns, and training.csv, .json, .md and .png say how fast
each one feeds the model, and how fast the model is where the data lies on the device already.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))

from training.loaders import LOADERS, make_loader, set_epoch

from gpupipe.sources import open_source
from gpupipe.tools.profiling.training import TrainingStep, WaitClock, build_model

COMPARED = ["torchvision-v2", "gpupipe", "gpupipe-torch", "device"]
# What --made-classes changes unless it is given on the command line.
MADE_DEFAULTS = {"model": "tiny", "size": 64, "epochs": 8, "batch_size": 64, "lr": 0.4, "warmup_epochs": 1.0}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = made.add_argument
    add("--data", help="training images: an image folder, or shards for --loader gpupipe")
    add("--val-data", help="validation images; without them top-1 is not measured")
    add("--made-classes", action="store_true", help="train on ten made classes, with small defaults")
    add("--loader", choices=LOADERS, default="gpupipe", help="device: a few batches that lie there, again and again")
    add("--engine", choices=("auto", "dali", "torch"), default="auto", help="engine of --loader gpupipe")
    add("--workers", type=int, help="processes or threads of a loader (default: the CPUs; for gpupipe what is tuned)")
    add("--model", default="resnet50", help="a torchvision model, 'timm:NAME', or 'tiny'")
    add("--epochs", type=int, default=90)
    add("--batch-size", type=int, default=256, help="images a step and process")
    add("--size", type=int, default=224, help="side of the images in pixels")
    add("--lr", type=float, default=0.1, help="learning rate for 256 images a step; scaled to the global batch")
    add("--momentum", type=float, default=0.9)
    add("--weight-decay", type=float, default=1e-4)
    add("--label-smoothing", type=float, default=0.1)
    add("--warmup-epochs", type=float, default=5.0)
    add("--amp", action=argparse.BooleanOptionalAction, help="bfloat16 autocast (default: on a GPU)")
    add("--channels-last", action=argparse.BooleanOptionalAction, help="memory layout (default: on a GPU)")
    add("--compile", action="store_true", help="torch.compile the model")
    add("--seed", type=int, default=0)
    add("--json", type=Path, help="also write the final JSON to this file")
    add("--compare", action="store_true", help="measure the loaders in turn; without --data on the made sample set")
    add("--contenders", nargs="+", choices=LOADERS, default=COMPARED, help="which, and in which order")
    add("--steps", type=int, default=48, help="measured in each round, rounded up to whole turns of the workers")
    add("--rounds", type=int, default=5)
    add("--out", type=Path, default=Path("train-out"), help="folder for what --compare measures")
    return made


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The arguments, with the small defaults and the made data where they are asked for."""
    command_line = parser()
    if command_line.parse_args(argv).made_classes:
        command_line.set_defaults(**MADE_DEFAULTS)
    args = command_line.parse_args(argv)
    if not args.made_classes and not args.data and not args.compare:
        command_line.error("give --data, or --made-classes")
    return args


class Process:
    """Who this process is among those of torchrun, and which device it uses; leaving the block ends the group."""

    def __init__(self) -> None:
        self.rank, self.world, self.local = (int(os.environ.get(name, value)) for name, value in RANK_VARIABLES)
        self.device = torch.device("cuda", self.local) if torch.cuda.is_available() else torch.device("cpu")

    def __enter__(self) -> Process:
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            torch.backends.cudnn.benchmark = True  # all batches have one shape
        if self.world > 1:
            dist.init_process_group("nccl" if self.device.type == "cuda" else "gloo")
        return self

    def __exit__(self, *_: object) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()

    def sum(self, *values: float) -> list[float]:
        """The values summed over all processes."""
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        if self.world > 1:
            dist.all_reduce(total)
        return [float(value) for value in total.tolist()]

    def say(self, text: str) -> None:
        """Print on the first process only."""
        if self.rank == 0:
            print(text, flush=True)


RANK_VARIABLES = (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))


def learning_rate(args: argparse.Namespace, world: int, epoch: float) -> float:
    """At a fractional epoch: linear up to the peak, then half a cosine down to 0."""
    peak = args.lr * args.batch_size * world / 256
    warmup = min(args.warmup_epochs, args.epochs / 2)
    if epoch < warmup:
        return float(peak * (epoch + 0.01) / warmup)
    return float(peak * 0.5 * (1 + math.cos(math.pi * (epoch - warmup) / max(args.epochs - warmup, 1e-9))))


class Trainer:
    """A model's training step and the loops over batches."""

    def __init__(self, args: argparse.Namespace, process: Process, classes: int) -> None:
        self.args, self.process = args, process
        torch.manual_seed(args.seed)
        layout = torch.channels_last if args.channels_last else torch.contiguous_format
        model = build_model(args.model, classes).to(process.device, memory_format=layout)
        model = nn.parallel.DistributedDataParallel(model) if process.world > 1 else model
        model = torch.compile(model) if args.compile else model
        self.step = TrainingStep(
            model,
            process.device,
            amp=args.amp,
            layout=layout,
            lr=args.lr,
            momentum=args.momentum,
            weight_decay=args.weight_decay,
            label_smoothing=args.label_smoothing,
        )

    def train_epoch(self, loader: Any, epoch: int) -> dict[str, float]:
        """One pass; images a second over all processes, the share of time waited for data, the mean loss."""
        self.step.model.train()
        clock, start, images_seen, losses = WaitClock(self.process.device), time.perf_counter(), 0, []
        for step, batch in enumerate(clock.timed(loader)):
            self.set_learning_rate(epoch + step / len(loader))
            losses.append(self.step(*batch))
            images_seen += len(batch[1])
        waited = clock.seconds()
        seconds = time.perf_counter() - start
        images_all, waited_all = self.process.sum(images_seen, waited)
        loss = float(torch.stack(losses).mean()) if losses else float("nan")
        share = waited_all / self.process.world / seconds
        return {"img_per_s": images_all / seconds, "data_wait_share": share, "loss": loss}

    def set_learning_rate(self, epoch: float) -> None:
        """For the step that comes."""
        for group in self.step.optimizer.param_groups:
            group["lr"] = learning_rate(self.args, self.process.world, epoch)

    @torch.no_grad()
    def top1(self, loader: Any) -> float:
        """Share of images whose class is right. Behind `--loader torch` on several processes, a few may count twice."""
        self.step.model.eval()
        right, count = torch.zeros((), device=self.process.device), 0
        for batch in loader:
            images, labels = self.step.to_device(*batch)
            real = len(labels) - getattr(loader, "padding", 0)
            with self.step.autocast():
                right += (self.step.model(images).argmax(1) == labels)[:real].sum()
            count += real
        right_all, count_all = self.process.sum(float(right), count)
        return right_all / max(count_all, 1)


def prepare(args: argparse.Namespace, process: Process) -> None:
    """Fill in what depends on the machine, and make the data where that is asked for."""
    on_gpu = process.device.type == "cuda"
    args.amp = on_gpu if args.amp is None else args.amp
    args.channels_last = on_gpu if args.channels_last is None else args.channels_last
    if args.made_classes:
        from training.made_classes import made_classes

        args.data, args.val_data = (str(folder) for folder in made_classes())
    elif not args.data:
        from gpupipe.tools.benchmark.sample_set import sample_set

        args.data = str(sample_set())


def train(args: argparse.Namespace, process: Process) -> dict[str, Any]:
    """The whole run; returns what the final JSON says."""
    start = time.perf_counter()
    loader = make_loader(args, args.data, train=True)
    val_loader = make_loader(args, args.val_data, train=False) if args.val_data else None
    trainer = Trainer(args, process, classes=len(loader.dataset.classes))
    epochs = []
    for epoch in range(args.epochs):
        set_epoch(loader, epoch)
        facts = trainer.train_epoch(loader, epoch)
        facts |= {} if val_loader is None else {"top1": trainer.top1(val_loader)}
        epochs.append(facts)
        process.say(f"epoch {epoch + 1}/{args.epochs}  " + "  ".join(f"{k} {v:.4g}" for k, v in facts.items()))
    settings = {name: getattr(args, name) for name in ("loader", "engine", "model", "size", "batch_size", "epochs")}
    return settings | {"world": process.world, "seconds": time.perf_counter() - start, **epochs[-1], "history": epochs}


def compare_loaders(args: argparse.Namespace, process: Process) -> bool:
    """Measure `--contenders` in turn, print the table, write the files; whether all of them were measured."""
    from training import compare

    if process.world > 1:
        raise SystemExit("--compare measures one process; start it without torchrun")
    facts = compare.facts_of(args)  # before the measurement: its load average says whether the machine was idle
    trainer = Trainer(args, process, classes=max(1000, len(open_source(args.data).classes or ())))
    trainer.step.model.train()
    results = compare.compare(args, args.contenders, trainer.step, process.say)
    process.say(compare.table(compare.rows(results)))
    paths = compare.write_all(results, facts, args.out)
    for result in results:
        if result.reason:
            process.say(f"NOT MEASURED: {result.name}: {result.reason}")
    process.say(f"written: {', '.join(str(path) for path in paths)}")
    return not any(result.reason for result in results)


def main(argv: list[str] | None = None) -> int:
    """Train, or compare, as the command line says."""
    args = parse(argv)
    with Process() as process:
        prepare(args, process)
        if args.compare:
            return 0 if compare_loaders(args, process) else 1
        result = json.dumps(train(args, process))
        process.say(result)
        if args.json and process.rank == 0:
            args.json.write_text(result + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
