"""gpupipe tune: the search on machines whose best settings are known, the choice, the child process, the command."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from images import write_folder
from tuning_fakes import Bench, Machine, machines

import gpupipe
from gpupipe import Decoders
from gpupipe.decode.tuned import Tuned, keep, tuned
from gpupipe.errors import ConfigError
from gpupipe.host.children import ChildError
from gpupipe.host.system import usable_cpus
from gpupipe.host.usage import busy_seconds, cpu_seconds, some_cpus
from gpupipe.tools.benchmark.measurement import Round
from gpupipe.tools.cli import main
from gpupipe.tools.tuning import run
from gpupipe.tools.tuning.candidates import dali_engine, parts, threads, torch_engine, with_odds
from gpupipe.tools.tuning.report import code, rows
from gpupipe.tools.tuning.run import Others, Outcome, Rig, TuneSettings, search
from gpupipe.tools.tuning.search import search_cpu, search_gpu
from gpupipe.tools.tuning.trials import Trial, Trials, TuningError, choose, play_off

MINUTES = 4.0
COLUMNS = (
    *("stage", "engine", "num_workers", "dali_threads", "worker_processes", "prefetch_factor", "cpu_share"),
    *("hw_decoder_load", "crop_decode", "search_img_per_s", "img_per_s", "img_per_s_min", "img_per_s_max", "rounds"),
    *("cpus_busy", "failed"),
)
PIPES: dict[str, Any] = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

BALANCED = Machine(16, hardware=14000, hybrid=9000, hybrid_cpu=1 / 3000, hardware_cpu=1 / 20000, cpu=1 / 900)
KINDS = {
    "every decoder counts": BALANCED,
    "hardware alone": Machine(16, 30000, 1500, 1 / 200, 1 / 40000, 1 / 40),
    "hybrid alone": Machine(16, 400, 25000, 1 / 5000, 1 / 20000, 1 / 40),
    "a strong CPU": Machine(64, 6000, 3000, 1 / 300, 1 / 20000, 1 / 1400),
    "DALI loses to the CPU": Machine(16, 200, 150, 1 / 100, 1 / 100, 1 / 1400),
    "two CPUs": Machine(2, 12000, 9000, 1 / 500, 1 / 20000, 1 / 900),
}


def found(
    bench: Bench, minutes: float = MINUTES, allowed: Callable[[Decoders], bool] = lambda decoders: True
) -> tuple[Tuned, Trials]:
    """What a tuning on a GPU takes there."""
    trials = Trials(bench, 60 * minutes, clock=bench.clock)
    default = dali_engine(bench.machine.cpus, Decoders(crop_decode=False))
    trials.warm_up(default)
    search_gpu(trials, bench.machine.cpus, allowed)
    return choose(play_off(trials, default), default).candidate, trials


class TestSearch:
    @pytest.mark.parametrize("kind", KINDS)
    def test_reaches_the_best_of_a_machine(self, kind: str) -> None:
        bench = Bench(KINDS[kind])
        winner, _ = found(bench)
        assert bench.machine.rate(winner) >= 0.97 * bench.machine.best()
        assert bench.now <= 1.1 * 60 * MINUTES

    def test_reaches_the_best_of_many_machines(self) -> None:
        reached = np.array([machine.rate(found(Bench(machine))[0]) / machine.best() for machine in machines(25)])
        assert np.quantile(reached, 0.05) >= 0.97
        assert reached.min() >= 0.94

    def test_comes_close_where_measurements_vary(self) -> None:
        reached = np.array(
            [
                machine.rate(found(Bench(machine, noise=0.015, rng=np.random.default_rng(number)))[0]) / machine.best()
                for number, machine in enumerate(machines(20, seed=1))
            ]
        )
        assert np.median(reached) >= 0.97
        assert np.quantile(reached, 0.1) >= 0.95

    def test_needs_every_decoder_where_each_counts(self) -> None:
        winner, _ = found(Bench(BALANCED))
        assert winner.decoders is not None
        assert winner.decoders.cpu_share > 0.1
        assert 0.3 < winner.decoders.hw_decoder_load < 1
        singles = [
            BALANCED.rate(dali_engine(16, Decoders(hw_decoder_load=load, crop_decode=False)))
            for load in np.linspace(0, 1, 21)
        ]
        assert BALANCED.rate(winner) > 1.3 * max(*singles, BALANCED.rate(torch_engine(16)))

    def test_takes_the_torch_engine_where_it_is_faster(self) -> None:
        winner, _ = found(Bench(KINDS["DALI loses to the CPU"]))
        assert winner.engine == "torch"
        assert winner.decoders is None

    @pytest.mark.parametrize("forbidden", ["crop decode", "hardware engines"])
    def test_never_tries_what_the_self_test_rules_out(self, forbidden: str) -> None:
        bench = Bench(replace(BALANCED, hybrid_crop=3.0))

        def allowed(decoders: Decoders) -> bool:
            return not decoders.crop_decode if forbidden == "crop decode" else decoders.hw_decoder_load == 0

        trials = Trials(bench, 60 * MINUTES, clock=bench.clock)
        search_gpu(trials, bench.machine.cpus, allowed)
        asked = [candidate.decoders for candidate in bench.asked if candidate.decoders]
        assert len(asked) > 20
        assert all(map(allowed, asked))
        if forbidden == "crop decode":
            assert max(map(bench.machine.rate, bench.asked)) >= 0.97 * bench.machine.best(crops=(False,))

    def test_leaves_a_way_alone_that_crashes(self) -> None:
        def fails(candidate: Tuned) -> bool:
            return candidate.decoders is not None and candidate.decoders.crop_decode

        bench = Bench(replace(BALANCED, hybrid_crop=3.0), fails=fails)
        winner, trials = found(bench)
        assert bench.machine.rate(winner) >= 0.97 * bench.machine.best(crops=(False,))
        failed = [trial for trial in trials.by_candidate.values() if trial.reason]
        assert {trial.candidate.decoders.hw_decoder_load > 0 for trial in failed} == {False, True}
        assert len(failed) == 2  # each plan once
        assert all("SIGSEGV" in trial.reason for trial in failed)

    def test_takes_the_torch_engine_where_dali_crashes(self) -> None:
        winner, _ = found(Bench(BALANCED, fails=lambda candidate: candidate.engine == "dali"))
        assert winner.engine == "torch"

    def test_stays_valid_on_one_cpu_and_with_little_time(self) -> None:
        for cpus in (1, 2, 3):
            for minutes in (0.01, 0.5, 10):
                bench = Bench(replace(BALANCED, cpus=cpus))
                found(bench, minutes)
                for candidate in bench.asked:
                    assert candidate.num_workers >= 1
                    assert candidate.engine == "torch" or threads(candidate) >= 1

    def test_ends_at_a_peak_of_workers_without_a_gpu(self) -> None:
        """More of them help up to 11, of 16 CPUs."""

        def measure(candidate: Tuned) -> Round:
            peak = 9000 - 150 * abs(candidate.num_workers - 11) if candidate.engine == "torch" else 2000
            return Round(peak + candidate.prefetch_factor, 1.0, 1.0)

        outcome = search(measure, settings(cpus=1), torch.device("cpu"), str, lambda decoders: True)
        assert outcome.winner.candidate.num_workers == 1  # all that one CPU is asked for
        trials = Trials(measure, 240)
        search_cpu(trials, 16)
        assert trials.best(1)[0].candidate == torch_engine(11, 4)
        assert any(candidate.engine == "dali" for candidate in trials.by_candidate)

    def test_says_what_it_does(self) -> None:
        said: list[str] = []
        bench = Bench(BALANCED)
        outcome = search(bench, settings(), torch.device("cuda"), said.append, lambda decoders: True)
        assert len(said) == len(bench.asked)
        assert said[0] == "warming up"
        assert any(line.startswith("all decoders") and "best so far" in line for line in said)
        assert outcome.default == dali_engine(1, Decoders(crop_decode=False))


def trial(candidate: Tuned, *rates: int) -> Trial:
    return Trial("", candidate, finals=[Round(rate, 1.0, 1.0) for rate in rates])


class TestChoice:
    default = dali_engine(16, Decoders(crop_decode=False))
    single = torch_engine(16)
    both = dali_engine(8, Decoders(cpu_share=0.4, cpu_workers=12))

    def test_parts(self) -> None:
        assert [parts(candidate, self.default) for candidate in (self.default, self.single, self.both)] == [0, 1, 2]

    @pytest.mark.parametrize(
        ("default", "single", "both", "expected"),
        [
            ((100, 101, 102), (101, 102, 103), (102, 103, 104), "default"),  # all the same
            ((100, 101, 102), (190, 198, 200), (199, 200, 201), "single"),
            ((100, 101, 102), (190, 191, 192), (199, 200, 201), "both"),
            ((100, 101, 102), (195, 185, 205), (190, 200, 210), "single"),  # 2.5% apart, but once it was ahead
            ((100, 101, 102), (185, 195, 205), (190, 200, 210), "both"),  # 2.5% apart, and so in every round
            ((100, 101, 102), (100, 188, 300), (190, 200, 210), "both"),  # rounds that vary wildly prove no more
        ],
    )
    def test_is_the_simplest_that_is_as_fast(self, default: tuple, single: tuple, both: tuple, expected: str) -> None:
        made = {"default": trial(self.default, *default), "single": trial(self.single, *single)}
        made["both"] = trial(self.both, *both)
        assert choose(list(made.values()), self.default) is made[expected]

    def test_plays_off_the_simple_ones_too(self) -> None:
        bench = Bench(BALANCED)
        trials = Trials(bench, 240, clock=bench.clock)
        default = dali_engine(16, Decoders(crop_decode=False))
        search_gpu(trials, 16)
        finalists = play_off(trials, default)
        assert default in [one.candidate for one in finalists]
        assert any(one.candidate.engine == "torch" for one in finalists)
        assert sum(parts(one.candidate, default) == 2 for one in finalists) == 3
        assert {len(one.finals) for one in finalists} == {3}

    def test_an_error_says_why_nothing_worked(self) -> None:
        bench = Bench(BALANCED, fails=lambda candidate: True)
        with pytest.raises(TuningError, match=r"no candidate could be measured: died .*SIGSEGV"):
            found(bench)


class TestTrials:
    def test_each_candidate_is_measured_once_and_none_when_time_is_over(self) -> None:
        bench = Bench(BALANCED, noise=0.1, cost=10)
        trials = Trials(bench, 100, clock=bench.clock)
        assert trials.rate("a", torch_engine(16)) == trials.rate("b", torch_engine(16)) > 0
        assert len(bench.asked) == 1
        trials.allow(0.1)
        assert trials.rate("c", torch_engine(8)) == 0  # a tenth of the time is spent
        trials.allow(1.0)
        assert sum(trials.rate("c", torch_engine(count)) > 0 for count in range(1, 12)) == 4  # half is for the final
        assert trials.measured("c", torch_engine(12)).rate > 0  # whatever the time

    def test_odds(self) -> None:
        assert with_odds(0.5, 2) == pytest.approx(2 / 3)
        assert with_odds(with_odds(0.3, 1.7), 1 / 1.7) == pytest.approx(0.3)


def settings(**changes: object) -> TuneSettings:
    return TuneSettings(**({"data": "data", "cpus": 1, "timeout": 10.0} | changes))  # type: ignore[arg-type]


class TestRig:
    def test_a_child_that_dies_is_replaced(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(run, "BENCH", "tuning_fakes:Breaking")
        with closing(Rig(settings(timeout=60.0), "cpu", tmp_path / "log")) as measure:
            assert [measure(torch_engine(1)).images for _ in range(2)] == [1000, 2000]  # one child for both
            with pytest.raises(ChildError, match="died during 'measure': SIGABRT"):
                measure(torch_engine(13))
            assert measure(torch_engine(1)).images == 1000  # another child
            with pytest.raises(ChildError, match="ValueError: 15 brings bad luck"):
                measure(torch_engine(15))

    def test_settings_are_checked(self) -> None:
        with pytest.raises(ConfigError, match=r"minutes=0 must be above 0"):
            settings(minutes=0)
        with pytest.raises(ConfigError, match=r"cpus=10000: this process may use"):
            settings(cpus=10000)
        assert settings(data="/home/me/train").as_dict()["data"] == ["train"]
        assert settings(data="https://host/a%20b.tar?signature=secret").as_dict()["data"] == ["a b.tar"]

    def test_cpus_are_whole_cores(self, tmp_path: Path) -> None:
        """Of 4 cores with two halves each, numbered as is common: 0 and 4 are one core."""
        for cpu in range(8):
            folder = tmp_path / f"cpu{cpu}"
            folder.mkdir()
            (folder / "physical_package_id").write_text("0\n")
            (folder / "core_id").write_text(f"{cpu % 4}\n")
        where = str(tmp_path / "cpu{}")
        assert some_cpus(set(range(8)), 4, where) == [0, 4, 1, 5]
        assert some_cpus({1, 2, 3, 5}, 3, where) == [1, 5, 2]
        assert some_cpus({3, 1, 2}, 2, str(tmp_path / "none{}")) == [1, 2]


@pytest.mark.parametrize("candidate", [TestChoice.default, TestChoice.both, TestChoice.single])
def test_the_code_makes_a_loader_with_these_settings(candidate: Tuned) -> None:
    names = {"gpupipe": SimpleNamespace(Loader=lambda *a, **k: k, Decoders=Decoders)}
    names |= {"data": None, "recipe": None, "batch_size": None}
    given = eval(code(candidate), names)  # what users copy
    assert Tuned(**({"decoders": None} | given)) == candidate


def test_rows_hold_everything() -> None:
    made = trial(TestChoice.both, 90, 100, 120)
    made.rounds = [Round(110, 1.0, 15.0)]
    failed = Trial("final", TestChoice.single, reason="died")
    first, second = rows([made, failed])
    assert tuple(first) == tuple(second) == COLUMNS
    assert (first["dali_threads"], first["worker_processes"], first["cpu_share"]) == (8, 12, 0.4)
    assert (first["search_img_per_s"], first["img_per_s"], first["img_per_s_min"]) == (110, 100, 90)
    assert (first["cpus_busy"], first["rounds"]) == (15.0, 3)
    assert (second["failed"], second["img_per_s"], second["worker_processes"]) == ("died", None, 16)


STAT = """cpu  100 0 50 900 0 7 7 5 0 0
cpu0 {0} 100 50 900 0 7 7 30 0 0
cpu1 999 0 0 900 0 0 0 0 0 0
cpu10 {1} 0 0 900 0 0 0 0 0 0
intr 1 2 3
"""


class TestOthers:
    def test_busy_seconds(self, tmp_path: Path) -> None:
        (tmp_path / "stat").write_text(STAT.format(20, 300))
        ticks = os.sysconf("SC_CLK_TCK")
        assert busy_seconds([0], tmp_path / "stat") == (20 + 100 + 50 + 30) / ticks  # the host's part too
        assert busy_seconds([0, 10], tmp_path / "stat") == (200 + 300) / ticks

    def test_the_share_is_what_this_process_did_not_do(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of 2 CPUs for 10 seconds: 8 seconds of work, of which 5 are this process's."""
        now = {"time": 100.0, "busy": 1000.0, "own": 50.0}
        monkeypatch.setattr("gpupipe.tools.tuning.run.time.monotonic", lambda: now["time"])
        monkeypatch.setattr("gpupipe.tools.tuning.run.busy_seconds", lambda cpus: now["busy"])
        monkeypatch.setattr("gpupipe.tools.tuning.run.cpu_seconds", lambda: now["own"])
        others = Others([3, 4])
        assert others.share() == 0
        now.update(time=110.0, busy=1008.0, own=55.0)
        assert others.share() == pytest.approx(3 / 20)
        now.update(own=58.5)  # the kernel counts in hundredths
        assert others.share() == 0

    def test_cpu_seconds_have_ended_children(self) -> None:
        before = cpu_seconds()
        spent = "import time\nwhile time.process_time() < 0.5: pass"
        subprocess.run([sys.executable, "-c", spent], check=True)
        assert cpu_seconds() - before >= 0.45
        before = cpu_seconds()
        with subprocess.Popen([sys.executable, "-c", f"{spent}\nprint(flush=True); input()"], **PIPES) as running:
            assert running.stdout.readline()  # the time is spent
            during = cpu_seconds()
            running.communicate("\n")
        assert during - before >= 0.45
        assert cpu_seconds() >= during - 0.05  # what it did is not forgotten when it ends


class TestCommand:
    @pytest.fixture
    def kept(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("GPUPIPE_CACHE", str(tmp_path / "cache"))
        return tmp_path / "out"

    @pytest.fixture(autouse=True)
    def _quiet(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Others, "share", lambda self: 0.04)  # tests run on busy machines too

    def test_from_end_to_end(
        self, kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data = write_folder(tmp_path / "data", classes=2, per_class=6)
        (data / "class_0" / "not_an_image.jpg").write_bytes(b"\xff\xd8 no")  # data are not perfect
        arguments = ["--minutes", "0.01", "--batch-size", "4", "--size", "32", "--cpus", "1"]
        assert main(["tune", str(data), *arguments, "--output", str(kept)]) == 0
        content = json.loads((kept / "tune.json").read_text())
        with (kept / "tune.csv").open() as file:
            lines = list(csv.DictReader(file))
        assert tuple(lines[0]) == COLUMNS
        assert len(lines) == len(content["measured"]) >= 1
        assert content["winner"]["img_per_s"] > 0
        assert content["environment"]["settings"]["data"] == ["data"]
        assert (content["kept"], content["others_cpu_share"]) == (True, 0.04)
        printed = capsys.readouterr().out
        assert content["code"] in printed
        assert "\nkept: " in printed
        assert "other processes took 4% of the CPUs" in printed
        device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
        assert (tuned(device) is None) == (usable_cpus() > 1)  # for processes with one CPU
        monkeypatch.setattr("gpupipe.host.system.usable_cpus", lambda: 1)
        winner = content["winner"]
        with gpupipe.Loader(data, gpupipe.imagenet_train(32)) as loader:
            assert (loader.engine, loader.num_workers) == (winner["engine"], winner["num_workers"])
            assert loader.prefetch_factor == winner["prefetch_factor"]

    def test_nothing_is_kept_on_a_busy_machine(
        self, kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Others, "share", lambda self: 0.1)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        winner = trial(torch_engine(1), 100, 101, 102)
        outcome = Outcome([winner], [winner], winner, winner.candidate, others=0.1)
        monkeypatch.setattr("gpupipe.tools.tuning.run.tune", lambda *arguments: outcome)
        data = write_folder(tmp_path / "data", classes=1, per_class=2)
        assert main(["tune", str(data), "--output", str(kept)]) == 1
        printed = capsys.readouterr().out
        assert code(winner.candidate) in printed
        assert "not kept: other processes took 10% of the CPUs meanwhile" in printed
        assert json.loads((kept / "tune.json").read_text())["kept"] is False
        assert not list((tmp_path / "cache").glob("tuned-*"))
        assert main(["tune", str(data), "--keep-anyway", "--output", str(kept)]) == 0
        assert "\nkept: " in capsys.readouterr().out
        assert main(["tune", "--kept"]) == 0
        assert "while other processes took 10% of the CPUs" in capsys.readouterr().out

    def test_what_is_kept_can_be_seen_and_forgotten(
        self, kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        device = torch.device("cpu")
        for cpus, found in ((8, TestChoice.single), (2, torch_engine(2))):
            assert keep(device, found, cpus, others=0.031)
        other = tmp_path / "cache" / "tuned-0123.json"
        other.write_text(json.dumps({"key": {"gpu": "H200", "cpus": 8}, "value": {}}))
        for flag, word in (("--kept", "kept"), ("--forget", "forgotten")):
            assert main(["tune", flag]) == 0
            lines = capsys.readouterr().out.splitlines()
            assert len(lines) == 2
            assert all(line.startswith(f"{word}: engine='torch', num_workers=") for line in lines)
            assert any(re.search(r"with 8 CPUs, measured 20\d\d-\d\d-\d\d \d\d:\d\d UTC", line) for line in lines)
            assert all("took 3% of the CPUs" in line for line in lines)
        assert list((tmp_path / "cache").glob("tuned-*")) == [other]  # of another device
        assert tuned(device) is None
        assert main(["tune", "--forget"]) == 0
        assert capsys.readouterr().out == "nothing is kept for batches on the CPU\n"

    def test_what_others_have_left_is_not_used(
        self, kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An older gpupipe's settings, those of another DALI, and no settings at all."""
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        device = torch.device("cpu")
        assert keep(device, TestChoice.single)
        (path,) = (tmp_path / "cache").glob("tuned-*")
        stored = json.loads(path.read_text())
        path.write_text(json.dumps(stored | {"value": stored["value"]["settings"]}))
        assert tuned(device) is None
        (tmp_path / "cache" / "tuned-x.json").write_text(
            json.dumps(stored | {"key": stored["key"] | {"dali": "nvidia-dali-cuda120 1.0"}})
        )
        (tmp_path / "cache" / "tuned-y.json").write_text("{")
        os.mkfifo(tmp_path / "cache" / "tuned-z.json")
        assert main(["tune", "--kept"]) == 0
        first, second = capsys.readouterr().out.splitlines()
        assert "settings of another version of gpupipe, unused" in first
        assert "with other versions than are here now, so unused" in second

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [([], "DATA is missing"), (["data", "--forget"], "--forget takes no DATA"), (["data", "--kept"], "--kept")],
    )
    def test_data_or_what_is_kept(self, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["tune", *arguments]) == 2
        assert message in capsys.readouterr().err

    def test_ranks_find_what_was_kept_for_as_many_cpus(self, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("gpupipe.host.system.usable_cpus", lambda: 64)
        device = torch.device("cpu")
        assert keep(device, TestChoice.single, cpus=8)
        assert tuned(device) is None  # a process that has all 64
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
        assert tuned(device) == TestChoice.single
