"""The `gpupipe` command as a whole: help, version, and how errors and interruptions are told."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import psutil
import pytest
from images import write_folder
from living import lives

from gpupipe.tools.benchmark.contenders.gpupipe_loader import GpupipeTorch
from gpupipe.tools.benchmark.measurement import Result, Round
from gpupipe.tools.cli import COMMANDS, index, main, parser

GPUPIPE = [sys.executable, "-m", "gpupipe"]
# A shell's background jobs, tests among them, inherit that SIGINT is ignored; a terminal's commands do not.
IN_A_TERMINAL = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)"
IN_A_TERMINAL += "; from gpupipe.tools.cli import main; sys.exit(main(sys.argv[1:]))"
WITHOUT_TORCH = (
    "import sys; sys.modules['torch'] = None; from gpupipe.tools.cli import main; sys.exit(main(sys.argv[1:]))"
)
OF_DATA = {
    "bench": [],
    "index": [],
    "pack": ["out"],
    "profile": ["--model", "tiny"],
    "show": ["-o", "sheet.png"],
    "tune": [],
}


def test_alone_it_says_what_to_try(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out = capsys.readouterr().out
    commands = [shlex.split(line.partition("  ")[0])[1:] for line in re.findall("^    (gpupipe .*)", out, re.MULTILINE)]
    assert [name for name, *_ in commands] == ["doctor", "bench", "show", "new"]
    for command in commands:
        parser().parse_args(command)  # each is taken as it stands there


def test_the_help_lists_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    out = capsys.readouterr().out
    for name in COMMANDS:
        assert f"\n    {name} " in out


def test_the_version_needs_no_torch() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"gpupipe {version('gpupipe')}\n", "")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    assert f"usage: gpupipe {name} " in capsys.readouterr().out


@pytest.mark.parametrize("name", OF_DATA)
def test_data_that_cannot_be_used_is_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("no shard")
    for data, reason in (("nowhere", "no folder at "), ("empty", "no class folders in "), ("text", "not a tar file")):
        assert main([name, data, *OF_DATA[name]]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith(f"gpupipe {name}: ")
        assert err.count("\n") == 1
        assert reason in err
        assert data in err


@pytest.mark.parametrize("name", ["bench", "profile", "tune"])
def test_files_that_cannot_be_written_are_one_line_before_anything_is_measured(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpupipe.tools.profiling.rounds.measure", lambda *arguments: pytest.fail("it measures"))
    taken = tmp_path / "taken"
    taken.write_text("a file, where a folder is to be made")
    data = write_folder(tmp_path / "data", classes=1, per_class=4)
    assert main([name, str(data), "--output", str(taken), *OF_DATA[name]]) == 2
    err = capsys.readouterr().err.splitlines()
    assert err[-1].startswith(f"gpupipe {name}: ")
    assert str(taken) in err[-1]
    assert [line for line in err[:-1] if not line.startswith("gpupipe: ")] == []  # what the loader logs


def test_a_package_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    data = str(write_folder(tmp_path / "data", classes=1, per_class=2))
    command = [sys.executable, "-c", WITHOUT_TORCH, "show", data, "-o", str(tmp_path / "sheet.png")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("gpupipe show: ")
    assert "torch" in done.stderr
    assert "gpupipe doctor" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_reader_that_has_enough_is_no_error(tmp_path: Path) -> None:
    data = str(write_folder(tmp_path / "data", classes=1, per_class=2))
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run([*GPUPIPE, "index", data], stdout=writing, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(writing)
    assert done.stderr == ""


def test_ctrl_c_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(index, "run", interrupted)
    assert main(["index", "anything"]) == 130
    assert capsys.readouterr().err == "gpupipe index: interrupted\n"


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("name", ["tune", "profile"])
def test_ctrl_c_while_it_measures(name: str, tmp_path: Path) -> None:
    """As a terminal sends it: to the command, its children and theirs."""
    data = str(write_folder(tmp_path / "data", classes=2, per_class=6))
    options = [] if name == "tune" else ["--model", "tiny", "--steps", "1000000"]
    numbers = ["--size", "32", "--batch-size", "4", "--output", str(tmp_path / "out")]
    command = [sys.executable, "-c", IN_A_TERMINAL, name, data, *numbers, *options]
    environment = os.environ | {"GPUPIPE_CACHE": str(tmp_path / "cache")}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as running:
        while running.poll() is None and len(_children(running.pid)) < 1:  # it measures in a child, or loads in one
            time.sleep(0.05)
        time.sleep(1.0)
        os.killpg(running.pid, signal.SIGINT)
        out, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert out == ""
    assert err.splitlines()[-1] == f"gpupipe {name}: interrupted"
    assert "Traceback" not in err
    deadline = time.monotonic() + 10
    while alive := _living(running.pid):
        assert time.monotonic() < deadline, alive
        time.sleep(0.05)


def _children(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return []


def _living(group: int) -> list[str]:
    """The processes of a group."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(process.pid) == group and lives(process.pid):
                found.append(str(process))
    return found


@pytest.fixture
def table(tmp_path: Path) -> list[str]:
    """A table of paths and names of classes, and the options that say so."""
    paths = sorted(write_folder(tmp_path / "data", classes=2, per_class=2).glob("*/*.jpg"))
    lines = [f"{path.relative_to(tmp_path)},{path.parent.name},{number / 2}" for number, path in enumerate(paths)]
    (tmp_path / "data.csv").write_text("\n".join(["path,class,score", *lines]))
    return [str(tmp_path / "data.csv"), "--field", "image=Image:path", "--field", "label=Scalar:class"]


def test_a_table_by_its_fields(table: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", *table]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-2:] == ["label: 0 is class_0", "label: 1 is class_1"]
    assert "heights" not in out
    sheet = str(tmp_path / "sheet.png")
    assert main(["show", *table, "-o", sheet, "--engine", "torch", "--count", "3"]) == 0
    data, *fields = table
    assert main(["show", data, *fields[:2], "-o", sheet, "--engine", "torch", "--count", "3"]) == 0  # without labels
    assert main(["index", data, *fields[:2], "--field", "label=Scalar:score"]) == 0
    assert "labels are no class numbers" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("reason", "failed", "code"), [("no CUDA device", False, 0), ("AttributeError: x", True, 1), (None, False, 0)]
)
def test_a_contender_that_fails_is_no_success(
    reason: str | None, failed: bool, code: int, table: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = [
        Result("torchvision-pillow", rounds=[Round(9, 1.0, 1.0)]),
        Result("gpupipe-torch", reason, failed=failed),
    ]
    monkeypatch.setattr("gpupipe.tools.benchmark.runner.measure", lambda *args: results)
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *table, "--batch-size", "4", "--size", "32"]) == code


def test_what_is_measured_is_image_and_label(
    table: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []
    monkeypatch.setattr("gpupipe.tools.benchmark.runner.measure", lambda *args: asked.append(args[1]) or [])
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *table, "--batch-size", "4", "--size", "32"]) == 1
    stream = GpupipeTorch(1).open(asked[0])
    _, labels = next(iter(stream))
    stream.close()
    assert sorted(labels.tolist()) == [0, 0, 1, 1]
    for command in ("bench", "profile", "tune"):
        assert main([command, *table[:3]]) == 2
        assert "--field: image; pass image=Image:... and label=" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["image", "=Image", "image=", "image=image:a", "image=__import__", "image=Loader:a"])
def test_a_field_that_is_none(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["index", "data.csv", "--field", text])
    assert f"{text!r} is not NAME=KIND[:SOURCE], with KIND one of Image, Mask" in capsys.readouterr().err
