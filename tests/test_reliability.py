"""The scoreboard: gpupipe passes each of its cases, and each of its checks can fail."""

from __future__ import annotations

import csv
import importlib
import json
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psutil
import pytest

BENCH = Path(__file__).parent.parent / "bench"
sys.path.append(str(BENCH))

import reliability_fakes as fakes  # noqa: E402
import reliability_readers as readers  # noqa: E402
from reliability.board import Journal, Plan, Result  # noqa: E402
from reliability.case import Case, Failed  # noqa: E402
from reliability.contenders import CONTENDERS, contender  # noqa: E402
from reliability.contenders.gpupipe_loader import GpupipeStream  # noqa: E402
from reliability.report import write_all  # noqa: E402
from reliability.rows import ROWS, archives, hostile, images, network, order, resources, resume  # noqa: E402
from reliability.sandbox import Outcome, Sandbox  # noqa: E402

SEEDS = (0,)  # of more, bench/reliability/run.py


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        yield sandbox


ON_FILES = [case for row in (*archives.ROWS, *images.ROWS, *resources.ROWS, *hostile.ROWS) for case in row.cases]
ON_FILES += [case for case in ROWS[31].cases if case.only is None]


def gpupipe_cases() -> list[object]:
    """What reads files by both engines."""
    return [
        pytest.param(case, name, seed, id=f"{row.number}-{case.name}-{name}-{seed}")
        for row in ROWS.values()
        for case in row.cases
        for name in (("gpupipe", "gpupipe-dali") if case in ON_FILES else ("gpupipe",))
        if case.asks(name)
        for seed in SEEDS
    ]


@pytest.mark.parametrize(("case", "name", "seed"), gpupipe_cases())
def test_gpupipe_passes(sandbox: Sandbox, case: Case, name: str, seed: int) -> None:
    outcome = sandbox.run_case(case, contender(name), seed)
    if outcome.reason.startswith("only root may"):
        pytest.skip(outcome.reason)
    assert outcome.status == "passed", outcome.reason


@pytest.mark.parametrize("name", ["fine", "victims"])
def test_a_good_case_passes(sandbox: Sandbox, name: str) -> None:
    outcome = sandbox.run_case(fakes.CASES[name], fakes.Right, 0)
    assert (outcome.status, outcome.reason) == ("passed", "")


def test_victims_are_interrupted_in_a_background_job_too() -> None:
    """Where a shell has SIGINT ignored, which children inherit."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Sandbox() as background:
            outcome = background.run_case(fakes.CASES["victims"], fakes.Right, 0)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (outcome.status, outcome.reason) == ("passed", "")


@pytest.mark.parametrize(
    ("name", "status", "reasons"),
    [
        ("hangs", "hang", ["nothing after 2 s", "in wait_here"]),
        ("hangs_at_exit", "hang", ["nothing after 2 s", "in wait_here"]),
        ("dies_at_exit", "failed", ["exit code 4 after the case"]),
        ("leaks_a_child", "failed", ["left behind", "sleep", "still there", "children"]),
        ("leaks_an_orphan", "failed", ["left behind", "sleep"]),
        ("leaks_shared_memory", "failed", ["/dev/shm entries reliability-test-"]),
        ("leaks_a_file", "failed", ["open files", "reliability_fakes.py"]),
        ("leaks_a_thread", "failed", ["threads: "]),
        ("crashes", "failed", ["ended by SIGSEGV", "last words"]),
        ("exits", "failed", ["exit code 3"]),
        ("raises", "failed", ["reliability_fakes.py", "KeyError: 'no such thing'"]),
    ],
)
def test_what_goes_wrong_is_seen_and_cleared_away(sandbox: Sandbox, name: str, status: str, reasons: list[str]) -> None:
    outcome = sandbox.run_case(fakes.CASES[name], fakes.Right, 0)
    assert outcome.status == status
    assert [reason for reason in reasons if reason not in outcome.reason] == [], outcome.reason
    (warm,) = [child for child in psutil.Process().children() if child.pid == sandbox.pid]
    assert warm.children(recursive=True) == []
    for path in Path("/dev/shm").glob("reliability-test-*"):
        path.unlink()


ON_ORDER = [
    pytest.param(case, id=f"{row.number}-{case.name}")
    for row in (*order.ROWS, *resume.ROWS)
    for case in row.cases
    if case.only is None
]


@pytest.mark.parametrize("case", ON_ORDER)
def test_who_does_all_that_is_asked_passes(sandbox: Sandbox, case: Case) -> None:
    outcome = sandbox.run_case(case, fakes.Right, 0)
    assert (outcome.status, outcome.reason) == ("passed", "")


@pytest.mark.parametrize(
    ("case", "who", "reason"),
    [
        (order.once_uneven, fakes.Repeats, "1 repeated and not flagged"),
        (order.once_even, fakes.Loses, "1 of "),
        (order.once_uneven, fakes.Unflagged, "repeated and not flagged"),
        (order.same_order, fakes.Fickle, "the order differs"),
        (order.equal_steps, fakes.Unequal, "steps of the ranks"),
        (order.broken_off, fakes.GoesOn, "iteration 1, left after"),
        (order.interleaved, fakes.Shares, "loader 0 beside another"),
        (resume.every_step, fakes.Hasty, "resumed after step 1 of"),
        (resume.every_step, fakes.Forgetful, "resumed after step 1 of"),
        (resume.Elastic(8, 2, 8), fakes.Hasty, "missing"),
        (resume.Elastic(4, 3, 4), fakes.Forgetful, "repeated"),
        (resume.OtherWorkers(2, 0, 3), fakes.Fickle, "steps 0 to"),
        (resume.before_the_first, fakes.Hasty, "resumed before the first step"),
        (resume.at_the_last, fakes.Hasty, "resumed before the last step"),
        (resume.at_the_last, fakes.Forgetful, "resumed before the last step"),
        (resume.after_the_last, fakes.Hasty, "resumed after the epoch"),
        (resume.full_queue, fakes.Hasty, "batches ahead"),
        (resume.refused, fakes.Gullible, "changed: dataset, seed, order, drop_last, global batch"),
        (network.the_only_copy, fakes.Evicts, "were deleted"),
        (network.credentials_end, fakes.Keyless, "credentials have ended"),
        (partial(images.bad_file, name="HTML named .jpg"), readers.Blackens, "which is bad, came with gray 0"),
        (partial(images.bad_file, name="a cut tail"), readers.Mute, "without a word"),
        (partial(images.bad_file, name="0 bytes"), readers.Drops, "samples that did not come"),
        (partial(images.bad_file, name="0 bytes"), readers.Doubles, "repeats of samples"),
        (partial(images.one_flip, part="header"), readers.Mixes, "came with gray"),
        (partial(images.odd_file, name="16-bit gray PNG"), readers.Reads, "came with gray 255"),
        (partial(images.odd_file, name="CMYK"), readers.Picky, "though nothing is wrong"),
        (images.named, readers.Nameless, "is not named"),
        (partial(images.bomb, name="thousands of scans"), readers.Rereads, "s of CPU time more"),
        (partial(images.bomb, name="a header of 65,500 x 65,500"), readers.Hoards, "MiB more"),
        (images.all_flipped, readers.Mute, "without a word"),
        (readers.allows_any_rate, GpupipeStream, ": None"),
        (readers.allows_none, GpupipeStream, "bad of 12"),
        (partial(readers.engines_differ, what=0), GpupipeStream, "what one engine refuses"),
        (partial(readers.engines_differ, what=1), GpupipeStream, "in the order in which they came"),
        (partial(readers.engines_differ, what=2), GpupipeStream, "levels off in the mean"),
        (partial(archives.cut, where="header"), readers.Mute, "without a word"),
        (partial(archives.strange, members=archives.linked), readers.FollowsLinks, "came with gray"),
        (partial(archives.strange, members=archives.leading_out), readers.Extracts, "files that were written"),
        (archives.stale, readers.Remembers, "came with gray"),
        (archives.anothers, readers.Remembers, "came with gray"),
        (archives.pickled, readers.Runs, "a pickle of the data was run"),
        (archives.piped, readers.Runs, "the command was run"),
        (partial(archives.zeros, hole=False, opened=False), readers.Mute, "without a word"),
        (fakes.goes_on_a_step_late, fakes.Right, "samples"),
        (fakes.has_other_pixels, fakes.Right, "levels off in the mean"),
        (fakes.draws_other_boxes, fakes.Right, "what is done to step 0"),
        (fakes.says_little, GpupipeStream, "the message lacks"),
        (fakes.says_nothing, GpupipeStream, "another source was loaded in silence"),
        (resources.tiny, fakes.Nameless, "none of ('shm',)"),
        (resources.filled, fakes.Nameless, "none of ('/dev/shm'"),
        (resources.few_files, fakes.Nameless, "open files is not in: RuntimeError: something is wrong"),
        (resources.out_of_memory, fakes.Vague, "is not in: RuntimeError: a worker ended"),
        (resources.little_address_space, fakes.Swallows, "the samples of an epoch"),
        (resources.slope, fakes.Grows, "MB more an epoch"),
        (fakes.looks_up_a_mapped_index, GpupipeStream, "MB more an epoch"),
        (resources.read_only, fakes.Short, "the samples of an epoch"),
        (resources.at_once, fakes.Short, "the samples of an epoch"),
        (resources.replaced, fakes.Mixes, "came with gray"),
        (partial(hostile.shrinks, least=0.0, most=0.0), fakes.Nameless, "none of ("),
        (hostile.index_shrinks, fakes.Short, "the samples of an epoch"),
        (partial(hostile.intruder, make=hostile.fifo, later=False), fakes.Swallows, "the samples of an epoch"),
        (hostile.in_place_of_the_index, fakes.Short, "the samples of an epoch"),
        (hostile.in_place_of_a_tuning, fakes.Short, "the samples of an epoch"),
        (hostile.flipped_index, fakes.Mixes, "came with gray"),
        (hostile.planted_index, fakes.Mixes, "came with gray"),
        (hostile.leaves_the_root, fakes.Short, "the samples of an epoch"),
        (partial(hostile.unending, header=hostile.LONG_NAME, size=1 << 40), fakes.Nameless, "none of ("),
        (hostile.loops, fakes.Nameless, "none of ("),
        (partial(hostile.named, what="file"), fakes.Raw, "is told as it is"),
        (partial(network.unwritable, size="4m", read_only=True), fakes.Short, "the samples of an epoch"),
    ],
)
def test_what_is_wrong_is_found(sandbox: Sandbox, case: object, who: type, reason: str) -> None:
    outcome = sandbox.run_case(Case("wrong", case), who, 1)
    if outcome.reason.startswith("only root may"):
        pytest.skip(outcome.reason)
    assert outcome.status == "failed"
    assert reason in outcome.reason


ON_A_DISK = [
    pytest.param(case, id=f"{row.number}-{case.name}")
    for row in (*images.ROWS, *archives.ROWS)
    for case in row.cases
    if row.number in (11, 12, 51)
]


@pytest.mark.parametrize("case", ON_A_DISK)
def test_who_says_what_is_bad_passes(sandbox: Sandbox, case: Case) -> None:
    outcome = sandbox.run_case(case, readers.Reads, 0)
    assert outcome.status in ("passed", "none"), outcome.reason


def test_a_missing_function_is_no_failure(sandbox: Sandbox) -> None:
    assert sandbox.run_case(Case("state", resume.every_step), fakes.Silent, 0).status == "none"
    assert sandbox.run_case(Case("not for it", fakes.fine, only=("gpupipe",)), fakes.Right, 0).status == "none"


LIBRARIES = {"stateful": "torchdata", "litdata": "litdata", "streaming": "streaming"}  # which no extra installs
LIBRARIES |= {"s3torchconnector": "s3torchconnector"}


@pytest.mark.parametrize("name", list(CONTENDERS))
def test_each_contender_gives_each_sample_once(sandbox: Sandbox, name: str) -> None:
    """Of a dataset, a storage, a disk, or all of them."""
    pytest.importorskip(LIBRARIES.get(name, "torch"))
    cases = (Case("even", order.once_even), Case("good", partial(network.passing, faults=network.no_faults)))
    cases += (Case("kinds", fakes.reads_all_kinds),)
    outcomes = [sandbox.run_case(case, contender(name), 0) for case in cases]
    assert {"passed"} <= {outcome.status for outcome in outcomes} <= {"passed", "none"}, outcomes


def test_what_comes_from_a_storage_is_looked_at() -> None:
    right = [(number, 5.0 * number) for number in range(48)]
    network.expect_right(right[::-1])
    network.expect_right([(number, 235.0 - level) for number, level in right], other=True)
    network.expect_right(right[:9], whole=False)
    for wrong in (right[1:], [*right, right[3]], [(0, 4.0), *right[1:]], [(0, 235.0), *right[1:]]):
        with pytest.raises(Failed):
            network.expect_right(wrong)
    with pytest.raises(Failed):
        network.expect_right(right[:9] + right[:1], whole=False)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The script's main."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    script = importlib.import_module("reliability.run")
    return lambda *options: script.main([str(option) for option in options])


def test_a_run_writes_its_results(run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["--rows", "1", "--contenders", "gpupipe,torch", "--seeds", "1", "--first-seed", "2"]
    assert run("--out", tmp_path, *chosen) == 0
    text = (tmp_path / "results.md").read_text()
    assert "| 1 Exactly once | samples left over | 1/1 | 0/1 |" in text
    assert "1 samples left over, torch, seed 2: 0 of" in text
    with (tmp_path / "results.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 2 * 2
    assert {line["status"] for line in lines if line["contender"] == "gpupipe"} == {"passed"}
    content = json.loads((tmp_path / "results.json").read_text())
    assert [entry["seed"] for entry in content["not_passed"]] == [2]
    assert "torch" in content["environment"]["versions"]
    assert run("--out", tmp_path, *chosen) == 0  # all is in the journal
    assert " of 4" not in capsys.readouterr().out.partition("4 of 4")[2]
    assert (tmp_path / "results.md").read_text() == text


def test_a_journal_has_all_but_a_line_that_was_cut(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "new/played.jsonl")
    assert journal.results() == {}
    results = [Result(1, order.ROWS[0].cases[0].name, "torch", seed, "passed", "", 0.1) for seed in (0, 1)]
    for result in results:
        journal.add(result)
    with (tmp_path / "new/played.jsonl").open("a") as file:
        file.write('{"row": 1, "cas')
    assert list(journal.results().values()) == results


def test_results_name_no_folder_of_this_machine(tmp_path: Path) -> None:
    reason = 'File "/home/me/env/lib/python3.11/site-packages/torch/x.py", line 3; open files: /tmp/case-ab1/tmp/y'
    write_all(Plan((), (), range(1)), [Result(1, "a", "torch", 0, "failed", reason, 0.1)], tmp_path)
    (entry,) = json.loads((tmp_path / "results.json").read_text())["not_passed"]
    assert entry["reason"] == 'File "site-packages/torch/x.py", line 3; open files: case-ab1/tmp/y'


def test_wrong_names_are_refused(run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = {"--rows": ("99", "there are "), "--contenders": ("torhc", "there are "), "--seeds": ("0", "from 1 on")}
    for option, (value, told) in wrong.items():
        with pytest.raises(SystemExit):
            run("--out", tmp_path / "no", option, value)
        assert told in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


def test_who_is_not_installed_is_named(
    run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contender("gpupipe"), "library", "surely_missing")
    with pytest.raises(SystemExit):
        run("--out", tmp_path / "no", "--contenders", "gpupipe")
    assert "contender gpupipe: no module named surely_missing; install it" in capsys.readouterr().err
    monkeypatch.setattr("reliability.run.CONTENDERS", ["gpupipe", "torch"])
    assert importlib.import_module("reliability.run").installed() == ("torch",)
    assert "gpupipe is left out: no module named surely_missing" in capsys.readouterr().out


@pytest.mark.large
@pytest.mark.timeout(3600)
def test_a_million_samples_come_once_each() -> None:
    """Over 1, 2, 3, 4 and 8 ranks with 0, 1 and 4 workers each; two of these at a time."""
    waiting = deque(order.LARGE)

    def play() -> dict[str, Outcome]:
        with Sandbox() as sandbox:
            found = {}
            while waiting:
                case = waiting.popleft()
                found[case.name] = sandbox.run_case(case, GpupipeStream, 0)
            return found

    with ThreadPoolExecutor(2) as pool:
        parts = [pool.submit(play) for _ in range(2)]
        outcomes = {name: outcome for part in parts for name, outcome in part.result().items()}
    assert len(outcomes) == len(order.LARGE) == 15
    assert {name: outcome.reason for name, outcome in outcomes.items() if outcome.status != "passed"} == {}
