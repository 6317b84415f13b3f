"""A tuning as a table, as code, as CSV and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from gpupipe.decode.tuned import Tuned
from gpupipe.tools.benchmark.measurement import columns
from gpupipe.tools.figures import figures, write_csv, write_json
from gpupipe.tools.tuning.candidates import threads, worker_processes
from gpupipe.tools.tuning.run import Outcome
from gpupipe.tools.tuning.trials import Trial

__all__ = ["code", "rows", "table", "write_all"]

Row = dict[str, Any]

SHOWN = 8  # of the search, beside the finalists


def rows(trials: Sequence[Trial]) -> list[Row]:
    """A plain row for each candidate, in the order of measuring; None without a value.

    search_img_per_s: measured once. img_per_s and what follows: the median, least and most of the final rounds.
    """
    return [_row(trial) for trial in trials]


def _row(trial: Trial) -> Row:
    candidate, decoders = trial.candidate, trial.candidate.decoders
    return {
        "stage": trial.stage,
        "engine": candidate.engine,
        "num_workers": candidate.num_workers,
        "dali_threads": decoders and threads(candidate),
        "worker_processes": worker_processes(candidate),
        "prefetch_factor": candidate.prefetch_factor,
        "cpu_share": decoders and decoders.cpu_share,
        "hw_decoder_load": decoders and decoders.hw_decoder_load,
        "crop_decode": decoders and decoders.crop_decode,
        "search_img_per_s": trial.rate or None,
        **columns("img_per_s", [one.rate for one in trial.finals]),
        "rounds": len(trial.finals),
        "cpus_busy": trial.cores or None,
        "failed": trial.reason,
    }


def table(outcome: Outcome) -> Table:
    """The finalists with their rounds, and the best of those that were measured once; no thread of DALI: torch."""
    headings = ("DALI\nthreads", "CPU\nworkers", "CPU\nshare", "hw\nload", "crop", "ahead", "img/s", "min - max")
    made = figures("", *headings)
    finalists = sorted(outcome.finalists, key=lambda trial: -trial.final.median)
    rest = sorted((t for t in outcome.trials if t.rate and t not in finalists), key=lambda trial: -trial.rate)
    for trial in finalists:
        mark = "chosen" if trial is outcome.winner else "default" if trial.candidate == outcome.default else ""
        made.add_row(mark, *_cells(trial, trial.final.median), style="bold" if trial is outcome.winner else None)
    made.add_section()
    for trial in rest[:SHOWN]:
        made.add_row("once", *_cells(trial, trial.rate))
    return made


def _cells(trial: Trial, rate: float) -> list[str]:
    candidate, decoders = trial.candidate, trial.candidate.decoders
    final = trial.final
    return [
        str(threads(candidate)) if decoders else "-",
        str(worker_processes(candidate) or "-"),
        f"{decoders.cpu_share:.2f}" if decoders and decoders.cpu_share else "-",
        f"{decoders.hw_decoder_load:.2f}" if decoders else "-",
        ("yes" if decoders.crop_decode else "no") if decoders else "-",
        str(candidate.prefetch_factor),
        f"{rate:,.0f}",
        f"{final.low:,.0f} - {final.high:,.0f}" if trial.finals else "",
    ]


def code(found: Tuned) -> str:
    """The call that uses these settings, as Python."""
    decoders = f", decoders=gpupipe.{found.decoders!r}" if found.decoders else ""
    return (
        f'gpupipe.Loader(data, recipe, batch_size, engine="{found.engine}", num_workers={found.num_workers}, '
        f"prefetch_factor={found.prefetch_factor}{decoders})"
    )


def write_all(outcome: Outcome, facts: dict[str, Any], kept: bool, output: Path) -> list[Path]:
    """Write tune.csv, a row for each candidate, and tune.json into the folder `output`; returns their paths."""
    measured = rows(outcome.trials)
    content = {
        "environment": facts,
        "others_cpu_share": round(outcome.others, 4),
        "kept": kept,
        "winner": asdict(outcome.winner.candidate) | {"img_per_s": outcome.winner.final.median},
        "code": code(outcome.winner.candidate),
        "measured": measured,
    }
    return [write_csv(output / "tune.csv", measured), write_json(output / "tune.json", content)]
