"""A tuning as a table, as code, as CSV and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from gpupipe.decode.decoders import Decoders
from gpupipe.decode.tuned import Tuned
from gpupipe.tools.benchmark.csv_file import write_csv
from gpupipe.tools.benchmark.measurement import spread
from gpupipe.tools.tuning.candidates import threads, worker_processes
from gpupipe.tools.tuning.run import Outcome
from gpupipe.tools.tuning.trials import Trial

__all__ = ["COLUMNS", "code", "rows", "table", "write_all"]

Row = dict[str, Any]

COLUMNS = (
    "stage",
    "engine",
    "num_workers",
    "dali_threads",
    "worker_processes",
    "prefetch_factor",
    "cpu_share",
    "hw_decoder_load",
    "crop_decode",
    "search_img_per_s",
    "img_per_s",
    "img_per_s_min",
    "img_per_s_max",
    "rounds",
    "cpus_busy",
    "failed",
)
SHOWN = 8  # of the search, beside the finalists


def rows(trials: Sequence[Trial]) -> list[Row]:
    """A plain row for each candidate with the keys of `COLUMNS`, in the order of measuring; None without a value.

    search_img_per_s: measured once. img_per_s and what follows: the median, least and most of the final rounds.
    """
    return [_row(trial) for trial in trials]


def _row(trial: Trial) -> Row:
    candidate, decoders = trial.candidate, trial.candidate.decoders
    final = spread([one.rate for one in trial.finals])
    values = (
        trial.stage,
        candidate.engine,
        candidate.num_workers,
        decoders and threads(candidate),
        worker_processes(candidate),
        candidate.prefetch_factor,
        decoders and decoders.cpu_share,
        decoders and decoders.hw_decoder_load,
        decoders and decoders.crop_decode,
        trial.rate or None,
        final and final.median,
        final and final.low,
        final and final.high,
        len(trial.finals),
        trial.cores or None,
        trial.reason,
    )
    return dict(zip(COLUMNS, values, strict=True))


def table(outcome: Outcome) -> Table:
    """The finalists with their rounds, and the best of those that were measured once; no thread of DALI: torch."""
    made = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in (
        "",
        "DALI\nthreads",
        "CPU\nworkers",
        "CPU\nshare",
        "hw\nload",
        "crop",
        "ahead",
        "img/s",
        "min - max",
    ):
        made.add_column(heading, justify="right", no_wrap=True)
    finalists = sorted(outcome.finalists, key=lambda trial: -_median(trial))
    rest = sorted((t for t in outcome.trials if t.rate and t not in finalists), key=lambda trial: -trial.rate)
    for trial in finalists:
        mark = "chosen" if trial is outcome.winner else "default" if trial.candidate == outcome.default else ""
        made.add_row(mark, *_cells(trial, _median(trial)), style="bold" if trial is outcome.winner else None)
    made.add_section()
    for trial in rest[:SHOWN]:
        made.add_row("once", *_cells(trial, trial.rate))
    return made


def _cells(trial: Trial, rate: float) -> list[str]:
    candidate, decoders = trial.candidate, trial.candidate.decoders
    final = spread([one.rate for one in trial.finals])
    return [
        str(threads(candidate)) if decoders else "-",
        str(worker_processes(candidate) or "-"),
        f"{decoders.cpu_share:.2f}" if decoders and decoders.cpu_share else "-",
        f"{decoders.hw_decoder_load:.2f}" if decoders else "-",
        ("yes" if decoders.crop_decode else "no") if decoders else "-",
        str(candidate.prefetch_factor),
        f"{rate:,.0f}",
        f"{final.low:,.0f} - {final.high:,.0f}" if final else "",
    ]


def _median(trial: Trial) -> float:
    final = spread([one.rate for one in trial.finals])
    return final.median if final else 0.0


def code(found: Tuned) -> str:
    """The call that uses these settings, as Python."""
    decoders = f", decoders={_decoders(found.decoders)}" if found.decoders else ""
    return (
        f'gpupipe.Loader(data, recipe, batch_size, engine="{found.engine}", num_workers={found.num_workers}, '
        f"prefetch_factor={found.prefetch_factor}{decoders})"
    )


def _decoders(decoders: Decoders) -> str:
    values = ((field.name, getattr(decoders, field.name)) for field in fields(decoders))
    return f"gpupipe.Decoders({', '.join(f'{name}={value!r}' for name, value in values)})"


def write_all(outcome: Outcome, facts: dict[str, Any], kept: bool, output: Path) -> list[Path]:
    """Write tune.csv, a row for each candidate, and tune.json into the folder `output`; returns their paths."""
    output.mkdir(parents=True, exist_ok=True)
    paths = [output / "tune.csv", output / "tune.json"]
    measured = rows(outcome.trials)
    write_csv(paths[0], COLUMNS, measured)
    winner = asdict(outcome.winner.candidate) | {"img_per_s": _median(outcome.winner)}
    content = {
        "environment": facts,
        "others_cpu_share": round(outcome.others, 4),
        "kept": kept,
        "winner": winner,
        "code": code(outcome.winner.candidate),
        "measured": measured,
    }
    paths[1].write_text(json.dumps(content, indent=2) + "\n")
    return paths
