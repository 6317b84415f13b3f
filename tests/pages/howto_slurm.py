"""What docs/howto/slurm.md promises: its scripts run with stand-ins for SLURM's commands, are signalled, and go on."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed.run
from images import write_folder
from servers.processes import free_port

from gpupipe.tools import cli

ROOT = Path(__file__).parents[2]
TINY = ["data", "--model", "shufflenet_v2_x0_5", "--size", "32", "--global-batch", "4"]
STEPS = 12  # of an epoch
SECONDS = 120
STAND_INS = {
    # As many processes as tasks, with their numbers; who they are is kept for scancel.
    "srun": """
echo $$ > step
for ((task = 0; task < ${SLURM_NTASKS:-1}; task++)); do
    SLURM_PROCID=$task SLURM_LOCALID=$task "$@" &
    tasks+=($!)
done
for task in "${tasks[@]}"; do wait "$task" || code=$?; done
exit ${code:-0}
""",
    "scontrol": """
case $1 in
show) echo 127.0.0.1 ;;
requeue) echo "$2" > requeued ;;
esac
""",
    # To all processes of the step, as SLURM does it, those of the loader among them.
    "scancel": f"""
exec {sys.executable} -c '
import pathlib, psutil
for process in psutil.Process(int(pathlib.Path("step").read_text())).children(recursive=True):
    process.terminate()
'
""",
}


def check(folder: Path, names: dict[str, Any]) -> None:
    scripts = sorted(folder.glob("*.sbatch"))
    assert [script.name for script in scripts] == ["pack.sbatch", "ranks.sbatch", "train.sbatch"]
    for script in scripts:
        assert subprocess.run(["bash", "-n", script]).returncode == 0
    _options(folder)
    write_folder(folder / "data", 3, STEPS * 4 // 3, ((40, 50),))
    commands = folder / "bin"
    commands.mkdir()
    for name, text in STAND_INS.items():
        (commands / name).write_text(f"#!/bin/bash\n{text}")
        (commands / name).chmod(0o755)
    programs = {"python": sys.executable, "torchrun": f"{sys.executable} -m torch.distributed.run"}
    for name, words in programs.items():
        (commands / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (commands / name).chmod(0o755)
    job = free_port() - 10000  # from which the scripts take the port
    epoch, step = _stopped(folder, job)
    assert (folder / "requeued").read_text() == f"{job}\n"
    saved = torch.load("checkpoint.pt")["loader"]
    assert (saved["epoch"], saved["position"]) == (epoch, 4 * (step + 1))
    _goes_on(folder, job, epoch, step)


def _environment(folder: Path, job: int, **slurm: str) -> dict[str, str]:
    own = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "USER": "me"}
    one = {"SLURM_NNODES": "1", "SLURM_JOB_NODELIST": "n1", "SLURM_CPUS_PER_TASK": "1"}
    return os.environ | own | one | {"SLURM_JOB_ID": str(job)} | slurm


def _stopped(folder: Path, number: int) -> tuple[int, int]:
    """The last step before SLURM asked the job to stop, on two processes."""
    command = ["bash", "train.sbatch", *TINY, "--workers", "1", "--epochs", "100000"]
    with (folder / "stopped.txt").open("w") as output:
        job = subprocess.Popen(command, env=_environment(folder, number), stdout=output, stderr=output)
        try:
            limit = time.monotonic() + SECONDS
            while (1, 0) not in _steps(folder / "stopped.txt"):
                assert job.poll() is None, (folder / "stopped.txt").read_text()
                assert time.monotonic() < limit
                time.sleep(0.1)
            job.send_signal(signal.SIGUSR1)
            job.wait(SECONDS)
        finally:
            job.kill()
    steps = _steps(folder / "stopped.txt")
    assert "the place is saved" in (folder / "stopped.txt").read_text()
    assert "WorkerError" not in (folder / "stopped.txt").read_text()
    assert steps == [divmod(number, STEPS) for number in range(len(steps))]
    return steps[-1]


def _goes_on(folder: Path, job: int, epoch: int, step: int) -> None:
    """By srun alone and on one process, to the end of that epoch."""
    variables = {"SLURM_NTASKS": "1", "SLURM_NTASKS_PER_NODE": "1"}
    done = subprocess.run(
        ["bash", "ranks.sbatch", *TINY, "--epochs", str(epoch + 1)],
        env=_environment(folder, job, **variables),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    (folder / "resumed.txt").write_text(done.stdout)
    assert _steps(folder / "resumed.txt") == [(epoch, later) for later in range(step + 1, STEPS)]


def _steps(path: Path) -> list[tuple[int, int]]:
    return [(int(epoch), int(step)) for epoch, step in re.findall(r"epoch (\d+), step (\d+)\n", path.read_text())]


def _options(folder: Path) -> None:
    """Those of torchrun and gpupipe exist."""
    variables = {"SLURM_NNODES": "4", "SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "8"}

    def words(script: str, program: str) -> list[str]:
        text = (folder / script).read_text().replace("\\\n", " ")
        (line,) = re.findall(rf"^srun {program} (.*?)&?$", text, re.MULTILINE)
        line = line.replace('"$@"', "data").replace("${SLURM_GPUS_ON_NODE:-2}", "8")
        return shlex.split(re.sub(r"\$(\w+)", lambda name: variables.get(name[1], "1"), line))

    launched = torch.distributed.run.get_args_parser().parse_args(words("train.sbatch", "torchrun"))
    assert (launched.nnodes, launched.training_script, launched.training_script_args) == ("4", "train.py", ["data"])
    packed = cli.parser().parse_args(words("pack.sbatch", "gpupipe"))
    assert (packed.command, packed.task) == ("pack", (3, 8))
