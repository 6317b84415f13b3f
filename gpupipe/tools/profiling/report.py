"""A profile as text, as JSON, and as a picture: a lane for everyone who works on batches, and one for the model."""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpupipe.tools.figures import write_json
from gpupipe.tools.profiling.rounds import PRECISE, Profile, Stretch
from gpupipe.tools.profiling.verdict import Bottleneck

__all__ = ["draw", "lanes", "lines", "write_all"]

STEPS_SHOWN = 12
COLORS = {"read": "#e69f00", "storage": "#d55e00", "decode": "#0072b2", "finish": "#009e73"}
COLORS |= {"wait": "#d9d9d9", "step": "#cc79a7"}

Block = tuple[str, float, float]
"""A stage, its start in seconds, and how long it took."""


def lines(profile: Profile, verdict: Bottleneck) -> list[str]:
    """What was measured, and what it means."""
    settings = profile.settings
    on = f"{profile.engine} engine, {settings.workers} workers, batch {settings.batch_size}, {settings.size} px"
    made = [
        f"training on {profile.device}, {on}; {len(profile.real)} rounds of {settings.steps} steps, median (min - max)",
        f"  real loader     {_rates(profile.real)} img/s",
        f"  perfect loader  {_rates(profile.perfect)} img/s",
        f"  {_gain(profile)}",
        f"  {_precision(profile)}",
        f"  the model waited {_spread([part.waited for part in profile.real], '.1%')} of the time",
        "milliseconds a batch",
    ]
    made += [f"  {name:<8}{seconds * 1000:10.1f}  {who}" for name, seconds, who in _stages(profile)]
    return [*made, f"bottleneck: {verdict.stage}: {verdict.reason}", f"what to do: {verdict.advice}"]


def _gain(profile: Profile) -> str:
    """What a perfect loader is worth: never less than nothing, as what looks like a loss is noise."""
    low, high, confidence = profile.known
    interval = f"{low:.2f} to {high:.2f} times as fast with {confidence:.0%} confidence"
    if low > 1:
        return f"with a perfect loader training would be {profile.speedup:.2f} times as fast ({interval})"
    if high < 1:
        return (
            f"with a perfect loader training was no faster: it was {1 - high:.0%} to {1 - low:.0%} slower, which no "
            "loader is the cause of, so the difference is within the noise of this machine"
        )
    return f"what a perfect loader would gain is within the noise ({interval})"


def _precision(profile: Profile) -> str:
    """Why there were no more rounds."""
    width = f"this is known to within {profile.known.width:.0%}"
    if profile.precise:
        return f"{width}: well enough, so no more rounds were made"
    return f"{width}: the {profile.minutes:g} minutes were over before it was {PRECISE:.0%} (--minutes)"


def _stages(profile: Profile) -> list[tuple[str, float, str]]:
    """Name, seconds a batch, and who spends them."""
    inside = profile.settings.workers == 0
    engine = "of the time waited" if inside else f"of one of {profile.settings.workers} workers"
    rows = [("read", engine), ("decode", engine), ("wait", "consumer"), ("finish", "consumer")]
    if profile.engine == "dali":
        rows[0] = ("read", "consumer, for DALI")
        rows[1] = ("decode", "consumer waiting for DALI")
    if profile.per_batch("storage"):
        rows.insert(1, ("storage", "of it waiting for the storage"))
    stages = [(name, profile.per_batch(name), who) for name, who in rows]  # type: ignore[arg-type]
    # of the time in which the device did not wait
    real, perfect = (
        statistics.median(part.seconds * (1 - part.waited) for part in parts) / profile.settings.steps
        for parts in (profile.real, profile.perfect)
    )
    return [*stages, ("model", real, f"{perfect * 1000:.1f} with the perfect loader")]


def _rates(parts: Sequence[Stretch]) -> str:
    rates = [part.rate for part in parts]
    return _spread(rates, ",.0f" if min(rates) >= 100 else ".1f")


def _spread(values: Sequence[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}} - {max(values):{form}})"


def write_all(profile: Profile, verdict: Bottleneck, facts: dict[str, Any], output: Path) -> list[Path]:
    """Write profile.json and timeline.png into the folder `output`; returns their paths."""
    output.mkdir(parents=True, exist_ok=True)
    content = {
        "environment": facts,
        "verdict": asdict(verdict),
        "settings": asdict(profile.settings) | {"minutes": profile.minutes},
        "engine": profile.engine,
        "device": profile.device,
        "speedups": profile.speedups,
        "speedup": {"median": profile.speedup, **profile.known._asdict()},
        "stages_s_per_batch": {name: seconds for name, seconds, _ in _stages(profile)},
        "real": [_part(part) for part in profile.real],
        "perfect": [_part(part) for part in profile.perfect],
    }
    draw(profile, verdict, output / "timeline.png")
    return [write_json(output / "profile.json", content), output / "timeline.png"]


def _part(part: Stretch) -> dict[str, Any]:
    """With its spans, in seconds from its start."""

    def after(seconds: float) -> float:
        return round(seconds - part.start, 6)

    return {
        "img_per_s": part.rate,
        "seconds": part.seconds,
        "waited": part.waited,
        "waits": [(after(start), after(end)) for start, end in part.waits],
        "spans": [(span.stage, span.who, after(span.start), after(span.end)) for span in part.spans],
    }


def lanes(part: Stretch) -> dict[str, list[Block]]:
    """Who worked on what, from the bottom lane to the top one; times count from the start of the part.

    The model's lane has its waits and, between them, its steps.
    """
    found: dict[str, list[Block]] = {}
    for span in part.spans:
        own = span.who == "consumer" and span.stage in ("wait", "finish")
        lane = span.who if own or span.who != "consumer" else "consumer's engine"
        found.setdefault(lane, []).append((span.stage, span.start - part.start, span.end - span.start))
    made = {name: found[name] for name in sorted(found, key=_place)}
    return {"model": _model(part)} | made


def _place(lane: str) -> tuple[bool, int]:
    """The consumer first, then its engine or the workers by number."""
    number = re.search(r"\d+", lane)
    return lane != "consumer", int(number[0]) if number else 0


def _model(part: Stretch) -> list[Block]:
    starts = [*(start for start, _ in part.waits[1:]), part.end]
    waits = [("wait", start - part.start, end - start) for start, end in part.waits]
    steps = [("step", end - part.start, later - end) for (_, end), later in zip(part.waits, starts, strict=True)]
    return list(itertools.chain.from_iterable(zip(waits, steps, strict=True)))


def draw(profile: Profile, verdict: Bottleneck, path: Path) -> None:
    """The last steps of the last round with the real loader, as PNG."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    part = profile.real[-1]
    shown = lanes(part)
    figure = Figure(figsize=(12, 1.8 + 0.42 * len(shown)), layout="constrained")
    axes = figure.add_subplot()
    for row, blocks in enumerate(shown.values()):
        for stage, start, seconds in blocks:
            look: dict[str, Any] = {"color": COLORS[stage], "edgecolor": "white", "linewidth": 0.5}
            axes.broken_barh([(start, seconds)], (row - 0.4, 0.8), **look)
    axes.set_yticks(range(len(shown)), list(shown))
    steps = min(STEPS_SHOWN, len(part.waits))
    axes.set_xlim(part.waits[-steps][0] - part.start, part.seconds)
    axes.set_xlabel(f"seconds since the round began; its last {steps} steps")
    axes.set_title(f"bottleneck: {verdict.stage}: {verdict.reason}", fontsize=9)
    handles = [Patch(color=color, label=stage) for stage, color in COLORS.items()]
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=len(handles), frameon=False)
    figure.savefig(path, dpi=120)
