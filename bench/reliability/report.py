"""The results as a table, CSV and JSON."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path

from gpupipe.host.machine import machine
from reliability.board import Plan, Result
from reliability.rows import ROWS

__all__ = ["table", "write_all"]


def write_all(plan: Plan, results: Sequence[Result], output: Path) -> str:
    """Write results.md, results.csv and results.json into `output`; the text of the first."""
    output.mkdir(parents=True, exist_ok=True)
    results = [replace(result, reason=_without_folders(result.reason)) for result in results]
    facts = machine()
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    about = f"{facts['cpu']}, {facts['usable_cpus']} usable CPUs; {facts['date'][:10]}; {versions}"
    text = "\n".join([table(plan, results), "", about, "", *_reasons(results)]).rstrip() + "\n"
    (output / "results.md").write_text(text)
    with (output / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Result)])
        writer.writeheader()
        writer.writerows(asdict(result) | {"reason": _first_line(result.reason)} for result in results)
    not_passed = [asdict(result) for result in results if result.status not in ("passed", "none")]
    settings = {"rows": plan.rows, "contenders": plan.contenders, "seeds": [plan.seeds.start, plan.seeds.stop]}
    content = {"environment": facts, "settings": settings, "not_passed": not_passed}
    (output / "results.json").write_text(json.dumps(content, indent=1) + "\n")
    return text


def table(plan: Plan, results: Iterable[Result]) -> str:
    """How many of its seeds each case passed, as markdown; "-" where the contender is not asked."""
    cells: dict[tuple[int, str, str], Counter[str]] = {}
    for result in results:
        cells.setdefault((result.row, result.case, result.contender), Counter())[result.status] += 1
    lines = [f"| row | case | {' | '.join(plan.contenders)} |", "|---" * (2 + len(plan.contenders)) + "|"]
    for number in plan.rows:
        for case in ROWS[number].cases:
            found = (_cell(cells[number, case.name, name]) if case.asks(name) else "-" for name in plan.contenders)
            lines.append(f"| {number} {ROWS[number].title} | {case.name} | {' | '.join(found)} |")
    return "\n".join(lines)


def _cell(counts: Counter[str]) -> str:
    """Passes of runs, and how many of the others hung; "none" where there is no such function."""
    played = counts.total() - counts["none"]
    if not played:
        return "none"
    hangs = f", {counts['hang']} hung" if counts["hang"] else ""
    return f"{counts['passed']}/{played}{hangs}"


def _reasons(results: Iterable[Result]) -> list[str]:
    """For each case and contender that did not always pass: one of the reasons."""
    lines: dict[tuple[int, str, str], str] = {}
    for result in results:
        if result.status in ("failed", "hang"):
            key = (result.row, result.case, result.contender)
            reason = _first_line(result.reason)
            lines.setdefault(key, f"- {result.row} {result.case}, {result.contender}, seed {result.seed}: {reason}")
    return list(lines.values())


def _without_folders(text: str) -> str:
    """Results are shown to others: paths begin at the package, a case's files at its folder."""
    return re.sub(r"[^\s'\"]*/(?=(site-packages|lib/python[\d.]+|bench|gpupipe|tests|case-[^/]+)/)", "", text)


def _first_line(text: str) -> str:
    """Short enough for a line."""
    return text.split("\n")[0][:300]
