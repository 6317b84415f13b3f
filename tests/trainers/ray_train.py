"""Ray Train on this machine with two workers: `python ray_train.py OUT`.

Each worker builds its loader in the train function, where torch.distributed runs already, and Ray's checkpoints hold
the loader's state. Both are killed in the second epoch; Ray starts them anew, and they go on from the last checkpoint.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ |= {
    "RAY_AUTH_TOKEN": secrets.token_hex(32),  # else one is written into the home folder
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    "RAY_memory_monitor_refresh_ms": "0",
}

import psutil
import ray
import ray.train
import ray.train.torch
import torch
from common import EPOCHS, classes, model, train_loader

from gpupipe.errors import ConfigError

SAVED, DEATH = 5, 18  # steps between checkpoints, and until the workers are killed


def train(config: dict[str, Any]) -> None:
    out, rank, resumed = Path(config["out"]), ray.train.get_context().get_world_rank(), ray.train.get_checkpoint()
    network = ray.train.torch.prepare_model(model())
    optimizer = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9)
    with train_loader(2, device=ray.train.torch.get_device()) as loader:
        parts = {"model": network, "optimizer": optimizer, "loader": loader}
        step = 0
        if resumed is not None:
            with resumed.as_directory() as folder:
                saved = torch.load(Path(folder) / "state.pt")
            step = saved.pop("step")
            for name, state in saved.items():
                parts[name].load_state_dict(state)
        for epoch in range(loader.epoch, EPOCHS):
            loader.set_epoch(epoch)
            for images, labels in loader:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(network(images), classes(labels)).backward()
                optimizer.step()
                step += 1
                with open(out / f"{rank}.jsonl", "a") as file:
                    print(json.dumps([step, labels.tolist(), images.double().sum().item()]), file=file)
                if step % SAVED == 0:
                    save({name: part.state_dict() for name, part in parts.items()} | {"step": step}, rank)
                if step == DEATH and resumed is None:
                    ray.train.get_all_reported_checkpoints()  # waits until they are where a restart looks for them
                    os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        torch.save(network.module.state_dict(), out / "weights.pt")
        (out / "prepared").write_text(prepared())


def save(state: dict[str, Any], rank: int) -> None:
    """Every worker reports, and rank 0 has the checkpoint: the loader's state is the same on each."""
    with tempfile.TemporaryDirectory() as folder:
        torch.save(state, Path(folder) / "state.pt")
        checkpoint = ray.train.Checkpoint.from_directory(folder) if rank == 0 else None
        ray.train.report({"step": state["step"]}, checkpoint=checkpoint)


def prepared() -> str:
    """What becomes of a loader that is given to prepare_data_loader."""
    with train_loader(2, num_workers=0) as loader:
        rebuilt = ray.train.torch.prepare_data_loader(loader)
        try:
            next(iter(rebuilt))
        except ConfigError as error:
            return f"ConfigError: {error}"
    return "batches"


def runs(process: psutil.Process) -> bool:
    """Not where it has ended, and who inherits orphans has not asked for its exit code, as in some containers."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def main(out: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="ray") as folder:  # short, as sockets lie in it
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=80 * 2**20,
            _temp_dir=folder,
        )
        try:
            ray.train.torch.TorchTrainer(
                train,
                train_loop_config={"out": str(out)},
                scaling_config=ray.train.ScalingConfig(num_workers=2),
                run_config=ray.train.RunConfig(
                    name="run",
                    storage_path=str(out / "storage"),
                    failure_config=ray.train.FailureConfig(max_failures=1),
                ),
            ).fit()
        finally:
            started = psutil.Process().children(recursive=True)
            ray.shutdown()
            until = time.monotonic() + 30
            while left := [process for process in started if runs(process)]:
                assert time.monotonic() < until, left
                time.sleep(0.1)


if __name__ == "__main__":
    from ray_train import main  # by its name the workers import `train`, where else it is pickled with its globals

    main(Path(sys.argv[1]).absolute())
