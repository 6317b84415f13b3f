"""Data by URL through the Loader: as from disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from servers.faults import Fault, FaultServer
from tars import write_samples

PROGRAM = Path(__file__).with_name("remote_program.py")


def test_engines_give_what_they_give_of_local_data(fault_server: FaultServer, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for shard in range(3):
        write_samples(tmp_path / "data" / f"train-{shard}.tar", 12 * shard, 12)
    fault_server.put_folder(tmp_path / "data")
    fault_server.script("*", *[Fault(delay=0.01), Fault(status=503), None, Fault(cut=50), None] * 8)
    local, remote = (f"{place}/train-{{0..2}}.tar" for place in (tmp_path / "data", fault_server.url))
    done = subprocess.run(
        [sys.executable, PROGRAM, remote, local, tmp_path / "cache"], capture_output=True, text=True, timeout=300
    )
    assert done.stdout == "as from disk\n", done.stderr
